"""Effect. What memory a worker has in use, told with its steps."""

import os
import sys
from pathlib import Path
from typing import Any

from elastic.callbacks.worker import WorkerCallback
from elastic.errors import SettingError

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


class MemoryLog(WorkerCallback):
    """Report the leader's memory with its steps: `memory/host_bytes`, and on a GPU `memory/gpu_bytes`, its peak too.

    `memory/host_bytes` is what the process has in RAM, shared memory included; `memory/gpu_bytes` what torch has handed
    out; `memory/gpu_peak_bytes` the most of that since the last report.

    Cost: reading one small file and two counters, about 20 microseconds in a step that reports.

    Args:
        every_steps: between two reports.

    Raises:
        SettingError: it is not positive.
    """

    def __init__(self, every_steps: int = 10) -> None:
        if every_steps < 1:
            raise SettingError(f"MemoryLog(every_steps={every_steps}) must be at least 1")
        self._every_steps = every_steps

    def on_step_begin(self, step: Any) -> None:
        if step.index % self._every_steps == 0:
            step.report(**memory_in_use())


def memory_in_use() -> dict[str, float]:
    """Bytes, by the names above."""
    found = {"memory/host_bytes": float(int(_STATM.read_text().split()[1]) * _PAGE_BYTES)}
    torch = sys.modules.get("torch")  # a worker has it; who has not has nothing on a GPU
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        found["memory/gpu_bytes"] = float(torch.cuda.memory_allocated())
        found["memory/gpu_peak_bytes"] = float(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
    return found
