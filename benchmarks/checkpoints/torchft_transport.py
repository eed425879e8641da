"""torchft's transports, which carry live state from a donor to a joiner: over HTTP, and over a gloo process group.

The donor goes on with its step, and its state may not change before the joiner has all of it. What the joiner has
outlives the donor's process and node; on one machine both ends share its cores. HTTP as the manager makes it, without
chunks; the process group with receiving in place, which its documentation calls much faster.
"""

import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.checkpointing.pg_transport import PGTransport
from torchft.process_group import ProcessGroupGloo

from benchmarks.checkpoints.serving import Keeper, serve, task_from_arguments
from benchmarks.checkpoints.state import Work, as_dict, new_state, tensors_of, timed

TIMEOUT = timedelta(seconds=60)
JOINER = "joiner"
DONOR_RANK, JOINER_RANK = 0, 1


class Joiner:
    """The other end, in a process of its own."""

    def __init__(self, nbytes: int, store: str, http: str) -> None:
        command = [sys.executable, "-m", "benchmarks.checkpoints.torchft_transport", JOINER, str(nbytes), store, http]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, transport: str, step: int) -> None:
        assert self._process.stdin is not None
        print(json.dumps([transport, step]), file=self._process.stdin, flush=True)

    def seconds(self) -> float:
        """That the receiving took."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the joiner's process ended")
        told = json.loads(line)
        if isinstance(told, str):
            raise RuntimeError(told)
        return float(told)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(TIMEOUT.total_seconds())


class Transport(Keeper):
    """A donor. `name`: http or pg."""

    has = ("stall_s", "process_s", "node_s", "restore_s")

    def __init__(self, state: Any, transport: Any, joiner: Joiner, name: str) -> None:
        self._state, self._transport, self._joiner, self._name = state, transport, joiner, name
        self._threads = ThreadPoolExecutor(1)  # as the manager's, which sends beside the step
        self._sending: Future[None] | None = None
        self._step = 0

    def begin(self) -> None:
        self._step += 1
        self._sending = self._threads.submit(
            self._transport.send_checkpoint, [JOINER_RANK], self._step, self._state, TIMEOUT
        )
        self._joiner.start(self._name, self._step)

    def fence(self) -> None:
        assert self._sending is not None
        self._sending.result(TIMEOUT.total_seconds())
        self._joiner.seconds()
        self._transport.disallow_checkpoint()

    def restore(self) -> None:
        self.begin()
        self.fence()

    def close(self) -> None:
        self._threads.shutdown()


def new_group(store: str, rank: int) -> ProcessGroupGloo:
    group = ProcessGroupGloo(timeout=TIMEOUT)
    group.configure(store_addr=f"{store}/state", replica_id=str(rank), rank=rank, world_size=2)
    return group


def join(nbytes: int, store: str, http: str) -> None:
    """Receives when it is told to, and says how long it took, or why it could not."""
    torch.set_num_threads(1)
    state = as_dict(*new_state(nbytes))
    group = new_group(store, JOINER_RANK)
    transports = {
        "http": (HTTPTransport(TIMEOUT, num_chunks=0), http),
        "pg": (PGTransport(group, TIMEOUT, torch.device("cpu"), state_dict=lambda: state), "<n/a>"),
    }
    for line in sys.stdin:
        name, step = json.loads(line)
        transport, metadata = transports[name]
        receive = partial(transport.recv_checkpoint, DONOR_RANK, metadata, step, TIMEOUT)
        try:
            told: Any = timed(receive)
        except Exception as error:  # the donor's row says so
            told = f"{type(error).__name__}: {error}"
        print(json.dumps(told), flush=True)


def main() -> None:
    task = task_from_arguments()
    state = as_dict(*new_state(task.nbytes))
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    address = f"localhost:{store.port}"
    http = HTTPTransport(TIMEOUT, num_chunks=0)
    joiner = Joiner(task.nbytes, address, http.metadata())
    pg = PGTransport(new_group(address, DONOR_RANK), TIMEOUT, torch.device("cpu"))
    keepers = {
        "torchft-http": Transport(state, http, joiner, "http"),
        "torchft-pg": Transport(state, pg, joiner, "pg"),
    }
    try:
        serve(task, keepers, Work(tensors_of(state), task.step_memcpys))
    finally:
        for keeper in keepers.values():
            keeper.close()
        joiner.close()
        http.shutdown(wait=False)


if __name__ == "__main__":
    if sys.argv[1:2] == [JOINER]:
        join(int(sys.argv[2]), *sys.argv[3:])
    else:
        main()
