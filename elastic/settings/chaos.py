"""Pure. Faults that a run does to itself."""

import re
from dataclasses import dataclass

from elastic.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """Faults that a run does to itself, to show that it survives them; see `elastic chaos`.

    Attributes:
        enable_fault_injection: whether the run may be harmed on purpose at all; the other fields need it. (yes or no;
            default no: nobody harms a run by mistake)
        fault_injection_period_s: a fault after every so many seconds; 0: none by the clock. (s; default 0: how often is
            for whoever asks for faults to say)
        sim_fault_desc: `kind,seconds`: one fault of that kind, or of any for `random`, after so many seconds
            (or m, h, d); `random,120` for instance. (text; default none: see fault_injection_period_s)
        schedule: more faults, in the words of `elastic chaos --schedule`. (text; default none: see above)
    """

    enable_fault_injection: bool = False
    fault_injection_period_s: float = 0.0
    sim_fault_desc: str = ""
    schedule: str = ""

    def __post_init__(self) -> None:
        period_s = self.fault_injection_period_s
        if not isinstance(period_s, int | float) or not period_s >= 0:
            raise SettingError(
                f"Chaos.fault_injection_period_s={period_s!r} must be seconds, or 0 for no fault by the clock"
            )
        if self.sim_fault_desc and not _is_fault(self.sim_fault_desc):
            raise SettingError(
                f"Chaos.sim_fault_desc={self.sim_fault_desc!r} must be kind,seconds with more than 0 s, as random,120 "
                "or random,2m"
            )
        asked = [name for name in ("fault_injection_period_s", "sim_fault_desc", "schedule") if getattr(self, name)]
        if asked and not self.enable_fault_injection:
            raise SettingError(f"Chaos.{asked[0]} needs Chaos.enable_fault_injection: without it no fault is injected")


def _is_fault(text: str) -> bool:
    """Whether it has the form; which kinds there are is not known here."""
    match = re.fullmatch(r"[^,]*[^,\s][^,]*,\s*(\d+(?:\.\d*)?)[smhdy]?\s*", text)
    return match is not None and float(match[1]) > 0
