"""Moments: each is told once, when it has happened, with what a user needs to know of it."""

import json
from dataclasses import replace
from math import inf

import pytest

from elastic.callbacks import Callback
from elastic.control import events as ev
from elastic.control.care import Care
from elastic.control.hardware import FindingKind
from elastic.control.moments import (
    MOMENTS,
    NAMES,
    GaveUp,
    IncidentDecided,
    IncidentOpened,
    IncidentResolved,
    Moment,
    NodeQuarantined,
    NoticeHeard,
    Resized,
    RungDegraded,
    RungReached,
    StragglerFound,
    moments,
)
from elastic.control.outcome import Ending, Outcome
from elastic.control.plain import finite, in_json, plain
from elastic.control.state import Phase, RunState, Standing, WorkerRecord
from elastic.control.values import Incident, IncidentClass, Rung
from elastic.control.xid import Severity
from elastic.settings import Limits, RunSettings
from tests.pure.bare_controller import BareController

SETTINGS = RunSettings(run="r", limits=Limits(flap_losses=2))
LOST = Incident(number=0, kind=IncidentClass.WORKER_LOST, opened_at_s=10.0, culprits=("w1",), replicas_before=2)


def state(**changes) -> RunState:
    workers = {name: WorkerRecord(name=name, node="n1", slowness=2.5) for name in ("w1", "w2")}
    return replace(RunState(settings=SETTINGS, workers=workers, seen_s=12.0), **changes)


def told(before: RunState, after: RunState, *events: ev.Event) -> list[Moment]:
    return moments(before, after, events, step=7)


def test_nothing_happens_where_nothing_changes():
    assert told(state(), state()) == []
    assert told(state(), state(seen_s=13.0), ev.Tick()) == []


def test_an_incident_is_opened_decided_and_resolved():
    opened, decided = state(incidents=(LOST,)), state(incidents=(replace(LOST, decision="shrink: no spare"),))
    resolved = state(incidents=(replace(LOST, decision="shrink: no spare", resumed_at_s=10.5, step=8),))
    assert told(state(), opened) == [IncidentOpened(run="r", at_s=10.0, step=7, incident=LOST)]
    (one,) = told(opened, decided)
    assert isinstance(one, IncidentDecided) and one.sentence == "incident 0 decided: shrink: no spare"
    (two,) = told(decided, resolved)
    assert isinstance(two, IncidentResolved) and two.seconds == 0.5
    assert two.sentence == "incident 0 resolved: shrink: no spare; step 8 committed 0.50 s after"
    assert told(resolved, resolved) == []


def test_what_happens_between_two_looks_is_told_in_its_order():
    at_once = replace(LOST, decision="shrink: no spare", resumed_at_s=10.5, step=8)
    kinds = [type(one) for one in told(state(), state(incidents=(at_once,)))]
    assert kinds == [IncidentOpened, IncidentDecided, IncidentResolved]


def test_more_evidence_is_no_news_and_another_decision_is():
    decided = replace(LOST, decision="wait: too few")
    more = replace(decided, evidence=("seen",), culprits=("w1", "w2"))
    assert told(state(incidents=(decided,)), state(incidents=(more,))) == []
    (again,) = told(state(incidents=(more,)), state(incidents=(replace(more, decision="shrink: enough"),)))
    assert isinstance(again, IncidentDecided)


def test_an_incident_that_is_forgotten_is_not_told_again():
    later = replace(LOST, number=3)
    assert told(state(incidents=(LOST, later)), state(incidents=(later,))) == []
    again = told(state(incidents=(later,)), state(incidents=(LOST, later)))
    assert not any(isinstance(one, IncidentOpened) for one in again)


def test_a_straggler_is_told_with_how_slow_it_is():
    slow = replace(LOST, kind=IncidentClass.STRAGGLER)
    opened, straggler = told(state(), state(incidents=(slow,)))
    assert isinstance(opened, IncidentOpened)
    assert straggler == StragglerFound(run="r", at_s=12.0, step=7, worker="w1", node="n1", slowness=2.5)
    assert straggler.sentence == "straggler w1 on node n1: 2.50 times the group's median"
    assert len(told(state(), state(incidents=(slow,), workers={}))) == 1, "who it was is forgotten"


def test_a_notice_is_told_once():
    node = ev.NodeNotice(node="n1", reason="preempted")
    worker = ev.WorkerNotice(worker="w1", reason="SIGTERM")
    found = told(state(), state(), node, worker, node)
    assert [(type(one), one.node, one.worker, one.reason) for one in found] == [
        (NoticeHeard, "n1", "", "preempted"),
        (NoticeHeard, "", "w1", "SIGTERM"),
    ]
    assert [one.sentence for one in found] == ["notice for node n1: preempted", "notice for w1: SIGTERM"]
    assert told(state(leaving={"n1": "preempted"}), state(), node) == []


def test_a_node_that_flaps_is_told_once_with_its_time():
    one, two = LOST, replace(LOST, number=1, opened_at_s=11.0, culprits=("w2",))
    dead = {name: replace(worker, standing=Standing.DEAD) for name, worker in state().workers.items()}
    before, after = state(incidents=(one,), workers=dead), state(incidents=(one, two), workers=dead)
    found = [m for m in told(before, after) if isinstance(m, NodeQuarantined)]
    assert found == [NodeQuarantined(run="r", at_s=12.0, step=7, node="n1", until_s=131.0)]
    assert found[0].sentence == "node n1 is in quarantine for 119 s"
    three = replace(two, number=2, opened_at_s=11.5)
    again = told(after, replace(after, incidents=(one, two, three)))
    assert not any(isinstance(m, NodeQuarantined) for m in again)


