"""Effect. Loader processes: what they load is what the training thread would have loaded, and they end with it."""

import os
import random
import signal
import threading
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from elastic.control import events as ev
from elastic.control.data import MicroBatch, even
from elastic.errors import SettingError
from elastic.train.data import make_batches
from elastic.train.replica import Replica
from tests.effects.helpers import child, eventually, hear
from tests.effects.idiom import BATCH, MICRO, STEPS, Training, raised

pytestmark = pytest.mark.timeout(120)


class Drawing:
    """Each sample draws from every source of random numbers, and tells who loaded it."""

    def __init__(self, broken: int = -1, deadly: Path | None = None) -> None:
        self._broken, self._deadly = broken, deadly

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int | float]:
        if index == self._broken:
            raise KeyError(f"sample {index} is broken")
        if self._deadly is not None and index == 5 and not self._deadly.exists():
            self._deadly.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        drawn = random.random() + np.random.rand() + float(torch.rand(()))
        return {"index": index, "drawn": drawn, "pid": os.getpid()}


class Whole(Drawing):
    """Fetches a whole list of samples at once."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor | int | float]]:
        return [self[index] for index in indices]


def batches_of(dataset, workers, **more):
    return make_batches(
        dataset, batch_size=6, micro_batch_size=2, seed=3, shuffle=True, collate=None, workers=workers, **more
    )


def whole_epoch(batches):
    plan, consumed, spans = batches.plan, 0, []
    while consumed < plan.samples:
        spans += plan.cut(consumed, 1)
        consumed = spans[-1].first + spans[-1].count
    return spans


def facts(batch):
    return batch["index"].tolist(), batch["drawn"].tolist()


@pytest.fixture
def ahead():
    """Makes batches with loader processes, and ends these."""
    made = []

    def make(dataset, workers=2, **more):
        made.append(batches_of(dataset, workers, **more))
        return made[-1]

    yield make
    for batches in made:
        pids = loaders(batches)
        batches.close()
        eventually(lambda pids=pids: not any(map(alive, pids)), "the loader processes have ended")


def loaders(batches):
    results = batches._prefetch._results
    return [process.pid for process in results._workers] if results is not None else []


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("kind", [Drawing, Whole])
def test_loader_processes_load_the_same_with_the_same_random_numbers(ahead, kind):
    here, there = batches_of(kind(), 0), ahead(kind())
    spans = whole_epoch(here)
    random.seed(8)
    wanted = [facts(here.load(span)) for span in spans]
    random.seed(9)
    before = torch.get_rng_state(), random.getstate()
    found = [there.take(span, 1, lambda k=k: iter(spans[k:])) for k, span in enumerate(spans)]
    assert [facts(batch) for batch in found] == wanted
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    pids = {pid for batch in found for pid in batch["pid"].tolist()}
    assert len(pids) == 2 and os.getpid() not in pids


def test_a_sample_draws_the_same_in_whatever_micro_batch(ahead):
    """Where the batch follows the replicas, it may be cut elsewhere."""
    batches = batches_of(Drawing(), 0)
    one = facts(batches.load(MicroBatch(0, 0, 4)))
    halves = [facts(batches.load(MicroBatch(0, first, 2))) for first in (0, 2)]
    assert one[1] == [value for _, drawn in halves for value in drawn]
    assert len(set(one[1])) == 4
    assert facts(batches.load(MicroBatch(0, 13, 13)))[1] != facts(batches.load(MicroBatch(0, 0, 13)))[1]


class Noting(Drawing):
    """Writes down what was loaded."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._log = folder / "loaded"

    def __getitem__(self, index):
        with self._log.open("a") as log:
            log.write(f"{index}\n")
        return super().__getitem__(index)

    @property
    def loaded(self):
        return [int(line) for line in self._log.read_text().split()]


def test_after_a_change_of_hands_what_is_still_expected_is_kept_and_the_rest_dropped(ahead, tmp_path):
    """Each sample is loaded once, but for those that were not expected."""
    dataset = Noting(tmp_path)
    batches = ahead(dataset, workers=1, prefetch=3)
    spans = whole_epoch(batches)
    first, second = spans[:6], [spans[2], spans[6], spans[5], *spans[3:5]]
    batches.take(first[0], "one", lambda: iter(first))
    taken = [batches.take(span, "two", lambda k=k: iter(second[k:])) for k, span in enumerate(second)]
    assert [batch["index"].tolist() for batch in taken] == [batches.plan.sample_indices(span) for span in second]
    twice = {index for index in range(13) if dataset.loaded.count(index) > 1}
    assert set(batches.plan.sample_indices(spans[2])).isdisjoint(twice), "it had been loaded, and was expected still"
    assert set(batches.plan.sample_indices(spans[3])) <= twice, "nobody expected it among the next three"


