"""Pure. Who holds which state, kept up answer by answer: so nobody has to be looked at to see what can be resumed."""

from collections.abc import Collection, Iterable

from elastic.control.state import State, WorkerRecord, highest
from elastic.control.values import CommitId


class Holders:
    """Live, healed workers that have said what they hold (`WorkerRecord.held`).

    Attributes:
        names: all of them. commits: by state, who holds it, each with the commit that it named.
    """

    __slots__ = ("_shards", "_width", "commits", "names")

    def __init__(self, width: int) -> None:
        self._width = width
        self.names: dict[str, None] = {}
        self.commits: dict[State, dict[str, CommitId]] = {}
        self._shards: dict[State, dict[int, int]] = {}  # how many hold each shard

    def note(self, old: WorkerRecord | None, new: WorkerRecord) -> None:
        """A worker is new, or has changed."""
        before, after = () if old is None else old.held, new.held
        if before == after:
            return
        for state in {(commit.step, commit.lineage) for commit in before}:
            self._drop(new, state)
        for state, commit in {(commit.step, commit.lineage): commit for commit in after}.items():
            self._add(new, state, commit)
        if after:
            self.names[new.name] = None
        else:
            del self.names[new.name]

    def resumable(self, but: Collection[WorkerRecord] = ()) -> State | None:
        """The highest state that is held in every shard by others than these; None if there is none."""
        votes = {}
        for state, there in self._shards.items():
            left, holding = dict(there), self.commits[state]
            absent = [worker for worker in but if worker.name in holding]
            for worker in absent:
                left[worker.shard] -= 1
            if sum(map(bool, left.values())) == self._width:
                votes[state] = len(holding) - len(absent)
        return highest(votes) if votes else None

    def named(self, state: State, workers: Iterable[WorkerRecord]) -> CommitId | None:
        """The commit by which the first of these workers that holds a state has named it."""
        holding = self.commits[state]
        return next((holding[worker.name] for worker in workers if worker.name in holding), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Holders) and (self.commits, self._shards) == (other.commits, other._shards)

    def _add(self, worker: WorkerRecord, state: State, commit: CommitId) -> None:
        self.commits.setdefault(state, {})[worker.name] = commit
        there = self._shards.setdefault(state, {})
        there[worker.shard] = there.get(worker.shard, 0) + 1

    def _drop(self, worker: WorkerRecord, state: State) -> None:
        holding, there = self.commits[state], self._shards[state]
        del holding[worker.name]
        there[worker.shard] -= 1
        if not there[worker.shard]:
            del there[worker.shard]
        if not holding:
            del self.commits[state], self._shards[state]
