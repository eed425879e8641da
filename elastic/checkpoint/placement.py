"""Pure. Which nodes hold copies of a shard: rendezvous hashing over live nodes, spread over failure domains.

Each node's rank for a shard is a hash of the two names, so any number of nodes will do, no node needs to know of a
table, and a node that comes or goes moves only the copies that it wins or held (Thaler and Ravishankar, 1998).
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache


def ranked(what: str, nodes: Iterable[str]) -> list[str]:
    """Nodes by their rank for `what`, first the one it belongs to most."""
    return sorted(nodes, key=lambda node: _rank(what, node))


@lru_cache(maxsize=1 << 16)  # the same few are asked for after each event
def _rank(what: str, node: str) -> bytes:
    return hashlib.blake2b(f"{what}\0{node}".encode(), digest_size=8).digest()


def targets(shard: int, holders: Collection[str], domains: Mapping[str, str], copies: int) -> tuple[str, ...]:
    """Nodes that should get a copy of a shard, in addition to those that hold one.

    The hash is over the shard alone, not over the commit, so the copies of each step go where those of the last went.

    Args:
        holders: nodes that hold it already, those included whose workers stage it: they are never chosen.
        domains: failure domain of each node that can take a copy; empty: unknown, a domain of its own.
        copies: nodes that should hold the shard in the end.

    Returns:
        As many as are missing, or as there are; nodes of domains without a copy first.
    """
    return _spread(ranked(f"shard {shard}", domains), holders, domains, copies)


def sites(with_workers: Collection[str], domains: Mapping[str, str], copies: int, run: str) -> Sequence[str]:
    """Nodes that need a replica actor: all with workers, and of the others only as many as the copies need.

    Args:
        domains: failure domain of each node, as in `targets`.
    """
    return [*sorted(with_workers), *_spread(ranked(run, domains), with_workers, domains, copies)]


def _spread(nodes: Iterable[str], holders: Collection[str], domains: Mapping[str, str], copies: int) -> tuple[str, ...]:
    """As many of these nodes as are missing, in their order, those of domains without a holder first."""
    missing = max(0, copies - len(holders))
    candidates = [node for node in nodes if node not in holders]
    taken = {_domain(node, domains) for node in holders}
    chosen: list[str] = []
    for node in candidates:
        if len(chosen) < missing and _domain(node, domains) not in taken:
            chosen.append(node)
            taken.add(_domain(node, domains))
    others = (node for node in candidates if node not in chosen)
    return (*chosen, *list(others)[: missing - len(chosen)])


def _domain(node: str, domains: Mapping[str, str]) -> str:
    return domains.get(node) or f"node {node}"
