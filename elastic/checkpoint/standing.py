"""Pure. Where each step stands: which nodes hold which of its shards, and what was tried for it."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from elastic.checkpoint.manifest import ShardKey, is_visible
from elastic.checkpoint.placement import ranked
from elastic.checkpoint.rungs import Copy, Holding, Rung, StepId
from elastic.control.values import CommitId, Fork

TRIES = 3  # of a pull at one node, of the upload of a shard, of a commit
COMMIT = -1  # in place of a shard


@dataclass(slots=True)
class Site:
    """A node, and what it holds. holding: as it last told; dropping: what it was told to drop, and may still show."""

    domain: str
    holding: Holding | None = None
    slots: set[Copy] = field(default_factory=set)
    pinned: set[Copy] = field(default_factory=set)
    copies: set[Copy] = field(default_factory=set)
    dropping: set[Copy] = field(default_factory=set)
    ordered: frozenset[ShardKey] = frozenset()  # pins, as last ordered
    leaving: str = ""

    def keeps(self, copy: Copy) -> bool:
        """It is here until this ladder says otherwise."""
        return copy in self.pinned or copy in self.copies

    def has(self, copy: Copy) -> bool:
        """It can be read here."""
        return copy in self.slots or copy in self.copies


@dataclass(slots=True, eq=False)
class Step:
    """One step, and what was tried for it.

    Attributes:
        order: older to newer: a later generation that began at an earlier step is newer. copies: of its shards.
        age: beats since it was first seen. said: what the journal was last told of it.
        pulling: (shard, node) of pulls on their way; waiting: of those of them that failed and are tried again.
        tries, refusals: pulls that failed, by (shard, node), and why the node is not asked again.
        full: nodes that had no room. uploads: who is at it, by shard; uploaded: who was, and the digest.
        failed_uploads: how often, by shard, or COMMIT. committer: who commits it now.
        readers: those that hold a lease.
    """

    commit: CommitId
    shards: int
    age: int = 0
    was_replicated: bool = False
    is_durable: bool = False
    said: tuple[Rung, str] | None = None
    pulling: set[tuple[int, str]] = field(default_factory=set)
    waiting: set[tuple[int, str]] = field(default_factory=set)
    tries: dict[tuple[int, str], int] = field(default_factory=dict)
    refusals: dict[tuple[int, str], str] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    is_uploading: bool = False
    committer: str = ""
    uploads: dict[int, str] = field(default_factory=dict)
    uploaded: dict[int, tuple[str, str]] = field(default_factory=dict)
    failed_uploads: dict[int, int] = field(default_factory=dict)
    readers: int = 0
    order: tuple[int, int, int, int] = field(init=False)
    copies: tuple[Copy, ...] = field(init=False)

    def __post_init__(self) -> None:
        commit = self.commit
        self.order = commit.incarnation, commit.generation, commit.step, commit.attempt
        of = commit.step, commit.lineage, self.shards
        self.copies = tuple((of, shard) for shard in self.all)

    @property
    def all(self) -> range:
        return range(self.shards)

    def key(self, shard: int) -> ShardKey:
        return ShardKey(commit=self.commit, shard=shard, shards=self.shards)

    def excuse(self, shard: int, node: str, reason: str) -> None:
        """Note a pull that came to nothing: another try after the next beat; after TRIES none for this step."""
        self.tries[shard, node] = self.tries.get((shard, node), 0) + 1
        if self.tries[shard, node] < TRIES:
            self.waiting.add((shard, node))
        else:
            self.refusals[shard, node] = reason
            self.pulling.discard((shard, node))

    def beat(self) -> None:
        self.age += 1
        self.pulling -= self.waiting
        self.waiting.clear()

    def tell_anew(self) -> None:
        """Where it stands is told once more, and not as a loss; what is durable is told for good."""
        if self.said is not None and self.said[0] is not Rung.DURABLE:
            self.said = None

    def room_at(self, node: str) -> None:
        """Something was dropped there: where the node was full, it may be asked anew."""
        if node in self.full:
            self.refusals = {where: why for where, why in self.refusals.items() if where[1] != node}
            self.tries = {where: count for where, count in self.tries.items() if where[1] != node}
            self.full.discard(node)

    def forget(self, node: str) -> None:
        """What the node was asked to do died with it; nothing of that counts as a try."""
        self.pulling = {(shard, at) for shard, at in self.pulling if at != node}
        self.waiting = {(shard, at) for shard, at in self.waiting if at != node}
        self.refusals = {where: why for where, why in self.refusals.items() if where[1] != node}
        self.tries = {where: count for where, count in self.tries.items() if where[1] != node}
        self.full.discard(node)
        self.uploads = {shard: at for shard, at in self.uploads.items() if at != node}
        self.committer = "" if self.committer == node else self.committer


class Holdings:
    """What all nodes have together, counted once for as long as nothing moves, since each look asks again and again.

    Attributes:
        staying: nodes that count: not those about to leave, unless there are no others.
        kept: on how many of these a copy is kept. copied: what somebody has beside the slots. there: what can be read.
    """

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self._sites = sites

    @cached_property
    def staying(self) -> Collection[str]:
        return [node for node, site in self._sites.items() if not site.leaving] or list(self._sites)

    @cached_property
    def kept(self) -> Counter[Copy]:
        staying = (self._sites[node] for node in self.staying)
        return Counter(chain.from_iterable(site.pinned | site.copies for site in staying))

    @cached_property
    def copied(self) -> frozenset[Copy]:
        return frozenset().union(*[site.copies for site in self._sites.values()])

    @cached_property
    def there(self) -> frozenset[Copy]:
        return self.copied.union(*[site.slots for site in self._sites.values()])


class Standing:
    """All nodes and all steps. copies: nodes that should hold each shard."""

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.sites: dict[str, Site] = {}
        self.steps: dict[StepId, Step] = {}
        self._forks: tuple[Fork, ...] = ()
        self._newest_first: list[Step] | None = None
        self._held = Holdings(self.sites)

    def moved(self) -> None:
        """Which nodes there are, or what they hold, has changed."""
        self._held = Holdings(self.sites)

    def fork(self, forks: tuple[Fork, ...]) -> None:
        """There the history began anew."""
        self._forks, self._newest_first = forks, None

    def see(self, commit: CommitId, shards: int) -> Step:
        """A step, known from now on."""
        of = commit.step, commit.lineage, shards
        if of not in self.steps:
            self.steps[of] = Step(commit, shards)
            self._newest_first = None
        return self.steps[of]

    def forget(self, of: StepId) -> None:
        del self.steps[of]
        self._newest_first = None

    def staying(self) -> Collection[str]:
        """Nodes that count: not those about to leave, unless there are no others."""
        return self._held.staying

    def sources(self, step: Step, shard: int) -> list[str]:
        """Copies first: slots are the trainer's, and a leaving node last of all."""
        copy = step.copies[shard]
        found = ranked(f"source {shard}", (node for node, site in self.sites.items() if site.has(copy)))
        return sorted(found, key=lambda node: (bool(self.sites[node].leaving), copy not in self.sites[node].copies))

    def is_somewhere(self, copy: Copy) -> bool:
        return copy in self._held.there

    def is_copied(self, step: Step) -> bool:
        """Whether a node has a copy of a part of it, beside what workers have in their slots."""
        return not self._held.copied.isdisjoint(step.copies)

    def fewest(self, step: Step) -> int:
        return min([self._held.kept[copy] for copy in step.copies])

    def is_whole(self, step: Step) -> bool:
        return all(map(self.is_somewhere, step.copies))

    def is_replicated(self, step: Step) -> bool:
        def is_enough(shard: int) -> bool:
            kept = self._held.kept[step.copies[shard]]
            return kept >= self.copies or kept >= max(1, sum((shard, node) not in step.refusals for node in staying))

        staying = self.staying()
        return all(is_enough(shard) for shard in step.all)

    def rung(self, step: Step) -> Rung | None:
        if step.is_durable:
            return Rung.DURABLE
        if self.is_whole(step):
            return Rung.REPLICATED if self.is_replicated(step) else Rung.LOCAL
        return Rung.STAGED if self.has_any(step) else None

    def newest_first(self) -> list[Step]:
        """Those that history has not left behind."""
        if self._newest_first is None:
            self._newest_first = sorted(self._visible(), key=lambda step: step.order, reverse=True)
        return self._newest_first

    def _visible(self) -> list[Step]:
        steps = self.steps.values()
        return [step for step in steps if is_visible(step.commit, self._forks)] if self._forks else list(steps)

    def safe(self) -> Step | None:
        """The step to fall back to: of those that were REPLICATED and are whole, the newest of the best kept."""
        best, most = None, 0
        for step in self.newest_first():
            if step.was_replicated and self.is_whole(step):
                fewest = self.fewest(step)
                if fewest >= self.copies:  # no older one is kept better
                    return step
                if best is None or fewest > most:
                    best, most = step, fewest
        return best

    def has_any(self, step: Step) -> bool:
        return any(map(self.is_somewhere, step.copies))
