"""Machines that do not come: whoever waits for them decides again, and everybody else only takes note."""

import pytest

from elastic.control import events as ev
from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.state import Phase
from elastic.control.values import Incident
from tests.pure.remedied import lose, running

MISSING = ev.NodesMissing(missing=2, reason="no capacity")
BACK = ev.NodesMissing(missing=0, reason="all are there")


ASKED: list[int] = []


def patient(incident: Incident, view: ClusterView) -> Remediation:
    """Waits for machines as long as they may come."""
    ASKED.append(incident.number)
    kind = Kind.SHRINK if view.nodes_missing else Kind.WAIT
    return Remediation(kind=kind, reason=f"{view.nodes_missing} are missing")


@pytest.fixture
def waiting(monkeypatch):
    """A run that has lost a replica, and whose policy waits."""
    monkeypatch.setattr("tests.pure.remedied.wants", lambda kind, **more: patient)
    ws = running(Kind.WAIT)
    lose(ws)
    assert ws.phase is Phase.WAITING
    return ws


def test_who_waits_for_machines_shrinks_when_they_do_not_come(waiting):
    waiting.feed(MISSING)
    assert waiting.phase is Phase.FORMING and waiting.members == ["w0", "w2"]
    assert waiting.state.incidents[-1].decision == "shrink: 2 are missing"


def test_the_news_that_all_are_there_ends_no_wait(waiting):
    before = len(ASKED)
    waiting.feed(BACK)
    assert waiting.phase is Phase.WAITING and len(ASKED) == before


def test_a_run_that_trains_takes_note():
    ws = running(Kind.SHRINK)
    ws.feed(MISSING)
    assert ws.phase is Phase.RUNNING and ws.state.care.nodes_missing == 2
    ws.feed(BACK)
    assert ws.state.care.nodes_missing == 0
