"""Effect. The persistent tier as a source of shards, and as somebody whom a node pulls from."""

import logging
import threading
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, TypeGuard

import numpy as np

from elastic.checkpoint.leases import BusyError, Lease
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.records import Committed, name_of
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import MissingError, StoreError
from elastic.checkpoint.vault import Vault
from elastic.errors import CorruptError

log = logging.getLogger("elastic")


class VaultSource:
    """See `elastic.checkpoint.source.Source`, and `elastic.checkpoint.pulling.Peer`.

    Reading a step takes a lease on it, which `close` gives up.

    Attributes:
        troubles: what the last `manifests` found of durable steps and could not use, a sentence each.
        newest, at_most: where no step is asked for it looks at so many of the newest durable ones, and at as many of
            those up to `at_most`; None: at all. has_older: whether the last `manifests` has left out older ones.
    """

    tier = Tier.PERSISTENT
    gives_stored = False

    def __init__(self, vault: Vault, *, newest: int | None = None, known: Sequence[Manifest] = ()) -> None:
        """
        Args:
            newest: see there. known: manifests that are in the vault, and need not be read again.
        """
        self._vault, self.newest = vault, newest
        self.at_most: int | None = None
        self.has_older = False
        self.where = vault.where
        self.troubles: list[str] = []
        self._given = {(name_of(one.commit), one.shard, one.shards): one for one in known}
        self._manifests = dict(self._given)
        self._leases: dict[str, Lease] = {}
        self._unleased: set[str] = set()
        self._lock = threading.Lock()

    def manifests(self, step: int | None = None) -> Sequence[Manifest]:
        found, failure = self._look(step)
        if failure is not None:
            raise failure
        return found

    def _look(self, step: int | None) -> tuple[list[Manifest], StoreError | None]:
        """What there is; and what the store said if it gave no answer about a step that may be the newest whole one.

        To go back behind that would make it void. Of an older one it hides nothing.
        """
        self.has_older = False  # until it is known
        records, unread = self._vault.looked()
        records = self._among(records) if step is None else [one for one in records if one.commit.step == step]
        wanted = [(record, shard) for record in records for shard in range(record.shards)]
        found = self._vault.all_of(self._manifest, wanted, f"{self.where}: manifests")
        wrong = [
            (record.name, one) for (record, _), one in zip(wanted, found, strict=True) if not isinstance(one, Manifest)
        ]
        looked_at = {(record.name, shard, record.shards) for record, shard in wanted}
        held = {place: one for place, one in list(self._manifests.items()) if place in looked_at}
        self._manifests = self._given | held  # of all that was ever there they would be gigabytes
        self.troubles = [*(told for one, told in unread.items() if step in (None, one.step))]
        self.troubles += [str(error) for _, error in wrong]
        lacking = {name for name, _ in wrong}
        newest = {record.name for record in takewhile(lambda record: record.name in lacking, records)}
        silent = (error for name, error in wrong if name in newest and _is_silence(error))
        return [one for one in found if isinstance(one, Manifest)], next(silent, None)

    def read(self, key: ShardKey, begin: int, end: int) -> bytes:
        manifest = self._known(key)
        self._lease(name_of(manifest.commit))
        if not 0 <= begin <= end <= manifest.nbytes:
            raise StoreError(f"{self.where}: {manifest.name} has no bytes from {begin} to {end}")
        parts = []
        at = begin
        while at < end:
            number = at // manifest.chunk_bytes
            first, last = manifest.chunk(number)
            stop = min(end, last)
            parts.append(self._vault.store.read(self._vault.keys.chunk(manifest, number), at - first, stop - first))
            at = stop
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def manifest(self, key: ShardKey, timeout_s: float) -> Manifest:
        """See `Peer.manifest`; the store has deadlines of its own."""
        return self._known(key)

    def fetch(self, key: ShardKey, begin: int, end: int, timeout_s: float) -> Any:
        """See `Peer.fetch`: the chunks are read in parallel; the store has deadlines of its own."""
        chunk_bytes = self._known(key).chunk_bytes
        edges = [begin, *range((begin // chunk_bytes + 1) * chunk_bytes, end, chunk_bytes), end]
        cuts = list(zip(edges, edges[1:], strict=False))
        parts = self._vault.all_of(lambda cut: self.read(key, *cut), cuts, f"{self.where}: chunks")
        return np.frombuffer(b"".join(parts), dtype=np.uint8)

    def close(self) -> None:
        """Give up the leases. Raises StoreError."""
        with self._lock:
            leases, self._leases, self._unleased = list(self._leases.values()), {}, set()
        for lease in leases:
            lease.release()

    def _among(self, records: Sequence[Committed]) -> list[Committed]:
        early = [one for one in records if self.at_most is None or one.commit.step <= self.at_most]
        self.has_older = self.newest is not None and len(early) > self.newest
        wanted = {one.name for one in (*records[: self.newest], *early[: self.newest])}
        return [one for one in records if one.name in wanted]

    def _manifest(self, wanted: tuple[Committed, int]) -> Manifest | StoreError | CorruptError:
        record, shard = wanted
        place = (record.name, shard, record.shards)
        if place not in self._manifests:
            try:
                self._manifests[place] = self._vault.manifest(record, shard)
            except (CorruptError, StoreError) as error:
                return error
        return self._manifests[place]

    def _known(self, key: ShardKey) -> Manifest:
        place = (name_of(key.commit), key.shard, key.shards)
        failure = self._look(key.commit.step)[1] if place not in self._manifests else None
        for name, shard, shards in (place, *list(self._manifests)):
            manifest = self._manifests.get((name, shard, shards))
            if manifest is not None and manifest.key.is_same(key):
                return manifest
        if failure is not None:  # it may be there
            raise failure
        raise MissingError(f"{self.where}: step {key.commit.step}, shard {key.shard} of {key.shards}, is not here")

    def _lease(self, name: str) -> None:
        """Of a tier that takes no writes (a mount that is full, or read-only, rights to read alone) it reads without.

        What is deleted meanwhile is missing then, and never wrong: chunks are verified.
        """
        with self._lock:
            lease = self._leases.get(name)
            if name in self._unleased:
                return
            try:
                if lease is not None:
                    lease.renew()
                else:
                    self._leases[name] = self._vault.lease_to_read(name)
            except (BusyError, MissingError):
                raise
            except StoreError as error:
                self._vault.check_unleased(name)
                if lease is None:  # else it lasts for a while yet, and is renewed with the next read
                    self._unleased.add(name)
                    log.warning("%s: %s is read without a lease: %s", self.where, name, error)


def _is_silence(error: Exception) -> TypeGuard[StoreError]:
    """Nothing is said about whether it is there."""
    return isinstance(error, StoreError) and not isinstance(error, MissingError)
