"""Effect. DTensors' random state begins without a collective: torch's private interface does what it is used for."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import _dispatch, _random

from elastic.train import dtensor_random


def test_a_tracker_is_made_that_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    mesh: Any = SimpleNamespace(device_type="cuda", get_coordinate=lambda: [0])
    monkeypatch.setattr(_random, "_rng_tracker", None)
    monkeypatch.setattr(_random, "is_rng_supported_mesh", lambda mesh: True)

    def make(mesh: Any, run_state_sync: bool) -> str:
        made.append((mesh, run_state_sync))
        return "it"

    monkeypatch.setattr(_random, "OffsetBasedRNGTracker", make)
    monkeypatch.setattr(torch, "manual_seed", made.append)
    dtensor_random.begin(mesh, 7)
    assert made == [(mesh, False), 7]
    assert _random._rng_tracker == "it" and _dispatch.random is _random, "an operation finds it there"
