"""Effect. Micro-batches that count by a weight of the user's, whose sum is known only after the reduction."""

import pytest
import torch
from torch import nn

from elastic.control import events as ev
from tests.effects.idiom import Training, raised
from tests.effects.solo import Solo

TOKENS = [3, 1, 7, 2, 5, 4, 1, 6, 2, 9, 8, 1, 4]


def train_weighted(weight_of):
    """A train_fn: two steps with BatchNorm, SGD without momentum; returns losses, parameters and statistics."""

    def train_fn(session):
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
        training = Training(session, model)
        losses = []
        for step in training.steps(2):
            with step:
                for x, ids in step:
                    step.backward(model(x).square().mean(), weight=weight_of(ids))
                losses.append(step.loss)
                training.apply(step)
        return losses, [t.detach().clone() for t in model.state_dict().values()]

    return train_fn


def tokens(ids):
    return sum(TOKENS[i] for i in ids)


def test_a_weight_scales_with_nothing(solo, tmp_path):
    """Weights in any unit give the same bits as long as they are powers of two apart."""
    one = solo.run(train_weighted(lambda ids: tokens(ids)))
    other = Solo(_folder(tmp_path)).run(train_weighted(lambda ids: torch.tensor(tokens(ids) * 1024)))
    assert isinstance(one.last, ev.TrainFnReturned), one.last
    assert one.value[0] == other.value[0]
    assert all(torch.equal(a, b) for a, b in zip(one.value[1], other.value[1], strict=True))


def test_the_number_of_samples_as_a_weight_changes_nothing(solo, tmp_path):
    weighted = solo.run(train_weighted(lambda ids: len(ids)))
    plain = Solo(_folder(tmp_path)).run(train_weighted(lambda ids: None))
    assert weighted.value[0] == pytest.approx(plain.value[0], rel=1e-12)
    torch.testing.assert_close(weighted.value[1], plain.value[1], rtol=1e-12, atol=1e-12)


def _folder(path):
    (path / "other").mkdir()
    return path / "other"


def test_the_gradient_is_the_weighted_mean(solo):
    """Of a linear loss, whose gradient is the mean input; a micro-batch of weight 0 may have no loss at all."""
    inputs, weights = [], []

    def train_fn(session):
        model = nn.Linear(3, 1, bias=False).double()
        training = Training(session, model)
        for step in training.steps(1):
            with step:
                for number, (x, ids) in enumerate(step):
                    weight = 0 if number == 1 else tokens(ids)
                    inputs.append(x.mean(0))
                    weights.append(float(weight))
                    step.backward(model(x).mean() * (float("nan") if number == 1 else 1), weight=weight)
                got = model.weight.grad.clone()
                training.apply(step)
        return got, step.loss

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    gradient, loss = ended.value
    share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    torch.testing.assert_close(gradient[0], (torch.stack(inputs) * share[:, None]).sum(0), rtol=1e-12, atol=1e-12)
    assert loss == loss


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_with_equal_rounds_too_a_weight_of_0_leaves_a_mean_over_nothing_out(solo, left_out):
    """All replicas run its backward, whose gradients are no numbers, whatever they are multiplied by."""
    inputs = []

    def train_fn(session):
        model = nn.Linear(3, 1, bias=False).double()
        training = Training(session, model)
        training.batches = session.batches(
            training.batches._loading.dataset, batch_size=6, micro_batch_size=2, equal_rounds=True
        )
        for step in training.steps(1):
            with step:
                for number, (x, _) in enumerate(step):
                    mask = torch.zeros(2, 1) if number == left_out else torch.ones(2, 1)
                    step.backward((model(x) * mask).sum() / mask.sum(), weight=mask.sum())
                    inputs.extend([x.mean(0)] if number != left_out else [])
                got = model.weight.grad.clone()
                training.apply(step)
        return got, step.loss, training.parameters

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    gradient, loss, (weight,) = ended.value
    torch.testing.assert_close(gradient[0], torch.stack(inputs).mean(0), rtol=1e-12, atol=1e-12)
    assert loss == loss and weight.isfinite().all()


@pytest.mark.parametrize(
    ("weight_of", "sentence"),
    [
        (lambda ids: -1, "a weight of -1.0"),
        (lambda ids: float("nan"), "a weight of nan"),
        (lambda ids: 0, "all weights are 0: call step.skip"),
        (lambda ids: 1 if 0 in ids.tolist() else None, "for every micro-batch, or for none"),
    ],
)
def test_weights_that_make_no_mean_are_refused(solo, weight_of, sentence):
    def train_fn(session):
        training = Training(session)
        training.batches = session.batches(
            training.batches._loading.dataset, batch_size=6, micro_batch_size=2, shuffle=False
        )
        for step in training.steps(1):
            with step:
                for batch in step:
                    step.backward(training.loss(batch), weight=weight_of(batch[1]))
                training.apply(step)

    assert sentence in raised(solo.run(train_fn), "StepMisuseError")
