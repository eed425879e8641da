"""What was learned of nodes, a pause and a series outlive the driver: told in the journal, taken on by the next one."""

import json
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.bequest import EVERY_S, Bequest, bequest_of, is_to_be_told, left_by, taken_on
from elastic.control.care import Bucket, Care, Hold
from elastic.control.outcome import Ending, Outcome
from elastic.control.remediation import Kind
from elastic.control.state import Phase, RunState, Standing
from elastic.control.values import IncidentClass
from elastic.control.worker_protocol import Stage
from elastic.ledger.lines import happened, line_of
from elastic.policies import Ladder
from elastic.settings import Checkpoint
from elastic.sim.parts import Plan
from elastic.sim.succession import DriverWorld
from tests.pure.bare_controller import BareController, commit
from tests.pure.remedied import lose, running
from tests.pure.test_controller_corruption import EVIDENCE, go_back, kept, tie
from tests.pure.test_taking_over import adopted, parked, taken, view

NAMES = st.text('abé"\n', min_size=1, max_size=4)
SECONDS = st.floats(0.0, 1e5)
CLOCKS = st.floats(-1e9, 4e9)
CLASSES = st.sampled_from(IncidentClass)
STEP_S = 5.0


@st.composite
def states(draw: st.DrawFn) -> RunState:
    """Of a run that has seen something."""
    now_s = draw(CLOCKS)
    until = st.one_of(st.just(inf), SECONDS.map(lambda left_s: now_s + left_s))
    times = st.lists(SECONDS, max_size=3).map(tuple)
    care = Care(
        quarantine=draw(st.dictionaries(NAMES, until, max_size=3)),
        unhealthy=draw(st.dictionaries(NAMES, until, max_size=3)),
        node_incidents=draw(st.dictionaries(NAMES, st.integers(1, 9), max_size=3)),
        budgets={kind: Bucket(left=draw(st.floats(0.0, 10.0)), at_s=now_s) for kind in draw(st.sets(CLASSES))},
        recovery_s=draw(st.dictionaries(st.sampled_from(Kind), times, max_size=3)),
        placing_s=draw(times),
        loading_s=draw(times),
        hold=draw(st.none() | until.map(lambda until_s: Hold(reason="paused", until_s=until_s))),
    )
    counts = {name: draw(st.integers(0, 9)) for name in ("restarts", "without_progress", "furthest")}
    return replace(BareController().state, care=care, seen_s=now_s, **counts)


def as_read(state: RunState) -> Bequest:
    """As it comes out of the journal."""
    return bequest_of(json.loads(json.dumps(line_of("life", 1.0, left_by(state)), allow_nan=False)))


def heir_of(state: RunState, now_s: float) -> RunState:
    """The state of the next driver, by its own clock."""
    fresh = RunState(settings=state.settings, seen_s=now_s)
    return replace(fresh, **taken_on(fresh, as_read(state), now_s))


@given(states(), CLOCKS)
def test_it_comes_through_the_journal_and_means_the_same_by_any_clock(state, now_s):
    left = left_by(state)
    assert as_read(state) == left
    heir = heir_of(state, now_s)
    again, nearly = left_by(heir), pytest.approx
    assert again.quarantine.keys() <= left.quarantine.keys()
    for before, after in ((left.quarantine, again.quarantine), (left.unhealthy, again.unhealthy)):
        for node, for_s in before.items():
            if for_s is None or for_s > 1e-3:  # less is lost beside a clock of billions
                assert after[node] == (None if for_s is None else nearly(for_s, abs=1e-3))
    paused_s = None if left.paused_s is None else nearly(left.paused_s, abs=1e-3)
    assert (again.paused, again.paused_s) == (left.paused, paused_s)
    timed = {"quarantine": {}, "unhealthy": {}, "paused_s": 0.0}
    assert replace(again, **timed) == replace(left, **timed)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(1.0, 200.0), CLOCKS), min_size=1, max_size=12))
