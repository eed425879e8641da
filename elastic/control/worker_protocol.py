"""Pure. The worker's half of the protocol: what it may do when, as a table of (stage, signal).

Two threads meet here. The training thread arrives at the door, steps, applies, fails; the control thread carries what
the driver says. Whoever comes first under the lock wins, and the loser learns it from the verdict. A freeze is
irrevocable: a worker that has answered one can never apply in that generation again, whatever its training thread is
doing, because entering apply goes through the same lock and the same table.

So is an adoption: from then on the worker heeds the driver of that incarnation, or of a later one, and no older one.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from elastic.control.copies import changed
from elastic.control.values import NOTHING_COMMITTED, CommitId


class Stage(Enum):
    """Where a worker is."""

    LOADING = "loading"
    PARKED = "parked"
    FORMING = "forming"
    READY = "ready"
    STEPPING = "stepping"
    APPLYING = "applying"
    BROKEN = "broken"
    FROZEN = "frozen"
    FINISHED = "finished"
    GONE = "gone"

    __hash__ = object.__hash__  # an Enum hashes the name, in Python; these are looked up all the time


class Signal(Enum):
    """What happens to it; the first group comes from the training thread, the second from the driver."""

    ARRIVE = "arrive at the first door"
    FORMED = "joined the group"
    PREPARE = "its sums are complete and checked"
    ENTER_APPLY = "enter apply"
    LEAVE_APPLY = "leave apply"
    ROLL_FORWARD = "applied what it was prepared for"
    FORGO = "dropped what it was prepared for"
    BREAK = "a collective broke"
    TEAR = "the received state could not be installed"
    RESTORED = "loaded a checkpoint"
    OUTVOTED = "its state was outvoted"
    STOP_AT_DOOR = "all agreed to stop here"
    END_LOOP = "completed the closing reduction"
    LEAVE = "left train_fn"

    FREEZE = "freeze"
    FORM = "form"
    GO = "go"
    FINISH = "finish"
    DISMISS = "dismiss"
    ADOPT = "adopt"

    __hash__ = object.__hash__


class Verdict(Enum):
    """What became of a signal."""

    DONE = "done"
    REFUSED = "refused"
    LATER = "later"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """The worker's own view of itself.

    Attributes:
        generation: the generation it belongs to, 0 before the first.
        commit: the last step it applied; healed: its state is the one that `commit` names.
        frozen_at: the highest generation it has stopped in for good.
        prepared: the update it could apply yet, for which the other workers of its replica were waited for.
        incarnation: of the driver that it heeds. outvoted: its bits, or its arithmetic, are wrong.
    """

    stage: Stage = Stage.LOADING
    generation: int = 0
    commit: CommitId = NOTHING_COMMITTED
    healed: bool = False
    frozen_at: int = 0
    prepared: CommitId | None = None
    incarnation: int = 0
    outvoted: bool = False


@dataclass(frozen=True, slots=True)
class Reaction:
    """The state after a signal, and what became of the signal."""

    state: WorkerState
    verdict: Verdict


_S, _G = Stage, Signal
# (stage, signal) -> next stage. LATER: the signal waits until apply is left. What is absent is refused.
TRANSITIONS: dict[tuple[Stage, Signal], Stage] = {
    (_S.LOADING, _G.ARRIVE): _S.PARKED,
    (_S.PARKED, _G.FORM): _S.FORMING,
    (_S.FORMING, _G.FORMED): _S.READY,
    (_S.FORMING, _G.BREAK): _S.BROKEN,
    (_S.FORMING, _G.TEAR): _S.BROKEN,
    (_S.FORMING, _G.OUTVOTED): _S.BROKEN,
    **{(stage, signal): stage for stage in (_S.PARKED, _S.FROZEN) for signal in (_G.RESTORED, _G.TEAR)},
    (_S.READY, _G.GO): _S.STEPPING,
    (_S.STEPPING, _G.PREPARE): _S.STEPPING,
    (_S.FORMING, _G.ROLL_FORWARD): _S.FORMING,
    (_S.FROZEN, _G.FORGO): _S.FROZEN,
    (_S.STEPPING, _G.ENTER_APPLY): _S.APPLYING,
    (_S.APPLYING, _G.LEAVE_APPLY): _S.STEPPING,
    (_S.STEPPING, _G.BREAK): _S.BROKEN,
    (_S.STEPPING, _G.OUTVOTED): _S.BROKEN,
    (_S.STEPPING, _G.STOP_AT_DOOR): _S.FROZEN,
    (_S.STEPPING, _G.END_LOOP): _S.FINISHED,
    (_S.PARKED, _G.FREEZE): _S.FROZEN,
    (_S.FORMING, _G.FREEZE): _S.FROZEN,
    (_S.READY, _G.FREEZE): _S.FROZEN,
    (_S.STEPPING, _G.FREEZE): _S.FROZEN,
    (_S.BROKEN, _G.FREEZE): _S.FROZEN,
    (_S.FROZEN, _G.FREEZE): _S.FROZEN,
    (_S.FROZEN, _G.FORM): _S.FORMING,
    **{(stage, _G.FINISH): _S.FINISHED for stage in (_S.STEPPING, _S.BROKEN, _S.FROZEN, _S.FINISHED)},
    **{(stage, _G.DISMISS): _S.GONE for stage in Stage if stage is not _S.APPLYING},
    **{(stage, _G.LEAVE): _S.GONE for stage in Stage},
    **{(stage, _G.ADOPT): stage for stage in (_S.LOADING, _S.PARKED, _S.FROZEN, _S.FINISHED, _S.GONE)},
    **{(stage, _G.ADOPT): _S.FROZEN for stage in (_S.FORMING, _S.READY, _S.STEPPING, _S.BROKEN)},
}
_OF_DRIVERS = (_G.FREEZE, _G.FINISH, _G.DISMISS, _G.ADOPT)
DEFERRED = frozenset((_S.APPLYING, signal) for signal in _OF_DRIVERS)
_NUMBERED = frozenset({_G.FREEZE, _G.FORM, _G.GO})
_COMMANDS = frozenset({*_OF_DRIVERS, *_NUMBERED})
THE_DRIVER = 1 << 62  # whoever speaks is the newest there is
LEASE_MARGIN = 0.8  # a member stops this much before the driver may count it as gone


def has_lease(silent_s: float, lease_s: float) -> bool:
    """Whether a member that has heard no driver for so long, by its own clock, may still apply.

    What it takes part in may be all there is: the reductions of the only replica always complete.
    """
    return silent_s < lease_s * LEASE_MARGIN


def react(
    state: WorkerState,
    signal: Signal,
    *,
    generation: int = 0,
    commit: CommitId | None = None,
    incarnation: int = THE_DRIVER,
) -> Reaction:
    """Take one signal in.

    Args:
        state: where the worker is.
        signal: what happens.
        generation: of the driver's message, for FREEZE, FORM and GO; older ones are refused (fencing).
        commit: for LEAVE_APPLY the step just applied, for FORMED and RESTORED the state received, for PREPARE what may
            be applied, for FORM what this worker is to resume from by itself, None if it is healed to it: whoever is
            prepared for something else drops it.
        incarnation: of the driver that says so; older ones than the one that is heeded are refused (fencing).
    """
    if signal in _COMMANDS and not _heeds(state, signal, incarnation):
        return Reaction(state, Verdict.REFUSED)
    if signal in _NUMBERED and _is_stale(state, signal, generation):
        return Reaction(state, Verdict.REFUSED)
    if (state.stage, signal) in DEFERRED:
        return Reaction(state, Verdict.LATER)
    stage = TRANSITIONS.get((state.stage, signal))
    if stage is None:
        return Reaction(state, Verdict.REFUSED)
    if signal is Signal.ROLL_FORWARD and state.prepared is None:
        return Reaction(state, Verdict.REFUSED)
    if signal is Signal.ADOPT:
        state, generation = changed(state, incarnation=incarnation), state.generation
    more = _after(state, stage, signal, generation, commit)
    return Reaction(changed(state, stage=stage, **more), Verdict.DONE)


def _heeds(state: WorkerState, signal: Signal, incarnation: int) -> bool:
    """Whether a driver is listened to; it adopts a worker once."""
    return incarnation > state.incarnation if signal is Signal.ADOPT else incarnation >= state.incarnation


def _after(
    state: WorkerState, stage: Stage, signal: Signal, generation: int, commit: CommitId | None
) -> dict[str, Any]:
    """What else a signal changes, beside the stage."""
    if signal is Signal.FORM:
        is_wanted = state.prepared is not None and commit is not None and state.prepared.same_state(commit)
        return {"generation": generation, "prepared": state.prepared if is_wanted else None}
    if signal is Signal.PREPARE:
        return {"prepared": commit}
    if signal is Signal.ROLL_FORWARD and state.prepared is not None:
        return {"commit": state.prepared, "prepared": None}
    if signal in (Signal.FORMED, Signal.RESTORED) and commit is not None:
        return {"commit": commit, "healed": True, "prepared": None}
    if signal is Signal.FORGO:
        return {"prepared": None}
    if signal in (Signal.TEAR, Signal.OUTVOTED):
        return {"healed": False, "outvoted": state.outvoted or signal is Signal.OUTVOTED}
    if signal is Signal.LEAVE_APPLY and commit is not None:
        return {"commit": commit, "prepared": None}
    if stage is Stage.FROZEN:
        stopped_in = max(state.generation, generation)
        return {"generation": stopped_in, "frozen_at": stopped_in}
    return {}


def _is_stale(state: WorkerState, signal: Signal, generation: int) -> bool:
    if signal is Signal.FORM:
        return generation <= max(state.generation, state.frozen_at)
    if signal is Signal.FREEZE and state.stage in (Stage.PARKED, Stage.FROZEN):
        return generation < state.generation  # one whose forming has not come: it will be refused
    return generation != state.generation
