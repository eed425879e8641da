"""Pure. Where processes stand by that can become a worker at once, and where a replacement finds one."""

import re
from collections.abc import Collection, Mapping

from elastic.settings import Scaling


def room_of(
    nodes: Mapping[str, tuple[Mapping[str, float], Mapping[str, str]]], scaling: Scaling, shunned: Collection[str]
) -> dict[str, int]:
    """How many workers each node could have, by its id; those with room for none are left out.

    Args:
        nodes: resources and labels by id. shunned: that get no new workers.
    """
    wanted, selector = scaling.resources, scaling.label_selector or {}
    room = {
        node: min(int(totals.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items())
        for node, (totals, labels) in nodes.items()
        if node not in shunned and all(_agrees(labels.get(key), value) for key, value in selector.items())
    }
    return {node: workers for node, workers in room.items() if workers}


def stand_ins_by_node(workers: Mapping[str, int], room: Mapping[str, int], scaling: Scaling) -> dict[str, int]:
    """How many stand-ins each node should have.

    Each with workers has `Scaling.stand_ins`. As many others as a replica takes are ready for what is lost with a whole
    node, since all of its workers need another one then.

    Args:
        workers: workers there, by node. room: see `room_of`.
    """
    if not workers or not scaling.stand_ins:
        return {}
    empty = sorted(room.keys() - workers.keys(), key=lambda node: (-room[node], node))
    most = max(workers.values())
    others = {node: min(room[node], most) for node in empty[: scaling.num_nodes_per_dp]}
    return dict.fromkeys(workers, scaling.stand_ins) | others


def ready_places(
    ready: Mapping[str, int], workers: Mapping[str, int], room: Mapping[str, int], scaling: Scaling
) -> tuple[str, ...]:
    """The nodes on which a whole replica of stand-ins is ready, and its slots may be free; none where it takes more.

    Args:
        ready: stand-ins there. workers: those there that are well. room: see `room_of`.
    """
    if scaling.num_nodes_per_dp > 1:
        return ()
    needed = scaling.workers_per_replica
    there = sorted(node for node, count in ready.items() if count >= needed)
    return tuple(node for node in there if workers.get(node, 0) + needed <= room.get(node, 0))


def _agrees(label: str | None, wanted: str) -> bool:
    """Ray's label selectors: `value`, `!value`, `in(a,b)`, `!in(a,b)`."""
    is_not, listed = wanted.startswith("!"), re.fullmatch(r"!?in\((.*)\)", wanted)
    among = [one.strip() for one in listed[1].split(",")] if listed else [wanted.removeprefix("!")]
    return (label in among) != is_not
