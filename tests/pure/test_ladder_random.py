"""Pure. Whatever is staged, pulled, dropped and lost, in any order: after the first step one can always be restored.

A model of the nodes carries out what the ladder orders, in random order. Each shard has a home with three slots, of
which its worker overwrites the oldest that is not pinned. Losses are those that one copy on another node promises to
survive: a node may go while the step that was last told to be replicated is on two nodes.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastic.checkpoint import rungs
from elastic.checkpoint.ladder import Ladder
from elastic.checkpoint.manifest import ShardKey
from elastic.control.values import CommitId, on_rungs

SLOTS = 3
SHARDS = 2
EXAMPLES = 12
ROOM = 3  # copies that a node takes of each shard


def key(step: int, shard: int) -> ShardKey:
    commit = CommitId(incarnation=1, generation=1, attempt=0, step=step, lineage=f"l{step}")
    return ShardKey(commit=commit, shard=shard, shards=SHARDS)


@dataclass
class Node:
    life: int
    number: int = 0
    slots: set[ShardKey] = field(default_factory=set)
    pinned: set[ShardKey] = field(default_factory=set)
    copies: set[ShardKey] = field(default_factory=set)

    def holding(self) -> rungs.Holding:
        self.number += 1
        return rungs.Holding(
            life=str(self.life),
            number=self.number,
            slots=frozenset(self.slots),
            pinned=frozenset(self.pinned),
            copies=frozenset(self.copies),
        )


class World(RuleBasedStateMachine):
    @initialize(nodes=st.integers(2, 5), persistent=st.booleans())
    def begin(self, nodes, persistent):
        self.ladder = Ladder(peers=1, is_persistent=persistent)
        self.nodes: dict[str, Node] = {}
        self.orders: list[rungs.Order] = []
        self.lives, self.was_whole, self.replicated = 0, False, -1
        self.durable, self.told = -1, {}
        for number in range(nodes):
            self.join(f"n{number}")
        self.homes = {shard: f"n{shard % nodes}" for shard in range(SHARDS)}
        self.next = dict.fromkeys(range(SHARDS), 0)

    def join(self, name):
        self.lives += 1
        self.nodes[name] = Node(self.lives)
        self.tell(rungs.NodeUp(node=name))

    def tell(self, event):
        for order in self.ladder.heed(event):
            if isinstance(order, rungs.CheckpointRung | rungs.StepLost):
                rung = order.rung.name.lower() if isinstance(order, rungs.CheckpointRung) else ""
                self.told = on_rungs(self.told, order.commit.step, rung)
            if isinstance(order, rungs.CheckpointRung):
                if order.rung >= rungs.Rung.REPLICATED and order.copies >= 2:
                    self.replicated = max(self.replicated, order.commit.step)
                    assert all(len(self.kept(key(order.commit.step, shard))) >= 2 for shard in range(SHARDS))
            elif not isinstance(order, rungs.StepLost | rungs.Degraded):
                self.orders.append(order)

    def hold(self, name):
        self.tell(rungs.Held(node=name, holding=self.nodes[name].holding()))

    def anywhere(self, one):
        return [name for name, node in self.nodes.items() if one in node.slots | node.copies]

    def kept(self, one):
        return [name for name, node in self.nodes.items() if one in node.pinned | node.copies]

    def newest_whole(self):
        steps = range(max(self.next.values()), -1, -1)
        return next((s for s in steps if all(self.anywhere(key(s, shard)) for shard in range(SHARDS))), -1)

    def survives_a_loss(self):
        return self.replicated >= 0 and all(len(self.kept(key(self.replicated, s))) >= 2 for s in range(SHARDS))

    # --- what happens ---

    @rule(shard=st.integers(0, SHARDS - 1), told=st.booleans())
    def stage(self, shard, told):
        if self.next[shard] > min(self.next.values()):
            return  # a step is agreed by all
        home, step = self.nodes[self.homes[shard]], self.next[shard]
        self.next[shard] += 1
        mine = sorted((one for one in home.slots if one.shard == shard), key=lambda one: one.commit.step)
        if len(mine) == SLOTS:
            free = [one for one in mine if one not in home.pinned]
            if not free:
                return
            home.slots.remove(free[0])
        home.slots.add(key(step, shard))
        if told:
            self.hold(self.homes[shard])

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), fails=st.integers(0, 9).map(lambda n: n == 0))
    def carry_out(self, data, fails):
        self.do(self.orders.pop(data.draw(st.integers(0, len(self.orders) - 1))), fails)

    def do(self, order, fails):
        if order.node not in self.nodes:
            return
        node = self.nodes[order.node]
        match order:
            case rungs.Pin():
                node.pinned = node.slots & self.ladder.pins(order.node)  # nodes are told what holds now
            case rungs.Drop():
                node.copies.discard(order.key)
            case rungs.Pull():
                is_full = sum(one.shard == order.key.shard for one in node.copies) >= ROOM
                is_there = any(name in order.sources for name in self.anywhere(order.key))
                if fails or is_full or not is_there:
                    self.tell(rungs.Refused(key=order.key, node=order.node, reason="no", is_full=is_full))
                    return
                node.copies.add(order.key)
            case rungs.Upload():
                reason = "" if not fails and order.node in self.anywhere(order.key) else "no"
                self.tell(rungs.Uploaded(key=order.key, node=order.node, digest="d", reason=reason))
                return
            case rungs.Commit():
                self.tell(rungs.Committed(commit=order.commit, shards=len(order.digests), reason="no" if fails else ""))
                self.durable = self.durable if fails else max(self.durable, order.commit.step)
                return
        self.hold(order.node)

    @precondition(lambda self: self.survives_a_loss() and len(self.nodes) > 2)
    @rule(data=st.data())
    def lose_a_node(self, data):
        gone = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[gone]
        for shard, home in self.homes.items():
            if home == gone:
                self.homes[shard] = data.draw(st.sampled_from(sorted(self.nodes)))
                self.next[shard] = max(self.next.values())
        self.tell(rungs.NodeLost(node=gone, reason="cut off"))

    @precondition(lambda self: self.survives_a_loss())
    @rule(data=st.data())
    def restart_an_actor(self, data):
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        self.lives += 1
        node = self.nodes[name]
        self.nodes[name] = Node(self.lives, slots=node.slots)
        self.hold(name)

    @precondition(lambda self: len(self.nodes) < 5)
    @rule()
    def add_a_node(self):
        self.join(f"n{self.lives + 10}")

    @rule(event=st.sampled_from([rungs.Beat(), rungs.UploadDue(), rungs.RedundancyLost(reason="one is left")]))
    def time_passes(self, event):
        self.tell(event)
        if isinstance(event, rungs.Beat):
            for name in self.nodes:
                self.hold(name)

    @rule(data=st.data())
    def notice(self, data):
        node = data.draw(st.sampled_from(sorted(self.nodes)))
        if len(self.nodes) > 3:
            self.tell(rungs.Notice(node=node, reason="preempted"))

    # --- what holds ---

    @invariant()
    def one_step_can_be_restored(self):
        newest = self.newest_whole()
        self.was_whole = self.was_whole or newest >= 0
        assert newest >= 0 or not self.was_whole
        assert newest >= self.replicated

    @invariant()
    def who_hears_all_that_it_tells_knows_the_newest_step_on_each_rung(self):
        standing = {step: self.ladder.rung(key(step, 0).commit, SHARDS) for step in range(max(self.next.values()))}
        for rung in rungs.Rung:
            there = [step for step, now in standing.items() if now is not None and now >= rung]
            assert self.told.get(rung.name.lower(), -1) == max(there, default=-1)

    def teardown(self):
        """Left in peace, the newest step comes to stand on two nodes, and no more than two generations are kept."""
        if not hasattr(self, "nodes") or self.newest_whole() < 0:
            return
        for _ in range(12):
            self.time_passes(rungs.Beat())
            while self.orders:
                self.do(self.orders.pop(0), fails=False)
        newest = self.newest_whole()
        commit = key(newest, 0).commit
        assert self.ladder.rung(commit, SHARDS) >= rungs.Rung.REPLICATED
        assert all(len(node.copies) <= SHARDS * ROOM for node in self.nodes.values())


World.TestCase.settings = settings(deadline=None, max_examples=EXAMPLES, stateful_step_count=60)
TestWorld = World.TestCase
