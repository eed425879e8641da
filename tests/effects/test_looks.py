"""Effect. Looks for a step to restore that overlap: one after the other, and each answer says to which it belongs."""

import threading
from pathlib import Path
from typing import Any

from elastic.actors.tiers import Tiers
from elastic.checkpoint.reach import Reach
from elastic.control import events as ev
from elastic.settings import Checkpoint
from tests.effects.helpers import ENDLESS_S, eventually

RUN = "night-1"


def test_a_look_that_comes_while_one_is_under_way_waits_for_it(tmp_path: Path, monkeypatch: Any) -> None:
    """Each leaves behind what it has found, and claimed. One that is not wanted any more is not begun."""
    told: list[Any] = []
    checkpoint = Checkpoint(memory=str(tmp_path / "memory"), persistent=str(tmp_path / "store"))
    tiers = Tiers(RUN, Reach(RUN, checkpoint), told.append, timeout_s=30.0)
    tiers.begin()
    under_way, may_end, looks = threading.Event(), threading.Event(), list[int]()
    choose = tiers._choose

    def slowly(at_most: int, without: Any) -> Any:
        looks.append(at_most)
        under_way.set()
        assert may_end.wait(ENDLESS_S)
        looks.append(at_most)
        return choose(at_most, without)

    monkeypatch.setattr(tiers, "_choose", slowly)
    tiers.find(1, 9, ())
    assert under_way.wait(ENDLESS_S)
    tiers.find(2, 8, ())
    tiers.find(3, 7, ())
    may_end.set()
    eventually(lambda: len(told) == 2, "both have answered")
    assert looks == [9, 9, 7, 7]
    assert told == [ev.RestoreFound(commit=None, reason="no step is whole", number=number) for number in (1, 3)]
    tiers.close(keep=False)
