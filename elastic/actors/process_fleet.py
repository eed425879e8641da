"""Effect. A fleet of child processes on this machine: the same worker code as under Ray, without Ray.

For fault tests, which need many groups in little time, and for machines on which Ray does not run. Slots stand for the
places of a cluster: a worker that finds none waits until one is free.
"""

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from elastic.actors.fleet import Emit
from elastic.actors.monitor import HostMonitor
from elastic.chaos.striking import Scene
from elastic.checkpoint import memory
from elastic.control import events as ev
from elastic.control.faults import Fault, FaultKind
from elastic.control.flight import Reading
from elastic.control.values import CommitId, View
from elastic.settings import RunSettings
from elastic.train.flight import page_path
from elastic.train.runner import TrainFn

_EVENTS_S = 1.0
_REAP_S = 0.5
_TOLD_S = 0.5
_END_S = 30.0
PRELOADED = [
    "elastic.train.host",
    "elastic.train.rehearsed",
    "elastic.actors.process_fleet",
]  # before workers are forked


class Child:
    """One worker process, its pipe, and the thread that listens to it."""

    def __init__(self, process: BaseProcess, pipe: Connection, node: str) -> None:
        self.process, self.pipe, self.node = process, pipe, node
        self.listener: threading.Thread | None = None
        self.value: Any = None
        self._lock = threading.Lock()
        self._is_found = threading.Event()
        self._last: Reading | None = None

    def say(self, method: str, *arguments: Any) -> None:
        """Ask the worker for something; one that is gone is told nothing."""
        with self._lock, contextlib.suppress(OSError):
            self.pipe.send((method, arguments))

    def found_dead(self, event: ev.WorkerDead) -> None:
        """Its host monitor has seen its end, too."""
        self._last = event.last
        self._is_found.set()

    def last_seen(self) -> Reading | None:
        """What its flight page said when it died; None: nobody has read it in time."""
        self._is_found.wait(_REAP_S)
        return self._last


