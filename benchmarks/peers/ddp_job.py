"""The recovery benchmark's training in plain DistributedDataParallel: what a step costs if nothing may go wrong.

`python -m benchmarks.peers.ddp_job JOB.json` starts four processes; none is ever started again.
"""

import datetime
import os
import sys
from pathlib import Path

from benchmarks.peers.launch import Host, Launcher, Part, free_port, job_facts, module, read_hosts

NAME = "benchmarks.peers.ddp_job"


def fixed_group(name: str, path: str) -> list[Part]:
    """As many processes as there are workers, which know each other's number and where the first one is."""
    first = read_hosts(Path(path).parent / "hosts.json")[0]
    port, workers = free_port(), job_facts(path)["workers"][1]

    def part(rank: int) -> Part:
        facts = {"RANK": rank, "WORLD_SIZE": workers, "MASTER_ADDR": first.address, "MASTER_PORT": port}
        variables = [f"{key}={value}" for key, value in facts.items()]

        def command(_host: Host) -> list[str]:
            return ["env", *variables, *module(name, path)]

        return Part(name=f"rank-{rank}", command=command, returns=False)

    return [part(rank) for rank in range(workers)]


def work(path: str) -> None:
    """One rank."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.peers.replica import Replica, train
    from benchmarks.training import Job

    job = Job.read(path)
    replica = Replica(job, f"rank{os.environ['RANK']}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=job.knobs["collective_timeout_s"]))
    train(replica, DistributedDataParallel(replica.model), None)
    dist.destroy_process_group()


def main() -> None:
    """Without a rank, the driver."""
    path = sys.argv[1]
    if "RANK" in os.environ:
        work(path)
    else:
        sys.exit(Launcher(Path(path).parent, fixed_group(NAME, path)).run())


if __name__ == "__main__":
    main()
