"""Copies from a GPU: in which order they are asked for; and, on a machine that has one, what they hold."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from elastic.checkpoint.arena import Arena
from elastic.errors import StateError
from elastic.train.copies import Copies, DeviceCopies, pin
from tests.effects.helpers import LONG_S


class Event:
    """Has come when it is asked for the third time."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name, self.asked = log, name, 0

    def query(self) -> bool:
        self.log.append(f"the host asks for {self.name}")
        self.asked += 1
        return self.asked >= 3

    def elapsed_time(self, other: "Event") -> float:
        return 250.0

    def synchronize(self) -> None:
        self.log.append(f"the host waits for {self.name}")


class Stream:
    """Writes down what it is asked for."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Event) -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def record_event(self, event: object = None) -> Event:
        return Event(self.log, self.log[-1])


class Target:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def copy_(self, source: Any, non_blocking: bool) -> None:
        assert non_blocking, "the host would wait"
        self.log.append(self.name)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[DeviceCopies, list[str]]:
    """Copies of buffers now, and of parameters later; and what streams were asked for."""
    log: list[str] = []
    main, side = Stream(log, "main"), Stream(log, "side")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(stream))
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: None)
    pairs: Any = [(Target(log, "buffers"), None)], [(Target(log, "parameters"), None)]
    return DeviceCopies(*pairs, side), log


def test_the_device_waits_for_what_may_change_at_once_and_the_host_at_the_fence_for_the_rest(
    begun: tuple[DeviceCopies, list[str]],
) -> None:
    """So that it counts as a cost of the snapshot, and not as a step that hangs."""
    one, log = begun
    assert log == ["side waits for main", "buffers", "parameters", "main waits for buffers"]
    log.clear()
    one.fence(LONG_S)
    assert log == ["the host asks for parameters"] * 3 and one.took_s == 0.25
    log.clear()
    one.wait()
    assert log == ["the host waits for parameters"]


def test_a_copy_that_does_not_end_is_an_error_in_time(begun: tuple[DeviceCopies, list[str]]) -> None:
    with pytest.raises(StateError, match="from the GPU took longer than -1 s"):
        begun[0].fence(-1.0)


def test_memory_that_cannot_be_page_locked_is_told_of_and_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the error that CUDA's runtime keeps is not that of the next kernel."""
    launched: list[object] = []

    def launch(*_: object, device: str) -> None:
        launched.append(device)
        raise RuntimeError("CUDA error: out of memory")

    refusing = SimpleNamespace(cudaHostRegister=lambda address, nbytes, flags: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: refusing)
    monkeypatch.setattr(torch, "zeros", launch)
    array = np.zeros(8, dtype=np.uint8)
    assert not pin(SimpleNamespace(), array)
    assert launched == ["cuda"] and "8 bytes for snapshots cannot be page-locked (CUDA error 2)" in caplog.text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_what_changes_after_the_fence_is_not_what_was_copied(tmp_path: Path) -> None:
    """Kernels that follow the fence at once, without the host waiting for anything."""
    count = 1 << 24
    arena = Arena(Path("/dev/shm"), f"gpu-{tmp_path.name}", 1, "w0")
    slot = arena.begin(2 * 4 * count)
    assert slot is not None
    try:
        pin(slot, slot.payload)
        whole = torch.from_numpy(slot.payload)[: 8 * count].view(torch.float32)
        state, buffers = torch.ones(count, device="cuda"), torch.ones(count, device="cuda")
        copies = Copies([(whole[:count], buffers)], [(whole[count:], state)], torch.cuda.Stream())
        buffers.fill_(2)
        copies.fence(LONG_S)
        state.fill_(2)
        copies.wait(LONG_S)
        torch.cuda.synchronize()
        assert bool((whole == 1).all())
    finally:
        slot.remove()
        for one in arena._slots:
            one.remove()
