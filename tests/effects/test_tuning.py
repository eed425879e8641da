"""Effect. A run is tuned between two steps: sizes, rates, data and reports follow, in the same process."""

from dataclasses import replace

import pytest

from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.policies import Ladder
from elastic.train.cursor import Cursor
from tests.effects.idiom import BATCH, MICRO, SAMPLES, Training, once
from tests.effects.solo import Solo
from tests.effects.test_streams import Parts
from tests.pure.bare_controller import BareController
from tests.pure.test_tuning import DATA

HALF = Tuning(lr_factor=0.5)


def tune_after(solo, step_index, tuning, place="after"):
    """The driver forms the next generation with this tuning, as after a planned stop, or (elsewhere) a fault."""

    def act(step, training):
        solo.tuning = tuning.over(solo.tuning)
        solo.break_generation()

    return once(step_index, place, act)


UNTUNED = once(-1, "after", None)


def another(solo):
    """A run beside it."""
    folder = solo.page.path.parent / "another"
    folder.mkdir()
    return Solo(folder)


def seen_by(hook, max_steps=6, phases=1, **data):
    """A train_fn; returns (index, ids, micro-batches, factor) of each committed update."""

    def train_fn(session):
        training, seen = Training(session), []
        training.batches = session.batches(Numbered(), **{"batch_size": BATCH, "micro_batch_size": MICRO, **data})
        objects = id(training.model), id(training.optimizer)
        for step in session.steps(training.batches, max_steps=max_steps, phases=phases):
            ids = []
            with step:
                for batch in step:
                    hook(step, training, "batch")
                    ids.append(batch[1].tolist())
                    step.backward(training.loss(batch))
                training.apply(step)
                seen.append((step.index, ids, step.rate_factor))
            hook(step, training, "after")
        assert objects == (id(training.model), id(training.optimizer))
        return seen

    return train_fn


