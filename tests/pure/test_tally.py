"""No event costs the controller a look at every worker, whatever the phase; and what it counts is so.

That the counts are right is a law: all tests of the controller hold it after each event.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.control import events as ev
from elastic.control.controller import step
from elastic.control.copies import changed
from elastic.control.flight import STOPPED, Flying, Reading
from elastic.control.hardware import FindingKind
from elastic.control.invariants import check
from elastic.control.lookout import Lookout
from elastic.control.persistent import PersistentMap
from elastic.control.state import Phase, RunState, Standing
from elastic.control.suspicion import WAITING, suspicions
from elastic.control.tally import Gangs, Tally
from elastic.control.xid import Severity
from elastic.policies import Ladder
from elastic.settings import Checkpoint, Limits, RunSettings, Scaling
from tests.pure.bare_controller import BareController, commit, report, trained

FEW, MANY = 72, 512  # workers; the tree of a mapping is as deep for both
WIDTH = 4


def calls(work: Callable[[], object]) -> int:
    """How many functions are called, Python's and C's: the same in each run."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Many:
    """A run of many workers, without the laws' checks, which look at all."""

    def __init__(self, workers: int, checkpoint: Checkpoint | None = None, least: int = 2) -> None:
        scaling = Scaling(num_dp_replicas=(least, workers // WIDTH), workers_per_replica=WIDTH)
        limits = Limits(doubt_after_s=100.0, freeze_timeout_s=100.0)
        settings = RunSettings(run="r", scaling=scaling, limits=limits, checkpoint=checkpoint)
        self.state, self.now_s, self.workers = RunState(settings=settings), 0.0, workers
        self.feed(ev.RunStarted())

    def feed(self, *events: ev.Event) -> None:
        for event in events:
            self.state = step(self.state, event, self.now_s, Ladder()).state

    def cost(self, event: ev.Event) -> int:
        """Of taking an event in; nothing follows from it here."""
        state, policy = changed(self.state, tally=Tally(self.state)), Ladder()  # the last look has taken it on
        return calls(lambda: step(state, event, self.now_s, policy))

    @property
    def names(self) -> list[str]:
        return [f"w{number}" for number in range(self.workers)]

    def place(self, *names: str) -> None:
        self.feed(*(ev.WorkerPlaced(worker=name, node=f"n{int(name[1:]) // 8}") for name in names))

    def come(self, *names: str) -> None:
        self.place(*names)
        self.feed(*(ev.WorkerParked(worker=name, host="h", port=1, pid=1, layout="l") for name in names))

    def run(self) -> "Many":
        self.come(*self.names)
        self.feed(*(ev.Formed(worker=name, generation=1) for name in self.names))
        assert self.state.phase is Phase.RUNNING
        for node in range(self.workers // 8):
            readings = tuple(self.reading(f"w{8 * node + place}") for place in range(8))
            self.feed(ev.HostBeat(node=f"n{node}", readings=readings))
        for number in range(8):
            self.feed(ev.StepStable(worker="w0", report=report(number)))
        return self

    def reading(self, name: str, phase: Flying = Flying.REDUCING, still_s: float = 0.1) -> Reading:
        usual = {"generation": 1, "step": 5, "micro_batch": -1, "commits": 5, "state": "S"}
        return Reading(worker=name, phase=phase, still_s=still_s, **usual)


def starting(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    ws = Many(workers)
    ws.place("w0")
    ws.come(*ws.names[4:])
    assert ws.state.phase is Phase.STARTING
    yield ws, ev.Tick()
    yield ws, ev.WorkerPlaced(worker="w1", node="n0")


def placing(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    """All wait for slots."""
    yield Many(workers), ev.Tick()


def parking(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    ws = Many(workers)
    ws.place(*ws.names)
    ws.come(*ws.names[8:])
    yield ws, ev.WorkerParked(worker="w0", host="h", port=1, pid=1, layout="l")


def restoring(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    ws = Many(workers, Checkpoint())
    ws.place(*ws.names)
    ws.feed(ev.RestoreFound(commit=commit(3)))
    ws.come(*ws.names[8:])
    ws.feed(*(ev.Restored(worker=name, commit=commit(3)) for name in ws.names[-8:-4]))
    yield ws, ev.WorkerParked(worker="w0", host="h", port=1, pid=1, layout="l")


def running(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    ws = Many(workers).run()
    yield ws, ev.Tick()
    yield ws, ev.HostBeat(node="n1", readings=tuple(ws.reading(f"w{place}") for place in range(8, 16)))
    yield ws, ev.HostsHeard(nodes=("n1", "n2"), readings=(ws.reading("w9", still_s=3.0),))
    yield ws, ev.MonitorLost(node="n1")
    yield ws, ev.StackDumped(worker="w9", stack="main.py:1")
    yield ws, ev.Overdue(worker="w9", generation=1)
    yield ws, ev.RungReached(rung="local", commit=commit(7))
    where = {"node": "n1", "device": "GPU-1", "kind": FindingKind.XID, "workers": ("w9",)}
    yield ws, ev.HardwareFinding(**where, severity=Severity.USER_ERROR, detail="XID 31")


def leaving(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    """One will be lost while it loads: it is told to leave, and the rest of its replica with it."""
    ws = Many(workers)
    ws.place(*ws.names[:8])
    ws.come(*ws.names[8:])
    ws.feed(ev.WorkerNotice(worker="w3", reason="preempted"))
    assert len(ws.state.tally.leaving) == 4
    ws.now_s += 0.9
    yield ws, ev.Tick()
    yield ws, ev.WorkerDead(worker="w3", proof="gone")


def departing(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    ws = Many(workers).run()
    ws.feed(ev.NodeNotice(node="n1", reason="preempted"))
    assert len(ws.state.tally.noticed) == 8
    yield ws, ev.Tick()


def one_stands_still(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    ws = Many(workers).run()
    ws.feed(ev.HostsHeard(nodes=("n1",), readings=(ws.reading("w9", Flying.COMPUTING, 2.5),)))
    yield ws, ev.Tick()


def freezing(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    ws = Many(workers).run()
    ws.feed(ev.WorkerDead(worker="w1", proof="gone"))
    ws.now_s += 0.9
    yield ws, ev.Tick()
    yield ws, ev.FreezeAnswered(worker="w9", generation=1, commit=commit(8), healed=True)
    yield ws, ev.WorkerDead(worker="w2", proof="gone")
    yield ws, ev.WorkerLost(worker="w2", evidence="its pipe closed")
    yield ws, ev.CollectiveBroken(worker="w9", generation=1, error="reset by peer")


def forming(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    ws = Many(workers)
    ws.come(*ws.names)
    assert ws.state.phase is Phase.FORMING
    yield ws, ev.AtDoor(worker="w9", generation=1)
    yield ws, ev.Formed(worker="w9", generation=1)
    yield ws, ev.Tick()


def waiting(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    """All are needed, and two that were lost are replaced: the first replacement changes nothing."""
    ws = Many(workers, least=workers // WIDTH).run()
    ws.feed(*(ev.WorkerDead(worker=name, proof="gone") for name in ("w1", "w9")))
    rest = [name for name in ws.names if name not in ("w1", "w9")]
    ws.feed(*(ev.FreezeAnswered(worker=name, generation=1, commit=commit(8), healed=True) for name in rest))
    assert ws.state.phase is Phase.WAITING
    new = [worker.name for worker in ws.state.standing(Standing.REQUESTED)]
    assert len(new) == 2
    ws.place(*new)
    yield ws, ev.WorkerParked(worker=new[0], host="h", port=1, pid=1, layout="l")


def finishing(workers: int) -> Iterator[tuple[Many, ev.Event]]:
    ws = Many(workers).run()
    ws.feed(ev.LoopEnded(worker="w1", generation=1, commit=commit(8)))
    yield ws, ev.TrainFnReturned(worker="w9")
    yield ws, ev.Tick()


STORIES = (
    starting, placing, parking, restoring, running, leaving, departing, one_stands_still, freezing, forming, waiting,
    finishing,
)  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_an_event_costs_the_same_however_many_workers_there_are(story):
    for (few, event), (many, _) in zip(story(FEW), story(MANY), strict=True):
        little, much = few.cost(event), many.cost(event)
        assert much < 1.25 * little + 40, f"{type(event).__name__}: {little} calls at {FEW} workers, {much} at {MANY}"


def all_but_one_have_answered(workers: int) -> tuple[Many, ev.Event]:
    ws = Many(workers).run()
    ws.feed(ev.WorkerDead(worker="w1", proof="gone"))
    answers = [ev.FreezeAnswered(worker=name, generation=1, commit=commit(8), healed=True) for name in ws.names]
    ws.feed(*(answer for answer in answers[:-1] if answer.worker != "w1"))
    assert ws.state.phase is Phase.FREEZING
    return ws, answers[-1]


def test_forming_looks_at_each_member_a_few_times_at_most():
    """Few calls: what is done for all of them at once is one, however many they are."""
    (few, last), (many, last_of_many) = all_but_one_have_answered(FEW), all_but_one_have_answered(MANY)
    little, much = few.cost(last), many.cost(last_of_many)
    assert (much - little) / (MANY - FEW) < 6, f"{little} calls at {FEW} workers, {much} at {MANY}"
    many.feed(last_of_many)
    assert (many.state.phase, many.state.generation, many.state.replicas) == (Phase.FORMING, 2, MANY // WIDTH - 1)


def lost_while_forming(workers: int) -> tuple[Many, ev.Event]:
    ws, last = all_but_one_have_answered(workers)
    ws.feed(last)
    assert (ws.state.phase, ws.state.generation) == (Phase.FORMING, 2)
    return ws, ev.WorkerDead(worker="w9", proof="gone")


def test_a_second_failure_while_forming_takes_no_answer_back_one_by_one():
    (few, event), (many, event_of_many) = lost_while_forming(FEW), lost_while_forming(MANY)
    little, much = few.cost(event), many.cost(event_of_many)
    assert (much - little) / (MANY - FEW) < 4, f"{little} calls at {FEW} workers, {much} at {MANY}"
    many.feed(event_of_many)
    assert (many.state.phase, many.state.generation) == (Phase.FREEZING, 2)
    assert len(many.state.tally.late) == MANY - WIDTH - 1 and not many.state.tally.holders.names


def test_a_tally_that_is_wrong_breaks_a_law():
    ws = trained()
    assert ws.state.tally is not None and check(ws.state) == []
    ws.state.tally.late.clear()
    assert "late" in check(ws.state)[0]


def test_who_holds_state_and_is_not_taken_in_holds_it_still():
    ws = trained(2)
    view, workers = ws.view, dict(ws.state.workers)
    held = {"standing": Standing.PARKED, "answer": commit(7), "healed": True}
    workers["x0"] = changed(workers["w0"], name="x0", gang=9, **held)
    state = replace(ws.state, workers=PersistentMap(workers), tally=None)
    tally, following = Tally(state), replace(view, generation=view.generation + 1)
    assert list(tally.holders.names) == ["x0"]
    tally.enter(following, [])
    assert list(tally.holders.names) == ["x0"] and tally.holders.resumable() is not None


def test_who_takes_an_older_state_up_again_gets_another_tally():
    ws = trained()
    older, known = ws.state, dict(ws.state.workers)
    ws.die("w1")
    answered = step(older, ev.WorkerDead(worker="w2", proof="gone"), ws.now_s, Ladder()).state
    assert older.workers == known and check(answered) == check(ws.state) == []
    assert answered.workers["w1"].standing is Standing.MEMBER and answered.tally is not ws.state.tally
    assert Tally(answered).differs(Tally(ws.state)) != []


# --- what ticks look at -----------------------------------------------------------------------------------------------

READINGS = st.builds(
    Reading,
    worker=st.integers(0, 9).map(str),
    generation=st.just(1),
    step=st.just(5),
    phase=st.sampled_from(Flying),
    micro_batch=st.just(-1),
    commits=st.sampled_from((2, 5)),
    still_s=st.floats(0.0, 2000.0),
    state=st.sampled_from(("S", STOPPED)),
)
STALLS_S = st.floats(0.5, 700.0)


@given(st.lists(st.tuples(STALLS_S, st.lists(READINGS, max_size=6)), min_size=1, max_size=6))
def test_nobody_who_may_be_a_suspect_or_waits_is_left_out(told):
    limits = Limits()
    state = RunState(settings=RunSettings(run="r", limits=limits))
    hosts, known = Lookout(state), PersistentMap[Reading]()
    for stall_s, readings in told:
        known = hosts.read({reading.worker: reading for reading in readings})
        hosts.expect(stall_s)
        suspects = {one.worker for one in suspicions(known.values(), stall_s, limits)}
        waiting = {one.worker for one in known.values() if one.phase in WAITING}
        long = {one.worker for one in known.values() if one.phase in WAITING and one.still_s >= stall_s}
        assert suspects <= hosts.still.keys() and waiting == hosts.waiting.keys() and long <= hosts.waiting_long.keys()


@given(st.lists(st.tuples(st.sets(st.sampled_from("abcd")), st.floats(0.0, 3.0)), max_size=12))
def test_the_silent_are_those_heard_too_long_ago(told):
    state = RunState(settings=RunSettings(run="r"))
    hosts, now_s, heard_s = Lookout(state), 0.0, dict[str, float]()
    for nodes, after_s in told:
        now_s += after_s
        heard_s |= dict.fromkeys(nodes, now_s)
        assert hosts.hear(nodes, now_s) == heard_s
    limit_s = state.settings.limits.heartbeat_timeout_s
    assert set(hosts.silent(now_s)) == {node for node, at_s in heard_s.items() if now_s - at_s > limit_s}


def test_a_beat_of_many_hosts_is_as_many_beats():
    one, many = trained(), trained()
    nodes = ("node-w0", "node-w1", "node-w2")
    readings = tuple(one.reading(f"w{number}", Flying.REDUCING, 0.6) for number in range(3))
    many.feed(ev.HostsHeard(nodes=nodes, readings=readings))
    for node, reading in zip(nodes, readings, strict=True):
        one.feed(ev.HostBeat(node=node, readings=(reading,)))
    assert one.state == many.state and one.tick(0.0) == many.tick(0.0) != ()


def test_a_worker_nobody_knows_is_not_read():
    ws = BareController(1).run()
    ws.feed(ev.HostsHeard(nodes=("node-w0",), readings=(ws.reading("w9", Flying.COMPUTING, 9.0),)))
    assert "w9" not in ws.state.readings and ws.state.heard_s == {"node-w0": ws.now_s}


def test_a_replica_is_whole_while_it_has_one_worker_of_each_shard_or_more():
    gangs = Gangs(2)
    for shard in (0, 1, 1):
        gangs.add(7, shard)
    assert gangs.whole == 1
    gangs.drop(7, 1)
    assert gangs.whole == 1, "another one has this shard"
    gangs.drop(7, 1)
    assert gangs.whole == 0 and gangs.shards == {7: {0: 1}}
