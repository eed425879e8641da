"""Effect. What every test of this folder needs: one thread of torch, and gloo devices that are made one at a time."""

import os
import threading
from collections.abc import Iterator

import pytest
import torch

from elastic.train import gloo

# torch's store asks for the name of every peer, for its log; where a name server drops questions, 5 s for each.
os.environ.setdefault("RES_OPTIONS", "attempts:0")


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_device_at_a_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device is known by the one new listener of its process, and here several members share a process."""
    lock, make = threading.Lock(), gloo._listening_device

    def make_alone(host: str):
        with lock:
            return make(host)

    monkeypatch.setattr(gloo, "_listening_device", make_alone)
    yield
