"""The recovery benchmark's training under NVIDIA Resiliency Extension's in-process restart.

`python -m benchmarks.peers.nvrx_job JOB.json` starts four processes. When one is lost, the others call the training
function again, in the same processes, with ranks that have moved up; they read the checkpoint that rank 0 wrote. It
admits nobody later, so a lost process is not started again. Rank 0 hosts the stores, as in its examples: its loss ends
the run.
"""

import datetime
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.ddp_job import fixed_group
from benchmarks.peers.launch import Launcher

_NAME = "benchmarks.peers.nvrx_job"


def work(path: str) -> None:
    """One rank."""
    import nvidia_resiliency_ext.inprocess as inprocess
    import torch.distributed as dist
    from nvidia_resiliency_ext.inprocess import CallWrapper
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.peers.replica import Replica, train
    from benchmarks.training import Job

    job = Job.read(path)
    checkpoint = Path(job.folder) / "checkpoint.pt"
    name = f"rank{os.environ['RANK']}"  # it changes when ranks move up
    port = int(os.environ["MASTER_PORT"])
    timeout = datetime.timedelta(seconds=job.knobs["collective_timeout_s"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        port,
        world_size=int(os.environ["WORLD_SIZE"]),
        is_master=os.environ["RANK"] == "0",
        multi_tenant=True,
    )

    @inprocess.Wrapper(store_kwargs={"port": port + 1}, **_timeouts(job.knobs))
    def train_fn(call_wrapper: CallWrapper | None = None) -> None:
        replica = Replica(job, name)
        replica.load(checkpoint)
        assert call_wrapper is not None
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(str(call_wrapper.iteration), store),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
        )
        group = dist.new_group(timeout=timeout)
        train(replica, DistributedDataParallel(replica.model, process_group=group), checkpoint)
        dist.destroy_process_group()

    import torch._dynamo  # noqa: F401 - the optimizer would do it, seconds long, while the timeouts run

    train_fn()


def _timeouts(knobs: dict[str, Any]) -> dict[str, datetime.timedelta]:
    def seconds(name: str) -> datetime.timedelta:
        return datetime.timedelta(seconds=knobs[name])

    interval = seconds("interval_s")
    return {
        "soft_timeout": seconds("soft_timeout_s"),
        "hard_timeout": seconds("hard_timeout_s"),
        "heartbeat_timeout": seconds("heartbeat_timeout_s"),
        "last_call_wait": seconds("last_call_wait_s"),
        "monitor_thread_interval": interval,
        "monitor_process_interval": interval,
        "heartbeat_interval": interval,
        "progress_watchdog_interval": interval,
    }


def main() -> None:
    """Without a rank, the driver."""
    path = sys.argv[1]
    if "RANK" in os.environ:
        work(path)
    else:
        sys.exit(Launcher(Path(path).parent, fixed_group(_NAME, path)).run())


if __name__ == "__main__":
    main()
