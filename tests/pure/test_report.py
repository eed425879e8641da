"""What a report shows of a run, from the lines of its journal."""

import itertools
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.ledger.ledger import Ledger
from elastic.report.content.compose import report
from elastic.report.content.fold import Fold
from elastic.report.content.lanes import _covered
from elastic.report.content.safety import Safety
from elastic.report.content.steps import Told
from elastic.report.content.words import duration, sentence, several
from elastic.sim.parts import Plan
from tests.pure.ledger_world import JournalledWorld
from tests.pure.report_lines import BEGAN_S, Scribe, a_long_day, a_night


def made(lines):
    fold, ledger = Fold(), Ledger()
    for line in lines:
        fold.take(line)
        ledger.feed(line)
    return report(fold, ledger.account())


@pytest.fixture(scope="module")
def night():
    return made(a_night().lines)


def test_the_headline(night):
    now = night.headline
    assert (now.run, now.phase, now.ending) == ("night", "ended", "succeeded")
    assert (now.step, now.generation, now.incarnation, now.replicas, now.most_replicas) == (79, 2, 1, 4, 4)
    assert (now.workers, now.spares) == (0, 0), "all have left with the run"
    assert now.began_s == BEGAN_S
    assert now.wall_s == pytest.approx(a_night().now_s - BEGAN_S, abs=1e-3)
    assert now.steps_per_s == pytest.approx(10, rel=0.2) and now.samples_per_s == pytest.approx(320, rel=0.2)
    assert now.loss == pytest.approx(4 / 80)
    assert 0 < now.goodput < 1


def test_the_waterfall_adds_up_to_the_wall_time_in_both_views(night):
    whole = night.waterfall
    assert sum(one.wall_s for one in whole.spent) == pytest.approx(whole.wall_s, rel=1e-3)
    assert sum(one.worker_s for one in whole.spent) == pytest.approx(whole.worker_s, rel=1e-3)
    assert whole.wall_s == night.headline.wall_s
    assert all(one.meaning for one in whole.spent)
    (productive,) = [one for one in whole.spent if one.category == "productive"]
    assert productive.wall_s == pytest.approx(8.0, rel=0.1), "80 steps of 0.1 s"


def test_a_lane_for_each_worker_by_node(night):
    lanes = night.timeline.lanes
    assert not night.timeline.is_by_node
    assert [lane.name for lane in lanes] == ["w0", "w2", "w4", "w1", "w3"]
    assert {lane.name: lane.node for lane in lanes}["w0"] == "node-a-01234"
    spare = next(lane for lane in lanes if lane.name == "w4")
    assert [one.state for one in spare.segments] == ["starting", "ready", "training"]
    assert spare.segments[0].end_s == spare.segments[1].begin_s == pytest.approx(3.0)
    dead = next(lane for lane in lanes if lane.name == "w2")
    assert dead.end.startswith("dead") and dead.ended_s == pytest.approx(3.05 + 3.0)
    assert dead.segments[-1].end_s == dead.ended_s


def test_the_incident_has_its_story(night):
    failures = [one for one in night.incidents if one.is_failure]
    assert len(failures) == night.headline.incidents == 1
    (story,) = failures
    assert (story.number, story.label) == (1, "0"), "the label is what logs say"
    assert story.opened_s == pytest.approx(6.05, abs=0.2)
    texts = [one.text for one in story.told]
    assert "w2 is dead: its process is gone" in texts
    assert any(text.startswith("generation 2 is formed by 4 workers, to go on from step 30") for text in texts)
    assert not any("the run starts" in text for text in texts), "what was long before is another story"


def test_sizes_throughput_and_losses_with_the_step_that_was_tried_again(night):
    assert set(night.sizes.values) == {4.0}
    assert night.sizes.at_s[-1] == pytest.approx(night.headline.wall_s, abs=0.01), "what holds, holds until now"
    assert max(night.throughput.values) == pytest.approx(320, rel=0.05)
    assert len(night.losses.values) == 80 and night.metric == "loss"
    (again,) = night.retries
    assert (again.step, again.why) == (30, "tried again") and again.value == pytest.approx(4 / 31)


def test_rungs_hold_those_below_them_and_decisions_are_told(night):
    newest = {one.name: one.values[-1] for one in night.rungs}
    assert newest == {"committed": 79, "staged": 10, "local": 10, "replicated": 10, "durable": 8}
    assert [one.tier for one in night.decisions] == ["memory"]
    assert "a failure every 1000 s" in night.summaries["checkpoints"]


