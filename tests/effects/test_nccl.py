"""Effect. A lane is cut as a gloo group is. Each test is played by a stand-in, and by NCCL where torch sees a GPU.

Real members are processes that share one GPU: told that they are on different hosts, NCCL takes them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.gpu_group import SHARED
from elastic.train.gloo import GlooGroup
from elastic.train.nccl import Lane, Nccl, warm_up
from elastic.train.reducer import Reducer
from tests.effects.helpers import HOST, LONG_S, Circle, Running, child, eventually, hear, in_threads
from tests.effects.nccl_standin import WRONG, Meeting, StandIn

SIZE = 3
MOMENT_S = 0.3
ELEMENTS = 1 << 16


class Member:
    """A lane and the last work that was started on it."""

    def __init__(self, nccl: Any, device: str) -> None:
        self.nccl, self.device = nccl, device
        self.lane = Lane(nccl, LONG_S)
        self.tensor, self.work = torch.empty(0), None

    def connect(self, store: Any, rank: int, size: int) -> None:
        self.lane.connect(store, rank, size)

    def renew(self) -> None:
        self.lane = Lane(self.nccl, LONG_S)

    def start(self, value: float) -> None:
        self.tensor = torch.full((ELEMENTS,), value, device=self.device)
        self.work = self.lane.allreduce(self.tensor)

    def wait(self, seconds: float) -> float:
        self.work.wait(timedelta(seconds=seconds))
        assert bool((self.tensor == self.tensor[0]).all())
        return float(self.tensor[0])

    def is_completed(self) -> bool:
        return self.work.is_completed()

    def cut(self) -> None:
        self.lane.cut()


def share_a_gpu(name: str) -> None:
    """Before NCCL is used in this process."""
    os.environ.update(SHARED, NCCL_HOSTID=name)


def serve(pipe: Any, number: int, port: int) -> None:
    """A child's main: does what it is asked for, and answers with (result, error); "connect" is done aside."""
    share_a_gpu(f"host{number}")
    member = Member(Nccl(torch.device("cuda")), "cuda")
    aside: Running | None = None
    while True:
        method, arguments = pipe.recv()
        try:
            if method == "connect":
                name, rank, size = arguments
                store = dist.PrefixStore(name, dist.TCPStore(HOST, port, is_master=False))
                aside = Running(lambda store=store, rank=rank, size=size: member.connect(store, rank, size))
                answer = None
            elif method == "connected":
                assert aside is not None
                answer = aside.result()
            else:
                answer = getattr(member, method)(*arguments)
            pipe.send((answer, ""))
        except Exception as error:
            pipe.send((None, f"{type(error).__name__}: {error}"))


class Crew:
    """Members, each told what to do by its number."""

    def __init__(self, stack: ExitStack, is_real: bool) -> None:
        self._pipes: list[Any] = []
        self._aside: dict[int, Running] = {}
        if is_real:
            self._store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
            for number in range(SIZE):
                self._pipes.append(stack.enter_context(child(serve, number, self._store.port))[1])
        else:
            meeting = Meeting()
            self._members = [Member(StandIn(meeting), "cpu") for _ in range(SIZE)]

    def connect(self, name: str, *numbers: int, size: int, first_rank: int = 0) -> None:
        """Begin to."""
        for rank, number in enumerate(numbers, first_rank):
            if self._pipes:
                self.ask(number, "connect", name, rank, size)
            else:
                member = self._members[number]
                self._aside[number] = Running(lambda one=member, rank=rank: one.connect(name, rank, size))

    def connected(self, *numbers: int) -> None:
        for number in numbers:
            self.ask(number, "connected") if self._pipes else self._aside[number].result()

    def ask(self, number: int, method: str, *arguments: Any) -> Any:
        if not self._pipes:
            return getattr(self._members[number], method)(*arguments)
        self._pipes[number].send((method, arguments))
        answer, error = hear(self._pipes[number])
        if error:
            raise RuntimeError(error)
        return answer

    def all(self, method: str, *numbers: int) -> list[Any]:
        return [self.ask(number, method) for number in numbers]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")


@pytest.fixture(params=["standin", pytest.param("nccl", marks=needs_gpu)])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with ExitStack() as stack:
        made = Crew(stack, is_real=request.param == "nccl")
        yield made
        for number in range(SIZE):
            made.ask(number, "cut")


def form(crew: Crew, name: str, *numbers: int) -> None:
    crew.connect(name, *numbers, size=len(numbers))
    crew.connected(*numbers)


