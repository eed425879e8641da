"""Pure. The seeded world's keeper: staged steps go down the tiers as the real ladder says.

The keeper dies with its driver; the next one's learns from the nodes what they hold. Bytes take their time on links
that transfers share.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from elastic.checkpoint import rungs
from elastic.checkpoint.ladder import Ladder
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.records import Committed
from elastic.checkpoint.rungs import copy_of
from elastic.control.data import hash32
from elastic.control.values import CommitId
from elastic.sim.laws import Law, must
from elastic.sim.parts import Plan, SimWorker
from elastic.sim.restores import Restores
from elastic.sim.storage import COPY_BYTES_PER_S, RUN, SHARD_BYTES, Host, Store, digest_of, keys_of

BEAT_S, SILENT_S, UNANSWERED_S = 2.0, 8.0, 6.0
_SHARES = 1000


class KeptWorld(Restores):
    """One life of a run.

    Args:
        stage: share of the stable steps that are staged. peers: copies on other nodes than the own.
        upload_s: between two uploads to the persistent tier; 0: there is none.
        link_bytes_per_s: of each node, to others and to the store.
        racks: that nodes stand in, each of which is a failure domain; 0: nobody knows where they stand.

    Attributes:
        hosts: nodes that are there, by name. kept_life: of the driver whose keeper this is. heard_s: when it has last
            heard each node; asked_s: whom it has asked and not heard since; again: of these, who is asked once more.
    """

    life, is_headless = 1, False

    def __init__(
        self,
        seed: int,
        plan: Plan,
        *,
        stage: float,
        peers: int,
        upload_s: float,
        link_bytes_per_s: float,
        racks: int = 0,
        **options: Any,
    ) -> None:
        self.stage_share, self.peers, self.upload_s = stage, peers, upload_s
        self.link_bytes_per_s, self.racks = link_bytes_per_s, racks
        self.hosts: dict[str, Host] = {}
        self.store = Store()
        self.uploaded_s = 0.0
        self.staged = self.pulled = self.dropped = self.torn = 0
        self.kept_life = 1
        self.begin_to_keep()
        super().__init__(seed, plan, **options)
        self.later(BEAT_S, self.keep)

    @abstractmethod
    def suffer(self) -> None:
        """Faults of nodes and of the store, once a beat."""

    @abstractmethod
    def check_stable(self, commit: CommitId) -> None:
        """Nothing else goes down the tiers.

        Raises:
            Violation: it is not.
        """

    @abstractmethod
    def dropped_from(self, host: Host, order: rungs.Drop) -> None:
        """A copy is gone."""

    @abstractmethod
    def told(self, order: rungs.CheckpointRung) -> None:
        """A step has come to a rung."""

    @abstractmethod
    def collect(self) -> None:
        """A step is durable: what nobody wants any more is deleted."""

    def rack_of(self, node: str) -> str:
        """Where it stands, whoever asks; empty if nobody knows."""
        return f"rack-{hash32('rack', node) % self.racks}" if self.racks else ""

    # --- workers stage ---

    def come_up(self, name: str) -> None:
        super().come_up(name)
        node = self.node_of(name)
        self.hosts.setdefault(node, Host(node, name))

    def make_stable(self, worker: SimWorker) -> None:
        commit = worker.pending
        super().make_stable(worker)
        if commit is not None and hash32("stage", commit.lineage) % _SHARES < self.stage_share * _SHARES:
            self.stage(worker, commit)

    def stage(self, worker: SimWorker, commit: CommitId) -> None:
        host = self.hosts.get(self.node_of(worker.name))
        if host is not None and not self.is_void(commit) and host.claim_slot():
            self.later(SHARD_BYTES / COPY_BYTES_PER_S, self.seal, host, worker, commit)

    def seal(self, host: Host, worker: SimWorker, commit: CommitId) -> None:
        """Its header is stamped last: who dies before that leaves nothing that anybody reads."""
        if not worker.is_alive or worker.is_hung:
            self.torn += 1
            return
        self.check_stable(commit)
        key = ShardKey(commit=commit, shard=self.shard(worker), shards=self.width)
        host.slots[copy_of(key)] = key
        self.staged += 1
        self.later(self.delay_s(), self.ask, host, self.ladder)

    # --- the keeper ---

    def begin_to_keep(self) -> None:
        self.ladder = Ladder(self.peers, self.upload_s > 0)
        self.heard_s: dict[str, float] = {}
        self.asked_s: dict[str, float] = {}
        self.again: set[str] = set()

    def is_kept_by(self, ladder: Ladder) -> bool:
        """This keeper lives: so does its driver."""
        return ladder is self.ladder and not self.is_headless and self.life == self.kept_life

    def keep(self) -> None:
        """One beat."""
        self.later(BEAT_S, self.keep)
        self.suffer()
        if self.is_headless:
            return
        if self.life != self.kept_life:
            self.kept_life = self.life
            self.begin_to_keep()
            self.heed(self.ladder, rungs.Forked(forks=self.forks))
        for name in [name for name, at_s in self.heard_s.items() if self.now_s - at_s > SILENT_S]:
            self.lose_sight(self.ladder, name)
        self.asked_s = {name: at_s for name, at_s in self.asked_s.items() if self.now_s - at_s < UNANSWERED_S}
        for host in self.hosts.values():
            self.ask(host, self.ladder)
        self.heed(self.ladder, rungs.Beat())
        if self.upload_s and self.now_s - self.uploaded_s > self.upload_s:
            self.uploaded_s = self.now_s
            self.heed(self.ladder, rungs.UploadDue())

    def lose_sight(self, ladder: Ladder, name: str) -> None:
        if self.is_kept_by(ladder) and self.heard_s.pop(name, None) is not None:
            self.heed(ladder, rungs.NodeLost(node=name, reason="silent"))

    def heed(self, ladder: Ladder, event: rungs.Event) -> None:
        """The ladder hears of it, and nodes are told what it wants."""
        for order in ladder.heed(event) if self.is_kept_by(ladder) else ():
            if isinstance(order, rungs.CheckpointRung):
                self.check_stable(order.commit)
                self.told(order)
            elif isinstance(order, rungs.Pin):
                if order.node in self.hosts:
                    self.ask(self.hosts[order.node], ladder)
            elif not isinstance(order, rungs.StepLost | rungs.Degraded) and order.node in self.hosts:
                self.call(self.hosts[order.node], _DOES[type(order)], order, ladder)

    def ask(self, host: Host, ladder: Ladder) -> None:
        """What it holds, and tell it what to pin; one question at a time, so that none overtakes another."""
        if not self.is_kept_by(ladder):
            return
        if host.name in self.asked_s:
            self.again.add(host.name)
            return
        self.asked_s[host.name] = self.now_s
        self.call(host, KeptWorld.look, ladder, ladder.pins(host.name), self.now_s)

    def hear_answer(self, ladder: Ladder, host: Host, holding: rungs.Holding, asked_s: float) -> None:
        if not self.is_kept_by(ladder) or self.asked_s.get(host.name) != asked_s:
            return
        del self.asked_s[host.name]
        self.hear_host(ladder, host.name, holding)
        if host.name in self.again:
            self.again.discard(host.name)
            self.ask(host, ladder)

    def hear_host(self, ladder: Ladder, name: str, holding: rungs.Holding) -> None:
        if not self.is_kept_by(ladder):
            return
        if name not in self.heard_s:
            self.heed(ladder, rungs.NodeUp(node=name, domain=self.rack_of(name)))
        self.heard_s[name] = self.now_s
        self.heed(ladder, rungs.Held(node=name, holding=holding))

    # --- between the keeper and the nodes ---

    def is_apart(self, host: Host, way: str) -> bool:
        """It is gone, or nothing comes through to it, or from it."""
        return self.hosts.get(host.name) is not host or self.is_cut(self.workers[host.worker], way)

    def reaches(self, host: Host, other: str) -> bool:
        """Whether a node can read from another one."""
        return self.are_in_touch(self.workers[host.worker], self.workers[self.hosts[other].worker])

    def is_silent(self, host: Host) -> bool:
        """Whoever asks it waits in vain."""
        return self.is_apart(host, "in") or self.is_apart(host, "out")

    def call(self, host: Host, act: Callable[..., None], *arguments: Any) -> None:
        """An order reaches a node, if anything does."""
        if not self.is_apart(host, "in"):
            self.later(self.delay_s(), self.arrive_at, host, act, arguments)

    def arrive_at(self, host: Host, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.is_apart(host, "in"):
            act(self, host, *arguments)

    def tell_holding(self, host: Host, ladder: Ladder) -> None:
        if not self.is_apart(host, "out"):
            self.later(self.delay_s(), self.hear_host, ladder, host.name, host.holding())

    # --- what nodes do ---

    def look(self, host: Host, ladder: Ladder, pins: frozenset[ShardKey], asked_s: float) -> None:
        host.pin(pins)
        if not self.is_apart(host, "out"):
            self.later(self.delay_s(), self.hear_answer, ladder, host, host.holding(), asked_s)

    def busy_s(self, *hosts: Host) -> float:
        """How long a shard takes through the links of these nodes, after what they have promised already."""
        begin_s = max(self.now_s, *(host.busy_until_s for host in hosts))
        for host in hosts:
            host.busy_until_s = begin_s + SHARD_BYTES / self.link_bytes_per_s
        return hosts[0].busy_until_s - self.now_s

    def pull(self, host: Host, order: rungs.Pull, ladder: Ladder) -> None:
        copy = copy_of(order.key)
        there = [self.hosts[name] for name in order.sources if name in self.hosts and self.reaches(host, name)]
        source = next((one for one in there if copy in one.readable), None)
        if source is None or not host.has_room(order.key):
            self.refuse(order, ladder, is_full=source is not None)
        else:
            self.later(self.busy_s(host, source), self.end_pull, host, source, order, ladder)

    def end_pull(self, host: Host, source: Host, order: rungs.Pull, ladder: Ladder) -> None:
        """The source may have overwritten it, or be gone: its sums tell."""
        copy = copy_of(order.key)
        if self.hosts.get(host.name) is not host:
            return
        is_there = self.hosts.get(source.name) is source and self.reaches(host, source.name)
        if not is_there or copy not in source.readable:
            self.refuse(order, ladder)
            return
        host.copies[copy] = order.key
        self.pulled += 1
        self.tell_holding(host, ladder)

    def refuse(self, order: rungs.Pull, ladder: Ladder, is_full: bool = False) -> None:
        answer = rungs.Refused(key=order.key, node=order.node, reason="no", is_full=is_full)
        self.later(self.delay_s(), self.heed, ladder, answer)

    def drop(self, host: Host, order: rungs.Drop, ladder: Ladder) -> None:
        if host.copies.pop(copy_of(order.key), None) is not None:
            self.dropped += 1
            self.dropped_from(host, order)
        self.tell_holding(host, ladder)

    def upload(self, host: Host, order: rungs.Upload, ladder: Ladder) -> None:
        self.later(self.busy_s(host), self.end_upload, host, order, ladder, self.now_s)

    def end_upload(self, host: Host, order: rungs.Upload, ladder: Ladder, began_s: float) -> None:
        is_there = self.hosts.get(host.name) is host and copy_of(order.key) in host.readable
        self.check_stable(order.key.commit)
        is_written = is_there and self.store.write(copy_of(order.key), began_s, self.now_s)
        self.torn += is_there and not is_written
        answer = rungs.Uploaded(key=order.key, node=host.name, digest=digest_of(order.key))
        if not is_written:
            answer = rungs.Uploaded(key=order.key, node=host.name, reason="it broke off")
        self.later(self.delay_s(), self.heed, ladder, answer)

    def commit(self, host: Host, order: rungs.Commit, ladder: Ladder) -> None:
        """As the persistent tier does: only what is there in full is committed, and that is never half of another."""
        keys = keys_of(order.commit, len(order.digests))
        is_one = tuple(map(digest_of, keys)) == order.digests and len(keys) == self.width
        must(is_one, Law.NEVER_WRONG, lambda: f"{order.commit} would be committed from {order.digests}")
        reason = "" if not self.store.is_down(self.now_s) and self.store.is_whole(keys) else "it is not there in full"
        if not reason:
            record = Committed(run=RUN, commit=order.commit, manifests=order.digests, nbytes=0)
            self.store.committed[record.name] = record
            self.collect()
        answer = rungs.Committed(commit=order.commit, shards=self.width, reason=reason)
        self.later(self.delay_s(), self.heed, ladder, answer)


_DOES: dict[type[Any], Callable[..., None]] = {
    rungs.Pull: KeptWorld.pull,
    rungs.Drop: KeptWorld.drop,
    rungs.Upload: KeptWorld.upload,
    rungs.Commit: KeptWorld.commit,
}
