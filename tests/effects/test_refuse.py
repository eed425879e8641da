"""Effect. What cannot work is refused where it is brought in, with a sentence that says what to use."""

import inspect
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from elastic.errors import StepMisuseError
from elastic.train.refuse import refuse
from tests.effects.idiom import raised

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, on import
    from torch.distributed.optim import ZeroRedundancyOptimizer


def shell(kind):
    """An instance that never talked to anybody: making a real one takes a group."""
    thing = kind.__new__(kind)
    if isinstance(thing, nn.Module):
        nn.Module.__init__(thing)
    return thing


class Sharded(FSDPModule, nn.Linear):
    """What torch's fully_shard makes of a Linear: a subclass with FSDPModule in front."""

    def __new__(cls):
        return nn.Module.__new__(cls)

    def __init__(self):
        nn.Linear.__init__(self, 2, 2)


class Sharpness(torch.optim.SGD):
    """An optimizer of the user's that needs a closure."""

    def step(self, closure):
        return super().step(closure)


@pytest.mark.parametrize("kind", [DistributedDataParallel, FullyShardedDataParallel, ZeroRedundancyOptimizer])
def test_wrappers_across_replicas(kind):
    with pytest.raises(StepMisuseError, match=f"{kind.__name__} spans a fixed set of processes"):
        refuse(shell(kind))


def test_wrappers_inside_of_a_model():
    with pytest.raises(StepMisuseError, match="bare model to session.prepare"):
        refuse(nn.Sequential(nn.Linear(2, 2), shell(DistributedDataParallel)))
    with pytest.raises(StepMisuseError, match="without fully_shard"):
        refuse(nn.Sequential(Sharded()))


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, Sharpness])
def test_optimizers_with_closures(kind):
    with pytest.raises(StepMisuseError, match=f"{kind.__name__} evaluates the loss again inside its step"):
        refuse(kind(nn.Linear(2, 2).parameters()))


def test_other_optimizers_pass_with_a_scheduler_too():
    kinds = [kind for _, kind in inspect.getmembers(torch.optim, inspect.isclass) if kind is not torch.optim.LBFGS]
    for kind in kinds:
        if issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer:
            matrices = [nn.Parameter(torch.ones(2, 2))]
            optimizer = kind(matrices)
            torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
            refuse(optimizer)


@pytest.mark.parametrize("where", ["prepare", "track"])
def test_where_it_is_brought_in(solo, where):
    def train_fn(session):
        if where == "prepare":
            session.prepare(nn.Sequential(shell(DistributedDataParallel)))
        else:
            session.track(optimizer=torch.optim.LBFGS(nn.Linear(2, 2).parameters()))

    raised(
        solo.run(train_fn),
        "StepMisuseError: DistributedDataParallel" if where == "prepare" else "StepMisuseError: LBFGS",
    )


def test_a_wrapper_that_talks_when_it_is_built(solo):
    def train_fn(session):
        DistributedDataParallel(nn.Linear(2, 2))

    assert "wrappers that talk when they are built" in raised(solo.run(train_fn), "StepMisuseError")
