"""Pure. The two state machines as Mermaid diagrams: of a run, and of a worker.

A worker's table holds its targets. The controller's handlers decide theirs, so where each event may lead is declared
here; tests hold the declaration against what the controller does, in both directions.
"""

from collections.abc import Iterable

from elastic.control import events as ev
from elastic.control.controller import TABLE
from elastic.control.state import Phase
from elastic.control.worker_protocol import DEFERRED, TRANSITIONS, Stage

_STARTING, _RUNNING, _FREEZING, _FORMING = Phase.STARTING, Phase.RUNNING, Phase.FREEZING, Phase.FORMING
_WAITING, _FINISHING, _ENDED = Phase.WAITING, Phase.FINISHING, Phase.ENDED

# A generation that is over is replaced at once if nobody is left to answer; then nobody may be left to go on, too.
_BREAKS = (_FREEZING, _FORMING, _WAITING, _ENDED)
_DECIDED = (_FORMING, _WAITING, _ENDED)
_LEFT: dict[Phase, tuple[Phase, ...]] = {
    _STARTING: (_FORMING, _ENDED),
    _RUNNING: _BREAKS,
    _FREEZING: _DECIDED,
    _FORMING: _BREAKS,
    _WAITING: (_FORMING, _ENDED),
    _FINISHING: (_ENDED,),
}
_MOVES: dict[type[ev.Event], dict[Phase, tuple[Phase, ...]]] = {
    ev.Tick: {
        _STARTING: (_FORMING, _ENDED),
        _FREEZING: _DECIDED,
        _FORMING: (_FREEZING,),
        _WAITING: (_ENDED,),
    },
    ev.StopAsked: {phase: (_ENDED,) for phase in Phase if phase is not _ENDED},
    ev.WorkerParked: {_STARTING: (_FORMING,), _WAITING: (_FORMING, _ENDED)},
    ev.WorkerLost: {**_LEFT, _RUNNING: (_FREEZING,), _FORMING: (_FREEZING,)},
    ev.WorkerDead: _LEFT,
    ev.WorkerDeparted: _LEFT,
    ev.CollectiveBroken: {_RUNNING: (_FREEZING,), _FORMING: (_FREEZING,)},
    ev.FreezeAnswered: {_RUNNING: _BREAKS, _FREEZING: _DECIDED},
    ev.Formed: {_FORMING: (_RUNNING,)},
    ev.FormingFailed: {_FORMING: (_FREEZING,)},
    ev.LoopEnded: {phase: (_FINISHING,) for phase in (_RUNNING, _FREEZING, _FORMING, _WAITING)},
    ev.TrainFnReturned: {
        _FINISHING: (_ENDED,),
        **{phase: (_FINISHING, _ENDED) for phase in (_RUNNING, _FREEZING, _FORMING, _WAITING)},
    },
    ev.TrainFnRaised: {phase: (_ENDED,) for phase in Phase if phase is not _ENDED},
}
# (phase, event) -> the phases it may lead to, staying where it is included.
EDGES: dict[tuple[Phase, type[ev.Event]], frozenset[Phase]] = {
    (phase, event): frozenset({phase, *_MOVES.get(event, {}).get(phase, ())}) for phase, event in TABLE
}
