"""Pure. The seeded world in which drivers die too, at any moment, and new ones go on with the workers that live.

What was on its way to the dead one is lost, and what it had sent may still arrive. A worker that was adopted heeds it
no more. Reports are kept by workers until a driver has them in its journal, which outlives it.
"""

import copy
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.adoption import Adopted, newest_view, who_goes_on
from elastic.control.bequest import bequest_of, left_by
from elastic.control.plain import plain
from elastic.control.state import RunState
from elastic.control.values import CommitId, Fork, View
from elastic.control.worker_protocol import Signal, Stage, Verdict
from elastic.sim.depot import DepotWorld
from elastic.sim.gangs import GangWorld
from elastic.sim.laws import Law, must
from elastic.sim.orders import Orders
from elastic.sim.parts import SimWorker
from elastic.sim.restores import Restores
from elastic.sim.tiers import TierWorld
from elastic.sim.world import World

OF_DRIVERS = frozenset({Signal.FREEZE, Signal.FORM, Signal.GO, Signal.FINISH, Signal.DISMISS})
# What a driver, or its monitors, would do later, and does not if it dies before.
BOUND = frozenset({"control", "carry_out", "answer_find", "hunt", "come_up", "hear"})
TOLD_ONCE = (ev.LoopEnded, ev.TrainFnReturned, ev.WorkerNotice)
ANSWERS_S, RETRY_S = 2.0, 0.2


@dataclass(frozen=True, slots=True)
class Order:
    """A command on its way to a worker, and whose it is."""

    life: int
    command: cmd.Command


