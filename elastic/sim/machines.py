"""Pure. Machines of a simulated fleet: which are free, which are away, and who is on which."""

import heapq
from collections.abc import Iterable

from elastic.sim.scenario import Cluster


class Machines:
    """By number.

    Attributes:
        on: by machine, the worker that has it. of: by worker, its machines.
        away: machines that are not there, and until when. lives: how often each has come back: with another name.
    """

    def __init__(self, cluster: Cluster, spares: int) -> None:
        self.size = cluster.nodes_per_replica
        self.count = cluster.nodes + max(cluster.spare_nodes, spares * cluster.nodes_per_replica)
        self.free = list(range(self.count))
        self.on: dict[int, str] = {}
        self.of: dict[str, tuple[int, ...]] = {}
        self.away: dict[int, float] = {}
        self.lives: dict[int, int] = {}

    def take(self, worker: str, avoid: Iterable[str] = ()) -> bool:
        """As many free machines as a replica has, the lowest numbers first; whether there were as many."""
        shunned = frozenset(avoid)
        if len(self.free) < self.size:
            return False
        passed_over: list[int] = []
        taken: list[int] = []
        while self.free and len(taken) < self.size:
            machine = heapq.heappop(self.free)
            (passed_over if self.name(machine) in shunned else taken).append(machine)
        is_enough = len(taken) == self.size
        for machine in passed_over if is_enough else (*passed_over, *taken):
            heapq.heappush(self.free, machine)
        if is_enough:
            self.of[worker] = tuple(taken)
            self.on.update(dict.fromkeys(taken, worker))
        return is_enough

    def release(self, worker: str) -> None:
        """Those of its machines that are there are free again."""
        for machine in self.of.pop(worker, ()):
            del self.on[machine]
            if machine not in self.away:
                heapq.heappush(self.free, machine)

    def lose(self, machine: int, until_s: float) -> None:
        self.away[machine] = max(until_s, self.away.get(machine, 0.0))
        if machine in self.free:
            self.free.remove(machine)
            heapq.heapify(self.free)

    def come_back(self, machine: int, now_s: float) -> bool:
        """Whether it is there now, unless it was lost again meanwhile."""
        if machine not in self.away or self.away[machine] > now_s:
            return False
        del self.away[machine]
        self.lives[machine] = self.lives.get(machine, 0) + 1
        if machine not in self.on:
            heapq.heappush(self.free, machine)
        return True

    def name(self, machine: int) -> str:
        """As a cluster calls it: one that was away and is back is a new node."""
        life = self.lives.get(machine, 0)
        return f"n{machine}" if not life else f"n{machine}-{life}"
