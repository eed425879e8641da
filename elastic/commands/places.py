"""Effect. Where commands look for a run's checkpoints: this node's memory and disk, other nodes, a persistent store."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic.checkpoint.catalog import Candidate, Holder, candidates
from elastic.checkpoint.manifest import Fork
from elastic.checkpoint.reader import take_inventory
from elastic.checkpoint.source import Source, troubles_of
from elastic.commands.checkpoints import Where
from elastic.control.values import CommitId
from elastic.errors import RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What places hold of a run.

    Attributes:
        holders: every copy of every shard. candidates: whole steps, best first.
        quarantined: reasons, by commit. silent: places that gave no answer, and durable steps that nobody can
            read, a sentence each.
    """

    run: str
    holders: tuple[Holder, ...]
    candidates: tuple[Candidate, ...]
    quarantined: dict[CommitId, str]
    silent: tuple[str, ...]

    def at(self, step: int | None) -> Candidate:
        """The best candidate, or that of a step.

        Raises:
            RefusedError: there is none; says what there is.
        """
        for one in self.candidates:
            if step in (None, one.commit.step):
                return one
        wanted = "a step" if step is None else f"step {step}"
        there = ", ".join(str(one.commit.step) for one in self.candidates) or "none"
        more = f"; {'; '.join(self.silent)}" if self.silent else ""
        raise RefusedError(f"no source holds all shards of {wanted} of run {self.run}; whole steps: {there}{more}")


@contextmanager
def looked_up(run: str, where: Where) -> Iterator[Held]:
    """Ask the places; their sources can be read inside.

    Raises:
        SettingError: a place cannot be used. StoreError: the persistent store cannot be asked.
        NoClusterError: there is none whose nodes could be asked.
    """
    with ExitStack() as stack:
        sources: list[Source] = []
        forks: list[Fork] = []
        quarantined: dict[CommitId, str] = {}
        if where.memory is not None:
            sources.append(memory_source(run, where.memory))
        if where.disk is not None:
            sources.append(disk_of(run, where.disk))
        if where.peers:
            sources += stack.enter_context(nodes_of(run, where.address))
        if where.persistent is not None:
            vault = opened_vault(where.persistent, run)
            stack.callback(vault.close)
            source = vault_source(vault)
            stack.callback(source.close)
            sources.append(source)
            forks, quarantined = vault.forks(), vault.quarantined()
        inventory = take_inventory(sources, where.timeout)
        yield Held(
            run=run,
            holders=inventory.holders,
            candidates=candidates(inventory.holders, run, forks, quarantined),
            quarantined=quarantined,
            silent=(*inventory.silent, *troubles_of(sources)),
        )


def memory_source(run: str, directory: Path) -> Any:
    """This node's slots of a run."""
    from elastic.checkpoint.memory import MemorySource

    return MemorySource(directory, run)


def disk_of(run: str, directory: Path) -> Any:
    """A run's shards on this node's disk."""
    from elastic.checkpoint.disk import Disk

    return Disk(directory.absolute(), run)


@contextmanager
def nodes_of(run: str, address: str | None) -> Iterator[list[Source]]:
    """What the nodes of a cluster have in slots, copies and on disks, by the run's replica actors.

    Raises:
        NoClusterError: there is no cluster.
    """
    from elastic.actors.cluster import connected
    from elastic.actors.peer_source import peer_sources

    with connected(address):
        yield list(peer_sources(run, ""))


def opened_vault(url: str, run: str) -> Any:
    """A run's part of a persistent store."""
    from elastic.checkpoint.vault import open_vault

    return open_vault(url, run)


def vault_source(vault: Any) -> Any:
    """A vault as a source of shards."""
    from elastic.checkpoint.vault_source import VaultSource

    return VaultSource(vault)