class Numbered:
    """Samples that tell their number; picklable."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        import torch

        return torch.full((3,), float(index), dtype=torch.float64), index


def sizes(ended):
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    return [[len(micro_batch) for micro_batch in ids] for _, ids, _ in ended.value]


def consumed(ended):
    return [index for _, ids, _ in ended.value for micro_batch in ids for index in micro_batch]


@pytest.mark.parametrize("workers", [0, 1])
def test_the_steps_that_follow_have_other_sizes_and_each_sample_comes_once(solo, workers):
    hook = tune_after(solo, 1, Tuning(batch_size=8, micro_batch_size=4))
    ended = solo.run(seen_by(hook, max_steps=5, workers=workers))
    assert hook.calls
    assert sizes(ended) == [[2, 2, 2], [2, 2, 2], [1], [4, 4], [4, 1]]
    order = consumed(ended)
    assert sorted(order[:SAMPLES]) == sorted(order[SAMPLES:]) == list(range(SAMPLES))
    plain = consumed(another(solo).run(seen_by(UNTUNED, max_steps=6)))
    assert order == plain[: len(order)]


def test_the_rates_follow_at_the_same_step_and_come_back(solo):
    first, second = tune_after(solo, 0, HALF), tune_after(solo, 2, Tuning(lr_factor=1.0))

    def hook(*where):
        first(*where)
        second(*where)

    ended = solo.run(seen_by(hook, max_steps=4))
    assert [factor for _, _, factor in ended.value] == [1.0, 0.5, 0.5, 1.0]
    told = [report.tuning for report in ended.reports]
    assert told == [NOT_TUNED, HALF, HALF, Tuning(lr_factor=1.0)]


def test_a_step_that_was_broken_is_tried_again_tuned(solo):
    """What the failed attempt was dealt counts for nothing."""
    hook = tune_after(solo, 1, Tuning(batch_size=4), place="batch")
    ended = solo.run(seen_by(hook, max_steps=4))
    assert hook.calls
    assert sizes(ended) == [[2, 2, 2], [2, 2], [2, 1], [2, 2]]
    assert sorted(consumed(ended)[:SAMPLES]) == list(range(SAMPLES))


def test_the_updates_of_a_step_have_its_samples_even_if_it_is_tuned_between_them(solo):
    calls = []

    def hook(step, training, place):
        if (step.number, place) == (2, "after") and not calls:
            calls.append(step)
            solo.tuning = Tuning(batch_size=4)
            solo.break_generation()

    ended = solo.run(seen_by(hook, max_steps=3, phases=2))
    assert calls
    assert sizes(ended) == [[2, 2, 2]] * 4 + [[1]] * 2
    assert consumed(ended)[:6] == consumed(ended)[6:12]


def test_on_resize_tells_of_it_once(solo):
    told = []

    def train_fn(session):
        session.on_resize(told.append)
        return seen_by(tune_after(solo, 1, Tuning(lr_factor=0.5, batch_size=4)), max_steps=4)(session)

    solo.run(train_fn)
    (resize,) = told
    assert (resize.step, resize.batch_before, resize.batch) == (2, 6, 4)
    assert resize.rates[0] == resize.rates_before[0] / 2


def test_buckets_of_another_size_are_nothing_that_train_fn_sees(solo):
    hook, told, buckets = tune_after(solo, 1, Tuning(bucket_bytes=1)), [], []

    def train_fn(session):
        session.on_resize(told.append)

        def seen(step, training, place):
            buckets.append((step.index, len(session._replica.reducer.buckets)))
            hook(step, training, place)

        return seen_by(seen, max_steps=4)(session)

    ended = solo.run(train_fn)
    assert hook.calls and told == []
    assert [report.tuning.bucket_bytes for report in ended.reports] == [None, None, 1, 1]
    counts = dict(buckets)
    assert counts[0] == counts[1] == 1 < counts[2] == counts[3]
    assert consumed(ended) == consumed(another(solo).run(seen_by(UNTUNED, max_steps=4)))


def test_the_closing_reduction_has_buckets_of_the_size_of_its_generation(solo):
    """One that joins behind the last step has made none in which it could take the size up."""
    wish = Tuning(bucket_bytes=8)

    def train_fn(session):
        training = Training(session)
        act = tune_after(solo, 1, wish)
        for step in training.steps(2):
            with step:
                training.compute(step)
                training.apply(step)
            act(step, training, "after")
        return session._replica.reducer.bucket_bytes

    ended = solo.run(train_fn)
    assert ended.value == 8 and ended.steps == [0, 1]


def test_streams_take_another_batch(solo):
    def train_fn(session):
        training = Training(session)
        batches = session.streams(Parts((8, 8, 8)), batch_size=6, micro_batch_size=2, streams=3, collate=list)
        hook, taken = tune_after(solo, 0, Tuning(batch_size=4)), []
        for step in session.steps(batches, max_steps=4):
            with step:
                for batch in step:
                    taken.append((step.index, *((one[0], one[2]) for one in batch)))
                    step.backward(training.model(training.batches.load(MICRO_BATCH)[0]).square().mean())
                training.apply(step)
            hook(step, training, "after")
        return taken

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    by_step = [[row for row in ended.value if row[0] == step] for step in range(4)]
    assert [len(rows) for rows in by_step] == [3, 2, 2, 2]
    places = [place for row in ended.value for place in row[1:]]
    assert len(set(places)) == len(places) == 18


MICRO_BATCH = replace(DATA.cut(0, 1)[0], first=0, count=2)


def test_who_is_healed_comes_to_the_tuning_of_the_committed_step(solo):
    """The view says nothing, as after a run was taken up again: the state does."""
    restored = Cursor()

    def train_fn(session):
        cursor = session._replica.cursor
        training = seen_by(tune_after(solo, 0, Tuning(batch_size=4)), max_steps=2)(session)
        restored.load_state_dict(cursor.state_dict())
        return training

    solo.run(train_fn)
    assert restored.tuning == Tuning(batch_size=4)

    def taken_up(session):
        session._replica.cursor.load_state_dict(restored.state_dict())
        return seen_by(UNTUNED, max_steps=2)(session)

    assert sizes(another(solo).run(taken_up)) == [[2, 1], [2, 2]]


# --- the way in -------------------------------------------------------------------------------------------------------


def supervisor() -> Supervisor:
    ws = BareController(2)
    ws.plan = DATA
    return Supervisor(ws.run().state, Ladder())


def test_a_wish_is_handed_to_the_driver_once_and_counts_when_it_comes_back_as_an_event():
    asked = supervisor()
    assert asked.ask(ev.TuneAsked(tuning=HALF)) == ""
    assert asked.state().tuning == NOT_TUNED
    (wish,) = asked.asked()
    assert asked.asked() == []
    commands, state = asked.observe([(1.0, wish)])
    assert state.tuning == HALF and {command.reason for command in commands} == {"tuned: lr_factor=0.5"}


def test_a_refused_wish_is_not_passed_on():
    asked = supervisor()
    assert "smaller than one micro-batch" in asked.ask(ev.TuneAsked(tuning=Tuning(batch_size=7)))
    assert asked.asked() == []
