"""An answer is what it was when it comes to who has the view before; and little is told of members that stay."""

import pickle

import pytest

from elastic.control.change import change_between
from elastic.control.commands import Form
from elastic.control.packing import packed, unpacked
from elastic.control.state import RunState
from elastic.sim.parts import Plan
from elastic.sim.world import World
from tests.pure.bare_controller import BareController, commit


class Receiver:
    """A driver's copy, that follows by bytes alone."""

    def __init__(self, state: RunState) -> None:
        self.state = self.last = state

    def follow(self, state: RunState) -> None:
        data = packed(((), change_between(self.last, state)), self.last.view)
        _, change = unpacked(data, self.state.view)
        self.state, self.last = change.applied_to(self.state), state
        assert self.state == state


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_follows_through_a_run_with_faults(seed):
    world = World(seed, Plan(replicas=(1, 3), spares=1, steps=4, crash=0.02, break_=0.05, mute=0.01))
    receiver = Receiver(world.ws.state)
    world.ws.on_state = receiver.follow
    world.play()
    assert receiver.state == world.ws.state


def lost(dead: str, spares: int = 0) -> tuple[BareController, RunState]:
    """A run of 64 that is formed without one of them, and what was known of it before."""
    ws = BareController((1, 64), spares=spares).run()
    known = ws.state
    ws.die(dead)
    for name in ws.members:
        if name != dead:
            ws.answer(name, 4)
    return ws, known


@pytest.mark.parametrize(("dead", "spares"), [("w0", 0), ("w9", 0), ("w63", 0), ("w9", 1)])
def test_the_view_is_told_as_what_is_new_in_it(dead, spares):
    ws, known = lost(dead, spares)
    assert ws.generation == 2 and dead not in ws.members and len(ws.members) == 63 + spares
    copy: RunState = pickle.loads(pickle.dumps(known))
    answer = (tuple(ws.given(Form)), change_between(known, ws.state))
    data = packed(answer, known.view)
    (form,), change = unpacked(data, copy.view)
    assert form.view == ws.view and change.applied_to(copy) == ws.state
    assert form.view is change.fields["view"], "it is told once"
    alone = (tuple(ws.given(Form)), change_between(ws.state, ws.state))
    assert len(packed(alone, known.view)) < len(packed(alone, None)) - 3 * len(ws.members)


def test_members_in_another_order_are_told_one_by_one():
    ws = BareController((1, 3)).run()
    known = ws.state
    ws.break_("w0")
    ws.answer("w0", 4)
    ws.answer("w1", 5)
    ws.answer("w2", 5)
    assert ws.members == ["w1", "w2", "w0"] and ws.view.resume == commit(5)
    data = packed((tuple(ws.given(Form)), change_between(known, ws.state)), known.view)
    (form,), _ = unpacked(data, known.view)
    assert form.view == ws.view


def test_the_first_view_is_told_in_full():
    ws = BareController((1, 3))
    known = ws.state
    ws.run()
    _, change = unpacked(packed(((), change_between(known, ws.state)), None), None)
    assert change.applied_to(known) == ws.state
