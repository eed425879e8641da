"""Effect. Points of a checkpoint's way at which a process on Ray kills another; carried to workers and actors by value.

The one that comes to the point strikes by itself, so that nothing happens between the two, and kills the trainer with
its victim: else nothing would have to be restored.
"""

import contextlib
import functools
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from elastic.checkpoint import pulling
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.stores.bounded import BoundedStore
from elastic.checkpoint.vault import Vault
from elastic.control.values import Fork
from tests.chaos.crashing import restore_under, stage_under
from tests.cluster.training import Numbers
from tests.crash_matrix import RESTORING
from tests.lines import whole_lines

STEPS, AT = 12, 5
LONG_S = 60.0


@dataclass(frozen=True)
class Strike:
    """At `point`, of step AT or a later one, kill `victim`: one of `tests.crash_matrix.VICTIMS`.

    `node` is the raylet with all slots. Who that is, is in files `<name>.pid` of the folder.
    """

    point: str
    victim: str
    folder: Path

    @property
    def mark(self) -> Path:
        return self.folder / f"fired-{self.point}"

    def at(self, point: str, step: int = -1, by_replica: bool = False) -> None:
        """Called wherever a process comes to some point; a replica actor that does is the one to be killed."""
        victim = {"node": "raylet", "replica": self.replica}.get(self.victim, self.victim)
        victim_pid = os.getpid() if by_replica and self.victim == "replica" else self.pid_of(victim)
        pids = [victim_pid, self.pid_of("trainer")]
        if point != self.point or 0 <= step < AT or not all(pids):
            return
        try:
            mark = os.open(self.mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        os.write(mark, str(pids[0]).encode())
        os.close(mark)
        if self.victim == "node":
            for slot in (self.folder / "memory").glob("*.slot"):
                slot.unlink()
        for pid in sorted(set(pids), key=lambda pid: (pid == os.getpid(), pids.index(pid))):  # itself last
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def replica(self) -> str:
        """The actor on the node of the trainer."""
        place = self.folder / "trainer.node"
        return f"replica-{place.read_text()}" if place.exists() else "replica"

    def pid_of(self, name: str) -> int:
        """0 while nobody has said it."""
        try:
            return int((self.folder / f"{name}.pid").read_text() or 0)
        except FileNotFoundError:
            return 0

    def note(self, name: str, pid: int) -> None:
        (self.folder / f"{name}.pid").write_text(str(pid))

    def wait(self, is_so: Callable[[], Any], what: str) -> None:
        deadline_s = time.monotonic() + LONG_S
        while not is_so():
            assert time.monotonic() < deadline_s, f"in vain: {what}"
            time.sleep(0.02)


def journal(folder: Path) -> list[dict[str, Any]]:
    """What is written of it so far."""
    return whole_lines(folder / "run" / "journal.jsonl")


def promised(folder: Path, victim: str, before_s: float = math.inf) -> list[int]:
    """Steps that were told to be safe from this until then: but for a node, all leave the slots alone."""
    lines = [line for line in journal(folder) if line["t"] <= before_s]
    rungs = [line for line in lines if line.get("checkpoint") == "CheckpointRung"]
    if victim == "node":
        told = [line for line in rungs if line["rung"] == "durable" or line["copies"] > 1]
    else:
        told = [line for line in rungs if line["rung"] != "staged"]
        told += [line for line in lines if line.get("event") == "ShardStaged"]
    return [line["commit"]["step"] for line in told]


def durable(folder: Path) -> list[int]:
    """Steps that were told to be."""
    rungs = [line for line in journal(folder) if line.get("checkpoint") == "CheckpointRung"]
    return [line["commit"]["step"] for line in rungs if line["rung"] == "durable"]


def raylet_above() -> int:
    """The raylet that has started this process."""
    pid = os.getpid()
    while pid > 1 and b"/raylet" not in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


def striking(strike: Strike | None, folder: Path) -> Callable[[Any], Any]:
    """Fits a small network on one worker that comes to these points; returns its parameters."""

    def train_fn(session: Any) -> Any:
        if strike is not None:
            stage_under(strike.at)
            restore_under(strike.at, torch.optim.AdamW)
            import ray

            (strike.folder / "trainer.node").write_text(ray.get_runtime_context().get_node_id())
            strike.note("raylet", raylet_above())
            strike.note("trainer", os.getpid())
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
        session.prepare(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        session.track(model=model, optimizer=optimizer)
        batches = session.batches(Numbers(), batch_size=16, micro_batch_size=8)
        for step in session.steps(batches, max_steps=STEPS):
            with step:
                for _, x, y in step:
                    step.backward(((model(x).squeeze(-1) - y) ** 2).mean())
                step.apply(optimizer)
            with session.slow("a strike"):
                hold(strike, step.index)
        return [parameter.detach().flatten().tolist() for parameter in model.parameters()]

    return train_fn


def hold(strike: Strike | None, step: int) -> None:
    """Neither begin before all victims are known and something is promised, nor end before the strike."""
    if strike is None or strike.mark.exists():
        return
    if step == AT - 1:
        needed = strike.victim if strike.victim in ("supervisor", "driver") else "raylet"
        strike.wait(
            lambda: strike.pid_of(strike.replica) and strike.pid_of(needed), f"the pids of replica and {needed}"
        )
        strike.wait(lambda: promised(strike.folder, strike.victim), "a step that is told to be safe")
        if strike.point == "deleting":
            strike.wait(lambda: durable(strike.folder), "a step that may be deleted once there is another")
    if step == AT + 1 and strike.point in RESTORING:
        first = strike.folder / "fired-first"
        if not first.exists():
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if step == STEPS - 2:
        strike.wait(strike.mark.exists, f"the strike at {strike.point}")


class HomeSlots(MemorySource):
    """The slots of one node: all nodes share this machine's, and with another's in sight nothing would be pulled."""

    def __init__(self, strike: Strike, directory: Path, run: str, node: str) -> None:
        super().__init__(directory, run, f"memory of node {node[:12]}")
        self._home, self._node = strike.folder / "trainer.node", node

    def manifests(self, step: int | None = None) -> Any:
        is_home = self._home.exists() and self._home.read_text() == self._node
        return super().manifests(step) if is_home else []


def slots_of(strike: Strike, directory: Path, run: str, node: str) -> Any:
    """What a replica actor calls when it starts: the place to put its points."""
    verify, upload, commit, delete = pulling._verify, Vault.upload, Vault.commit, BoundedStore.delete

    def verifying(manifest: Any, *part: Any) -> None:
        verify(manifest, *part)
        strike.at("pulling", manifest.commit.step, by_replica=True)

    def uploading(self: Vault, manifest: Any, read: Any) -> str:
        digest = upload(self, manifest, read)
        strike.at("uploading", manifest.commit.step, by_replica=True)
        return digest

    def committing(self: Vault, of: Any, *more: Any) -> Any:
        strike.at("committing", of.step, by_replica=True)
        record = commit(self, of, *more)
        strike.at("committed", of.step, by_replica=True)
        return record

    def deleting(self: BoundedStore, key: str) -> None:
        delete(self, key)
        if "/commits/" in key:
            strike.at("deleting", by_replica=True)

    pulling._verify = verifying
    Vault.upload, Vault.commit = uploading, committing  # type: ignore[method-assign]
    BoundedStore.delete = deleting  # type: ignore[method-assign]
    strike.note(f"replica-{node}", os.getpid())
    return HomeSlots(strike, directory, run, node)


def keep_with_points(strike: Strike) -> Callable[..., Any]:
    """In place of `elastic.actors.equipment.slots_in`."""
    return functools.partial(slots_of, strike)


@contextlib.contextmanager
def forking_with_point(strike: Strike | None) -> Iterator[None]:
    """In the driver's process: it comes to the point where a restore's new line of history is to be recorded."""
    fork = Vault.fork

    def forking(self: Vault, begun: Fork) -> None:
        if strike is not None and begun.step >= 0:
            strike.at("forking")
        fork(self, begun)

    Vault.fork = forking  # type: ignore[method-assign]
    try:
        yield
    finally:
        Vault.fork = fork  # type: ignore[method-assign]