def test_no_clock_and_no_number_of_drivers_makes_a_quarantine_endless_or_void(lives):
    """Each lives for a while, on a machine with a clock of its own, and tells what it leaves as often as it must."""
    state = replace(BareController().state, care=Care(quarantine={"n": 1000.0, "bad": inf}), seen_s=0.0)
    lived_s, told = 0.0, state
    for life_s, clock_s in lives:
        state = heir_of(told, clock_s)
        told, ends_s = state, clock_s + life_s
        while state.seen_s < ends_s:
            before, now_s = state, min(ends_s, state.seen_s + STEP_S)
            over = [node for node, until_s in state.care.quarantine.items() if now_s >= until_s]
            state = replace(state, seen_s=now_s, care=state.care.released(*over))
            told = state if is_to_be_told(before, state) else told
        lived_s += life_s
        left_s = left_by(told).quarantine.get("n", 0.0)
        least_s, most_s = 1000.0 - lived_s, 1000.0 - lived_s + len(lives) * (EVERY_S + STEP_S)
        assert max(0.0, least_s) - 1e-3 <= left_s <= max(0.0, most_s) + 1e-3
        assert left_by(told).quarantine["bad"] is None


def test_what_lasts_is_told_when_it_changes_and_what_runs_down_each_half_minute():
    state = replace(BareController().state, seen_s=0.0)
    sick = replace(state, care=Care(quarantine={"n": 100.0}), seen_s=1.0)
    assert is_to_be_told(state, sick) and [line["life"] for line in happened(state, sick, [])] == ["Bequest"]
    later = [replace(sick, seen_s=float(at_s)) for at_s in range(1, 91)]
    assert sum(map(is_to_be_told, later, later[1:])) == 3
    well = [replace(state, seen_s=float(at_s)) for at_s in range(1, 91)]
    assert not any(map(is_to_be_told, well, well[1:]))
    assert left_by(replace(sick, seen_s=100.0)).quarantine == {}


@pytest.mark.parametrize("ending", [Ending.NO_PROGRESS, Ending.EXITED])
def test_who_starts_a_run_again_that_has_ended_begins_its_counts_anew(ending):
    care = Care(
        quarantine={"n": inf},
        budgets={IncidentClass.WORKER_LOST: Bucket(left=0.0, at_s=5.0)},
        hold=Hold(reason="paused", until_s=9.0),
    )
    counts = {"restarts": 2, "furthest": 7, "without_progress": 3}
    state = replace(BareController().state, care=care, seen_s=5.0, **counts)
    ended = replace(state, outcome=Outcome(ending=ending))
    counted = Bequest(quarantine={"n": None}, budgets={"worker lost": 0.0}, paused="paused", paused_s=4.0, **counts)
    assert left_by(state) == counted
    assert left_by(ended) == (counted if ending is Ending.EXITED else Bequest(quarantine={"n": None}))
    assert is_to_be_told(state, ended) == (ending is not Ending.EXITED)


def test_what_only_another_version_knows_is_left_out():
    left = bequest_of({"t": 1.0, "life": "Bequest", "budgets": {"gone": 1.0}, "recovery_s": {"none": [1]}, "new": 1})
    changes = taken_on(BareController().state, left, 0.0)
    assert changes["care"] == Care() and changes["restarts"] == 0


# --- the next driver --------------------------------------------------------------------------------------------------


def test_a_quarantine_outlives_its_driver_where_workers_are_taken_over():
    last = running(Kind.REPLACE_NODE, replicas=(1, 2))
    lose(last)
    left = as_read(last.state)
    assert left.quarantine == {"node-w1": None} and left.node_incidents == {"node-w1": 1}
    ws = taken(adopted("w0", 7, view("w0")), told={"left": left, "next_worker": 3})
    assert ws.state.care.quarantine == {"node-w1": inf} and ws.state.care.node_incidents == {"node-w1": 1}
    ws.form()
    ws.stable(8)
    started = [one for one in ws.state.workers.values() if one.standing is Standing.REQUESTED]
    assert started and all("node-w1" in one.avoid for one in started)


