"""Pure. The seeded world with tiers below the live workers: some steps are saved, and some of those cannot be read.

Here a step is saved at once, and as a whole; `depot.py` plays how it gets there. A run may also find steps of an
earlier life, or go back because two replicas differ.
"""

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.values import CommitId
from elastic.sim.laws import Law, must
from elastic.sim.parts import Plan, SimWorker
from elastic.sim.restores import Restores


class TierWorld(Restores):
    """One life of a run.

    Args:
        before: the steps that an earlier life has saved; save: chance that a stable step is saved.
        bad: chance that a saved step cannot be read by anybody; refuse: that one worker cannot.
        rewind: chance that somebody sends the run back, every few seconds.
    """

    def __init__(
        self, seed: int, plan: Plan, *, before: int, save: float, bad: float, refuse: float, rewind: float
    ) -> None:
        super().__init__(seed, plan, rewind=rewind)
        self.save, self.bad, self.refuse = save, bad, refuse
        self.saved: list[CommitId] = []
        self.unreadable: set[str] = set()
        self.refused: set[str] = set()
        self.samples.inherit([f"b{step}" for step in range(before)])
        for step in range(before):
            commit = CommitId(incarnation=0, generation=1, attempt=1, step=step, lineage=f"b{step}")
            self.note_stable(commit)
        if not self.saved:
            self.stable.clear()

    def note_stable(self, commit: CommitId) -> None:
        is_new = commit.step == len(self.stable) and not self.is_void(commit)
        super().note_stable(commit)
        if is_new and self.rng.random() < self.save:
            self.saved.append(commit)
            self.unreadable |= {commit.lineage} if self.rng.random() < self.bad else set()

    def check_readable(self, commit: CommitId) -> None:
        is_saved = any(one.same_state(commit) for one in self.saved)
        must(is_saved, Law.NEVER_WRONG, lambda: f"{commit} was never saved")
        must(commit.lineage not in self.unreadable, Law.NEVER_WRONG, lambda: f"{commit} cannot be read")

    def go_back(self, resume: CommitId) -> None:
        super().go_back(resume)
        self.saved = [one for one in self.saved if one.step <= resume.step]

    def find(self, command: cmd.FindRestore) -> ev.RestoreFound:
        bound = command.at_most if command.at_most is not None else 1 << 30
        fit = [
            one
            for one in self.saved
            if one.step <= bound
            and not any(one.same_state(bad) for bad in command.without)
            and not any(fork.voids(one) for fork in self.forks)
        ]
        newest = max(fit, key=lambda one: one.step, default=None)
        return ev.RestoreFound(commit=newest, reason="" if newest else "nothing was saved")

    def can_read(self, worker: SimWorker, commit: CommitId) -> bool:
        is_bad = commit.lineage in self.unreadable or self.rng.random() < self.refuse
        self.refused |= {commit.lineage} if is_bad else set()
        return not is_bad

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
