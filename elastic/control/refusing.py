"""Pure. What is not believed: messages that are malformed, that nobody can send, or that are not the sender's to tell.

Each refusal is a sentence, for the log; nothing follows from what is refused, and nothing is lost by it. What is merely
old (an answer of a replaced generation, a second death) needs no refusal: the handlers pass over it. They pass over an
answer of somebody dead too, but that is worth a sentence: a worker that was given up lives on somewhere.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints

from elastic.control import events as ev
from elastic.control.controller import TABLE
from elastic.control.copies import changed
from elastic.control.faults import OF_WORKERS, Fault
from elastic.control.flight import Flying, Reading
from elastic.control.logs import LogLine
from elastic.control.state import RunState, Standing
from elastic.control.values import CommitId, StepReport, StepTimes
from elastic.settings.logs import LEVELS

Check = Callable[[Any], bool]


def admitted(state: RunState, event: Any) -> tuple[ev.Event | None, str]:
    """What of a message is believed, None if nothing is; and why the rest is refused, empty if all of it is."""
    kind = type(event)
    if kind not in _KNOWN:
        return None, f"{kind.__name__} is no event"
    if (state.phase, kind) not in TABLE:
        return None, f"{kind.__name__} can not come in phase {state.phase.value}"
    why_not = malformed(event) or _from_nowhere(state, event)
    if why_not:
        return None, f"{kind.__name__}: {why_not}"
    if isinstance(event, ev.HostBeat | ev.HostsHeard):
        return _without_strangers(state, event)
    return event, _from_the_dead(state, event)


def misplaced(node: str, event: ev.Event, watched: Mapping[str, str]) -> str:
    """Why the monitor of this node may not say this; empty: it may. `watched`: by worker, the node that watches it."""
    if type(event) not in _TOLD_BY_MONITORS:
        return f"the monitor of {node} tells of {type(event).__name__}, which is not its to tell"
    if why_not := malformed(event):
        return f"{type(event).__name__} of the monitor of {node}: {why_not}"
    where, workers = _about(event)
    if where not in ("", node):
        return f"the monitor of {node} speaks for {where}"
    for name in workers:
        if watched.get(name, node) != node:
            return f"the monitor of {node} speaks of {name}, which is on {watched[name]}"
    return ""


def presumed(worker: str, event: Any) -> str:
    """Why this worker may not say this; empty: it may."""
    kind = type(event)
    if kind not in _TOLD_BY_WORKERS:
        return f"{worker} tells of {kind.__name__}, which is not its to tell"
    if why_not := malformed(event):
        return f"{kind.__name__} of {worker}: {why_not}"
    who = event.target if isinstance(event, ev.FaultInjected) else event.worker
    return f"{worker} speaks for {who}" if who != worker else ""


def malformed(value: Any, where: str = "") -> str:
    """Which field of a value of the vocabulary does not hold what it should; empty if all do."""
    for name, fits, hint in _FIELDS[type(value)]:
        one = getattr(value, name)
        if not fits(one):
            return f"{where}{name}={one!r:.80} is no {getattr(hint, '__name__', hint)}"
        if type(one) in _INNER and (inside := malformed(one, f"{where}{name}.")):
            return inside
    return ""


def _check_of(hint: Any) -> Check:
    """Whether a value is what the hint says, as far down as containers of plain values go."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        checks = [_check_of(one) for one in get_args(hint)]
        return lambda value: any(check(value) for check in checks)
    if origin is tuple:
        return _check_of_tuple(get_args(hint))
    if hint is float:
        return _is_number
    if hint is int:
        return lambda value: isinstance(value, Integral) and not isinstance(value, bool)
    if hint is bool:
        return lambda value: str(value) in ("True", "False")  # numpy has a kind of its own
    if hint in _OF_THEIR_OWN:
        return _OF_THEIR_OWN[hint]
    if getattr(hint, "_is_protocol", False):
        return lambda value: True
    kind = origin or hint
    return lambda value: isinstance(value, kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and bool(-inf < value < inf)  # type: ignore[operator]


def _check_of_tuple(hints: tuple[Any, ...]) -> Check:
    checks = [_check_of(hint) for hint in hints if hint is not Ellipsis]
    if len(hints) == 2 and hints[1] is Ellipsis:
        return lambda value: isinstance(value, tuple) and all(map(checks[0], value))
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(checks)
        and all(check(one) for check, one in zip(checks, value, strict=True))
    )