class ProcessFleet:
    """See `Fleet`.

    Args:
        slots: node name of each place for a worker, e.g. ["a", "a", "b"].
    """

    def __init__(self, settings: RunSettings, train_fn: TrainFn, slots: list[str], seed: int, emit: Emit) -> None:
        self.settings, self._train_fn, self._seed, self._emit = settings, train_fn, seed, emit
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._free = list(slots)
        self._waiting: dict[str, tuple[frozenset[str], str]] = {}  # where each must not be, where alone it may be
        self._shards: dict[str, tuple[int, int]] = {}
        self._told_s = 0.0
        self._cut_off: set[str] = set()
        self._lock = threading.Lock()
        self.children: dict[str, Child] = {}
        self._monitor = HostMonitor()
        self._is_down = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="elastic-beats", daemon=True)
        self._beats.start()

    def start(
        self,
        worker: str,
        gang: int = 0,
        shard: int = 0,
        avoid: frozenset[str] = frozenset(),
        node: str = "",
        doubted: frozenset[str] = frozenset(),
    ) -> None:
        with self._lock:
            self._shards[worker] = (gang, shard)
            self._waiting[worker] = (avoid, node)
        self._fill_slots()

    def add_slot(self, node: str) -> None:
        with self._lock:
            self._free.append(node)
        self._fill_slots()

    def cut_off(self, node: str) -> None:
        """For tests: a host out of reach. Its monitor is not heard, and can not be told to kill anybody."""
        self._cut_off.add(node)

    def freeze(self, worker: str, generation: int) -> None:
        self._order(worker, "freeze", generation)

    def form(self, worker: str, view: View) -> None:
        self._order(worker, "form", view)

    def restore(self, worker: str, commit: CommitId, number: int) -> None:
        self._order(worker, "restore", commit, number)

    def save(self, worker: str, commit: CommitId) -> None:
        self._order(worker, "save", commit)

    def go(self, worker: str, generation: int) -> None:
        self._order(worker, "go", generation)

    def connect(self, worker: str, view: View) -> None:
        self._order(worker, "connect", view)

    def pause(self, worker: str, generation: int, patience_s: float) -> None:
        self._order(worker, "pause", generation, patience_s)

    def finish(self, worker: str) -> None:
        self._order(worker, "finish")

    def dismiss(self, worker: str) -> None:
        with self._lock:
            self._waiting.pop(worker, None)
        self._order(worker, "dismiss")

    def told(self, generation: int, published: int) -> None:
        if time.monotonic() - self._told_s > _TOLD_S:
            self._told_s = time.monotonic()
            for worker in list(self.children):
                self._say(worker, "told", generation, published)

    def confirm(self) -> None:
        """No other driver can have these children."""

    def prove_dead(self, worker: str) -> None:
        """Nothing to do: the listener waits for the process's end anyway."""

    def knock(self, workers: tuple[str, ...], others: tuple[str, ...]) -> None:
        nodes = {name: child.node for name, child in list(self.children.items())}
        unreached = tuple(name for name in workers if nodes.get(name) in self._cut_off)
        answered = tuple(name for name in workers if name in nodes and name not in unreached)
        self._emit(ev.Knocked(workers=workers, unreached=unreached, answered=answered))

    def look(self) -> None:
        self._monitor.look()

    def inspect(self, worker: str) -> None:
        self._emit(ev.StackDumped(worker=worker, stack=self._monitor.inspect(worker)))

    def fence(self, worker: str) -> None:
        if worker in self.children and self.children[worker].node not in self._cut_off:
            self.children[worker].process.kill()

    def reset_gpu(self, node: str, gpus: tuple[str, ...]) -> None:
        def reset() -> None:
            error = self._monitor.reset_gpus(gpus, self.settings.limits.gpu_reset_timeout_s)
            self._emit(ev.GpuReset(node=node, gpus=gpus, error=error))

        threading.Thread(target=reset, name="elastic-gpu-reset", daemon=True).start()

    def inject(self, fault: Fault, worker: str, node: str) -> None:
        match fault.kind:
            case FaultKind.RAISE:
                self._say(worker, "inject", fault)
            case FaultKind.NODE_DOWN:
                there = [child.process for child in list(self.children.values()) if child.node == node]
                at_s, proof = time.time(), f"pids {[process.pid for process in there]} were killed"
                for process in there:
                    process.kill()
                self._emit(ev.FaultInjected(fault=fault, target=node, at_s=at_s, proof=proof))
            case FaultKind.KILL_MONITOR | FaultKind.KILL_SUPERVISOR:
                reason = f"{fault.kind.value}: without Ray there is no such process"
                self._emit(ev.FaultRefused(fault=fault, reason=reason))
            case _:
                self._monitor.inject(fault, worker, node, Scene.of(self.settings))

    def value(self, worker: str, timeout_s: float) -> Any:
        child = self.children[worker]
        child.say("value")
        if child.listener is not None:
            child.listener.join(timeout_s)
        return child.value

    def shutdown(self, keep_memory: bool = False) -> None:
        self._is_down.set()
        self._beats.join(_END_S)
        self._monitor.close()
        with self._lock:
            self._waiting.clear()
            children = list(self.children.items())
        for _, child in children:
            child.process.kill()
        for name, child in children:
            child.process.join(_END_S)
            if child.listener is not None:
                child.listener.join(_END_S)
            child.process.close()
            page_path(self.settings.run, name, self.settings.incarnation).unlink(missing_ok=True)
        checkpoint = self.settings.checkpoint
        if checkpoint is not None and not keep_memory:
            memory.remove(Path(checkpoint.memory), self.settings.run)

    def _beat(self) -> None:
        """One monitor sees all; each node tells of its own workers."""
        while not self._is_down.is_set():
            for event in self._monitor.events(self.settings.limits.heartbeat_polling_period_s):
                if isinstance(event, ev.WorkerDead):  # of deaths the listeners tell
                    self.children[event.worker].found_dead(event)
                else:
                    self._emit(event)
            seen = {reading.worker: reading for reading in self._monitor.readings()}
            nodes: dict[str, list[Reading]] = {}
            for name, child in list(self.children.items()):
                nodes.setdefault(child.node, []).extend([seen[name]] if name in seen else [])
            for node, readings in nodes.items():
                if node not in self._cut_off:
                    self._emit(ev.HostBeat(node=node, readings=tuple(readings)))

    def _order(self, worker: str, method: str, *arguments: Any) -> None:
        self._say(worker, method, self.settings.incarnation, *arguments)

    def _say(self, worker: str, method: str, *arguments: Any) -> None:
        if worker in self.children:
            self.children[worker].say(method, *arguments)

    def _fill_slots(self) -> None:
        placed: list[tuple[str, str]] = []
        with self._lock:
            for worker, (avoid, only) in list(self._waiting.items()):
                free = next((node for node in self._free if node not in avoid and only in ("", node)), None)
                if free is not None:
                    self._free.remove(free)
                    del self._waiting[worker]
                    placed.append((worker, free))
        for worker, node in placed:
            self._spawn(worker, node)

    def _spawn(self, worker: str, node: str) -> None:
        ours, theirs = self._context.Pipe()
        spec = {"worker": worker, "seed": self._seed, "settings": self.settings, "train_fn": self._train_fn}
        spec["gang"], spec["shard"] = self._shards[worker]
        # Not a daemon: those may not have children, and a worker may want loader processes.
        process = self._context.Process(target=serve, args=(theirs, spec), name=f"elastic-{worker}")
        process.start()
        theirs.close()
        page = page_path(self.settings.run, worker, self.settings.incarnation)
        child = self.children[worker] = Child(process, ours, node)
        self._monitor.watch(worker, process.pid or 0, page)
        self._emit(ev.WorkerPlaced(worker=worker, node=node))
        child.listener = threading.Thread(target=self._listen, args=(worker, child), daemon=True)
        child.listener.start()

    def _listen(self, worker: str, child: Child) -> None:
        while True:
            try:
                kind, content = child.pipe.recv()
            except (EOFError, OSError):
                break
            if kind == "value":
                child.value = content
                return
            for event in content:
                self._emit(event)
        self._emit(ev.WorkerLost(worker=worker, evidence="its pipe closed"))
        while child.process.exitcode is None and not self._is_down.is_set():
            child.process.join(_REAP_S)
        if (code := child.process.exitcode) is not None:
            proof = f"pid {child.process.pid} ended with code {code}"
            self._emit(ev.WorkerDead(worker=worker, proof=proof, last=child.last_seen()))


def serve(pipe: Connection, spec: dict[str, Any]) -> None:
    """The child's main thread: carry calls to the host, and its events back."""
    from elastic.train.host import WorkerHost, WorkerSpec

    host = WorkerHost(WorkerSpec(**spec), host="127.0.0.1")
    lock = threading.Lock()

    def send(kind: str, content: Any) -> None:
        with lock, contextlib.suppress(OSError):
            pipe.send((kind, content))

    def push_events() -> None:
        while True:
            news = host.events(_EVENTS_S)
            if news:
                send("events", news)

    threading.Thread(target=push_events, daemon=True).start()
    methods: dict[str, Callable[..., Any]] = {
        name: getattr(host, name)
        for name in ("form", "restore", "save", "go", "connect", "pause", "finish", "dismiss", "told", "inject")
    }
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = pipe.recv()
            if method == "freeze":
                answer = host.freeze(*arguments)
                if answer is not None:
                    send("events", [answer])
            elif method == "value":
                send("value", host.value())
            else:
                methods[method](*arguments)
    host.end()
