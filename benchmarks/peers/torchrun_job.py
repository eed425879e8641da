"""The recovery benchmark's training under torchrun (torchelastic); a group that lost somebody starts anew.

`python -m benchmarks.peers.torchrun_job JOB.json` starts agents on two hosts, `torchrun --nnodes=1:2
--nproc-per-node=2`, and the store they meet at. An agent that is lost is started again where there is room. A third one
that stands by is no help: after a failure the three push each other out of the rounds, and all workers start again, for
ever.
Rank 0 writes a checkpoint into a folder that all hosts share; every start reads it.

Workarounds for torch 2.13:
    `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: workers meet at a store that rank 0 opens in each round. At the agents' own
    store, which they share by default, a second round with gloo reads keys that the first one left.
    `--local-addr`, `GLOO_SOCKET_IFNAME`: the hosts' names mean nothing to each other.
"""

import datetime
import os
import sys
import time
from pathlib import Path

from benchmarks.peers.launch import Host, Launcher, Part, free_port, job_facts, module

_NAME = "benchmarks.peers.torchrun_job"
_PER_HOST = 2
_RESTARTS = 1000
_NO_STORE_OF_AGENTS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def agent(host: Host, endpoint: str, path: str) -> list[str]:
    """The command that a host is given."""
    facts = job_facts(path)
    knobs, most = facts["knobs"], facts["workers"][1] // _PER_HOST
    meeting = {
        "is_host": 0,
        "last_call_timeout": knobs["last_call_timeout_s"],
        "keep_alive_interval": knobs["keep_alive_interval_s"],
        "keep_alive_max_attempt": knobs["keep_alive_max_attempt"],
    }
    return module(
        "torch.distributed.run",
        f"--nnodes=1:{most}",
        f"--nproc-per-node={_PER_HOST}",
        f"--max-restarts={_RESTARTS}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={facts['name']}",
        f"--rdzv-conf={','.join(f'{key}={value}' for key, value in meeting.items())}",
        f"--local-addr={host.address}",
        f"--shutdown-timeout={knobs['shutdown_timeout_s']}",
        f"--log-dir={Path(path).parent}",  # else a folder in /tmp, which stays when the agent is killed
        "--module",
        _NAME,
        path,
    )


def serve(address: str, port: int) -> None:
    """The store that agents meet at, outside of the hosts, so that none of them is special."""
    from torch.distributed import TCPStore

    store = TCPStore(address, port, is_master=True, wait_for_workers=False)
    while store.port == port:
        time.sleep(1.0)


def work(path: str) -> None:
    """One rank of one round."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from benchmarks.peers.replica import Replica, train
    from benchmarks.training import Job

    job = Job.read(path)
    checkpoint = Path(job.folder) / "checkpoint.pt"
    replica = Replica(job, f"rank{os.environ['RANK']}")
    replica.load(checkpoint)
    dist.init_process_group("gloo")
    # A group of its own has the short deadline: the first one has to wait for those who still import torch.
    group = dist.new_group(timeout=datetime.timedelta(seconds=job.knobs["collective_timeout_s"]))
    train(replica, DistributedDataParallel(replica.model, process_group=group), checkpoint)
    dist.destroy_process_group()


def drive(path: str) -> int:
    """Keep a store and as many agents as it takes running."""
    facts = job_facts(path)
    address, port = facts["address"].rpartition(":")[0], free_port()
    agents = facts["workers"][1] // _PER_HOST

    def store(_host: Host) -> list[str]:
        return module(_NAME, path, "--store", address, str(port))

    def command(host: Host) -> list[str]:
        return agent(host, f"{address}:{port}", path)

    parts = [Part(name="store", command=store, slots=0)]
    parts += [Part(name=f"agent-{number}", command=command, slots=_PER_HOST) for number in range(agents)]
    return Launcher(Path(path).parent, parts, _NO_STORE_OF_AGENTS).run()


def main() -> None:
    """A worker, the store, or, without either's signs, the driver."""
    path = sys.argv[1]
    if "--store" in sys.argv:
        serve(sys.argv[3], int(sys.argv[4]))
    elif "LOCAL_RANK" in os.environ:
        work(path)
    else:
        sys.exit(drive(path))


if __name__ == "__main__":
    main()
