"""Effect. Buffers: running statistics depend neither on who computed a micro-batch nor on failed attempts."""

import pytest
import torch
from torch import nn

from elastic.control import events as ev
from elastic.control.data import deal, even
from elastic.train.buffers import Buffers
from tests.effects.idiom import Training
from tests.effects.solo import Solo

COUNTS = (4, 4, 4, 4, 3)
TOTAL = sum(COUNTS)


class Counter(nn.Module):
    """Counts samples in an integer buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(10, dtype=torch.int64))
        self.register_buffer("flag", torch.tensor(False))

    def forward(self, x):
        self.seen += TOTAL  # weighted by the share of the batch, the sum over micro-batches is TOTAL
        return x


def build() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(3), Counter()).double()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer))
    return model


def inputs(number):
    generator = torch.Generator().manual_seed(number)
    return 1 + torch.randn(COUNTS[number], 3, dtype=torch.float64, generator=generator)


def run_attempt(model, buffers, dealt):
    buffers.begin()
    for number in dealt:
        model(inputs(number))
        buffers.after_micro_batch(COUNTS[number] / TOTAL)


def definition():
    """Every micro-batch starts from the committed buffers; weighted changes are added to them."""
    start = {name: b.clone() for name, b in build().named_buffers()}
    total = {name: torch.zeros_like(b, dtype=torch.float64) for name, b in start.items()}
    for number in range(len(COUNTS)):
        model = build()
        model(inputs(number))
        for name, buffer in model.named_buffers():
            total[name] += (buffer.double() - start[name].double()) * (COUNTS[number] / TOTAL)
    return {name: start[name].double() + total[name] for name in start}


def after_step(replicas, failed_attempts=0):
    """Each replica's buffers after one step."""
    models = [build() for _ in range(replicas)]
    all_buffers = [Buffers(model) for model in models]
    for _ in range(failed_attempts):
        for model, buffers in zip(models, all_buffers, strict=True):
            run_attempt(model, buffers, range(3))
            model(inputs(4))  # the attempt broke after a forward
            buffers.restore()
    for rank, (model, buffers) in enumerate(zip(models, all_buffers, strict=True)):
        run_attempt(model, buffers, deal(len(COUNTS), even(replicas), rank))
    total = sum(buffers.change for buffers in all_buffers)
    for buffers in all_buffers:
        buffers.apply(total)
    return [dict(model.named_buffers()) for model in models]


@pytest.mark.parametrize("failed_attempts", [0, 2])
@pytest.mark.parametrize("replicas", [1, 2, 3, 7])
def test_statistics_are_the_weighted_definition_for_any_deal(replicas, failed_attempts):
    wanted = definition()
    for found in after_step(replicas, failed_attempts):
        for name, buffer in found.items():
            torch.testing.assert_close(buffer.double(), wanted[name], rtol=1e-12, atol=1e-12)


