"""Effect. A worker changes its driver: what the new one is told, and that the old one is heeded no more."""

from types import SimpleNamespace

import pytest
from ray.exceptions import GetTimeoutError

from elastic.actors import former, worker
from elastic.actors.worker import frees_group, newest_of_all
from elastic.checkpoint.manifest import ShardKey
from elastic.control import events as ev
from elastic.control.values import NOTHING_COMMITTED, CommitId, Member, StepReport, View
from elastic.control.worker_protocol import Stage
from elastic.errors import ElasticError, SupersededError
from elastic.train.link import Link, SaveOrder
from tests.effects.helpers import LONG_S, Running

MOMENT_S = 0.05
PLACE = {"gang": 3, "shard": 0, "pid": 7}


def view(generation: int, incarnation: int = 1, published: int = -1) -> View:
    return View(
        run="r",
        incarnation=incarnation,
        generation=generation,
        members=(Member("w0", "h", 1),),
        resume=NOTHING_COMMITTED,
        donors=(0,),
        behind=(),
        bootstrap=True,
        published=published,
    )


def stable(step: int) -> ev.StepStable:
    commit = CommitId(1, 1, 1, step, f"s{step}")
    told = {"metrics": {}, "replicas": 1, "samples": 1, "started_at_s": 0.0, "committed_at_s": 0.0}
    return ev.StepStable(worker="w0", report=StepReport(commit=commit, **told))


def stepping() -> Link:
    """In the middle of step 1 of generation 1, under the driver of incarnation 1."""
    link = Link("w0", lease_s=LONG_S, incarnation=1)
    link.arrive(ev.WorkerParked(worker="w0", host="h", port=9, pid=7, layout="l", gpus=("1",)))
    assert link.form(view(1))
    forming = Running(lambda: link.formed(view(1), lambda: None))
    while not link.go(1, 1):
        pass
    assert forming.result()
    with link.applying(CommitId(1, 1, 1, 0, "s0")):
        pass
    link.take_events(0)
    return link


def test_who_is_adopted_has_stopped_and_says_what_it_holds() -> None:
    link = stepping()
    cuts: list[int] = []
    link.cut = lambda: cuts.append(1)
    adopted = link.adopt(2, **PLACE)
    assert (adopted.was, adopted.state.stage) == (Stage.STEPPING, Stage.FROZEN)
    assert (adopted.worker, adopted.gang, adopted.pid) == ("w0", 3, 7)
    assert (adopted.host, adopted.port, adopted.layout, adopted.gpus) == ("h", 9, "l", ("1",))
    assert adopted.state.commit.step == 0 and adopted.state.healed and adopted.view == view(1)
    assert cuts == [1], "whoever waits in a reduction with it is freed"
    assert not link.is_stepping()


def test_who_was_told_to_leave_is_told_from_who_has_ended() -> None:
    told_to, left, ended, raised = (stepping() for _ in range(4))
    for link in (told_to, left):
        link.dismiss(1)
    left.leave(ev.TrainFnReturned(worker="w0", dismissed=True))
    ended.leave(ev.TrainFnReturned(worker="w0"))
    raised.leave(ev.TrainFnRaised(worker="w0", summary="ValueError: no", traceback="line 1"))
    found = [link.adopt(2, **PLACE) for link in (told_to, left, ended, raised, stepping())]
    assert [one.is_dismissed for one in found] == [True, True, False, False, False]
    assert [one.was for one in found] == [Stage.GONE] * 4 + [Stage.STEPPING]


def test_the_old_driver_is_heeded_no_more() -> None:
    link = stepping()
    link.adopt(2, **PLACE)
    for say in (
        lambda: link.touch(1),
        lambda: link.take_events(0, 1),
        lambda: link.restore(NOTHING_COMMITTED, 1, 1),
        lambda: link.pause(1, 1),
        lambda: link.adopt(2, **PLACE),
    ):
        with pytest.raises(SupersededError, match="one of incarnation 2 has taken the run over"):
            say()
    assert link.freeze(1, 1) is None
    assert not link.form(view(2, incarnation=1))
    link.finish(1)
    link.dismiss(1)
    assert link.state.stage is Stage.FROZEN
    assert link.form(view(2, incarnation=2))


def test_the_old_drivers_call_ends_at_once_and_takes_nothing_with_it() -> None:
    link = stepping()
    waiting = Running(lambda: link.take_events(LONG_S, 1))
    adopting = Running(lambda: link.adopt(2, **PLACE))
    adopting.result()
    with pytest.raises(SupersededError):
        waiting.result()
    link.post(ev.AtDoor(worker="w0", generation=2))
    assert link.take_events(0, 2) == [ev.AtDoor(worker="w0", generation=2)]


