"""Effect. What is to be restored is brought to the nodes of workers while these still start; part of the keeper.

Nothing waits for it, and a worker that comes first reads by itself. The copies stay until a newer step is replicated,
or something needs their room. All calls come from the keeper's thread.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from elastic.actors.peer_source import PeerSource
from elastic.checkpoint.catalog import Candidate, Holder
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.placement import ranked
from elastic.checkpoint.prefetching import Incoming
from elastic.checkpoint.rungs import CheckpointRung, Copy, Holding, Prefetch, Rung, copy_of
from elastic.checkpoint.source import Tier
from elastic.checkpoint.spreading import Errand, errands, wanted

log = logging.getLogger("elastic")

_CALL_S = 60.0  # it is only begun

Then = Callable[[Callable[[], Any], float, Callable[[Any], Any], Callable[[str], Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What is restored, and where. width: workers of a replica now. homes: shards of each node's workers."""

    candidate: Candidate
    width: int
    homes: Mapping[str, Collection[int]]


@dataclass(slots=True)
class Site:
    """A node whose actor has answered."""

    actor: Any
    holding: Holding
    room_bytes: int


@dataclass(slots=True)
class Shard:
    """A shard of the step that is restored.

    Attributes:
        holder: whose manifest counts: that of the persistent tier, if it is there.
        tree: nodes that have it, or were sent for it (`spreading`).
    """

    holder: Holder
    tree: list[str] = field(default_factory=list)

    @property
    def is_durable(self) -> bool:
        return self.holder.source.tier is Tier.PERSISTENT


@dataclass(frozen=True, slots=True, eq=False)
class Trip:
    """What a node is sent for, once it and its `parents` have answered that they expect it."""

    actor: Any
    coming: tuple[Incoming, ...]
    durable: tuple[Manifest, ...]
    parents: frozenset[str]


