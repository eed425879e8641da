"""Pure. Who holds which state, kept up answer by answer: so nobody has to be looked at to see what can be resumed."""

from collections.abc import Collection, Iterable

from elastic.control.state import State, WorkerRecord, highest
from elastic.control.values import CommitId


class Holders:
    """Live, healed workers that have said what they hold.

    Attributes:
        names: all of them, and what each holds. commits: by state, who holds it, each with the commit that it named.
    """

    __slots__ = ("_shards", "_width", "commits", "names")

    def __init__(self, width: int) -> None:
        self._width = width
        self.names: dict[str, tuple[CommitId, ...]] = {}
        self.commits: dict[State, dict[str, CommitId]] = {}
        self._shards: dict[State, dict[int, int]] = {}  # how many hold each shard

    def note(self, worker: WorkerRecord, held: tuple[CommitId, ...]) -> None:
        """What a worker holds now (`WorkerRecord.held`); nothing, if it has not answered."""
        before = self.names.get(worker.name, ())
        if before == held:
            return
        for state in {(commit.step, commit.lineage) for commit in before}:
            self._drop(worker, state)
        for state, commit in {(commit.step, commit.lineage): commit for commit in held}.items():
            self._add(worker, state, commit)
        if held:
            self.names[worker.name] = held
        else:
            del self.names[worker.name]

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