def test_reports_are_told_again_until_the_journal_has_them() -> None:
    link = stepping()
    for step in range(4):
        link.post(stable(step))
    assert link.take_events(0) == [stable(step) for step in range(4)], "the old driver has them, and dies"
    link.told(1, 1)
    link.post(stable(4))
    link.adopt(2, **PLACE)
    assert link.take_events(0) == [stable(2), stable(3), stable(4)]
    link.told(1, 3)
    link.adopt(3, **PLACE)
    assert link.take_events(0) == [stable(4)]
    link.form(view(2, incarnation=3, published=4))
    link.told(1, 2)  # of the generation before: it says nothing of this one
    link.adopt(4, **PLACE)
    assert link.take_events(0) == []


def test_what_every_driver_must_hear_is_told_again_once() -> None:
    link = stepping()
    link.notice("SIGTERM")
    assert link.take_events(0) == [ev.WorkerNotice(worker="w0", reason="SIGTERM")]
    link.end_loop()
    raised = ev.TrainFnRaised(worker="w0", summary="ValueError", traceback="")
    link.leave(raised)
    adopted = link.adopt(2, **PLACE)
    assert adopted.notice == "SIGTERM"
    assert adopted.was is Stage.GONE
    told = link.take_events(0)
    assert [type(event) for event in told] == [ev.WorkerNotice, ev.LoopEnded, ev.TrainFnRaised]


def test_who_is_forsaken_saves_its_state_and_leaves() -> None:
    link = stepping()
    forsaking = Running(lambda: link.forsake(LONG_S, LONG_S))
    assert isinstance(link.wait_for_orders(), SaveOrder)
    assert link.state.stage is Stage.FROZEN
    link.saved()
    forsaking.result()


@pytest.mark.parametrize(("lease_s", "is_asked"), [(LONG_S, True), (0.0, False)])
def test_who_has_lost_somebody_before_saves_whoever_it_is(lease_s: float, is_asked: bool) -> None:
    """Who usually saves may be who was lost; but whose group breaks at the end was cut by others who leave."""
    link = stepping()
    link.broke("connection reset")
    forsaking = Running(lambda: link.forsake(LONG_S, lease_s))
    assert link.wait_for_orders() == SaveOrder(is_asked=is_asked)
    link.saved()
    forsaking.result()


def test_a_driver_that_comes_while_the_state_is_saved_has_the_worker() -> None:
    link = stepping()
    forsaking = Running(lambda: link.forsake(LONG_S, LONG_S))
    assert isinstance(link.wait_for_orders(), SaveOrder)
    link.adopt(2, **PLACE)
    forsaking.result()
    assert link.silent_s < LONG_S
    assert link.form(view(2, incarnation=2))


def test_a_driver_that_is_heard_again_while_the_state_is_saved_is_told_who_has_stopped() -> None:
    """It has missed nothing that it knows of, and so asks nobody to stop."""
    link = stepping()
    forsaking = Running(lambda: link.forsake(LONG_S, LONG_S))
    assert isinstance(link.wait_for_orders(), SaveOrder)
    link.touch()
    (answer,) = [one for one in link.take_events(0) if isinstance(one, ev.FreezeAnswered)]
    assert (answer.generation, answer.commit) == (1, link.state.commit)
    link.saved()
    forsaking.result()


def test_what_is_saved_is_known_to_who_leaves_though_the_driver_was_told_of_it() -> None:
    """A driver may hear of it and die: nobody else has it uploaded."""
    link, place = stepping(), {"shard": 0, "shards": 1}
    assert link.sealed is None
    for step in (0, 1):
        link.post(ev.ShardStaged(worker="w0", commit=CommitId(1, 1, 1, step, f"s{step}"), nbytes=1, **place))
        link.take_events(0)
    assert link.sealed is not None and link.sealed.commit.step == 1


@pytest.mark.parametrize(
    ("worker", "living", "frees"),
    [
        ("w0", {"w0", "w2"}, True),
        ("w0", {"w0", "w4"}, None),
        ("w4", {"w0", "w4"}, False),
        ("w4", {"w4", "w2"}, True),
        ("w9", {"w0", "w9"}, True),
    ],
)
def test_the_slots_of_a_replica_are_freed_by_the_last_of_its_orphans(
    worker: str, living: set[str], frees: bool | None
) -> None:
    """They go with all who are in them: a mate may be uploading yet. Who belongs to no replica waits for nobody."""
    mates = ("w0", "w4") if worker != "w9" else ()
    assert frees_group(worker, mates, living) is frees


def keys(shard: int, *steps: int, generation: int = 1) -> list[ShardKey]:
    commits = [CommitId(1, generation, 1, step, f"s{step}") for step in steps]
    return [ShardKey(commit=commit, shard=shard, shards=2) for commit in commits]


