"""Effect. The reducer: sums over replicas are a single process's gradients, and no attempt writes into the next."""

import copy
import re
import threading
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from elastic.control.data import deal, even
from elastic.errors import StateError, StepMisuseError
from elastic.train.direct import can_go_together
from elastic.train.reducer import Bucket, Reducer
from tests.effects.helpers import formed, in_threads

WIDTH = 5
COUNTS = (4, 4, 4, 4, 1)  # samples of the micro-batches; the last is short, as at the end of an epoch


class Plain(nn.Module):
    """Takes (x, number of the micro-batch)."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x, number):
        return self.b(torch.tanh(self.a(x)))


class WithUnused(Plain):
    """Holds parameters that no loss depends on."""

    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(WIDTH, WIDTH)


class Sometimes(Plain):
    """Uses some parameters in the first micro-batch only, so on one replica only."""

    def __init__(self):
        super().__init__()
        self.rare = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, number):
        return super().forward(self.rare(x) if number == 0 else x, number)


class Tied(Plain):
    """Uses one weight in two places."""

    def __init__(self):
        super().__init__()
        self.c = nn.Linear(WIDTH, WIDTH)
        self.c.weight = self.a.weight

    def forward(self, x, number):
        return super().forward(torch.tanh(self.c(x)), number)


class Frozen(Plain):
    """Holds parameters that do not train."""

    def __init__(self):
        super().__init__()
        self.a.requires_grad_(False)


class Mixed(Plain):
    """Holds parameters of two dtypes."""

    def __init__(self):
        super().__init__()
        self.c = nn.Linear(WIDTH, WIDTH)

    def double(self):
        super().double()
        self.c.float()
        return self

    def forward(self, x, number):
        return super().forward(self.c(x.float()).double(), number)


def build(kind) -> nn.Module:
    torch.manual_seed(7)
    return kind().double()


def inputs(number: int) -> torch.Tensor:
    return torch.randn(COUNTS[number], WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def loss_of(model: nn.Module, number: int, micro_batches: int) -> torch.Tensor:
    """The weighted mean loss of one micro-batch."""
    weight = COUNTS[number] / sum(COUNTS[:micro_batches])
    return model(inputs(number), number).square().mean() * weight


def single(kind, micro_batches: int) -> list[torch.Tensor | None]:
    """What one process computes from the whole batch."""
    model = build(kind)
    for number in range(micro_batches):
        loss_of(model, number, micro_batches).backward()
    return [p.grad for p in model.parameters()]


def reduced(kind, micro_batches: int, replicas: int, bucket_bytes: int, forget=lambda model: None):
    """What each of several replicas holds after an attempt."""

    def replica(rank: int):
        model, group = models[rank], groups[rank]
        together = partial(can_go_together, ranks=replicas)
        reducer = Reducer(model, group.allreduce, lambda: True, group.cut, bucket_bytes, go_together=together)
        dealt = deal(micro_batches, even(replicas), rank)
        reducer.begin()
        forget(model)
        for number in dealt:
            if number == dealt[-1]:
                reducer.last_backward()
            forget(model)
            loss_of(model, number, micro_batches).backward()
        tail = reducer.used
        assert reducer.finish(tail), reducer.error
        reducer.hide_unused(tail)
        return [p.grad for p in model.parameters()]

    models = [build(kind) for _ in range(replicas)]
    with formed(replicas) as groups:
        return in_threads(replicas, replica)


def assert_same(found, wanted):
    for index, (mine, right) in enumerate(zip(found, wanted, strict=True)):
        if right is None:
            assert mine is None, f"parameter {index} should have no gradient"
        else:
            exactness = 1e-12 if right.dtype == torch.float64 else 1e-5
            torch.testing.assert_close(mine, right, rtol=exactness, atol=exactness)


@pytest.mark.parametrize("kind", [Plain, WithUnused, Sometimes, Tied, Frozen, Mixed])
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20], ids=["a bucket per parameter", "one bucket"])
def test_sums_are_a_single_process_gradients(kind, bucket_bytes):
    """Five micro-batches, one of them short, over two replicas: 2 and 3 of them."""
    wanted = single(kind, 5)
    for found in reduced(kind, 5, 2, bucket_bytes):
        assert_same(found, wanted)


@pytest.mark.parametrize("kind", [Plain, WithUnused, Sometimes])
def test_a_replica_that_is_dealt_nothing_holds_the_same_sums(kind):
    """Two micro-batches over three replicas: the idle one adds zeros, and no gradient of its own."""
    assert not len(deal(2, even(3), 0))
    wanted = single(kind, 2)
    for found in reduced(kind, 2, 3, 1 << 20):
        assert_same(found, wanted)


@pytest.mark.parametrize("kind", [Plain, WithUnused, Sometimes])
def test_gradients_set_to_none_by_the_user_are_kept(kind):
    """`zero_grad` in the loop's body, as in every tutorial, neither loses a gradient nor makes replicas differ."""
    wanted = single(kind, 5)
    for found in reduced(kind, 5, 3, 64, forget=lambda model: model.zero_grad(set_to_none=True)):
        assert_same(found, wanted)


