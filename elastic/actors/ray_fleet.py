"""Effect. The fleet on Ray: detached actors, a detached placement group for each replica, a host monitor per node.

Detached, since plain actors die with their driver, and detached actors die with an undetached placement group. So that
nothing outlives its purpose, a worker that has not heard a driver for its orphan lease removes its own placement group.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.util import get_node_ip_address

from elastic.actors import crown
from elastic.actors.answers import Answers, first_line
from elastic.actors.draining import Drains
from elastic.actors.fleet import Emit
from elastic.actors.former import Heirloom, Introduction
from elastic.actors.hands import Hand, Hands
from elastic.actors.host_monitors import HostMonitors
from elastic.actors.probing import Probes
from elastic.actors.refusals import Refusals
from elastic.actors.slots import Slots, is_reserved, place_of
from elastic.actors.staff import Staff
from elastic.actors.striker import Striker
from elastic.actors.worker import carried
from elastic.actors.worker_actor import call
from elastic.checkpoint import memory
from elastic.control import events as ev
from elastic.control.adoption import newest_view
from elastic.control.envelopes import news_of
from elastic.control.faults import Fault, FaultKind
from elastic.control.refusing import presumed
from elastic.control.values import CommitId, View
from elastic.errors import ElasticError, SupersededError
from elastic.settings import RunSettings
from elastic.train.flight import PAGES, page_path, page_pattern
from elastic.train.runner import TrainFn
from elastic.train.sockets import knocked_at

log = logging.getLogger("elastic")

_EVENTS_S = 5.0
_KEEP_S = 0.05

_NO_GANG = -1
_END_S = 10.0


class RayFleet:
    """See `Fleet`.

    Its calls go on in one thread when they are answered; another one does what may take milliseconds, as placements do.
    """

    def __init__(
        self,
        settings: RunSettings,
        train_fn: TrainFn,
        seed: int,
        emit: Emit,
        crash: Callable[[Exception], None],
        digest: str = "",
    ) -> None:
        self._settings, self._emit_event, self._crash = settings, emit, crash
        self._run, self._incarnation = settings.run, settings.incarnation
        self._told, self._refusals = (0, -1), Refusals()
        self._reign = crown.Reign(settings.run, settings.incarnation, crash)
        self._probes = Probes(self._emit, settings.limits.freeze_timeout_s + settings.limits.lease_s)
        self._hands = Hands()
        self._slots = Slots(settings.scaling, self._name(""))
        self._fenced_s: dict[str, float] = {}
        self._answers = Answers(crash)
        self._then = self._answers.then
        self._monitors = HostMonitors(self._emit, self._then, self._watch_all_on, settings)
        self._striker = Striker(settings, self._monitors, self._emit, self._then)
        self._drains = Drains(self._emit, self._is_in_use)
        work = (seed, carried(train_fn), digest)
        self._staff = Staff(settings, self._slots, work, self._then, self._came_up, self._lost)
        self._is_down = threading.Event()
        self._keeping = threading.Thread(target=self._keep_guarded, name="elastic-keeper", daemon=True)
        self._keeping.start()

    # --- what the driver says ---

    def start(
        self,
        worker: str,
        gang: int,
        shard: int,
        avoid: frozenset[str] = frozenset(),
        node: str = "",
        doubted: frozenset[str] = frozenset(),
    ) -> None:
        admission, wanted = self._monitors.admission, self._settings.scaling.label_selector
        labels = admission.labels(wanted, avoid, node)
        stand_ins = self._staff.stand_ins  # none when a run starts, which is when thousands are asked for
        places = () if node or not stand_ins.has_any else stand_ins.places(self._hands.by_node(are_well=True))
        first = admission.labels_among(wanted, avoid, places, doubted)
        hand = Hand(self._slots.reserve(gang, labels, first), None, gang, shard, born=self._incarnation)
        hand.is_manned = is_new = not stand_ins.has_any
        self._hands.add(worker, hand)
        if self._is_down.is_set():  # Ray took so long that the run has ended meanwhile
            self._release(worker)
            self._slots.remove_released()
        elif is_new:
            self._staff.start_in_slot(worker, hand)  # at once: it waits for its place by itself

    def adopt(self, left: Heirloom) -> None:
        """Go on with workers that heed this driver from now on; of members that did not answer, look for a proof."""
        view = newest_view(left.found)
        self._staff.stand_ins.hold()
        self._slots.adopt(left.groups)
        for member in view.members if view is not None else ():
            gang = left.silent.get(member.worker, _NO_GANG)
            hand = Hand(left.groups.get(gang), left.handles.get(member.worker), gang)
            hand.born, hand.address = left.born.get(member.worker, hand.born), (member.host, member.port)
            self._hands.add(member.worker, hand)
        for one in left.found:
            hand = Hand(left.groups[one.gang], left.handles[one.worker], one.gang, one.shard)
            hand.born, hand.node, hand.pid = left.born[one.worker], one.node, one.pid
            hand.address = (one.host, one.port) if one.port else None
            hand.is_in_slot = False  # for all that is known: it may have been a stand-in
            hand.holder = left.holders.get(one.worker)
            self._hands.add(one.worker, hand)
        for node in {one.node for one in left.found}:
            self._monitors.need(node)  # it watches those that are known to be there
        for one in left.found:
            self._listen(one.worker)

    @property
    def is_superseded(self) -> bool:
        """A newer driver has taken the run over: the workers are its."""
        return self._reign.is_over

    def told(self, generation: int, published: int) -> None:
        self._told = (generation, published)

    def confirm(self) -> None:
        crown.confirm(self._run, self._incarnation, self._settings.limits.lease_s)

    def _name(self, what: str) -> str:
        return f"elastic-{self._settings.run}@{self._settings.incarnation}-{what}"

    def freeze(self, worker: str, generation: int) -> None:
        def answered(answer: Any) -> None:
            if answer is not None:
                self._take(worker, answer)

        self._order(worker, "freeze", generation, then=answered)

    def form(self, worker: str, view: View) -> None:
        if not view.bootstrap:
            self._staff.stand_ins.hold()
        self._order(worker, "form", view)

    def restore(self, worker: str, commit: CommitId, number: int) -> None:
        self._order(worker, "restore", commit, number, then=lambda _: self._listen_again(worker))

    def save(self, worker: str, commit: CommitId) -> None:
        self._order(worker, "save", commit)

    def go(self, worker: str, generation: int) -> None:
        self._order(worker, "go", generation)

    def connect(self, worker: str, view: View) -> None:
        self._order(worker, "connect", view)

    def pause(self, worker: str, generation: int, patience_s: float) -> None:
        self._order(worker, "pause", generation, patience_s)

    def finish(self, worker: str) -> None:
        self._order(worker, "finish", then=lambda _: self._listen_again(worker))

    def dismiss(self, worker: str) -> None:
        """Ask it to leave; its slot is freed when it has left, or when it never came up."""
        hand = self._hands.get(worker)
        if hand is None or not hand.pid:
            self._release(worker)
        else:
            self._order(worker, "dismiss")

    def prove_dead(self, worker: str) -> None:
        """Watch for proof: its listening port refuses connections once the process is gone."""
        hand = self._hands.get(worker)
        if hand is None or hand.address is None:
            self._release(worker)
            self._emit(ev.WorkerDead(worker=worker, proof="it never came to its first step"))
            return
        self._probes.begin(worker, hand.address)

    def knock(self, workers: tuple[str, ...], others: tuple[str, ...]) -> None:
        listening = {name: self._hands[name].address for name in (*workers, *others) if name in self._hands}
        here = get_node_ip_address()  # which answers, whatever has become of the network: it vouches for no other
        places = {
            name: place
            for name, place in listening.items()
            if place is not None and (name in workers or place[0] != here)
        }
        within_s = self._settings.limits.knock_timeout_s

        def knock() -> None:
            answered, unreached = knocked_at(places, workers, within_s, self._is_down.is_set)
            self._emit(ev.Knocked(workers=workers, unreached=unreached, answered=answered))

        threading.Thread(target=knock, name="elastic-knock", daemon=True).start()

    def fence(self, worker: str) -> None:
        if (hand := self._hands.get(worker)) is not None:
            hand.is_fenced = True
        self._fenced_s[worker] = time.monotonic()
        self._monitors.fence(self._node(worker), worker, lambda proof: self._fenced(worker, proof))

    def look(self) -> None:
        self._monitors.look()

    def inspect(self, worker: str) -> None:
        self._monitors.inspect(self._node(worker), worker)

    def reset_gpu(self, node: str, gpus: tuple[str, ...]) -> None:
        self._monitors.reset_gpus(node, gpus, self._settings.limits.gpu_reset_timeout_s)

    def inject(self, fault: Fault, worker: str, node: str) -> None:
        if fault.kind is FaultKind.RAISE:
            self._call(worker, "inject", "control", fault)
        else:
            self._striker.inject(fault, worker, node)

    def value(self, worker: str, timeout_s: float) -> Any:
        return ray.get(call(self._hands[worker].actor, "value"), timeout=timeout_s)

    def shutdown(self, keep_memory: bool = False) -> None:
        """End workers, monitors and the reservations, and see that the processes are gone; see `Fleet`.

        Of a driver that was superseded: leave the workers to the newer one.
        """
        if self._is_down.is_set():
            return
        self._is_down.set()
        self._answers.close(_END_S)
        self._keeping.join(_END_S)
        self._probes.close()
        self._reign.look()
        self._staff.stand_ins.end()
        if self.is_superseded:
            self._monitors.kill()
            return
        left = self._hands.there()
        for _, hand in left:
            hand.kill()
        pages = page_pattern(self._settings.run)
        checkpoint = self._settings.checkpoint
        arenas = (checkpoint.memory, self._settings.run) if checkpoint is not None and not keep_memory else None
        self._monitors.end_all(pages, arenas)
        for page in PAGES.glob(pages):  # of workers on this node whose monitor died with them
            page.unlink(missing_ok=True)
        if arenas is not None:
            memory.remove(Path(arenas[0]), arenas[1])
        for worker, _ in left:
            self._release(worker)
        self._give_slots_back()
        self._monitors.kill()
        deadline_s = time.monotonic() + _END_S
        for group in self._hands.groups():
            while time.monotonic() < deadline_s and is_reserved(group):
                time.sleep(_KEEP_S)

    def _give_slots_back(self) -> None:
        deadline_s = time.monotonic() + _END_S
        while not self._slots.remove_released():
            if time.monotonic() > deadline_s:
                log.warning("slots of the run were not given back: Ray's head has not answered for %.0f s", _END_S)
                return
            time.sleep(_KEEP_S)

    # --- calls and their answers ---

    def _take(self, worker: str, event: Any) -> None:
        if why_not := presumed(worker, event):
            self._refusals.say(worker, type(event).__name__, why_not)
        else:
            self._emit(event)

    def _emit(self, event: ev.Event) -> None:
        if isinstance(event, ev.WorkerParked):
            self._staff.stand_ins.hold()  # it is no longer on its way, and about to join
            self._hands[event.worker].address = (event.host, event.port)
            if self._monitors.admission.must_wait(self._node(event.worker), event):
                return
        self._monitors.admission.heed(event)
        if isinstance(event, (ev.FreezeAnswered, ev.AtDoor, ev.Restored, ev.RestoreRefused)):
            self._probes.end(event.worker)
        self._emit_event(event)
        match event:
            case ev.WorkerDead() | ev.WorkerDeparted() | ev.TrainFnRaised() | ev.TrainFnReturned(dismissed=True):
                self._release(event.worker)
            case ev.FreezeAnswered():
                self._listen_again(event.worker)
                self._acquaint(event.worker)

    def _order(self, worker: str, method: str, *args: Any, then: Callable[[Any], Any] | None = None) -> None:
        """Heeded as long as no newer driver has adopted the worker."""
        self._call(worker, method, "control", self._incarnation, *args, then=then)

    def _call(self, worker: str, method: str, group: str, *args: Any, then: Callable[[Any], Any] | None = None) -> None:
        hand = self._hands.get(worker)
        if hand is None or hand.is_over or hand.actor is None:
            return
        reference = call(hand.actor, method, *args, group=group)
        self._then(reference, then or (lambda _: None), lambda error: self._lost(worker, error))

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
            page = page_path(self._settings.run, worker, hand.born)
            self._monitors.watch(hand.node, worker, hand.pid, page)

    def _watch_all_on(self, node: str) -> None:
        for worker, hand in self._hands.there():
            if hand.node == node:
                self._put_under_watch(worker)

    def _has_workers(self, node: str) -> bool:
        return any(hand.node == node for _, hand in self._hands.there())

    def _is_in_use(self, node: str) -> bool:
        return self._has_workers(node) or self._staff.stand_ins.is_on(node)

    def _listen(self, worker: str) -> None:
        hand = self._hands[worker]
        if hand.is_over or hand.is_fenced:  # a call would renew the lease of one that must not step again
            return

        def heard(message: Any) -> None:
            number, events, why_not = news_of(worker, message, hand.seen)
            if why_not:
                self._lost(worker, ElasticError(why_not))
                return
            hand.seen = number
            for event in events:
                self._take(worker, event)
            self._listen(worker)

        hand.is_heard = True
        limits = self._settings.limits  # each call tells the worker that its driver lives
        wait_s = min(_EVENTS_S, limits.orphan_lease_s / 4, limits.lease_s / 4)
        self._call(worker, "news", "events", self._incarnation, hand.seen, wait_s, self._told, then=heard)

    def _listen_again(self, worker: str) -> None:
        """It has answered: if contact was lost, it is back."""
        if not self._hands[worker].is_heard:
            self._listen(worker)

    def _acquaint(self, worker: str) -> None:
        """Whom this driver did not find when it took the run over, and who answers after all, is watched then."""
        hand = self._hands[worker]
        if hand.pid or hand.actor is None:
            return

        def introduced(told: Introduction) -> None:
            if not hand.pid:
                hand.node, hand.pid = told.node, told.pid
                self._monitors.need(told.node)
                self._put_under_watch(worker)
                self._emit(ev.WorkerPlaced(worker=worker, node=told.node))

        self._call(worker, "introduce", "control", then=introduced)

    def _lost(self, worker: str, error: Exception) -> None:
        self._hands[worker].is_heard = False
        if isinstance(error, SupersededError):
            self._reign.end(error)
        elif not self._hands[worker].is_over:
            self._emit(ev.WorkerLost(worker=worker, evidence=first_line(error)))

    def _fenced(self, worker: str, proof: str) -> None:
        self._fenced_s.pop(worker, None)
        if proof:
            self._emit(ev.WorkerDead(worker=worker, proof=proof))
        else:
            self._release(worker)
            self.prove_dead(worker)

    def _release(self, worker: str) -> None:
        """Free its slot; Ray ends whatever still runs there."""
        self._probes.end(worker)
        ended = self._hands.end(worker)
        if ended is None:
            return
        hand, is_last = ended
        self._monitors.forget(hand.node, worker)
        if is_last:
            self._slots.release(hand.gang, hand.group)
        if not (is_last and hand.is_in_slot and hand.group is not None):
            hand.kill()  # the slots of its replica are kept for the others, and for who takes its place

    # --- the thread ---

    def _keep_guarded(self) -> None:
        try:
            self._keep()
        except Exception as error:  # nobody would hear it here
            self._crash(error)

    def _keep(self) -> None:
        """Notice placements, and see to it that each node with workers has a monitor."""
        while not self._is_down.wait(_KEEP_S):
            self._slots.remove_released()
            self._monitors.replace(self._has_workers)
            self._drains.look_now_and_then()
            self._expire_fences()
            self._reign.look_now_and_then()
            if min(self._told) >= 0 and self._told[0] > 0:  # not while the run's first workers start
                self._staff.stand_ins.keep(self._hands, self._monitors.admission.shunned)
            for name, hand in self._hands.nowhere():
                if hand.pid or hand.address is None:  # else it was not found by a new driver
                    self._look_for(name, hand)

    def _look_for(self, worker: str, hand: Hand) -> None:
        """Tell where its slot is, if that is known, and news."""
        node = "" if hand.group is None else place_of(hand.group, self._slots.bundle_of(hand.shard))
        before, hand.group = hand.group, self._slots.settle(hand.gang, is_placed=bool(node)) or hand.group
        if node is None and hand.group is not None and hand.group == before:  # an orphan took this driver for dead
            self._slots.forget(hand.gang, hand.group)
            hand.group = None
            self._lost(worker, ElasticError("its slots were given up before they were placed"))
        if node and node != hand.node:
            hand.node = node
            self._monitors.need(node)
            self._put_under_watch(worker)
            self._emit(ev.WorkerPlaced(worker=worker, node=node))
            self._staff.man(worker, hand)

    def _expire_fences(self) -> None:
        """A monitor that does not say that it has killed a worker may be out of reach: look for the proof elsewhere."""
        limit_s = self._settings.limits.freeze_timeout_s
        for worker, asked_s in list(self._fenced_s.items()):
            if time.monotonic() - asked_s > limit_s:
                self._fenced_s.pop(worker, None)
                self.prove_dead(worker)
