"""Pure. Machines of a simulated fleet: which are free, which are away or slow, and who is on which."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """A machine is so many times slower until then."""

    machine: int
    until_s: float
    factor: float

    @property
    def is_real(self) -> bool:
        return self.factor > 1.0


NOT_SLOW = Spell(machine=-1, until_s=float("inf"), factor=1.0)


class Slow:
    """Machines that are slow for a while, several of them at once, or one for several reasons."""

    def __init__(self) -> None:
        self._spells: list[Spell] = []

    def add(self, machine: int, until_s: float, factor: float) -> None:
        self._spells.append(Spell(machine=machine, until_s=until_s, factor=factor))

    def slowest(self, now_s: float, counts: Callable[[int], bool]) -> Spell:
        """Of those machines that count; all others wait for it."""
        self._spells = [one for one in self._spells if one.until_s > now_s]
        return max((one for one in self._spells if counts(one.machine)), key=lambda one: one.factor, default=NOT_SLOW)