def test_a_new_gradient_that_is_yet_to_be_summed_in_its_replica_is_added_as_its_kind_has_it():
    """A DTensor's may be a part of a sum (tensor parallelism), which only the DTensor knows."""
    added = []
    bucket = SimpleNamespace(views=[torch.zeros(2)], grads=[SimpleNamespace(add_=added.append)])
    grad = SimpleNamespace(is_sparse=False, to_local=lambda: torch.ones(2))
    param = SimpleNamespace(grad=grad)
    Reducer._take_back(SimpleNamespace(), param, grad, bucket, 0)
    assert added == [grad] and param.grad is bucket.grads[0]


def test_a_parameter_used_elsewhere_has_a_gradient_of_zeros_on_its_own_replica_before_the_sum():
    """The replica that did not use a parameter adds exactly nothing to it."""
    model = build(Sometimes)
    reducer = Reducer(model, lambda tensor: Ended(), lambda: True, lambda: None)
    reducer.begin()
    loss_of(model, 1, 5).backward()
    assert torch.count_nonzero(model.rare.weight.grad) == 0
    assert reducer.used.sum() == 4


class Ended:
    """A work that has completed."""

    def wait(self, timeout):
        return True

    def is_completed(self):
        return True


class Pending(Ended):
    """A work that ends when it is told to, and never by being waited for."""

    def __init__(self, tensor):
        self.tensor, self.has_ended = tensor, threading.Event()

    def is_completed(self):
        return self.has_ended.is_set()


def test_buckets_are_launched_in_index_order_during_the_last_backward_only():
    """A launch in an earlier backward would sum half a gradient; another order would mix buckets of two replicas."""
    model, launched = build(Plain), []
    reducer = Reducer(model, lambda t: launched.append(t) or Ended(), lambda: True, lambda: None, bucket_bytes=1)
    reducer.begin()
    loss_of(model, 0, 2).backward()
    assert launched == []
    reducer.last_backward()
    loss_of(model, 1, 2).backward()
    assert [t.data_ptr() for t in launched] == [b.flat.data_ptr() for b in reducer.buckets]
    tail = reducer.used
    reducer.finish(tail)
    assert launched[-1] is tail and len(launched) == len(reducer.buckets) + 1


@pytest.mark.parametrize(
    ("kind", "bucket_bytes", "is_small", "messages"),
    [
        (Plain, 1 << 20, True, [2]),  # the bucket and the tail
        (Plain, 1 << 20, False, [1, 1]),
        (Plain, 64, True, [1, 1, 1, 1]),  # buckets that were asked to be small leave in the backward
        (Mixed, 1 << 20, True, [1, 1, 1]),
    ],
)
def test_gradients_that_are_small_and_whole_go_with_the_tail(kind, bucket_bytes, is_small, messages):
    model, launched = build(kind), []
    reducer = Reducer(
        model,
        lambda *tensors: launched.append(tensors) or Ended(),
        lambda: True,
        lambda: None,
        bucket_bytes,
        go_together=lambda tensors: is_small,
    )
    for _ in range(2):
        launched.clear()
        broken_attempt(reducer, model)
        assert len(launched) == len(messages) - 1
        tail = reducer.used
        assert reducer.finish(tail)
        assert [len(tensors) for tensors in launched] == messages and launched[-1][-1] is tail


def test_a_gradient_after_its_bucket_is_refused_though_the_bucket_waits_for_the_tail():
    model = build(Plain)
    reducer = Reducer(model, lambda *tensors: Ended(), lambda: True, lambda: None, go_together=lambda tensors: True)
    broken_attempt(reducer, model)
    with pytest.raises(StepMisuseError, match="received a gradient after its bucket was reduced"):
        loss_of(model, 0, 2).backward()


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(StateError, match="no parameter that requires a gradient"):
        Reducer(build(Plain).requires_grad_(False), None, None, None)


