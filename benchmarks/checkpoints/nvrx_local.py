"""nvidia-resiliency-ext: its local checkpoints, in the ramdisk.

The state dictionary that it comes with takes CUDA tensors only, so here its interface is met for tensors in host
memory: nothing to copy, nothing to bring back. `is_async=True` synchronizes CUDA, so saving is in turn. A group of one
process is needed to agree on what is there.
"""

import logging
import tempfile
from typing import Any

import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

from benchmarks.checkpoints.serving import Keeper, Task, serve, task_from_arguments
from benchmarks.checkpoints.state import Work, as_dict, copy_into, new_state, tensors_of


class HostState(BasicTensorAwareStateDict):
    """A state dictionary whose tensors are in host memory, and stay there."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        self.state_dict = state_dict
        self._is_hollow = False

    def copy_tensors_to_cpu(self, non_blocking: bool = False) -> None:
        """They are there."""

    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        """They are there."""


class Local(Keeper):
    has = ("stall_s", "process_s", "restore_s")

    def __init__(self, state: dict[str, Any], task: Task) -> None:
        self._state = state
        self._manager = LocalCheckpointManager(task.ramdisk / "nvrx")
        self._step = 0

    def begin(self) -> None:
        self._step += 1
        self._manager.save(HostState(self._state), self._step)

    def restore(self) -> None:
        self._manager.find_latest()
        loaded, _ = self._manager.load()
        copy_into(self._state, loaded.state_dict)


def main() -> None:
    task = task_from_arguments()
    logging.getLogger().setLevel(logging.ERROR)
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method=f"file://{store.name}", rank=0, world_size=1)
        state = as_dict(*new_state(task.nbytes))
        serve(task, {"nvrx-local": Local(state, task)}, Work(tensors_of(state), task.step_memcpys))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
