"""Effect. What cannot work is refused where it is brought in, with a sentence, not where it would break."""

import inspect
from typing import Any

import torch

from elastic.errors import StepMisuseError

_WRAPPERS = {
    "DistributedDataParallel": "hand the bare model to session.prepare, which sums its gradients over replicas",
    "FullyShardedDataParallel": "each replica holds the whole model; hand the bare model to session.prepare",
    "FSDPModule": "each replica holds the whole model; hand it to session.prepare without fully_shard",
    "ZeroRedundancyOptimizer": "each replica holds the whole optimizer state; track the plain optimizer",
}


def refuse(thing: Any) -> None:
    """Refuse wrappers that span replicas, and optimizers that need a closure.

    Raises:
        StepMisuseError: says what to use instead.
    """
    for part in thing.modules() if isinstance(thing, torch.nn.Module) else [thing]:
        for kind in type(part).__mro__:
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


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    _, *parameters = inspect.signature(type(optimizer).step).parameters.values()  # schedulers hide the instance's own
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.default is one.empty and one.kind in positional for one in parameters)
