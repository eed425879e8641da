"""Effect. A node takes what a restore needs, beside: readers there see it at once, and wait for the bytes."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.node import Node
from elastic.checkpoint.pulling import Peer
from elastic.errors import ElasticError

log = logging.getLogger("elastic")

AT_ONCE = 16  # shards; readers of those beyond wait in vain, and read elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A shard that a node expects: it comes from one of `peers`, or, if it is there, from the persistent tier."""

    key: ShardKey
    peers: Sequence[Peer]
    is_durable: bool


class Tier(Peer, Protocol):
    """The persistent tier as a peer."""

    def close(self) -> None:
        """Give it up. Raises StoreError."""


def prefetch(node: Node, incoming: Sequence[Incoming], tier: Callable[[], Tier]) -> threading.Thread:
    """Begin to take shards that the node expects; returns who is at it. A failure is logged, and that is all.

    Args:
        tier: opens the persistent tier; called at most once, and not before it is needed.
    """
    opened: list[Tier] = []
    lock = threading.Lock()

    def peers(one: Incoming) -> Iterator[Peer]:
        yield from one.peers
        if one.is_durable:
            with lock:
                if not opened:
                    opened.append(tier())
            yield opened[0]

    def fill(one: Incoming) -> None:
        node.fill(one.key, peers(one), min(AT_ONCE, len(incoming)))

    def work() -> None:
        try:
            with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="elastic-prefetch") as crew:
                filling = [crew.submit(fill, one) for one in incoming]
            for one in filling:  # whatever it is, the others are prefetched
                if (failure := one.exception()) is not None:
                    log.warning("not prefetched: %s", failure)
        finally:
            node.give_up(one.key for one in incoming)
            _close(opened)

    thread = threading.Thread(target=work, name="elastic-prefetch", daemon=True)
    thread.start()
    return thread


def _close(opened: Sequence[Tier]) -> None:
    try:
        for one in opened:
            one.close()
    except ElasticError as error:
        log.warning("a lease on what was prefetched ends by itself: %s", error)
