"""Effect. `fit` is interrupted while the last step comes down: what memory holds is all there is of it."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastic import api
from elastic.actors.journal import Journal, Past
from elastic.control.outcome import Ending, Outcome
from elastic.control.schedules import Schedule
from elastic.policies import Ladder
from elastic.settings import RunSettings


class Ended:
    """Everything that a life is made of, once its training has ended; `done`: what was done with the nodes' memory."""

    def __init__(self, flushed: Any) -> None:
        self.done: dict[str, bool] = {}
        outcome = Outcome(ending=Ending.SUCCEEDED)
        self.driver = SimpleNamespace(
            run=lambda *_, **__: SimpleNamespace(outcome=outcome), tell_late=lambda: None, crash=lambda _: None
        )
        self.fleet = SimpleNamespace(
            shutdown=lambda keep_memory: self.done.update(shutdown=keep_memory), is_superseded=False
        )
        self.tiers = SimpleNamespace(
            start=lambda settings: None,
            flush=flushed,
            hand_over=lambda: self.done.update(handed_over=True),
            close=lambda keep: self.done.update(close=keep),
        )


def interrupted() -> bool:
    raise KeyboardInterrupt


def drive(
    monkeypatch: pytest.MonkeyPatch, folder: Path, ended: Ended, *, may_come_back: bool, fleet: Any = None
) -> None:
    quiet = SimpleNamespace(on_end=lambda: None, close=lambda: None)
    brain = SimpleNamespace(close=lambda: ended.done.update(brain=True))
    for name, made in {
        "_tiers": lambda *_: ended.tiers,
        "_number": lambda *_: (1, ()),
        "_copied_logs": lambda *_: lambda: None,
        "_copied": lambda *_: nullcontext(lambda: None),
        "RayBrain": lambda *_: brain,
        "Injector": lambda *_: nullcontext(),
        "RayMetrics": lambda *_: quiet,
        "Driver": lambda *_: ended.driver,
        "RayFleet": fleet or (lambda *_: ended.fleet),
        "machines_of": lambda *_: quiet,
        "crown": SimpleNamespace(begin=lambda *_: None),
        "digest_of": lambda *_: "",
        "_opening": lambda *_: None,
    }.items():
        monkeypatch.setattr(api, name, made)
    work = api.Work(lambda session: None, Ladder(), [], 0, Schedule())
    former: Any = SimpleNamespace(incarnation=0, hand_over=lambda *_: None)
    logs: Any = SimpleNamespace(heed=lambda _: False, incarnation=0)
    token: Any = None
    journal = Journal(folder)
    try:
        api._drive(work, RunSettings(run="r"), journal, logs, (), token, former, Past(), may_come_back=may_come_back)
    finally:
        journal.close()


@pytest.mark.parametrize("may_come_back", [True, False])
def test_who_interrupts_the_last_upload_leaves_what_memory_holds_if_another_life_may_want_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, may_come_back: bool
) -> None:
    ended = Ended(interrupted)
    with pytest.raises(KeyboardInterrupt):
        drive(monkeypatch, tmp_path, ended, may_come_back=may_come_back)
    assert ended.done == {"shutdown": may_come_back, "brain": True, "close": may_come_back}


@pytest.mark.parametrize("error", [TypeError("cannot pickle '_thread.lock' object"), KeyboardInterrupt()])
def test_a_run_that_cannot_be_sent_to_workers_leaves_no_supervisor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    def refuse(*_: Any) -> None:
        raise error

    ended = Ended(lambda: True)
    with pytest.raises(type(error)):
        drive(monkeypatch, tmp_path, ended, may_come_back=True, fleet=refuse)
    assert ended.done == {"brain": True, "close": True}, "what an earlier life has in memory stays"


@pytest.mark.parametrize("is_safe", [True, False])
def test_it_goes_once_the_last_step_is_safe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_safe: bool) -> None:
    ended = Ended(lambda: is_safe)
    drive(monkeypatch, tmp_path, ended, may_come_back=True)
    handed = {} if is_safe else {"handed_over": True}
    assert ended.done == {"shutdown": not is_safe, "brain": True, "close": not is_safe} | handed