def test_a_node_in_quarantine_is_told_whatever_has_brought_it_there():
    """A driver that hangs has no culprit, and opens no incident."""
    ws = BareController(2).run()
    before = ws.state
    what = {"device": "", "kind": FindingKind.DRIVER_HUNG, "severity": Severity.NODE_MUST_GO, "detail": "it hangs"}
    ws.feed(ev.HardwareFinding(node="node-w1", **what))
    assert ws.state.incidents == before.incidents
    (found,) = (one for one in told(before, ws.state) if isinstance(one, NodeQuarantined))
    assert (found.node, found.until_s) == ("node-w1", inf)
    assert found.sentence == "node node-w1 is in quarantine for good"
    assert told(ws.state, replace(ws.state, seen_s=20.0)) == []


def test_a_quarantine_that_is_later_by_the_absence_of_the_driver_is_no_news():
    shut = state(care=Care(quarantine={"n1": 99.0}))
    assert [type(one) for one in told(state(), shut)] == [NodeQuarantined]
    assert told(shut, replace(shut, care=shut.care.moved_by(30.0))) == []
    assert told(shut, replace(shut, care=shut.care.released("n1"))) == []


@pytest.mark.parametrize(
    ("sizes", "more", "told_of"),
    [((), (2,), None), ((2,), (2, 3), (2, 3)), ((2,), (2, 2), None), ((2, 3), (2, 3, 1), (3, 1))],
    ids=["the first size", "growth", "the same size", "shrinking"],
)
def test_a_change_of_size_is_told(sizes, more, told_of):
    ws = BareController(2).run()
    before, after = (replace(ws.state, world_sizes=one, trained=len(one)) for one in (sizes, more))
    found = [(one.replicas_before, one.replicas) for one in told(before, after) if isinstance(one, Resized)]
    assert found == ([told_of] if told_of else [])


@pytest.mark.parametrize("ending", list(Ending))
def test_an_end_without_success_is_told(ending):
    outcome = Outcome(ending=ending, message="it raised\n\nTraceback: secret")
    found = told(state(), state(outcome=outcome))
    if ending in (Ending.SUCCEEDED, Ending.STOPPED, Ending.EXITED):
        assert found == []
    else:
        assert found == [GaveUp(run="r", at_s=12.0, step=7, error=ending.value, message="it raised")]
        assert found[0].sentence == f"the run r gave up after step 7: {ending.value}: it raised"
    assert told(state(outcome=outcome), state(outcome=outcome)) == []


def test_a_controller_that_loses_a_worker_tells_the_whole_story():
    """1. three train 2. one dies 3. two freeze, form, train 4. their first step is stable."""
    ws = BareController((1, 3)).run()
    names: list[str] = []
    last = ws.state

    def look(now: RunState) -> None:
        nonlocal last
        names.extend(one.name for one in moments(last, now, [], -1))
        last = now

    ws.on_state = look
    ws.stable(3)
    ws.die("w1")
    ws.answer("w0", 4)
    ws.answer("w2", 4)
    ws.form()
    ws.stable(5)
    assert names == ["incident_opened", "incident_decided", "resized", "incident_resolved"]


EXAMPLES = [
    IncidentOpened(run="r", at_s=1.0, step=0, incident=LOST),
    IncidentDecided(run="r", at_s=1.0, step=0, incident=LOST),
    IncidentResolved(run="r", at_s=1.0, step=0, incident=LOST, seconds=0.5),
    Resized(run="r", at_s=1.0, step=0, generation=2, replicas_before=3, replicas=2),
    RungReached(run="r", at_s=1.0, step=0, checkpoint_step=0, rung=Rung.DURABLE, copies=2, degraded="", reason=""),
    RungDegraded(run="r", at_s=1.0, step=0, rung="replicated", reason="1 nodes for 2 copies"),
    NoticeHeard(run="r", at_s=1.0, step=0, node="n1", worker="", reason="drained"),
    StragglerFound(run="r", at_s=1.0, step=0, worker="w1", node="n1", slowness=2.0),
    NodeQuarantined(run="r", at_s=1.0, step=0, node="n1", until_s=2.0),
    GaveUp(run="r", at_s=1.0, step=0, error="NoProgressError", message="ten in a row"),
]


def test_there_is_an_example_of_each():
    assert {type(one) for one in EXAMPLES} == set(MOMENTS)


@pytest.mark.parametrize("moment", EXAMPLES, ids=lambda one: one.name)
def test_a_moment_has_a_sentence_and_goes_through_json(moment):
    assert moment.sentence and "\n" not in moment.sentence
    assert json.loads(json.dumps(plain(moment)))["run"] == "r"


@pytest.mark.parametrize("moment", EXAMPLES, ids=lambda one: one.name)
def test_a_callback_is_called_by_the_name_of_the_moment(moment):
    called = []

    class Mine(Callback):
        pass

    setattr(Mine, f"on_{moment.name}", lambda self, one: called.append(one))
    Mine().on_moment(moment)
    Callback().on_moment(moment)
    assert called == [moment]


def test_a_callback_has_a_method_for_each_moment():
    assert {f"on_{name}" for name in NAMES} <= set(dir(Callback))


def test_what_json_does_not_know_is_told_as_text():
    assert plain([1.5, None, {2: b"x"}, Phase.RUNNING]) == [1.5, None, {"2": "b'x'"}, "running"]


def test_what_is_no_finite_number_is_null_in_json():
    told = {"a": [1.5, float("nan"), (float("inf"), "text")], "b": {"c": -float("inf"), "d": 3}}
    null = {"a": [1.5, None, [None, "text"]], "b": {"c": None, "d": 3}}
    assert finite(told) == null and json.loads(in_json(told)) == null and "NaN" not in in_json(told, indent=1)
    assert in_json({"d": 3}) == '{"d": 3}'