def test_a_published_measure_has_the_parts_that_its_authors_name(night):
    (library,) = [one for one in night.measures if one.parts]
    parts = dict(library.parts)
    assert library.name.startswith("ml-goodput-measurement") and parts["TPU_INITIALIZATION"] > 0
    assert all(seconds > 0 for seconds in parts.values()), "what is nothing is left out"


def test_a_step_that_falls_back_leaves_the_rungs_that_it_was_on():
    scribe = Scribe()
    scribe.begin()
    scribe.form(["w0", "w1"])
    scribe.steps(10, replicas=2)
    scribe.rung("durable", 2)
    scribe.rung("replicated", 4)
    scribe.rung("local", 8)
    scribe.rung("staged", 8)
    assert _newest(scribe) == {"staged": 8, "local": 4, "replicated": 4, "durable": 2}
    scribe.lost(8)
    scribe.lost(4)
    assert _newest(scribe) == {"staged": 2, "local": 2, "replicated": 2, "durable": 2}
    now = made(scribe.lines)
    local = next(one for one in now.rungs if one.name == "local")
    assert [step for step, _ in itertools.groupby(local.values)] == [2, 4, 8, 4, 2]


def test_where_all_is_lost_no_step_is_told():
    scribe = _ten_steps()
    scribe.rung("local", 8)
    scribe.lost(8)
    assert _newest(scribe) == {"staged": -1, "local": -1}
    assert made(scribe.lines).summaries["rungs"] == "The newest step that is committed 9, staged none, local none."


def test_what_workers_tell_late_takes_no_rung_from_a_step():
    scribe = _ten_steps()
    scribe.rung("local", 9)
    scribe.staged(0)
    assert _newest(scribe) == {"staged": 9, "local": 9}


def _ten_steps():
    scribe = Scribe()
    scribe.begin()
    scribe.form(["w0", "w1"])
    scribe.steps(10, replicas=2)
    return scribe


def _newest(scribe):
    return {one.name: one.values[-1] for one in made(scribe.lines).rungs if one.name != "committed"}


def test_a_step_is_staged_when_all_its_shards_are():
    scribe = Scribe()
    scribe.begin()
    scribe.form(["w0", "w1"])
    for shards in ([0, 1], [0], [0, 0], [1, 0]):
        scribe.steps(1, replicas=1)
        for shard in shards:
            scribe.staged(shard, shards=2)
    staged = next(one for one in made(scribe.lines).rungs if one.name == "staged")
    assert staged.values[0] == 0 and staged.values[-1] == 3 and {1, 2}.isdisjoint(staged.values)


def test_steps_that_were_staged_in_part_alone_are_forgotten():
    scribe = Scribe()
    scribe.begin()
    scribe.form(["w0", "w1"])
    safety = Safety()
    for _ in range(50):
        scribe.steps(1, replicas=1)
        scribe.staged(0, shards=2)
        safety.handlers["ShardStaged"](scribe.now_s, scribe.lines[-1])
    assert safety.newest == {}
    scribe.staged(1, shards=2)
    safety.handlers["ShardStaged"](scribe.now_s, scribe.lines[-1])
    assert safety.newest == {"staged": 49}


def test_who_is_slow(night):
    slowest = night.stragglers[0]
    assert slowest.worst == max(one.worst for one in night.stragglers) or slowest.latest is not None
    gone = next(one for one in night.stragglers if one.worker == "w2")
    assert gone.latest is None and gone.mean == pytest.approx(2.0)


def test_what_is_told_late_is_of_the_generation_that_made_it():
    """A step is stable with the next one's reduction, which after a failure is one of the next generation."""
    scribe = Scribe()
    scribe.begin()
    scribe.form(["w0", "w1", "w2"])
    scribe.steps(10, replicas=3, took_s=2.0, seconds=[0.01, 0.03, 0.01])
    last = scribe.lines.pop()
    assert last["event"] == "StepStable"
    scribe.kill("w1", ["w0", "w2"])
    scribe.form(["w0", "w2", "w3"])
    scribe.lines.append({**last, "t": scribe.now_s})
    scribe.steps(10, replicas=3, took_s=2.0, seconds=[0.01, 0.01, 0.01])
    now = made(scribe.lines)
    assert [(one.step, one.why) for one in now.retries] == [(10, "tried again")]
    worst = {one.worker: one.worst for one in now.stragglers}
    assert worst == pytest.approx({"w0": 1.0, "w1": 3.0, "w2": 1.0, "w3": 1.0})


