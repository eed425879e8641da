"""Pure. The door of a small world: how members of a generation find each other there, and whom they miss.

As in `elastic/train/gloo.py`: a group meets at the store of its leader, where each member says that it is there and
looks for the others. Who does not reach the store waits for the leader, and the leader for it; who has met all and does
not connect finds out after a while whom it does not reach. All wait until the controller gives the generation up.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from elastic.control import events as ev
from elastic.control.values import Member, View
from elastic.sim.clockwork import HURRY, Clockwork
from elastic.sim.parts import Plan, SimWorker

OVERDUE_S = 5.0
_KNOCKS_S = 3.0
_LINGERS_S = (0.5, 12.0)  # the longest are longer than the door is held open


class Door(Clockwork):
    """Where generations are formed.

    Attributes:
        workers: by name, those that have been there.
        met: by generation, whether it is among the workers of a replica, and leader, who has said that it is there.
    """

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.workers: dict[str, SimWorker] = {}
        self.met: dict[tuple[int, bool, str], set[str]] = defaultdict(set)

    @abstractmethod
    def tell(self, worker: SimWorker, kind: type[ev.WorkerEvent], **details: Any) -> None:
        """It says something to the driver."""

    def clear_generations(self) -> None:
        """Generations are numbered from one again, and nobody is left of the old ones."""
        self.met.clear()

    def are_in_touch(self, one: SimWorker, other: SimWorker) -> bool:
        """Whether the network between their hosts lets anything through; the driver may reach both all the same."""
        return True

    def is_late(self, worker: SimWorker) -> bool:
        return self.now_s - worker.since_s > OVERDUE_S

    def is_late_to_form(self, worker: SimWorker) -> bool:
        """It gives up by itself what has not been formed; who says nothing of the door does so soon."""
        limit_s = HURRY["door_timeout_s"] if self.plan.says_at_door else OVERDUE_S
        return self.now_s - worker.since_s > limit_s

    def is_at_door(self, worker: SimWorker, view: View) -> bool:
        """It comes to the door once user code lets it, says so, and looks who else is there."""
        if self.now_s < worker.busy_until_s:
            return False
        if worker.at_door != view.generation:
            if self.chance("linger"):
                self.struck.add(worker.name)
                worker.busy_until_s = self.now_s + self.rng.uniform(*_LINGERS_S)
                return False
            worker.at_door, worker.since_s, worker.missing = view.generation, self.now_s, ()
            self.tell(worker, ev.AtDoor, generation=view.generation)
        self.look_around(worker, view)
        return True

    def look_around(self, worker: SimWorker, view: View) -> None:
        """One group is formed after the other; what the store has said counts until it says something else."""
        for is_inside, group in _groups(worker, view):
            leader = self.workers[group[0].worker]
            met = self.met[view.generation, is_inside, leader.name]
            if leader.is_alive and not leader.is_hung and self.are_in_touch(worker, leader):
                met.add(worker.name)
                worker.missing = tuple(member.worker for member in group if member.worker not in met)
            elif worker.name not in met:
                worker.missing = (leader.name,)
            apart = tuple(one.worker for one in group if not self.are_in_touch(worker, self.workers[one.worker]))
            if not worker.missing and self.now_s - worker.since_s > _KNOCKS_S:
                worker.missing = apart
            if worker.missing or apart:
                return


def _groups(worker: SimWorker, view: View) -> Iterator[tuple[bool, tuple[Member, ...]]]:
    """Who holds the same shard; then the workers of its replica, where there are several."""
    replica, shard = divmod(view.rank_of(worker.name), view.width)
    yield False, view.members[shard :: view.width]
    if view.width > 1:
        yield True, view.gang(replica)
