"""Copies from a GPU: in which order they are asked for; and, on a machine that has one, what they hold."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.checkpoint.arena import Arena
from elastic.train.copies import Copies, DeviceCopies, pin
from tests.effects.helpers import LONG_S


class Event:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

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

    def record_event(self) -> Event:
        return Event(self.log, self.log[-1])


class Target:
    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def copy_(self, source: Any, non_blocking: bool) -> None:
        assert non_blocking, "the host would wait"
        self.log.append(self.name)


def test_the_device_waits_and_the_host_only_for_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    main, side = Stream(log, "main"), Stream(log, "side")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext(stream))
    pairs: Any = [(Target(log, "buffers"), None)], [(Target(log, "parameters"), None)]
    one = DeviceCopies(*pairs, side)
    assert log == ["side waits for main", "buffers", "parameters", "main waits for buffers"]
    log.clear()
    one.fence()
    assert log == ["main waits for parameters"]
    log.clear()
    one.wait()
    assert log == ["the host waits for parameters"]


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
