"""The seeded world with somebody who tunes it: how many samples a step has follows from view and committed state."""

from typing import Any

from elastic.control import events as ev
from elastic.control.batch_size import ConstantBatch
from elastic.control.data import BatchPlan, MicroBatch
from elastic.control.retuning import refusal
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.control.values import CommitId, StepReport
from elastic.sim.parts import FAULTS_END_S, Plan, SimWorker
from elastic.sim.world import World

DATA = BatchPlan(samples=50, batch_size=ConstantBatch(size=12), micro_batch_size=4)
WISHES = (
    Tuning(lr_factor=0.5),
    Tuning(batch_size=20),
    Tuning(batch_size=7, micro_batch_size=3),
    Tuning(micro_batch_size=6),
    Tuning(batch_size=2),  # refused, unless micro-batches are as small
    Tuning(batch_size=51),  # refused: more than there is
)


class TuneWorld(World):
    """One run.

    Attributes:
        consumed: by lineage, the samples that all steps up to this one have taken. tuned: what it was computed at.
        cuts: by lineage, the micro-batches of its last step.
        asked: (time, wish) that was not refused.
    """

    data = DATA

    def __init__(self, seed: int, plan: Plan, wishes: float) -> None:
        super().__init__(seed, plan)
        self.wishes = wishes
        self.consumed: dict[str, int] = {"": 0}
        self.tuned: dict[str, Tuning] = {"": NOT_TUNED}
        self.cuts: dict[str, tuple[MicroBatch, ...]] = {}
        self.contributed: dict[tuple[int, int], Any] = {}
        self.asked: list[tuple[float, Tuning]] = []

    def tick(self) -> None:
        if self.now_s < FAULTS_END_S and self.rng.random() < self.wishes:
            wish = self.rng.choice(WISHES)
            if not refusal(self.ws.state, wish):
                self.asked.append((self.now_s, wish))
            self.control(ev.TuneAsked(tuning=wish))
        super().tick()

    def plays(self, worker: SimWorker) -> tuple[Tuning, tuple[MicroBatch, ...]]:
        """What this worker makes of its view and the state that it holds."""
        assert worker.view is not None
        lineage = worker.state.commit.lineage
        tuning = worker.view.tuning.over(self.tuned[lineage])
        return tuning, DATA.tuned(tuning).cut(self.consumed[lineage], len(worker.view.members))

    def step(self, worker: SimWorker) -> None:
        if not worker.contributed:
            plays, key = self.plays(worker), self.key(worker)
            assert self.contributed.setdefault(key, plays) == plays, f"{key} is cut in several ways"
        super().step(worker)

    def reduced(self, worker: SimWorker, key: tuple[int, int]) -> None:
        parent, (tuning, cut) = worker.state.commit.lineage, self.plays(worker)
        before = worker.applying
        super().reduced(worker, key)
        commit = worker.applying
        if commit is not None and commit is not before:
            consumed = self.consumed[parent] + sum(one.count for one in cut)
            assert self.consumed.setdefault(commit.lineage, consumed) == consumed
            assert self.tuned.setdefault(commit.lineage, tuning) == tuning
            self.cuts[commit.lineage] = cut

    def report_of(self, commit: CommitId, **details: Any) -> StepReport:
        return super().report_of(commit, tuning=self.tuned[commit.lineage], **details)
