"""Effect. The driver's side of the supervisor actor, without Ray: what it takes for the loss of one."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnschedulableError, GetTimeoutError

from elastic.actors import asking, brain, timed
from elastic.actors.supervisor import Supervisor
from elastic.actors.token import Token
from elastic.control import events as ev
from elastic.control.state import Phase, RunState
from elastic.control.tuning import Tuning
from elastic.errors import ElasticError
from elastic.policies import ClusterView, Incident, Ladder, Remediation, policy_of
from elastic.settings import RunSettings
from tests.effects.helpers import LONG_S


class Actors:
    """Stands in for Ray: supervisors in this process, of which the first ones fail as the test wants."""

    def __init__(self, *failures: Exception | None) -> None:
        self.failures, self.beside, self.killed = list(failures), [], 0
        self.policies: list[Any] = []
        self.supervisors: list[Supervisor] = []
        self.lost: Exception | None = None

    def start(self, token: Token, state: RunState, policy: Any, beside_driver: bool) -> tuple[Any, bool]:
        self.beside.append(beside_driver)
        failure = self.failures.pop(0) if self.failures else None
        self.policies.append(policy)
        self.lost = None
        supervisor = Supervisor(state, policy)
        self.supervisors.append(supervisor)

        def call(secret: str, method: str, *arguments: Any) -> Callable[[], Any]:
            def answer() -> Any:
                if failure is not None or self.lost is not None:
                    raise failure or self.lost  # type: ignore[misc]
                return getattr(supervisor, method)(*arguments)

            return answer

        return SimpleNamespace(call=SimpleNamespace(remote=call)), True

    def lose(self, failure: Exception) -> None:
        """The one that is there fails so from now on."""
        self.lost = failure

    def get(self, reference: Callable[[], Any], timeout: float) -> Any:
        return reference()

    def kill(self, actor: Any) -> None:
        self.killed += 1


def started(
    monkeypatch: pytest.MonkeyPatch, *failures: Exception | None, policy: Any = None
) -> tuple[brain.RayBrain, Actors]:
    actors = Actors(*failures)
    monkeypatch.setattr(brain, "ray", actors)
    monkeypatch.setattr(brain, "start_supervisor", actors.start)
    state, token = RunState(settings=RunSettings(run="r")), SimpleNamespace(secret="s")
    return brain.RayBrain(state, policy or Ladder(), token), actors  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "is_beside"),
    [(ActorDiedError(), False), (GetTimeoutError(), True), (ActorUnschedulableError("its node is dead"), True)],
    ids=["it died", "it does not answer", "its node died before it was there"],
)
def test_a_supervisor_that_is_lost_is_replaced_and_told_the_same(monkeypatch, failure, is_beside):
    ray_brain, actors = started(monkeypatch, failure)
    _, state = ray_brain.observe([(0.0, ev.RunStarted())])
    assert state.phase is Phase.STARTING and state.workers
    assert (actors.beside, actors.killed) == ([False, is_beside], 1)


def test_what_is_asked_of_the_supervisor_comes_with_its_next_answer_and_once(monkeypatch):
    ray_brain, actors = started(monkeypatch)
    ray_brain.observe([(0.0, ev.RunStarted())])
    assert ray_brain.asked() == []
    wish = ev.TuneAsked(tuning=Tuning(lr_factor=0.5))
    actors.supervisors[-1]._asked.append(wish)  # as `ask` does once it trains
    ray_brain.observe([(0.0, ev.Tick())])
    assert ray_brain.asked() == [wish] and ray_brain.asked() == []


def test_none_is_started_once_the_run_is_over(monkeypatch):
    """A turn may be under way still, which nobody waits for any more."""
    ray_brain, actors = started(monkeypatch)
    ray_brain.close()
    actors.lose(ActorDiedError())
    with pytest.raises(ActorDiedError):
        ray_brain.observe([(0.0, ev.Tick())])
    assert actors.beside == [False]


def test_too_many_in_a_row_end_the_run(monkeypatch):
    ray_brain, _ = started(monkeypatch, *[ActorUnschedulableError("its node is dead")] * 4)
    with pytest.raises(ElasticError, match="3 supervisors in a row ended, or did not answer within 30 s"):
        ray_brain.observe([(0.0, ev.RunStarted())])


def exits(incident: Incident, view: ClusterView) -> Remediation:
    """A policy that takes its process along, which nobody in that process can tell of."""
    raise AssertionError("it is not asked: its supervisor's end is played")


def test_where_supervisors_end_over_a_policy_the_ladder_decides_and_that_is_said(monkeypatch, caplog):
    ray_brain, actors = started(monkeypatch, policy=policy_of(exits))
    ray_brain.observe([(0.0, ev.RunStarted())])
    actors.failures = [ActorDiedError(), GetTimeoutError(), None]
    actors.lose(GetTimeoutError())
    _, state = ray_brain.observe([(0.0, ev.Tick())])
    assert state.phase is Phase.STARTING
    assert [isinstance(policy, Ladder) for policy in actors.policies] == [False, False, False, True]
    (told,) = [line for line in caplog.messages if "built-in ladder" in line]
    assert told == (
        "3 supervisors in a row ended, or did not answer within 30 s, over the same events: the built-in ladder "
        "decides from now on in the place of the policy exits"
    )


def test_where_they_end_over_the_ladder_too_the_run_ends(monkeypatch):
    ray_brain, actors = started(monkeypatch, policy=policy_of(exits))
    ray_brain.observe([(0.0, ev.RunStarted())])
    actors.failures = [GetTimeoutError()] * 5
    actors.lose(GetTimeoutError())
    with pytest.raises(ElasticError, match="3 supervisors in a row"):
        ray_brain.observe([(0.0, ev.Tick())])
    assert len(actors.policies) == 6


def test_a_policy_with_which_no_supervisor_ever_begins_is_told_of_at_once(monkeypatch):
    ray_brain, actors = started(monkeypatch, *[ActorDiedError()] * 3, policy=policy_of(exits))
    with pytest.raises(ElasticError, match="it must be picklable"):
        ray_brain.observe([(0.0, ev.RunStarted())])
    assert len(actors.policies) == 3


def test_a_policy_has_answered_before_a_supervisor_out_of_reach_is_given_up():
    assert timed.ANSWER_S < brain._FAR_ANSWER_S


def test_who_asks_from_outside_waits_for_the_next_one_too(monkeypatch):
    failures = [ActorUnschedulableError("its node is dead"), ActorDiedError()]

    def get(reference: Any, timeout: float) -> Any:
        if failures:
            raise failures.pop(0)
        return ("host", 1) if reference == "where" else "answer"

    where, call = SimpleNamespace(remote=lambda: "where"), SimpleNamespace(remote=lambda *_: "call")
    actor = SimpleNamespace(where=where, call=call)
    monkeypatch.setattr(asking, "ray", SimpleNamespace(get=get, get_actor=lambda *_: actor))
    monkeypatch.setattr(asking.token, "find", lambda *_: "secret")
    assert asking._call("r", "state", LONG_S + asking.time.monotonic()) == "answer"
