"""The recovery benchmark's training in Ray Train V2; a group that lost somebody starts anew.

`python -m benchmarks.peers.ray_train_job JOB.json` is its driver. The trainer may take two to four workers. Rank 0
reports a checkpoint, into a folder that all hosts share; every start reads the newest.

`GLOO_SOCKET_IFNAME`: the hosts' names mean nothing to each other. Nothing in Ray Train itself needs a workaround for
torch 2.13.
"""

import datetime
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.launch import CABLE, GLOO, job_facts


def train_fn(config: dict[str, Any]) -> None:
    """What every worker runs."""
    import ray.train
    import ray.train.torch
    import torch.distributed as dist

    from benchmarks.peers.replica import Replica, agreed_generation
    from benchmarks.training import Job

    job = Job.read(config["path"])
    rank, workers = dist.get_rank(), dist.get_world_size()
    replica = Replica(job, f"rank{rank}")
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            replica.load(Path(folder) / "state.pt")
    # A group of its own has the short deadline: the first one has to wait for those who still import torch.
    group = dist.new_group(timeout=datetime.timedelta(seconds=job.knobs["collective_timeout_s"]))
    model = ray.train.torch.prepare_model(replica.model, parallel_strategy_kwargs={"process_group": group})
    replica.generation = agreed_generation()
    while not job.is_over(replica.step):
        loss = replica.backward(model, rank, rank, workers)
        replica.optimizer.step()
        replica.optimizer.zero_grad()
        replica.committed(rank, loss)
        if replica.is_due():
            _report(replica, rank, loss)
    replica.finish()


def _report(replica: Any, rank: int, loss: float) -> None:
    """All report; rank 0 with a checkpoint."""
    import ray.train

    if rank != 0:
        ray.train.report({"loss": loss})
        return
    with tempfile.TemporaryDirectory() as folder:
        replica.save(Path(folder) / "state.pt")
        ray.train.report({"loss": loss}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main() -> None:
    """Drive one run to its end."""
    path = sys.argv[1]
    facts = job_facts(path)
    knobs = facts["knobs"]
    variables = {name: value for name, value in knobs.items() if name.isupper()}
    os.environ.update(variables)  # before ray.train is imported

    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(address=facts["address"], runtime_env={"env_vars": {GLOO: CABLE} | variables})
    trainer = TorchTrainer(
        train_fn,
        train_loop_config={"path": path},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=tuple(facts["workers"]),
            elastic_resize_monitor_interval_s=knobs["resize_s"],
        ),
        run_config=RunConfig(
            name="run",
            storage_path=facts["folder"],
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