def refused(act: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        act()
    return str(caught.value)


def test_sums_are_those_of_all_members(crew: Crew) -> None:
    form(crew, "first", 0, 1, 2)
    for round_ in range(3):
        for number in range(SIZE):
            crew.ask(number, "start", 10.0**number + round_)
        assert [crew.ask(number, "wait", LONG_S) for number in range(SIZE)] == [111.0 + 3 * round_] * SIZE


def test_what_was_aborted_completes_and_is_refused_all_the_same(crew: Crew) -> None:
    """It looks like any other sum, with wrong numbers in it."""
    form(crew, "first", 0, 1, 2)
    for number in (0, 1):
        crew.ask(number, "start", 1.0)
    assert "timed out" in refused(lambda: crew.ask(0, "wait", MOMENT_S))
    assert crew.all("is_completed", 0, 1) == [False, False]
    crew.all("cut", 0, 1)
    eventually(lambda: all(crew.all("is_completed", 0, 1)), "both have ended")
    for number in (0, 1):
        assert "aborted" in refused(lambda number=number: crew.ask(number, "wait", LONG_S))
        assert "aborted" in refused(lambda number=number: crew.ask(number, "start", 1.0))


def test_those_who_are_left_go_on_together(crew: Crew) -> None:
    form(crew, "first", 0, 1, 2)
    for number in (0, 1):
        crew.ask(number, "start", 1.0)
    crew.all("cut", 0, 1)
    crew.all("renew", 0, 1)
    form(crew, "second", 1, 0)
    for number in (0, 1):
        crew.ask(number, "start", 5.0 + number)
    assert [crew.ask(number, "wait", LONG_S) for number in (0, 1)] == [11.0, 11.0]


def test_a_lane_that_is_cut_while_it_connects_is_not_used(crew: Crew) -> None:
    """Nobody can end the wait for the others; whoever waits is left behind, and those who are there form anew."""
    crew.connect("first", 0, 1, size=SIZE)
    crew.all("cut", 0, 1)
    crew.all("renew", 0, 1)
    form(crew, "second", 0, 1)
    for number in (0, 1):
        crew.ask(number, "start", 2.0)
    assert [crew.ask(number, "wait", LONG_S) for number in (0, 1)] == [4.0, 4.0]


def test_whoever_was_cut_meanwhile_is_told_once_it_has_connected(crew: Crew) -> None:
    crew.connect("first", 0, 1, size=SIZE)
    crew.all("cut", 0, 1)
    crew.connect("first", 2, size=SIZE, first_rank=2)
    for number in (0, 1):
        assert "aborted" in refused(lambda number=number: crew.connected(number))


class Worker:
    """One of two whose gradients a lane sums, in two buckets; the word that follows goes by gloo."""

    def __init__(self, group: GlooGroup) -> None:
        self.group = group
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
        self.tail = torch.ones(3, dtype=torch.float64)
        self.reducer = Reducer(self.model, group.allreduce, lambda: True, group.cut, bucket_bytes=64)

    def compute(self) -> None:
        self.reducer.begin()
        self.reducer.last_backward()
        self.model(torch.ones(1, 4)).sum().backward()

    def finish(self) -> bool:
        return self.reducer.finish(self.tail)


@pytest.fixture
def pair() -> Iterator[list[Worker]]:
    circle, meeting = Circle(2), Meeting()
    view = circle.next_view()
    groups = [GlooGroup(view, rank, LONG_S, nccl=StandIn(meeting)) for rank in range(2)]
    in_threads(2, lambda rank: groups[rank].form(circle.stores[rank], "same", lambda: False, LONG_S))
    yield [Worker(group) for group in groups]
    for group in groups:
        group.cut()
        group.close()


def test_gradients_are_summed_by_a_lane(pair: list[Worker]) -> None:
    for one in pair:
        one.compute()
    own = [bucket.flat.clone() for bucket in pair[0].reducer.buckets]
    assert in_threads(2, lambda rank: pair[rank].finish()) == [True, True]
    for one in pair:
        assert one.tail.tolist() == [2.0] * 3
        assert [bucket.flat.numel() for bucket in one.reducer.buckets] == [16, 16]
    assert all(
        torch.equal(*(one.reducer.buckets[place].flat for one in pair)) and own[place].numel() == 16
        for place in range(2)
    )


def test_what_a_neighbours_abort_leaves_here_is_not_taken_for_a_sum(pair: list[Worker]) -> None:
    """It was told to stop before this one was: this one's lane is whole, and its works have completed."""
    quick, other = pair
    quick.compute()
    finishing = Running(quick.finish)
    flats = [bucket.flat for bucket in other.reducer.buckets]
    other.group.allreduce(flats[0])
    other.group.allreduce(other.tail).wait()
    eventually(lambda: quick.tail.tolist() == [2.0] * 3, "the tail is there")
    other.group.cut()
    assert finishing.result() is False
    assert quick.reducer.buckets[1].flat.tolist() == [WRONG] * 16, "the abort has left nothing"
    assert quick.reducer.error


def test_a_sum_to_which_somebody_never_comes_breaks_its_lane_in_the_end() -> None:
    meeting = Meeting()
    lanes = [Lane(StandIn(meeting), MOMENT_S) for _ in range(2)]
    in_threads(2, lambda rank: lanes[rank].connect("all", rank, 2))
    work = lanes[0].allreduce(torch.ones(2))
    assert "collective_timeout_s=0.3" in refused(lambda: work.wait(timedelta(seconds=LONG_S)))
    assert lanes[0].is_cut
    lanes[1].cut()


@needs_gpu
def test_nccl_is_loaded_before_others_wait_for_it() -> None:
    warm_up(Nccl(torch.device("cuda")), LONG_S)


def test_what_a_stream_waits_for_is_held_no_longer() -> None:
    """Hosts run many layers ahead of their device, and what these have said would pile up in its memory."""
    lane = Lane(SimpleNamespace(behind=lambda work: lambda: False), LONG_S)  # type: ignore[arg-type]
    work = lane.started(SimpleNamespace(wait=lambda: None), torch.zeros(1))
    assert lane._held == [work]
    work.pass_on()
    assert lane._held == []