class Succession(World):
    """Mixed into a world; `deaths_s`: when its drivers die."""

    def __init__(self, *arguments: Any, deaths_s: tuple[float, ...] = (), **options: Any) -> None:
        self.life, self.is_headless, self.speaking = 1, False, 1
        self.kept: dict[str, list[CommitId]] = defaultdict(list)
        self.facts: dict[str, list[tuple[Any, dict[str, Any]]]] = defaultdict(list)
        self.left: set[str] = set()
        self.waiting: list[tuple[Any, ...]] = []
        self.journal: list[int] = []
        self.stale = 0
        self.is_anew = self.is_sent_back = False
        self.new_lines: tuple[Fork, ...] = ()
        super().__init__(*arguments, **options)
        self.past = self.ws.state
        for at_s in deaths_s:
            self.later(at_s, self.die)

    # --- a driver dies ---

    def later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        if act.__name__ in BOUND:
            super().later(delay_s, self.if_it_lives, self.life, act, *arguments)
        else:
            super().later(delay_s, act, *arguments)

    def if_it_lives(self, life: int, act: Callable[..., None], *arguments: Any) -> None:
        if life == self.life and not self.is_headless:
            act(*arguments)

    def send(self, channel: tuple[str, str], is_ordered: bool, act: Callable[..., None], *arguments: Any) -> None:
        if self.is_headless and channel[0] == "from":
            self.waiting.append(arguments)  # until somebody asks
        else:
            super().send(channel, is_ordered, act, *arguments)

    def die(self) -> None:
        self.faults.add("driver")
        self.life, self.is_headless = self.life + 1, True
        super().later(self.rng.choice((0.0, self.rng.uniform(0.1, 5.0))), self.succeed, self.life)

    def tick(self) -> None:
        if self.is_headless:
            self.later(0.5, self.tick)
            return
        super().tick()
        for name in self.kept:  # workers hear what is journalled
            if self.rng.random() < 0.5 and not self.is_cut(self.workers[name], "in"):
                self.kept[name] = [one for one in self.kept[name] if one.step > self.ws.state.published]

    def control(self, event: ev.Event) -> None:
        if self.is_headless:
            return
        before = self.ws.state
        super().control(event)
        if isinstance(event, ev.StepStable) and self.ws.state is not before:  # else it waits, or was never heard
            told = self.ws.state.published
            is_later = not self.journal or told >= self.journal[-1] or bool(self.forks)
            must(is_later, Law.EXACTLY_ONCE, lambda: "a step is told a second time")
            self.journal.append(told)
        if isinstance(event, ev.RunTakenOver | ev.RunStarted) and self.ws.state is not before:
            is_kept = self.ws.state.care.quarantine.keys() >= event.left.quarantine.keys()
            must(is_kept, Law.MAY_DIE, lambda: "a quarantine ended with its driver")

    # --- the next one adopts ---

    def succeed(self, life: int) -> None:
        if life != self.life:
            return
        found: list[Adopted] = []
        for worker in list(self.workers.values()):
            super().later(self.delay_s(), self.adopt, worker, life, found, self.now_s + ANSWERS_S)
        super().later(ANSWERS_S, self.begin, life, found)

    def adopt(self, worker: SimWorker, life: int, found: list[Adopted], until_s: float) -> None:
        """The call waits while an apply is under way."""
        if self.now_s > until_s or not worker.is_alive or worker.is_hung:
            return
        if worker.muted_until_s > self.now_s:
            return
        was = worker.state.stage
        verdict = self.signal(worker, Signal.ADOPT, incarnation=life)
        if verdict is Verdict.LATER:
            super().later(RETRY_S / 4, self.adopt, worker, life, found, until_s)
        if verdict is not Verdict.DONE:
            return
        self.answered.add((worker.name, worker.state.generation))
        gang, shard = self.places[worker.name]
        place: dict[str, Any] = {
            "gang": gang,
            "shard": shard,
            "node": self.node_of(worker.name),
            "host": "h",
            "port": 1,
            "pid": 1,
        }
        number = getattr(self, "answers", {}).get(worker.name, (0, None))[0]
        told: dict[str, Any] = {
            "was": was,
            "state": worker.state,
            "view": worker.view,
            "layout": "l",
            "plan": self.data or self.samples.plan,
            "gpus": self.plan.gpus,
            "restores": number,
        }
        facts = self.facts[worker.name]
        notice = "SIGTERM" if any(kind is ev.WorkerNotice for kind, _ in facts) else ""
        has_ended = any(kind is ev.TrainFnReturned and not details["dismissed"] for kind, details in facts)
        told |= {"notice": notice, "is_dismissed": was is Stage.GONE and not has_ended}
        found.append(Adopted(worker=worker.name, **place, **told))

    def begin(self, life: int, found: list[Adopted]) -> None:
        """As `fit` does: who is not wanted, or has not answered, is ended."""
        if life != self.life:
            return
        going, ended = who_goes_on(found)
        names, members = {one.worker for one in going}, set[str]()
        if self.ws.state.workers:  # else it died before it had taken over: what the journal has, the one before it told
            self.past = self.ws.state
        view, before = newest_view(going), self.past
        if view is not None:
            members = {member.worker for member in view.members}
        elif before.generation > 0:
            self.begin_anew()
        for worker in self.workers.values():
            if worker.name not in names | members:
                worker.is_alive = False
        self.ws = copy.copy(self.ws)
        numbers: dict[str, Any] = {"next_worker": before.next_worker, "next_gang": before.next_gang}
        settings, forks = replace(before.settings, incarnation=life), self.forks
        self.ws.state = RunState(settings=settings, forks=forks, **({} if going else numbers))
        self.is_headless, self.stalled_until_s, self.orders = False, 0.0, Orders()
        is_sent_back = before.restore is not None and before.restore.at_most is not None
        self.is_sent_back = (self.is_sent_back or is_sent_back) and not self.is_anew  # until a generation is formed
        told: dict[str, Any] = {"published": before.published, "ahead": tuple(before.published_ahead)}
        told |= {"verified": before.verified}
        if before.generation == 0:
            told = {}
        left = bequest_of(plain(left_by(before)))
        if going:
            self.control(ev.RunTakenOver(found=going, left=left, **told, **numbers))
        else:
            self.control(ev.RunStarted(left=left))
        self.hand_mail_over([self.workers[one.worker] for one in going])

    @property
    def forks(self) -> tuple[Fork, ...]:
        """Those that the tiers have noted, too: what was saved before a run began anew is none of its steps."""
        lines = {*self.ws.state.forks, *self.new_lines}
        return tuple(sorted(lines, key=lambda fork: (fork.incarnation, fork.generation)))

    def begin_anew(self) -> None:
        """Nobody who has trained is there: the run begins anew, or from a tier.

        Raises:
            Violation: somebody could have told that it has trained.
        """
        for worker in self.workers.values():
            held = worker.state
            # Who has only loaded what a tier holds was no member yet: a tier gives the same again.
            has_trained = held.healed and held.commit.step >= 0 and held.generation > 0
            is_left = has_trained and self.could_give(worker) and worker.state.stage is not Stage.GONE
            is_over = worker.state.outvoted or not is_left
            must(is_over, Law.NOTHING_LOST, lambda: f"{worker.name} was not found by a new driver")  # noqa: B023
        self.is_anew, self.begun, self.waiting = True, self.begun + 1, []
        self.clear_generations()

    def begun_anew(self, view: View) -> None:
        """The first generation of a run that has begun anew."""
        self.is_anew, self.journal = False, []
        if not view.restored:
            self.new_lines += (Fork(incarnation=view.incarnation, generation=view.generation, step=-1),)
            self.stable.clear()
            self.truth = 0

    def hand_mail_over(self, going: list[SimWorker]) -> None:
        for worker in going:
            if worker.is_alive:
                self.tell_again(worker)
            else:  # it has died since: the first call to it fails
                self.later(self.delay_s(), self.control, ev.WorkerLost(worker=worker.name, evidence="gone"))
        waiting, self.waiting = self.waiting, []
        for worker, event in waiting:
            if not isinstance(event, (ev.StepStable, *TOLD_ONCE)):
                self.send(("from", worker.name), True, self.hear, worker, event)

    def tell_again(self, worker: SimWorker) -> None:
        for commit in self.kept[worker.name]:
            self.tell(worker, ev.StepStable, report=self.report_of(commit))
        for kind, details in list(self.facts[worker.name]):
            self.tell(worker, kind, **details)

    # --- what workers say and hear ---

    def carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.Form) and self.is_anew:
            self.begun_anew(command.view)
        super().carry_out(command)

    def order(self, names: Any, command: cmd.Command) -> None:
        super().order(names, Order(self.life, command))  # type: ignore[arg-type]

    def obey(self, worker: SimWorker, order: Any) -> None:
        if self.is_cut(worker, "in"):
            self.later(worker.muted_until_s - self.now_s, self.obey, worker, order)
            return
        is_signal = not isinstance(order.command, cmd.Pause | cmd.Restore)
        if order.life < worker.state.incarnation and not is_signal:
            return
        before, self.speaking = self.speaking, order.life
        super().obey(worker, order.command)
        self.speaking = before
        worker.deferred = [one if isinstance(one, Order) else Order(order.life, one) for one in worker.deferred]

    def signal(self, worker: SimWorker, signal: Signal, **details: Any) -> Verdict:
        if signal in OF_DRIVERS:
            details["incarnation"] = self.speaking
        is_old = signal in OF_DRIVERS and self.speaking < worker.state.incarnation
        before, verdict = worker.state, super().signal(worker, signal, **details)
        if is_old:
            is_refused = verdict is Verdict.REFUSED and worker.state == before
            must(is_refused, Law.MAY_DIE, lambda: "an older driver was heeded")
            self.stale += 1
        return verdict

    def tell(self, worker: SimWorker, kind: type[ev.WorkerEvent], **details: Any) -> None:
        if kind in TOLD_ONCE and (kind, details) not in self.facts[worker.name]:
            self.facts[worker.name].append((kind, details))
        super().tell(worker, kind, **details)

    def publish(self, worker: SimWorker) -> None:
        self.kept[worker.name] += worker.unpublished
        super().publish(worker)

    def move(self, worker: SimWorker, turn: int) -> None:
        if worker.name not in self.left:
            super().move(worker, turn)

    def leave(self, worker: SimWorker) -> None:
        """Its process stays until a driver lets it go."""
        super().leave(worker)
        worker.is_alive = True
        self.left.add(worker.name)

    def check_not_redone(self, worker: SimWorker, commit: CommitId) -> None:
        if worker.name in self.ws.state.workers:
            super().check_not_redone(worker, commit)


