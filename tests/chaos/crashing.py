"""Effect. The saboteur's training function, killed also while a step is staged, sealed, read or installed."""

from pathlib import Path
from typing import Any

from elastic.checkpoint.arena import Slot
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.memory import MemorySource
from elastic.control.values import CommitId
from elastic.train.session import Session
from elastic.train.snapshot import Snapshot, Snapshots
from tests.chaos import saboteur
from tests.chaos.saboteur import HalfwayOptimizer, Sabotage, Saboteur

ANY = -1


def train(session: Session, *, folder: Path, plan: tuple[Sabotage, ...], **usual: Any) -> str:
    """See `saboteur.train`. More points, of rank 0 whoever comes there:

    staging, copying, summing, unstamped, stamped: of the step that is staged, from the first byte to the header.
    reading, installing: of any step that is restored.
    """
    points = Saboteur(plan, folder)

    def strike(point: str, step: int = ANY) -> None:
        points.at(point, 0, step, 0)

    stage_under(strike)
    restore_under(strike, HalfwayOptimizer)
    return saboteur.train(session, folder=folder, plan=plan, **usual)


def stage_under(strike: Any) -> None:
    """Call strike(point, step) on the way of a snapshot, for as long as this process lives."""
    begin, fence, seal = Snapshots._begin, Snapshots.fence, Snapshots._seal
    stamp, write = Slot.seal, Slot.write_manifest
    sealing = [ANY]

    def beginning(self: Snapshots, commit: CommitId, replicas: int) -> Snapshot | None:
        strike("staging", commit.step)
        return begin(self, commit, replicas)

    def fencing(self: Snapshots) -> None:
        if self._copying is not None:
            strike("copying", self._copying.manifest.commit.step)
        fence(self)

    def summing(self: Snapshots, snapshot: Snapshot) -> None:
        sealing[0] = snapshot.manifest.commit.step
        strike("summing", sealing[0])
        seal(self, snapshot)

    def writing(self: Slot, data: bytes) -> None:
        write(self, data)
        strike("unstamped", sealing[0])

    def stamping(self: Slot, manifest: Manifest, order: int) -> None:
        stamp(self, manifest, order)
        strike("stamped", sealing[0])

    Snapshots._begin, Snapshots.fence, Snapshots._seal = beginning, fencing, summing  # type: ignore[method-assign]
    Slot.seal, Slot.write_manifest = stamping, writing  # type: ignore[method-assign]


def restore_under(strike: Any, optimizer: type[Any]) -> None:
    """Call strike(point) on the way of a restore; `optimizer`: the class of what is installed last."""
    read, load = MemorySource.read, optimizer.load_state_dict

    def reading(self: MemorySource, *what: Any) -> Any:
        given = read(self, *what)
        strike("reading")
        return given

    def loading(self: Any, state: Any) -> None:
        strike("installing")
        load(self, state)
        strike("installed")

    MemorySource.read, optimizer.load_state_dict = reading, loading  # type: ignore[method-assign]
