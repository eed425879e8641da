"""Pure. Workers that end before their first step: how many in a row, and when the next ones are started.

What keeps each of them from its first step ends a run that has not begun. A run that trains goes on without them and
tries again after a while, a longer one each time: what is wrong may be mended meanwhile.
"""

from math import inf

from elastic.control.outcome import Ending
from elastic.control.state import Phase, Standing
from elastic.control.turn import Turn

_FIRST_WAIT_S = 30.0  # a bad moment is over by then
_LONGEST_WAIT_S = 600.0


def count_start_failure(turn: Turn, name: str, evidence: str) -> None:
    """Workers that are on their way on one node when the first of them ends are lost by one failure."""
    care, tally, limit = turn.state.care, turn.tally, turn.settings.limits.start_tries
    if name in care.excused or turn.now_s < care.starts_from_s or _is_its_nodes_fault(turn, name):
        return
    on_way = tally.standings[Standing.REQUESTED].keys() | tally.standings[Standing.LOADING].keys()
    turn.tend(excused=frozenset(on_way & (care.excused | tally.nodes[turn.worker(name).node].keys())))
    turn.change(start_failures=turn.state.start_failures + 1)
    failures = turn.state.start_failures
    whose = "1 worker ended before its" if failures == 1 else f"{failures} workers in a row ended before their"
    told = f"{whose} first step; the last: {evidence}"
    turn.tend(start_trouble=told)
    if failures < limit:
        return
    if turn.state.phase is Phase.STARTING:
        turn.fail(Ending.NOT_ENOUGH_SLOTS, told)
        return
    wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(failures - limit, 10))
    turn.tend(starts_from_s=turn.now_s + wait_s, no_starts=f"{told}; others are started in {wait_s:.0f} s")


def give_time_again(turn: Turn) -> None:
    """Once a tick: the time of a start begins anew where enough stood at their first step, or the run was paused.

    That is for who is missing now. As often as workers may end in a row: a checkpoint that ends whoever loads it is
    no reason to wait for ever.
    """
    care = turn.state.care
    if turn.tally.ready.whole >= turn.settings.scaling.bounds[0] or care.hold is not None:
        if not care.had_enough:
            turn.tend(had_enough=True)
    elif care.had_enough and care.starts_again < turn.settings.limits.start_tries:
        turn.tend(had_enough=False, starts_again=care.starts_again + 1)
        turn.enter(Phase.STARTING)


def note_start(turn: Turn) -> None:
    """A worker stands at its first step: the row of failures is over."""
    turn.change(start_failures=0)
    if turn.state.care.no_starts or turn.state.care.start_trouble:
        turn.tend(starts_from_s=-inf, no_starts="", start_trouble="")


def try_starts_again(turn: Turn) -> None:
    """Once a tick. The count stays: the next failure is followed by a longer wait."""
    care = turn.state.care
    if not care.no_starts or turn.now_s < care.starts_from_s:
        return
    turn.tend(starts_from_s=-inf, no_starts="")
    if turn.state.phase is Phase.WAITING or (turn.state.phase is Phase.RUNNING and not turn.is_recovering()):
        turn.replenish(f"tried again: {care.no_starts}")


def _is_its_nodes_fault(turn: Turn, name: str) -> bool:
    """Its node is lost, about to be, or out of reach, which says nothing of workers elsewhere."""
    worker, state = turn.worker(name), turn.state
    is_lost = worker.node in state.monitors_lost or worker.node in state.leaving
    return bool(worker.notice) or is_lost or turn.is_silent(worker.node)
