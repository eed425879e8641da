"""Effect. What every test of this folder needs: one thread of torch, and gloo devices that are made one at a time."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from elastic.train import gloo
from tests.effects.book import Book
from tests.effects.solo import Solo

LATE_NEWS_S = 20.0


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


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """A run of one worker that stages every step."""
    return Book(tmp_path)


@pytest.fixture
def solo(tmp_path: Path) -> Solo:
    """A run of one worker."""
    return Solo(tmp_path, blame_grace_s=0.05)


@pytest.fixture
def patient(tmp_path: Path) -> Solo:
    """For exceptions that come before the news of the broken generation."""
    return Solo(tmp_path, blame_grace_s=LATE_NEWS_S)
