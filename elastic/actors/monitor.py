"""Effect. The host monitor: one per node; knows its workers' processes without asking them.

It holds a pidfd of each worker, so a death is known at once and for certain (a pid can be reused, a pidfd cannot),
reads flight pages, and acts where nobody else can: it kills a worker that does not answer.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from elastic.actors.gpu_reset import reset_gpus
from elastic.actors.preemption import PreemptionWatch
from elastic.actors.priority import take_usual_priority
from elastic.actors.processes import Process, ended_among
from elastic.actors.stacks import Dump
from elastic.actors.watched import CLOSER_LOOK_S, LOOK_S, Watched
from elastic.chaos.aftermath import Aftermath
from elastic.chaos.striking import Scene, strike
from elastic.checkpoint import memory
from elastic.control import events as ev
from elastic.control.faults import OF_WORKERS, Fault, FaultKind
from elastic.control.flight import STOPPED, Reading
from elastic.control.hardware import FindingKind, GpuReading, HostReading
from elastic.control.xid import Severity
from elastic.errors import ElasticError
from elastic.hosts.health import check_node
from elastic.hosts.peers import lend
from elastic.hosts.sensing import Claim, Senses
from elastic.settings import Health, Logs
from elastic.train.flight import PAGES, Flight, read_page, read_visible
from elastic.train.logs import lines_of

log = logging.getLogger("elastic")

_FENCE_S = 5.0
_LEAVE_S = 2.0
_RESET_SHARE = 0.5  # of the time for it that is the reset's own
_LET_GO_SHARE = 0.2  # of it, until the senses have let go of the driver
_BLAMED_S = 10.0  # after a worker's end: only then does a driver, or the kernel's log, say why it came
UNREACHABLE = (FaultKind.NODE_DOWN, FaultKind.PARTITION)  # faults after which a node does not answer


class HostMonitor:
    """Watches the workers of one node; an actor in a cluster.

    Args:
        node: its name in what is told.
        heeds_cloud: pass on the cloud's notice that this machine will be taken away.
        health: what is sensed of the hardware, and checked; None: nothing.
        hang_floor_s, stopped_timeout_s: see `Limits`; who waits for a beat is told at once of a worker that has stood
            still for so long, or been stopped.
        show_gpus: takes each look at the GPUs.
        logs: what of the lines of this process is told with its beats; None: nothing, it is not its own.
    """

    def __init__(
        self,
        node: str = "",
        heeds_cloud: bool = False,
        health: Health | None = None,
        hang_floor_s: float = math.inf,
        stopped_timeout_s: float = math.inf,
        show_gpus: Callable[[Sequence[GpuReading]], None] = lambda gpus: None,
        logs: Logs | None = None,
    ) -> None:
        self._lines = lines_of("monitor", node, logs) if logs is not None else None
        if logs is not None:
            take_usual_priority()
        self._node, self._hang_floor_s, self._stopped_timeout_s = node, hang_floor_s, stopped_timeout_s
        self._is_urgent, self._looked_s = False, time.monotonic()
        self._watched: dict[str, Watched] = {}
        self._ended: dict[str, tuple[float, Claim]] = {}  # a moment ago; each with the time until which it counts
        self._dumps: dict[str, Dump] = {}  # of those who are being inspected
        self._ending: list[Process] = []  # killed, or told to leave: they may not have given all back yet
        self._news: list[ev.Event] = []
        self._forgotten = 0  # news before these, which nobody will ask for again
        self._lock = threading.Condition()
        self._aftermath = Aftermath()
        self._is_closed = threading.Event()
        self._health, self._check_turn = health, threading.Semaphore()
        self._senses: Senses | None = None
        if health is not None and health.sensing:
            self._senses = Senses(node, health, self._tell, self._claims, show=show_gpus)
        self._thread = threading.Thread(target=self._watch, name="elastic-monitor", daemon=True)
        self._thread.start()
        self._cloud = PreemptionWatch(self._notice, self._hear_no_cloud) if heeds_cloud else None

    def watch(self, worker: str, pid: int, page: Path) -> bool:
        """Take a worker under watch; False if its process is gone already."""
        try:
            process = Process(pid)
        except ProcessLookupError:
            return False
        with self._lock:
            self._watched[worker] = Watched(pid, process, page)
        log.info("watches %s, pid %d", worker, pid)
        return True

    def events(self, timeout_s: float) -> list[ev.Event]:
        """News, as soon as there are any, else none: after the timeout, or when a worker has come to stand still."""
        with self._lock:
            news = self._news_after(self._forgotten, timeout_s)
            self._forget(self._forgotten + len(news))
            return news

    def fence(self, worker: str, stack_s: float = 0.0) -> str:
        """Kill a worker, and wait until it does nothing any more; returns the proof, empty if it could not be had.

        Args:
            stack_s: it is being inspected, and is killed once its stacks are taken, or after so long at most. Those of
                who is stopped mostly are by then: a dump began when that was seen.
        """
        with self._lock:
            watched = self._watched.get(worker)
        if watched is None:
            return ""
        if stack_s and (dump := self._dump_of(worker)) is not None:
            dump.wait(stack_s)
        watched.process.kill()
        if not watched.process.runs_no_more(_FENCE_S):
            return ""
        self._report_death(worker)  # now, since it may be forgotten before its process has ended
        with self._lock:
            self._note_ending(watched.process)
        return f"pid {watched.pid} was killed by its host monitor"

    def inject(self, fault: Fault, worker: str, node: str, scene: Scene) -> None:
        """Have a fault strike a worker on this node, or the node, which is called `node`; what came of it is news.

        A fault that cuts this node off, or ends it, strikes before this returns, if it returns.
        """
        with self._lock:
            watched = self._watched.get(worker)
        process = watched.process if watched is not None else None
        target = worker if fault.kind in OF_WORKERS else node

        def act() -> None:
            try:
                at_s, proof = time.time(), strike(fault, scene, process, self._aftermath)
            except (ElasticError, OSError) as error:
                self._tell(ev.FaultRefused(fault=fault, reason=str(error)))
            else:
                self._tell(ev.FaultInjected(fault=fault, target=target, at_s=at_s, proof=proof))

        act() if fault.kind in UNREACHABLE else self._aftermath.beside(act)

    def look(self) -> None:
        """Look at all workers now; who waits for a beat is told what there is to see."""
        with self._lock:
            self._look()
            self._is_urgent = True
            self._lock.notify_all()

    def inspect(self, worker: str) -> str:
        """Where its threads stand, or why that can not be seen; takes some seconds at most."""
        dump = self._dump_of(worker)
        if dump is None:
            return "it is not watched"
        stacks = dump.stacks()
        self._dumps.pop(worker, None)
        return stacks

    def _dump_of(self, worker: str) -> Dump | None:
        """The one that was begun, also of who is gone since a fence came sooner than this, or one that begins now."""
        with self._lock:
            watched = self._watched.get(worker)
            if worker not in self._dumps and watched is not None:
                self._dumps[worker] = watched.dump or Dump(watched.pid)
            return self._dumps.get(worker)

    def reset_gpus(self, gpus: tuple[str, ...], timeout_s: float) -> str:
        """Reset GPUs of this node; returns why they were not, empty if they were."""
        until_s = time.monotonic() + timeout_s
        with self._lock:
            ending = list(self._ending)
        for process in ending:  # until then it has its GPU; one that stays may have another one
            process.has_ended(max(0.0, until_s - _RESET_SHARE * timeout_s - time.monotonic()))
        letting_go = nullcontext() if self._senses is None else self._senses.letting_go(_LET_GO_SHARE * timeout_s)
        with letting_go:
            return reset_gpus(gpus, max(0.0, until_s - time.monotonic()))

    def readings(self) -> tuple[Reading, ...]:
        """What was last seen of each worker that has a flight page."""
        with self._lock:
            seen = [watched.reading(name) for name, watched in self._watched.items()]
        return tuple(reading for reading in seen if reading is not None)

    def beat(self, timeout_s: float) -> tuple[list[ev.Event], tuple[Reading, ...]]:
        """See `events`; and what is seen of the workers."""
        news = self.events(timeout_s)
        return [*news, *self.logged()], self.readings()

    def tell(self, timeout_s: float, had: int, passed: int) -> tuple[int, list[ev.Event], tuple[Reading, ...]]:
        """`beat` for who passes it on, and may be lost with what it was told: another one can ask for that again.

        Args:
            had: how many of the news that there have ever been the asker has.
            passed: how many of them have come to where they were to go; these are forgotten.

        Returns:
            How many news there have been by now, those of them that the asker lacks, and what is seen of the workers.
        """
        with self._lock:
            self._forget(passed)
            self._news_after(had, timeout_s)
            self._news += self.logged()
            news = self._news[max(0, had - self._forgotten) :]
            number = self._forgotten + len(self._news)
        return number, news, self.readings()

    def logged(self) -> list[ev.Logged]:
        """What this process has logged since the last time."""
        return self._lines.taken() if self._lines is not None else []

    def check_health(self, peer: tuple[str, int] | None = None, wanted_gpus: int = 0) -> list[str]:
        """Why no worker should join from here; nothing, if all is well.

        Args:
            peer: where another node lends its bytes, if their speed is to be measured.
            wanted_gpus: what the workers that are placed here are given, at least.
        """
        if self._health is None:
            return []
        gpus = self._senses.gpus if self._senses is not None else None
        return check_node(self._health, gpus, peer, wanted_gpus, self._check_turn)

    def lend(self, host: str) -> int:
        """Send bytes to whoever connects next, on the port that is returned."""
        return lend(host)

    def close(self) -> None:
        """Stop watching."""
        self._is_closed.set()
        if self._senses is not None:
            self._senses.close()
        self._aftermath.close()
        if self._cloud is not None:
            self._cloud.close()
        self._thread.join(_LEAVE_S)

    def hardware(self) -> tuple[list[GpuReading], HostReading | None]:
        """What was last read of the GPUs and of the host."""
        senses = self._senses
        return (senses.gpus(0.0) or [], senses.host) if senses is not None else ([], None)

    def flights(self) -> dict[str, tuple[str, Flight | None]]:
        """For each worker its process state (R, S, T, Z, ...) and the last reading of its page."""
        with self._lock:
            return {name: (watched.state, watched.flight) for name, watched in self._watched.items()}

    def forget(self, worker: str) -> None:
        """Stop watching a worker that was told to leave, and take its page away."""
        with self._lock:
            watched = self._watched.pop(worker, None)
            if watched is not None:
                self._note_ending(watched.process)
        if watched is not None:
            watched.page.unlink(missing_ok=True)

    def _note_ending(self, process: Process) -> None:
        self._ending = [one for one in (*self._ending, process) if not one.has_ended(0.0)]

    def end_all(self, pages: str, arenas: tuple[str, str] | None = None) -> list[int]:
        """Wait a moment for workers to end, kill those left, take all pages away; returns pids that would not die.

        Args:
            pages: pattern of the run's flight pages, since those of a lost monitor's workers may lie here too.
            arenas: (directory, run) of slots to take away.
        """
        self._aftermath.close()
        with self._lock:
            processes = [*self._ending, *(watched.process for watched in self._watched.values())]
            self._watched = {}
        deadline_s = time.monotonic() + _LEAVE_S
        for process in processes:
            process.has_ended(max(0.0, deadline_s - time.monotonic()))
            process.kill()
        alive = [process.pid for process in processes if not process.has_ended(_FENCE_S)]
        for page in PAGES.glob(pages):
            page.unlink(missing_ok=True)
        if arenas is not None:
            memory.remove(Path(arenas[0]), arenas[1])
        return alive

    def _watch(self) -> None:
        judged_s = time.monotonic()
        while not self._is_closed.is_set():
            with self._lock:
                names = {watched.process: name for name, watched in self._watched.items()}
                is_stopped = any(watched.state == STOPPED for watched in self._watched.values())
            period_s = CLOSER_LOOK_S if is_stopped else LOOK_S
            for process in ended_among(names, period_s):
                self._report_death(names[process])
            elapsed_s = time.monotonic() - judged_s
            if elapsed_s >= period_s:
                judged_s += elapsed_s
                try:
                    if self._senses is not None:
                        self._senses.judge(elapsed_s)
                    with self._lock:
                        self._look()
                except Exception:  # a monitor that no longer looks, and still beats, would be worse than any of them
                    log.exception("a look at the workers failed; the next one comes")

    def _look(self) -> None:
        """With the lock held."""
        elapsed_s = time.monotonic() - self._looked_s
        self._looked_s += elapsed_s
        for watched in self._watched.values():
            before_s, stopped_before_s = watched.still_s, watched.stopped_s
            watched.look(elapsed_s)
            is_still = before_s < self._hang_floor_s <= watched.still_s
            if is_still or stopped_before_s < self._stopped_timeout_s <= watched.stopped_s:
                self._is_urgent = True
                self._lock.notify_all()

    def _notice(self, reason: str) -> None:
        self._tell(ev.NodeNotice(node=self._node, reason=reason))

    def _hear_no_cloud(self, why: str) -> None:
        """Said once, as what the senses can not see is."""
        detail = f"not seen on this node: notices of the cloud ({why})"
        kind, severity = FindingKind.BLIND, Severity.INFORMATIONAL
        self._tell(ev.HardwareFinding(node=self._node, device="", kind=kind, severity=severity, detail=detail))

    def _news_after(self, number: int, timeout_s: float) -> list[ev.Event]:
        """With the lock held: as soon as there are any, or a worker has come to stand still, or the timeout is over."""
        self._lock.wait_for(lambda: self._is_urgent or self._forgotten + len(self._news) > number, timeout_s)
        self._is_urgent = False
        return self._news[max(0, number - self._forgotten) :]

    def _forget(self, number: int) -> None:
        """With the lock held: the first so many of all news."""
        over = min(max(0, number - self._forgotten), len(self._news))
        del self._news[:over]
        self._forgotten += over

    def _tell(self, event: ev.Event) -> None:
        with self._lock:
            self._news.append(event)
            self._lock.notify_all()

    def _claims(self) -> dict[str, Claim]:
        with self._lock:
            watched = {name: (one.pid, one.page) for name, one in self._watched.items()}
            ended = {name: claim for name, (until_s, claim) in self._ended.items() if time.monotonic() < until_s}
        return ended | {name: Claim(pid, read_visible(page)) for name, (pid, page) in watched.items()}

    def _report_death(self, name: str) -> None:
        with self._lock:
            watched = self._watched.pop(name, None)
            if watched is None:
                return
            now_s, claim = time.monotonic(), Claim(watched.pid, read_visible(watched.page))
            self._ended = {other: one for other, one in self._ended.items() if now_s < one[0]}
            self._ended[name] = (now_s + _BLAMED_S, claim)
            watched.flight = read_page(watched.page) or watched.flight
            proof = f"pid {watched.pid} is gone; {_last_seen(watched.flight)}"
            self._news.append(ev.WorkerDead(worker=name, proof=proof, last=watched.reading(name)))
            self._lock.notify_all()
        watched.page.unlink(missing_ok=True)


def _last_seen(flight: Flight | None) -> str:
    if flight is None:
        return "it left no flight page"
    at = time.strftime("%H:%M:%S", time.localtime(flight.at_s))
    where = f"{flight.phase.name.lower()} in step {flight.step}, generation {flight.generation}"
    which = f", micro-batch {flight.micro_batch}" if flight.micro_batch >= 0 else ""
    return f"last seen {where}{which} at {at}"
