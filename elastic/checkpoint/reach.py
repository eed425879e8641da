"""Effect. Where a process can read checkpoints of a run by itself: its node's memory and disk, the persistent store."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from elastic.checkpoint.disk import Disk
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.source import Silent, Source, Tier
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.vault import Vault, open_vault
from elastic.checkpoint.vault_source import VaultSource
from elastic.knobs import redacted
from elastic.settings import Checkpoint

log = logging.getLogger("elastic")

NEWEST = 16  # durable steps that a restore looks at, before it looks at older ones


class Reach:
    """Sources that are opened once and kept.

    Args:
        more: sources that others serve, as things stand when it is called.
        switch: see `open_vault`.
    """

    def __init__(
        self,
        run: str,
        checkpoint: Checkpoint,
        more: Callable[[], Sequence[Source]] = tuple,
        switch: Path | None = None,
    ) -> None:
        self._run, self._checkpoint, self._more, self._switch = run, checkpoint, more, switch
        self._memory = MemorySource(Path(checkpoint.memory), run)
        self._disk = _disk(Path(checkpoint.disk), run) if checkpoint.disk is not None else None
        self._vault: Vault | None = None
        self._durable: VaultSource | None = None

    @property
    def vault(self) -> Vault | None:
        """The persistent tier, None if there is none.

        Raises:
            SettingError: its URL cannot be used. StoreError: no credentials.
        """
        if self._vault is None and self._checkpoint.persistent is not None:
            self._vault = open_vault(self._checkpoint.persistent, self._run, switch=self._switch)
        return self._vault

    @property
    def has_older(self) -> bool:
        """Whether there are durable steps that the last look at `sources` has not come to."""
        return self._durable is not None and self._durable.has_older

    def sources(self, newest: int = NEWEST, at_most: int | None = None) -> list[Source]:
        """All there are, nearest first; a persistent tier that cannot be opened now is one that does not answer.

        Args:
            newest, at_most: durable steps to look at, see `VaultSource`.
        """
        near: list[Source] = [self._memory] if self._disk is None else [self._memory, self._disk]
        found = [*near, *self._more()]
        try:
            vault = self.vault
        except (StoreError, OSError) as error:
            return [*found, Silent(Tier.PERSISTENT, redacted(str(self._checkpoint.persistent)), error)]
        if vault is not None:
            self._durable = self._durable or VaultSource(vault)
            self._durable.newest, self._durable.at_most = newest, at_most
            found.append(self._durable)
        return found

    def close(self) -> None:
        """Give up leases and connections."""
        if self._durable is not None:
            self._durable.close()
        if self._vault is not None:
            self._vault.close()


def _disk(directory: Path, run: str) -> Disk | None:
    """One whose mount hangs has nothing to read; what others hold does not hang with it."""
    try:
        return Disk(directory, run)
    except StoreError as error:
        log.warning("the disk of this node is left out: %s", error)
        return None