def test_one_that_ends_is_over_when_it_would_have_been():
    ws = BareController(1)
    ws.feed(ev.RunStarted(left=Bequest(quarantine={"n": 5.0, "bad": None})))
    assert ws.state.workers["w0"].avoid == {"n", "bad"}
    ws.tick(4.0)
    assert ws.state.care.quarantine.keys() == {"n", "bad"}
    ws.tick(2.0)
    assert ws.state.care.quarantine.keys() == {"bad"}
    assert [one.avoid for one in ws.state.workers.values() if one.standing is Standing.REQUESTED] == [{"bad"}]


def test_who_was_about_to_leave_a_node_leaves_it():
    """The last driver died between the decision and the departure."""
    old, left = view("w0", "w1"), Bequest(quarantine={"node-w1": 60.0, "node-w2": None})
    ws = taken(adopted("w0", 7, old), adopted("w1", 7, old), parked("w2"), replicas=(1, 3), told={"left": left})
    assert ws.members == ["w0"]
    assert ws.standing("w1") is Standing.GONE and ws.standing("w2") is Standing.GONE


def disputed() -> Bequest:
    """Two replicas held different bits, the last step on which they had agreed is 4, and the driver died over that."""
    last = kept(votes=5)
    tie(last)
    return as_read(last.state)


def test_that_nobody_knows_whose_bits_are_right_outlives_the_driver():
    """One has loaded the step to go back to, the other still holds what is in dispute: that must heal nobody."""
    old = view("w0", "w1", published=5)
    found = adopted("w0", 5, old), adopted("w1", 3, old, was=Stage.FORMING)
    ws = taken(*found, replicas=2, told={"left": disputed(), "published": 5, "verified": 4}, checkpoint=Checkpoint())
    (find,) = ws.given(cmd.FindRestore)
    assert (find.at_most, find.reason) == (4, EVIDENCE) and ws.given(cmd.Form) == []
    ws.feed(ev.RestoreFound(commit=commit(3)))
    for worker in ("w0", "w1"):
        ws.feed(ev.Restored(worker=worker, commit=commit(3), seconds=1.0, nbytes=1, places=(), retries=0))
    assert ws.phase is Phase.FORMING and ws.view.restored and ws.view.resume == commit(3)
    assert ws.state.disputed_from == 4


def test_so_it_does_where_no_worker_is_left():
    ws = BareController(2, checkpoint=Checkpoint())
    ws.feed(ev.RunStarted(left=disputed()))
    (find,) = ws.given(cmd.FindRestore)
    assert (find.at_most, find.reason) == (4, EVIDENCE)
    ws.feed(ev.RestoreFound(commit=None, reason="nothing is kept"))
    assert ws.state.outcome.ending is Ending.DIVERGED and EVIDENCE in ws.state.outcome.message


def test_it_is_over_once_all_have_gone_back():
    last = kept(votes=5)
    tie(last)
    go_back(last, 3)
    left = as_read(last.state)
    assert (left.disputed, left.disputed_at_most, left.disputed_from) == ("", None, 4)


def test_a_gpu_that_is_to_be_reset_is_reset_under_the_next_driver():
    """Only who is on it leaves its node; what was sent already is sent again."""
    last = running(Kind.RESET_GPU)
    lose(last)
    left = as_read(last.state)
    ((node, gpus, left_s),) = left.resets
    assert (node, gpus) == ("node-w1", ("1",)) and left.quarantine == {node: left_s}
    old = view("w0", "w1", "w2")
    there = (
        adopted("w0", 7, old, gpus=("0",)),
        adopted("w1", 7, old, gpus=("1",)),
        adopted("w2", 7, old, gpus=("2",), node="node-w1"),
    )
    ws = taken(*there, replicas=(1, 3), told={"left": left})
    assert ws.members == ["w0", "w2"] and ws.standing("w1") is Standing.GONE
    assert not any(isinstance(one, cmd.ResetGpu) for one in ws.tick(0.1)), "it is on its way out"
    ws.leave("w1", dismissed=True)
    ws.tick(0.1)
    assert [(one.node, one.gpus) for one in ws.given(cmd.ResetGpu)] == [("node-w1", ("1",))]
    ws.feed(ev.GpuReset(node="node-w1", gpus=("1",)))
    assert ws.state.care.resets == () and ws.state.care.quarantine == {}


