"""Pure. What a fleet does at the word of the real controller and a real policy; steps without events are leapt over.

Each replica is one worker of the controller, on as many machines as it takes. Sensing, connecting, healing and loading
take the times of the scenario; what is decided, and in which order, is the controller's. Seconds in which nothing can
happen are leapt over.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection
from math import fsum
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.controller import step
from elastic.control.copies import changed
from elastic.control.faults import FaultKind
from elastic.control.remediation import ClusterView, Policy, Remediation
from elastic.control.state import Phase, RunState, Standing
from elastic.control.values import NOTHING_COMMITTED, CommitId, Incident, StepReport, View
from elastic.policies import Ladder
from elastic.policies.guarded import told_fault
from elastic.settings import Checkpoint, Limits, RunSettings, Scaling
from elastic.sim.account import Cause
from elastic.sim.failures import failures_of
from elastic.sim.machines import Machines, Slow, Spell
from elastic.sim.progress import Progress
from elastic.sim.ran import Told
from elastic.sim.scenario import Scenario

TICK_S = 0.5
ATTENTIVE_S = 5.0  # so long after an event time passes in ticks; then only what is in the queue counts
NEVER_S = 1e9
PLANNED = "growth"
GPUS = ("0",)  # of a worker: which one of them fails makes no difference here
_BUSY = frozenset({Phase.FREEZING, Phase.FORMING, Phase.STARTING})
_WAITING = frozenset({Phase.STARTING, Phase.WAITING})


class Driven:
    """One run.

    Attributes:
        dead: workers whose process is gone. current: those that hold the state of the last generation that trained.
        wishes: workers that wait for machines. holders: machines of those that hold the newest snapshots.
        decided, faults: see `Ran`. noticed: workers that were told to go.
        findings: what was found on the machine of a worker that died of it.
        slow: machines that are. dragging: who trains on the slowest one.
    """

    def __init__(self, scenario: Scenario, seed: int, policy: Policy | None = None) -> None:
        job, times, cluster = scenario.job, scenario.times, scenario.cluster
        self.scenario, self.times, self.policy = scenario, times, policy or Ladder()
        self.decided: Counter[str] = Counter()
        self.faults: set[str] = set()
        scaling = Scaling(num_dp_replicas=(max(1, job.minimum_replicas), cluster.replicas), spares=job.spare_replicas)
        usual, to_form_s = Limits(), 3 * self.form_s(cluster.replicas) + 3 * times.heal_s
        limits = Limits(
            door_timeout_s=min(NEVER_S, usual.door_timeout_s + to_form_s),
            load_timeout_s=min(NEVER_S, usual.load_timeout_s + 3 * times.loading_s),
            start_timeout_s=NEVER_S,
            jobset_downtime_threshold_s=NEVER_S,
            forming_timeout_s=min(NEVER_S, usual.forming_timeout_s + to_form_s),
            restore_timeout_s=NEVER_S,
        )
        settings = RunSettings(run="simulated", scaling=scaling, limits=limits, checkpoint=Checkpoint())
        self.state = RunState(settings=settings)
        self.progress = Progress(scenario)
        self.machines = Machines(cluster, job.spare_replicas)
        self.failures = failures_of(scenario, seed)
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sent = self.events = 0
        self.now_s = self.attentive_until_s = 0.0
        self.is_ticking = False
        self.dead: set[str] = set()
        self.current: set[str] = set()
        self.wishes: dict[str, cmd.StartWorker] = {}
        self.members: frozenset[str] = frozenset()
        self.holders: dict[str, tuple[int, ...]] = {}
        self.noticed: set[str] = set()
        self.findings: dict[str, ev.HardwareFinding] = {}
        self.slow = Slow()
        self.dragging = ""
        self.told: list[Told] = []
        self.halted: tuple[float, str, float] | None = None

    def later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self.sent += 1
        heapq.heappush(self.queue, (self.now_s + delay_s, self.sent, act, arguments))

    def form_s(self, replicas: int) -> float:
        return self.times.form_s + self.times.form_per_replica_s * replicas

    # --- the controller ---

    def control(self, *events: ev.Event) -> None:
        """It hears of these, and what it decides is carried out."""
        self.take(*events)
        self.attentive_until_s = self.now_s + ATTENTIVE_S
        if not self.is_ticking:
            self.is_ticking = True
            self.later(TICK_S, self.tick)

    def take(self, *events: ev.Event) -> None:
        for event in events:
            self.events += 1
            decision = step(self.state, event, self.now_s, self.decide)
            self.state = decision.state
            if decision.commands:
                self.attentive_until_s = self.now_s + ATTENTIVE_S
            for command in decision.commands:
                self.carry_out(command)
        if self.state.phase is Phase.WAITING and (self.state.restore is None or self.are_too_few()):
            self.book(Cause.PAUSED)
        elif self.state.phase is Phase.WAITING and self.progress.cause is Cause.PAUSED:
            self.book(Cause.RESTORE)

    def are_too_few(self) -> bool:
        """Not as many replicas as are needed have machines: what is to be restored waits for these."""
        there = sum(name not in self.dead for name in self.machines.of)
        return there < self.state.settings.scaling.bounds[0]

    def decide(self, incident: Incident, view: ClusterView) -> Remediation:
        """What the policy says; it is counted, and so is whatever was wrong with it."""
        answer = self.policy(incident, view)
        self.decided[answer.kind.value] += 1
        if fault := told_fault(answer.reason):
            self.faults.add(fault)
        return answer

    def tick(self) -> None:
        """Time passes for the controller while something is under way, in quarantine, paused or about to exit.

        Nothing is while too few have machines: who comes, and whatever is found for them, are in the queue.
        """
        self.take(ev.Tick())
        is_waiting = self.state.phase in _WAITING and self.are_too_few()
        is_busy = not is_waiting and (self.state.phase in _BUSY or self.state.restore is not None)
        care, end_s = self.state.care, self.scenario.end_s
        is_kept_away = any(until_s < NEVER_S for until_s in care.quarantine.values())
        is_held = any(one is not None and one.until_s < end_s for one in (care.hold, care.leaving))
        self.is_ticking = is_busy or is_kept_away or is_held or self.now_s < self.attentive_until_s
        if self.is_ticking:
            self.later(TICK_S, self.tick)

    def book(self, cause: Cause) -> None:
        """What time is spent on from now, as long as nobody trains."""
        self.progress.advance(self.now_s)
        self.progress.cause = cause

    def carry_out(self, command: cmd.Command) -> None:
        act = _ACTS.get(type(command))
        if act is not None:
            act(self, command)

    def start(self, command: cmd.StartWorker) -> None:
        self.wishes[command.worker] = command
        self.place()

    def place(self) -> None:
        """Whoever waits gets machines, as long as there are enough."""
        for name, wish in list(self.wishes.items()):
            if len(self.machines.free) < self.machines.size:
                return
            if self.machines.take(name, wish.avoid):
                del self.wishes[name]
                self.later(self.times.place_s, self.if_it_lives, self.come_up, name)

    def place_again(self) -> None:
        """Machines are free. What is to be restored is waited for from now on, if these are enough for it."""
        self.place()
        if self.state.restore is not None:
            self.control()

    def if_it_lives(self, act: Callable[[str], None], name: str) -> None:
        if name not in self.dead:
            act(name)

    def come_up(self, name: str) -> None:
        self.control(ev.WorkerPlaced(worker=name, node=self.machines.name(self.machines.of[name][0])))
        self.later(self.times.loading_s, self.if_it_lives, self.park, name)

    def park(self, name: str) -> None:
        self.control(ev.WorkerParked(worker=name, host="h", port=1, pid=1, layout="l", gpus=GPUS))

    def dismiss(self, command: cmd.Dismiss) -> None:
        for name in command.workers:
            self.current.discard(name)
            if self.wishes.pop(name, None) is None and name not in self.dead:
                self.later(TICK_S, self.if_it_lives, self.left, name)

    def left(self, name: str) -> None:
        self.dead.add(name)
        self.machines.release(name)
        self.control(ev.TrainFnReturned(worker=name, dismissed=True))
        self.place_again()

    def fence(self, command: cmd.Fence) -> None:
        self.dead.add(command.worker)
        self.later(self.times.detect_s, self.found_dead, command.worker, "fenced")

    def prove(self, command: cmd.ProveDead) -> None:
        if command.worker in self.dead:
            self.later(self.times.detect_s, self.found_dead, command.worker, "its process is gone")

    def freeze(self, command: cmd.Freeze) -> None:
        self.stop(Cause.FORMING, "another failure")
        self.book(Cause.FORMING)
        self.later(self.times.freeze_s, self.answer, command.workers, command.generation)

    def answer(self, names: tuple[str, ...], generation: int) -> None:
        held = self.commit(self.progress.steps)
        said = []
        for name in names:
            if name not in self.dead:
                is_current = name in self.current and held.step >= 0
                commit = held if is_current else NOTHING_COMMITTED
                said.append(ev.FreezeAnswered(worker=name, generation=generation, commit=commit, healed=is_current))
        self.control(*said)

    def commit(self, steps: int) -> CommitId:
        generation = max(1, self.state.generation)
        return CommitId(incarnation=1, generation=generation, attempt=1, step=steps - 1, lineage="s")

    def pause(self, command: cmd.Pause) -> None:
        """All stop at the end of the step under way."""
        if self.progress.replicas:
            self.progress.advance(self.now_s)
            self.later(self.progress.until_step_s(), self.stop_at_door, command.generation)

    def stop_at_door(self, generation: int) -> None:
        if generation != self.state.generation or not self.progress.replicas:
            return
        self.report(1)
        self.stop(Cause.FORMING, PLANNED)
        self.answer(tuple(member.worker for member in self.view.members), generation)

    def form(self, command: cmd.Form) -> None:
        view = command.view
        if view.restored:
            self.progress.go_back(view.resume.step + 1)
        if view.bootstrap:
            self.progress.go_back(0)
        heal_s = self.times.heal_s if view.behind and not view.bootstrap else 0.0
        self.book(Cause.FORMING)
        self.later(self.form_s(view.replicas), self.connected, view, heal_s)

    def connected(self, view: View, heal_s: float) -> None:
        if heal_s and view.generation == self.state.generation:
            self.book(Cause.HEALING)
        self.later(heal_s, self.formed, view)

    def formed(self, view: View) -> None:
        names = [member.worker for member in view.members]
        if view.generation != self.state.generation or self.state.phase is not Phase.FORMING:
            return
        if self.dead.isdisjoint(names):
            self.progress.advance(self.now_s)
            self.current = set(names)
            self.control(*(ev.Formed(worker=name, generation=view.generation) for name in names))

    def go(self, command: cmd.Go) -> None:
        self.progress.advance(self.now_s)
        self.progress.replicas = len(command.workers)
        gone, self.members = self.members.difference(command.workers), frozenset(command.workers)
        self.holders = {name: self.machines.of[name] for name in command.workers}
        if self.halted is not None:
            self.tell(gone, *self.halted)
            self.halted = None
        self.drag(command.generation)
        if self.state.care.leaving is not None:  # what all have stopped for is sealed while they train
            self.later(self.times.save_stall_s, self.control, ev.RungReached(commit=self.view.resume, rung="local"))
        self.later(self.progress.until_step_s(), self.stable, command.generation, self.progress.steps)

    def tell(self, gone: frozenset[str], at_s: float, why: str, redone_s: float) -> None:
        """All train again, without those who are gone; or the run is over."""
        last = next((one.decision for one in self.state.incidents[-1:] if one.opened_at_s >= at_s), "")
        if why == PLANNED:
            last = f"{self.progress.replicas} replicas"
            why = FaultKind.NOTICE.value if gone & self.noticed else why
            why = FaultKind.SLOW.value if self.dragging in gone else why
        lost_s = self.now_s - at_s + redone_s
        self.told.append(Told(at_s=at_s, kind=why, lost_s=lost_s, decision=last, is_planned=why == PLANNED))

    def tell_to_the_end(self) -> None:
        """What has stopped all, and is not over before the run is, lasts until then."""
        if self.halted is not None:
            self.now_s = self.scenario.end_s
            self.tell(self.members - (self.current - self.noticed), *self.halted)

    def slowest(self, workers: Collection[str]) -> Spell:
        """Of the machines that these are on."""
        return self.slow.slowest(self.now_s, lambda machine: self.machines.on.get(machine) in workers)

    def drag(self, generation: int) -> None:
        """How much slower all are for the sake of one; the policy hears of it when that has lasted."""
        if generation != self.state.generation or not self.progress.replicas:
            return
        self.progress.advance(self.now_s)
        spell = self.slowest(self.members)
        self.dragging = self.machines.on.get(spell.machine, "")
        if not self.dragging:
            self.progress.slow_until_s = self.now_s
            return
        speeds = [1.0 / self.slowest({name}).factor for name in self.members] if self.view.balanced else []
        self.progress.slow_until_s = spell.until_s
        self.progress.slow_factor = len(speeds) / fsum(speeds) if speeds else spell.factor
        self.later(spell.until_s - self.now_s, self.drag, generation)  # the next slowest one drags on
        told_s = self.state.settings.limits.slow_steps * self.scenario.job.step_s * spell.factor
        self.later(told_s, self.tell_slow, generation)

    def tell_slow(self, generation: int) -> None:
        if generation != self.state.generation or not self.progress.replicas or not self.slowest(self.members).is_real:
            return
        self.progress.advance(self.now_s)
        seconds = tuple(self.slowest({member.worker}).factor for member in self.view.members)
        self.report(self.state.settings.limits.slow_steps, seconds)

    def stable(self, generation: int, began: int) -> None:
        """The first steps of a generation are told; the others go without saying."""
        if generation != self.state.generation or not self.progress.replicas:
            return
        self.progress.advance(self.now_s)
        if self.progress.steps <= began:  # something has held the first one up
            self.later(self.progress.until_step_s(), self.stable, generation, began)
            return
        self.report(2)

    def report(self, count: int, seconds: tuple[float, ...] = ()) -> None:
        """The last steps are known to be stable."""
        step_s, steps = self.scenario.job.step_s, self.progress.steps
        first = max(0, steps - count)
        if self.state.published < first - 1:  # those before went without saying
            self.state = changed(self.state, published=first - 1, published_ahead=frozenset())
        for number in range(first, steps):
            report = StepReport(
                commit=self.commit(number + 1),
                metrics={},
                replicas=self.progress.replicas,
                samples=1,
                started_at_s=self.now_s - step_s,
                committed_at_s=self.now_s,
                seconds=seconds,
                voted=True,
            )
            self.control(ev.StepStable(worker=self.view.leader.worker, report=report))

    @property
    def view(self) -> View:
        assert self.state.view is not None
        return self.state.view

    def find(self, command: cmd.FindRestore) -> None:
        is_local = bool(self.holders)
        steps = self.progress.saved_steps(is_local)
        if command.at_most is not None:
            steps = min(steps, command.at_most + 1)
        commit = self.commit(steps) if steps > 0 else None
        is_read_there = is_local and self.times.upload_interval_s
        waits_s = 0.0 if is_read_there else max(0.0, self.progress.storage_down_until_s - self.now_s)
        found = ev.RestoreFound(commit=commit, reason="nothing is saved", number=command.number)
        self.later(self.times.detect_s + waits_s, self.control, found)

    def restore(self, command: cmd.Restore) -> None:
        self.book(Cause.RESTORE)
        self.later(self.times.load_s, self.restored, command)

    def restored(self, command: cmd.Restore) -> None:
        there = (name for name in command.workers if name not in self.dead)
        self.control(*(ev.Restored(worker=name, commit=command.commit) for name in there))

    def reset(self, command: cmd.ResetGpu) -> None:
        done = ev.GpuReset(node=command.node, gpus=command.gpus)
        self.later(self.scenario.cluster.reset_s, self.control, done)

    def stop(self, cause: Cause, why: str) -> None:
        """Nobody trains any more."""
        self.progress.advance(self.now_s)
        if self.progress.replicas:
            self.halted = (self.now_s, why, self.progress.halt(cause))

    def found_dead(self, worker: str, why: str) -> None:
        self.machines.release(worker)
        record = self.state.workers.get(worker)
        if record is not None and record.standing not in (Standing.DEAD, Standing.GONE):
            self.progress.advance(self.now_s)
            found = self.findings.pop(worker, None)
            self.control(*((found,) if found is not None else ()), ev.WorkerDead(worker=worker, proof=why))
        self.place_again()


_ACTS: dict[type[cmd.Command], Callable[[Driven, Any], None]] = {
    cmd.StartWorker: Driven.start,
    cmd.Dismiss: Driven.dismiss,
    cmd.Fence: Driven.fence,
    cmd.ResetGpu: Driven.reset,
    cmd.ProveDead: Driven.prove,
    cmd.Freeze: Driven.freeze,
    cmd.Pause: Driven.pause,
    cmd.Form: Driven.form,
    cmd.Go: Driven.go,
    cmd.FindRestore: Driven.find,
    cmd.Restore: Driven.restore,
}
