"""Effect. How the parts of a shard are taken from a peer: each chunk verified, the next parts on their way."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

from elastic.checkpoint import summing
from elastic.checkpoint.copied import MIN_BYTES_PER_S, cuts
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.errors import CorruptError

PART_BYTES = 64 << 20
AT_ONCE = 2  # parts: one is put into the store there, or verified here, while another is sent
FIRST_BYTE_S = 10.0


class Peer(Protocol):
    """Another node, asked for what it holds.

    Attributes:
        where: for people.
        gives_stored: whether what it gives lies where copies live already, for as long as the array does.
    """

    where: str
    gives_stored: bool

    def manifest(self, key: ShardKey, timeout_s: float) -> Manifest:
        """Of one shard. Raises: MissingError, StoreError, CorruptError."""

    def fetch(self, key: ShardKey, begin: int, end: int, timeout_s: float) -> Any:
        """Bytes [begin, end) of its payload, (end - begin,) uint8, unverified. Raises: MissingError, StoreError."""


def manifest_of(peer: Peer, key: ShardKey) -> Manifest:
    """What a peer tells of a shard.

    Raises:
        CorruptError: it tells of another one. MissingError, StoreError: see `Peer.manifest`.
    """
    manifest = peer.manifest(key, FIRST_BYTE_S)
    if not manifest.key.is_same(key):
        raise CorruptError(f"{peer.where} was asked for {shard_name(key)} and told of {shard_name(manifest.key)}")
    return manifest


def verified(peer: Peer, manifest: Manifest, at: int, part_bytes: int) -> Iterator[tuple[int, Any]]:
    """(begin, bytes) of each part of the payload from `at` on, in order; the next ones are fetched meanwhile.

    Raises:
        CorruptError: what came is not what was summed. MissingError, StoreError: see `Peer.fetch`.
    """

    def fetch(begin: int, end: int) -> Any:
        # All that are on their way share what the peer gives in a second.
        return peer.fetch(manifest.key, begin, end, FIRST_BYTE_S + AT_ONCE * (end - begin) / MIN_BYTES_PER_S)

    wanted = iter(cuts(manifest, at, part_bytes))
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="elastic-pull") as ahead:
        coming = deque((cut, ahead.submit(fetch, *cut)) for cut in islice(wanted, AT_ONCE))
        while coming:
            (begin, end), fetched = coming.popleft()
            data = fetched.result()
            _verify(manifest, begin, end, data)
            yield begin, data
            coming.extend((cut, ahead.submit(fetch, *cut)) for cut in islice(wanted, 1))


def shard_name(key: ShardKey) -> str:
    """For people."""
    return f"shard {key.shard} of {key.shards} of step {key.commit.step}"


def _verify(manifest: Manifest, begin: int, end: int, data: Any) -> None:
    if len(data) != end - begin:
        raise CorruptError(f"{manifest.name}: {len(data)} bytes came for [{begin}, {end})")
    for number in range(begin // manifest.chunk_bytes, -(-end // manifest.chunk_bytes)):
        at, to = manifest.chunk(number)
        manifest.verify(number, data[at - begin : to - begin], summing.value)