def test_integers_stay_integers():
    """One step counts as one batch, and sums of weighted counts are whole again."""
    (found,) = after_step(1)
    assert found["0.num_batches_tracked"] == 1 and found["0.num_batches_tracked"].dtype == torch.int64
    assert found["1.seen"] == 10 + TOTAL and found["1.seen"].dtype == torch.int64
    assert not found["1.flag"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_small_integers_go_down_too(dtype):
    """In their own width 3 - 5 would be 254."""
    model = nn.Module()
    model.register_buffer("level", torch.tensor([5, 5], dtype=dtype))
    buffers = Buffers(model)
    buffers.begin()
    model.level.copy_(torch.tensor([3, 7]))
    buffers.after_micro_batch(0.5)
    buffers.after_micro_batch(0.5)  # which leaves them
    buffers.apply(buffers.change)
    assert model.level.tolist() == [4, 6] and model.level.dtype == dtype


def test_large_integers_are_exact():
    """Beyond what a float64 can count to, only the change goes through one."""
    model = Counter()
    model.seen.fill_(2**60 + 1)
    buffers = Buffers(model)
    buffers.begin()
    model(torch.zeros(1))
    buffers.after_micro_batch(1.0)
    buffers.apply(buffers.change)
    assert int(model.seen) == 2**60 + 1 + TOTAL


class Flags(nn.Module):
    """A flag that the second micro-batch turns, a complex number, and a cache that is no state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen_negative", torch.tensor([False, True]))
        self.register_buffer("turn", torch.tensor([1 + 1j]))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, x):
        self.seen_negative[0] |= x < 0
        self.turn += complex(0, 2)
        self.cache = torch.zeros(len(self.cache) + 1)


def test_a_flag_is_turned_by_any_micro_batch_and_complex_numbers_are_averaged():
    model = Flags()
    buffers = Buffers(model)
    buffers.begin()
    for x in (1.0, -1.0, 1.0):
        model(torch.tensor(x))
        buffers.after_micro_batch(0.25)
        assert model.seen_negative.tolist() == [False, True], "each micro-batch starts from what is committed"
    buffers.apply(buffers.change)
    assert model.seen_negative.tolist() == [True, True]
    assert model.turn.tolist() == [1 + 2.5j]


def test_what_counts_does_not_depend_on_a_state_dict_of_the_users():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Flags()

        def state_dict(self):
            return {"renamed": self.inner.turn.clone()}

    assert Buffers(Own()).size == Buffers(Flags()).size == 4


def test_a_cache_that_is_no_state_grows_as_it_likes():
    model = Flags()
    buffers = Buffers(model)
    for _ in range(2):
        buffers.begin()
        model(torch.tensor(1.0))
        buffers.after_micro_batch(1.0)
        buffers.apply(buffers.change)
    assert model.cache.shape == (3,)


def test_a_forward_leaves_committed_buffers_until_the_step_is_applied():
    model = build()
    before = [b.clone() for b in model.buffers()]
    buffers = Buffers(model)
    run_attempt(model, buffers, range(2))
    assert all(map(torch.equal, before, model.buffers()))
    buffers.apply(buffers.change)
    assert not all(map(torch.equal, before, model.buffers()))


def test_restoring_goes_back_to_what_is_committed():
    model = build()
    before = [b.clone() for b in model.buffers()]
    buffers = Buffers(model)
    buffers.begin()
    model(inputs(0))
    assert not all(map(torch.equal, before, model.buffers()))
    buffers.restore()
    assert all(map(torch.equal, before, model.buffers()))


def test_what_was_applied_is_where_the_next_step_starts():
    model = build()
    buffers = Buffers(model)
    seen = []
    for _ in range(3):
        run_attempt(model, buffers, range(len(COUNTS)))
        buffers.apply(buffers.change)
        seen.append(int(model[0].num_batches_tracked))
    assert seen == [1, 2, 3]


def test_a_model_without_buffers_has_nothing_to_sum():
    buffers = Buffers(nn.Linear(2, 2))
    buffers.begin()
    buffers.after_micro_batch(1.0)
    assert buffers.size == 0 and buffers.change.shape == (0,)
    buffers.apply(buffers.change)


def test_a_forward_beside_the_counted_ones_leaves_no_trace(tmp_path):
    """A probe before the micro-batches, and an accuracy behind each."""

    def run(directory, is_curious):
        directory.mkdir()

        def train_fn(session):
            training = Training(session, nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double())
            for step in training.steps(2):  # each of whose micro-batches has two samples
                with step:
                    if is_curious:
                        training.model(torch.ones(2, 3).double())
                    for batch in step:
                        step.backward(training.loss(batch))
                        if is_curious:
                            training.loss(batch)
                    training.apply(step)
            return [buffer.clone() for buffer in training.model.buffers()]

        return Solo(directory, blame_grace_s=0.05).run(train_fn).value

    plain, curious = (run(tmp_path / str(is_curious), is_curious) for is_curious in (False, True))
    assert len(plain) == 3 and all(map(torch.equal, plain, curious))


@pytest.mark.parametrize("place", ["forward", "reduced", "applied", "after"])
def test_statistics_of_a_run_do_not_remember_a_broken_generation(tmp_path, place):
    """Through the whole step: broken at any place, a run ends with the same bits as an undisturbed one."""

    def run(directory, breaks_at):
        directory.mkdir()
        solo, hits = Solo(directory, blame_grace_s=0.05), []

        def maybe(step, where):
            if step.index == 1 and where == breaks_at and not hits:
                hits.append(where)
                solo.break_generation()

        def train_fn(session):
            torch.manual_seed(0)
            model = session.prepare(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)).double())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            session.track(model=model, optimizer=optimizer)
            batches = session.batches([inputs(i)[0] for i in range(5)] * 3, batch_size=5, micro_batch_size=3)
            for step in session.steps(batches, max_steps=3):
                with step:
                    for batch in step:
                        loss = model(batch).square().mean()
                        maybe(step, "forward")
                        step.backward(loss)
                    maybe(step, "reduced")
                    step.apply(optimizer)
                    maybe(step, "applied")
                maybe(step, "after")
            return {name: value.clone() for name, value in model.state_dict().items()}

        ended = solo.run(train_fn)
        assert isinstance(ended.last, ev.TrainFnReturned), ended.last
        assert len(hits) == bool(breaks_at)
        return ended.value

    clean, disturbed = run(tmp_path / "clean", ""), run(tmp_path / "disturbed", place)
    assert clean["0.num_batches_tracked"] == 3
    for name in clean:
        assert torch.equal(clean[name], disturbed[name]), name


class Masked(nn.Module):
    """A causal mask, as many models keep it, and a range as an observer for quantization begins with it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
        self.register_buffer("odd", torch.tensor([float("nan"), 1.0]))
        self.register_buffer("turn", torch.tensor([complex(float("inf"), 2)]))
        self.register_buffer("least", torch.tensor(float("inf"), dtype=torch.float64))

    def forward(self, x):
        self.least.copy_(torch.minimum(self.least, x.min()))
        self.odd[1] += 2
        return x


def test_what_is_infinite_and_stays_so_is_not_changed():
    """Infinity less infinity is no number, and would be one in every buffer of the kind from the first step on."""
    models = [Masked(), Masked()]
    replicas = [Buffers(model) for model in models]
    for buffers, model, share in zip(replicas, models, (0.25, 0.75), strict=True):
        buffers.begin()
        model(torch.tensor([8.0 * share], dtype=torch.float64))
        buffers.after_micro_batch(share)
    total = replicas[0].change + replicas[1].change
    for buffers, model in zip(replicas, models, strict=True):
        buffers.apply(total)
        assert torch.equal(model.mask, Masked().mask)
        assert torch.equal(model.turn, Masked().turn)
        assert model.odd[0].isnan() and model.odd[1] == 3.0
        assert model.least == 0.25 * 2.0 + 0.75 * 6.0, "the mean of what came in its place"
