"""Pure. Where each step stands: which nodes hold which of its shards, and what was tried for it."""

from collections.abc import Collection
from dataclasses import dataclass, field

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

    def was_asked_for_less(self) -> None:
        """Another number of copies is wanted: what it lacks of them was not lost."""
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


class Standing:
    """All nodes and all steps. copies: nodes that should hold each shard. forks: where the history began anew."""

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.sites: dict[str, Site] = {}
        self.steps: dict[StepId, Step] = {}
        self.forks: tuple[Fork, ...] = ()

    def see(self, commit: CommitId, shards: int) -> Step:
        """A step, known from now on."""
        return self.steps.setdefault((commit.step, commit.lineage, shards), Step(commit, shards))

    def staying(self) -> Collection[str]:
        """Nodes that count: not those about to leave, unless there are no others."""
        return [node for node, site in self.sites.items() if not site.leaving] or list(self.sites)

    def keepers(self, step: Step, shard: int) -> list[str]:
        copy = step.copies[shard]
        return [node for node in self.staying() if self.sites[node].keeps(copy)]

    def sources(self, step: Step, shard: int) -> list[str]:
        """Copies first: slots are the trainer's, and a leaving node last of all."""
        copy = step.copies[shard]
        found = ranked(f"source {shard}", (node for node, site in self.sites.items() if site.has(copy)))
        return sorted(found, key=lambda node: (bool(self.sites[node].leaving), copy not in self.sites[node].copies))

    def is_somewhere(self, copy: Copy) -> bool:
        return any(site.has(copy) for site in self.sites.values())

    def is_copied(self, step: Step) -> bool:
        """Whether a node has a copy of a part of it, beside what workers have in their slots."""
        return any(copy in site.copies for copy in step.copies for site in self.sites.values())

    def fewest(self, step: Step) -> int:
        staying = [self.sites[node] for node in self.staying()]
        return min(sum([copy in site.pinned or copy in site.copies for site in staying]) for copy in step.copies)

    def is_whole(self, step: Step) -> bool:
        return all(map(self.is_somewhere, step.copies))

    def is_replicated(self, step: Step) -> bool:
        def is_enough(shard: int) -> bool:
            able = [node for node in self.staying() if (shard, node) not in step.refusals]
            return len(self.keepers(step, shard)) >= max(1, min(self.copies, len(able)))

        return all(is_enough(shard) for shard in step.all)

    def rung(self, step: Step) -> Rung | None:
        if step.is_durable:
            return Rung.DURABLE
        if self.is_whole(step):
            return Rung.REPLICATED if self.is_replicated(step) else Rung.LOCAL
        return Rung.STAGED if self.has_any(step) else None

    def newest_first(self) -> list[Step]:
        """Those that history has not left behind."""
        return sorted(self._visible(), key=lambda step: step.order, reverse=True)

    def _visible(self) -> list[Step]:
        steps = self.steps.values()
        return [step for step in steps if is_visible(step.commit, self.forks)] if self.forks else list(steps)

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
