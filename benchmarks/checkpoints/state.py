"""The state that is kept, and the step between two checkpoints. Torch alone: peers' environments have no more."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

TENSORS = 16


def timed(act: Callable[[], Any]) -> float:
    """Seconds that it took."""
    started_s = time.perf_counter()
    act()
    return time.perf_counter() - started_s


def new_state(nbytes: int, device: str = "cpu") -> tuple[torch.nn.ParameterList, torch.optim.AdamW]:
    """Parameters and two moments in float32, so many bytes altogether."""
    elements = nbytes // 3 // 4 // TENSORS
    model = torch.nn.ParameterList(torch.ones(elements, device=device) for _ in range(TENSORS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    for param in model:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def as_dict(model: torch.nn.ParameterList, optimizer: torch.optim.AdamW) -> dict[str, Any]:
    """What the others are given to keep; the tensors are the state's own."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Of nested dictionaries, in their order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [tensor for value in tree.values() for tensor in tensors_of(value)]
    return []


def copy_into(target: Any, source: Any) -> None:
    """Tensors of one tree into those of an equal one."""
    with torch.no_grad():
        for into, tensor in zip(tensors_of(target), tensors_of(source), strict=True):
            into.copy_(tensor)


class Work:
    """A step: small matrices multiplied again and again, for as long as so many copies of the state take.

    Args:
        tensors: of the state. step_memcpys: length of a step.
    """

    def __init__(self, tensors: list[torch.Tensor], step_memcpys: float) -> None:
        self._small = torch.randn(192, 192)
        self._rounds = 200
        buffers = [torch.zeros_like(tensor).fill_(1) for tensor in tensors]
        memcpy_s = statistics.median(timed(lambda: self._copy(buffers, tensors)) for _ in range(5))
        round_s = statistics.median(timed(self) for _ in range(3)) / self._rounds
        self._rounds = max(1, round(step_memcpys * memcpy_s / round_s))

    def __call__(self) -> None:
        for _ in range(self._rounds):
            self._small @ self._small

    @staticmethod
    def _copy(buffers: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor.detach())
