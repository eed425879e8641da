"""Pure. Where the bytes of a shard can be read: this node's memory, a peer, a disk, the persistent store."""

import contextlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Protocol

from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.store import MissingError, StoreError


class Tier(IntEnum):
    """Nearest first."""

    MEMORY = 0
    DISK = 1
    PEER = 2
    PERSISTENT = 3


class Source(Protocol):
    """One place that holds shards of one run. Attribute `where`: for people and reports, e.g. a node or a URL.

    One that knows of steps which are there, and cannot be used, has an attribute `troubles`, see `troubles_of`.

    Calls block, each at most as long as the source's own deadline allows.
    """

    tier: Tier
    where: str

    def manifests(self, step: int | None = None) -> Sequence[Manifest]:
        """Of all shards that are whole here and belong to committed steps, decoded and checked; newest step first.

        Args:
            step: leave out all others: a manifest of thousands of tensors takes long to send and to decode.

        Raises:
            StoreError: the source cannot be asked now.
        """

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        """Bytes [begin, end) of a shard's payload: `bytes`, or a (end - begin,) uint8 array that stays as it is.

        Unverified: who reads checks chunks against the manifest.

        Raises:
            MissingError: the shard is not here (any more).
            StoreError: the source cannot be asked now.
        """


class Silent:
    """A source that cannot be asked now, whatever for: the others are asked all the same. See `Source`."""

    def __init__(self, tier: Tier, where: str, error: Exception) -> None:
        self.tier, self.where, self._error = tier, where, error

    def manifests(self, step: int | None = None) -> Sequence[Manifest]:
        raise StoreError(str(self._error))

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        raise StoreError(str(self._error))


class Together:
    """Some sources as one: see `Source`. `where` and `tier` are those of the first, which is asked first."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.tier, self.where = sources[0].tier, sources[0].where

    def manifests(self, step: int | None = None) -> Sequence[Manifest]:
        first, *others = self._sources
        found = list(first.manifests(step))
        for source in others:
            with contextlib.suppress(StoreError, OSError):  # of the first alone everybody has to hear
                found += source.manifests(step)
        return sorted(found, key=lambda one: -one.commit.step)

    def read(self, key: ShardKey, begin: int, end: int) -> Any:
        said = list[Exception]()
        for source in self._sources:
            try:
                return source.read(key, begin, end)
            except (StoreError, OSError) as error:
                said.append(error)
        raise next((error for error in said if not isinstance(error, MissingError)), said[0])


def troubles_of(sources: Iterable[Source]) -> list[str]:
    """What the last `manifests` of each found and could not use, a sentence each."""
    return [trouble for source in sources for trouble in getattr(source, "troubles", ())]
