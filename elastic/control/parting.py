"""Pure. Networks that part between workers which the driver still reaches all: who goes on, and who is left behind.

When all members had come to form a generation and it was not formed in time, each names, with its answer to the
freeze, those whom it has waited for in vain. A packet that does not pass one way leaves both ends waiting, so a pair
is apart as soon as one of them says so.
"""

from collections.abc import Collection, Mapping
from itertools import combinations

from elastic.control.state import Gang
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass


def together(gangs: tuple[Gang, ...], missed: Mapping[str, Collection[str]]) -> tuple[Gang, ...]:
    """The most replicas, all of whose workers have reached each other; of equally many those that hold the newest step.

    A worker waits within its replica for one who is still held up by another replica: that alone parts none.

    Found by taking replicas in order, beginning with each of them in turn: enough where a network has parted into
    groups, within each of which all reach each other.

    Args:
        missed: by worker, whom it has waited for in vain.
    """
    best: tuple[Gang, ...] = ()
    whole = [gang for gang in gangs if not _is_parted(gang, missed)]
    for first in whole:
        found = [first]
        for gang in whole:
            if gang is not first and not any(_are_apart(gang, other, missed) for other in found):
                found.append(gang)
        best = max(best, tuple(gang for gang in gangs if gang in found), key=lambda one: (len(one), _newest_step(one)))
    return best


def leave_the_unreached(turn: Turn, survivors: tuple[Gang, ...]) -> None:
    """After a forming in vain: who is out of the others' reach leaves, and its node gets no worker for a while.

    Nobody leaves where too few would be left: they try once more, and the network may have healed. Where one who leaves
    has applied a step that the others have not, that step was never stable, and is done again.
    """
    missed = {worker.name: worker.missed for gang in survivors for worker in gang if worker.missed}
    staying = together(survivors, missed) if missed else survivors
    if len(staying) == len(survivors) or len(staying) < turn.settings.scaling.bounds[0]:
        return
    leaving = [gang for gang in survivors if gang not in staying]
    if turn.tally.holders.resumable(but=[worker for gang in leaving for worker in gang]) is None:
        return
    nodes = {worker.node for gang in staying for worker in gang}
    until_s = turn.now_s + turn.settings.limits.quarantine_s
    others = ", ".join(worker.name for gang in staying for worker in gang)
    for gang in leaving:
        whom = "the others of its replica" if _is_parted(gang, missed) else others
        for worker in gang:
            why = (
                f"{worker.name} and {whom} did not reach each other: is the network between {worker.node} and them up?"
            )
            turn.signal(IncidentClass.FORMING_FAILED, why, culprit=worker.name)
            if worker.node not in nodes:
                turn.change(care=turn.state.care.quarantined(worker.node, until_s))
            turn.dismiss(worker.name, reason=why)


def _newest_step(gangs: tuple[Gang, ...]) -> int:
    """The last one that a replica of them holds in full, or can apply in full."""
    return max((min(max(one.step for one in worker.held) for worker in gang) for gang in gangs), default=-2)


def _is_parted(gang: Gang, missed: Mapping[str, Collection[str]]) -> bool:
    """Two of its workers have come so far that they waited for each other alone."""
    pairs = combinations((worker.name for worker in gang), 2)
    return any(b in missed.get(a, ()) and a in missed.get(b, ()) for a, b in pairs)


def _are_apart(one: Gang, other: Gang, missed: Mapping[str, Collection[str]]) -> bool:
    pairs = ((a.name, b.name) for a in one for b in other)
    return any(b in missed.get(a, ()) or a in missed.get(b, ()) for a, b in pairs)
