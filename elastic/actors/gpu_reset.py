"""Effect. Resets GPUs of this machine through `nvidia-smi`, which refuses while a process has one open."""

import re
import shutil
import subprocess
from collections.abc import Sequence

_GPU = re.compile(r"\d{1,3}|GPU-[0-9a-fA-F-]{8,40}")  # an index, or a UUID as the driver writes it


def reset_gpus(gpus: Sequence[str], timeout_s: float, program: str = "nvidia-smi") -> str:
    """Reset these GPUs, all in one go, since those that are linked can only be reset together.

    Args:
        gpus: indices or UUIDs. timeout_s: until the driver has answered.

    Returns:
        Why they were not reset, empty if they were.
    """
    strange = [gpu for gpu in gpus if not _GPU.fullmatch(gpu)]
    if strange or not gpus:
        return f"{strange or 'nothing'} is no GPU: an index or a UUID is needed"
    path = shutil.which(program)
    if path is None:
        return f"{program} is not installed on this node"
    command = [path, "--gpu-reset", "-i", ",".join(gpus)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} did not answer: {error}"
    if done.returncode:
        told = (done.stdout + done.stderr).strip().splitlines()
        return f"{program} ended with code {done.returncode}: {' '.join(told[-2:]) or 'it said nothing'}"
    return ""
