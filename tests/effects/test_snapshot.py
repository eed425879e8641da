"""Effect. Snapshots of one worker: they hold the state at the door, whatever the training does meanwhile."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastic.checkpoint.arena import Arena, free_bytes
from elastic.checkpoint.manifest import Manifest
from elastic.control import events as ev
from elastic.control.values import Member, View
from elastic.errors import StateError
from elastic.policies.interval import Schedule
from elastic.settings import Checkpoint, Interval
from elastic.train import copies, snapshot
from elastic.train.copies import Copies, HostCopies
from tests.effects.book import EVERY, RUN, Book, staged, wait_for_slots
from tests.effects.helpers import LONG_S
from tests.effects.idiom import STEPS, Numbers, Training, assert_like_a_plain_loop, once, raised, trained
from tests.effects.solo import Solo
from tests.effects.test_arena import manifest_of
from tests.effects.tmpfs import mounted


@pytest.fixture(autouse=True)
def large(monkeypatch: Any) -> None:
    """State is copied beside the training, as if there were much of it."""
    monkeypatch.setattr(copies, "AT_ONCE_BYTES", 0)


# --- the state at the door --------------------------------------------------------------------------------------------


def test_c01_every_step_is_sealed_as_it_was_at_the_door(book: Book) -> None:
    ended = book.solo().run(trained(book.note))
    assert_like_a_plain_loop(ended)
    assert staged(ended) == list(range(STEPS))
    book.assert_sealed(3, 2, 1)
    newest = book.sealed[0]
    assert newest.commit == ended.reports[-1].commit
    assert (newest.run, newest.shard, newest.shards, newest.replicas, newest.forks) == (RUN, 0, 1, 1, ())
    assert abs(newest.taken_at_s - time.time()) < 2 * LONG_S
    paths = [entry.path for entry in newest.entries]
    assert "/model/weight" in paths
    assert "/optimizer/state/0/momentum_buffer" in paths
    assert all(entry.begin % 64 == 0 for entry in newest.entries)


def test_what_is_not_copied_in_time_is_copied_before_the_optimizer_runs(book: Book, monkeypatch: Any) -> None:
    """The thread beside does not come to it at all: the training thread does it at the fence."""
    work, by = HostCopies._work, []

    def late(self: HostCopies, *sums: Any) -> None:
        if threading.current_thread().name != "elastic-copies":
            by.append(len(self._pieces))
            work(self, *sums)

    monkeypatch.setattr(HostCopies, "_work", late)
    ended = book.solo().run(trained(book.note))
    assert_like_a_plain_loop(ended)
    assert max(by) > 0
    book.assert_sealed(3, 2, 1)


def test_the_optimizer_waits_for_a_copy_that_somebody_has_in_hand(book: Book, monkeypatch: Any) -> None:
    pieces, slow = copies._pieces, []

    class Slow:
        def __init__(self, target: torch.Tensor) -> None:
            self.target = target
            self.nbytes, self.data_ptr = target.nbytes, target.data_ptr

        def copy_(self, source: torch.Tensor) -> None:
            time.sleep(0.1)
            slow.append(source.numel())
            self.target.copy_(source)

    monkeypatch.setattr(copies, "_pieces", lambda target, source: [(Slow(t), s) for t, s in pieces(target, source)])
    ended = book.solo().run(trained(book.note))
    assert_like_a_plain_loop(ended)
    assert slow
    book.assert_sealed(3, 2, 1)


def never(self: HostCopies, *sums: Any) -> None:
    """A thread that does not come to its work; others do."""
    if threading.current_thread().name != "elastic-copies":
        HostCopies.__dict__["_original"](self, *sums)


@pytest.fixture
def idle(monkeypatch: Any) -> None:
    """Nothing is copied but by who waits for it."""
    monkeypatch.setattr(HostCopies, "_original", HostCopies._work, raising=False)
    monkeypatch.setattr(HostCopies, "_work", never)


class Rich(Training):
    """With buffers, a moving average, and a frozen parameter."""

    def __init__(self, session: Any) -> None:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
        model[2].bias.requires_grad_(False)
        super().__init__(session, model)
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        session.track(average=self.average)
        self.batches = session.batches(Numbers(12), batch_size=6, micro_batch_size=2)


def test_what_changes_outside_of_apply_is_copied_at_the_door(book: Book, idle: None) -> None:
    """Buffers in each forward; an average of the parameters, by a user who moves it before the optimizer runs."""

    def train_fn(session: Any) -> None:
        training = Rich(session)
        for step in training.steps():
            with step:
                book.note(step, training, "start")
                training.compute(step)
                if step.index > 0:
                    training.average.update_parameters(training.model)
                training.apply(step)
            book.note(step, training, "after")

    ended = book.solo().run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    book.assert_sealed(3, 2, 1)


def test_an_evaluation_that_swaps_the_weights_and_puts_them_back_is_not_copied(book: Book, idle: None) -> None:
    def train_fn(session: Any) -> None:
        training = Training(session)

        def swapped(_: Any) -> dict[str, float]:
            kept = training.parameters
            with torch.no_grad():
                training.model.weight.zero_()
            copying = session._replica.snapshots._copying
            if copying is not None:  # the thread beside comes to its work just now
                copying.copies.fence(LONG_S)
            for parameter, before in zip(training.model.parameters(), kept, strict=True):
                parameter.data.copy_(before)
            return {}

        session.evaluate_every(1, swapped)
        for step in training.steps():
            with step:
                book.note(step, training, "start")
                training.compute(step)
                training.apply(step)
            book.note(step, training, "after")

    ended = book.solo().run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    book.assert_sealed(3, 2, 1)


def test_who_changes_parameters_elsewhere_says_so(book: Book, idle: None) -> None:
    def hook(step: Any, training: Training, place: str) -> None:
        book.note(step, training, place)
        if place == "before":
            with training.session.mutating(), torch.no_grad():
                training.model.weight.zero_()

    ended = book.solo().run(trained(hook))
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    book.assert_sealed(3, 2, 1)


def test_healed_state_is_installed_when_the_copies_are_done(book: Book, idle: None, monkeypatch: Any) -> None:
    def heal(groups: Any, view: View, tracked: Any, *about: Any) -> Any:
        def install() -> None:
            for tensor in tracked.flatten().tensors if view.behind else ():
                tensor.fill_(1)
            installed.append(view.generation)

        return install

    solo, installed = book.solo(), list[int]()
    form = solo.link.form
    monkeypatch.setattr(solo.link, "form", lambda view: form(replace(view, behind=(0,) if view.generation > 1 else ())))
    monkeypatch.setattr("elastic.train.session.heal", heal)
    failure = once(1, "batch", lambda step, training: solo.break_generation())

    def hook(step: Any, training: Training, place: str) -> None:
        failure(step, training, place)
        if step.is_committed or place != "after":
            book.note(step, training, place)

    ended = solo.run(trained(hook, max_steps=3))
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert installed == [1, 2]
    book.assert_sealed(2, 1, 0)


def test_a_step_mostly_runs_while_its_predecessor_is_copied(book: Book, monkeypatch: Any) -> None:
    """The copies of step s begin before the forward of s + 1, and nobody waits for them before its apply."""
    release, order = threading.Event(), []
    work = HostCopies._work

    def held(self: HostCopies, *sums: Any) -> None:
        if threading.current_thread().name == "elastic-copies":
            assert release.wait(LONG_S)
            order.append("copied")
        work(self)

    def hook(step: Any, training: Training, place: str) -> None:
        book.note(step, training, place)
        if step.index == 1 and place == "reduced":
            order.append("computed")
            release.set()

    monkeypatch.setattr(HostCopies, "_work", held)
    book.solo().run(trained(hook))
    assert order[:2] == ["computed", "copied"]
    book.assert_sealed(3, 2, 1)


# --- stable, or nothing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["start", "batch", "reduced"])
def test_a_step_that_is_tried_again_after_its_predecessor_was_staged(place: str, book: Book) -> None:
    solo = book.solo()
    failure = once(2, place, lambda step, training: solo.break_generation())

    def hook(step: Any, training: Training, where: str) -> None:
        failure(step, training, where)
        if where != "after" or step.is_committed:
            book.note(step, training, where)

    ended = solo.run(trained(hook))
    assert_like_a_plain_loop(ended)
    assert failure.calls
    assert staged(ended) == list(range(STEPS))
    told = {report.commit.step: report.commit for report in ended.reports}
    assert all(one.commit == told[one.commit.step] for one in book.sealed)
    book.assert_sealed(3, 2, 1)


def replica_of(solo: Solo, act: Any) -> Any:
    """What `act(replica, step)` returns inside of step 1, when step 0 is staged, and not stable; and the run."""
    found = []

    def hook(step: Any, training: Training, place: str) -> None:
        if place == "start":
            wait_for_slots(training.session)
        if step.index == 1 and place == "start":
            found.append(act(training.session._replica, step))

    ended = solo.run(trained(hook))
    return found[0], ended


def test_a_staged_step_that_is_not_stable_yet_cannot_be_read(book: Book) -> None:
    assert replica_of(book.solo(), lambda replica, step: book.sealed)[0] == []


@pytest.mark.parametrize("replaced", [(), ("w0",)])
def test_a_staged_step_whose_line_is_left_is_never_sealed(replaced: tuple[str, ...], book: Book) -> None:
    """The others resume from another outcome of the same step; of a replica they may have lost another worker, too."""

    def leave_it(replica: Any, step: Any) -> list[bool]:
        commit = replica.link.state.commit
        theirs = type(commit)(commit.incarnation, commit.generation, 2, commit.step, "another lineage")
        view = View(
            run=RUN,
            incarnation=1,
            generation=2,
            members=replica.view.members,
            resume=theirs,
            donors=(0,),
            behind=(),
            replaced=replaced,
        )
        replica.resume(view)
        replica.snapshots.flush()
        return [slot.is_busy for slot in replica.snapshots._arena._slots]

    busy, ended = replica_of(book.solo(), leave_it)
    assert busy == [False] * 3
    assert staged(ended) == [1, 2, 3]


@pytest.mark.parametrize("interval", [Interval(steps=1), Interval(steps=1000)])
def test_what_is_held_is_sealed_when_it_is_asked_for(interval: Interval, book: Book) -> None:
    """Whether or not it is staged already, and waits to become stable; by a worker that stages nothing else, too."""
    seen: list[list[int]] = []

    def hook(step: Any, training: Training, place: str) -> None:
        snapshots = training.session._replica.snapshots
        if place == "start":
            wait_for_slots(training.session)
        if step.index == 2 and place == "start":
            snapshots._is_stager = False
            for is_asked in (False, True, True):
                snapshots.save(training.session._link.state.commit, 1, is_asked)
                seen.append([one.commit.step for one in book.sealed])
            snapshots._is_stager = True

    ended = book.solo(interval).run(trained(hook))
    assert_like_a_plain_loop(ended)
    assert seen == [[0], [1, 0], [1, 0]]
    assert staged(ended).count(1) == 1


def test_slots_are_free_again_after_steps_that_were_dropped(book: Book) -> None:
    def drop(replica: Any, step: Any) -> int:
        for _ in range(10):
            replica.snapshots.drop()
            replica.snapshots.flush()
            step.commit, step.is_staged = replica.link.state.commit, True
            replica.snapshots.committed(step)
            replica.snapshots.at_door()
        return replica.snapshots.skipped

    assert replica_of(book.solo(), drop)[0] == 0


def test_slots_are_sealed_in_the_order_of_their_steps(book: Book, monkeypatch: Any) -> None:
    """Else an older one could pass for the newest, which is never written over."""
    sums, calls = snapshot.sums, []

    def slow(payload: Any, manifest: Manifest, known: Any) -> Any:
        time.sleep(0.2 if not calls else 0.0)
        calls.append(manifest.commit.step)
        return sums(payload, manifest, known)

    monkeypatch.setattr(snapshot, "sums", slow)
    ended = book.solo().run(trained(max_steps=200))
    assert staged(ended) == sorted(staged(ended)) == calls
    assert len(calls) >= 2
    assert book.sealed[0].commit.step == 199, "the last step was left out for want of a slot"


# --- when -------------------------------------------------------------------------------------------------------------


def test_only_the_steps_of_the_interval_and_the_last_are_staged(book: Book) -> None:
    ended = book.solo(Interval(steps=2)).run(trained(book.note))
    assert staged(ended) == [0, 2, 3]
    book.assert_sealed(3, 2, 0)
    (told,) = [event for event in ended.events if isinstance(event, ev.IntervalChosen)]
    assert (told.tier, told.reason) == ("memory", "set to every 2 steps")


def test_a_measured_interval_is_told_with_what_it_follows_from(book: Book) -> None:
    ended = book.solo(Interval()).run(trained(book.note))
    assert {0, 3} <= set(staged(ended))
    told = [event.reason for event in ended.events if isinstance(event, ev.IntervalChosen)]
    assert any("a stall of" in reason and "a failure every" in reason for reason in told), told


def test_the_wait_for_a_long_step_to_be_stable_is_no_cost_of_its_snapshot(book: Book, monkeypatch: Any) -> None:
    """A step becomes stable with the next one, so only what has kept cores busy may put the next snapshot off."""
    busy_s: list[float] = []
    monkeypatch.setattr(Schedule, "arrived", lambda _, seconds: busy_s.append(seconds))

    def long(step: Any, training: Training, place: str) -> None:
        book.note(step, training, place)
        if place == "batch":
            time.sleep(1.0)  # several times a step

    book.solo().run(trained(long))
    assert len(busy_s) == STEPS - 1 and min(busy_s[1:]) > 0.0
    assert max(busy_s) < 2.0, "a whole step was counted"


def test_a_fourth_slot_is_there_where_other_nodes_take_copies(book: Book) -> None:
    book.solo(peers=1).run(trained(book.note))
    assert len(list(book.directory.glob("*.slot"))) == 4


def test_phases_are_staged_after_the_last_of_a_step(book: Book) -> None:
    def train_fn(session: Any) -> None:
        training = Training(session)
        for step in session.steps(training.batches, max_steps=3, phases=2):
            with step:
                wait_for_slots(session)
                training.compute(step)
                training.apply(step)

    assert staged(book.solo().run(train_fn)) == [1, 3, 5]


def left_after(book: Book, index: int, max_steps: int = 1000) -> Any:
    """A train_fn that leaves its loop after this step."""

    def train_fn(session: Any) -> None:
        training = Training(session)
        for step in training.steps(max_steps):
            with step:
                book.note(step, training, "start")
                training.compute(step)
                training.apply(step)
            book.note(step, training, "after")
            if step.index == index:
                break

    return train_fn


def test_a_loop_that_is_left_early_stages_what_it_ends_with(book: Book) -> None:
    """By `break`, as a goal or a number of epochs is reached: nobody knew that this step would be the last."""

    ended = book.solo(Interval(steps=100)).run(left_after(book, 2))
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert staged(ended) == [0, 2]
    book.assert_sealed(2, 0)


def test_a_loop_that_is_taken_up_again_has_staged_the_step_after_which_it_was_left(book: Book) -> None:
    def train_fn(session: Any) -> None:
        training = Training(session)
        for until in (2, STEPS):
            for step in training.steps():
                with step:
                    book.note(step, training, "start")
                    training.compute(step)
                    training.apply(step)
                book.note(step, training, "after")
                if step.index == until:
                    break

    ended = book.solo(Interval(steps=2)).run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert staged(ended) == [0, 2, 3]
    book.assert_sealed(3, 2, 0)


def test_c23_a_loop_that_is_left_early_seals_what_it_has_staged(book: Book) -> None:
    assert staged(book.solo().run(left_after(book, 1, STEPS))) == [0, 1]
    book.assert_sealed(1, 0)


def test_one_worker_of_a_host_stages_a_shard() -> None:
    hosts = ["a", "a", "a", "a", "b", "b", "a", "c"]  # four replicas of two workers
    members = tuple(Member(f"w{n}", host, 1) for n, host in enumerate(hosts))
    shape = {"run": RUN, "incarnation": 1, "generation": 1, "donors": (0,), "behind": ()}
    view = View(members=members, resume=snapshot.CommitId(1, 1, 1, 0, ""), width=2, **shape)
    assert [m.worker for m in members if view.is_first_of_its_shard(m.worker)] == ["w0", "w1", "w4", "w5", "w7"]


def test_who_stages_no_more_leaves_room_for_who_does(book: Book, idle: None, monkeypatch: Any) -> None:
    """Another worker of its host comes first from now on; what it has sealed stays until there is newer."""
    monkeypatch.setattr(View, "is_first_of_its_shard", lambda view, worker: view.generation == 1)
    failure = once(2, "batch", lambda step, training: solo.break_generation())
    solo, held = book.solo(), list[tuple[int, bool]]()

    def hook(step: Any, training: Training, place: str) -> None:
        failure(step, training, place)
        if place == "after" and step.is_committed:
            snapshots = training.session._replica.snapshots
            snapshots._settle()
            held.append((step.index, bool(snapshots._arena._slots)))

    assert_like_a_plain_loop(solo.run(trained(hook)))
    assert failure.calls and dict(held)[1] and not dict(held)[STEPS - 1]
    assert book.sealed


# --- what it costs where it is not wanted, or has no room -------------------------------------------------------------


def test_without_a_checkpoint_nothing_is_made(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Arena, "__init__", lambda *_: pytest.fail("an arena was made"))
    assert_like_a_plain_loop(Solo(tmp_path).run(trained()))
    assert not any(path.name.endswith(".slot") for path in tmp_path.iterdir())


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 64 KiB, of which the flight page takes 4."""
    with mounted(tmp_path, "64k") as directory:
        yield directory


