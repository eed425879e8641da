"""Effect. The fleet on Ray: detached actors, a detached placement group for each replica, a host monitor per node.

Detached, since plain actors die with their driver, and detached actors die with an undetached placement group. So that
nothing outlives its purpose, a worker that has not heard a driver for its orphan lease removes its own placement group.
"""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from elastic.actors.draining import draining_nodes
from elastic.actors.fleet import Emit
from elastic.actors.host_monitors import HostMonitors
from elastic.actors.peer_source import namespace
from elastic.actors.worker import start_worker_host
from elastic.checkpoint import memory
from elastic.control import events as ev
from elastic.control.values import CommitId, View
from elastic.settings import RunSettings
from elastic.train.flight import PAGES, page_path, page_pattern
from elastic.train.runner import TrainFn

log = logging.getLogger("elastic")

_EVENTS_S = 5.0
_KEEP_S = 0.05
_PROBE_S = 1.0
_DRAINS_S = 0.25  # a look costs about 2 ms
_END_S = 10.0


@dataclass(slots=True)
class Hand:
    """What the driver holds of one worker."""

    group: PlacementGroup
    actor: Any
    gang: int = 0
    shard: int = 0
    node: str = ""
    pid: int = 0
    address: tuple[str, int] | None = None
    seen: int = 0
    is_heard: bool = False
    is_over: bool = False


