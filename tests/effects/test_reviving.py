"""Effect. A worker that is to load a checkpoint: what it held is void once there is something else, and not before."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from elastic.control.events import RestoreRefused
from elastic.control.values import CommitId
from elastic.errors import RefusedError
from elastic.train import reviving

HELD, WANTED = (CommitId(incarnation=1, generation=1, attempt=1, step=step, lineage=f"l{step}") for step in (9, 3))


def revived(monkeypatch: pytest.MonkeyPatch, fetched: Any) -> list[Any]:
    """What was done, in order."""
    done: list[Any] = []
    link = SimpleNamespace(
        state=SimpleNamespace(commit=HELD, healed=True),
        answer_restore=done.append,
        restored=lambda commit, install, report: done.append(commit),
    )
    replica = SimpleNamespace(
        forget=lambda: done.append("forget"),
        page=SimpleNamespace(during=lambda *what: nullcontext()),
        snapshots=SimpleNamespace(fence=lambda: done.append("fence")),
    )
    monkeypatch.setattr(reviving, "_fetched", fetched)
    monkeypatch.setattr(reviving, "_told", lambda worker, report: report)
    reviving.revive(replica, SimpleNamespace(link=link, worker="w0"), WANTED)
    return done


def test_what_it_held_is_void_once_it_has_something_else(monkeypatch):
    fetched = SimpleNamespace(install=lambda: None, report=None)
    assert revived(monkeypatch, lambda *about: fetched) == ["forget", "fence", WANTED]


def test_where_nothing_can_be_had_its_steps_are_told_yet(monkeypatch):
    def refuses(*about: Any) -> Any:
        raise RefusedError("nobody has it", shard=None)

    (answer,) = revived(monkeypatch, refuses)
    assert isinstance(answer, RestoreRefused) and answer.kept == HELD and "nobody has it" in answer.reason
