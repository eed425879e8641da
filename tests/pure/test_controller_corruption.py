"""What follows when a reduction shows whose state is wrong: a fence, never a donor; without a majority, a step back."""

from dataclasses import replace

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.state import Phase, Standing
from elastic.control.values import IncidentClass
from elastic.settings import Checkpoint
from tests.pure.bare_controller import BareController, commit, report


def found(ws: BareController, by: str, *culprits: str, evidence: str = "") -> tuple[cmd.Command, ...]:
    why = evidence or f"{culprits} outvoted"
    return ws.feed(ev.CorruptionFound(worker=by, generation=ws.generation, culprits=culprits, evidence=why))


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


def test_the_outvoted_tells_so_itself_where_the_driver_that_knew_of_it_is_gone():
    ws = BareController((1, 3)).run()
    ws.break_("w0")
    ws.answer("w0", 4)
    told = {"generation": ws.generation, "commit": commit(4), "healed": False, "outvoted": True}
    ws.feed(ev.FreezeAnswered(worker="w1", **told))
    assert ws.addressees(cmd.Fence) == {"w1"}
    ws.feed(ev.FreezeAnswered(worker="w1", **told))
    assert ws.given(cmd.Fence) == [], "once"
    ws.answer("w2", 4)
    ws.die("w1")
    assert ws.members == ["w0", "w2"]
    assert [(one.kind, one.culprits) for one in ws.state.incidents if one.kind is IncidentClass.SILENT_CORRUPTION] == [
        (IncidentClass.SILENT_CORRUPTION, ("w1",))
    ]


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


EVIDENCE = "1 on w0, 2 on w1"


def tie(ws: BareController) -> tuple[cmd.Command, ...]:
    """Both replicas tell that nobody can say whose bits are right."""
    given = found(ws, "w0", evidence=EVIDENCE)
    found(ws, "w1", evidence=EVIDENCE)
    return given


def voted(ws: BareController, number: int) -> None:
    """Step `number` is stable, and has come with a vote about the state before it."""
    told = replace(report(number, ws.generation), voted=True)
    ws.feed(ev.StepStable(worker="w0", report=told))


def kept(*, votes: int) -> BareController:
    """Two replicas with checkpoints, steps up to `votes` stable, a vote with each."""
    ws = BareController(2, checkpoint=Checkpoint())
    ws.start()
    ws.feed(ev.RestoreFound(commit=None, reason="nothing was saved"))
    ws.join("w0", "w1")
    ws.form()
    for number in range(votes + 1):
        voted(ws, number)
    return ws


def go_back(ws: BareController, to: int) -> None:
    """Both stop, load step `to`, and form."""
    for worker in ("w0", "w1"):
        ws.answer(worker, 6)
    ws.feed(ev.RestoreFound(commit=commit(to), reason="newest"))
    for worker in ("w0", "w1"):
        ws.feed(ev.Restored(worker=worker, commit=commit(to), seconds=1.0, nbytes=1, places=(), retries=0))
    ws.form()


def test_without_a_majority_and_without_checkpoints_the_run_ends_and_says_so():
    ws = BareController(2).run()
    voted(ws, 4)
    tie(ws)
    assert ws.phase is Phase.ENDED
    assert ws.state.outcome.ending is Ending.DIVERGED
    assert ws.state.outcome.message == f"{EVIDENCE}; fit(checkpoint=...) would keep a step to go back to"


def test_without_a_majority_all_go_back_to_a_step_on_which_they_agreed():
    ws = kept(votes=5)
    given = tie(ws)
    (find,) = [command for command in given if isinstance(command, cmd.FindRestore)]
    assert find.at_most == 4
    assert ws.phase is Phase.FREEZING and not [command for command in given if isinstance(command, cmd.Fence)]
    go_back(ws, 3)
    assert ws.phase is Phase.RUNNING and ws.members == ["w0", "w1"]
    assert ws.view.restored and ws.view.resume == commit(3)
    assert (ws.state.verified, ws.state.published) == (3, 3)
    (incident,) = ws.state.incidents
    assert (incident.kind, incident.culprits) == (IncidentClass.SILENT_CORRUPTION, ())


def test_without_a_majority_before_the_first_vote_that_agreed_the_run_ends():
    ws = kept(votes=-1)
    ws.stable(0)
    tie(ws)
    assert ws.state.outcome.ending is Ending.DIVERGED
    assert "no vote had verified" in ws.state.outcome.message


def test_without_a_majority_and_a_step_to_go_back_to_the_run_ends():
    ws = kept(votes=5)
    tie(ws)
    ws.feed(ev.RestoreFound(commit=None, reason="no tier holds one"))
    assert ws.state.outcome.ending is Ending.DIVERGED
    assert EVIDENCE in ws.state.outcome.message and "up to 4" in ws.state.outcome.message
    assert "no tier holds one" in ws.state.outcome.message


def test_a_tie_that_comes_again_ends_the_run_and_one_after_progress_does_not():
    ws = kept(votes=5)
    tie(ws)
    go_back(ws, 3)
    for number in (4, 5):
        voted(ws, number)
    tie(ws)
    assert ws.state.outcome.ending is Ending.DIVERGED and "it has happened again" in ws.state.outcome.message
    ws = kept(votes=5)
    tie(ws)
    go_back(ws, 3)
    for number in (4, 5, 6, 7):
        voted(ws, number)
    tie(ws)
    assert ws.phase is Phase.FREEZING and ws.state.restore.at_most == 6


def test_who_was_wrong_is_fenced_once_the_steps_were_done_again():
    ws = kept(votes=5)
    tie(ws)
    go_back(ws, 3)
    found(ws, "w0", "w1")
    assert ws.addressees(cmd.Fence) == {"w1"} and ws.phase is Phase.FREEZING


def test_what_an_earlier_look_has_found_is_no_answer_to_a_later_one():
    """Somebody wanted to go back, and before that was found replicas held different bits: that step may be bad, too."""
    ws = kept(votes=5)
    ws.feed(ev.StepStable(worker="w0", report=report(6, ws.generation)))
    ws.feed(ev.RewindAsked(to_step=6))
    (first,) = ws.given(cmd.FindRestore)
    (second,) = [command for command in tie(ws) if isinstance(command, cmd.FindRestore)]
    assert (first.at_most, second.at_most) == (6, 4)
    ws.feed(ev.RestoreFound(commit=commit(6), number=first.number))
    assert ws.state.restore.commit is None
    ws.feed(ev.RestoreFound(commit=None, error="the store is silent", number=first.number))
    assert ws.state.outcome is None
    ws.feed(ev.RestoreFound(commit=commit(3), number=second.number))
    assert ws.state.restore.commit == commit(3)
