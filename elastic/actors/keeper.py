"""Effect. The keeper: drives the replica actors of a run from the driver's process, as the ladder says.

It has a thread of its own, and holds up nobody: what it is told goes into a queue, and its calls to actors are answered
through the same queue or come to their deadline. What a node holds is learnt from its actor alone, with each answer.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from elastic.actors.calls import Calls
from elastic.actors.disk_keeper import DiskKeeper
from elastic.actors.equipment import Equipment, equipment_for
from elastic.actors.peer_source import PeerSource, peer_sources
from elastic.actors.prefetcher import Aim, Prefetcher
from elastic.actors.replica import PullAnswer, end_replicas, start_replica
from elastic.actors.upload_keeper import UploadKeeper
from elastic.checkpoint import rungs
from elastic.checkpoint.copies import Copies, Taker
from elastic.checkpoint.disk import Disk
from elastic.checkpoint.ladder import Ladder
from elastic.checkpoint.placement import sites
from elastic.checkpoint.rungs import Holding
from elastic.checkpoint.source import Source
from elastic.control import events as ev
from elastic.control.values import CommitId, Fork
from elastic.settings import Checkpoint, RunSettings

log = logging.getLogger("elastic")

BEAT_S = 2.0
SILENT_S = 6.0  # a node that has not answered for so long does not count
_PULL_S = 1800.0  # actors have tighter deadlines of their own, which follow from sizes
_DROP_S = 30.0
_END_S = 10.0
_COMING_S = 30.0  # within which an actor that was started is up

Noted = rungs.DiskStep | rungs.PeersChosen | rungs.Prefetch | rungs.UploadInterval
Told = rungs.CheckpointRung | rungs.StepLost | rungs.Degraded | Noted | ev.Logged


@dataclass(slots=True)
class Hand:
    """What the keeper holds of one node's actor."""

    actor: Any
    equipment: Equipment
    heard_s: float
    domain: str = ""
    life: str = ""
    is_up: bool = False
    is_coming: bool = True
    asked_s: float | None = None  # when it was last asked, while no answer has come
    is_stale: bool = False  # ask again as soon as it has answered

    @property
    def is_given_up(self) -> bool:
        """It may be dead for good, or behind a network that has parted."""
        return not self.is_up and not self.is_coming


