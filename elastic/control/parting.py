"""Pure. Networks that part between workers which the driver still reaches all: who goes on, and who is left behind.

When all members had come to form a generation and it was not formed in time, each names, with its answer to the
freeze, those whom it has waited for in vain. A packet that does not pass one way leaves both ends waiting, so a pair
is apart as soon as one of them says so. Members who have met at the leader's store, and then do not connect, find out
whom they do not reach.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from elastic.control.state import Gang, Standing
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass

_LISTED = 8


def together(gangs: tuple[Gang, ...], missed: Mapping[str, Collection[str]]) -> tuple[Gang, ...]:
    """The most replicas, all of whose workers have reached each other; of equally many those that hold the newest step.

    A worker waits within its replica for one who is still held up by another replica: that alone parts none.

    Found by taking the one that is apart from the fewest, and leaving these out, until nobody is apart: no others are
    more where a network has parted into groups, within each of which all reach each other, or where links have broken
    that make no circle. Links here and there leave no two groups: whoever stays may be one of several choices then, of
    which not each holds the newest step.

    Args:
        missed: by worker, whom it has waited for in vain.
    """
    whole = [gang for gang in gangs if not _is_parted(gang, missed)]
    apart, left = _who_are_apart(whole, missed), set[int]()
    while apart:
        first = min(apart, key=lambda place: (len(apart[place]), -_newest_step(whole[place]), place))
        gone = apart[first]
        left |= gone
        still = {place: others - gone for place, others in apart.items() if place not in gone}
        apart = {place: others for place, others in still.items() if others}
    return tuple(gang for place, gang in enumerate(whole) if place not in left)


def leave_the_unreached(turn: Turn, survivors: tuple[Gang, ...]) -> None:
    """After a forming in vain: who is out of the others' reach leaves, and its node gets no worker for a while.

    Nobody leaves where too few would be left: they try once more, and the network may have healed. Where one who leaves
    has applied a step that the others have not, that step was never stable, and is done again.
    """
    missed = {worker.name: worker.missed for gang in survivors for worker in gang if worker.missed}
    staying = together(survivors, missed) if missed else survivors
    if len(staying) >= turn.settings.scaling.bounds[0]:
        _send_joiners_away(turn, staying, missed)
    if len(staying) == len(survivors) or len(staying) < turn.settings.scaling.bounds[0]:
        return
    firsts = {gang[0].name for gang in staying}  # whole records take their time to compare
    leaving = [gang for gang in survivors if gang[0].name not in firsts]
    if turn.tally.holders.resumable(but=[worker for gang in leaving for worker in gang]) is None:
        return
    nodes = {worker.node for gang in staying for worker in gang}
    until_s = turn.now_s + turn.settings.limits.quarantine_s
    others = _listed([worker.name for gang in staying for worker in gang])
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


def _send_joiners_away(turn: Turn, staying: tuple[Gang, ...], missed: Mapping[str, Collection[str]]) -> None:
    """Whoever was to join them, and was not reached: tried again, it, or the next one there, would stop them again."""
    names = [worker.name for gang in staying for worker in gang]
    apart = {other for name in names for other in missed.get(name, ())} & turn.tally.standings[Standing.PARKED].keys()
    nodes = {worker.node for gang in staying for worker in gang}
    until_s = turn.now_s + turn.settings.limits.quarantine_s
    for worker in turn.many(turn.tally.by_start(apart)):
        if worker.held:
            continue
        why = f"{_listed(names)} did not reach {worker.name}, a joiner: is the network to {worker.node} up?"
        turn.signal(IncidentClass.FORMING_FAILED, why, culprit=worker.name)
        if worker.node not in nodes:
            turn.change(care=turn.state.care.quarantined(worker.node, until_s))
        turn.dismiss(worker.name, reason=why)


def _listed(names: Sequence[str]) -> str:
    """The first ones; thousands, said of each who leaves, would fill the journal."""
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _newest_step(gang: Gang) -> int:
    """The last one that this replica holds in full, or can apply in full."""
    return min(max(one.step for one in worker.held) for worker in gang)


def _is_parted(gang: Gang, missed: Mapping[str, Collection[str]]) -> bool:
    """Two of its workers have come so far that they waited for each other alone."""
    pairs = combinations((worker.name for worker in gang), 2)
    return any(b in missed.get(a, ()) and a in missed.get(b, ()) for a, b in pairs)


def _who_are_apart(gangs: Sequence[Gang], missed: Mapping[str, Collection[str]]) -> dict[int, set[int]]:
    """By place of a replica, the places of those that it is apart from; nobody who is apart from none."""
    places = {worker.name: place for place, gang in enumerate(gangs) for worker in gang}
    apart: dict[int, set[int]] = defaultdict(set)
    for name in missed.keys() & places.keys():
        for other in places.keys() & missed[name]:
            one, another = places[name], places[other]
            if one != another:
                apart[one].add(another)
                apart[another].add(one)
    return apart
