"""Effect. The slots of a run on Ray: a detached placement group for each replica, from its first worker to its last.

A group has a bundle for each node of the replica, with room for all workers there; its name tells how many these are.
It may be asked for on a few nodes first. Ray prefers no nodes: a group that it cannot place there is asked for again.
"""

import contextlib
import logging
import math
import queue
import re
import threading
import time
from collections.abc import Mapping

from ray.exceptions import RayError
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from elastic.settings import Scaling

log = logging.getLogger("elastic")

_FIRST_S = 1.0  # a slot that was just lost is free again sooner; a process that is started anew takes longer


class Slots:
    """See the module. Called from any thread; no lock that another replica needs is held while Ray is asked.

    Args:
        prefix: of the names of the groups.
    """

    def __init__(self, scaling: Scaling, prefix: str) -> None:
        self._scaling, self._prefix = scaling, prefix
        self._groups: dict[int, PlacementGroup] = {}
        self._tried: dict[int, tuple[float, Mapping[str, str]]] = {}  # until when, and what is asked for then
        self._asking: dict[int, threading.Lock] = {}
        self._released: queue.SimpleQueue[PlacementGroup] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def adopt(self, groups: Mapping[int, PlacementGroup]) -> None:
        """These are there already."""
        self._groups.update(groups)

    def reserve(self, gang: int, labels: Mapping[str, str], first: Mapping[str, str] | None = None) -> PlacementGroup:
        """Asked for with the first worker of a gang, kept as long as it has one.

        Args:
            labels: that nodes must carry, see `Admission.labels`. first: those that are tried for a second before.
        """
        with self._lock:
            asking = self._asking.setdefault(gang, threading.Lock())
        with asking:
            if gang not in self._groups:
                self._groups[gang] = self._ask(gang, first or labels)
                if first:
                    self._tried[gang] = (time.monotonic() + _FIRST_S, labels)
            return self._groups[gang]

    def settle(self, gang: int, is_placed: bool) -> PlacementGroup | None:
        """The group of a gang, asked for again if it was tried in vain on the first nodes; None: it has none."""
        with self._lock:
            group, (until_s, labels) = self._groups.get(gang), self._tried.get(gang, (math.inf, {}))
            if is_placed:
                self._tried.pop(gang, None)
        if group is not None and not is_placed and time.monotonic() >= until_s:
            try:
                remove_placement_group(group)
                group = self._replace(gang, group, self._ask(gang, labels))
            except RayError as error:  # Ray's head may be away: the next time, then
                log.debug("a replica can not be placed elsewhere: %s", error)
        return group

    def _replace(self, gang: int, old: PlacementGroup, new: PlacementGroup) -> PlacementGroup | None:
        with self._lock:
            if self._groups.get(gang) is old:
                self._groups[gang] = new
                self._tried.pop(gang, None)
            else:
                self._released.put(new)
            return self._groups.get(gang)

    def _ask(self, gang: int, labels: Mapping[str, str]) -> PlacementGroup:
        nodes, workers = self._scaling.num_nodes_per_dp, self._scaling.workers_per_node
        room = {name: amount * workers for name, amount in self._scaling.resources.items()}
        return placement_group(
            [room] * nodes,
            strategy="STRICT_PACK" if nodes == 1 else "STRICT_SPREAD",
            name=f"{self._prefix}gang{gang}x{workers}",
            lifetime="detached",
            bundle_label_selector=[dict(labels)] * nodes if labels else None,
        )

    def bundle_of(self, shard: int) -> int:
        """In which bundle of its group a worker has its place."""
        return shard // self._scaling.workers_per_node

    def release(self, gang: int, group: PlacementGroup | None) -> None:
        """Its last worker is gone; the group goes with the next `remove_released`."""
        with self._lock:
            group = self._groups.pop(gang, group)
            self._tried.pop(gang, None)
            self._asking.pop(gang, None)
        if group is not None:
            self._released.put(group)

    def forget(self, gang: int, group: PlacementGroup) -> None:
        """Somebody else has removed this group of a gang: who is reserved for next asks for another one."""
        with self._lock:
            if self._groups.get(gang) == group:
                del self._groups[gang]
                self._tried.pop(gang, None)

    def remove_released(self) -> bool:
        """May take milliseconds. Whether there is no more to remove: Ray's head may be away."""
        with contextlib.suppress(queue.Empty):
            while True:
                group = self._released.get_nowait()
                try:
                    remove_placement_group(group)
                except RayError as error:
                    log.debug("a replica's slots can not be freed: %s", error)
                    self._released.put(group)
                    return False
        return True


def gang_of(name: str, run: str) -> tuple[int, int] | None:
    """The gang whose group has this name, and its workers in a bundle; None: it is not of this run."""
    match = re.fullmatch(rf"elastic-{re.escape(run)}@\d+-gang(\d+)x(\d+)", name)
    return None if match is None else (int(match[1]), int(match[2]))


def is_gangs(name: str) -> bool:
    """Whether a group of this name holds the slots of a gang, of whatever run."""
    return re.fullmatch(r"elastic-.+@\d+-gang\d+x\d+", name) is not None


def asked_in(name: str) -> int:
    """The life of the driver that has asked for the group of this name."""
    match = re.search(r"@(\d+)-gang", name)
    assert match is not None, name
    return int(match[1])


def place_of(group: PlacementGroup, bundle: int) -> str | None:
    """The node on which a slot was found; empty if none was, or Ray can not say; None: it waits for none any more."""
    try:
        table = placement_group_table(group)
    except RayError as error:
        log.debug("a placement is unknown: %s", error)
        return ""
    if table.get("state") == "REMOVED":
        return None
    return table.get("bundles_to_node_id", {}).get(bundle, "") if table.get("state") == "CREATED" else ""


def is_reserved(group: PlacementGroup) -> bool:
    """Whether Ray still keeps its slots."""
    try:
        return placement_group_table(group).get("state") not in ("REMOVED", None)
    except RayError:
        return False
