"""Effect. Has torch import now what it otherwise imports when it is first used."""

import os

import torch

_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def rehearse() -> None:
    """The first optimizer of a process brings torch's compiler along: seconds of imports.

    No GPU is touched: the process is to see other ones later, which CUDA does not notice once it has counted them. So
    nothing is computed, which would start a thread for each device, and who asks for GPUs meanwhile is told by NVML.
    """
    before = os.environ.get(_BY_NVML)
    os.environ[_BY_NVML] = "1"
    try:
        torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())
    finally:
        if before is None:
            del os.environ[_BY_NVML]
        else:
            os.environ[_BY_NVML] = before