@pytest.mark.parametrize(
    ("mine", "theirs", "step"),
    [
        (keys(0, 3, 6, 7), keys(1, 3, 6), 6),
        (keys(0, 3, 6), keys(1, 3, 6, 7), 6),
        (keys(0, 6, 7), keys(1, 6, 7), 7),
        (keys(0, 3, 7), keys(1, 3, 6), 3),
        (keys(0, 3, 7) + keys(1, 3), [], 3),
        (keys(0, 7), keys(1, 6), 7),
        (keys(0, 6, 7) + keys(0, 4, generation=2), keys(1, 6, 7) + keys(1, 4, generation=2), 4),
    ],
)
def test_mates_make_the_newest_step_durable_that_all_of_them_have_sealed(
    mine: list[ShardKey], theirs: list[ShardKey], step: int
) -> None:
    """One may have applied a step that the other was only prepared for. Of a mate that is gone, its node may know."""
    last = ev.ShardStaged(worker="w0", commit=CommitId(1, 1, 1, 7, "s7"), shard=0, shards=2, nbytes=1)
    assert newest_of_all(last, mine, theirs).commit.step == step


def test_who_holds_nothing_saves_nothing() -> None:
    link = Link("w0", lease_s=LONG_S)
    link.arrive(ev.WorkerParked(worker="w0", host="h", port=9, pid=7, layout="l"))
    Running(lambda: link.forsake(LONG_S, LONG_S)).result()


def test_who_has_stopped_saves_the_state_that_it_is_asked_for_once() -> None:
    link, held = stepping(), CommitId(1, 1, 1, 0, "s0")
    link.save(held, 1)
    assert not link._has_to_save(), "it has not stopped"
    link.freeze(1, 1)
    link.save(CommitId(1, 1, 1, 1, "s1"), 1)
    assert not link._has_to_save(), "it holds another one"
    link.save(held, 1)
    assert link.wait_for_orders() == SaveOrder(is_asked=True)
    link.saved()
    link.save(held, 1)
    assert not link._has_to_save(), "it has saved it"
    assert link.form(view(2))
    assert link.wait_for_orders() == view(2)


def test_a_generation_that_is_formed_comes_before_an_order_to_save() -> None:
    link = stepping()
    link.freeze(1, 1)
    link.save(CommitId(1, 1, 1, 0, "s0"), 1)
    link.form(view(2))
    assert link.wait_for_orders() == view(2)
    with pytest.raises(SupersededError):
        link.adopt(2, **PLACE)
        link.save(CommitId(1, 1, 1, 0, "s0"), 1)


@pytest.mark.parametrize(
    ("silent_s", "sentence"),
    [(0.1, "trains on this cluster already"), (None, "has not answered for 0 s, and Ray takes it for alive")],
    ids=["its driver lives", "it says nothing"],
)
def test_a_driver_that_lives_is_told_from_one_whose_supervisor_says_nothing(monkeypatch, silent_s, sentence):
    """Who takes another name for the second leaves workers behind that wait for their next driver."""

    def get(silent: float | None, timeout: float) -> float:
        if silent is None:
            raise GetTimeoutError
        return silent

    for name in ("_LIVES_S", "_LOST_S"):
        monkeypatch.setattr(former, name, 0.0)
    monkeypatch.setattr(former.ray, "get", get)
    actor = SimpleNamespace(silent_s=SimpleNamespace(remote=lambda: silent_s))
    waiting = SimpleNamespace(_run="night", _actor=lambda name: actor)
    with pytest.raises(ElasticError, match=sentence):
        former.Former._end_supervisor(waiting)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_orphan", [True, False])
def test_slots_that_nobody_has_yet_are_given_up_by_orphans(monkeypatch, is_orphan):
    """Else they would get what the orphans free, for a run that nobody drives."""
    states = {
        "elastic-night@1-gang0x1": "CREATED",
        "elastic-night@1-gang1x1": "PENDING",
        "elastic-night@2-gang2x1": "PENDING",
        "elastic-night@3-gang3x1": "PENDING",
        "elastic-night@1-gang4x1": "RESCHEDULING",
        "elastic-night-2@1-gang1x1": "PENDING",
        "another": "PENDING",
    }
    table = {f"{number:036x}": {"name": name, "state": state} for number, (name, state) in enumerate(states.items())}
    removed: list[str] = []
    monkeypatch.setattr(worker, "placement_group_table", lambda: table)
    monkeypatch.setattr(worker, "remove_placement_group", lambda group: removed.append(table[group.id.hex()]["name"]))
    link = SimpleNamespace(silent_s=9.0 if is_orphan else 0.0)
    orphan = SimpleNamespace(_link=link, _orphan_lease_s=5.0, _run="night", heeded=lambda: 2)
    worker.RayWorkerHost._free_what_waits(orphan)  # type: ignore[arg-type]
    assert removed == (["elastic-night@1-gang1x1", "elastic-night@2-gang2x1"] if is_orphan else [])
