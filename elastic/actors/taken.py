"""Effect. On which nodes of a cluster somebody has processors, whoever it is.

This is the one module that touches Ray's private interface to what is left of a node (`ray._private.state`): published
are the sums over all nodes alone, and a state API that needs the dashboard.
"""

from typing import Any


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
