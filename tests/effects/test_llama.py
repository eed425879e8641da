"""Effect. The Llama example: its sizes are what they are called, and the tiny one learns from the past alone."""

import pytest
import torch

from examples.llama import SIZES, Llama, loss_of_part

UNITS = {"M": 1e6, "B": 1e9}


@pytest.mark.parametrize("name", [name for name in SIZES if name != "tiny"])
def test_a_size_has_as_many_parameters_as_it_says(name: str) -> None:
    with torch.device("meta"):
        model = Llama(SIZES[name])
    count = sum(param.numel() for param in model.parameters())
    assert count == pytest.approx(float(name[:-1]) * UNITS[name[-1]], rel=0.03)


def test_logits_do_not_depend_on_what_follows() -> None:
    torch.manual_seed(0)
    model, tokens = Llama(SIZES["tiny"]), torch.randint(256, (2, 9))
    changed = tokens.clone()
    changed[:, 5:] = 7
    ours, theirs = model(tokens), model(changed)
    assert ours.shape == (2, 9, 256)
    assert torch.equal(ours[:, :5], theirs[:, :5])
    assert not torch.equal(ours[:, 5:], theirs[:, 5:])


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_the_mean_over_the_workers_is_that_over_the_rows_however_few_there_are(rows: int) -> None:
    torch.manual_seed(0)
    model, whole = Llama(SIZES["tiny"]), torch.randint(256, (rows, 9))
    logits = model(whole[:, :-1])
    usual = torch.nn.functional.cross_entropy(logits.flatten(0, 1), whole[:, 1:].flatten())
    params = list(model.parameters())
    wanted = torch.autograd.grad(usual, params)
    losses = [loss_of_part(model, whole, shard, 2) for shard in (0, 1)]
    assert sum(losses).item() / 2 == pytest.approx(usual.item())
    parts = [torch.autograd.grad(loss, params) for loss in losses]
    for one, first, second in zip(wanted, *parts, strict=True):
        torch.testing.assert_close((first + second) / 2, one)
