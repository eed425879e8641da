"""Effect. torch's SyncBatchNorm on the CPU: its own code and its own collectives, over kernels written in Python.

torch has these kernels for GPUs only. The formulas are those of batch normalization (Ioffe and Szegedy, 2015).
"""

from typing import Any

import torch
from torch.nn.modules._functions import SyncBatchNorm as Synchronized

Tensor = torch.Tensor


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.mean(0), (x.var(0, unbiased=False) + eps).rsqrt()


def _gather_stats(
    x: Tensor, means: Tensor, invstds: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and 1 / deviation over all replicas, of which `counts` samples each are known by their own."""
    share = (counts / counts.sum())[:, None]
    whole = (share * means).sum(0)
    variance = (share * (invstds**-2 - eps + (means - whole) ** 2)).sum(0)
    total = counts.sum()
    mean.lerp_(whole, momentum)
    var.lerp_(variance * total / (total - 1), momentum)
    return whole, (variance + eps).rsqrt()


def _normalize(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    return (x - mean) * invstd * weight + bias


def _backward_reduce(dy: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, *_: Any) -> tuple[Tensor, ...]:
    sum_dy, sum_dy_xmu = dy.sum(0), (dy * (x - mean)).sum(0)
    return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy


def _backward(
    dy: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, sum_dy: Tensor, sum_dy_xmu: Tensor, n: Tensor
) -> Tensor:
    total = n.sum()
    return (dy - sum_dy / total - (x - mean) * invstd**2 * sum_dy_xmu / total) * invstd * weight


KERNELS = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gather_stats,
    "batch_norm_elemt": _normalize,
    "batch_norm_backward_reduce": _backward_reduce,
    "batch_norm_backward_elemt": _backward,
}


class HostSyncBatchNorm(torch.nn.SyncBatchNorm):
    """Without the test for a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        world = torch.distributed.group.WORLD
        if not self.training or world.size() == 1:
            return torch.nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, self.eps
            )
        for name, kernel in KERNELS.items():
            setattr(torch, name, kernel)
        return Synchronized.apply(
            x, self.weight, self.bias, self.running_mean, self.running_var, self.eps, 0.1, world, world.size()
        )