def is_reading(value: Any) -> bool:
    """The hot path: thousands of hosts tell of their workers every second."""
    if type(value) is not Reading or type(value.phase) is not Flying:
        return False
    texts = isinstance(value.worker, str) and isinstance(value.state, str) and isinstance(value.remark, str)
    numbers = isinstance(value.generation, int) and isinstance(value.step, int) and isinstance(value.micro_batch, int)
    counts = numbers and isinstance(value.commits, int)
    return texts and counts and isinstance(value.still_s, float | int) and isfinite(value.still_s)


def _is_log_line(value: Any) -> bool:
    return type(value) is LogLine and not malformed(value) and value.level in LEVELS


def _about(event: ev.Event) -> tuple[str, tuple[str, ...]]:
    """The node and the workers that a monitor tells of; readings are the supervisor's to judge."""
    match event:
        case ev.HardwareFinding():
            return event.node, event.workers
        case ev.FaultInjected():
            return ("", (event.target,)) if event.fault.kind in OF_WORKERS else (event.target, ())
        case ev.WorkerDead():
            return "", (event.worker,)
        case ev.HostBeat() | ev.NodeNotice():
            return event.node, ()
        case ev.Logged():
            return event.node, (event.worker,)
    return "", ()


_INNER = (CommitId, StepReport, StepTimes, Fault)
_OF_THEIR_OWN: dict[Any, Check] = {Reading: is_reading, LogLine: _is_log_line}
_TOLD_BY_MONITORS = (
    ev.HostBeat, ev.HardwareFinding, ev.NodeNotice, ev.WorkerDead, ev.FaultInjected, ev.FaultRefused, ev.Logged,
)  # fmt: skip
_KNOWN = {kind for _, kind in TABLE}
_TOLD_OF_WORKERS = (ev.WorkerPlaced, ev.WorkerLost, ev.WorkerDead, ev.StackDumped)  # by who watches them
_TOLD_BY_WORKERS = {one for one in _KNOWN if issubclass(one, ev.WorkerEvent | ev.FaultInjected)} - {*_TOLD_OF_WORKERS}
_FIELDS = {
    kind: tuple((field.name, _check_of(hints[field.name]), hints[field.name]) for field in fields(kind))
    for kind, hints in ((kind, get_type_hints(kind)) for kind in (*_KNOWN, *_INNER, LogLine))
}


def _from_nowhere(state: RunState, event: ev.Event) -> str:
    """It speaks of a generation that was never numbered, or of a life of the driver that has not begun."""
    if isinstance(event, ev.RunTakenOver):
        return ""  # the driver's own word, by which this state comes to know of generations
    report = getattr(event, "report", None)
    commit = report.commit if report is not None else getattr(event, "commit", None)
    generation = getattr(event, "generation", 0)
    if commit is not None and commit.incarnation == state.settings.incarnation:
        generation = max(generation, commit.generation)
    if generation > state.generation:
        return f"generation {generation} was never numbered, the last one is {state.generation}"
    if commit is not None and commit.incarnation > state.settings.incarnation:
        return f"incarnation {commit.incarnation} has not begun, this is {state.settings.incarnation}"
    return ""


_ANSWERS = (
    ev.WorkerParked, ev.FreezeAnswered, ev.AtDoor, ev.Formed, ev.FormingFailed, ev.LoopEnded, ev.Restored,
    ev.RestoreRefused,
)  # fmt: skip


def _from_the_dead(state: RunState, event: ev.Event) -> str:
    if not isinstance(event, _ANSWERS):
        return ""
    worker = state.workers.get(event.worker)
    if worker is not None and worker.standing is not Standing.DEAD:
        return ""
    who = "is no worker of this run (any more)" if worker is None else "has been given up for dead"
    return f"{type(event).__name__}: {event.worker} {who}, and what it answers is passed over"


def _without_strangers(state: RunState, event: ev.HostBeat | ev.HostsHeard) -> tuple[ev.Event, str]:
    """A host tells of its own workers only, a relay of those on its hosts."""
    told_by = {event.node} if isinstance(event, ev.HostBeat) else set(event.nodes)
    nodes = {one.worker: state.workers[one.worker].node for one in event.readings if one.worker in state.workers}
    strangers = sorted(name for name, node in nodes.items() if node and node not in told_by)
    if not strangers:
        return event, ""
    own = tuple(reading for reading in event.readings if reading.worker not in strangers)
    who = f"the monitor of {event.node}" if isinstance(event, ev.HostBeat) else "a relay"
    where = "it" if isinstance(event, ev.HostBeat) else "its hosts"
    return changed(event, readings=own), f"{who} speaks of {', '.join(strangers)}, not on {where}"
