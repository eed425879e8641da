"""Pure. Which faults of `elastic chaos` a fleet can play; what it cannot is refused, before anything is simulated."""

from collections.abc import Sequence

from elastic.control.faults import ANY, FaultKind, options
from elastic.control.schedules import Entry, Schedule, parse
from elastic.errors import SettingError

_NOT_PLAYED = {
    FaultKind.RAISE: "an exception of a train_fn ends the run, and nothing is left to simulate",
    FaultKind.PACKETS: "a fleet has no packets: write slow and how many times slower all are",
    FaultKind.DISK_FULL: "a fleet has no disks that fill: write storage_errors where nothing can be saved",
    FaultKind.KILL_MONITOR: "a fleet has no host monitors: `elastic simulate campaign` plays that",
    FaultKind.KILL_SUPERVISOR: "a fleet's controller does not die: `elastic simulate campaign` plays that",
}
PLAYED = tuple(kind for kind in FaultKind if kind not in _NOT_PLAYED)
_OVER_AT_ONCE = frozenset({FaultKind.KILL, FaultKind.BIT_FLIP, FaultKind.XID})
LEAST = 1e-3  # seconds, or hours: of what comes again and again, and must not come without end
_OF_NO_MACHINE = frozenset({FaultKind.BIT_FLIP, FaultKind.STORAGE_ERRORS})
_SCHEDULE = "failures.schedule"


def playable(kind: FaultKind, where: str) -> None:
    """
    Raises:
        SettingError: a fleet does not play it; names `where` and says what does.
    """
    if kind in _NOT_PLAYED:
        raise SettingError(f"{where}: {_NOT_PLAYED[kind]}")


def scheduled(text: str, machines: Sequence[str]) -> Schedule:
    """The faults of a schedule, all of which a fleet of these machines can play as they are written.

    Raises:
        SettingError: an entry cannot be understood, or a part of it would have no effect here; quotes that.
    """
    try:
        found = parse(text)
    except SettingError as error:
        raise SettingError(f"{_SCHEDULE}: {error}") from None
    there = frozenset(machines)
    for entry in found.entries:
        _check_pace(entry)
        for kind in entry.kinds:
            playable(kind, f"{_SCHEDULE}: {kind.value}")
            _check_duration(kind, entry)
            _check_argument(kind, entry.argument)
            _check_machine(kind, entry.target)
        _check_target(entry.target, there, machines)
    return found


def _check_pace(entry: Entry) -> None:
    for name, seconds in (("every ", entry.every_s), ("mtbf=", entry.mtbf_s)):
        if seconds is not None and seconds < LEAST:
            raise SettingError(f"{_SCHEDULE}: {name}{seconds:g}: it must be {LEAST:g} s or more")


def _check_target(target: str, there: frozenset[str], machines: Sequence[str]) -> None:
    how, _, name = target.partition(":")
    if how not in ("any", "node"):
        raise SettingError(f"{_SCHEDULE}: {target}: no worker of a fleet has a name or a rank: write any, or node:n0")
    if how == "node" and name not in there:
        raise SettingError(f"{_SCHEDULE}: {target}: its machines are node:{machines[0]} to node:{machines[-1]}")


def _check_machine(kind: FaultKind, target: str) -> None:
    if kind in _OF_NO_MACHINE and target != ANY:
        why = "a fleet's checkpoints lie on no certain machine: leave it out"
        raise SettingError(f"{_SCHEDULE}: {kind.value} {target}: {why}")


def _check_duration(kind: FaultKind, entry: Entry) -> None:
    if entry.duration_s and kind in _OVER_AT_ONCE:
        raise SettingError(f"{_SCHEDULE}: {kind.value} for={entry.duration_s:g}: it is over at once: leave for= out")


def _check_argument(kind: FaultKind, argument: str) -> None:
    head, named = options(argument)
    if kind is FaultKind.STORAGE_ERRORS and head not in ("", "1", "1.0"):
        why = "storage is there or it is not: leave with= out"
        raise SettingError(f"{_SCHEDULE}: {kind.value} with={argument}: {why}")
    if kind is FaultKind.XID and named:
        raise SettingError(f"{_SCHEDULE}: {kind.value} with={argument}: only the number counts: write with={head}")
