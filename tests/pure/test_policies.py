"""Incidents from their first signal to the step that closes them, and the policies that decide them."""

import pytest

from elastic.control import events as ev
from elastic.control.care import Care
from elastic.control.outcome import Ending
from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.state import Phase
from elastic.control.values import Incident, IncidentClass
from elastic.policies import Ladder
from tests.pure.bare_controller import BareController, grown_to_two, report


def test_an_incident_from_its_signal_to_the_step_that_closes_it():
    ws = BareController((1, 2)).run()
    ws.stable(0)
    ws.feed(ev.WorkerDead(worker="w1", proof="killed"), after_s=5.0)
    opened_at_s = ws.now_s
    ws.answer("w0", 1)
    ws.form()
    ws.stable(2, after_s=3.0)
    (incident,) = ws.state.incidents
    assert (incident.opened_at_s, incident.resumed_at_s) == (opened_at_s, opened_at_s + 3.0)
    assert (incident.step, incident.culprits, incident.evidence) == (2, ("w1",), ("killed",))


@pytest.mark.parametrize(("off_s", "took_s"), [(3600.0, 2.0), (-3600.0, 0.0)])
def test_a_worker_whose_clock_is_an_hour_off_says_nothing_about_how_long_a_remedy_takes(off_s, took_s):
    ws = BareController((1, 2)).run()
    ws.stable(0)
    ws.die("w1")
    opened_at_s = ws.now_s
    ws.answer("w0", 1)
    ws.form()
    ws.now_s = opened_at_s + 2.0
    told = report(2, ws.generation, committed_at_s=ws.now_s + off_s)
    ws.feed(ev.StepStable(worker="w0", report=told))
    (incident,) = ws.state.incidents
    assert incident.resumed_at_s == opened_at_s + took_s
    assert list(ws.state.care.recovery_s.values()) == [(took_s,)]


def test_a_step_of_the_old_generation_does_not_close_an_incident():
    ws = BareController((1, 2)).run()
    ws.die("w1")
    ws.answer("w0", 1)
    ws.form()
    ws.feed(ev.StepStable(worker="w0", report=report(1, generation=1)))
    assert ws.state.incidents[0].resumed_at_s is None


def fail_once(ws: BareController, number: int) -> None:
    """One incident without a loss, and the next generation."""
    ws.break_("w0")
    ws.answer("w0", number)
    if ws.phase is Phase.FORMING:
        ws.form()


def test_incidents_without_progress_end_the_run():
    ws = BareController(1, max_in_job_restarts=3).run()
    for _ in range(3):
        fail_once(ws, 1)
        assert ws.phase is Phase.RUNNING
    fail_once(ws, 1)
    assert ws.state.outcome.ending is Ending.NO_PROGRESS
    assert "Limits.max_in_job_restarts=3" in ws.state.outcome.message


def test_a_stable_step_is_progress():
    ws = BareController(1, max_in_job_restarts=1).run()
    for number in range(5):
        fail_once(ws, number)
        ws.stable(number)
    assert ws.phase is Phase.RUNNING


def test_a_policy_of_the_users_sees_the_incident_and_decides():
    seen: list[tuple[Incident, ClusterView]] = []

    def always_shrink(incident: Incident, view: ClusterView) -> Remediation:
        seen.append((incident, view))
        return Remediation(kind=Kind.SHRINK, reason="spares are dear")

    ws = BareController((1, 3), spares=1, policy=always_shrink).run()
    ws.stable(0)
    ws.die("w1")
    ws.answer("w0", 4)
    ws.answer("w2", 4)
    assert ws.members == ["w0", "w2"]
    assert ws.state.incidents[0].decision == "shrink: spares are dear"
    ((incident, view),) = seen
    assert incident.culprits == ("w1",)
    assert (view.survivors, view.spares, view.minimum, view.maximum) == (2, 1, 1, 3)
    assert (view.incidents_without_progress, view.allowed_without_progress) == (1, 10)


def test_a_policy_may_give_up():
    ws = BareController((1, 2), policy=lambda incident, view: Remediation(kind=Kind.GIVE_UP, reason="too dear")).run()
    ws.die("w1")
    ws.answer("w0", 4)
    assert ws.state.outcome.ending is Ending.NO_PROGRESS
    assert ws.state.outcome.message == "the policy gave up: too dear; the last: pid 1 is gone"


def test_a_policy_is_not_asked_about_growth():
    ws = grown_to_two()
    ws.policy = lambda incident, view: pytest.fail("there was no incident")
    ws.answer("w0", 5)
    ws.answer("w1", 5)
    assert len(ws.members) == 3


LOST = Incident(number=0, kind=IncidentClass.WORKER_LOST, opened_at_s=0.0, culprits=("w1",))
BROKEN = Incident(number=0, kind=IncidentClass.COLLECTIVE_BROKEN, opened_at_s=0.0)


@pytest.mark.parametrize(
    ("ladder", "incident", "survivors", "spares", "in_a_row", "kind"),
    [
        (Ladder(), BROKEN, 4, 2, 1, Kind.CONTINUE),
        (Ladder(), LOST, 3, 1, 1, Kind.SWAP),
        (Ladder(), LOST, 1, 1, 1, Kind.SWAP),
        (Ladder(), LOST, 3, 0, 1, Kind.SHRINK),
        (Ladder(), LOST, 2, 0, 1, Kind.SHRINK),
        (Ladder(), LOST, 1, 0, 1, Kind.WAIT),
        (Ladder(swap=False), LOST, 3, 1, 1, Kind.SHRINK),
        (Ladder(swap=False), LOST, 1, 1, 1, Kind.SWAP),
        (Ladder(), LOST, 3, 1, 5, Kind.SWAP),
        (Ladder(), LOST, 3, 1, 6, Kind.GIVE_UP),
        (Ladder(), BROKEN, 4, 2, 6, Kind.GIVE_UP),
    ],
    ids=[
        "nobody lost",
        "a spare is ready",
        "a spare for the minimum",
        "no spare",
        "just the minimum",
        "below the minimum",
        "shrink rather than swap",
        "swap for the minimum all the same",
        "the last allowed",
        "no progress",
        "no progress without a loss",
    ],
)
def test_the_ladder(ladder, incident, survivors, spares, in_a_row, kind):
    view = ClusterView(
        survivors=survivors,
        spares=spares,
        minimum=2,
        maximum=4,
        incidents_without_progress=in_a_row,
        allowed_without_progress=5,
    )
    remediation = ladder(incident, view)
    assert remediation.kind is kind
    assert remediation.reason


def test_an_incident_of_which_nothing_was_decided_says_nothing_of_how_long_a_remedy_takes():
    lost = Incident(number=3, kind=IncidentClass.WORKER_LOST, opened_at_s=1.0)
    assert Care().recovered(lost, 5.0) == Care()
    care = Care(mending={3: Kind.SWAP}).recovered(lost, 5.0)
    assert care.recovery_s == {Kind.SWAP: (5.0,)} and care.mending == {}