def test_a_node_that_passes_its_check_under_the_next_driver_is_free_again():
    last = RunState(settings=BareController().state.settings, seen_s=100.0)
    last = replace(last, care=last.care.failed_check("n", 400.0))
    heir = heir_of(last, 9000.0)
    assert heir.care.quarantine["n"] == heir.care.unhealthy["n"] == 9300.0
    assert heir.care.passed_check("n").quarantine == {}


def test_a_pause_outlives_its_driver():
    last = BareController(1).run()
    last.feed(ev.PauseAsked(for_s=100.0))
    last.tick(40.0)
    old = view("w0")
    ws = taken(adopted("w0", 7, old), replicas=1, told={"left": as_read(last.state)})
    assert ws.phase is Phase.WAITING and ws.given(cmd.Form) == []
    ws.tick(59.0)
    assert ws.phase is Phase.WAITING
    ws.tick(2.0)
    assert ws.phase is Phase.FORMING and ws.view.resume.step == 7


def test_a_pause_outlives_all_workers():
    ws = BareController(1)
    ws.feed(ev.RunStarted(left=Bequest(paused="paused: somebody has asked for it", paused_s=3600.0)))
    ws.join("w0")
    ws.tick(1000.0)
    assert ws.phase is Phase.STARTING and ws.generation == 0
    ws.feed(ev.ResumeAsked())
    ws.tick(0.1)
    assert ws.phase is Phase.FORMING


def test_a_series_of_restarts_goes_on():
    """Of three that are allowed two were made, and no step past the ninth was told since."""
    left = Bequest(restarts=2, furthest=9, without_progress=4)
    ws = BareController(1, checkpoint=Checkpoint(), max_workload_restarts=3)
    ws.feed(ev.RunStarted(left=left), ev.RestoreFound(commit=None))
    ws.join("w0")
    ws.form()
    assert (ws.state.restarts, ws.state.without_progress) == (2, 4)
    ws.stable(9)
    assert (ws.state.restarts, ws.state.without_progress) == (2, 0)
    ws.stable(10)
    assert ws.state.restarts == 0


def test_budgets_and_measured_times_are_there_for_the_policy():
    left = Bequest(
        budgets={"worker lost": 1.0},
        recovery_s={"swap in a spare": (1.0, 3.0)},
        node_incidents={"node-w1": 2},
        loading_s=(4.0,),
        placing_s=(5.0,),
    )
    old, seen = view("w0", "w1"), []
    ws = taken(adopted("w0", 7, old), adopted("w1", 7, old), told={"left": left})
    ws.policy = lambda incident, cluster: seen.append(cluster) or Ladder()(incident, cluster)
    ws.form()
    lose(ws, number=7)
    (cluster,) = seen
    assert cluster.recovery_s == {Kind.SWAP: 2.0} and cluster.node_incidents == {"node-w1": 2}
    assert cluster.budget_left[IncidentClass.WORKER_LOST] == pytest.approx(1.0, abs=0.1)
    assert (cluster.loading_s, cluster.node_return_s) == (4.0, 5.0)


def test_worlds_in_which_drivers_die_keep_their_quarantines():
    """The law is in `Succession.begin`; here is shown that it has something to say."""
    kept = 0
    for seed in range(12):
        world = DriverWorld(seed, Plan(replicas=(1, 3), spares=1, steps=8, crash=0.03), deaths_s=(6.0, 9.0))
        world.ws.policy = running(Kind.QUARANTINE).policy
        world.play()
        world.judge()
        kept += bool(world.ws.state.care.quarantine) and world.life > 1
    assert kept