def test_what_nobody_forecast_is_loaded_all_the_same(ahead):
    batches = ahead(Drawing(), workers=1)
    spans = whole_epoch(batches)
    for span in (spans[0], spans[4], spans[2], spans[2], spans[0]):
        batch = batches.take(span, 1, lambda: iter([span, spans[1]]))  # noqa: B023
        assert batch["index"].tolist() == batches.plan.sample_indices(span)


def test_an_exception_of_the_dataset_comes_with_its_traceback_when_its_turn_has_come(ahead):
    batches = ahead(Drawing(broken=7), workers=1, prefetch=8)
    for k, span in enumerate(spans := whole_epoch(batches)):
        if 7 in batches.plan.sample_indices(span):
            with pytest.raises(KeyError, match="sample 7 is broken") as caught:
                batches.take(span, 1, lambda k=k: iter(spans[k:]))
            (note,) = caught.value.__notes__
            assert "in __getitem__" in note and 'raise KeyError(f"sample {index} is broken")' in note
            break
        batches.take(span, 1, lambda k=k: iter(spans[k:]))
    else:
        pytest.fail("nothing was raised")


class Passing(Drawing):
    """Cannot be read while a file is there."""

    def __init__(self, outage: Path) -> None:
        super().__init__()
        self._outage = outage

    def __getitem__(self, index):
        if self._outage.exists():
            raise ConnectionError("the store is out of reach")
        return super().__getitem__(index)


def test_what_could_not_be_loaded_is_tried_again_after_a_change_of_hands(ahead, tmp_path):
    """What has broken a generation may have hit its data, too; the retry finds both well again."""
    outage = tmp_path / "outage"
    batches = ahead(Passing(outage), workers=1, prefetch=3)
    spans = whole_epoch(batches)
    outage.touch()
    with pytest.raises(ConnectionError):
        batches.take(spans[0], "one", lambda: iter(spans))
    outage.unlink()
    for k, span in enumerate(spans):
        batch = batches.take(span, "two", lambda k=k: iter(spans[k:]))
        assert batch["index"].tolist() == batches.plan.sample_indices(span)


class Odd(Exception):
    """Does not survive pickling."""

    def __init__(self, one, two):
        super().__init__("odd")


class Oddly(Drawing):
    def __getitem__(self, index):
        raise Odd(1, 2)


def test_an_exception_that_can_not_travel_is_told_in_words(ahead):
    batches = ahead(Oddly(), workers=1)
    (span, *_) = whole_epoch(batches)
    with pytest.raises(RuntimeError, match="Odd: odd"):
        batches.take(span, 1, lambda: iter([span]))


def test_loader_processes_that_die_are_replaced(ahead, tmp_path):
    batches = ahead(Drawing(deadly=tmp_path / "died"), workers=1)
    spans = whole_epoch(batches)
    found = [batches.take(span, 1, lambda k=k: iter(spans[k:])) for k, span in enumerate(spans)]
    assert (tmp_path / "died").exists()
    assert sorted(index for batch in found for index in batch["index"].tolist()) == list(range(13))


class Locked(Drawing):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


def test_what_can_not_be_sent_is_refused_with_a_sentence():
    with pytest.raises(SettingError, match=r"session.batches\(workers=1\): .* cannot be pickled .* or leave workers=0"):
        batches_of(Locked(), 1)


def unsendable(samples):
    return lambda: samples


def test_a_micro_batch_that_can_not_be_sent_is_refused_with_a_sentence():
    batches = make_batches(
        Drawing(), batch_size=6, micro_batch_size=2, seed=3, shuffle=True, collate=unsendable, workers=1
    )
    try:
        (span, *_) = whole_epoch(batches)
        with pytest.raises(SettingError, match="what collate has made cannot go to another process .* leave workers=0"):
            batches.take(span, 1, lambda: iter([span]))
    finally:
        batches.close()


