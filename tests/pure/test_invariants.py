"""Each law of the controller can be broken, and is then named: a law that holds of everything says nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from elastic.control import events as ev
from elastic.control.commands import Command, Dismiss, EndRun, Form, Freeze, Go
from elastic.control.invariants import check, check_step
from elastic.control.outcome import Ending, Outcome
from elastic.control.state import Phase, Restoring, RunState, Standing
from elastic.control.values import Fork, Incident, IncidentClass
from tests.pure.bare_controller import BareController, commit

OUTCOME = Outcome(ending=Ending.STOPPED, message="enough")


def running() -> RunState:
    """Two replicas that train, step 4 of them told."""
    ws = BareController(2).run()
    for number in range(5):
        ws.stable(number)
    state = ws.state
    assert check(state) == []
    return state


def frozen() -> RunState:
    """A freeze that nobody has answered."""
    ws = BareController(2).run()
    for number in range(5):
        ws.stable(number)
    ws.break_("w0")
    assert ws.phase is Phase.FREEZING
    return ws.state


def worker(state: RunState, who: str, /, **changes: Any) -> RunState:
    changed = replace(state.workers[who], **changes)
    return replace(state, workers={**state.workers, who: changed})


def view(state: RunState, **changes: Any) -> RunState:
    assert state.view is not None
    return replace(state, view=replace(state.view, **changes))


def incident(number: int, **changes: Any) -> Incident:
    return Incident(number=number, kind=IncidentClass.WORKER_LOST, opened_at_s=0.0, **changes)


def crowded(state: RunState) -> RunState:
    more = {f"x{number}": replace(state.workers["w0"], name=f"x{number}", gang=9 + number) for number in range(3)}
    return replace(state, workers={**state.workers, **more})


STATES: dict[str, Callable[[RunState], RunState]] = {
    "calls itself": lambda state: worker(state, "w0", name="w7"),
    "workers are held": crowded,
    "has no view": lambda state: replace(state, view=None),
    "the view is of generation": lambda state: view(state, generation=7),
    "unknown or named twice": lambda state: view(state, members=(state.view.members[0],) * 2),
    "do not make up the ranks": lambda state: view(state, donors=(0,), behind=()),
    "not every shard is given": lambda state: view(state, donors=(), behind=(0, 1)),
    "a bootstrap resumes": lambda state: view(state, bootstrap=True, resume=commit(3)),
    "members of replicas of 1 are not within": lambda state: view(
        state, members=state.view.members[:1], donors=(0,), behind=()
    ),
    "has rank": lambda state: worker(state, "w1", shard=1),
    "outcome": lambda state: replace(state, outcome=OUTCOME),
    "is dead in phase": lambda state: worker(state, "w1", standing=Standing.DEAD),
    "before all members have formed": lambda state: worker(state, "w1", formed=False),
    "nothing was decided": lambda state: replace(answered(state), phase=Phase.FREEZING),
    "may still apply while the run waits": lambda state: replace(state, phase=Phase.WAITING),
    "not counted one by one": lambda state: replace(state, incidents=(incident(3),)),
    "beside one under treatment": lambda state: replace(state, incidents=(incident(0), incident(1)), failures=2),
    "world sizes": lambda state: replace(state, world_sizes=(7,)),
}


@pytest.mark.parametrize("law", STATES)
def test_a_state_that_breaks_a_law_is_named(law):
    sound = running()
    broken = STATES[law](sound)
    told = check(broken, recount=False)
    assert any(law in one for one in told), told
    assert check(broken, recount=False, before=sound) == told, "it is what has changed"
    assert check(replace(broken, published=9), recount=False, before=broken) == [], "it was judged before"


def test_a_tally_that_has_lost_count_is_named():
    state = running()
    assert state.tally is not None
    state.tally.noticed["w0"] = None
    assert check(state) == ["the tally has lost count of noticed"]


def after_the_end(state: RunState) -> RunState:
    return replace(state, phase=Phase.ENDED, outcome=OUTCOME)


def formed(state: RunState, **changes: Any) -> tuple[RunState, Form]:
    """The next generation, resumed from step 4 unless told otherwise."""
    assert state.view is not None
    usual: dict[str, Any] = {"generation": state.generation + 1, "resume": commit(4), "bootstrap": False}
    made = replace(state.view, **{**usual, "donors": (0, 1), "behind": (), **changes})
    after = replace(state, generation=made.generation, view=made, phase=Phase.FORMING)
    return after, Form(view=made, reason="a test")


def answered(state: RunState, number: int = 4, healed: bool = True) -> RunState:
    for name in ("w0", "w1"):
        state = worker(state, name, answer=commit(number), answered_in=state.generation, healed=healed)
    return state


def broken(before: RunState, after: RunState, *commands: Command, event: ev.Event | None = None) -> list[str]:
    return check_step(before, event or ev.Tick(), after, commands)


def test_numbers_and_records_only_go_forward():
    state = running()
    assert "generation 3 after 1" in broken(state, replace(state, generation=3, view=None))
    assert "step 4 was published, now 2" in broken(state, replace(state, published=2))
    assert "the list of world sizes was rewritten" in broken(state, replace(state, world_sizes=(1, 2)))
    open_one = replace(state, incidents=(incident(0),), failures=1)
    assert "an incident was forgotten" in broken(open_one, state)
    assert "x0 was forgotten" in broken(crowded(state), state)
    dead = worker(state, "w1", standing=Standing.DEAD)
    assert "w1 came back from dead" in broken(dead, state)
    spare = worker(crowded(state), "x0", standing=Standing.DEAD)
    without = replace(spare, workers={name: one for name, one in spare.workers.items() if name != "x0"})
    assert broken(spare, without) == [], "who is over, and no member, may be"


def test_nothing_follows_the_end():
    state, end = running(), EndRun(outcome=OUTCOME, reason="enough")
    over = after_the_end(state)
    assert broken(over, state) == ["something followed from an event after the end"]
    assert "0 commands to end the run in phase ended" in broken(state, over)
    dismiss = Dismiss(workers=("w0",), reason="late")
    assert "a command follows the end" in broken(state, over, end, dismiss)
    assert broken(state, over, end) == []


def test_commands_name_their_reason_and_their_generation():
    state = running()
    assert "Dismiss has no reason" in broken(state, state, Dismiss(workers=("w0",), reason=""))
    told = broken(state, state, Freeze(workers=("w9",), generation=1, reason="a test"))
    assert any("is not for members of generation 1" in one for one in told)
    go = Go(workers=("w0",), generation=1, reason="a test")
    assert "a go in phase freezing" in broken(state, replace(state, phase=Phase.FREEZING), go)


def test_a_generation_is_formed_once_and_under_a_new_number():
    state = answered(frozen())
    after, form = formed(state)
    assert broken(state, after, form) == []
    assert "2 generations are formed at once" in broken(state, after, form, form)
    assert "generation 2 was numbered without being formed" in broken(state, after)
    again = replace(form.view, generation=1)
    told = broken(state, state, Form(view=again, reason="a test"))
    assert "a generation was formed that has no new number" in told


def test_nobody_is_passed_over_and_nothing_stable_is_left_behind():
    silent = frozen()
    after, form = formed(silent)
    assert any("has neither answered nor died" in one for one in broken(silent, after, form))
    state = answered(silent)
    after, form = formed(state, resume=commit(2))
    assert any("step 4 is stable" in one for one in broken(state, after, form))
    after, form = formed(state, bootstrap=True)
    assert "a bootstrap after something was committed" in broken(state, after, form)
    after, form = formed(state, restored=True)
    assert any("restored=True" in one for one in broken(state, after, form))


def test_a_donor_holds_what_it_gives():
    for state in (answered(frozen(), healed=False), answered(frozen(), number=3)):
        after, form = formed(state)
        assert any("donor w0 holds" in one for one in broken(state, after, form))


def test_nobody_is_left_behind_while_no_other_holds_the_state():
    state = frozen()
    after = worker(state, "w1", standing=Standing.EXILED)
    assert "['w1'] were left behind, and no healed member had answered" in broken(state, after)
    event = ev.FreezeAnswered(worker="w0", generation=1, commit=commit(4), healed=True)
    assert broken(state, after, event=event) == []


def test_a_fork_lets_what_was_published_go_back():
    state = running()
    waits = replace(state, restore=None, forks=())
    begun = replace(waits, forks=(Fork(incarnation=1, generation=2, step=1),), published=1)
    assert "step 4 was published, now 1" in broken(waits, begun), "no restore was under way"
    waits = replace(waits, restore=Restoring(commit=commit(1), since_s=0.0))
    assert "step 4 was published, now 1" not in broken(waits, begun)
    in_vain = replace(begun, looks_in_vain=1)
    assert "step 4 was published, now 1" in broken(waits, in_vain), "there was nothing to go back to"
