"""Effect. The supervisor refuses what nobody may send, says so once, and loses nothing over it."""

import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from elastic.actors import leased_supervisor
from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.packing import unpacked
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
    waiting = {name: ws.reading(name, Flying.REDUCING, still_s=1000.0) for name in ("w0", "w2")}
    own = [ev.HostBeat(node=f"node-{name}", readings=(reading,)) for name, reading in waiting.items()]
    busy = ev.HostBeat(node="node-w1", readings=(ws.reading("w1", Flying.COMPUTING),))
    lie = ev.HostBeat(node="node-w0", readings=(ws.reading("w1", Flying.COMPUTING, still_s=1000.0),))
    commands, state = supervisor.observe([(now_s, one) for one in (*own, busy, lie, ev.Tick())])
    assert commands == () and state.phase is Phase.RUNNING
    assert "speaks of w1, not on it" in caplog.text
    truth = ev.HostBeat(node="node-w1", readings=(ws.reading("w1", Flying.COMPUTING, still_s=1300.0),))
    commands, state = supervisor.observe([(now_s, truth), (now_s, ev.Tick())])
    assert state.phase is Phase.FREEZING, "from the right one it would be believed"


def test_who_keeps_a_copy_is_told_what_has_changed() -> None:
    """And its copy is the state, whatever was refused on the way."""
    ws = BareController((1, 2)).run()
    supervisor, copy = Supervisor(ws.state, Ladder()), ws.state
    told: list[list[Any]] = [[ev.WorkerDead(worker="w1", proof="gone"), "freeze"], [ev.Tick()], [ev.RunStarted()]]
    for events in told:
        answer, asked = supervisor.answer(pickle.dumps([(ws.now_s, one) for one in events]))
        assert not asked
        commands, change = unpacked(answer, copy.view)
        assert (not commands) == (events is not told[0])
        assert "settings" not in change.fields and "w0" not in change.entries.get("workers", {})
        copy = change.applied_to(copy)
        assert copy == supervisor.state()
    assert copy.phase is Phase.FREEZING


def test_an_answer_shows_that_the_driver_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(leased_supervisor, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    here = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(leased_supervisor, "ray", SimpleNamespace(get_runtime_context=lambda: here))
    state = BareController((1, 2), orphan_lease_s=1e9).run().state
    supervisor = leased_supervisor.LeasedSupervisor(state, Ladder(), ("elsewhere", 1))
    now_s[0] += 5.0
    assert supervisor.silent_s() == 5.0
    supervisor.answer(pickle.dumps([(0.0, ev.Tick())]))
    assert supervisor.silent_s() == 0.0


def test_a_run_is_paused_once() -> None:
    ws = BareController((1, 2)).run()
    supervisor = Supervisor(ws.state, ws.policy)
    assert supervisor.ask(ev.PauseAsked(for_s=-1.0)) == "for_s=-1 must be positive"
    assert supervisor.ask(ev.PauseAsked()) == ""
    commands, state = supervisor.observe([(ws.now_s, one) for one in supervisor.asked()])
    assert state.care.hold is not None and [type(one).__name__ for one in commands] == ["Pause"]
    assert supervisor.ask(ev.PauseAsked()) == "the run r is paused already"


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
