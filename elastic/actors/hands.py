"""Effect. What a driver holds of the workers of its run: of each, and how many are left of a replica or on a node.

Those that are over stay known by name, since answers to what they were asked may come yet. What is asked often looks
only at those that are not.
"""

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup


@dataclass(slots=True)
class Hand:
    """What the driver holds of one worker; of a member that an earlier driver left, maybe no more than its address.

    Attributes:
        actor: None until it is known which process it is. is_manned: that is settled, or about to be.
        is_in_slot: the process goes with its slot. holder: keeps the accelerators of the slot where a stand-in works.
        born: incarnation that started it.
        is_over: said by `Hands.end` alone.
    """

    group: PlacementGroup | None
    actor: Any
    gang: int = 0
    shard: int = 0
    born: int = 0
    is_manned: bool = True
    is_in_slot: bool = True
    holder: Any = None
    node: str = ""
    pid: int = 0
    address: tuple[str, int] | None = None
    seen: int = 0
    is_heard: bool = False
    is_fenced: bool = False
    is_over: bool = False

    @property
    def is_well(self) -> bool:
        """Nobody takes it for lost."""
        return not (self.is_fenced or (self.pid and not self.is_heard))

    def kill(self) -> None:
        """In a way that Ray does not take for a failure."""
        for actor in (self.actor, self.holder):
            if actor is not None:
                ray.kill(actor)


class Hands:
    """See the module. Called from any thread."""

    def __init__(self) -> None:
        self._all: dict[str, Hand] = {}
        self._there: dict[str, Hand] = {}
        self._gangs: Counter[int] = Counter()
        self._lock = threading.Lock()

    def add(self, worker: str, hand: Hand) -> None:
        """In place of what was held of it before, if that is not over: a driver that adopts learns in two steps."""
        with self._lock:
            before = self._there.get(worker)
            if before is not None:
                self._gangs[before.gang] -= 1
            self._all[worker] = self._there[worker] = hand
            self._gangs[hand.gang] += 1

    def __getitem__(self, worker: str) -> Hand:
        return self._all[worker]

    def __contains__(self, worker: str) -> bool:
        return worker in self._all

    def get(self, worker: str) -> Hand | None:
        """None: this worker was never known."""
        return self._all.get(worker)

    def there(self) -> list[tuple[str, Hand]]:
        """Names and hands of those that are not over, oldest first."""
        with self._lock:
            return list(self._there.items())

    def end(self, worker: str) -> tuple[Hand, bool] | None:
        """It is over.

        Returns:
            Its hand, and whether it was the last of its gang; None: it is over already, or was never known.
        """
        with self._lock:
            hand = self._there.pop(worker, None)
            if hand is None:
                return None
            hand.is_over = True
            self._gangs[hand.gang] -= 1
            is_last = not self._gangs[hand.gang]
            if is_last:
                del self._gangs[hand.gang]
            return hand, is_last

    def by_node(self, are_well: bool = False) -> Counter[str]:
        """How many there are on each node; or of them those that nobody takes for lost."""
        return Counter(hand.node for _, hand in self.there() if hand.node and (hand.is_well or not are_well))

    def loading(self) -> set[str]:
        """Nodes of those who have yet to come to their first step."""
        return {hand.node for _, hand in self.there() if hand.node and hand.address is None}

    def groups(self) -> list[PlacementGroup]:
        """The slots of all, those that are over included: Ray may yet be ending what ran there."""
        held = (hand.group for hand in list(self._all.values()))
        return list({group.id: group for group in held if group is not None}.values())

    def nowhere(self) -> list[tuple[str, Hand]]:
        """Those whose place is not known yet."""
        return [(worker, hand) for worker, hand in self.there() if not hand.node]