def test_c18_where_there_is_no_room_training_goes_on_and_it_is_told_once(tiny: Path) -> None:
    (tiny / "filler").write_bytes(bytes(52 << 10))
    book = Book(tiny)
    ended = book.solo().run(trained())
    assert_like_a_plain_loop(ended)
    (parked,) = [event for event in ended.events if isinstance(event, ev.WorkerParked)]
    assert parked.slot_bytes > parked.free_bytes > 0 and parked.no_room, "it was known before"
    (told,) = [event for event in ended.events if isinstance(event, ev.TierDegraded)]
    assert told.tier == "memory"
    assert "Checkpoint.memory" in told.reason
    assert staged(ended) == []


def test_where_the_directory_of_the_memory_tier_is_missing_training_goes_on_and_it_is_told_once(tmp_path: Path) -> None:
    """As on the node of a replacement, where nobody has mounted it."""
    checkpoint = Checkpoint(local_interval=EVERY, memory=str(tmp_path / "nowhere"), peers=0)
    ended = Solo(tmp_path, checkpoint=checkpoint, blame_grace_s=0.05).run(trained())
    assert_like_a_plain_loop(ended)
    (told,) = [event for event in ended.events if isinstance(event, ev.TierDegraded)]
    assert told.tier == "memory" and "nowhere cannot be used: [Errno 2]" in told.reason
    assert staged(ended) == []


