"""Pure. What takes time and belongs to no phase: each thing ends, by its completion or by its deadline.

Nodes come back from quarantine, GPUs are reset, workers that were told to leave have left, those that were to start on
one certain node have found room there, a pause is over, a lost order is said again, an answer does not come.
"""

from dataclasses import replace
from itertools import chain

from elastic.control import events as ev
from elastic.control.awaiting import expire_answers
from elastic.control.care import Care
from elastic.control.commands import ResetGpu
from elastic.control.deciding import on_gpus
from elastic.control.exiting import expire_exit, see_off
from elastic.control.holding import expire_hold
from elastic.control.leaving import expire_leaving
from elastic.control.starts import try_starts_again
from elastic.control.state import OVER, Phase, Standing, WorkerRecord
from elastic.control.turn import Turn

REMIND_S = 5.0
_SETTLED_S = 2.0  # hosts that are lost together fall silent one after the other
_ASKS = (Phase.STARTING, Phase.RUNNING, Phase.WAITING)


def tend(turn: Turn) -> None:
    """Once a tick."""
    _release_nodes(turn)
    _see_to_resets(turn)
    expire_leaving(turn)
    _ask_anew(turn)
    try_starts_again(turn)
    _remind_of_pause(turn)
    expire_hold(turn)
    expire_answers(turn)
    see_off(turn)
    expire_exit(turn)


def rung_reached(turn: Turn, event: ev.RungReached) -> None:
    if not any(fork.voids(event.commit) for fork in turn.state.forks):
        turn.change(care=turn.state.care.reached(event.rung, event.commit.step))
        see_off(turn)


def gpu_reset(turn: Turn, event: ev.GpuReset) -> None:
    """Done: the node is free again, unless something else keeps it away. Failed: it is in quarantine."""
    for reset in turn.state.care.resets:
        if reset.is_sent and (reset.node, set(reset.gpus)) == (event.node, set(event.gpus)):
            turn.tend(resets=tuple(one for one in turn.state.care.resets if one is not reset))
            if event.error:
                _give_reset_up(turn, reset.node)
            elif turn.state.care.quarantine.get(reset.node) == reset.until_s:
                turn.change(care=_without_reset(turn.state.care, reset.node))


def _without_reset(care: Care, node: str) -> Care:
    """A node of which one reset is done: free again, or when the last of the others is."""
    others_s = [one.until_s for one in care.resets if one.node == node]
    return replace(care, quarantine={**care.quarantine, node: max(others_s)}) if others_s else care.released(node)


def _give_reset_up(turn: Turn, node: str) -> None:
    turn.change(care=turn.state.care.quarantined(node, turn.now_s + turn.settings.limits.quarantine_s))


def _see_to_resets(turn: Turn) -> None:
    limit_s = turn.settings.limits.gpu_reset_timeout_s
    for reset in turn.state.care.resets:
        others = tuple(one for one in turn.state.care.resets if one is not reset)
        if turn.now_s - reset.since_s > limit_s:
            turn.tend(resets=others)
            _give_reset_up(turn, reset.node)
        elif not reset.is_sent and not on_gpus(turn, reset) and not _are_leaving(turn, reset.node):
            turn.tend(resets=(*others, replace(reset, is_sent=True)))
            turn.do(ResetGpu(node=reset.node, gpus=reset.gpus, reason="no worker is left on them"))


def _are_leaving(turn: Turn, node: str) -> bool:
    return any(worker.standing is Standing.GONE and worker.node == node for worker in turn.many(turn.tally.leaving))


def _release_nodes(turn: Turn) -> None:
    over = [node for node, until_s in turn.state.care.quarantine.items() if turn.now_s >= until_s]
    if over:
        turn.change(care=turn.state.care.released(*over))


def _ask_anew(turn: Turn) -> None:
    """Workers that wait for a slot may be placed elsewhere than when it was asked for, or are pinned in vain.

    Ray knows of no bars: a slot that becomes free on a machine that will be lost would be given to who has asked before
    that was known.
    """
    wishes = turn.tally.wishes if turn.state.phase in _ASKS else {}
    barred = turn.barred if wishes else frozenset()
    doubtful = [names for (avoid, pinned), names in wishes.items() if pinned or avoid != barred]
    stuck = {one.gang for one in turn.many(chain.from_iterable(doubtful)) if _is_stuck(turn, one, barred)}
    if not stuck:
        return
    waiting = turn.standing(Standing.REQUESTED)
    waits = (*OVER, Standing.REQUESTED)
    begun = {gang for gang in stuck if any(one.standing not in waits for one in turn.many(turn.tally.mates[gang]))}
    for worker in waiting:
        if worker.gang in stuck - begun:  # a replica that has begun has its places
            turn.dismiss(worker.name, reason="its place is asked for anew")
    turn.replenish("where workers may be placed has changed")


def _is_stuck(turn: Turn, worker: WorkerRecord, barred: frozenset[str]) -> bool:
    waited_s = turn.attended_s - worker.since_s
    if worker.pinned:
        return waited_s > turn.settings.limits.place_timeout_s or worker.pinned in barred
    told = turn.state.leaving.keys() | turn.state.care.quarantine.keys()
    is_told = not told <= worker.avoid or not worker.avoid <= barred
    return is_told or (worker.avoid != barred and waited_s > _SETTLED_S)


def _remind_of_pause(turn: Turn) -> None:
    state = turn.state
    if state.phase is Phase.RUNNING and state.pause_asked and turn.attended_s - state.pause_asked_s > REMIND_S:
        turn.change(pause_asked=False)
        turn.pause("the order to stop at the end of a step may have been lost")
