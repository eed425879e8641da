"""Pure. Faults that are injected on purpose: what there is, which need what, and how they are written down.

One fault is `KIND [TARGET] [for=SECONDS] [with=ARGUMENT]`; `schedules.py` adds when it strikes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from elastic.errors import SettingError

ANY = "any"
_TARGET = re.compile(r"any|leader|rank:\d+|worker:[\w.-]+|node:[\w.-]+")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "y": 365 * 86400.0}
_DEVICE = re.compile(r"[\w.-]{1,15}")  # names of network interfaces: see ip-link(8)
_NETNS = re.compile(r"[\w.-]+")


class FaultKind(Enum):
    """What is broken; a value is the name that users write."""

    KILL = "kill"
    STOP = "stop"
    SLOW = "slow"
    RAISE = "raise"
    NOTICE = "notice"
    NODE_DOWN = "node_down"
    PARTITION = "partition"
    PACKETS = "packets"
    DISK_FULL = "disk_full"
    BIT_FLIP = "bit_flip"
    STORAGE_ERRORS = "storage_errors"
    XID = "xid"
    KILL_MONITOR = "kill_monitor"
    KILL_SUPERVISOR = "kill_supervisor"


# Those that strike one worker; the others strike its node, and the last one neither.
OF_WORKERS = frozenset({FaultKind.KILL, FaultKind.STOP, FaultKind.SLOW, FaultKind.RAISE, FaultKind.NOTICE})
RANDOM_KINDS = (FaultKind.KILL, FaultKind.STOP)  # what "random" means in NVRx: rank_killed or rank_hung
# How long each lasts that ends by itself, unless a fault says otherwise; a stop without a duration is for good.
_LASTS_S = {
    FaultKind.SLOW: 30.0,
    FaultKind.NOTICE: 30.0,
    FaultKind.PARTITION: 30.0,
    FaultKind.PACKETS: 30.0,
    FaultKind.DISK_FULL: 30.0,
    FaultKind.STORAGE_ERRORS: 30.0,
}


class InjectedError(RuntimeError):
    """Raised in a train_fn because somebody asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        target: any, leader, rank:N, worker:NAME, node:BEGINNING_OF_ITS_ID; the node of a worker where nodes are struck.
        at_s: seconds after the first stable step.
        duration_s: until it is undone; 0: as long as is usual for the kind.
        argument: depends on the kind; see docs/chaos.md.
        draw: 64 bits of chance: whom "any" means, which bit is flipped.
        name: unique among the faults of a schedule.

    Raises:
        SettingError: a part of it cannot work; says what it takes.
    """

    kind: FaultKind
    target: str = ANY
    at_s: float = 0.0
    duration_s: float = 0.0
    argument: str = ""
    draw: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        if not _TARGET.fullmatch(self.target):
            raise SettingError(f"target {self.target!r}: any, leader, rank:N, worker:NAME or node:BEGINNING_OF_ITS_ID")
        if self.duration_s < 0 or self.at_s < 0:
            raise SettingError(f"{self}: neither its time nor its duration may be negative")
        if self.kind in _ARGUMENTS:
            takes, is_right = _ARGUMENTS[self.kind]
            if not is_right(*options(self.argument)):
                raise SettingError(f"{self.kind.value} with={self.argument!r}: {takes}")
        elif self.argument:
            raise SettingError(f"{self.kind.value} with={self.argument!r}: it takes no argument")

    @property
    def lasts_s(self) -> float:
        """Until it is undone; 0: it is not."""
        return self.duration_s or _LASTS_S.get(self.kind, 0.0)

    def __str__(self) -> str:
        lasts = f" for={self.duration_s:g}" if self.duration_s else ""
        told = f" with={self.argument}" if self.argument else ""
        return f"{self.kind.value} {self.target}{lasts}{told}"


def kind_of(name: str) -> FaultKind:
    """
    Raises:
        SettingError: there is no such fault; names those there are.
    """
    try:
        return FaultKind(name.replace("-", "_"))
    except ValueError:
        known = ", ".join(kind.value for kind in FaultKind)
        raise SettingError(f"there is no fault {name!r}: name one of {known}") from None


def seconds(text: str, what: str, may_be_none: bool = False) -> float:
    """A duration: a number, of seconds or of the unit behind it (s, m, h, d, y).

    Raises:
        SettingError: it is none, or not positive, or may not even be 0; names `what`.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?)([smhdy]?)", text)
    if match is None or (float(match[1]) == 0 and not may_be_none):
        which = "a number" if may_be_none else "a positive number"
        raise SettingError(f"{what}{text!r} must be {which} of seconds, or one with s, m, h, d or y behind it")
    return float(match[1]) * _SECONDS[match[2]]


def options(argument: str) -> tuple[str, dict[str, str]]:
    """ "eth0,loss=0.1" -> ("eth0", {"loss": "0.1"})."""
    parts = [part for part in argument.split(",") if part]
    head = parts.pop(0) if parts and "=" not in parts[0] else ""
    named = dict(part.partition("=")[::2] for part in parts)
    return head, named


def number_in(text: str, default: float) -> float:
    """The number that an option holds; not a number where it holds none."""
    try:
        return float(text) if text else default
    except ValueError:
        return float("nan")


# --- what each kind takes ---------------------------------------------------------------------------------------------

Named = dict[str, str]


def _is_factor(head: str, named: Named) -> bool:
    return not named and number_in(head, 2.0) > 1


def _is_device(head: str, named: Named) -> bool:
    is_named = _NETNS.fullmatch(named.get("netns", "-")) is not None
    return _DEVICE.fullmatch(head) is not None and is_named and set(named) <= {"netns"}


def _is_impaired_device(head: str, named: Named) -> bool:
    delay_s, loss = number_in(named.pop("delay", ""), 0.0), number_in(named.pop("loss", ""), 0.0)
    return _is_device(head, named) and delay_s >= 0 and 0 <= loss <= 1 and delay_s + loss > 0


def _is_directory(head: str, named: Named) -> bool:
    return not named and (not head or head.startswith("/"))


def _is_tier(head: str, named: Named) -> bool:
    return not named and head in ("", "memory", "persistent")


def _is_share(head: str, named: Named) -> bool:
    return not named and 0 < number_in(head, 1.0) <= 1


def _is_xid(head: str, named: Named) -> bool:
    return head.isdigit() and set(named) <= {"bus", "kmsg", "nvml", "gpu"} and named.get("gpu", "0").isdigit()


_ARGUMENTS: dict[FaultKind, tuple[str, Callable[[str, Named], bool]]] = {
    FaultKind.SLOW: ("how many times slower, more than 1, e.g. with=3", _is_factor),
    FaultKind.PARTITION: ("the interface to cut, e.g. with=eth0 or with=eth0,netns=NAME", _is_device),
    FaultKind.PACKETS: ("an interface and delay (seconds), loss (share), e.g. with=eth0,loss=0.1", _is_impaired_device),
    FaultKind.DISK_FULL: ("an absolute path to fill; without one, Checkpoint.memory", _is_directory),
    FaultKind.BIT_FLIP: ("memory or persistent: where the shard lies", _is_tier),
    FaultKind.STORAGE_ERRORS: ("the share of calls that fail, in (0, 1]", _is_share),
    FaultKind.XID: ("its number, and bus=0000:17:00, kmsg=PATH, nvml=PATH, gpu=N if need be, e.g. with=79", _is_xid),
}
