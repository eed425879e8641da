"""Who keeps a copy of the state by what is told to have changed has the state, after each event."""

import pickle

import pytest

from elastic.control import events as ev
from elastic.control.change import StateChange, change_between
from elastic.control.controller import step
from elastic.control.flight import Flying
from elastic.control.state import RunState
from elastic.policies import Ladder
from elastic.sim.parts import Plan
from elastic.sim.world import World
from tests.pure.bare_controller import BareController, trained


class Copy:
    """What a driver has of its supervisor's state."""

    def __init__(self, state: RunState) -> None:
        self.state = self.last = state

    def follow(self, state: RunState) -> None:
        change: StateChange = pickle.loads(pickle.dumps(change_between(self.last, state)))
        before = self.state
        known = dict(before.workers)
        self.state, self.last = change.applied_to(before), state
        assert self.state == state and dict(before.workers) == known


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_follows_through_a_run_with_faults(seed):
    world = World(seed, Plan(replicas=(1, 3), spares=1, steps=4, crash=0.02, break_=0.05, mute=0.01))
    copy = Copy(world.ws.state)
    world.ws.on_state = copy.follow
    world.play()
    assert copy.state == world.ws.state and copy.state.tally is None


def test_a_successor_goes_on_from_the_copy():
    ws = trained()
    copy = Copy(ws.state)
    for event in (ev.HostBeat(node="node-w0"), ev.WorkerDead(worker="w2", proof="gone"), ev.Tick()):
        ws.feed(event)
        copy.follow(ws.state)
    answer = ev.FreezeAnswered(worker="w0", generation=1, commit=ws.view.resume, healed=True)
    assert step(copy.state, answer, ws.now_s, Ladder()) == step(ws.state, answer, ws.now_s, Ladder())


def told_bytes(ws: BareController, *events: ev.Event) -> int:
    before = ws.state
    ws.feed(*events)
    return len(pickle.dumps(change_between(before, ws.state)))


@pytest.mark.slow
def test_little_is_told_of_a_large_run_when_little_happens():
    ws = BareController((1, 300)).run()
    ws.beat("w7", Flying.COMPUTING)
    nodes = tuple(f"node-w{number}" for number in range(16))
    assert len(pickle.dumps(ws.state)) > 30_000
    assert told_bytes(ws, ev.Tick()) < 500
    assert told_bytes(ws, ev.HostsHeard(nodes=nodes, readings=(ws.reading("w7", Flying.REDUCING),))) < 1500
    assert told_bytes(ws, ev.WorkerParked(worker="w3", host="h", port=1, pid=1, layout="l")) < 500
