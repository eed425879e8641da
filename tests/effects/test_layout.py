"""Effect. The layout digest: equal where buckets mean the same on all replicas, and nowhere else."""

import pytest
from torch import nn

from elastic.control import events as ev
from elastic.train.reducer import Reducer
from tests.effects.solo import Solo
from tests.effects.test_reducer import Ended, Plain, build


def layout_of(model: nn.Module) -> str:
    return Reducer(model, lambda t: Ended(), lambda: True, lambda: None).layout


def test_the_layout_digest_is_the_same_for_the_same_model():
    assert layout_of(build(Plain)) == layout_of(build(Plain))


def renamed(model: nn.Module) -> nn.Module:
    return nn.ModuleDict({"x": model.a, "b": model.b})


def reshaped(model: nn.Module) -> nn.Module:
    model.a.weight = nn.Parameter(model.a.weight.detach().reshape(1, -1))
    return model


def retyped(model: nn.Module) -> nn.Module:
    model.a.float()
    return model


def reordered(model: nn.Module) -> nn.Module:
    return nn.ModuleDict({"b": model.b, "a": model.a})


def frozen(model: nn.Module) -> nn.Module:
    model.a.bias.requires_grad_(False)
    return model


@pytest.mark.parametrize("change", [renamed, reshaped, retyped, reordered, frozen])
def test_the_layout_digest_tells_models_apart(change):
    """Whatever would make two replicas' buckets mean different things changes the digest."""
    assert layout_of(change(build(Plain))) != layout_of(build(Plain))


def shown_by(solo: Solo, model: nn.Module, **track: nn.Module) -> str:
    """What a worker shows at the door."""

    def train_fn(session):
        session.prepare(model)
        session.track(model=model, **track)
        batches = session.batches([1.0, 2.0], batch_size=1)
        for step in session.steps(batches, max_steps=1):
            with step:
                step.skip("it is enough to come to the door")

    (parked,) = (event for event in solo.run(train_fn).events if isinstance(event, ev.WorkerParked))
    return parked.layout


def test_workers_that_track_different_things_are_told_apart(tmp_path):
    """Else the comparison of digests after a heal has unequal lengths, and gloo aborts the process."""
    normed = build(Plain)
    normed.norm = nn.BatchNorm1d(3, affine=False)
    runs = [(build(Plain), {}), (build(Plain), {"average": build(Plain)}), (normed, {})]
    shown = set()
    for number, (model, track) in enumerate(runs):
        (tmp_path / str(number)).mkdir()
        shown.add(shown_by(Solo(tmp_path / str(number)), model, **track))
    assert len(shown) == len(runs)


def test_the_layout_digest_tells_buckets_apart():
    small, large = (Reducer(build(Plain), None, None, None, bucket_bytes=n).layout for n in (1, 1 << 20))
    assert small != large