def test_settings_and_where_each_came_from(night):
    assert [(one.path, one.value, one.source) for one in night.settings] == [
        ("scaling.num_dp_replicas", "2, 4", "run.yaml:3"),
        ("limits.lease_s", "120.0", "default"),
    ]
    assert night.summaries["settings"] == "1 of 2 were given; the others are defaults."


def test_every_part_has_its_sentence(night):
    assert all(text.endswith(".") and len(text) > 10 for text in night.summaries.values())


@pytest.mark.parametrize("lines", [[], [{"t": 5.0, "event": "RunStarted"}], [{"t": 5.0}]], ids=["none", "one", "odd"])
def test_a_run_that_has_hardly_begun_has_a_report(lines):
    now = made(lines)
    assert now.headline.step == -1 and now.incidents == tuple(one for one in now.incidents if one.is_planned)
    assert all(now.summaries.values())
    assert asdict(now)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_what_has_just_begun_has_begun_just_now(count):
    """Its first lines are of one moment, and the first one tells the ledger of nothing."""
    scribe = Scribe()
    scribe.settings(limits__lease_s=(120.0, "default"))
    scribe.begin()
    scribe.start(["w0"], ["a"])
    now = made(scribe.lines[:count])
    assert (now.headline.began_s, now.headline.seen_s, now.headline.wall_s) == (BEGAN_S, BEGAN_S, 0.0)
    assert [one.begin_s for lane in now.timeline.lanes for one in lane.segments] == [0.0] * (count == 4)


def test_steps_behind_a_checkpoint_are_redone_and_rungs_fall_back():
    scribe = Scribe()
    scribe.begin()
    scribe.start(["w0", "w1"], ["a"])
    scribe.form(["w0", "w1"])
    scribe.steps(10, replicas=2)
    scribe.rung("durable", 4)
    scribe.rung("local", 8)
    scribe.kill("w0", ["w1"])
    scribe.form(["w1"], restored_step=4)
    scribe.steps(2, replicas=1)
    now = made(scribe.lines)
    assert [(one.step, one.why) for one in now.retries] == [(5, "redone"), (6, "redone")]
    assert now.summaries["losses"].endswith("Steps redone from a checkpoint: 2.")
    newest = {one.name: one.values[-1] for one in now.rungs}
    assert newest["local"] == newest["durable"] == 4
    assert now.headline.step == 6 and now.headline.phase == "running"
    assert now.sizes.values[0] == 2 and now.sizes.values[-1] == 1


def test_a_new_life_ends_the_lanes_of_the_last_one():
    scribe = Scribe()
    scribe.begin()
    scribe.start(["w0", "w1"], ["a"])
    scribe.form(["w0", "w1"])
    scribe.steps(5, replicas=2)
    scribe.now_s += 60
    scribe.incarnation, scribe.generation = 2, 0
    scribe.settings()
    scribe.now_s += 2
    scribe.begin()
    scribe.start(["w2", "w3"], ["a"])
    now = made(scribe.lines)
    ends = {lane.name: lane.end for lane in now.timeline.lanes}
    assert ends["w0"] == "ended with the last driver" and ends["w2"] == ""
    w0 = next(lane for lane in now.timeline.lanes if lane.name == "w0")
    assert w0.ended_s == w0.segments[-1].end_s == pytest.approx(3.55), "nobody trains without a driver for a minute"
    assert now.headline.workers == 2


def test_a_worker_that_was_thought_lost_goes_on():
    scribe = Scribe()
    scribe.begin()
    scribe.start(["w0", "w1"], ["a"])
    scribe.form(["w0", "w1"])
    scribe.event("WorkerLost", worker="w1", evidence="silent")
    scribe.now_s += 1
    scribe.form(["w0", "w1"])
    scribe.steps(3, replicas=2)
    lane = made(scribe.lines).timeline.lanes[1]
    assert (lane.name, lane.end) == ("w1", "")
    assert [one.state for one in lane.segments] == ["starting", "ready", "training", "training"]


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)).map(sorted), max_size=20))
def test_bins_hold_all_of_the_stretches(stretches):
    covered = _covered([(begin, end) for begin, end in stretches], bin_s=7.0, bins=15)
    expected = [
        sum(max(0.0, min(end, 7.0 * number + 7) - max(begin, 7.0 * number)) for begin, end in stretches)
        for number in range(15)
    ]
    assert covered == pytest.approx(expected, abs=1e-6)


