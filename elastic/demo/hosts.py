"""Effect. Several Ray nodes on this machine, to be taken away and given back.

This is the one module that touches `ray.cluster_utils`, Ray's own helper for tests.
"""

import contextlib
import logging
import os
import shutil
import tempfile
from typing import Any

from elastic.chaos.processes import descendants, kill_all

_OBJECT_STORE_BYTES = 80 << 20
_SLOTS = 2
# What Ray prints at length about each loss, and the demo says in a line.
_RAY_NEWS = (
    "A worker died or was killed|has been marked dead|Raylet is terminated|raylet has lagging|[(]1[)] raylet crashes"
)


class Hosts:
    """A head without slots and some nodes with two slots each; a context manager that leaves nothing behind."""

    def __init__(self, nodes: int) -> None:
        self._count = nodes
        self._nodes: dict[str, Any] = {}
        self._directory = ""
        self._cluster: Any = None

    def __enter__(self) -> "Hosts":
        try:
            self._start()
        except BaseException:  # Ctrl-C, too
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        # Before Ray is imported: an own place for sessions, and no token file in the user's home.
        self._directory = tempfile.mkdtemp(prefix="el", dir="/tmp")
        os.environ |= {
            "RAY_TMPDIR": self._directory,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS_SKIP_REGEX": _RAY_NEWS,
        }
        os.environ.pop("RAY_ADDRESS", None)
        import ray
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self._cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES)
        # Before the nodes come: the driver belongs to the head then, and not to a node that will be taken away.
        ray.init(address=self._cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        for _ in range(self._count):
            self.add()

    def __exit__(self, *error: object) -> None:
        import ray

        with contextlib.suppress(Exception):
            ray.shutdown()
        if self._cluster is not None:
            self._cluster.shutdown()
        shutil.rmtree(self._directory, ignore_errors=True)

    def add(self) -> str:
        """A new node; only from the main thread. Nodes are started one after the other, or they fight over files."""
        node = self._cluster.add_node(num_cpus=_SLOTS, object_store_memory=_OBJECT_STORE_BYTES)
        self._nodes[node.node_id] = node
        return str(node.node_id)

    def lose(self, node_id: str) -> list[int]:
        """Take a node away as a power cut would: its raylet and every process of it, at once.

        Returns:
            Pids that were killed.
        """
        node = self._nodes.pop(node_id)
        raylet = node.all_processes["raylet"][0].process.pid
        pids = [raylet, *descendants(raylet)]
        kill_all(pids)
        self._cluster.remove_node(node, allow_graceful=False)
        return pids