def test_a_gradient_after_its_bucket_was_reduced_is_refused():
    """It would be missing from the sum that is already on its way."""
    model = build(Plain)
    reducer = Reducer(model, lambda t: Ended(), lambda: True, lambda: None)
    reducer.begin()
    reducer.last_backward()
    loss_of(model, 0, 2).backward()
    with pytest.raises(StepMisuseError, match="received a gradient after its bucket was reduced"):
        loss_of(model, 1, 2).backward()


def test_a_sparse_gradient_is_refused_by_name():
    model = nn.ModuleDict({"table": nn.Embedding(4, 2, sparse=True)})
    reducer = Reducer(model, lambda t: Ended(), lambda: True, lambda: None)
    reducer.begin()
    model.zero_grad(set_to_none=True)
    with pytest.raises(StepMisuseError, match="gradient of table.weight is sparse"):
        model["table"](torch.tensor([1])).sum().backward()


def test_a_backward_ends_early_when_its_attempt_is_lost():
    """No time is spent on gradients that nobody will use."""
    model, is_live = build(Plain), True
    reducer = Reducer(model, lambda t: Ended(), lambda: is_live, lambda: None)
    reducer.begin()
    loss = loss_of(model, 0, 2)
    is_live = False
    with pytest.raises(RuntimeError):
        loss.backward()
    assert torch.count_nonzero(model.a.weight.grad) == 0


def test_a_launch_that_fails_frees_the_neighbours_and_launches_nothing_more():
    """They wait for this replica's part, which will never come."""
    cuts, tries = [], []

    def launch(tensor):
        tries.append(tensor)
        raise RuntimeError("connection closed by peer")

    model = build(Plain)
    reducer = Reducer(model, launch, lambda: True, lambda: cuts.append(1), bucket_bytes=1)
    reducer.begin()
    reducer.last_backward()
    loss_of(model, 0, 2).backward()
    assert not reducer.finish(reducer.used)
    assert (len(tries), len(cuts)) == (1, 1)
    assert reducer.error == "RuntimeError: connection closed by peer"


def broken_attempt(reducer: Reducer, model: nn.Module) -> None:
    """All buckets launched, and then something else goes wrong."""
    reducer.begin()
    reducer.last_backward()
    loss_of(model, 0, 2).backward()


def test_a_work_that_ends_when_cut_keeps_its_buffer():
    model, works = build(Plain), []
    reducer = Reducer(
        model,
        lambda t: works.append(Pending(t)) or works[-1],
        lambda: True,
        lambda: [work.has_ended.set() for work in works],
    )
    broken_attempt(reducer, model)
    before = [bucket.flat.data_ptr() for bucket in reducer.buckets]
    reducer.settle(timeout_s=10)
    assert works and [bucket.flat.data_ptr() for bucket in reducer.buckets] == before


def test_a_reduction_that_does_not_end_cannot_write_into_the_next_attempt():
    """Its memory is left to it: the next attempt's sums are those of an attempt without a past."""
    model, works, cuts = build(Plain), [], []
    reducer = Reducer(
        model, lambda t: works.append(Pending(t)) or works[-1], lambda: True, lambda: cuts.append(1), bucket_bytes=64
    )
    broken_attempt(reducer, model)
    assert len(works) == len(reducer.buckets) > 1
    late = list(works)
    reducer.settle(timeout_s=0.01)
    assert cuts == [1]

    reducer.begin()
    for number in range(2):
        loss_of(model, number, 2).backward()
        for work in late:
            work.tensor.fill_(1e9)
    assert_same([p.grad for p in model.parameters()], single(Plain, 2))
    flats = {bucket.flat.untyped_storage().data_ptr() for bucket in reducer.buckets}
    assert not flats & {work.tensor.untyped_storage().data_ptr() for work in late}


def test_an_attempt_begins_with_zeros_and_nothing_of_the_one_before():
    """Neither gradients, nor uses, nor an error survive into the retry."""
    model, fails = build(Plain), True

    def launch(tensor):
        if fails:
            raise RuntimeError("broken")
        return Ended()

    reducer = Reducer(model, launch, lambda: True, lambda: None)
    broken_attempt(reducer, model)
    assert not reducer.finish(reducer.used)
    fails = False
    reducer.begin()
    assert reducer.used.sum() == 0 and reducer.error == ""
    assert all(torch.count_nonzero(p.grad) == 0 for p in model.parameters())
    broken_attempt(reducer, model)
    assert reducer.finish(reducer.used)


