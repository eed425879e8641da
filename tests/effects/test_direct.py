"""Effect. Small tensors are summed in one message to everybody: exactly, alike on all ranks, whatever they are."""

import json
import subprocess
import sys

import pytest
import torch

from benchmarks.summing import SIZES_BYTES
from elastic.train.direct import MESSAGE_BYTES, SENT_BYTES, SumTogether, can_go_together, is_small
from tests.effects.helpers import ENDLESS_S, eventually, formed, in_threads

KIB = 1 << 10


@pytest.mark.parametrize(
    ("size_bytes", "ranks", "wanted"),
    [
        (1, 1, False),
        (1, 2, True),
        (MESSAGE_BYTES, 2, True),
        (MESSAGE_BYTES, 3, True),
        (MESSAGE_BYTES + 1, 2, False),
        (MESSAGE_BYTES, 4, False),
        (KIB, SENT_BYTES // KIB + 1, True),
        (KIB, SENT_BYTES // KIB + 2, False),
    ],
)
def test_what_is_small_follows_from_bytes_and_ranks(size_bytes, ranks, wanted):
    assert is_small(size_bytes, ranks) is wanted


def test_what_is_elsewhere_than_in_memory_goes_around_a_ring():
    here, elsewhere = torch.zeros(1), torch.zeros(1, device="meta")
    assert can_go_together([here], 2) and not can_go_together([here, elsewhere], 2)


def terms(rank: int) -> list[torch.Tensor]:
    """Of several dtypes and shapes, odd sizes and none among them; sums of floats depend on their order."""
    draw = torch.Generator().manual_seed(rank)
    return [
        torch.randn(3, generator=draw, dtype=torch.bfloat16),
        torch.randn(2, 5, generator=draw, dtype=torch.float64),
        torch.zeros(0),
        torch.randn(7, generator=draw),
        torch.randint(-99, 99, (1,), generator=draw, dtype=torch.int8),
        torch.randn(2, generator=draw, dtype=torch.complex128),
    ]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_all_hold_the_same_bits_which_are_those_of_a_sum_by_rank(ranks):
    wanted = terms(0)
    for rank in range(1, ranks):
        wanted = [total + term for total, term in zip(wanted, terms(rank), strict=True)]

    def member(rank):
        mine = terms(rank)
        work = groups[rank].allreduce(*mine)
        assert isinstance(work, SumTogether)
        groups[rank].wait(work)
        work.wait()  # a second time adds nothing
        return mine

    with formed(ranks) as groups:
        for found in in_threads(ranks, member):
            assert all(torch.equal(mine, right) for mine, right in zip(found, wanted, strict=True))


def test_several_sums_are_under_way_at_once():
    def member(rank):
        tensors = [torch.full((n,), float(rank + n)) for n in range(1, 9)]
        works = [groups[rank].allreduce(tensor) for tensor in tensors]
        for work in reversed(works):
            groups[rank].wait(work)
        return [tensor[0].item() for tensor in tensors]

    with formed(2) as groups:
        assert in_threads(2, member) == [[2.0 * n + 1 for n in range(1, 9)]] * 2


def test_one_that_broke_has_written_nothing_and_says_that_it_is_over():
    """What an attempt held is as it was, and its memory can be used for the next one."""
    mine = torch.ones(4)
    with formed(2, collective_timeout_s=ENDLESS_S) as groups:
        work = groups[0].allreduce(mine)
        assert not work.is_completed()
        groups[0].cut()
        with pytest.raises(RuntimeError):
            groups[0].wait(work)
        eventually(work.is_completed, "it says so")
    assert torch.equal(mine, torch.ones(4))


def test_both_ways_are_measured_beside_each_other(tmp_path):
    command = [sys.executable, "-m", "benchmarks.summing", "--out", str(tmp_path / "summing.json")]
    done = subprocess.run([*command, "--ranks", "2", "--turns", "2", "--sums", "2"], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "summing.json").read_text())["rows"]
    assert [row["bytes"] for row in rows] == list(SIZES_BYTES)
    for row in rows:
        assert all(len(row[way]["turns"]) == 2 and row[way]["cpu_s"] > 0 for way in ("ring", "message"))
        assert row["goes_in_a_message"] == is_small(row["bytes"], 2)
