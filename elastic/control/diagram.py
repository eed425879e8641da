"""Pure. The two state machines as Mermaid diagrams: of a run, and of a worker.

A worker's table holds its targets. The controller's handlers decide theirs, so where each event may lead is declared
here; tests hold the declaration against what the controller does, in both directions.
"""

from collections.abc import Iterable
from enum import Enum

from elastic.control import events as ev
from elastic.control.controller import TABLE
from elastic.control.state import Phase
from elastic.control.worker_protocol import DEFERRED, TRANSITIONS, Signal, Stage

_STARTING, _RUNNING, _FREEZING, _FORMING = Phase.STARTING, Phase.RUNNING, Phase.FREEZING, Phase.FORMING
_WAITING, _FINISHING, _ENDED = Phase.WAITING, Phase.FINISHING, Phase.ENDED

_ANYWHERE = tuple(phase for phase in Phase if phase is not _ENDED)
_TRAINS = (_RUNNING, _FREEZING, _FORMING, _WAITING)
_DECIDED = (_FORMING, _WAITING, _ENDED)
_BREAKS = (_FREEZING, *_DECIDED)  # a freeze is decided at once when nobody is left to answer it
_Moves = dict[Phase, tuple[Phase, ...]]
_GONE: _Moves = {
    _STARTING: (_FORMING, _ENDED),
    _RUNNING: _BREAKS,
    _FREEZING: _DECIDED,
    _FORMING: _BREAKS,
    _WAITING: (_FORMING, _ENDED),
    _FINISHING: (_ENDED,),
}
_MOVES: dict[type[ev.Event], _Moves] = {
    ev.Tick: {
        _STARTING: (_FORMING, _ENDED),
        _RUNNING: (_FREEZING, _ENDED),
        _FREEZING: _DECIDED,
        _FORMING: (_FREEZING, _ENDED),
        _WAITING: (_FORMING, _ENDED),
        _FINISHING: (_ENDED,),
    },
    ev.RunTakenOver: {_STARTING: _BREAKS},
    ev.StopAsked: {phase: (_ENDED,) for phase in _ANYWHERE},
    ev.ExitAsked: {_STARTING: (_ENDED,), _WAITING: (_ENDED,)},
    ev.ResumeAsked: {_WAITING: (_FORMING, _ENDED)},
    ev.NodesMissing: {_WAITING: (_FORMING, _ENDED)},
    ev.RungReached: {_RUNNING: (_ENDED,), _WAITING: (_ENDED,)},
    ev.RestoreFound: {_STARTING: (_FORMING, _ENDED), _WAITING: (_FORMING, _ENDED), _FREEZING: (_ENDED,)},
    ev.Restored: {_STARTING: (_FORMING,), _WAITING: (_FORMING, _ENDED)},
    ev.RestoreRefused: {_STARTING: (_FORMING,), _WAITING: (_FORMING, _ENDED)},
    ev.Overdue: {_WAITING: (_FORMING, _ENDED)},
    ev.WorkerParked: {_STARTING: (_FORMING, _ENDED), _WAITING: (_FORMING, _ENDED)},
    ev.WorkerLost: {**_GONE, _RUNNING: (_FREEZING,), _FREEZING: (), _FORMING: (_FREEZING,)},
    ev.WorkerDead: _GONE,
    ev.WorkerDeparted: _GONE,
    ev.CollectiveBroken: {_RUNNING: (_FREEZING,), _FORMING: (_FREEZING,)},
    ev.CorruptionFound: {
        _RUNNING: (_FREEZING, _ENDED),
        _FREEZING: (_ENDED,),
        _FORMING: (_FREEZING, _ENDED),
        _WAITING: (_ENDED,),
    },
    ev.HardwareFinding: {_RUNNING: (_FREEZING,), _FORMING: (_FREEZING,)},
    ev.FreezeAnswered: {_RUNNING: _BREAKS, _FREEZING: _DECIDED, _WAITING: (_FORMING, _ENDED)},
    ev.Formed: {_FORMING: (_RUNNING,)},
    ev.FormingFailed: {_FORMING: (_FREEZING,)},
    ev.LoopEnded: {phase: (_FINISHING,) for phase in _TRAINS},
    ev.TrainFnReturned: {
        _RUNNING: (_FINISHING, *_BREAKS),  # a member that takes itself for dismissed is lost
        _FREEZING: (_FINISHING, *_DECIDED),
        _FORMING: (_FINISHING, *_BREAKS),
        _WAITING: (_FINISHING, _FORMING, _ENDED),
        _FINISHING: (_ENDED,),
    },
    ev.TrainFnRaised: {  # of one that was to die already it is a loss
        **{phase: (_ENDED,) for phase in _ANYWHERE},
        _STARTING: (_FORMING, _ENDED),
        _FREEZING: _DECIDED,
        _WAITING: (_FORMING, _ENDED),
    },
}
_CERTAIN = {(_STARTING, ev.ExitAsked), *((phase, ev.StopAsked) for phase in _ANYWHERE)}
# (phase, event) -> where it may lead; all but those in _CERTAIN may also leave the run where it is.
EDGES: dict[tuple[Phase, type[ev.Event]], frozenset[Phase]] = {
    (phase, event): frozenset(_MOVES.get(event, {}).get(phase, ()))
    | (frozenset() if (phase, event) in _CERTAIN else {phase})
    for phase, event in TABLE
}
_Arrows = dict[tuple[Enum, Enum], list[str]]


def render_phases() -> str:
    """A run: its phases, and the events that lead from one to another."""
    arrows: _Arrows = {}
    for event, moves in _MOVES.items():
        for phase, targets in moves.items():
            for target in targets:
                arrows.setdefault((phase, target), []).append(event.__name__)
    return _render(Phase, Phase.STARTING, Phase.ENDED, arrows)


def render_stages() -> str:
    """A worker: its stages, and the signals that lead from one to another."""
    arrows: _Arrows = {}
    for (stage, signal), target in TRANSITIONS.items():
        if stage is not target:
            arrows.setdefault((stage, target), []).append(signal.value)
    waiting = [signal.value for signal in Signal if (Stage.APPLYING, signal) in DEFERRED]
    arrows[Stage.APPLYING, Stage.GONE].append(Signal.DISMISS.value)  # once apply is left
    note = f"    note right of applying : {', '.join(waiting)} wait until apply is left\n"
    return _render(Stage, Stage.LOADING, Stage.GONE, arrows) + note


def _render(nodes: Iterable[Enum], first: Enum, last: Enum, arrows: _Arrows) -> str:
    """One arrow for each pair of nodes; what leads from everywhere to the last node is drawn once."""
    nodes = list(nodes)
    into_last = [set(arrows.get((node, last), ())) for node in nodes if node is not last]
    always = set.intersection(*into_last)
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
    for node in nodes:
        for target in nodes:
            labels = [label for label in arrows.get((node, target), ()) if not (target is last and label in always)]
            if labels:
                lines.append(f"    {node.value} --> {target.value} : {', '.join(labels)}")
    ending = [label for label in arrows.get((first, last), ()) if label in always]
    lines += [f"    anywhere --> {last.value} : {', '.join(ending)}", f"    {last.value} --> [*]"]
    return "\n".join(lines) + "\n"
