"""Pure. What a run's journal says of how long things take, in the words of a scenario."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from elastic.control.faults import Fault, FaultKind, kind_of
from elastic.sim.failures import ASIDE, PASSING
from elastic.sim.study import median
from elastic.sim.vocabulary import PLAYED

Line = Mapping[str, Any]
_OF_JOB = frozenset({"step_s"})
# Of these it is known when somebody should have noticed: they have struck, and all must stop.
_DETECTED = frozenset(PLAYED) - ASIDE - {FaultKind.NOTICE, FaultKind.XID}


class Watch:
    """Takes lines in, in their order, and collects durations by the name that a scenario gives them."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = defaultdict(list)
        self._asked: dict[str, float] = {}
        self._placed: dict[str, float] = {}
        self._froze_s: float | None = None
        self._answered_s: float | None = None
        self._formed: tuple[float, bool] | None = None
        self._struck: dict[
            tuple[FaultKind, str], tuple[float, float]
        ] = {}  # by kind and target: when, and for how long
        self._loads: dict[str, float] = {}

    def take(self, line: Line) -> None:
        at_s, name = float(line["t"]), str(line.get("event") or line.get("command") or "")
        act = getattr(self, f"_on_{name.lower()}", None)
        if act is not None:
            act(at_s, line)

    def _on_startworker(self, at_s: float, line: Line) -> None:
        self._asked[line["worker"]] = at_s

    def _on_workerplaced(self, at_s: float, line: Line) -> None:
        self._placed[line["worker"]] = at_s
        if line["worker"] in self._asked:
            self.found["place_s"].append(at_s - self._asked.pop(line["worker"]))

    def _on_workerparked(self, at_s: float, line: Line) -> None:
        if line["worker"] in self._placed:
            self.found["loading_s"].append(at_s - self._placed.pop(line["worker"]))

    def _on_faultinjected(self, at_s: float, line: Line) -> None:
        told = line.get("fault", {})
        fault = Fault(kind=kind_of(told.get("kind", "kill")), duration_s=float(told.get("duration_s", 0.0)))
        if fault.kind in _DETECTED:
            lasts_s = fault.lasts_s if fault.kind in PASSING and fault.lasts_s else math.inf
            self._struck[fault.kind, str(line.get("target", ""))] = float(line.get("at_s", at_s)), lasts_s

    def _on_freeze(self, at_s: float, line: Line) -> None:
        """All stop because of what has struck; what was over before has passed unnoticed."""
        struck = [(kind, when_s) for (kind, _), (when_s, lasts_s) in self._struck.items() if at_s < when_s + lasts_s]
        for kind, when_s in struck:
            self.found["detect_hang_s" if kind in PASSING else "detect_s"].append(max(0.0, at_s - when_s))
        self._struck.clear()
        self._froze_s, self._answered_s = at_s, None

    def _on_freezeanswered(self, at_s: float, line: Line) -> None:
        self._answered_s = at_s

    def _on_workerdead(self, at_s: float, line: Line) -> None:
        """The next generation waits for a proof of death as for an answer."""
        if self._froze_s is not None:
            self._answered_s = at_s

    def _on_form(self, at_s: float, line: Line) -> None:
        if self._froze_s is not None and self._answered_s is not None:
            self.found["freeze_s"].append(self._answered_s - self._froze_s)
        self._froze_s = self._answered_s = None
        view = line.get("view", {})
        self._formed = at_s, bool(view.get("behind")) and not view.get("bootstrap")

    def _on_go(self, at_s: float, line: Line) -> None:
        if self._formed is not None:
            began_s, is_healed = self._formed
            self.found["with_heal_s" if is_healed else "form_s"].append(at_s - began_s)
        self._formed = None

    def _on_restore(self, at_s: float, line: Line) -> None:
        self._loads |= dict.fromkeys(line["workers"], at_s)

    def _on_restored(self, at_s: float, line: Line) -> None:
        if line["worker"] in self._loads:
            self.found["load_s"].append(at_s - self._loads.pop(line["worker"]))

    def _on_stepstable(self, at_s: float, line: Line) -> None:
        report = line["report"]
        if stall_s := report.get("times", {}).get("stall_s"):
            self.found["save_stall_s"].append(stall_s)
        self.found["step_s"].append(report["committed_at_s"] - report["started_at_s"])


def lines_of(texts: Iterable[str]) -> Iterator[Line]:
    """The lines of a journal; one that was cut in the middle, as the last one may be, is none."""
    for text in texts:
        with suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict):
                yield line


def fitted(lines: Iterable[Line]) -> dict[str, dict[str, dict[str, Any]]]:
    """What a scenario takes: by section and name, a value with its source; only what the journal shows.

    Args:
        lines: of the journal, in their order; those of another version are passed over.
    """
    watch = Watch()
    for line in lines:
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # another version wrote it
            watch.take(line)
    found = {name: (median(values), len(values)) for name, values in watch.found.items()}
    with_heal = found.pop("with_heal_s", None)
    if with_heal is not None:
        form_s = found.get("form_s", (0.0, 0))[0]
        found["heal_s"] = (max(0.0, with_heal[0] - form_s), with_heal[1])
    told: dict[str, dict[str, dict[str, Any]]] = {"job": {}, "times": {}}
    for name, (value, count) in sorted(found.items()):
        section = "job" if name in _OF_JOB else "times"
        told[section][name] = {"value": max(value, 1e-6), "source": f"the run's journal: median of {count}"}
    return told