def test_a_thousand_workers_for_a_day_are_lanes_of_nodes_in_bounded_size():
    now = made(a_long_day(workers=1000, step_s=600.0, failures=60))
    assert now.timeline.is_by_node and len(now.timeline.lanes) == 125
    shares = [share for lane in now.timeline.lanes for share in lane.shares]
    assert len(shares) <= 120_000 and min(shares) >= 0 and max(shares) <= 1
    lane = now.timeline.lanes[50]
    assert sum(lane.shares) / len(lane.shares) > 0.7
    assert now.headline.incidents == 60
    assert len(now.losses.values) <= 1200 and len(now.stragglers) <= 24


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_run_goes_through_its_report_adds_up(seed):
    world = JournalledWorld(seed, Plan(replicas=(1, 3), spares=1, steps=8, crash=0.02)).play()
    now = made(world.lines)
    whole = now.waterfall
    assert sum(one.wall_s for one in whole.spent) == pytest.approx(whole.wall_s, rel=1e-3, abs=1e-4)
    assert sum(one.worker_s for one in whole.spent) == pytest.approx(whole.worker_s, rel=1e-3, abs=1e-4)
    assert now.headline.incidents == world.ws.state.failures
    assert now.headline.phase == world.ws.state.phase.value
    assert {lane.name for lane in now.timeline.lanes} == set(world.ws.state.workers) | {
        line["worker"] for line in world.lines if line.get("command") == "StartWorker"
    }
    for lane in now.timeline.lanes:
        ends = [edge for one in lane.segments for edge in (one.begin_s, one.end_s)]
        assert ends == sorted(ends), lane
    assert all(now.summaries.values()) and json.dumps(asdict(now))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.131, "0.13 s"), (64.2, "64.2 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min"), (200_000, "2 d 7 h")],
)
def test_durations_as_people_read_them(seconds, text):
    assert duration(seconds) == text


def test_many_names_are_a_few_and_how_many_more():
    assert several([]) == "nobody"
    assert several(["w1", "w2"]) == "w1, w2"
    assert several([f"w{n}" for n in range(1000)]) == "w0, w1, w2, w3, w4 and 995 others"


def test_a_sentence_is_one_line_of_bounded_length():
    text = sentence("WorkerLost", {"worker": "w1", "evidence": "a\n" + "b" * 1000})
    assert text.startswith("contact with w1 is lost: a b") and len(text) <= 240 and "\n" not in text
    assert sentence("StepStable", {}) == ""


# --- what is rare -----------------------------------------------------------------------------------------------------


def training(*workers: str, nodes: tuple[str, ...] = ("a",)) -> Scribe:
    scribe = Scribe()
    scribe.begin()
    scribe.start(workers, nodes)
    scribe.form(workers)
    return scribe


def test_of_very_many_incidents_those_that_cost_most_are_told_and_how_many_are_not():
    scribe = training("w0", "w1")
    for number in range(410):
        scribe.steps(1, replicas=2)
        scribe.kill("w1", ["w0"])
        scribe.now_s += 5.0 * (number == 409)
        scribe.form(["w0", "w1"])
    scribe.steps(1, replicas=2)
    now = made(scribe.lines)
    assert now.headline.incidents == 410 and len(now.incidents) == 400
    assert [one.number for one in now.incidents] == sorted(one.number for one in now.incidents)
    assert now.incidents[-1].cost_s == max(one.cost_s for one in now.incidents) > 5.0
    assert now.notes[0].startswith("11 more incidents are not listed: failures come first, and what cost most")


def test_nodes_that_are_not_drawn_are_counted():
    names = [f"w{number}" for number in range(1030)]
    now = made(training(*names, nodes=tuple(f"n{number:04d}" for number in range(1030))).lines)
    assert len(now.timeline.lanes) == 1024 and now.notes == ("6 more nodes are not drawn.",)


def test_workers_that_came_to_no_node_are_counted_where_lanes_are_nodes():
    scribe = training(*(f"w{number}" for number in range(70)))
    for number in (70, 71):
        scribe.command("StartWorker", "a replica is lost", worker=f"w{number}", gang=0, shard=0, avoid=[], node="")
    now = made(scribe.lines)
    assert [lane.name for lane in now.timeline.lanes] == ["a"]
    assert now.notes == ("Not drawn are workers that came to no node: 2.",)


