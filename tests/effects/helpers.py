"""Effect. Members of a group as threads of the test's process, or as child processes where one must be killed."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from elastic.actors.process_fleet import PRELOADED
from elastic.control.values import NOTHING_COMMITTED, CommitId, Member, View
from elastic.train.gloo import GlooGroup
from elastic.train.meeting import StoreHost

HOST = "127.0.0.1"
LONG_S = 30.0  # for what takes milliseconds, on a machine that is busy with something else
ENDLESS_S = 2 * LONG_S  # what ends within LONG_S was ended by what is tested
MOMENT_S = 0.3  # long enough to see that something waits
POLL_S = 0.005


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Waits until the condition holds, and returns what it returned."""
    deadline_s = time.monotonic() + LONG_S
    while not (result := condition()):
        assert time.monotonic() < deadline_s, f"waited in vain until {what}"
        time.sleep(POLL_S)
    return result


def view_of(
    addresses: Sequence[tuple[str, int]],
    generation: int = 1,
    *,
    resume: CommitId = NOTHING_COMMITTED,
    donors: tuple[int, ...] = (0,),
    behind: tuple[int, ...] = (),
) -> View:
    """A view whose members are called w0, w1, ..."""
    members = tuple(Member(f"w{rank}", host, port) for rank, (host, port) in enumerate(addresses))
    return View(
        run="effects",
        incarnation=1,
        generation=generation,
        members=members,
        resume=resume,
        donors=donors,
        behind=behind,
        bootstrap=resume == NOTHING_COMMITTED,
    )


class Running:
    """A function in a daemon thread; `result` waits for it and raises what it raised."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(act,), daemon=True)
        self._thread.start()

    def _run(self, act: Callable[[], Any]) -> None:
        try:
            self._value = act()
        except BaseException as error:
            self._error = error

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(LONG_S)
        assert self.is_over, "the thread did not end"

    def result(self) -> Any:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def error(self) -> BaseException | None:
        self.wait()
        return self._error


def in_threads(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Runs act(rank) for all ranks at once, and returns their results by rank."""
    threads = [Running(lambda rank=rank: act(rank)) for rank in range(count)]
    return [thread.result() for thread in threads]


class Circle:
    """Members of one process and what they host; forms one generation after the other."""

    def __init__(self, size: int) -> None:
        self.stores = [StoreHost(HOST) for _ in range(size)]
        self.generation = 0

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [(store.host, store.port) for store in self.stores]

    def next_view(self, **roles: Any) -> View:
        self.generation += 1
        return view_of(self.addresses, self.generation, **roles)

    def form(self, collective_timeout_s: float = LONG_S, layout: str = "same", **roles: Any) -> list[GlooGroup]:
        view = self.next_view(**roles)
        groups = [GlooGroup(view, rank, collective_timeout_s) for rank in range(len(self.stores))]
        in_threads(len(groups), lambda r: groups[r].form(self.stores[r], layout, lambda: False, LONG_S))
        return groups


@contextmanager
def formed(size: int, **options: Any) -> Iterator[list[GlooGroup]]:
    """A generation of `size` members, one per thread."""
    circle = Circle(size)  # holds the stores, which end with it
    groups = circle.form(**options)
    try:
        yield groups
    finally:
        for group in groups:
            group.cut()
            group.close()


@contextmanager
def child(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> Iterator[tuple[Any, Any]]:
    """A child process and the pipe to it, which is the target's first argument; it is killed at the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=daemon)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join(LONG_S)
        process.close()
        ours.close()


def hear(pipe: Any) -> Any:
    """What the other end says next."""
    assert pipe.poll(LONG_S), "the other process says nothing"
    return pipe.recv()


def stop(pid: int) -> None:
    """Freezes a process, and waits until it is."""
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: process_state(pid) == "T", f"process {pid} is stopped")


def process_state(pid: int) -> str:
    """One letter: R, S, T, Z, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def serve_member(pipe: Any) -> None:
    """A child's main: hosts a store, joins one group, and takes part in a sum of 10s whenever told their shape."""
    torch.set_num_threads(1)
    store = StoreHost(HOST)
    pipe.send(store.port)
    view, rank = pipe.recv()
    group = GlooGroup(view, rank, ENDLESS_S)
    group.form(store, "same", lambda: False, LONG_S)
    pipe.send("formed")
    while True:
        value = torch.full(pipe.recv(), 10.0, dtype=torch.float64)
        try:
            group.allreduce(value).wait()
            pipe.send(float(value[0]))
        except RuntimeError as error:
            group.cut()  # as a reducer does
            pipe.send(f"broken: {error}")


@contextmanager
def formed_with_children(children: int) -> Iterator[tuple[GlooGroup, list[Any], list[Any]]]:
    """A group of this process (rank 0) and some others; with it their processes and the pipes to them, by rank - 1."""
    with ExitStack() as stack:
        pairs = [stack.enter_context(child(serve_member)) for _ in range(children)]
        processes, pipes = [process for process, _ in pairs], [pipe for _, pipe in pairs]
        own = StoreHost(HOST)
        view = view_of([(HOST, own.port), *((HOST, hear(pipe)) for pipe in pipes)])
        for number, pipe in enumerate(pipes):
            pipe.send((view, number + 1))
        group = GlooGroup(view, 0, ENDLESS_S)
        group.form(own, "same", lambda: False, LONG_S)
        assert [hear(pipe) for pipe in pipes] == ["formed"] * children
        yield group, processes, pipes
        group.cut()
        group.close()
