"""Pure. The seeded world with replicas of several workers: a reduction for each shard, then an agreement in each.

Whoever gave its word in an agreement and was stopped before it heard the others' may have been heard, or not.
"""

from collections import defaultdict
from typing import Any

from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.state import Standing
from elastic.control.values import CommitId, View
from elastic.control.worker_protocol import Signal, Stage, Verdict
from elastic.sim.brain import Brain
from elastic.sim.laws import Law, must
from elastic.sim.parts import Plan, SimWorker
from elastic.sim.world import World

Decision = tuple[int, int, int]  # generation, update, replica


class GangWorld(World):
    """One run of replicas of `width` workers."""

    def __init__(self, seed: int, plan: Plan, width: int) -> None:
        self.width = width
        super().__init__(seed, plan)
        self.agreements: dict[Decision, set[str]] = defaultdict(set)
        self.deciding: dict[str, Decision] = {}
        self.received: dict[tuple[int, int], set[str]] = defaultdict(set)
        self.rolled_forward = self.split = 0

    def brain(self, **settings: Any) -> Brain:
        return super().brain(width=self.width, **settings)

    def clear_generations(self) -> None:
        super().clear_generations()
        self.agreements.clear()
        self.deciding.clear()
        self.received.clear()

    def shard(self, worker: SimWorker) -> int:
        return self.ws.state.workers[worker.name].shard

    def key(self, worker: SimWorker) -> Any:
        return (*super().key(worker), self.shard(worker))

    def is_full(self, worker: SimWorker) -> bool:
        assert worker.view is not None
        return len(self.reductions[self.key(worker)]) == worker.view.replicas

    def is_there(self, other: SimWorker, view: View) -> bool:
        is_busy = other.state.stage is Stage.FORMING and other.state.prepared is not None
        return super().is_there(other, view) and not is_busy

    def signal(self, worker: SimWorker, signal: Signal, **details: Any) -> Verdict:
        before = worker.state.stage
        verdict = super().signal(worker, signal, **details)
        decision = self.deciding.get(worker.name)
        if decision is not None and worker.state.stage is not before:
            del self.deciding[worker.name]
            if len(self.agreements[decision]) < self.width and self.rng.random() < 0.5:
                self.agreements[decision].discard(worker.name)
        return verdict

    def may_install(self, worker: SimWorker, view: View) -> bool:
        """Once all workers of its replica have received what they lack."""
        received = self.received[view.generation, view.rank_of(worker.name) // self.width]
        received.add(worker.name)
        return not view.behind or len(received) == self.width

    def form(self, worker: SimWorker) -> None:
        prepared = worker.state.prepared
        assert worker.view is not None
        is_new = not worker.view.bootstrap or worker.state.commit.step < 0
        must(is_new, Law.NEVER_WRONG, lambda: f"{worker.name} begins with a trained state")
        if prepared is None:
            self.forget_superseded(worker)
            super().form(worker)
            return
        is_next = prepared.step == worker.state.commit.step + 1
        must(is_next, Law.EXACTLY_ONCE, lambda: f"{worker.name} rolls forward to {prepared}")
        self.check_not_redone(worker, prepared)
        self.done(worker, Signal.ROLL_FORWARD)
        worker.pending, worker.consumed = prepared, self.samples.consumed[prepared.lineage]
        self.rolled_forward += 1

    def forget_superseded(self, worker: SimWorker) -> None:
        """What it applied last was lost with the rest of its replica, and has been done again by others, or will be."""
        view, pending = worker.view, worker.pending
        assert view is not None
        if pending is None:
            return
        is_stable = pending.step < len(self.stable) and self.stable[pending.step] == pending.lineage
        if worker.name in view.replaced:
            why = f"{pending} is stable, and {worker.name} is told that it was replaced"
            is_known = pending.incarnation == view.incarnation  # a new driver cannot know; others tell of the step
            must(not is_stable or not is_known, Law.EXACTLY_ONCE, lambda: why)
            worker.pending = None
        elif pending.step < view.resume.step:
            must(is_stable, Law.EXACTLY_ONCE, lambda: f"{pending} was replaced, and {worker.name} is not told")
        elif not pending.same_state(view.resume):
            worker.pending = None

    def step(self, worker: SimWorker) -> None:
        decision = self.deciding.get(worker.name)
        if decision is None:
            super().step(worker)
            return
        view = worker.view
        assert view is not None
        mates = view.gang(decision[2])
        has_agreed = len(self.agreements[decision]) == self.width and self.has_heard(worker, mates)
        if self.breaks() or not (has_agreed or self.may_become(worker, mates)):
            self.split += has_agreed
            self.signal(worker, Signal.BREAK)
            self.tell(worker, ev.CollectiveBroken, generation=view.generation, error="reset")
        elif has_agreed:
            self.decided(worker, decision)

    def reduced(self, worker: SimWorker, key: Any) -> None:
        """All who hold this shard have contributed, so all of them have applied the step before."""
        (generation, number, _), parent, view = key, worker.state.commit, worker.view
        assert view is not None
        place = (generation, number)
        is_same = self.parents.setdefault(place, parent.lineage) == parent.lineage
        must(is_same, Law.SAME_ANSWER, lambda: f"{place} began from different states")
        self.note_stable(parent)
        self.make_stable(worker)
        if number < self.plan.steps:
            lineage = self.lineage_of(parent, generation, number)
            self.samples.sum_up(key, self.reductions[key], lineage, parent.lineage)
            commit = CommitId(view.incarnation, generation, 1, number, lineage)
            self.done(worker, Signal.PREPARE, commit=commit)
        decision = self.deciding[worker.name] = (*place, view.rank_of(worker.name) // self.width)
        self.agreements[decision].add(worker.name)
        worker.since_s = worker.moved_s = self.now_s

    def decided(self, worker: SimWorker, decision: Decision) -> None:
        generation, number, _ = decision
        if number == self.plan.steps:
            self.signal(worker, Signal.END_LOOP)
            self.publish(worker)
            self.tell(worker, ev.LoopEnded, generation=generation, commit=worker.state.commit)
            return
        worker.wants_pause = any((generation, number, shard) in self.pauses for shard in range(self.width))
        if self.has_lease(worker):
            worker.applying = worker.state.prepared
            self.done(worker, Signal.ENTER_APPLY)
            self.check_not_left(worker, generation)

    def check_not_redone(self, worker: SimWorker, commit: CommitId) -> None:
        """Workers of another shard may be ahead: the step is stable for them, and this worker holds it prepared."""
        is_exiled = self.ws.standing(worker.name) is Standing.EXILED
        is_known = commit.step < len(self.stable)
        is_same = not is_known or self.stable[commit.step] == commit.lineage
        must(is_exiled or is_same, Law.NOTHING_LOST, lambda: f"{worker.name} redid {commit}")

    def live_holders(self) -> list[SimWorker]:
        """Members that could still give what they hold."""
        members = [self.workers[member.name] for member in self.ws.state.members]
        in_reach = [one for one in members if self.could_give(one)]
        return [one for one in in_reach if one.state.healed and one.state.commit.step >= 0]

    def judge_failure(self, ending: Ending, why: str) -> None:
        must(ending is Ending.REPLICAS_LOST, Law.ENDS, lambda: f"the run ended with {ending}: {why}")
        holders = self.live_holders()
        for commit in {one for holder in holders for one in held_by(holder)}:
            shards = {self.shard(one) for one in holders if any(held.same_state(commit) for held in held_by(one))}
            is_lost = len(shards) < self.width
            must(is_lost, Law.NOTHING_LOST, lambda: f"{commit} was still held in every shard")  # noqa: B023

    def judge_bits(self) -> None:
        last = {one.state.commit.lineage for one in self.live_holders() if one.state.commit.step == self.plan.steps - 1}
        must(len(last) <= 1, Law.SAME_ANSWER, lambda: f"shards ended with {len(last)} states")


def held_by(worker: SimWorker) -> list[CommitId]:
    return [one for one in (worker.state.commit, worker.state.prepared) if one is not None]
