"""Effect. Staged state to the bit: any tensor, its checksums, gaps, and slots that grow."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elastic.checkpoint.arena import Arena
from elastic.train import copies, snapshot, tree
from elastic.train.copies import Copies, HostCopies
from elastic.train.slot_layout import RunningSums
from tests.effects import shards
from tests.effects.book import RUN, Book, staged
from tests.effects.helpers import LONG_S
from tests.effects.idiom import Training, trained
from tests.effects.sealed import digest_of, flat_of, state_of
from tests.effects.solo import Solo


@pytest.fixture(autouse=True)
def large(monkeypatch: Any) -> None:
    """State is copied beside the training, as if there were much of it."""
    monkeypatch.setattr(copies, "AT_ONCE_BYTES", 0)


@pytest.mark.parametrize(("elements", "is_at_once"), [(16, True), (17, False)])
def test_what_is_little_is_copied_at_once(elements: int, is_at_once: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(copies, "AT_ONCE_BYTES", 64)
    work = HostCopies._work

    def by_whom(self: HostCopies, *sums: Any) -> None:
        if threading.current_thread().name != "elastic-copies":
            work(self, *sums)

    monkeypatch.setattr(HostCopies, "_work", by_whom)
    target, source = torch.zeros(elements), torch.ones(elements)
    made = HostCopies([(target[:8], source[:8]), (target[8:], source[8:])])
    assert torch.equal(target, source) is is_at_once
    made.finish(LONG_S)
    assert torch.equal(target, source)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2, 3, 4, 5)])
def test_any_tensor_is_copied_to_the_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source = torch.randn(shape).to(dtype)
    one = torch.empty(shape, dtype=dtype)
    Copies([], [(one, source)]).wait(LONG_S)
    assert torch.equal(one, source)


@pytest.mark.parametrize(
    "make", [lambda t: t, lambda t: t.t(), lambda t: t[::2]], ids=["plain", "transposed", "strided"]
)
def test_a_large_tensor_is_copied_in_pieces_whatever_its_strides(make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(copies, "PIECE_BYTES", 1000)
    source = make(torch.randn(64, 64))
    target = torch.empty(source.shape)
    pieces = copies._pieces(target, source)
    assert (len(pieces) > 10) == source.is_contiguous()
    Copies([], [(target, source)]).wait(LONG_S)
    assert torch.equal(target, source)


@pytest.mark.parametrize("stop_after", [0, 1, 7, 1000])
def test_c04_sums_that_are_taken_while_it_is_copied_are_those_of_the_bytes(stop_after: int, monkeypatch: Any) -> None:
    """Of tensors with gaps between them, some of which were there before, until somebody comes to the fence."""
    monkeypatch.setattr(copies, "PIECE_BYTES", 100)
    payload, chunk_bytes = np.zeros(4096, dtype=np.uint8), 256
    payload[1000:1500] = 7  # copied at the door
    whole, running = torch.from_numpy(payload), RunningSums(payload, chunk_bytes)
    pairs = [(whole[at : at + size], torch.full((size,), at % 251, dtype=torch.uint8)) for at, size in PARTS]
    monkeypatch.setattr(HostCopies, "_original", HostCopies._work, raising=False)
    monkeypatch.setattr(HostCopies, "_work", lambda self, *sums: None)
    one = HostCopies(pairs, running)
    monkeypatch.setattr(HostCopies, "_work", HostCopies.__dict__["_original"])
    reach, reached, taken = RunningSums.reach, list[int](), list[Any]()

    def reaching(self: RunningSums, end: int) -> None:
        reach(self, end)
        reached.append(end)
        if len(reached) == stop_after:  # as `finish` does, in a thread that is in the middle of its first piece now
            running.is_stopped = True
            taken.append(one._pieces.popleft())

    monkeypatch.setattr(RunningSums, "reach", reaching)
    if stop_after:
        one._work(running)
    for target, source in taken:
        target.copy_(source)
        one._left -= 1
    one.finish(LONG_S)
    assert reached == sorted(reached)
    of = manifest_of(len(payload), chunk_bytes)
    assert (len(running.done) > 3) == (stop_after == 1000)
    assert snapshot.sums(payload, of, running.done) == snapshot.sums(payload, of)


PARTS = [(0, 64), (64, 500), (640, 300), (1536, 1), (1600, 1200), (3000, 1000)]


def manifest_of(nbytes: int, chunk_bytes: int) -> Any:
    return shards.manifest(shards.key(1), np.zeros(nbytes, dtype=np.uint8), chunk_bytes)


def test_equal_states_are_equal_bytes_whatever_the_slot_has_held(tmp_path: Path) -> None:
    flat = tree.flatten({"a": torch.arange(5), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.zeros(0)})
    layout = snapshot.laid_out_as(flat, snapshot.Layout((), (), 0))
    arena = Arena(tmp_path, RUN, 1, "w0")
    held = []
    for dirt in (0, 255):
        slot = arena.begin(layout.nbytes)
        assert slot is not None
        slot.payload[:] = dirt
        snapshot.clear_gaps(slot.payload, layout)
        for target, source in zip(snapshot.targets(slot.payload, layout, flat.tensors), flat.tensors, strict=True):
            target.copy_(source)
        held.append(bytes(slot.payload[: layout.nbytes]))
    assert held[0] == held[1]
    assert layout.nbytes == 128
    assert snapshot.laid_out_as(flat, layout) is layout
    arena.close()


def test_a_state_that_grows_gets_larger_slots(book: Book) -> None:
    """An optimizer with more than two moments, which nobody could foresee."""

    class Growing(Training):
        def __init__(self, session: Any) -> None:
            super().__init__(session, nn.Linear(3, 2000).double())
            self.history: list[torch.Tensor] = []
            session.track(history=self)

        def state_dict(self) -> dict[str, Any]:
            return {"all": list(self.history)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.history = state["all"]

    def train_fn(session: Any) -> None:
        training = Growing(session)
        for step in training.steps():
            with step:
                book.note(step, training, "start")
                training.compute(step)
                training.apply(step)
                training.history.append(torch.full((20000,), float(step.index)))
            book.note(step, training, "after")

    ended = book.solo().run(train_fn)
    assert staged(ended) == [0, 1, 2, 3]
    assert book.sealed[0].commit.step == 3
    assert digest_of(book.source, book.sealed[0]) == book.digests[3]
    state = state_of(book.source, book.sealed[0])
    assert [float(one[0]) for one in state["history"]["all"]] == [0.0, 1.0, 2.0, 3.0]


def test_between_tensors_there_are_zeros_whatever_was_there_before(book: Book) -> None:
    """Two replicas whose slots have held other things seal equal bytes."""

    class Changing(Training):
        def __init__(self, session: Any) -> None:
            super().__init__(session)
            self.sizes = [40]
            session.track(changing=self)

        def state_dict(self) -> dict[str, Any]:
            return {"all": [torch.full((size,), 255, dtype=torch.uint8) for size in self.sizes]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.sizes = [len(one) for one in state["all"]]

    def train_fn(session: Any) -> None:
        training = Changing(session)
        for step in training.steps(8):
            with step:
                book.note(step, training, "start")
                training.compute(step)
                training.apply(step)
                training.sizes = [40, 40] if step.index > 4 else [128]

    book.solo().run(train_fn)
    newest = book.sealed[0]
    payload = book.source.read(newest.key, 0, newest.nbytes)
    inside = {n for entry in newest.entries for n in range(entry.begin, entry.begin + entry.nbytes)}
    gaps = [int(payload[n]) for n in range(newest.nbytes) if n not in inside]
    assert gaps
    assert set(gaps) == {0}


def test_what_is_sealed_can_be_installed(book: Book) -> None:
    """What a restore will do: the skeleton and tensors of a slot are a state."""
    ended = book.solo().run(trained(book.note))
    flat = flat_of(book.source, book.sealed[0])

    def train_fn(session: Any) -> list[torch.Tensor]:
        training = Training(session)
        session._replica.use(training.batches)
        session._replica.tracked.install(flat.skeleton, flat.tensors)
        return training.parameters

    fresh = Book(book.directory / "fresh")
    fresh.directory.mkdir()
    session_value = Solo(fresh.directory).run(lambda session: done_with(session, train_fn))
    torch.testing.assert_close(session_value.value, ended.value, rtol=0, atol=0)


def done_with(session: Any, act: Any) -> Any:
    """What `act` finds, and no training: one step is needed to end in good order."""
    value = act(session)
    batches = session._replica.batches
    for step in session.steps(batches, max_steps=1):
        with step:
            step.skip("it is only looked at")
    return value
