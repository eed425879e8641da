"""Pure. What the controller forgets, so that its state does not grow with the length of a run; the journal has it all.

Kept are, beside what is under way: the last workers that are over, the last incidents and those by which a node may be
judged yet, and the workers that these name.
"""

from itertools import islice, takewhile

from elastic.control.state import OVER
from elastic.control.turn import Turn
from elastic.control.values import Incident

KEPT_WORKERS = 512  # that are over
KEPT_INCIDENTS = 64
KEPT_SIZES = 1024  # of generations that have trained


def note_trained(turn: Turn) -> None:
    """A generation trains."""
    sizes = (*turn.state.world_sizes, turn.state.replicas)
    turn.change(world_sizes=sizes[-KEPT_SIZES:], trained=turn.state.trained + 1)


def prune(turn: Turn) -> None:
    """Forget what is of no use any more, now and then."""
    if len(turn.state.incidents) > KEPT_INCIDENTS:
        _forget_incidents(turn)
    tally = turn.tally
    if sum(len(tally.standings[standing]) for standing in OVER) > max(2 * KEPT_WORKERS, tally.prune_above):
        _forget_workers(turn)


def _forget_incidents(turn: Turn) -> None:
    """Resolved ones, once they are too old for a node to be called flapping by them."""
    limits, incidents = turn.settings.limits, turn.state.incidents
    horizon_s = limits.flap_window_s + limits.flap_cooldown_s

    def is_past(incident: Incident) -> bool:
        return incident.resumed_at_s is not None and turn.now_s - incident.opened_at_s > horizon_s

    past = sum(1 for _ in takewhile(is_past, islice(incidents, len(incidents) - KEPT_INCIDENTS)))
    if past:
        turn.change(incidents=incidents[past:])


def _forget_workers(turn: Turn) -> None:
    """Those that have been over for the longest, and the nodes that have no others."""
    tally, hosts = turn.tally, turn.tally.hosts
    over = sorted(turn.standing(*OVER), key=lambda worker: worker.since_s)
    named = {name for one in turn.state.incidents for name in (*one.culprits, *one.suspects)}
    kept = named | tally.ranks.keys() | tally.leaving.keys()
    old = [one for one in over[:-KEPT_WORKERS] if one.name not in kept]
    gone = [worker.name for worker in old]
    turn.change(workers=tally.forget(gone))
    nodes = {worker.node for worker in old} - tally.nodes.keys()
    heard_s, readings = hosts.forget(gone, nodes)
    turn.change(heard_s=heard_s, readings=readings, monitors_lost=turn.state.monitors_lost - nodes)
    turn.change(knocked=turn.state.knocked - nodes, unreached=turn.state.unreached - nodes)
    turn.change(answered={node: at_s for node, at_s in turn.state.answered.items() if node not in nodes})
    turn.change(leaving={node: why for node, why in turn.state.leaving.items() if node not in nodes})
    turn.change(care=turn.state.care.without(gone, nodes))
    tally.prune_above = len(over) - len(gone) + KEPT_WORKERS
