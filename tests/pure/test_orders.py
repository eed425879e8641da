"""Orders of the controller are waited for in seeded worlds, and none of them for ever."""

from dataclasses import replace

import pytest

from elastic.control import commands as cmd
from elastic.control.completions import COMPLETIONS
from elastic.control.flight import Flying, Reading
from elastic.control.state import Phase, RunState
from elastic.control.tending import REMIND_S
from elastic.sim.laws import Law, Violation
from elastic.sim.orders import SLACK_S, WAITS, Orders, deadline_s
from elastic.sim.parts import Plan
from elastic.sim.world import World

# Who does not connect ahead, or save a step, holds nothing up; the worlds have no GPUs, and ask for no faults.
NOT_AWAITED = {cmd.Connect, cmd.Save, cmd.Knock, cmd.ResetGpu, cmd.InjectFault, cmd.DropFault, cmd.EndRun}


def running() -> RunState:
    """As if the run that has ended still trained."""
    state = World(1, Plan(replicas=(2, 2), steps=8)).play().ws.state
    return replace(state, phase=Phase.RUNNING, outcome=None, tally=None)


def test_every_order_is_waited_for_or_nobody_needs_it():
    assert set(WAITS) | NOT_AWAITED == set(COMPLETIONS) and not set(WAITS) & NOT_AWAITED


def test_an_order_is_waited_for_until_its_deadline_and_no_longer():
    state, orders = replace(running(), pause_asked=True), Orders()
    orders.give((cmd.Pause(worker="w0", generation=state.generation, reason="to see"),))
    orders.check(state)
    limit_s = deadline_s(cmd.Pause, state)
    assert limit_s == SLACK_S + REMIND_S + state.settings.limits.pause_timeout_s
    begun_s = state.seen_s or 0.0
    orders.check(replace(state, seen_s=begun_s + limit_s))
    orders.check(replace(state, seen_s=begun_s + 99.0, absent_s=state.absent_s + 99.0))
    with pytest.raises(Violation, match="is open after") as caught:
        orders.check(replace(state, seen_s=begun_s + limit_s + 0.1))
    assert caught.value.law is Law.COMPLETED
    orders.give((cmd.Pause(worker="w0", generation=state.generation, reason="said again"),))
    orders.check(replace(state, seen_s=begun_s + limit_s + 0.1))
    orders.check(replace(state, seen_s=begun_s + 999.0, pause_asked=False))


def test_the_same_order_in_the_next_generation_is_another():
    orders, state = Orders(), replace(running(), phase=Phase.FORMING)
    begun_s, limit_s = state.seen_s or 0.0, deadline_s(cmd.Form, state)
    assert state.view
    orders.give((cmd.Form(view=state.view, reason="to see"),))
    orders.check(state)
    after = replace(state, generation=state.generation + 1, seen_s=begun_s + limit_s + 0.1)
    orders.give((cmd.Form(view=replace(state.view, generation=after.generation), reason="again"),))
    orders.check(after)  # nobody looked in between
    with pytest.raises(Violation, match="is open after"):
        orders.check(replace(after, seen_s=begun_s + 2 * limit_s + 0.2))


def test_what_was_ordered_of_somebody_forgotten_is_over():
    orders, state = Orders(), running()
    orders.give((cmd.Dismiss(workers=("x",), reason="to see"),))
    orders.check(state)
    orders.check(replace(state, seen_s=(state.seen_s or 0.0) + 999.0))


def test_who_is_out_of_sight_may_have_heard_the_go():
    state = running()
    at_s, where = state.seen_s or 0.0, {"worker": "w0", "generation": state.generation, "step": 1, "micro_batch": -1}
    reading = Reading(phase=Flying.FORMING, commits=1, still_s=1.0, state="S", **where)
    state = replace(state, readings={"w0": reading}, heard_s={state.workers["w0"].node: at_s})
    order = cmd.Go(workers=("w0",), generation=state.generation, reason="all have formed")
    assert WAITS[cmd.Go](state, order, "w0")
    assert not WAITS[cmd.Go](replace(state, seen_s=at_s + 9.0), order, "w0")