def leave_two_steps(directory: Path) -> None:
    """What a worker of an earlier life has sealed there."""
    dead = Arena(directory, RUN, 0, "w9")
    for step in (1, 2):
        slot = dead.begin(4096)
        assert slot is not None
        dead.seal(slot, manifest_of(slot.payload[:4096], step, RUN, incarnation=0))
    dead.close()


def test_c18_beside_what_a_dead_worker_has_sealed_snapshots_begin_in_one_slot_and_more_follow(tiny: Path) -> None:
    leave_two_steps(tiny)
    book = Book(tiny)
    (tiny / "filler").write_bytes(bytes(free_bytes(tiny) - (22 << 10)))  # a slot and its manifest take 12 KiB
    ended = book.solo().run(trained(book.note))
    assert_like_a_plain_loop(ended)
    assert [event for event in ended.events if isinstance(event, ev.TierDegraded)] == []
    assert staged(ended)[-1] == STEPS - 1
    assert [one.commit.step for one in book.sealed][0] == STEPS - 1


def test_c18_what_somebody_reads_of_a_dead_worker_keeps_its_heir_waiting_and_not_from_its_tier(tiny: Path) -> None:
    """Both steps that the dead one has left are held until the heir has sealed its first."""
    leave_two_steps(tiny)
    book = Book(tiny)
    held = [book.source.read(one.key, 0, 1) for one in book.sealed]
    (tiny / "filler").write_bytes(bytes(free_bytes(tiny) - (18 << 10)))  # a slot and its manifest take 12 KiB

    def hook(step: Any, training: Training, place: str) -> None:
        book.note(step, training, place)
        if place == "start" and step.index == 2:
            assert training.session._replica.snapshots.skipped > 0, "there was room for a second slot"
            held.clear()

    ended = book.solo().run(trained(hook))
    assert_like_a_plain_loop(ended)
    assert [event for event in ended.events if isinstance(event, ev.TierDegraded)] == []
    assert staged(ended)[0] == 0 and staged(ended)[-1] == STEPS - 1


