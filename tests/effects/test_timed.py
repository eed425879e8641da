"""Effect. A policy that hangs is told of once, the ladder decides in its place, and nothing of it goes on running."""

import threading
import time

import pytest

from elastic.actors import timed
from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.policies import policy_of
from elastic.policies.table import incident_of, view_of
from tests.effects.helpers import LONG_S, eventually
from tests.pure.bare_controller import BareController

LOST, VIEW = incident_of(IncidentClass.WORKER_LOST), view_of(3, 1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Incidents of which a policy was asked; a short limit."""
    monkeypatch.setattr(timed, "ANSWER_S", 0.2)
    return []


class Loops:
    def __init__(self, asked: list[int]) -> None:
        self.asked = asked

    def event_policy(self, incident: Incident, view: ClusterView) -> Remediation:
        self.asked.append(incident.number)
        while True:
            pass


def sleeping(asked: list[int], over: threading.Event) -> Policy:
    def sleeps(incident: Incident, view: ClusterView) -> Remediation:
        asked.append(incident.number)
        over.wait(LONG_S)
        return Remediation(kind=Kind.GIVE_UP, reason="too late to be heard")

    return sleeps


class Hosted(BareController):
    """Its controller is that of a supervisor."""

    def __init__(self, policy: Policy) -> None:
        super().__init__((1, 3))
        self.supervisor = Supervisor(self.state, policy)

    def take(self, *events: ev.Event) -> tuple[Command, ...]:
        commands, self.state = self.supervisor.observe([(self.now_s, event) for event in events])
        return commands


def test_a_policy_that_loops_is_told_of_once_and_the_ladder_decides(asked, caplog) -> None:
    ws = Hosted(policy_of(Loops(asked))).run()
    ws.die("w2")
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    ws.form()
    ws.die("w1")
    ws.answer("w0", 5)
    assert asked == [0], "it is not asked again"
    why = "the policy Loops.event_policy did not answer within 0.2 s"
    assert [incident.decision for incident in ws.state.incidents] == [
        f"shrink: 1 lost, no spare, {left} survive ({why})" for left in (2, 1)
    ]
    (told,) = [line for line in caplog.messages if "policy" in line]
    assert told == f"{why}: it is not asked again, and the built-in ladder decides in its place"
    eventually(lambda: not running(), "the loop has ended, and leaves the processor to others")


def test_the_answer_of_a_policy_that_slept_too_long_is_not_heard(asked, caplog) -> None:
    over = threading.Event()
    policy = timed.Timed(policy_of(sleeping(asked, over)))
    assert policy(LOST, VIEW).kind is Kind.SWAP
    over.set()
    eventually(lambda: not running(), "its thread has ended")
    assert policy(LOST, VIEW).kind is Kind.SWAP and len(asked) == 1
    assert [message for message in caplog.messages if "sleeps did not answer within 0.2 s" in message]


def test_what_a_policy_raises_is_raised_where_it_is_asked() -> None:
    def raises(incident: Incident, view: ClusterView) -> Remediation:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        timed.Timed(raises)(LOST, VIEW)


def test_a_policy_is_not_blamed_for_a_stop_of_the_whole_process(asked, monkeypatch) -> None:
    """By the clock the first look lasts longer than a policy may take, as it does where a machine was suspended."""
    over, looks, wait = threading.Event(), [], timed.wait

    def stopped_once(answers: list, timeout: float):
        looks.append(timeout)
        if len(looks) == 1:
            time.sleep(2 * timed.ANSWER_S)
            return wait(answers, 0.0)
        over.set()
        return wait(answers, LONG_S)

    monkeypatch.setattr(timed, "wait", stopped_once)
    assert timed.Timed(sleeping(asked, over))(LOST, VIEW).reason == "too late to be heard"


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "elastic-policy"]