@pytest.mark.parametrize(("samples", "count"), [(24 * 3 + 16, 8), (24 * 1000 + 16, 0)])
def test_a_replica_that_is_dealt_something_in_short_steps_only_looks_ahead_so_far(samples, count):
    """Of five, the third gets nothing of three micro-batches and the first one of two: its next may be epochs away."""
    batches = make_batches(range(samples), batch_size=24, micro_batch_size=8, seed=3, shuffle=True, collate=None)
    replica = SimpleNamespace(
        batches=batches,
        cursor=SimpleNamespace(samples=0),
        rank=2,
        replicas=5,
        phases=1,
        why_left_out=lambda number: "",
        _shares=lambda number: even(5),
        _player=lambda rank, attempt: rank,
    )
    step = SimpleNamespace(number=0, attempt=1, dealt=[])
    found = list(islice(Replica.forecast(replica, step, 0), 8))
    assert len(found) == count and {one.first % samples >= samples - 16 for one in found} <= {True}


@pytest.mark.parametrize(("workers", "prefetch"), [(-1, 2), (1, 0)])
def test_numbers_that_can_not_work_are_refused(workers, prefetch):
    with pytest.raises(SettingError, match=f"workers={workers}, prefetch={prefetch}"):
        batches_of(Drawing(), workers, prefetch=prefetch)


def load_for_ever(pipe):
    """A child's main: a training process in the middle of a step."""
    batches = batches_of(Drawing(), 2)
    spans = whole_epoch(batches)
    batches.take(spans[0], 1, lambda: iter(spans))
    pipe.send(loaders(batches))
    pipe.poll(None)


def test_loader_processes_end_with_a_training_process_that_is_killed():
    """Though their parent is a fork server, which waits for its children."""
    with child(load_for_ever, daemon=False) as (process, pipe):
        pids = hear(pipe)
        assert len(pids) == 2 and all(map(alive, pids))
        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: not any(map(alive, pids)), "the loader processes have ended")


# --- in a session ---


def training_with(workers, hook=lambda step, training: None):
    def train_fn(session):
        training = Training(session)
        dataset = training.batches._loading.dataset
        training.batches = session.batches(dataset, batch_size=BATCH, micro_batch_size=MICRO, workers=workers)
        for step in training.steps():
            with step:
                for batch in step:
                    step.backward(training.loss(batch) * torch.rand(()))
                    hook(step, training)
                training.apply(step)
        pids = loaders(training.batches) if workers else []
        return training.parameters, pids

    return train_fn


def test_a_run_is_the_same_with_and_without_loader_processes(tmp_path):
    """What the training thread draws does not depend on who loads; a generation breaks in the middle."""
    from tests.effects.solo import Solo

    ends = []
    for workers in (0, 1):
        (tmp_path / str(workers)).mkdir()
        solo, broken = Solo(tmp_path / str(workers)), []

        def break_once(step, training, solo=solo, broken=broken):
            if step.index == 1 and not broken:
                broken.append(step)
                solo.break_generation()

        ended = solo.run(training_with(workers, break_once))
        assert isinstance(ended.last, ev.TrainFnReturned) and ended.steps == list(range(STEPS)), ended.last
        assert broken
        ends.append(ended.value)
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=0, atol=0)
    (pid,) = ends[1][1]
    assert not alive(pid), "it ended with the training thread"


class Long(Noting):
    def __len__(self):
        return 60


def test_what_all_leave_out_is_not_loaded_ahead(solo, tmp_path):
    """It is left out since it ends, or stops, whoever loads it."""
    dataset, taken = Long(tmp_path), []

    def train_fn(session):
        training = Training(session)
        training.batches = session.batches(dataset, batch_size=6, micro_batch_size=2, workers=1, prefetch=4)
        for step in training.steps(4):
            with step:
                for batch in step:
                    taken.extend(batch["index"].tolist())
                    step.backward(training.model.weight.sum() * batch["drawn"].sum())
                training.apply(step)
        plan = training.batches.plan
        return [index for micro_batch in plan.cut(6, 1) for index in plan.sample_indices(micro_batch)]

    solo.left_out = (1,)
    unwanted = solo.run(train_fn).value
    assert len(taken) == 18 and len(unwanted) == 6
    assert set(dataset.loaded).isdisjoint(unwanted)


def test_an_exception_of_a_dataset_is_the_users_and_is_told_once(solo):
    def train_fn(session):
        training = Training(session)
        training.batches = session.batches(Drawing(broken=7), batch_size=6, micro_batch_size=2, workers=1)
        for step in training.steps(20):
            with step:
                for batch in step:
                    step.backward(training.model.weight.sum() * batch["drawn"].sum())
                training.apply(step)

    ended = solo.run(train_fn)
    assert "sample 7 is broken" in raised(ended, "KeyError")
    assert ended.last.traceback.count("raise KeyError(f") == 1
