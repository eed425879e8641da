"""What follows when a reduction shows whose state is wrong: a fence, never a donor; without a majority, the end."""

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.state import Phase, Standing
from elastic.control.values import IncidentClass
from tests.pure.bare_controller import BareController


def found(ws: BareController, by: str, *culprits: str, generation: int = 0) -> tuple[cmd.Command, ...]:
    at = generation or ws.generation
    return ws.feed(ev.CorruptionFound(worker=by, generation=at, culprits=culprits, evidence=f"{culprits} outvoted"))


def test_the_outvoted_is_fenced_and_the_others_go_on_with_their_state():
    ws = BareController((1, 3)).run()
    ws.stable(3)
    found(ws, "w0", "w1")
    assert ws.addressees(cmd.Fence) == {"w1"}
    assert ws.addressees(cmd.Freeze) == {"w0", "w1", "w2"}
    ws.answer("w0", 4)
    ws.answer("w2", 4)
    assert ws.phase is Phase.FREEZING  # w1 may still apply
    ws.die("w1")
    assert ws.members == ["w0", "w2"]
    (incident,) = ws.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.SILENT_CORRUPTION, ("w1",))


def test_its_own_answer_makes_it_no_donor():
    """It may answer before it is killed, and may not know that it is the one."""
    ws = BareController((1, 3)).run()
    found(ws, "w0", "w1")
    for worker in ("w1", "w0", "w2"):
        ws.answer(worker, 4, healed=True)
    assert ws.members == ["w0", "w2"]
    assert ws.standing("w1") is Standing.SUSPECT


def test_a_replacement_is_started_and_healed_by_the_majority():
    ws = BareController(3).run()
    found(ws, "w2", "w1")
    ws.answer("w0", 4)
    ws.answer("w2", 4)
    ws.die("w1")
    assert ws.phase is Phase.WAITING
    ws.join("w3")
    assert ws.members == ["w0", "w2", "w3"]
    assert ws.names(ws.view.donors) == ["w0", "w2"] and ws.names(ws.view.behind) == ["w3"]


def test_all_members_tell_and_one_incident_follows():
    ws = BareController((1, 3)).run()
    for by in ("w0", "w1", "w2"):
        found(ws, by, "w1")
    assert len(ws.state.incidents) == 1
    assert len(ws.state.incidents[0].evidence) == 1


def test_it_is_fenced_too_if_something_else_was_noticed_first():
    ws = BareController((1, 3)).run()
    ws.break_("w2")
    assert ws.phase is Phase.FREEZING
    ws.answer("w1", 4)
    found(ws, "w0", "w1")
    assert ws.addressees(cmd.Fence) == {"w1"}
    ws.answer("w0", 4)
    ws.answer("w2", 4)
    assert ws.members == ["w0", "w2"]
    assert ws.state.incidents[0].kind is IncidentClass.SILENT_CORRUPTION


def test_all_stop_at_once_if_they_were_stopping_at_the_end_of_a_step():
    ws = BareController((1, 3)).run()
    ws.answer("w2", 4)
    assert ws.state.planned
    found(ws, "w0", "w1")
    assert not ws.state.planned
    assert ws.addressees(cmd.Freeze) == {"w0"}


def test_a_donor_outvoted_while_healing_is_fenced():
    ws = BareController((1, 3)).run()
    ws.stable(3)
    ws.break_("w0")
    for worker, number in (("w0", 4), ("w1", 4), ("w2", 3)):
        ws.answer(worker, number)
    assert ws.phase is Phase.FORMING
    found(ws, "w2", "w1")
    assert ws.addressees(cmd.Fence) == {"w1"}
    assert ws.phase is Phase.FREEZING
    ws.answer("w0", 4)
    ws.answer("w2", 3)
    ws.die("w1")
    assert ws.members == ["w0", "w2"] and ws.names(ws.view.donors) == ["w0"]


def test_news_of_an_older_generation_are_told_again_by_its_retry():
    ws = BareController((1, 3)).run()
    ws.break_("w0")
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 4)
    assert ws.is_unchanged_by(
        ev.CorruptionFound(worker="w0", generation=1, culprits=("w1",), evidence="outvoted"),
        ev.CorruptionFound(worker="w0", generation=1, culprits=(), evidence="a tie"),
    )


def test_without_a_majority_the_run_ends_and_says_so():
    ws = BareController(2).run()
    ws.feed(ev.CorruptionFound(worker="w0", generation=1, culprits=(), evidence="1 on w0, 2 on w1"))
    assert ws.phase is Phase.ENDED
    assert ws.state.outcome.ending is Ending.DIVERGED
    assert ws.state.outcome.message == "1 on w0, 2 on w1"
