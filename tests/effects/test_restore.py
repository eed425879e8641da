"""Effect. Restoring tracked objects: the same bits, at the same cut or another; what cannot be is refused by name."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from elastic.checkpoint.source import Tier
from elastic.errors import DivergenceError, RefusedError, StateError
from elastic.train.cursor import Cursor
from elastic.train.evaluation import Evaluator
from elastic.train.restore import fetch, plan_for, restore
from elastic.train.tracked import Tracked
from tests.effects.shelves import Shelf, flipped, numbers, of, shard_of
from tests.effects.test_tracked import Objects


def tracked(**objects) -> Tracked:
    result = Tracked()
    result.add(objects)
    return result


def state_of(things: Tracked) -> dict:
    return {name: thing.state_dict() for name, thing in things._objects.items()}


def saved(things: Tracked, **which) -> Shelf:
    return Shelf([shard_of(state_of(things), **which)])


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["fresh", "behind", "as far"])
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_restored_state_has_the_digest_of_the_saved_one(optimizer, steps):
    giver, taker = Objects(1, 3, optimizer), Objects(2, steps, optimizer)
    (one,) = of(saved(giver.tracked))
    parameters = [(id(p), p.data_ptr()) for p in taker.model.parameters()]
    report = restore(taker.tracked, one)
    assert taker.tracked.digests() == giver.tracked.digests()
    assert parameters == [(id(p), p.data_ptr()) for p in taker.model.parameters()], "set in place"
    assert (report.commit.step, report.saved_shards, report.unused, report.missing) == (7, 1, (), ())
    (read,) = report.read
    assert (read.step, read.shard, read.retries, read.places[0].tier) == (7, 0, 0, "peer")
    assert read.nbytes == one.manifests[0].nbytes and report.seconds > 0


def test_a_refusal_leaves_the_objects_as_they_were():
    giver, taker = Objects(1, 3), Objects(2, 2)
    shelf = saved(giver.tracked)
    last = shelf.shards[0][0].nbytes - 1
    shelf.spoil = lambda key, begin, end, data: flipped(data, 3) if end > last else data
    before = taker.tracked.digests()
    with pytest.raises(RefusedError, match="step 7, shard 0 of 1, of run r: chunk") as refused:
        restore(taker.tracked, *of(shelf))
    assert refused.value.shard == 0
    assert taker.tracked.digests() == before


def test_fetched_state_is_installed_when_all_agree():
    giver, taker = Objects(1, 3), Objects(2, 2)
    before = taker.tracked.digests()
    fetched = fetch(taker.tracked, of(saved(giver.tracked))[0], 0, 1)
    assert taker.tracked.digests() == before
    fetched.install()
    assert taker.tracked.digests() == giver.tracked.digests()


def test_an_object_that_loads_otherwise_is_found_out():
    class Halving(Cursor):
        def load_state_dict(self, state):
            super().load_state_dict({**state, "samples": state["samples"] // 2})

    giver, taker = Cursor(), Halving()
    giver.samples = 10
    with pytest.raises(DivergenceError, match="cursor did not take over"):
        restore(tracked(cursor=taker), *of(saved(tracked(cursor=giver))))


def test_an_evaluation_that_is_new_begins_without_results_wherever_it_is_restored():
    """The run was saved without one; who has trained with it since, and who comes new, hold the same then."""
    giver = tracked(model=nn.Linear(3, 2))
    for results in ({}, {"loss": 0.5}):
        evaluator = Evaluator(lambda evaluation: {}, every=1)
        taker = tracked(model=nn.Linear(3, 2))
        taker.add({"elastic.evaluation": evaluator}, fresh=evaluator.state_dict())
        evaluator.load_state_dict({"results": results})
        assert restore(taker, *of(saved(giver))).missing == ()
        assert evaluator.results == {} and taker.digests(["model"]) == giver.digests(["model"])


def changed(key: str, value: torch.Tensor | None) -> dict:
    state = nn.Linear(3, 2).state_dict()
    return {k: v for k, v in (state | {key: value}).items() if v is not None}


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"other": {}}, "holds other and nothing for model"),
        (
            {"model": changed("weight", torch.zeros(2, 4))},
            r"/model/weight is float32 of shape \(2, 4\) .* \(2, 3\) here",
        ),
        ({"model": changed("weight", torch.zeros(2, 3).half())}, "/model/weight is float16 .* float32 .* here"),
        ({"model": changed("bias", None)}, "the model here has /model/bias, and the checkpoint has not"),
        ({"model": changed("more", torch.zeros(1))}, "the checkpoint has /model/more, and the model here has not"),
    ],
)
def test_other_objects_are_refused_by_name(state, sentence):
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    with pytest.raises(StateError, match=sentence):
        restore(tracked(model=model), *of(Shelf([shard_of(state)])))
    assert torch.equal(model.weight, before)


def test_what_nobody_takes_is_told():
    giver = tracked(model=nn.Linear(3, 2), average=nn.Linear(3, 2))
    assert restore(tracked(model=nn.Linear(3, 2)), *of(saved(giver))).unused == ("average",)


# --- cut by DTensor ---


@contextlib.contextmanager
def worker(rank: int, width: int) -> Iterator[object]:
    """The mesh of a replica as one of its workers sees it; the others do not exist, and nobody talks."""
    dist.init_process_group("fake", rank=rank, world_size=width, store=FakeStore())
    try:
        # torch remembers where parts begin by mesh, and a process has one rank as a rule: the name tells ranks apart
        yield init_device_mesh("cpu", (width,), mesh_dim_names=(f"rank{rank}",))
    finally:
        dist.destroy_process_group()


ROWS, COLUMNS = 7, 5


class Cut(nn.Module):
    """One parameter cut by rows, one by columns, one on all workers, and a plain buffer."""

    def __init__(self, mesh, start: float) -> None:
        super().__init__()
        placed = {"rows": (ROWS, 3, Shard(0)), "columns": (2, COLUMNS, Shard(1)), "everywhere": (3, 1, Replicate())}
        for name, (height, width, placement) in placed.items():
            whole = numbers(height, width, start=start)
            setattr(self, name, nn.Parameter(self._part(mesh, whole, placement)))
            start += 100
        self.register_buffer("count", numbers(2, start=start))

    @staticmethod
    def _part(mesh, whole, placement):
        rank, width = mesh.get_local_rank(), mesh.size()
        part = whole
        if isinstance(placement, Shard):
            step = -(-whole.shape[placement.dim] // width)
            part = whole.narrow(placement.dim, min(rank * step, whole.shape[placement.dim]), 0)
            part = whole.split(step, placement.dim)[rank] if rank * step < whole.shape[placement.dim] else part
        return DTensor.from_local(
            part.contiguous(), mesh, (placement,), run_check=False, shape=whole.shape, stride=whole.stride()
        )


def trained(mesh, start: float) -> tuple[Cut, torch.optim.Optimizer, Tracked]:
    """A model and an optimizer with moments whose every element says where it belongs."""
    model = Cut(mesh, start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for index, param in enumerate(model.parameters()):
        moment = (param.detach() * (index + 2)).clone()
        optimizer.state[param] = {"step": torch.tensor(4.0), "exp_avg": moment, "exp_avg_sq": moment * 3}
    return model, optimizer, tracked(model=model, optimizer=optimizer)


def fresh(mesh) -> tuple[Cut, torch.optim.Optimizer, Tracked]:
    model = Cut(mesh, -1000.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    return model, optimizer, tracked(model=model, optimizer=optimizer)


def cut_shelf(width: int) -> Shelf:
    shards = []
    for rank in range(width):
        with worker(rank, width) as mesh:
            shards.append(shard_of(state_of(trained(mesh, 10.0)[2]), shard=rank, shards=width, chunk_bytes=64))
    return Shelf(shards)


@pytest.mark.parametrize("after", [1, 2, 3, 8])
@pytest.mark.parametrize("before", [1, 2, 3, 8])
def test_c12_any_number_of_workers_restores_what_any_other_saved(before, after):
    """Uneven and empty parts among them; moments land where their parameter is."""
    (one,) = of(cut_shelf(before))
    for rank in range(after):
        with worker(rank, after) as mesh:
            wanted = trained(mesh, 10.0)[2].digests()
            model, optimizer, things = fresh(mesh)
            report = restore(things, one, rank, after)
            assert things.digests() == wanted
            moment = optimizer.state[model.rows]["exp_avg"]
            assert isinstance(moment, DTensor) and moment.placements == model.rows.placements
            if before == after:
                assert [read.shard for read in report.read] == [rank], "nobody else's shard is read"


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1), (4, 4)])
def test_c12_fsdp2_is_cut_anew(before, after):
    """`fully_shard` with rows that do not divide; the optimizer of the restored model has not stepped yet."""
    from torch.distributed.fsdp import fully_shard

    def built(mesh, start):
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5))
        with torch.no_grad():
            for number, param in enumerate(model.parameters()):
                param.copy_(numbers(*param.shape, start=start + 100 * number))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def stepped(mesh):
        model, optimizer = built(mesh, 1.0)
        for param in model.parameters():
            optimizer.state[param] = {"step": torch.tensor(2.0), "exp_avg": param.detach() * 2, "exp_avg_sq": param * 3}
        return tracked(model=model, optimizer=optimizer)

    shards = []
    for rank in range(before):
        with worker(rank, before) as mesh:
            shards.append(shard_of(state_of(stepped(mesh)), shard=rank, shards=before, chunk_bytes=64))
    (one,) = of(Shelf(shards))
    for rank in range(after):
        with worker(rank, after) as mesh:
            model, optimizer = built(mesh, -1.0)
            things = tracked(model=model, optimizer=optimizer)
            needed = plan_for(things, one, rank, after).chunks(one.manifests)
            report = restore(things, one, rank, after)
            assert things.digests() == stepped(mesh).digests()
            assert set(needed) <= {read.shard for read in report.read}


class Lazy:
    """Has no tensor before it is loaded."""

    def __init__(self, state=None) -> None:
        self.state = state or {}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_what_no_live_tensor_tells_how_to_cut_comes_whole():
    shards = []
    for rank in range(2):
        with worker(rank, 2) as mesh:
            shards.append(shard_of({"thing": {"x": Cut(mesh, 5.0).rows.detach()}}, shard=rank, shards=2))
    (one,) = of(Shelf(shards))
    thing = Lazy()
    restore(tracked(thing=thing), one, 1, 2)
    assert torch.equal(thing.state["x"], numbers(ROWS, 3, start=5.0)[4:]), "the same cut: the own part"
    restore(tracked(thing=thing), one, 0, 1)
    assert torch.equal(thing.state["x"], numbers(ROWS, 3, start=5.0)), "another: all of it"


class ByHand(nn.Module):
    """Each worker holds columns of its own as a plain tensor."""

    def __init__(self, shard: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(3, 2, start=100.0 * shard))


def test_what_was_cut_by_hand_is_restored_at_the_same_cut_only():
    (one,) = of(Shelf([shard_of({"model": ByHand(s).state_dict()}, shard=s, shards=2) for s in range(2)]))
    for shard in range(2):
        model = ByHand(9)
        restore(tracked(model=model), one, shard, 2)
        assert torch.equal(model.weight, ByHand(shard).weight)
    refused = 0
    for shard in range(3):
        try:
            restore(tracked(model=ByHand(9)), one, shard, 3)
        except StateError as error:
            refused += 1
            assert "different values at /model/weight" in str(error) and "workers_per_replica=2" in str(error)
    assert refused == 1, "one worker looks at the shard, and all of them hear of it from their caller"


def test_a_pipeline_is_restored_at_the_same_cut_only():
    shards = [shard_of({"model": {f"layer{s}": numbers(2)}}, shard=s, shards=2) for s in range(2)]

    class Stage(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.register_buffer(f"layer{number}", torch.zeros(2))

    (one,) = of(Shelf(shards))
    stage = Stage(1)
    restore(tracked(model=stage), one, 1, 2)
    assert torch.equal(stage.layer1, numbers(2))
    with pytest.raises(StateError, match="hold different objects, so they cannot be cut for 1 workers"):
        restore(tracked(model=Stage(0)), one, 0, 1)


def test_c22_the_newest_step_wins_over_the_nearest_tier():
    old, new, taker = Objects(1, 1), Objects(1, 3), Objects(2, 0)
    near = Shelf([shard_of(state_of(old.tracked), step=5)], Tier.MEMORY, "near")
    far = Shelf([shard_of(state_of(new.tracked), step=10)], Tier.PERSISTENT, "far")
    report = restore(taker.tracked, of(near, far)[0])
    assert report.commit.step == 10 and taker.tracked.digests() == new.tracked.digests()
