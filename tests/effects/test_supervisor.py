"""Effect. The supervisor refuses what nobody may send, says so once, and loses nothing over it."""

import logging

import pytest

from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.remediation import Kind, Remediation
from elastic.control.state import Phase
from elastic.policies import Ladder
from tests.pure.bare_controller import BareController


def test_nonsense_is_refused_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor(BareController((1, 2)).run().state, Ladder())
    before = supervisor.state()
    nonsense = [ev.WorkerDead(worker="w1", proof=None), "freeze", ev.Formed(worker="w1", generation=7), ev.RunStarted()]
    with caplog.at_level(logging.WARNING, logger="elastic"):
        for _ in range(3):
            commands, state = supervisor.observe([(0.0, one) for one in nonsense])  # type: ignore[misc]
    assert commands == () and state == before
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4 and all(line.startswith("refused: ") for line in told)


def test_what_comes_with_nonsense_is_heard() -> None:
    supervisor = Supervisor(BareController((1, 2)).run().state, Ladder())
    commands, state = supervisor.observe([(0.0, ev.RunStarted()), (0.0, ev.WorkerDead(worker="w1", proof="gone"))])
    assert state.phase is Phase.FREEZING and commands


def test_a_monitor_that_lies_about_its_node_kills_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It tells of a worker elsewhere that it hangs; the worker's own monitor sees it compute."""
    ws = BareController((1, 3)).run()
    for number in range(8):
        ws.stable(number)
    supervisor, now_s = Supervisor(ws.state, Ladder()), ws.now_s
    own = [ev.HostBeat(node=f"node-{name}", readings=(ws.reading(name, Flying.REDUCING),)) for name in ("w0", "w2")]
    busy = ev.HostBeat(node="node-w1", readings=(ws.reading("w1", Flying.COMPUTING),))
    lie = ev.HostBeat(node="node-w0", readings=(ws.reading("w1", Flying.COMPUTING, still_s=1000.0),))
    commands, state = supervisor.observe([(now_s, one) for one in (*own, busy, lie, ev.Tick())])
    assert commands == () and state.phase is Phase.RUNNING
    assert "speaks of w1, not on it" in caplog.text
    truth = ev.HostBeat(node="node-w1", readings=lie.readings)
    commands, state = supervisor.observe([(now_s, truth), (now_s, ev.Tick())])
    assert state.phase is Phase.FREEZING, "from the right one it would be believed"


def test_only_a_paused_run_is_resumed() -> None:
    ws = BareController((1, 2), policy=lambda incident, view: Remediation(kind=Kind.PAUSE, reason="by choice")).run()
    supervisor = Supervisor(ws.state, ws.policy)
    assert supervisor.ask(ev.ResumeAsked()) == "the run r is not paused"
    ws.die("w1")
    ws.answer("w0", 4)
    supervisor = Supervisor(ws.state, ws.policy)
    assert supervisor.ask(ev.ResumeAsked()) == ""
    _, state = supervisor.observe([(ws.now_s, one) for one in supervisor.asked()])
    assert state.phase is Phase.FORMING