class Keeper:
    """See the module.

    Args:
        settings: of the run; its `checkpoint` must not be None.
        tell: takes what is for the journal, and what actors have logged, in the keeper's thread.
        crash: takes the error that has ended the thread, which nothing should.
        metrics: of a step, for `Keep.best`; called in the keeper's thread.
        memory, disk: node id -> that node's slots, and its disk, called there; default: see `equipment_for`.
    """

    def __init__(
        self,
        settings: RunSettings,
        tell: Callable[[Told], None],
        crash: Callable[[Exception], None],
        metrics: Callable[[CommitId], Mapping[str, float]] = lambda _: {},
        memory: Callable[[str], Source] | None = None,
        disk: Callable[[str], Disk] | None = None,
        beat_s: float = BEAT_S,
    ) -> None:
        self._settings, self._run, self._incarnation = settings, settings.run, settings.incarnation
        checkpoint = self._checkpoint = settings.checkpoint or Checkpoint()
        self._memory, self._disk = memory, disk
        self._tell, self._crash, self._beat_s = _aloud(tell), crash, beat_s
        self._copies = Copies(checkpoint.peers)
        self._ladder = Ladder(self._copies.first, checkpoint.persistent is not None)
        self._hands: dict[str, Hand] = {}
        self._homes: dict[int, frozenset[str]] = {}
        self._expected: set[str] = set()
        self._urgent: dict[str, tuple[int, str]] = {}  # by node: what it has staged, and why that goes down at once
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._calls = Calls(self._inbox.put)
        self._then = self._calls.then
        self._prefetcher = Prefetcher(settings.incarnation, tell, self._then)
        self._aims = 0  # that were asked for
        self._outdated: list[Callable[[], None]] = []  # who asked for an aim that another one came after
        self._uploads = UploadKeeper(checkpoint, settings.incarnation, tell, self._then, self._heed, metrics)
        self._disks: DiskKeeper | None = None
        if disk is not None or checkpoint.disk is not None:
            self._disks = DiskKeeper(settings.incarnation, self._tell, self._then, self._actor_of, self._held)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="elastic-checkpoints", daemon=True)
        self._thread.start()

    # --- from any thread; none of these waits, but for `wait_clean` and `close` ---

    def staged(self, node: str, staged: ev.ShardStaged | None = None, urgent: str = "") -> None:
        """A worker on this node has sealed a shard of a step; urgent: why that goes down at once, or empty."""
        self._inbox.put(lambda: self._see_staged(node, staged, urgent))

    def expect(self, node: str) -> None:
        """One of the first workers is loaded there: it gets an actor at the next beat, to copy the first steps.

        Of no account once workers have homes: who looks for what can be restored asks all actors that there are, and
        would wait for those that begin.
        """
        self._inbox.put(lambda: self._expected.add(node))

    def homes(self, by_shard: Mapping[int, Collection[str]]) -> None:
        """Which nodes have workers of which shard: they get actors."""
        homes = {shard: frozenset(nodes) for shard, nodes in by_shard.items()}
        self._inbox.put(lambda: self._rehome(homes))

    def prefetch(self, aim: Aim | None, then: Callable[[], None] = lambda: None) -> None:
        """This is about to be restored: bring it to the nodes of those who will load it; None: nothing is, after all.

        Asked for node by node as workers find their places: of what waits, the last counts.

        Args:
            then: called in the keeper's thread when all nodes that can be asked now know what they will get.
        """
        with self._asking:
            self._aims += 1
            number = self._aims
            self._inbox.put(lambda: self._aim(number, aim, then))

    def restored(self, generation: int) -> None:
        """It is restored, and this generation goes on from it."""
        self._inbox.put(lambda: self._prefetcher.restored(generation))

    def notice(self, node: str, reason: str) -> None:
        """A node will be lost."""
        self._inbox.put(lambda: self._heed(rungs.Notice(node=node, reason=reason)))

    def watched(self, *, failures: int, hosts: int, watched_s: float) -> None:
        """Incidents of this life so far, in so many seconds, on so many hosts."""
        seen = {"failures": failures, "hosts": hosts}
        self._inbox.put(lambda: self._uploads.watched(**seen, watched_s=watched_s))

    def redundancy_lost(self, reason: str) -> None:
        """Live workers hold the newest state once only."""
        self._inbox.put(lambda: self._heed(rungs.RedundancyLost(reason=reason)))

    def forked(self, forks: tuple[Fork, ...]) -> None:
        """Where the history began anew, oldest first."""
        self._inbox.put(lambda: self._heed(rungs.Forked(forks=forks)))

    def hand_over(self, reason: str) -> None:
        """This process may end at any moment: actors upload what is newest, and commit it, with it or without."""
        self._inbox.put(lambda: self._hand_over(reason))

    def lease(
        self, commit: CommitId, shards: int, is_over: bool = False, then: Callable[[Any], object] = lambda going: None
    ) -> None:
        """Somebody reads this step: nothing more of it is dropped until this is called again with is_over.

        Args:
            then: called in the keeper's thread with what is being dropped already, see `Ladder.going`.
        """

        def heed() -> None:
            self._heed(rungs.Leased(commit=commit, shards=shards, is_over=is_over))
            then(self._ladder.going(commit, shards))

        self._inbox.put(heed)

    def inventory(self, here: str) -> list[PeerSource]:
        """Where shards can be read by somebody on node `here`, nearest first."""
        return peer_sources(self._run, here)

    def wait_clean(self, within_s: float) -> bool:
        """Whether nodes have deleted what is not kept any more of the steps that are durable; waits for them."""
        return self._uploads.is_clean.wait(within_s)

    def close(self, keep: bool) -> None:
        """Stop, after all it was told; the actors stay for the run's next driver until their lease ends, or end now."""
        self._inbox.put(self._is_closed.set)
        self._thread.join(_END_S)
        self._is_closed.set()
        if keep:
            return
        try:
            end_replicas(self._run, self._incarnation)
        except (RayError, ConnectionError, TimeoutError) as error:
            log.warning("checkpoints: what nodes keep in memory stays for Checkpoint.memory_lease_s: %s", error)

    # --- the thread ---

    def _keep(self) -> None:
        try:
            beat_due_s = time.monotonic()
            while not self._is_closed.is_set():
                now_s = time.monotonic()
                if now_s >= beat_due_s:  # however much is going on
                    beat_due_s = now_s + self._beat_s
                    self._beat()
                self._take_one(beat_due_s - now_s)
        except Exception as error:  # nobody would hear it here
            self._crash(error)

    def _take_one(self, within_s: float) -> None:
        try:
            self._inbox.get(timeout=max(0.0, within_s))()
        except queue.Empty:
            pass
        except (RayError, ConnectionError, TimeoutError) as error:
            log.warning("checkpoints: a call to Ray failed, and is made again: %s", error)

    def _beat(self) -> None:
        now_s = time.monotonic()
        try:
            self._look_at_nodes()
        except (RayError, ConnectionError, TimeoutError) as error:
            log.warning("checkpoints: the nodes of the cluster cannot be seen now: %s", error)
        self._calls.expire(now_s)
        for node, hand in list(self._hands.items()):
            if hand.is_up and now_s - hand.heard_s > SILENT_S + self._beat_s:
                hand.is_up = False
                self._heed(rungs.NodeLost(node=node, reason=f"silent for {now_s - hand.heard_s:.0f} s"))
            if hand.is_coming and now_s - hand.heard_s > _COMING_S:
                hand.is_coming = False
                self._heed(rungs.NodeLost(node=node, reason=f"it has not come up in {_COMING_S:.0f} s"))
            if hand.asked_s is not None and now_s - hand.asked_s > SILENT_S:
                hand.asked_s = None
            self._ask_soon(node)
        self._choose_peers()
        self._heed(rungs.Beat())
        if (
            self._homes and not self._ladder.is_uploading and self._uploads.is_due(self._ladder.newest)
        ):  # before it trains, this life cannot commit
            self._heed(rungs.UploadDue())

    def _choose_peers(self) -> None:
        up = {node: hand for node, hand in self._hands.items() if hand.is_up}
        takers = {
            node: Taker(domain=hand.domain, budget_bytes=hand.equipment.budget_bytes) for node, hand in up.items()
        }
        chosen = self._copies.news(self._homes, takers, is_complete=len(up) == len(self._hands))
        if chosen is not None:
            log.info("checkpoints: copies on %d other nodes: %s", chosen.peers, chosen.reason)
            self._heed(chosen)
            self._tell(chosen)

    def _look_at_nodes(self) -> None:
        """Actors where workers are, and elsewhere if copies need them; nodes that are gone are given up.

        Where an actor was given up and its node is there, a new one is asked for, which is the old one if that lives.
        """
        alive = {one["NodeID"]: one for one in ray.nodes() if one["Alive"]}
        for node in [node for node in self._hands if node not in alive]:
            self._lose(node)
        with_workers = set().union(*self._homes.values()) & set(alive)
        domains = {node: self._domain(known) for node, known in alive.items()}
        needed = sites(with_workers, domains, 1 + self._copies.most, self._run) if with_workers else ()
        expected = self._prefetcher.homes | (frozenset() if self._homes else self._expected)
        for node in (*needed, *(expected & set(alive))):
            if node not in self._hands or self._hands[node].is_given_up:
                self._start(node, alive[node])

    def _start(self, node: str, known: dict[str, Any]) -> None:
        store_bytes = known["Resources"].get("object_store_memory", 0)
        equipment = equipment_for(self._settings, store_bytes, self._memory, self._disk)
        actor = start_replica(node, equipment)  # first: of one that could not be started nothing would be heard again
        self._heed(rungs.NodeComing(node=node))
        self._hands[node] = Hand(actor, equipment, time.monotonic(), self._domain(known))

    def _domain(self, known: dict[str, Any]) -> str:
        return str(known.get("Labels", {}).get(self._checkpoint.domain_label, ""))

    def _rehome(self, homes: dict[int, frozenset[str]]) -> None:
        self._homes = homes
        self._heed(rungs.Homes(by_shard=homes))
        self._look_at_nodes()
        for node in self._hands:
            self._ask_soon(node)

    def _aim(self, number: int, aim: Aim | None, then: Callable[[], None]) -> None:
        self._outdated.append(then)
        if number < self._aims:
            return
        waiting, self._outdated = self._outdated, []

        def announced() -> None:
            for one in waiting:
                one()

        self._prefetcher.aim(aim, announced)
        self._look_at_nodes()
        for node in self._hands:
            self._ask_soon(node)

    def _lose(self, node: str) -> None:
        self._prefetcher.lost(node)
        if self._hands.pop(node, None) is not None:
            self._heed(rungs.NodeLost(node=node, reason="Ray has lost it"))

    # --- what nodes hold ---

    def _see_staged(self, node: str, staged: ev.ShardStaged | None, urgent: str) -> None:
        if staged is not None:
            self._copies.staged(staged.shard, staged.nbytes)
            if urgent:
                self._urgent[node] = (staged.commit.step, urgent)
        self._ask_soon(node)

    def _ask_soon(self, node: str) -> None:
        """Tell a node what to pin and ask what it holds; one such call at a time, so that none overtakes another."""
        hand = self._hands.get(node)
        if hand is None:
            return
        if hand.asked_s is not None:
            hand.is_stale = True
            return
        hand.asked_s, hand.is_stale = time.monotonic(), False
        asked_s = hand.asked_s

        def is_answer() -> bool:
            if hand.asked_s != asked_s:
                return False  # it was given up, and the node asked again
            hand.asked_s = None
            return self._hands.get(node) is hand

        def heard(answer: tuple[Holding, list[ev.Logged]]) -> None:
            holding = self._without_logs(answer)
            if is_answer():
                self._hear(node, hand, holding)
                if hand.is_stale:
                    self._ask_soon(node)

        def failed(reason: str) -> None:
            if is_answer():
                log.debug("node %s: %s", node, reason)

        # Of who was given up the ladder knows nothing any more; before there are homes, not yet of all that is held.
        is_known = hand.is_up and (self._homes or self._prefetcher.homes)
        pins = self._ladder.pins(node) if is_known else None
        self._then(
            lambda: hand.actor.beat.options(concurrency_group="control").remote(self._incarnation, pins),
            SILENT_S,
            heard,
            failed,
            late=self._without_logs,  # lines come with one answer alone
        )

    def _without_logs(self, answer: tuple[Holding, list[ev.Logged]]) -> Holding:
        for one in answer[1]:
            self._tell(one)
        return answer[0]

    def _hear(self, node: str, hand: Hand, holding: Holding) -> None:
        hand.heard_s = time.monotonic()
        if holding.life != hand.life:  # it may be equipped as an earlier driver had it
            self._equip(node, hand, holding.life)
        if not hand.is_up:
            hand.is_up, hand.is_coming = True, False
            self._heed(rungs.NodeUp(node=node, domain=hand.domain))
        self._heed(rungs.Held(node=node, holding=holding))
        step, urgent = self._urgent.get(node, (-1, ""))
        if urgent and step in {key.commit.step for key in holding.slots}:  # only now the ladder knows of it
            del self._urgent[node]
            self._heed(rungs.RedundancyLost(reason=urgent))
        self._prefetcher.heard(node, hand.actor, holding)

    def _equip(self, node: str, hand: Hand, life: str) -> None:
        def failed(reason: str) -> None:
            log.warning("checkpoints: node %s: %s", node, reason)
            if hand.life == life:
                hand.life = ""  # it is told again with its next beat

        hand.life = life
        self._then(
            lambda: hand.actor.equip.options(concurrency_group="control").remote(hand.equipment),
            SILENT_S,
            _ignore,
            failed,
        )

    # --- the ladder's orders ---

    def _heed(self, event: rungs.Event) -> None:
        if self._disks is not None:
            self._disks.heed(event)
        for order in self._ladder.heed(event):
            match order:
                case rungs.CheckpointRung():
                    self._tell(order)
                    self._prefetcher.came_to(order)
                    self._uploads.arrived(order)
                case rungs.StepLost() | rungs.Degraded():
                    self._tell(order)
                case rungs.Pin():
                    self._ask_soon(order.node)
                case rungs.Commit() | rungs.Pull() | rungs.Drop() | rungs.Upload():
                    if order.node in self._hands:
                        self._carry_out(order, self._hands[order.node])

    def _carry_out(self, order: rungs.Commit | rungs.Pull | rungs.Drop | rungs.Upload, hand: Hand) -> None:
        match order:
            case rungs.Pull():
                self._pull(order, hand)
            case rungs.Drop():
                self._then(
                    lambda: hand.actor.drop.options(concurrency_group="control").remote(self._incarnation, order.key),
                    _DROP_S,
                    lambda holding: self._held(order.node, holding, hand),
                    _ignore,
                )
            case rungs.Upload():
                self._uploads.upload(order, hand.actor)
            case rungs.Commit():
                self._uploads.commit(order, hand.actor)

    def _pull(self, order: rungs.Pull, hand: Hand) -> None:
        peers = [PeerSource(self._hands[node].actor, node) for node in order.sources if node in self._hands]

        def ended(answer: PullAnswer) -> None:
            self._held(order.node, answer.holding, hand)
            if reason := answer.why_no_copy(order.key):
                failed(reason, answer.is_full)

        def failed(reason: str, is_full: bool = False) -> None:
            log.warning("checkpoints: %s", reason)
            self._heed(rungs.Refused(key=order.key, node=order.node, reason=reason, is_full=is_full))

        self._then(
            lambda: hand.actor.pull.options(concurrency_group="pull").remote(self._incarnation, order.key, peers),
            _PULL_S,
            ended,
            failed,
        )

    def _hand_over(self, reason: str) -> None:
        self._uploads.leave(self._actor_of)
        self._heed(rungs.RedundancyLost(reason=reason))

    def _actor_of(self, node: str) -> Any:
        hand = self._hands.get(node)
        return hand.actor if hand is not None else None

    def _held(self, node: str, holding: Holding, hand: Hand | None = None) -> None:
        """What a node has answered; of an actor that has been replaced since, nothing counts."""
        now = self._hands.get(node)
        if now is not None and now.is_up and hand in (None, now):
            self._hear(node, now, holding)


def _aloud(tell: Callable[[Told], None]) -> Callable[[Told], None]:
    """Who reads the log hears of what is degraded, too."""

    def told(one: Told) -> None:
        if isinstance(one, rungs.Degraded):
            how = f"degraded: {one.reason}" if one.reason else "as asked for again"
            log.warning("checkpoints: %s: %s", one.rung, how)
        tell(one)

    return told


def _ignore(_: Any) -> None:
    """The next beat tells."""
