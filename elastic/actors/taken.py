"""Effect. On which nodes of a cluster somebody has processors, whoever it is.

This is the one module that touches Ray's private interface to what is left of a node (`ray._private.state`): published
are the sums over all nodes alone, and a state API that needs the dashboard.
"""

from typing import Any, NamedTuple


class Taken(NamedTuple):
    """Nodes of the connected cluster, by id.

    Attributes:
        nodes: somebody has a processor there, or part of one. others: a slot there is another run's.
    """

    nodes: frozenset[str]
    others: frozenset[str]


def taken(run: str) -> Taken:
    """As `run` sees it."""
    return Taken(taken_nodes(), others_nodes(run))


def others_nodes(run: str) -> frozenset[str]:
    """Nodes of the connected cluster on which other runs of this library have slots; by id."""
    from ray.util import placement_group_table

    from elastic.actors.slots import gang_of, is_gangs

    groups = [one for one in placement_group_table().values() if one["state"] == "CREATED"]
    theirs = [one for one in groups if is_gangs(one["name"]) and gang_of(one["name"], run) is None]
    return frozenset(node for one in theirs for node in one["bundles_to_node_id"].values())


def taken_nodes() -> frozenset[str]:
    """Nodes of the connected cluster on which somebody has a processor, or part of one; by id."""
    import ray
    from ray._private.state import available_resources_per_node

    left: dict[str, dict[str, float]] = available_resources_per_node()
    nodes: list[dict[str, Any]] = [one for one in ray.nodes() if one["Alive"]]
    return frozenset(
        one["NodeID"]
        for one in nodes
        for kind in ("CPU", "GPU")
        if left.get(one["NodeID"], {}).get(kind, 0.0) < one["Resources"].get(kind, 0.0)
    )
