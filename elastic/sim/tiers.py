"""Pure. The seeded world with tiers below the live workers: some steps are saved, and some of those cannot be read.

A run may find steps of an earlier life, lose all its workers and go on from what was saved, be sent back, or go back
because two replicas differ.
"""

from dataclasses import replace
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.state import Phase
from elastic.control.values import CommitId, StepReport
from elastic.control.worker_protocol import Signal, Stage
from elastic.settings import Checkpoint
from elastic.sim.brain import Brain
from elastic.sim.clockwork import LIMITS, PATIENCE, SENSING
from elastic.sim.laws import Law, must
from elastic.sim.parts import Plan, SimWorker
from elastic.sim.world import World

REWINDS_S = 3.0
RESTORE: dict[str, Any] = {"restore_timeout_s": 20.0}


class TierWorld(World):
    """One life of a run.

    Args:
        before: the steps that an earlier life has saved; save: chance that a stable step is saved.
        bad: chance that a saved step cannot be read by anybody; refuse: that one worker cannot.
        rewind: chance that somebody sends the run back, every few seconds.
    """

    def __init__(
        self, seed: int, plan: Plan, *, before: int, save: float, bad: float, refuse: float, rewind: float
    ) -> None:
        super().__init__(seed, plan)
        self.ws = Brain(plan.replicas, plan.spares, checkpoint=Checkpoint(), **LIMITS, **SENSING, **PATIENCE, **RESTORE)
        self.save, self.bad, self.refuse, self.rewind = save, bad, refuse, rewind
        self.saved: list[CommitId] = []
        self.unreadable: set[str] = set()
        self.refused: set[str] = set()
        self.restored: list[int] = []
        self.rewound = 0
        self.answers: dict[str, tuple[int, Any]] = {}
        for step in range(before):
            commit = CommitId(incarnation=0, generation=1, attempt=1, step=step, lineage=f"b{step}")
            self.note_stable(commit)
        if not self.saved:
            self.stable.clear()
        self.later(REWINDS_S, self.send_back)

    def note_stable(self, commit: CommitId) -> None:
        if any(fork.voids(commit) for fork in self.ws.state.forks):
            return  # seen by somebody out of reach, who is no part of the run any more
        is_new = commit.step == len(self.stable)
        super().note_stable(commit)
        if is_new and self.rng.random() < self.save:
            self.saved.append(commit)
            self.unreadable |= {commit.lineage} if self.rng.random() < self.bad else set()

    def report_of(self, commit: CommitId) -> StepReport:
        return replace(super().report_of(commit), voted=True)

    def send_back(self) -> None:
        if self.ws.phase is Phase.ENDED:
            return
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
        if isinstance(command, cmd.Form) and command.view.restored:
            resume = command.view.resume
            is_saved = any(one.same_state(resume) for one in self.saved)
            must(is_saved, Law.NEVER_WRONG, lambda: f"{resume} was never saved")
            must(resume.lineage not in self.unreadable, Law.NEVER_WRONG, lambda: f"{resume} cannot be read")
            self.restored.append(resume.step)
            del self.stable[resume.step + 1 :]
            self.saved = [one for one in self.saved if one.step <= resume.step]
        super().carry_out(command)

    def check_nobody_holds(self) -> None:
        for member in self.ws.state.members:
            worker = self.workers[member.name]
            in_reach = worker.is_alive and not worker.is_hung and not worker.muted_until_s
            held = worker.state.commit.step if worker.state.healed else -1
            holds = in_reach and held >= max(0, len(self.stable) - 1)
            must(not holds, Law.NOTHING_LOST, lambda: f"{member.name} holds it")  # noqa: B023

    def answer_find(self, command: cmd.FindRestore) -> None:
        bound = command.at_most if command.at_most is not None else 1 << 30
        fit = [
            one
            for one in self.saved
            if one.step <= bound
            and not any(one.same_state(bad) for bad in command.without)
            and not any(fork.voids(one) for fork in self.ws.state.forks)
        ]
        newest = max(fit, key=lambda one: one.step, default=None)
        self.control(ev.RestoreFound(commit=newest, reason="" if newest else "nothing was saved"))

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
        view, pending = self.ws.view, worker.pending
        if pending is not None and any(fork.voids(pending) for fork in view.forks):
            worker.pending = None
        worker.unpublished = [one for one in worker.unpublished if not any(fork.voids(one) for fork in view.forks)]
        super().form(worker)

    def restore(self, worker: SimWorker, command: cmd.Restore) -> None:
        """An order that was answered is only answered again."""
        number, answer = self.answers.get(worker.name, (0, None))
        if command.number == number and answer is not None:
            self.tell(worker, answer[0], **answer[1])
            return
        if command.number <= number:
            return
        commit = command.commit
        worker.since_s = worker.moved_s = self.now_s
        worker.pending, worker.unpublished = None, []
        is_bad = commit.lineage in self.unreadable or self.rng.random() < self.refuse
        if is_bad:
            self.refused.add(commit.lineage)
            kept = worker.state.commit if worker.state.healed else None
            answer = ev.RestoreRefused, {"commit": commit, "reason": "bad bytes", "kept": kept}
        else:
            self.done(worker, Signal.RESTORED, commit=commit)
            worker.bits = 0  # what a vote has not verified may be saved too, but then nobody knows of it
            answer = ev.Restored, {"commit": commit}
        self.answers[worker.name] = command.number, answer
        self.tell(worker, answer[0], **answer[1])

    def judge_failure(self, ending: Ending, why: str) -> None:
        """A run with something to go on from does not end before its last step."""
        usable = [one for one in self.saved if one.lineage not in self.unreadable | self.refused]
        if ending is Ending.DIVERGED:
            verified = [one for one in usable if one.step <= self.ws.state.verified]
            is_hopeless = "no vote" in why or "again" in why or not verified
            must(self.plan.corrupt > 0.0 and is_hopeless, Law.NOTHING_LOST, lambda: f"{verified} is there: {why}")
            return
        must(ending is Ending.REPLICAS_LOST, Law.ENDS, lambda: f"the run ended with {ending}: {why}")
        is_over = "after the last step" in why
        must(is_over or not usable, Law.NOTHING_LOST, lambda: f"{usable} could have been restored: {why}")