def test_settling_frees_a_reduction_that_waits_for_a_silent_replica():
    """On real sockets: the other replica never launches, and the works of this one end by being cut."""
    model = build(Plain)
    with formed(2) as groups:
        reducer = Reducer(model, groups[0].allreduce, lambda: True, groups[0].cut)
        broken_attempt(reducer, model)
        works = list(reducer._works)
        assert works and not any(work.is_completed() for work in works)
        before = [bucket.flat.data_ptr() for bucket in reducer.buckets]
        reducer.settle(timeout_s=20)
        assert all(work.is_completed() for work in works)
        assert [bucket.flat.data_ptr() for bucket in reducer.buckets] == before


def test_a_retry_in_a_new_group_is_exact():
    """Broken in the middle on one side, formed anew, the sums are those of an undisturbed attempt."""
    wanted = single(Plain, 2)
    models = [build(Plain) for _ in range(2)]
    current = {}
    reducers = [
        Reducer(model, lambda t, r=rank: current[r].allreduce(t), lambda: True, lambda r=rank: current[r].cut(), 64)
        for rank, model in enumerate(models)
    ]
    with formed(2) as groups:
        current.update(enumerate(groups))
        broken_attempt(reducers[0], models[0])
        reducers[1].begin()
        loss_of(models[1], 1, 2).backward()
        for reducer in reducers:
            reducer.settle(timeout_s=20)

    def again(rank):
        reducers[rank].begin()
        reducers[rank].last_backward()
        loss_of(models[rank], rank, 2).backward()
        assert reducers[rank].finish(reducers[rank].used), reducers[rank].error
        return [copy.deepcopy(p.grad) for p in models[rank].parameters()]

    with formed(2) as groups:
        current.update(enumerate(groups))
        for found in in_threads(2, again):
            assert_same(found, wanted)


@pytest.mark.parametrize("is_ordered", [False, True])
def test_buckets_of_another_size_hold_the_same_sums_and_joiners_are_admitted_as_before(is_ordered):
    """Attempts before and after, on real sockets; the second size is tuned, the third is the first again."""
    wanted = single(Plain, 5)
    models = [build(Plain) for _ in range(2)]

    def attempt(reducer, model, rank):
        hands = [deal(5, even(2), other) for other in range(2)]
        reducer.begin(hands)
        for number in hands[rank]:
            if number == hands[rank][-1]:
                reducer.last_backward(number)
            loss_of(model, number, 5).backward()
            reducer.end_micro_batch(number, torch.zeros(1, dtype=torch.float64))
        tail, beside = reducer.used, torch.zeros(1, dtype=torch.float64) if is_ordered else None
        assert reducer.finish(tail, beside), reducer.error
        reducer.hide_unused(tail)
        return [p.grad.clone() for p in model.parameters()]

    def replica(rank):
        model, group = models[rank], groups[rank]
        in_order = (lambda: group) if is_ordered else None
        reducer = Reducer(model, group.allreduce, lambda: True, group.cut, 1 << 20, in_order)
        layout, found, counts = reducer.layout, [], []
        for bucket_bytes in (None, 64, None):
            reducer.lay_out(bucket_bytes)
            found.append(attempt(reducer, model, rank))
            counts.append(len(reducer.buckets))
            assert reducer.layout == layout
        return found, counts

    with formed(2) as groups:
        for found, counts in in_threads(2, replica):
            assert counts[0] == counts[2] == 1 < counts[1]
            for grads in found:
                assert_same(grads, wanted)


def test_a_reduction_that_a_silent_replica_never_joins_names_it_and_the_limit():
    with formed(2, collective_timeout_s=0.2) as groups:
        reducer = Reducer(build(Plain), groups[0].allreduce, lambda: True, groups[0].cut)
        reducer.begin()
        assert not reducer.finish(reducer.used)
        assert re.match(r"w1 have not all come .* Limits.collective_timeout_s=0.2: ", groups[0].named(reducer.error))
    assert groups[0].named("RuntimeError: reset by peer") == "RuntimeError: reset by peer"


def test_whoever_sums_a_bucket_waits_for_all_streams_on_which_its_gradients_were_added(monkeypatch):
    """FSDP2 adds what it has scattered on a stream of its own, and autograd the rest on another one."""
    waits = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            waits.append((self.name, other.name))

    main, scatter = Stream("main"), Stream("scatter")
    now = [scatter]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now[0])
    bucket = Bucket([nn.Parameter(torch.zeros(2))])
    bucket.flat = SimpleNamespace(is_cuda=True, device="cuda:0")
    bucket.note_stream()
    now[0] = main
    bucket.note_stream()
    bucket.gather()
    assert waits == [("main", "scatter")]