def test_retries_that_are_not_marked_are_counted():
    scribe = training("w0", "w1")
    scribe.steps(310, replicas=2)
    scribe.kill("w1", ["w0"])
    scribe.form(["w0"], restored_step=-1)
    scribe.steps(310, replicas=1)
    now = made(scribe.lines)
    assert (now.redone, len(now.retries)) == (310, 300) and now.notes == ("10 more retries are not marked.",)


def test_callbacks_are_named_in_the_waterfall():
    scribe = training("w0", "w1")
    scribe.steps(20, replicas=2)
    for line in scribe.lines:
        if line.get("event") == "StepStable":
            line["report"] |= {"times": {"callback_s": 0.04}, "costs": {"Profile": 0.04}}
    (spent,) = [one for one in made(scribe.lines).waterfall.spent if one.category == "callbacks"]
    assert spent.meaning.startswith("callbacks on workers: Profile ")


def test_a_driver_that_takes_over_goes_on_with_the_run():
    scribe = training("w0", "w1")
    scribe.end("driver_failed", "its machine is gone")
    assert made(scribe.lines).headline.ending == "driver failed: its machine is gone"
    scribe.event("RunTakenOver", found=[{"worker": "w0"}, {"worker": "w1"}])
    assert made(scribe.lines).headline.ending == ""


def test_a_spare_that_was_lost_with_its_driver_is_there_no_more():
    scribe = training("w0", "w1")
    scribe.event("WorkerParked", worker="w2")
    assert made(scribe.lines).headline.spares == 1
    scribe.event("RunTakenOver", found=[{"worker": "w0"}])
    after = made(scribe.lines)
    assert after.headline.spares == 0 and after.headline.workers == 2, "of a member the new driver will tell"
    scribe.event("WorkerParked", worker="w2")  # it had only been out of reach
    assert made(scribe.lines).headline.spares == 1


def test_what_is_no_loss_is_not_shown_as_one():
    scribe = training("w0", "w1")
    steps = [{"memory/host_bytes": 3e9}, {"memory/host_bytes": 3e9, "nll": 2.0}, {"evaluation/loss": 9.0, "nll": 1.0}]
    for metrics in steps:
        scribe.steps(1, replicas=2, metrics=metrics)
    found = made(scribe.lines)
    assert found.metric == "nll" and found.headline.loss == 1.0 and found.losses.values == (2.0, 1.0)
    scribe.steps(2, replicas=2)
    found = made(scribe.lines)
    assert found.metric == "loss" and len(found.losses.values) == 2, "the better name, and no other's values"


def test_that_nothing_can_be_restored_is_told_with_its_reason():
    found = sentence("RestoreFound", {"commit": None, "reason": "no step is whole"})
    assert found == "nothing can be restored: no step is whole"
    assert sentence("RestoreFound", {"commit": {"step": 3}, "reason": ""}) == "step 3 can be restored"


def test_a_driver_that_was_lost_is_a_failure_until_a_step_is_committed():
    scribe = training("w0", "w1")
    scribe.steps(20, replicas=2)
    scribe.kill("w1", ["w0"])
    scribe.open = None  # whoever knew of it is gone
    scribe.now_s += 30.0
    scribe.begin()
    scribe.form(["w0"], restored_step=10)
    assert made(scribe.lines).headline.open_incidents == 2
    scribe.steps(3, replicas=1)
    now = made(scribe.lines)
    assert (now.headline.phase, now.headline.incidents, now.headline.open_incidents) == ("running", 2, 0)
    assert now.headline.worst_resume_s == pytest.approx(30.25, abs=0.1)
    assert {one.kind: one.step for one in now.incidents if one.is_failure} == {"worker lost": 11, "driver lost": 11}


def test_a_loss_that_was_looked_at_twice_has_failed_nobody():
    scribe = training("w0", "w1")
    scribe.steps(20, replicas=2)
    scribe.lines[-1]["report"] |= {"started_at_s": scribe.now_s - 0.05, "times": {"since_s": scribe.now_s - 0.1}}
    scribe.lines[-1]["report"]["commit"]["attempt"] = 2
    now = made(scribe.lines)
    (told,) = [one for one in now.incidents if one.kind == "repeated steps"]
    assert not told.is_failure and (now.headline.incidents, now.headline.open_incidents) == (0, 0)


