"""Effect. A node's faults, by kind: who injects them is on the node, and undoes what does not end by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elastic.chaos import disk, network, processes, shards, storage, xid
from elastic.chaos.aftermath import Aftermath, CannotStrikeError
from elastic.chaos.processes import Held
from elastic.checkpoint.stores import open_store
from elastic.control.faults import Fault, FaultKind, number_in, options
from elastic.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault may need to know of its run; `memory`, `persistent`: of `Checkpoint`, empty where there is none."""

    run: str
    memory: str = ""
    persistent: str = ""

    @classmethod
    def of(cls, settings: RunSettings) -> "Scene":
        checkpoint = settings.checkpoint
        if checkpoint is None:
            return cls(run=settings.run)
        return cls(run=settings.run, memory=checkpoint.memory, persistent=checkpoint.persistent or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault on its way; `process`: the worker that it strikes, None where it strikes the node."""

    fault: Fault
    scene: Scene
    process: Held | None
    aftermath: Aftermath

    @property
    def held(self) -> Held:
        if self.process is None:
            raise CannotStrikeError(f"{self.fault}: its worker is not watched on this node")
        return self.process

    @property
    def number(self) -> str:
        """What comes first in the fault's argument."""
        return options(self.fault.argument)[0]


def strike(fault: Fault, scene: Scene, process: Held | None, aftermath: Aftermath) -> str:
    """Inject a fault into this node; returns the proof that it struck.

    Raises:
        CannotStrikeError: it can not be had here; says what it needs.
    """
    act = _STRIKES.get(fault.kind)
    if act is None:
        raise CannotStrikeError(f"{fault.kind.value} is not a fault of a node, or of a process on it")
    return act(Strike(fault=fault, scene=scene, process=process, aftermath=aftermath))


def _flip(one: Strike) -> str:
    scene = one.scene
    if one.number != "persistent":
        return shards.flip_in_memory(Path(scene.memory), scene.run, one.fault.draw)
    store = open_store(scene.persistent)
    try:
        return shards.flip_in_store(store, scene.run, one.fault.draw)
    finally:
        store.close()


def _fill(one: Strike) -> str:
    return disk.fill(Path(one.number or one.scene.memory), one.aftermath, one.fault.lasts_s)


def _fail_storage(one: Strike) -> str:
    share = number_in(one.number, 1.0)
    return storage.fail(one.scene.run, one.aftermath, share, one.fault.lasts_s, one.fault.draw)


_STRIKES: dict[FaultKind, Callable[[Strike], str]] = {
    FaultKind.KILL: lambda one: processes.kill(one.held),
    FaultKind.STOP: lambda one: processes.stop(one.held, one.aftermath, one.fault.lasts_s),
    FaultKind.SLOW: lambda one: processes.slow(one.held, one.aftermath, number_in(one.number, 2.0), one.fault.lasts_s),
    FaultKind.NOTICE: lambda one: processes.notice(one.held, one.aftermath, one.fault.lasts_s),
    FaultKind.NODE_DOWN: lambda one: processes.end_node(),
    FaultKind.PARTITION: lambda one: network.cut(one.fault.argument, one.aftermath, one.fault.lasts_s),
    FaultKind.PACKETS: lambda one: network.impair(one.fault.argument, one.aftermath, one.fault.lasts_s),
    FaultKind.DISK_FULL: _fill,
    FaultKind.BIT_FLIP: _flip,
    FaultKind.STORAGE_ERRORS: _fail_storage,
    FaultKind.XID: lambda one: xid.raise_xid(one.fault.argument, one.process.pid if one.process is not None else 0),
}
