"""Pure. What the controller counts over workers, kept up change by change, so that no event looks at all of them.

A tally is no part of the state's value: it follows from workers and view, and is counted anew wherever it does not
belong to exactly these. It changes in place, and belongs to the newest state alone; who takes an older state up again
gets one of its own.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from elastic.control.holders import Holders
from elastic.control.lookout import Lookout
from elastic.control.persistent import persistent
from elastic.control.state import OVER, RunState, Standing, WorkerRecord
from elastic.control.values import View

HELD = (Standing.REQUESTED, Standing.LOADING, Standing.PARKED, Standing.MEMBER)
_HELD = frozenset(HELD)

Names = dict[str, None]  # a set that keeps its order
Wish = tuple[frozenset[str], str]  # where a worker must not be placed, and where alone it may be


class Gangs:
    """Which shards of which replicas are there.

    Attributes:
        shards: by replica, how many workers there are for each of its shards. whole: replicas of which all are.
    """

    __slots__ = ("_width", "shards", "whole")

    def __init__(self, width: int) -> None:
        self._width = width
        self.shards: dict[int, dict[int, int]] = {}
        self.whole = 0

    def add(self, gang: int, shard: int) -> None:
        there = self.shards.setdefault(gang, {})
        if shard not in there and len(there) == self._width - 1:
            self.whole += 1
        there[shard] = there.get(shard, 0) + 1

    def drop(self, gang: int, shard: int) -> None:
        there = self.shards[gang]
        there[shard] -= 1
        if not there[shard]:
            self.whole -= len(there) == self._width
            del there[shard]
        if not there:
            del self.shards[gang]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gangs) and (self.shards, self.whole) == (other.shards, other.whole)


class Tally:
    """See the module.

    Attributes:
        ranks: of the members of the current generation, by name.
        standings: workers by standing, who has had it for longest first. nodes, mates: by node, and by gang.
        noticed: workers that will be lost soon. leaving: that were told to leave, and are not known to have left.
        wishes: workers that wait for a slot, by the nodes on which they must not be, and the one where they are to be.
        ready: replicas of workers that are parked, and may be taken into a generation.
        held: replicas of workers that are there or on their way, and will not be lost soon.
        late: members that have not answered in this generation, and are not over. doubted: whose death is looked for.
        unhealed: that have answered, and are not healed. away: not at the door. unformed: not in their group yet.
        unasked, restoring: workers at the door that were not told to load a commit, or do so. restored: replicas of
            those that hold one.
        holders: who holds which state, of those that have answered. hosts: what is told of the hosts.
        prune_above: so many workers that are over are not worth the look.
    """

    __slots__ = (
        "_generation", "_settings", "_tries", "_view", "_workers", "away", "doubted", "held", "holders", "hosts",
        "late", "leaving", "mates", "nodes", "noticed", "prune_above", "ranks", "ready", "restored", "restoring", 
        "standings", "unasked", "unformed", "unhealed", "wishes",
    )  # fmt: skip

    def __init__(self, state: RunState) -> None:
        self._settings, self._view, self._workers = state.settings, state.view, state.workers
        self._tries, self._generation = state.settings.limits.joiner_tries, state.generation
        self.ranks = _ranks(state.view)
        self.standings: dict[Standing, Names] = {standing: {} for standing in Standing}
        self.noticed: Names = {}
        self.leaving: Names = {}
        self.wishes: dict[Wish, Names] = {}
        self.nodes: dict[str, Names] = {}
        self.mates: dict[int, Names] = {}
        self.ready, self.held = Gangs(state.width), Gangs(state.width)
        self.late: Names = {}
        self.doubted: Names = {}
        self.unhealed: Names = {}
        self.away: Names = {}
        self.unformed: Names = {}
        self.unasked: Names = {}
        self.restoring: Names = {}
        self.restored = Gangs(state.width)
        self.holders = Holders(state.width)
        self.hosts = Lookout(state)
        self.prune_above = 0
        for worker in sorted(state.workers.values(), key=lambda worker: worker.since_s):
            self._add(worker)
            _keep(self.leaving, worker.name, worker.is_dismissed)
            self._note_held(worker)
            self._note_restore(None, worker)
            if worker.name in self.ranks:
                self._mark(worker)

    def describes(self, state: RunState) -> bool:
        """Whether this is the tally of exactly this state."""
        is_of = state.workers is self._workers and state.view is self._view and state.settings is self._settings
        return is_of and self.hosts.describes(state)

    def put(self, records: Mapping[str, WorkerRecord]) -> Mapping[str, WorkerRecord]:
        """These workers are new, or have changed; returns all there are."""
        workers = persistent(self._workers)
        for name, new in records.items():
            old = workers.get(name)
            if old is None:
                self._add(new)
            elif _has_moved(old, new):
                if old.standing is not new.standing:
                    del self.standings[old.standing][name]
                self._drop(old)
                self._add(new)
            _keep(self.leaving, name, new.is_dismissed)
            self._note_held(new)
            self._note_restore(old, new)
            if name in self.ranks:
                self._mark(new)
        self._workers = workers.updated(records)
        return self._workers

    def forget(self, names: Iterable[str]) -> Mapping[str, WorkerRecord]:
        """These workers, no members, are gone for good; returns those that are left."""
        workers, names = persistent(self._workers), list(names)
        for worker in workers.many(names):
            del self.standings[worker.standing][worker.name]
            self._drop(worker)
            self.leaving.pop(worker.name, None)
        self._workers = workers.without(names)
        return self._workers

    def enter(self, view: View, new: Iterable[WorkerRecord]) -> None:
        """A generation begins to form: what its members have answered in the one before counts no more.

        Args:
            new: members of whom it is not known that they have answered, are healed, and have said nothing since.
        """
        self._view, self._generation, self.ranks = view, view.generation, _ranks(view)
        self.away = dict.fromkeys(self.ranks)
        self.late, self.unformed, self.unhealed = self.away.copy(), self.away.copy(), {}
        self.doubted = {name: None for name in self.doubted if name in self.ranks}
        others = [name for name in self.holders.names if name not in self.ranks]
        self.holders = Holders(view.width)
        for worker in persistent(self._workers).many(others):
            self._note_held(worker)
        for member in new:
            self._mark(member)

    @property
    def begun(self) -> AbstractSet[str]:
        """Members that are at the door, or have joined their group."""
        some = [names for names in (self.away, self.unformed) if len(names) < len(self.ranks)]
        return frozenset().union(*(self.ranks.keys() - names.keys() for names in some))

    def by_rank(self, names: Iterable[str]) -> list[str]:
        """The members among these, in rank order."""
        return sorted((name for name in names if name in self.ranks), key=self.ranks.__getitem__)

    def by_start(self, names: Iterable[str]) -> list[str]:
        """These workers, in order of their start."""
        return sorted(names, key=persistent(self._workers).number)

    def differs(self, other: "Tally") -> list[str]:
        """What is counted differently."""
        counted = ["away", "doubted", "held", "holders", "late", "leaving", "mates", "nodes", "noticed", "ranks"]
        counted += ["ready", "standings", "restored", "restoring", "unasked", "unformed", "unhealed", "wishes"]
        return [name for name in counted if getattr(self, name) != getattr(other, name)]

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()

    def _add(self, worker: WorkerRecord) -> None:
        name, standing = worker.name, worker.standing
        self.standings[standing][name] = None
        self.nodes.setdefault(worker.node, {})[name] = None
        self.mates.setdefault(worker.gang, {})[name] = None
        if worker.notice:
            self.noticed[name] = None
        elif standing in _HELD:
            self.held.add(worker.gang, worker.shard)
        if standing is Standing.REQUESTED:
            self.wishes.setdefault((worker.avoid, worker.pinned), {})[name] = None
        elif standing is Standing.PARKED and worker.tries < self._tries:
            self.ready.add(worker.gang, worker.shard)

    def _drop(self, worker: WorkerRecord) -> None:
        name, standing = worker.name, worker.standing
        for group, key in ((self.nodes, worker.node), (self.mates, worker.gang)):
            _leave(group, key, name)
        if worker.notice:
            del self.noticed[name]
        elif standing in _HELD:
            self.held.drop(worker.gang, worker.shard)
        if standing is Standing.REQUESTED:
            _leave(self.wishes, (worker.avoid, worker.pinned), name)
        elif standing is Standing.PARKED and worker.tries < self._tries:
            self.ready.drop(worker.gang, worker.shard)

    def _note_held(self, worker: WorkerRecord) -> None:
        is_stale = worker.name in self.ranks and not worker.has_answered(self._generation)
        self.holders.note(worker, () if is_stale else worker.held)

    def _note_restore(self, old: WorkerRecord | None, new: WorkerRecord) -> None:
        if self._settings.checkpoint is None:
            return
        is_parked = new.standing is Standing.PARKED
        _keep(self.unasked, new.name, is_parked and new.tries < self._tries and new.restoring is None)
        _keep(self.restoring, new.name, is_parked and new.is_restoring)
        had, has = old is not None and _has_restored(old), _has_restored(new)
        if has and not had:
            self.restored.add(new.gang, new.shard)
        elif had and not has:
            self.restored.drop(new.gang, new.shard)

    def _mark(self, member: WorkerRecord) -> None:
        name = member.name
        has_answered = member.has_answered(self._generation)
        _keep(self.late, name, not has_answered and member.standing not in OVER)
        _keep(self.doubted, name, member.doubted)
        _keep(self.unhealed, name, has_answered and not member.healed)
        _keep(self.away, name, not member.at_door)
        _keep(self.unformed, name, not member.formed)


def _has_moved(old: WorkerRecord, new: WorkerRecord) -> bool:
    is_there = old.standing is new.standing and old.node == new.node
    return not is_there or old.notice != new.notice or old.tries != new.tries


def _has_restored(worker: WorkerRecord) -> bool:
    return worker.standing is Standing.PARKED and bool(worker.held)


def _keep(names: Names, name: str, is_one: bool) -> None:
    if is_one:
        names[name] = None
    else:
        names.pop(name, None)


def _leave(group: dict[Any, Names], key: Any, name: str) -> None:
    del group[key][name]
    if not group[key]:
        del group[key]


def _ranks(view: View | None) -> dict[str, int]:
    members = view.members if view is not None else ()
    return dict(zip([member.worker for member in members], range(len(members)), strict=True))


def _nothing() -> None:
    """What becomes of a tally that is sent somewhere."""