def test_a_member_that_is_left_out_stands_ready_and_who_was_never_there_is_nobody():
    scribe = training("w0", "w1")
    scribe.now_s += 5
    scribe.event("WorkerDead", worker="w9", proof="its process is gone")
    scribe.form(["w0"])
    lanes = {lane.name: lane for lane in made(scribe.lines).timeline.lanes}
    assert [one.state for one in lanes["w1"].segments] == ["starting", "ready", "training", "ready"]
    assert "w9" not in lanes


def test_what_lasted_no_time_is_not_drawn():
    scribe = Scribe()
    scribe.begin()
    scribe.command("StartWorker", worker="w0", gang=0, shard=0, avoid=[], node="a")
    scribe.event("WorkerParked", worker="w0", host="h", port=1, pid=1, layout="l")
    scribe.now_s += 2
    (lane,) = made([*scribe.lines, {"t": scribe.now_s}]).timeline.lanes
    assert [one.state for one in lane.segments] == ["ready"]


def test_fewer_copies_than_asked_for_are_told_and_that_they_are_back():
    scribe = training("w0", "w1")
    for reason in ("1 node for 2 copies", ""):
        scribe.lines.append({"t": scribe.now_s, "checkpoint": "Degraded", "reason": reason})
    assert [one.reason for one in made(scribe.lines).decisions if one.tier == "replicated"] == [
        "1 node for 2 copies",
        "as asked for again",
    ]


def test_whose_pace_is_not_known_is_not_compared():
    scribe = training("w0", "w1", "w2")
    scribe.steps(30, replicas=3, seconds=[0.01, 0.0, 0.03])
    assert {one.worker for one in made(scribe.lines).stragglers} == {"w0", "w2"}


def test_a_setting_of_several_parts_is_one_line():
    scribe = Scribe()
    scribe.settings(page__port=(0, "default"), scaling__width=(1, "default"), chaos__on=(True, "run.yaml"))
    assert [one.value for one in made(scribe.lines).settings] == ["0", "1", "yes"]
    scribe = Scribe()
    scribe.settings(scaling__resources=({"CPU": 2, "GPU": 1}, "run.yaml"), scaling__labels=({}, "default"))
    assert [one.value for one in made(scribe.lines).settings] == ["CPU=2, GPU=1", "none"]


def test_what_was_found_and_what_was_done_on_purpose_have_their_sentences():
    found = {"severity": "restartable", "node": "node-a-0123456789", "kind": "xid", "detail": "XID 94"}
    assert (
        sentence("HardwareFinding", {**found, "device": "GPU-1"})
        == "restartable on node node-a-01234, GPU-1: xid: XID 94"
    )
    assert sentence("HardwareFinding", {**found, "device": ""}) == "restartable on node node-a-01234: xid: XID 94"
    struck = {"fault": {"kind": "kill"}, "target": "w1", "proof": "SIGKILL"}
    assert sentence("FaultInjected", struck) == "fault kill was injected on purpose into w1: SIGKILL"


def test_a_step_that_several_workers_tell_of_counts_once():
    """A step that was skipped is told by each member, since only one knows why."""
    scribe = training("w0", "w1", "w2")
    scribe.steps(30, replicas=3)
    once = made(scribe.lines)
    twice = []
    for line in scribe.lines:
        is_step = line.get("event") == "StepStable"
        twice += [line] + [{**line, "worker": worker} for worker in ("w1", "w2") if is_step]
    assert made(twice) == once


def test_a_step_that_is_told_late_counts_too():
    scribe = training("w0", "w1")
    scribe.steps(30, replicas=2)
    late = scribe.lines.pop(-20)
    now = made([*scribe.lines, late])
    assert sum(now.throughput.values) == pytest.approx(960, rel=0.1) and len(now.losses.values) == 30


def test_a_step_that_nobody_can_tell_of_any_more_is_not_waited_for():
    told = Told()
    assert all(told.is_new(step) for step in range(1, 5000)), "step 0 went with whoever knew of it"
    assert not told.is_new(0) and not told.is_new(4999) and told.is_new(5000)


def test_a_run_that_begins_anew_counts_its_steps_again():
    scribe = training("w0", "w1")
    scribe.steps(30, replicas=2)
    scribe.incarnation, scribe.generation, scribe.step = 2, 0, -1
    scribe.begin()
    scribe.form(["w0", "w1"])
    scribe.steps(10, replicas=2)
    now = made(scribe.lines)
    assert len(now.losses.values) == 40 and (now.headline.step, now.redone) == (9, 10)
