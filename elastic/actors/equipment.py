"""Effect. What a replica actor is started with: where its node's slots, its disk, and the persistent tier are."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from elastic.checkpoint.disk import Disk
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.source import Source
from elastic.checkpoint.vault import Vault, open_vault
from elastic.settings import Checkpoint, Keep, Logs, RunSettings
from elastic.train.flight import storage_switch

STORE_SHARE = 0.7  # Ray spills from 0.8 on, silently


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What an actor is started with; the two functions are called on its node.

    Attributes:
        incarnation: of the driver; an actor obeys the newest one that has spoken to it, and no older one.
        memory: node id -> its slots. disk: node id -> its disk, None: none is used.
        vault: opens the persistent tier, None: there is none.
        keep: what the persistent tier keeps. budget_bytes: what copies may take.
        slots: the directory of its slots, which go with the actor, but for those of live workers. lease_s: how long
            actor, copies and slots outlive the last word of a driver.
        logs: what of an actor's lines is kept.
    """

    run: str
    incarnation: int
    memory: Callable[[str], Source]
    disk: Callable[[str], Disk] | None = None
    vault: Callable[[], Vault] | None
    keep: Keep
    budget_bytes: int
    slots: Path
    lease_s: float
    logs: Logs = field(default_factory=Logs)


def equipment_for(
    settings: RunSettings,
    store_bytes: float,
    memory: Callable[[str], Source] | None = None,
    disk: Callable[[str], Disk] | None = None,
) -> Equipment:
    """What the actor of a node gets.

    Args:
        store_bytes: of the node's object store.
        memory, disk: node id -> its slots, and its disk; default: where `settings.checkpoint` says.
    """
    checkpoint, run = settings.checkpoint or Checkpoint(), settings.run
    switch = storage_switch(run) if settings.is_breakable else None
    if checkpoint.disk is not None:
        disk = disk or functools.partial(disk_in, Path(checkpoint.disk), run)
    return Equipment(
        run=run,
        incarnation=settings.incarnation,
        memory=memory or functools.partial(slots_in, Path(checkpoint.memory), run),
        disk=disk,
        vault=opener(checkpoint, run, settings.incarnation, switch),
        keep=checkpoint.keep,
        budget_bytes=budget_bytes(checkpoint.peer_bytes, store_bytes),
        slots=Path(checkpoint.memory),
        lease_s=checkpoint.memory_lease_s,
        logs=settings.logs,
    )


def budget_bytes(asked: int | None, store_bytes: float) -> int:
    """What the copies on a node may take of its object store, which must not come to spill."""
    most = int(STORE_SHARE * store_bytes)
    return most if asked is None else min(asked, most)


def slots_in(directory: Path, run: str, node: str) -> Source:
    """The slots of the node where it is called."""
    return MemorySource(directory, run, f"memory of node {node[:12]}")


def disk_in(directory: Path, run: str, node: str) -> Disk:
    """The disk of the node where it is called."""
    return Disk(directory, run, f"disk of node {node[:12]}")


def opener(
    checkpoint: Checkpoint, run: str, incarnation: int, switch: Path | None = None
) -> Callable[[], Vault] | None:
    """Opens the persistent tier, wherever it is called; `switch`: see `open_vault`."""
    if checkpoint.persistent is None:
        return None
    cap, url = checkpoint.upload_bytes_per_s, checkpoint.persistent
    return functools.partial(open_vault, url, run, switch=switch, incarnation=incarnation, bytes_per_s=cap)
