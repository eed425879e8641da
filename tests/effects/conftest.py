"""Effect. What every test of this folder needs: one thread of torch."""

from pathlib import Path

import pytest
import torch

from tests.effects.book import Book
from tests.effects.solo import Solo

LATE_NEWS_S = 20.0


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    torch.set_num_threads(1)


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