class Prefetcher:
    """See the module.

    Args:
        tell: takes what is for the journal. then: continues when a call to an actor is answered, see `Keeper`.
    """

    def __init__(self, incarnation: int, tell: Callable[[Prefetch], None], then: Then) -> None:
        self._incarnation, self._tell, self._then = incarnation, tell, then
        self._aim: Aim | None = None
        self._formed: int | None = None  # the generation that has restored it
        self._sites: dict[str, Site] = {}
        self._is_settled = False  # who could be sent for what it needs was, and nobody was lost since
        self._others: dict[str, PeerSource] = {}  # nodes that were asked when the step was found
        self._shards: list[Shard] = []
        self._announcing: Counter[str] = Counter()  # calls that tell nodes what to expect, without an answer yet
        self._waiting: list[Trip] = []
        self._announced: list[Callable[[], None]] = []  # called when nobody waits any more

    @property
    def homes(self) -> frozenset[str]:
        """Nodes that need an actor for it."""
        return frozenset(self._aim.homes) if self._aim is not None and self._formed is None else frozenset()

    def aim(self, aim: Aim | None, then: Callable[[], None] = lambda: None) -> None:
        """This is restored now, in place of what was before; nodes and workers may be new since the last time.

        Args:
            aim: None: nothing is restored, after all.
            then: called when all nodes that are sent for it now have answered that they expect it.
        """
        before = self._aim
        if aim is None:
            self._formed = None
            self._release()
            self._announced.append(then)
            self._go()
            return
        if before is None or not aim.candidate.commit.same_state(before.candidate.commit):
            self._release()
            self._take_up(aim.candidate)
        elif self._formed is not None:  # once more: who has it now was asked when it was found
            self._take_up(aim.candidate)
        self._aim, self._formed = aim, None
        self._announced.append(then)
        self._send()
        self._go()

    def heard(self, node: str, actor: Any, holding: Holding) -> None:
        """A node has told what it holds."""
        known = self._sites.get(node)
        if known is not None and known.holding.life != holding.life:
            self.lost(node)
        # Each of a thousand nodes says so every second: what follows is looked at where it is news.
        is_known = known is not None and replace(known.holding, number=holding.number) == holding
        if not is_known or known is None or known.actor is not actor:
            self._sites[node] = Site(actor, holding, holding.budget_bytes - holding.nbytes)
            self._send()
        elif not self._is_settled:
            self._send()

    def lost(self, node: str) -> None:
        """What a node held is gone, and what it was sent for."""
        self._is_settled = False
        self._sites.pop(node, None)
        self._others.pop(node, None)
        for shard in self._shards:
            shard.tree = [one for one in shard.tree if one != node]
        self._announcing.pop(node, None)  # who was to take from it asks the next one: nobody waits for its answer
        self._go()

    def restored(self, generation: int) -> None:
        """A generation goes on from the step."""
        self._formed = generation

    def came_to(self, told: CheckpointRung) -> None:
        """A step came to a rung; once it is one that the restored run has made, the copies are of no use any more."""
        is_new = self._formed is not None and told.commit.generation >= self._formed
        if is_new and told.rung >= Rung.REPLICATED and told.commit.incarnation == self._incarnation:
            self._release()

    def _take_up(self, candidate: Candidate) -> None:
        self._shards, self._others, self._waiting = [], {}, []
        for holders in candidate.shards:
            durable = [one for one in holders if one.source.tier is Tier.PERSISTENT]
            peers = {one.source.node: one.source for one in holders if isinstance(one.source, PeerSource)}
            self._others |= peers
            self._shards.append(Shard((*durable, *holders)[0], ranked("holder", peers)))

    def _release(self) -> None:
        if self._aim is not None:
            self._aim, self._shards, self._others, self._waiting = None, [], {}, []
            for node, site in self._sites.items():
                site.room_bytes = site.holding.budget_bytes - site.holding.nbytes
                self._expect(node, site, ())

    def _send(self) -> None:
        """Nodes are sent for what they need, as soon as they can be asked."""
        aim = self._aim
        if aim is None or self._formed is not None:
            return
        self._is_settled = True
        here = {node: _copies_in(site.holding) for node, site in self._sites.items()}
        for shard in self._shards:
            known, copy = set(shard.tree), copy_of(shard.holder.manifest.key)
            shard.tree += [node for node, copies in here.items() if copy in copies and node not in known]
        found = errands(
            wanted(len(self._shards), aim.width, aim.homes),
            {number: shard.tree for number, shard in enumerate(self._shards)},
            {node: site.room_bytes for node, site in self._sites.items()},
            {number: shard.holder.manifest.nbytes for number, shard in enumerate(self._shards)},
            {number for number, shard in enumerate(self._shards) if shard.is_durable},
        )
        by_node: dict[str, list[Errand]] = {}
        for errand in found:
            by_node.setdefault(errand.node, []).append(errand)
        for node, mine in by_node.items():
            self._send_for(node, mine)
        for errand in found:
            self._shards[errand.shard].tree.append(errand.node)

    def _send_for(self, node: str, mine: list[Errand]) -> None:
        """All nodes say first what they expect, so that nobody is asked for what it does not know of yet."""
        site, shards = self._sites[node], [self._shards[errand.shard] for errand in mine]
        manifests = [shard.holder.manifest for shard in shards]
        site.room_bytes -= sum(manifest.nbytes for manifest in manifests)
        commit = manifests[0].commit
        self._tell(
            Prefetch(
                commit=commit,
                node=node,
                shards=tuple(errand.shard for errand in mine),
                sources=tuple(errand.sources for errand in mine),
                reason=f"its workers restore step {commit.step}",
            )
        )
        coming = tuple(
            Incoming(
                key=shard.holder.manifest.key,
                peers=tuple(self._peer(source) for source in errand.sources),
                is_durable=shard.is_durable,
            )
            for errand, shard in zip(mine, shards, strict=True)
        )
        durable = tuple(shard.holder.manifest for shard in shards if shard.is_durable)
        parents = frozenset(errand.sources[0] for errand in mine if errand.sources)
        self._waiting.append(Trip(site.actor, coming, durable, parents | {node}))
        self._expect(node, site, manifests)

    def _expect(self, node: str, site: Site, manifests: Sequence[Manifest]) -> None:
        self._announcing[node] += 1

        def answered(_: Any) -> None:
            self._announcing[node] = max(0, self._announcing[node] - 1)  # 0: it was lost meanwhile
            self._go()

        self._then(
            lambda: site.actor.expect.options(concurrency_group="control").remote(self._incarnation, manifests),
            _CALL_S,
            answered,
            answered,
        )

    def _go(self) -> None:
        """Who takes from nodes that expect it by now, sets out."""
        waiting, ready = list[Trip](), list[Trip]()
        for trip in self._waiting:
            (waiting if any(self._announcing[node] for node in trip.parents) else ready).append(trip)
        self._waiting = waiting
        for trip in ready:
            self._then(
                partial(self._set_out, trip),
                _CALL_S,
                lambda _: None,
                lambda reason: log.warning("not prefetched: %s", reason),
            )
        while self._announced and not self._waiting:
            self._announced.pop()()

    def _set_out(self, trip: Trip) -> Any:
        prefetch = trip.actor.prefetch.options(concurrency_group="prefetch")
        return prefetch.remote(self._incarnation, trip.coming, trip.durable)

    def _peer(self, node: str) -> PeerSource:
        site = self._sites.get(node)
        return PeerSource(site.actor, node) if site is not None else self._others[node]


def _copies_in(holding: Holding) -> set[Copy]:
    return {copy_of(key) for key in holding.slots | holding.copies | holding.disk}
