"""Effect. What is asked of a run from outside: again where a supervisor dies with it, and told when it was heard."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from elastic.actors import asking
from elastic.control import events as ev
from elastic.control.care import Hold
from elastic.control.state import Phase, Restoring, RunState
from elastic.control.tuning import Tuning
from elastic.control.values import Fork
from elastic.errors import ElasticError, SettingError
from elastic.settings import RunSettings
from tests.effects.helpers import LONG_S

TRAINS = replace(RunState(settings=RunSettings(run="r")), phase=Phase.RUNNING)
HELD = replace(TRAINS, phase=Phase.WAITING, care=replace(TRAINS.care, hold=Hold(reason="asked for", until_s=9e9)))
BACK = replace(TRAINS, forks=(Fork(incarnation=1, generation=1, step=4),))
TUNED = replace(TRAINS, tuning=Tuning(lr_factor=0.5), tuned=Tuning(lr_factor=0.5), tuned_from=7)


class Line:
    """The line to a run: for each wish that is asked, what comes of it, a refusal or the states that are seen then."""

    def __init__(self, state: RunState, *answers: str | list[RunState]) -> None:
        self.state, self.answers, self.asked = state, list(answers), []
        self.states: list[RunState] = []

    def __call__(self, run: str, method: str, deadline_s: float, *arguments: Any) -> Any:
        if method == "state":
            self.state = self.states.pop(0) if self.states else self.state
            return self.state
        self.asked += arguments
        answer = self.answers.pop(0)
        if isinstance(answer, list):
            self.states = answer
            return ""
        return answer


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[[Line], Line]:
    monkeypatch.setattr(asking, "connected", lambda address: contextlib.nullcontext())
    monkeypatch.setattr(asking, "_GAP_S", 0.05)
    monkeypatch.setattr(asking, "_POLL_S", 0.01)

    def put(line: Line) -> Line:
        monkeypatch.setattr(asking, "_call", line)
        return line

    return put


@pytest.mark.parametrize(
    ("before", "after", "ask", "wish"),
    [
        (TRAINS, BACK, lambda: asking.rewind("r", 4, timeout_s=LONG_S / 10), ev.RewindAsked(to_step=4)),
        (HELD, TRAINS, lambda: asking.resume("r", timeout_s=LONG_S / 10), ev.ResumeAsked()),
        (TRAINS, HELD, lambda: asking.pause("r", timeout_s=LONG_S / 10), ev.PauseAsked()),
        (
            TRAINS,
            TUNED,
            lambda: asking.tune("r", lr_factor=0.5, timeout_s=LONG_S / 10),
            ev.TuneAsked(tuning=Tuning(lr_factor=0.5)),
        ),
    ],
    ids=["rewind", "resume", "pause", "tune"],
)
def test_what_a_supervisor_died_with_is_asked_of_the_next_one(call, before, after, ask, wish):
    line = call(Line(before, [], [after]))
    assert ask() == {"RewindAsked": 4, "TuneAsked": 7}.get(type(wish).__name__)
    assert line.asked == [wish, wish] and line.state == after


def test_where_a_driver_died_with_a_rewind_the_next_one_that_goes_on_has_not_gone_back(call):
    """Its line of history begins with what live workers hold."""
    later = replace(TRAINS, forks=(Fork(incarnation=2, generation=3, step=9),))
    back = replace(later, forks=(*later.forks, Fork(incarnation=2, generation=4, step=3)))
    line = call(Line(TRAINS, [later], [back]))
    assert asking.rewind("r", 4, timeout_s=LONG_S / 10) == 3
    assert line.asked == [ev.RewindAsked(to_step=4)] * 2


@pytest.mark.parametrize("for_s", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_pause_that_is_no_time_is_refused_before_anybody_is_asked(call, for_s):
    """The driver would pass over it, and who has asked would wait."""
    line = call(Line(TRAINS))
    with pytest.raises(SettingError, match=r"for_s=.* must be a positive number of seconds"):
        asking.pause("r", for_s=for_s)
    assert line.asked == []


def test_a_refusal_is_an_error(call):
    line = call(Line(TRAINS, "the run r is not paused"))
    with pytest.raises(ElasticError, match="^the run r is not paused$"):
        asking.resume("r")
    assert len(line.asked) == 1


def test_who_asks_again_is_not_refused_because_it_was_heard_after_all(call):
    """The driver has taken it between the look and the question."""
    restored = replace(TRAINS, restore=Restoring(at_most=4))
    line = call(Line(TRAINS, [], "the run r is being restored already: ask again when it trains"))

    def late(run: str, method: str, deadline_s: float, *arguments: Any) -> Any:
        answer = line(run, method, deadline_s, *arguments)
        if len(line.asked) == 2 and method == "ask":
            line.states = [restored, restored, BACK]
        return answer

    asking._call = late  # type: ignore[assignment] # the fixture puts the real one back
    assert asking.rewind("r", 4, timeout_s=LONG_S) == 4
    assert len(line.asked) == 2


def test_what_takes_too_long_is_told(call):
    call(Line(HELD, *[[]] * 100))
    with pytest.raises(ElasticError, match=r"r was told, and is paused still after timeout_s=0.2"):
        asking.resume("r", timeout_s=0.2)
    call(Line(TRAINS, [replace(TRAINS, looks_in_vain=1)]))
    with pytest.raises(ElasticError, match="the run r keeps no step at or before 4"):
        asking.rewind("r", 4)
    call(Line(TRAINS, *[[]] * 100))
    with pytest.raises(ElasticError, match=r"r has not gone back within timeout_s=0.2"):
        asking.rewind("r", 4, timeout_s=0.2)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("no such actor"), "no run 'r' trains on this cluster; these do: other"),
        (GetTimeoutError(), r"the supervisor of the run r does not answer \(GetTimeoutError\)"),
    ],
    ids=["there is none", "it is slow"],
)
def test_a_supervisor_that_is_slow_is_told_from_none(call, monkeypatch, error, sentence):
    def get_actor(*about: Any) -> Any:
        raise error

    call(Line(TRAINS))
    monkeypatch.setattr(asking.ray, "get_actor", get_actor)
    monkeypatch.setattr(asking, "_runs", lambda: ["other"])
    with pytest.raises(ElasticError, match=sentence):
        asking.run_dir("r")
