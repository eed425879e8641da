"""Effect. Tensors of which this worker holds a part (DTensor), and models that gather theirs while they run (FSDP2).

Everything that leaves a worker, or is summed over replicas, is its own part: the same shard of each replica has the
same part, so parts are compared, summed and handed on as plain tensors are.
"""

from typing import Any

import torch

from elastic.errors import StateError


def local(tensor: Any) -> torch.Tensor:
    """This worker's part of a DTensor; any other tensor as it is. Told by its method, so that nothing is imported."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def spread(part: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor placed as `like` is, whose part on this worker is `part` itself."""
    if not hasattr(like, "to_local"):
        return part
    from torch.distributed.tensor import DTensor

    if not isinstance(like, DTensor):
        return part
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def box(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape of the whole, where this worker's part begins) of a DTensor; ((), ()) of a plain tensor.

    Told by the protocol of torch's distributed checkpoints, since how FSDP2 cuts what tensor parallelism has cut
    already is known to nobody else.

    Raises:
        StateError: the part is no single box of the whole.
    """
    if not hasattr(tensor, "to_local"):
        return (), ()
    parts = tensor.__create_chunk_list__()  # type: ignore[attr-defined]
    if len(parts) != 1 or tuple(parts[0].sizes) != tuple(local(tensor).shape):
        raise StateError(f"a DTensor of shape {tuple(tensor.shape)} is held in {len(parts)} parts: one box is needed")
    return tuple(tensor.shape), tuple(parts[0].offsets)


def is_gathering(model: torch.nn.Module) -> bool:
    """Whether `fully_shard` was applied to a part of the model."""
    return bool(_roots(model))


def use_sums(model: torch.nn.Module) -> None:
    """Have FSDP2 divide its sums itself: gloo knows no mean."""
    for module in model.modules():
        if _is_fsdp(module):
            module.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]


def reset(model: torch.nn.Module) -> None:
    """After a broken attempt: parameters are parts again, and nothing of the forward or backward is left."""
    for root in _roots(model):
        root.reset_iter_state()


def _roots(model: torch.nn.Module) -> list[Any]:
    if _is_fsdp(model):
        return [model]
    return [root for child in model.children() for root in _roots(child)]


def _is_fsdp(module: torch.nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" and kind.__module__.startswith("torch.") for kind in type(module).__mro__)