class DriverWorld(Succession):
    """Live workers are all there is."""


class DriverGangWorld(Succession, GangWorld):
    """Replicas of several workers."""

    def shard(self, worker: SimWorker) -> int:
        return self.places[worker.name][1]


class SentBack(Succession, Restores):
    """A driver may die in the middle of a restore."""

    def carry_out(self, command: cmd.Command) -> None:
        """Where a rewind was under way, the next driver goes on with what workers have loaded for it."""
        if isinstance(command, cmd.Form) and self.is_sent_back:
            self.is_sent_back = False
            self.go_back(command.view.resume)
        super().carry_out(command)

    def begun_anew(self, view: View) -> None:
        """From what was found, if anything was."""
        super().begun_anew(view)
        offered = self.offered
        is_it = view.resume.same_state(offered) if offered is not None else not view.restored
        must(is_it, Law.NOTHING_LOST, lambda: f"a new driver found {offered}, and goes on after {view.resume}")


class DriverTierWorld(SentBack, TierWorld):
    """Checkpoints below the live workers."""


class DriverDepotWorld(SentBack, DepotWorld):
    """Checkpoints on their way through the tiers."""


class DriverGangDepotWorld(SentBack, DepotWorld, DriverGangWorld):
    """The same with replicas of several workers, each of which holds a shard."""
