"""The recovery benchmark's training under torchft: replica groups of one process each, around a lighthouse.

`python -m benchmarks.peers.torchft_job JOB.json` starts the lighthouse and four replica groups, and starts one again,
where there is room, when its process has ended: torchft leaves that to torchrun or Slurm, which are no faster.

More than its example does:
    Samples follow from the step and the number of the replica group, so that no restarted group begins its part of the
    data anew; the parts of those who are away are left out, as in its DistributedSampler.
    `init_sync=False`: all begin with the same weights, which its documentation asks for then.
    Each group writes a checkpoint, with the manager's state, since all may be lost at once.

Workarounds for torch 2.13:
    gradients are averaged with `Manager.allreduce`, as one tensor: torchft's DistributedDataParallel asserts after a
    failure.
    Each group hosts the store that its Manager asks for; with torchrun around it that would be the agent.
    The host's name must be its address: HTTPTransport gives it to those who want to be healed.
"""

import datetime
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.launch import Host, Launcher, Part, free_port, job_facts, module

_NAME = "benchmarks.peers.torchft_job"


def work(path: str, number: int, lighthouse: str) -> None:
    """One replica group."""
    import socket

    import torchft
    from torch.distributed import TCPStore

    from benchmarks.peers.replica import Replica
    from benchmarks.training import Job

    job = Job.read(path)
    timeout = datetime.timedelta(seconds=job.knobs["collective_timeout_s"])
    replica = Replica(job, f"group{number}")
    here = socket.gethostname()
    store = TCPStore(here, 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timeout),
        load_state_dict=replica.load_state_dict,
        state_dict=replica.state_dict,
        min_replica_size=job.workers[0],
        timeout=timeout,
        quorum_timeout=datetime.timedelta(seconds=job.knobs["quorum_timeout_s"]),
        quorum_retries=job.knobs["quorum_retries"],
        rank=0,
        world_size=1,
        store_addr=here,
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname=here,
        replica_id=f"group_{number}",
        init_sync=False,
    )
    checkpoint = Path(job.folder) / f"checkpoint-{number}.pt"
    if replica.load(checkpoint):
        # A line of its own from here on; who is healed by others takes over theirs, with their state.
        replica.generation += 1
        manager.load_state_dict({"step": replica.step, "batches_committed": replica.step * job.workers[1]})
    _train(job, replica, manager, torchft.Optimizer(manager, replica.optimizer), number, checkpoint)
    manager.shutdown(wait=False)


def _train(job: Any, replica: Any, manager: Any, optimizer: Any, number: int, checkpoint: Path) -> None:
    is_first = True
    while not job.is_over(manager.current_step()):
        optimizer.zero_grad()  # asks for a quorum
        if is_first:  # whether others are ahead, and where
            manager.wait_quorum()
        replica.step, is_member = manager.current_step(), manager.is_participating() if is_first else True
        is_first = False
        loss = replica.backward(replica.model, number, number, job.workers[1], heard=is_member)
        _average(replica.model, manager)
        before = manager.current_step()
        optimizer.step()  # only if all went well
        moved = manager.current_step() - before
        is_committed = moved == 1  # by more where others have healed it: what it computed went nowhere
        if is_committed and manager.is_participating():
            replica.attempt = replica.attempt if before == replica.step else 1
            replica.step = before
            replica.committed(number, loss)
        replica.step = manager.current_step()
        replica.attempt = 1 if moved else replica.attempt + 1
        if is_committed and replica.is_due():
            replica.save(checkpoint)
    replica.finish()


def _average(model: Any, manager: Any) -> None:
    """One reduction of all gradients."""
    import torch

    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    manager.allreduce(flat).wait()
    for gradient, averaged in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(averaged.view_as(gradient))


def drive(path: str) -> int:
    """Keep the lighthouse and the replica groups running."""
    facts = job_facts(path)
    knobs, workers, port = facts["knobs"], facts["workers"], free_port()
    lighthouse = f"http://{facts['address'].rpartition(':')[0]}:{port}"

    def watch(_host: Host) -> list[str]:
        return [
            str(Path(sys.executable).with_name("torchft_lighthouse")),
            f"--bind=[::]:{port}",
            f"--min_replicas={workers[0]}",
            f"--join_timeout_ms={knobs['join_timeout_ms']}",
            f"--heartbeat_timeout_ms={knobs['heartbeat_timeout_ms']}",
        ]

    def group(number: int) -> Part:
        def command(_host: Host) -> list[str]:
            return module(_NAME, path, str(number), lighthouse)

        return Part(name=f"group-{number}", command=command)

    parts = [Part(name="lighthouse", command=watch, slots=0), *map(group, range(workers[1]))]
    return Launcher(Path(path).parent, parts).run()


def main() -> None:
    """With a number, that replica group; else the driver."""
    if len(sys.argv) > 2:
        work(sys.argv[1], int(sys.argv[2]), sys.argv[3])
        os._exit(0)  # its threads may still wait for those who have gone
    sys.exit(drive(sys.argv[1]))


if __name__ == "__main__":
    main()
