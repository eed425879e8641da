"""Effect. What an earlier life of a run has left on the cluster: workers that wait out their orphan lease."""

import contextlib
import time

import ray
from ray.util import get_placement_group, list_named_actors, placement_group_table, remove_placement_group

from elastic.actors.asking import supervisor_name
from elastic.actors.peer_source import is_replica, namespace
from elastic.errors import ElasticError

_FREE_S = 10.0
_POLL_S = 0.1


def take_over(run: str) -> None:
    """End the workers of earlier lives, whose driver is gone, and free their slots; checkpoint replicas stay.

    Raises:
        ElasticError: a driver of this run lives.
    """
    deadline_s = time.monotonic() + _FREE_S
    while supervisor_name(run) in (names := _names(run)):  # it ends a moment after its driver
        if time.monotonic() > deadline_s:
            raise ElasticError(f"a run {run!r} trains on this cluster already: give fit(name=...) another name")
        time.sleep(_POLL_S)
    for name in names:
        if not is_replica(name):
            with contextlib.suppress(ValueError):  # it has ended meanwhile
                ray.kill(ray.get_actor(name, namespace=namespace(run)))
    for placed in placement_group_table().values():
        if placed["name"].startswith(f"elastic-{run}@") and placed["state"] != "REMOVED":
            with contextlib.suppress(ValueError):
                remove_placement_group(get_placement_group(placed["name"]))


def _names(run: str) -> list[str]:
    named = list_named_actors(all_namespaces=True)
    return [str(one["name"]) for one in named if one["namespace"] == namespace(run)]
