"""Effect. Has torch import now what it otherwise imports when it is first used."""

import os

import torch

_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


def check_sight(devices: str) -> None:
    """After `rehearse`, in the slot where it is to work: a process that counted GPUs before it had any has none now.

    Args:
        devices: that it was given, as CUDA_VISIBLE_DEVICES names them.

    Raises:
        RuntimeError: torch is built for CUDA and does not see them.
    """
    if devices and torch.version.cuda is not None and not torch.cuda.is_available():
        raise RuntimeError(f"torch in this process does not see GPU {devices} of the slot that it was given")


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
