"""Effect. Sums in one fixed order: the same bits from any number of replicas, however the micro-batches are dealt."""

import pytest
import torch
from torch import nn

from elastic.control.data import deal
from elastic.train.reducer import Reducer
from tests.effects.helpers import formed, in_threads

WIDTH, MICRO_BATCHES = 5, 7


def build(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.Tanh(), nn.Linear(3 * WIDTH, 1), nn.Linear(1, 1)).to(dtype)


def inputs(number: int, dtype: torch.dtype) -> torch.Tensor:
    """Of very different sizes, so that the order of additions shows."""
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number)).to(dtype) * 10.0 ** (number % 4)


def summed(shares, *, bucket_bytes=100, dtype=torch.float32, is_ordered=True, skips=None):
    """Gradients and what is summed beside them, on each replica of a group with these shares of the micro-batches."""
    hands = [deal(MICRO_BATCHES, shares, rank) for rank in range(len(shares))]

    def replica(rank: int):
        model, group = models[rank], groups[rank]
        in_order = (lambda: group) if is_ordered else None
        reducer = Reducer(model, group.allreduce, lambda: True, group.cut, bucket_bytes, in_order)
        reducer.begin(hands)
        for number in () if rank == skips else hands[rank]:
            if number == hands[rank][-1]:
                reducer.last_backward(number)
            (model(inputs(number, dtype)).square().mean() / 3).backward()
            reducer.end_micro_batch(number, torch.tensor([0.1 * number, 1.0 / (number + 1)], dtype=torch.float64))
        beside = torch.zeros(2, dtype=torch.float64)
        assert reducer.finish(reducer.used, beside), reducer.error
        return [p.grad.clone() for p in model.parameters()] + [beside]

    models = [build(dtype) for _ in shares]  # here, since threads share one source of random numbers
    with formed(len(shares)) as groups:
        return in_threads(len(shares), replica)


def same_bits(one, other):
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


SHARES = [(1, 1), (1, 1, 1), (3, 1, 1), (0, 1, 2), (1,) * 9]


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20], ids=["a bucket per parameter", "one bucket"])
def test_no_bit_depends_on_the_group_or_the_deal(shares, bucket_bytes):
    (alone,) = summed((1,))
    for found in summed(shares, bucket_bytes=bucket_bytes):
        assert same_bits(found, alone)


def test_without_it_bits_depend_on_the_group():
    """So that the test above can fail."""
    (alone,) = summed((1,), is_ordered=False)
    assert not same_bits(summed((1, 1, 1), is_ordered=False)[0][:-1], alone[:-1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_any_floating_dtype(dtype):
    (alone,) = summed((1,), dtype=dtype)
    assert all(same_bits(found, alone) for found in summed((2, 1), dtype=dtype))


def test_the_sum_is_the_sum():
    wanted = summed((1,), dtype=torch.float64, is_ordered=False)[0][:-1]
    for found in summed((1, 1, 1), dtype=torch.float64):
        torch.testing.assert_close(found[:-1], wanted, rtol=1e-12, atol=1e-9)
        assert found[-1].tolist() == pytest.approx([0.1 * 21, sum(1 / (n + 1) for n in range(7))])


def test_a_replica_that_skips_its_hand_holds_nobody_up():
    """All come to an end, and none of its terms is in the sum."""
    found = summed((1, 1, 1), skips=1, dtype=torch.float64)
    assert same_bits(found[0], found[1]) and same_bits(found[0], found[2])
    left_out = deal(MICRO_BATCHES, (1, 1, 1), 1)
    assert found[0][-1][0] == pytest.approx(0.1 * (21 - sum(left_out)))