class RayFleet:
    """See `Fleet`.

    Ray hands answers over in a thread of its own, in which no call to Ray may wait; they are queued, and one thread of
    ours goes on from there. Another one does what may take milliseconds: placements, releases.
    """

    def __init__(
        self,
        settings: RunSettings,
        train_fn: TrainFn,
        seed: int,
        emit: Emit,
        crash: Callable[[Exception], None],
    ) -> None:
        self._settings, self._seed, self._emit_event, self._crash = settings, seed, emit, crash
        self._train_fn = ray.put(train_fn)
        self._hands: dict[str, Hand] = {}
        self._gangs: dict[int, PlacementGroup] = {}
        self._unproven: set[str] = set()
        self._monitors = HostMonitors(self._emit, self._then, self._watch_all_on, settings.limits)
        self._draining: set[str] = set()
        self._drains_due_s = 0.0
        self._lock = threading.RLock()
        self._is_down = threading.Event()
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._releases: queue.SimpleQueue[PlacementGroup] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._go_on,), name="elastic-answers", daemon=True),
            threading.Thread(target=self._guarded, args=(self._keep,), name="elastic-keeper", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- what the driver says ---

    def start(self, worker: str, gang: int, shard: int) -> None:
        scaling, group = self._settings.scaling, self._reserve(gang)
        resources = {key: amount for key, amount in scaling.resources.items() if key not in ("CPU", "GPU")}
        actor = start_worker_host(
            name=self._name(worker),
            namespace=namespace(self._settings.run),
            num_cpus=scaling.resources.get("CPU", 0),
            num_gpus=scaling.resources.get("GPU", 0),
            resources=resources,
            strategy=PlacementGroupSchedulingStrategy(group, shard),
            arguments=(worker, self._seed, self._settings, self._train_fn, shard),
        )
        with self._lock:
            self._hands[worker] = Hand(group, actor, gang, shard)
        self._call(worker, "ready", "control", then=lambda pid: self._came_up(worker, pid))

    def _name(self, what: str) -> str:
        return f"elastic-{self._settings.run}@{self._settings.incarnation}-{what}"

    def _reserve(self, gang: int) -> PlacementGroup:
        """The slots of a replica: asked for with its first worker, kept as long as it has one."""
        scaling, width = self._settings.scaling, self._settings.scaling.workers_per_replica
        with self._lock:
            if gang not in self._gangs:
                self._gangs[gang] = placement_group(
                    [scaling.resources] * width,
                    strategy="STRICT_PACK" if scaling.nodes_per_replica == 1 else "STRICT_SPREAD",
                    name=self._name(f"gang{gang}"),
                    lifetime="detached",
                    bundle_label_selector=[dict(scaling.label_selector)] * width if scaling.label_selector else None,
                )
            return self._gangs[gang]

    def freeze(self, worker: str, generation: int) -> None:
        def answered(answer: ev.FreezeAnswered | None) -> None:
            if answer is not None:
                self._emit(answer)

        self._call(worker, "freeze", "control", generation, then=answered)

    def form(self, worker: str, view: View) -> None:
        self._call(worker, "form", "control", view)

    def restore(self, worker: str, commit: CommitId, number: int) -> None:
        self._call(worker, "restore", "control", commit, number)

    def go(self, worker: str, generation: int) -> None:
        self._call(worker, "go", "control", generation)

    def pause(self, worker: str, generation: int) -> None:
        self._call(worker, "pause", "control", generation)

    def finish(self, worker: str) -> None:
        self._call(worker, "finish", "control")

    def dismiss(self, worker: str) -> None:
        """Ask it to leave; its slot is freed when it has left, or when it never came up."""
        hand = self._hands.get(worker)
        if hand is None or not hand.pid:
            self._release(worker)
        else:
            self._call(worker, "dismiss", "control")

    def prove_dead(self, worker: str) -> None:
        """Watch for proof: its listening port refuses connections once the process is gone."""
        hand = self._hands.get(worker)
        if hand is None or hand.address is None:
            self._release(worker)
            self._emit(ev.WorkerDead(worker=worker, proof="it never came to its first step"))
            return
        with self._lock:
            if worker in self._unproven:
                return
            self._unproven.add(worker)
        threading.Thread(target=self._probe, args=(worker, hand.address), daemon=True).start()

    def fence(self, worker: str) -> None:
        self._monitors.fence(self._node(worker), worker, lambda proof: self._fenced(worker, proof))

    def inspect(self, worker: str) -> None:
        self._monitors.inspect(self._node(worker), worker)

    def value(self, worker: str, timeout_s: float) -> Any:
        reference = self._hands[worker].actor.value.options(concurrency_group="control").remote()
        return ray.get(reference, timeout=timeout_s)

    def shutdown(self, keep_memory: bool = False) -> None:
        """End workers, monitors and the reservations, and see that the processes are gone; see `Fleet`."""
        self._is_down.set()
        self._answers.put(lambda: None)
        for thread in self._threads:
            thread.join(_END_S)
        for hand in self._hands.values():
            if not hand.is_over:
                ray.kill(hand.actor)  # in a way that Ray does not take for a failure
        pages = page_pattern(self._settings.run)
        checkpoint = self._settings.checkpoint
        arenas = (checkpoint.memory, self._settings.run) if checkpoint is not None and not keep_memory else None
        self._monitors.end_all(pages, arenas)
        for page in PAGES.glob(pages):  # of workers on this node whose monitor died with them
            page.unlink(missing_ok=True)
        if arenas is not None:
            memory.remove(Path(arenas[0]), arenas[1])
        for worker in list(self._hands):
            self._release(worker)
        self._remove_released()
        self._monitors.kill()
        deadline_s = time.monotonic() + _END_S
        while time.monotonic() < deadline_s and any(self._is_reserved(hand) for hand in self._hands.values()):
            time.sleep(_KEEP_S)

    # --- calls and their answers ---

    def _emit(self, event: ev.Event) -> None:
        if isinstance(event, ev.WorkerParked):
            self._hands[event.worker].address = (event.host, event.port)
        if isinstance(event, ev.FreezeAnswered):
            self._unproven.discard(event.worker)
        self._emit_event(event)
        match event:
            case ev.WorkerDead() | ev.WorkerDeparted() | ev.TrainFnRaised() | ev.TrainFnReturned(dismissed=True):
                self._release(event.worker)
            case ev.FreezeAnswered() if not self._hands[event.worker].is_heard:
                self._listen(event.worker)  # contact was lost, and is back

    def _call(self, worker: str, method: str, group: str, *args: Any, then: Callable[[Any], Any] | None = None) -> None:
        hand = self._hands.get(worker)
        if hand is None or hand.is_over:
            return
        reference = getattr(hand.actor, method).options(concurrency_group=group).remote(*args)
        self._then(reference, then or (lambda _: None), lambda error: self._lost(worker, error))

    def _then(self, reference: Any, then: Callable[[Any], Any], failed: Callable[[Exception], Any]) -> None:
        """Continue in the thread for answers when the answer is there."""

        def done(future: Future[Any]) -> None:
            error = future.exception()
            if isinstance(error, Exception):
                self._answers.put(lambda: failed(error))
            else:
                self._answers.put(lambda: then(future.result()))

        reference.future().add_done_callback(done)

    def _came_up(self, worker: str, pid: int) -> None:
        hand = self._hands[worker]
        hand.pid = pid
        if hand.node and self._settings.scaling.workers_per_replica > 1:  # its slot may have moved to another node
            self._look_for(worker, hand)
        self._put_under_watch(worker)
        self._listen(worker)

    def _node(self, worker: str) -> str:
        """Where it was placed, empty if nowhere yet."""
        hand = self._hands.get(worker)
        return hand.node if hand is not None else ""

    def _put_under_watch(self, worker: str) -> None:
        hand = self._hands[worker]
        if hand.pid:
            page = page_path(self._settings.run, worker, self._settings.incarnation)
            self._monitors.watch(hand.node, worker, hand.pid, page)

    def _watch_all_on(self, node: str) -> None:
        for worker, hand in list(self._hands.items()):
            if hand.node == node and not hand.is_over:
                self._put_under_watch(worker)

    def _has_workers(self, node: str) -> bool:
        return any(hand.node == node and not hand.is_over for hand in list(self._hands.values()))

    def _listen(self, worker: str) -> None:
        hand = self._hands[worker]

        def heard(news: tuple[int, list[ev.Event]]) -> None:
            number, events = news
            hand.seen = number
            for event in events:
                self._emit(event)
            if not hand.is_over:
                self._listen(worker)

        hand.is_heard = True
        limits = self._settings.limits  # each call tells the worker that its driver lives
        wait_s = min(_EVENTS_S, limits.orphan_lease_s / 4, limits.lease_s / 4)
        self._call(worker, "news", "events", hand.seen, wait_s, then=heard)

    def _lost(self, worker: str, error: Exception) -> None:
        self._hands[worker].is_heard = False
        if not self._hands[worker].is_over:
            self._emit(ev.WorkerLost(worker=worker, evidence=_first_line(error)))

    def _fenced(self, worker: str, proof: str) -> None:
        if proof:
            self._emit(ev.WorkerDead(worker=worker, proof=proof))
        else:
            self._release(worker)
            self.prove_dead(worker)

    def _release(self, worker: str) -> None:
        """Free its slot; Ray ends whatever still runs there."""
        with self._lock:
            hand = self._hands.get(worker)
            self._unproven.discard(worker)
            if hand is None or hand.is_over:
                return
            hand.is_over = True
            is_last = all(other.is_over for other in self._hands.values() if other.gang == hand.gang)
            if is_last:
                self._gangs.pop(hand.gang, None)
        self._monitors.forget(hand.node, worker)
        if is_last:
            self._releases.put(hand.group)
        else:
            ray.kill(hand.actor)  # the slots of its replica are kept for the others, and for who takes its place

    # --- the threads ---

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # nobody would hear it here
            self._crash(error)

    def _go_on(self) -> None:
        while not self._is_down.is_set():
            self._answers.get()()

    def _remove_released(self) -> None:
        while not self._releases.empty():
            remove_placement_group(self._releases.get())

    def _keep(self) -> None:
        """Notice placements, and see to it that each node with workers has a monitor."""
        while not self._is_down.wait(_KEEP_S):
            self._remove_released()
            self._monitors.replace(self._has_workers)
            self._heed_drains()
            with self._lock:
                unplaced = [(name, hand) for name, hand in self._hands.items() if not hand.node and not hand.is_over]
            for name, hand in unplaced:
                self._look_for(name, hand)

    def _look_for(self, worker: str, hand: Hand) -> None:
        """Tell where its slot is, if that is known, and news."""
        try:
            table = placement_group_table(hand.group)
        except RayError as error:
            log.debug("placement of %s is unknown: %s", worker, error)
            return
        node = table.get("bundles_to_node_id", {}).get(hand.shard, "")
        if table.get("state") == "CREATED" and node and node != hand.node:
            hand.node = node
            self._monitors.need(node)
            self._put_under_watch(worker)
            self._emit(ev.WorkerPlaced(worker=worker, node=node))

    def _heed_drains(self) -> None:
        """Tell once of each node that Ray is draining."""
        if time.monotonic() < self._drains_due_s:
            return
        self._drains_due_s = time.monotonic() + _DRAINS_S
        for node, reason in draining_nodes().items():
            if node not in self._draining:
                self._draining.add(node)
                self._emit(ev.NodeNotice(node=node, reason=reason))

    def _probe(self, worker: str, address: tuple[str, int]) -> None:
        """A refused connection is proof: the kernel of its node answers, and the process that listened is gone."""
        while worker in self._unproven and not self._is_down.wait(_KEEP_S):
            try:
                socket.create_connection(address, timeout=_PROBE_S).close()
            except ConnectionRefusedError:
                self._emit(ev.WorkerDead(worker=worker, proof=f"{address[0]}:{address[1]} refuses connections"))
                return
            except OSError as error:
                log.debug("no word from %s at %s: %s", worker, address, error)

    def _is_reserved(self, hand: Hand) -> bool:
        try:
            return placement_group_table(hand.group).get("state") not in ("REMOVED", None)
        except RayError:
            return False


def _first_line(error: Exception) -> str:
    """The sentence of a Ray error, without its pages of advice."""
    cause = "its process or node is gone" if isinstance(error, RayActorError) else type(error).__name__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{cause} ({lines[-1] if lines else 'no detail'})"[:400]
