"""Ray Train: torch.save into a folder, then `ray.train.report(checkpoint=...)`, as its documentation shows.

The storage path lies in the ramdisk, so that it is as fast as it can be; its copies are not synced, so there is no
`durable_s`. Another process can go on with a checkpoint once the controller knows that it is committed, which polls for
that: `main` says how often.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer

from benchmarks.checkpoints.serving import Keeper, Task, serve, task_from_arguments
from benchmarks.checkpoints.state import Work, as_dict, copy_into, new_state, tensors_of

TIMEOUT_S = 120.0
NAME = "benchmark"


class Report(Keeper):
    """Within a training function. `mode`: name of a `CheckpointUploadMode`."""

    has = ("stall_s", "process_s", "restore_s")

    def __init__(self, state: dict[str, Any], ramdisk: Path, mode: str) -> None:
        self._state, self._ramdisk = state, ramdisk
        self.storage = (ramdisk / NAME,)
        self._mode = ray.train.CheckpointUploadMode[mode]
        self._folder: Path | None = None
        self._count, self._name = 0, ""

    def begin(self) -> None:
        self._count += 1
        self._name = f"{self._mode.name} {self._count}"
        self._folder = Path(tempfile.mkdtemp(dir=self._ramdisk))
        torch.save(self._state, self._folder / "state.pt")
        checkpoint = ray.train.Checkpoint.from_directory(self._folder)
        ray.train.report({"name": self._name}, checkpoint=checkpoint, checkpoint_upload_mode=self._mode)

    def process(self) -> None:
        self._last()

    def restore(self) -> None:
        with self._last().as_directory() as folder:
            copy_into(self._state, torch.load(Path(folder) / "state.pt", weights_only=True))

    def clear(self) -> None:
        if self._folder is not None:
            self._last()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _last(self) -> ray.train.Checkpoint:
        mode = ray.train.CheckpointConsistencyMode.COMMITTED
        reported = ray.train.get_all_reported_checkpoints(consistency_mode=mode, timeout_s=TIMEOUT_S)
        if not reported or reported[-1].metrics.get("name") != self._name:
            raise RuntimeError("the checkpoint that was reported last is not there")
        return reported[-1].checkpoint


def train_fn(config: dict[str, Any]) -> None:
    task: Task = config["task"]
    torch.set_num_threads(1)
    state = as_dict(*new_state(task.nbytes))
    keepers = {
        "ray-train": Report(state, task.ramdisk, "SYNC"),
        "ray-train-async": Report(state, task.ramdisk, "ASYNC"),
    }
    serve(task, keepers, Work(tensors_of(state), task.step_memcpys))


def main() -> None:
    task = task_from_arguments()
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.25"  # else a poll, every 2 s, is most of what is measured
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
    run = ray.train.RunConfig(
        name=NAME,
        storage_path=str(task.ramdisk),
        checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
    )
    scaling = ray.train.ScalingConfig(num_workers=1)
    try:
        TorchTrainer(train_fn, train_loop_config={"task": task}, scaling_config=scaling, run_config=run).fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
