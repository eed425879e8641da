"""Pure. The seeded world in which state can come from a tier: workers at the door load what was found for them.

A run may lose all its workers and go on from what was saved, or be sent back on purpose.
"""

from abc import abstractmethod
from collections import defaultdict
from dataclasses import replace
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.values import CommitId, Fork, StepReport, View
from elastic.control.worker_protocol import Signal, Stage
from elastic.settings import Checkpoint
from elastic.sim.brain import Brain
from elastic.sim.laws import Law, must
from elastic.sim.parts import Plan, SimWorker
from elastic.sim.world import World

REWINDS_S = 3.0
RESTORE: dict[str, Any] = {"restore_timeout_s": 20.0}
SLOW, SLOW_S = 0.1, (1.0, 8.0)  # how often loading takes long, and how long


class Restores(World):
    """One life of a run.

    Args:
        rewind: chance that somebody sends the run back, every few seconds.

    Attributes:
        restored: steps that were gone back to. rewound: how often somebody asked for it.
        offered: what was found last for a run that wanted the newest step.
        forked: where the history began anew, as generations that were told have it.
        answers: by worker, the last order to load something that it has heard of, and what it has answered.
        loads_until_s: by worker, when it has loaded all that it was told to.
    """

    def __init__(self, seed: int, plan: Plan, *, rewind: float, **options: Any) -> None:
        super().__init__(seed, plan, **options)
        self.rewind = rewind
        self.restored: list[int] = []
        self.rewound = 0
        self.offered: CommitId | None = None
        self.answers: dict[str, tuple[int, Any]] = {}
        self.loads_until_s: dict[str, float] = {}
        self.forked: set[Fork] = set()
        self.later(REWINDS_S, self.send_back)

    def brain(self, **settings: Any) -> Brain:
        return super().brain(checkpoint=Checkpoint(), **RESTORE, **settings)

    # --- what a kind of tiers says ---

    @abstractmethod
    def find(self, command: cmd.FindRestore) -> ev.RestoreFound:
        """What the tiers answer."""

    @abstractmethod
    def can_read(self, worker: SimWorker, commit: CommitId) -> bool:
        """Whether this worker gets its part of a commit."""

    @abstractmethod
    def check_readable(self, commit: CommitId) -> None:
        """Whether the run may go on from this commit.

        Raises:
            Violation: it may not.
        """

    # --- the driver's side ---

    def send_back(self) -> None:
        self.later(REWINDS_S, self.send_back)
        if self.now_s < self.plan.faults_end_s and self.ws.state.published >= 0 and self.rng.random() < self.rewind:
            self.rewound += 1
            self.control(ev.RewindAsked(to_step=self.rng.randint(0, self.ws.state.published)))

    def carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.FindRestore):
            if command.reason == "every replica died":
                self.check_nobody_holds()
            self.later(self.delay_s(), self.answer_find, command)
            return
        if isinstance(command, cmd.Form):
            if command.view.restored or self.is_bequeathed(command.view):
                self.check_readable(command.view.resume)
                self.restored.append(command.view.resume.step)
                self.go_back(command.view.resume)
            self.forked.update(command.view.forks)
        super().carry_out(command)

    def is_bequeathed(self, view: View) -> bool:
        """Whether an older driver had decided to go back to this step, and died before it told any worker.

        Before the first step nothing is read: whoever has begun holds what a run begins with.
        """
        if view.resume.step < 0:
            return False
        older = [one for one in view.forks if (one.incarnation, one.generation) < (view.incarnation, view.generation)]
        return any(one.step == view.resume.step and one not in self.forked for one in older)

    def answer_find(self, command: cmd.FindRestore) -> None:
        found = self.find(command)
        if command.at_most is None or not self.ws.generation:  # a dispute that an earlier driver has left
            self.offered = found.commit
        self.control(replace(found, number=command.number))

    def go_back(self, resume: CommitId) -> None:
        """The history goes on after this commit."""
        del self.stable[resume.step + 1 :]
        self.truth = 0
        self.note_moving()

    def check_nobody_holds(self) -> None:
        """No state as new as the last stable step is held in every shard by members in reach."""
        newest = max(0, len(self.stable) - 1)
        held: dict[tuple[int, str], set[int]] = defaultdict(set)
        for worker in (self.workers[member.name] for member in self.ws.state.members):
            state, in_reach = worker.state, self.could_give(worker)
            for commit in (state.commit, state.prepared) if in_reach and state.healed else ():
                if commit is not None and commit.step >= newest:
                    held[commit.step, commit.lineage].add(self.shard(worker))
        whole = [commit for commit, shards in held.items() if len(shards) == self.width]
        must(not whole, Law.NOTHING_LOST, lambda: f"members hold {whole}")

    # --- the workers' side ---

    def is_void(self, commit: CommitId) -> bool:
        """The history has begun anew before it."""
        return any(fork.voids(commit) for fork in self.forks)

    def note_stable(self, commit: CommitId) -> None:
        if not self.is_void(commit):  # else seen by somebody out of reach, who is no part of the run any more
            super().note_stable(commit)

    def report_of(self, commit: CommitId, **details: Any) -> StepReport:
        return super().report_of(commit, voted=True, **details)

    def obey(self, worker: SimWorker, command: Any) -> None:
        if not isinstance(command, cmd.Restore):
            super().obey(worker, command)
            if isinstance(command, cmd.Form) and worker.view is command.view:
                number = self.answers.get(worker.name, (0, None))[0]
                if number < command.view.restores:
                    self.answers[worker.name] = command.view.restores, None
        elif self.is_cut(worker, "in"):
            self.later(worker.muted_until_s - self.now_s, self.obey, worker, command)
        elif worker.is_alive and not worker.is_hung and worker.state.stage in (Stage.PARKED, Stage.FROZEN):
            self.restore(worker, command)

    def form(self, worker: SimWorker) -> None:
        if self.now_s < self.loads_until_s.get(worker.name, 0.0):
            return  # its training thread is busy
        view, pending = self.ws.view, worker.pending
        if pending is not None and any(fork.voids(pending) for fork in view.forks):
            worker.pending = None
        worker.unpublished = [one for one in worker.unpublished if not any(fork.voids(one) for fork in view.forks)]
        super().form(worker)

    def restore(self, worker: SimWorker, command: cmd.Restore) -> None:
        """An order that was answered is only answered again; it is obeyed once the one before it was."""
        number, answer = self.answers.get(worker.name, (0, None))
        if command.number == number and answer is not None:
            self.tell(worker, answer[0], **answer[1])
            return
        if command.number <= number:
            return
        self.answers[worker.name] = command.number, None
        is_slow = self.rng.random() < SLOW
        if is_slow:
            self.struck.add(worker.name)
            self.faults.add("load")
        takes_s = self.rng.uniform(*SLOW_S) if is_slow else self.delay_s()
        done_s = max(self.now_s, self.loads_until_s.get(worker.name, 0.0)) + takes_s
        self.loads_until_s[worker.name] = worker.since_s = done_s
        worker.moved_s = self.now_s
        where = worker.state.incarnation, worker.state.generation
        self.later(done_s - self.now_s, self.loaded, worker, command.commit, where)

    def loaded(self, worker: SimWorker, commit: CommitId, where: tuple[int, int]) -> None:
        """Not where it was called to join the others meanwhile, who hand it what they hold, or has another driver."""
        is_at_door = worker.state.stage in (Stage.PARKED, Stage.FROZEN)
        is_void = (worker.state.incarnation, worker.state.generation) != where
        if not worker.is_alive or worker.is_hung or not is_at_door or is_void:
            return
        answer: tuple[type[ev.WorkerEvent], dict[str, Any]]
        if self.can_read(worker, commit):
            worker.pending, worker.unpublished = None, []
            self.done(worker, Signal.RESTORED, commit=commit)
            worker.consumed = self.samples.consumed[commit.lineage]
            # What a vote has not verified may be saved too, but then nobody knows of it.
            worker.bits, worker.is_tainted = 0, False
            answer = ev.Restored, {"commit": commit}
        else:
            self.struck.add(worker.name)
            kept = worker.state.commit if worker.state.healed else None
            answer = ev.RestoreRefused, {"commit": commit, "reason": "bad bytes", "kept": kept}
        self.answers[worker.name] = self.answers[worker.name][0], answer
        self.tell(worker, answer[0], **answer[1])
