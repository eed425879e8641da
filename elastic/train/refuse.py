"""Effect. What cannot work is refused where it is brought in, with a sentence, not where it would break."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from elastic.control.batch_size import ConstantBatch
from elastic.errors import SettingError, StepMisuseError
from elastic.train.data import Source

_WRAPPERS = {
    "DistributedDataParallel": "hand the bare model to session.prepare, which sums its gradients over replicas",
    "FullyShardedDataParallel": "each replica holds the whole model; hand the bare model to session.prepare",
    "FSDPModule": "a replica of one worker holds the whole model; hand it to session.prepare without fully_shard, or "
    "set Scaling.workers_per_replica and shard it over session.replica_mesh",
    "ZeroRedundancyOptimizer": "each replica holds the whole optimizer state; track the plain optimizer",
}


def refuse(thing: Any, width: int = 1) -> None:
    """Refuse wrappers that span replicas, and optimizers that need a closure.

    Args:
        width: workers of a replica; over several, `fully_shard` is welcome.

    Raises:
        StepMisuseError: says what to use instead.
    """
    for part in thing.modules() if isinstance(thing, torch.nn.Module) else [thing]:
        for kind in type(part).__mro__:
            if kind.__name__ == "FSDPModule" and width > 1:
                continue
            if kind.__name__ in _WRAPPERS and kind.__module__.startswith("torch."):
                raise StepMisuseError(
                    f"{kind.__name__} spans a fixed set of processes, which a failure changes: "
                    f"{_WRAPPERS[kind.__name__]}"
                )
    if isinstance(thing, torch.optim.Optimizer) and _needs_closure(thing):
        raise StepMisuseError(
            f"{type(thing).__name__} evaluates the loss again inside its step (a closure), which a step that is tried "
            "again cannot hold: use an optimizer whose step() needs no argument"
        )


def refuse_strangers(optimizers: Mapping[str, torch.optim.Optimizer], summed: Iterable[torch.Tensor]) -> None:
    """Refuse optimizers of parameters whose gradients nobody sums over the replicas, which would drift apart.

    Args:
        optimizers: by the names they are tracked by. summed: parameters of the prepared model, as they were then.

    Raises:
        StepMisuseError: names the optimizer.
    """
    known = {id(param) for param in summed}
    for name, optimizer in optimizers.items():
        params = [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]
        strangers = sum(id(param) not in known for param in params)
        if strangers:
            raise StepMisuseError(
                f"{name} ({type(optimizer).__name__}) updates {strangers} parameters of {len(params)} that are not of "
                "the prepared model, so their gradients are not summed: hand all to session.prepare in one ModuleDict"
            )


def refuse_loop(batches: Source, phases: int, is_ordered: bool) -> None:
    """Refuse what a loop cannot be made of.

    Args:
        is_ordered: sums are made in one fixed order.

    Raises:
        SettingError: says what does not go together.
    """
    if phases < 1:
        raise SettingError(f"session.steps(phases={phases}) must be at least 1")
    if phases > 1 and not isinstance(batches.plan.batch_size, ConstantBatch):
        raise SettingError(
            f"session.steps(phases={phases}) with batch_size={batches.plan.batch_size}: the phases of a step share "
            "its samples, so batch_size must be an integer"
        )
    if batches.equal_rounds and is_ordered:
        raise SettingError(
            "session.prepare(reproducible=True) and session.batches(equal_rounds=True) do not go together"
        )


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    _, *parameters = inspect.signature(type(optimizer).step).parameters.values()  # schedulers hide the instance's own
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.default is one.empty and one.kind in positional for one in parameters)
