"""Effect. Where commands look for a run's checkpoints: this node's memory and disk, or a persistent store."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic.checkpoint.catalog import Candidate, Holder, candidates
from elastic.checkpoint.manifest import Fork
from elastic.checkpoint.reader import take_inventory
from elastic.checkpoint.source import Source
from elastic.errors import RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What places hold of a run.

    Attributes:
        holders: every copy of every shard. candidates: whole steps, best first.
        quarantined: reasons, by (step, lineage). silent: places that gave no answer, and durable steps that nobody can
            read, a sentence each.
    """

    run: str
    holders: tuple[Holder, ...]
    candidates: tuple[Candidate, ...]
    quarantined: dict[tuple[int, str], str]
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
def looked_up(
    run: str, persistent: str | None, memory: Path | None, disk: Path | None, timeout_s: float
) -> Iterator[Held]:
    """Ask the places; their sources can be read inside.

    Raises:
        SettingError: a place cannot be used. StoreError: the persistent store cannot be asked.
    """
    with ExitStack() as stack:
        sources: list[Source] = []
        forks: list[Fork] = []
        quarantined: dict[tuple[int, str], str] = {}
        if memory is not None:
            sources.append(memory_source(run, memory))
        if disk is not None:
            sources.append(disk_of(run, disk))
        if persistent is not None:
            vault = opened_vault(persistent, run)
            stack.callback(vault.close)
            source = vault_source(vault)
            stack.callback(source.close)
            sources.append(source)
            forks, quarantined = vault.forks(), quarantine_of(vault)
        inventory = take_inventory(sources, timeout_s)
        troubles = [trouble for source in sources for trouble in getattr(source, "troubles", ())]
        yield Held(
            run=run,
            holders=inventory.holders,
            candidates=candidates(inventory.holders, run, forks, quarantined),
            quarantined=quarantined,
            silent=(*inventory.silent, *troubles),
        )


def memory_source(run: str, directory: Path) -> Any:
    """This node's slots of a run."""
    from elastic.checkpoint.memory import MemorySource

    return MemorySource(directory, run)


def disk_of(run: str, directory: Path) -> Any:
    """A run's shards on this node's disk."""
    from elastic.checkpoint.disk import Disk

    return Disk(directory.absolute(), run)


def opened_vault(url: str, run: str) -> Any:
    """A run's part of a persistent store."""
    from elastic.checkpoint.vault import open_vault

    return open_vault(url, run)


def vault_source(vault: Any) -> Any:
    """A vault as a source of shards."""
    from elastic.checkpoint.vault_source import VaultSource

    return VaultSource(vault)


def quarantine_of(vault: Any) -> dict[tuple[int, str], str]:
    """Reasons, by (step, lineage)."""
    from elastic.checkpoint.records import parse_name

    named = {parse_name(name): reason for name, reason in vault.quarantined().items()}
    return {(commit.step, commit.lineage): reason for commit, reason in named.items() if commit is not None}
