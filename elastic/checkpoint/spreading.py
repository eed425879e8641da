"""Pure. How the shards of a step that is restored reach the nodes that need them: each leaves the persistent tier once.

For each shard, those who have it and those who get it are numbered: in the order of their coming, and those who come
together by rendezvous hashing. Number k takes it from number (k - 1) // 2, while that one is still taking it itself: a
binary tree, in which nobody gives more than two copies, and the last is done shortly after the first.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from elastic.checkpoint.placement import ranked


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Nodes that should get a shard: all of them, or (is_once) the first that has room."""

    nodes: tuple[str, ...]
    is_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """A node takes a shard from the first of `sources` that gives it; none: from the persistent tier."""

    node: str
    shard: int
    sources: tuple[str, ...]


def wanted(saved: int, width: int, homes: Mapping[str, Collection[int]]) -> dict[int, Wanted]:
    """Which nodes should get which of the saved shards.

    With as many workers a replica as saved it, each needs the shard of its number. With another number, who needs which
    parts of a shard is known to the workers alone: each shard goes to one node, in turns, and all workers read from
    there what overlaps with theirs.

    Args:
        saved: shards of the step. width: workers of a replica now. homes: shards of each node's workers.
    """
    if saved != width:
        nodes = ranked("restore", homes)
        turns = {shard: shard % max(1, len(nodes)) for shard in range(saved)}
        return {shard: Wanted(nodes=(*nodes[at:], *nodes[:at]), is_once=True) for shard, at in turns.items()}
    by_shard = {shard: [node for node, shards in homes.items() if shard in shards] for shard in range(saved)}
    return {shard: Wanted(nodes=tuple(ranked(f"shard {shard}", nodes))) for shard, nodes in by_shard.items()}


def errands(
    wanted: Mapping[int, Wanted],
    trees: Mapping[int, Sequence[str]],
    room: Mapping[str, int],
    nbytes: Mapping[int, int],
    durable: Collection[int],
) -> list[Errand]:
    """What is to be done next; a shard's givers come before its takers.

    Args:
        trees: of each shard the nodes that have it, or were sent for it, in the order of their coming.
        room: of nodes that can be asked now, in bytes; the others have to wait, and who has too little is left out.
        nbytes: of each shard. durable: those that are in the persistent tier.
    """
    left, found = dict(room), list[Errand]()
    for shard in sorted(wanted):
        tree = list(trees.get(shard, ()))
        for node in _next(wanted[shard], frozenset(tree), left, nbytes[shard]):
            if not tree and shard not in durable:
                break  # nobody can be asked for it yet
            found.append(Errand(node=node, shard=shard, sources=above(tree, len(tree))))
            tree.append(node)
            left[node] -= nbytes[shard]
    return found


def above(tree: Sequence[str], number: int) -> tuple[str, ...]:
    """Whom number `number` of a tree takes from, and, should that one fail, whom that one takes from, to the root."""
    path = []
    while number > 0:
        number = (number - 1) // 2
        path.append(tree[number])
    return tuple(path)


def _next(wanted: Wanted, tree: Collection[str], room: Mapping[str, int], nbytes: int) -> list[str]:
    """Nodes that are to be added to the tree of a shard."""
    if not wanted.is_once:
        return [node for node in wanted.nodes if node not in tree and room.get(node, -1) >= nbytes]
    if tree:
        return []
    first = next((node for node in wanted.nodes if room.get(node, nbytes) >= nbytes), None)
    return [first] if first is not None and first in room else []  # else it is about to come
