"""Pure. Which samples the steps of a small world are made of, dealt as workers do: each comes once an epoch."""

from collections.abc import Iterable, Sequence
from typing import Any

from elastic.control.batch_size import BatchSize, ConstantBatch, FixedMicroBatches, FollowReplicas
from elastic.control.data import BatchPlan, MicroBatch, deal, even
from elastic.sim.chance import Chance
from elastic.sim.laws import Law, must

_SIZES: tuple[BatchSize, ...] = (ConstantBatch(size=7), FollowReplicas(per_replica=2), FixedMicroBatches(per_replica=1))


def data_of(seed: int) -> BatchPlan:
    """A dataset that lasts for some steps, so that epochs end in between, most of them with a short step."""
    rng = Chance("data", seed)
    samples, size, micro_batch_size = rng.randint(20, 90), rng.choice(_SIZES), rng.choice((1, 2))
    return BatchPlan(
        samples=samples, batch_size=size, micro_batch_size=micro_batch_size, seed=seed, shuffle=rng.random() < 0.5
    )


class Samples:
    """Of one run.

    Attributes:
        consumed: by lineage, how many samples all steps up to this one have taken. made_of: by lineage, its own ones.
    """

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.consumed: dict[str, int] = {"": 0}
        self.made_of: dict[str, tuple[int, ...]] = {}
        self._dealt: dict[tuple[Any, str], tuple[int, ...]] = {}
        self._cut_for, self._cut = (-1, -1), tuple[MicroBatch, ...]()
        self._summed: dict[Any, tuple[str, frozenset[str]]] = {}
        self._told: list[str] = []
        self._epoch: set[int] = set()

    def deal(self, key: Any, worker: str, consumed: int, replicas: int, replica: int) -> None:
        """What a worker contributes to a reduction, by its own count of what was consumed before."""
        if (consumed, replicas) != self._cut_for:  # all others of this reduction will ask the same
            self._cut_for, self._cut = (consumed, replicas), self.plan.cut(consumed, replicas)
        mine = deal(len(self._cut), even(replicas), replica)
        self._summed.pop(key, None)
        self._dealt[key, worker] = tuple(
            sample for number in mine for sample in self.plan.sample_indices(self._cut[number])
        )

    def sum_up(self, key: Any, workers: Iterable[str], lineage: str, parent: str) -> None:
        """All these have contributed to the step of this lineage.

        Raises:
            Violation: not each of its samples once.
        """
        of = lineage, frozenset(workers)
        if self._summed.get(key) == of:  # who else sees it complete says the same
            return
        self._summed[key] = of
        samples = tuple(sorted(sample for worker in of[1] for sample in self._dealt[key, worker]))
        if lineage in self.made_of:
            is_same = self.made_of[lineage] == samples
            must(is_same, Law.EXACTLY_ONCE, lambda: f"{key} was {self.made_of[lineage]} elsewhere, and is {samples}")
            return
        must(len(set(samples)) == len(samples) > 0, Law.EXACTLY_ONCE, lambda: f"{key} is made of {samples}")
        self.made_of[lineage] = samples
        self.consumed[lineage] = self.consumed[parent] + len(samples)

    def inherit(self, lineages: Sequence[str]) -> None:
        """Steps that an earlier life has made."""
        for place, lineage in enumerate(lineages):
            consumed = self.consumed[lineages[place - 1] if place else ""]
            self.deal(lineage, "", consumed, 1, 0)
            self.sum_up(lineage, [""], lineage, lineages[place - 1] if place else "")

    def follow(self, history: list[str]) -> None:
        """The history has grown, perhaps after some of it was taken back.

        Raises:
            Violation: a sample has come twice in its epoch, or one of the next epoch before the last of this one.
        """
        told = len(self._told)
        if len(history) <= told or history[told - 1 : told] != self._told[-1:]:
            self._told, self._epoch = [], set()
        for lineage in history[len(self._told) :]:
            samples = self.made_of[lineage]
            is_new = self._epoch.isdisjoint(samples)
            must(is_new, Law.EXACTLY_ONCE, lambda: f"step {len(self._told)} takes samples again: {samples}")  # noqa: B023
            self._epoch.update(samples)
            if len(self._epoch) == self.plan.samples:
                self._epoch = set()
            self._told.append(lineage)