def test_what_fails_twice_for_want_of_room_is_told_once(book: Book) -> None:
    def fail_twice(replica: Any, step: Any) -> None:
        for _ in range(2):
            replica.snapshots._start(lambda: replica.snapshots._arena.reserve(1 << 60))
        replica.snapshots.flush()

    _, ended = replica_of(book.solo(), fail_twice)
    assert len([event for event in ended.events if isinstance(event, ev.TierDegraded)]) == 1
    assert_like_a_plain_loop(ended)


def test_c15_c17_a_snapshot_that_fails_for_another_reason_ends_the_run(book: Book, monkeypatch: Any) -> None:
    """An error nobody hears would leave the run without snapshots for ever (C15)."""

    def broken(*_: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(snapshot, "sums", broken)
    ended = book.solo().run(trained(book.note, max_steps=50))
    assert "a snapshot failed: ValueError: a bug" in raised(ended, "StateError")


@pytest.mark.parametrize("is_slow", [False, True])
def test_c15_a_seal_that_fails_at_the_last_step_is_no_success(book: Book, monkeypatch: Any, is_slow: bool) -> None:
    """Nor is one that takes for ever: nobody waits for it after that."""
    seal, let_go = snapshot.Snapshots._seal, threading.Event()

    def broken(self: Any, one: Any) -> None:
        if one.manifest.commit.step < STEPS - 1:
            seal(self, one)
        elif is_slow:
            self._timeout_s = 0.1
            let_go.wait(LONG_S)
        else:
            raise ValueError("a bug")

    def train_fn(session: Any) -> None:
        try:
            trained(book.note)(session)
        finally:
            let_go.set()

    monkeypatch.setattr(snapshot.Snapshots, "_seal", broken)
    ended = book.solo().run(train_fn)
    wanted = "not sealed within Limits.door_timeout_s" if is_slow else "a snapshot failed: ValueError: a bug"
    assert wanted in raised(ended, "StateError")


@pytest.mark.parametrize("is_left_early", [False, True])
def test_a_last_step_for_which_no_slot_is_free_is_no_success(book: Book, monkeypatch: Any, is_left_early: bool) -> None:
    """An older one would be taken for the result."""
    begin = snapshot.Snapshots._begin

    def full(self: Any, commit: Any, replicas: int) -> Any:
        self._timeout_s = 0.2
        return None if commit.step == STEPS - 1 else begin(self, commit, replicas)

    monkeypatch.setattr(snapshot.Snapshots, "_begin", full)
    solo = book.solo(Interval(steps=100)) if is_left_early else book.solo()
    ended = solo.run(left_after(book, STEPS - 1) if is_left_early else trained(book.note))
    assert "the last step is not kept: all slots were held by readers" in raised(ended, "StateError")


def test_a_copy_that_fails_is_raised_where_it_is_waited_for() -> None:
    class Broken:
        nbytes = 0

        def numel(self) -> int:
            return 1

        def copy_(self, source: torch.Tensor) -> None:
            raise RuntimeError("no such memory")

    one: Any = Copies([], [(Broken(), torch.zeros(1))])  # type: ignore[list-item]
    for _ in range(2):
        with pytest.raises(StateError, match="no such memory"):
            one.fence(LONG_S)
