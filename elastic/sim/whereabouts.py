"""Pure. Where the workers of a small world are, and what has befallen them there."""

from elastic.control import commands as cmd
from elastic.sim.crew import Crew
from elastic.sim.laws import Law, must
from elastic.sim.parts import Plan, SimWorker


class Whereabouts(Crew):
    """Nodes and replicas.

    Attributes:
        places: by worker, its replica and its shard. placed: by worker, its node, where nodes are shared.
        renewed: by place of a node, how often another machine has come there.
    """

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.places: dict[str, tuple[int, int]] = {}
        self.placed: dict[str, str] = {}
        self.renewed: dict[int, int] = {}

    def place(self, wish: cmd.StartWorker) -> None:
        """On the node with the fewest workers, of those it may be on; a node of its own where nodes are not shared."""
        if self.plan.per_node == 1:
            return
        nodes = -(-(self.plan.replicas[1] + self.plan.spares + 1) // self.plan.per_node)
        there = [self.placed[name] for name, one in self.workers.items() if one.is_alive and name in self.placed]
        names = [name for name in map(self.name_of, range(nodes)) if name not in wish.avoid]
        self.placed[wish.worker] = min(names, key=there.count, default=self.name_of(0))

    def name_of(self, place: int) -> str:
        """Of the node that is there now."""
        life = self.renewed.get(place, 0)
        return f"node-{place}" if not life else f"node-{place}-{life}"

    def renew(self, node: str) -> None:
        """A machine is gone for good; where nodes are shared, another one takes its place."""
        place = int(node.split("-")[1]) if node in self.placed.values() else -1
        if self.name_of(place) == node:
            self.renewed[place] = self.renewed.get(place, 0) + 1

    def node_of(self, name: str) -> str:
        return self.placed.get(name, f"node-{name}")

    def check_survives(self, worker: SimWorker, reason: str) -> None:
        """Who trains, holds the state and has met with nothing is neither killed nor told to leave, whatever struck."""
        holds = worker.is_alive and worker.state.healed and worker.name in self.trained
        is_sound = holds and not worker.is_tainted and worker.bits == self.truth
        must(not is_sound or self.is_struck(worker), Law.SURVIVES, lambda: f"nothing struck {worker.name}: {reason}")

    def is_struck(self, worker: SimWorker) -> bool:
        """Something has befallen it, its node, or somebody on that or in its replica."""
        node, gang = self.node_of(worker.name), self.places[worker.name][0]
        near = {one for one, place in self.places.items() if place[0] == gang or self.node_of(one) == node}
        return not self.struck.isdisjoint(near | {self.node_of(one) for one in near})
