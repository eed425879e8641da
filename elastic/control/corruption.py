"""Pure. What follows where replicas of one commit hold different bits.

Who is outvoted is fenced, never healed in place: what computes wrong today does so tomorrow. Where no more than half
agree, nobody can say whose bits are right: all go back to a step on which they had agreed, and do the steps since then
again; the vote that has ended in a tie then shows who was wrong (`train/watch.py`).
"""

from dataclasses import replace

from elastic.control import events as ev
from elastic.control.forming import freeze, harden
from elastic.control.outcome import Ending
from elastic.control.restoring import NEWEST, look_for_state
from elastic.control.state import OVER, Phase
from elastic.control.turn import Turn
from elastic.control.values import IncidentClass, StepReport


def note_vote(turn: Turn, report: StepReport) -> None:
    """A stable step has come with a vote about the state before it."""
    if report.voted:
        turn.change(verified=max(turn.state.verified, report.commit.step - 1))


def corrupt(turn: Turn, event: ev.CorruptionFound) -> None:
    """All members tell; the first counts.

    One of an older generation needs no answer: the retry of its step finds the same again.
    """
    if event.generation != turn.state.generation:
        return
    if not event.culprits and not _go_back(turn, event.evidence):
        return
    for name in event.culprits:
        condemn(turn, name, event.evidence)
    if turn.state.phase in (Phase.RUNNING, Phase.FORMING):
        freeze(turn, event.evidence)
    elif turn.state.phase is Phase.FREEZING:
        harden(turn, event.evidence)


def condemn(turn: Turn, name: str, evidence: str) -> None:
    """A member was outvoted: it may only die, whoever tells of it, and though the driver that knew of it is gone."""
    if turn.is_member(name) and turn.worker(name).standing not in OVER and not turn.worker(name).fenced:
        turn.signal(IncidentClass.SILENT_CORRUPTION, evidence, culprit=name)
        turn.fence(name, evidence)


def _go_back(turn: Turn, evidence: str) -> bool:
    """Look for a step that was verified; False if the run ends instead."""
    restore, verified = turn.state.restore or NEWEST, turn.state.verified
    if restore.needed_for:
        return True  # another member has told of it
    why_not = ""
    if turn.settings.checkpoint is None:
        why_not = "fit(checkpoint=...) would keep a step to go back to"
    elif verified < 0:
        why_not = "no vote had verified an earlier step to go back to"
    elif verified <= turn.state.disputed_from:
        why_not = f"the run has gone back to step {verified} for that once, and it has happened again"
    if why_not:
        turn.fail(Ending.DIVERGED, f"{evidence}; {why_not}")
        return False
    turn.signal(IncidentClass.SILENT_CORRUPTION, evidence)
    turn.change(disputed_from=verified)
    at_most = verified if restore.at_most is None else min(verified, restore.at_most)
    look_for_state(turn, evidence, replace(restore, at_most=at_most, needed_for=evidence))
    return True
