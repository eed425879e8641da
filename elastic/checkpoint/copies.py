"""Pure. How many nodes get a copy of each shard where the settings leave it open: two if there is room, else one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from elastic.checkpoint.placement import targets
from elastic.checkpoint.rungs import PeersChosen

FEW, MANY = 1, 2
_GENERATIONS = 3  # two that are kept, and the one on its way


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """A node that can take copies; domain: its failure domain, or empty. budget_bytes: what they may take of it."""

    domain: str
    budget_bytes: int


class Copies:
    """See the module.

    Args:
        asked: by the settings; None: as nodes and memory allow.

    Attributes:
        first: how many, until something else is chosen. most: how many it can come to.
    """

    def __init__(self, asked: int | None) -> None:
        self._is_open = asked is None
        self.first, self.most = (FEW, MANY) if asked is None else (asked, asked)
        self._sizes: dict[int, int] = {}
        self._known: object = None
        self._peers: int | None = None

    def staged(self, shard: int, nbytes: int) -> None:
        """So large a shard is now."""
        self._sizes[shard] = nbytes

    def news(
        self, homes: Mapping[int, Collection[str]], takers: Mapping[str, Taker], *, is_complete: bool = True
    ) -> PeersChosen | None:
        """What follows from this, if it is another number than before, or the first one; see `choose_peers`.

        Args:
            is_complete: no other taker is on its way; the first choice waits for them.
        """
        if self._peers is None and not is_complete:
            return None
        sizes = {shard: self._sizes[shard] for shard in homes if shard in self._sizes}
        known = (sizes, dict(homes), dict(takers))
        if not self._is_open or len(sizes) < len(homes) or not homes or known == self._known:
            return None
        self._known, chosen = known, choose_peers(sizes, homes, takers)
        before, self._peers = self._peers, chosen.peers
        return chosen if chosen.peers != before else None


def choose_peers(
    shards: Mapping[int, int], homes: Mapping[int, Collection[str]], takers: Mapping[str, Taker]
) -> PeersChosen:
    """As many copies as nodes and their budgets allow.

    Args:
        shards: bytes of each. homes: nodes with workers of each, which need no copy of it. takers: by node.
    """
    if len(takers) <= MANY:
        reason = f"there are {len(takers)} nodes, and {MANY} copies of what a node has need {1 + MANY}"
        return PeersChosen(peers=FEW, reason=reason)
    domains = {node: taker.domain for node, taker in takers.items()}
    load = dict.fromkeys(takers, 0)
    for shard, nbytes in shards.items():
        for node in targets(shard, homes.get(shard, ()), domains, 1 + MANY):
            load[node] += _GENERATIONS * nbytes
    node = max(takers, key=lambda one: (load[one] - takers[one].budget_bytes, one))
    room, is_enough = takers[node].budget_bytes, load[node] <= takers[node].budget_bytes
    reason = (
        f"of {len(takers)} nodes {node[:12]} is the fullest with {MANY} copies: they take {load[node] >> 20} of the "
        f"{room >> 20} MiB that it may hold for others"
    )
    return PeersChosen(peers=MANY if is_enough else FEW, reason=reason)
