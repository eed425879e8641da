"""A small seeded world: the real controller, real worker states, and between them messages that take their time.

Workers crash, hang and fall silent; orders get lost, late or out of order. A step is abstract: its reduction completes
once all members have contributed, and who has not seen that yet may see it break instead. What must hold is asserted
on the way.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.data import Plan as DataPlan
from elastic.control.data import hash32
from elastic.control.integrity import outvoted
from elastic.control.state import Phase, Standing
from elastic.control.values import CommitId, StepReport, View
from elastic.control.worker_protocol import Signal, Stage, Verdict, react
from tests.pure.bare_controller import BareController
from tests.pure.protocol_parts import Plan, SimWorker, reading_of

LEASE_S, LEASE_MARGIN = 20.0, 0.8
TICK_S, OVERDUE_S, FAULTS_END_S, LIMIT_S = 0.5, 5.0, 20.0, 400.0
LIMITS = {"doubt_after_s": 0.5, "freeze_timeout_s": 4.0, "forming_timeout_s": 8.0, "lease_s": LEASE_S}
SENSING = {"hang_floor_s": 3.0, "first_steps_timeout_s": 3.0, "heartbeat_timeout_s": 2.0, "exile_after_s": 1.0}
PATIENCE = {"start_tries": 1000, "max_in_job_restarts": 1000, "max_workload_restarts": 1000}
WAYS = (("in", "out"), ("in", "out"), ("in",), ("out",))
OUT = frozenset({Stage.FROZEN, Stage.BROKEN, Stage.FINISHED, Stage.GONE})


class World:
    """One run from its start to its end; `data`: how its data is cut, where that matters."""

    data: DataPlan | None = None

    def __init__(self, seed: int, plan: Plan) -> None:
        self.rng, self.plan, self.now_s = random.Random(seed), plan, 0.0
        self.ws = BareController(plan.replicas, plan.spares, **LIMITS, **SENSING, **PATIENCE)
        self.workers: dict[str, SimWorker] = {}
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sent = 0
        self.last_s: dict[tuple[str, str], float] = defaultdict(float)
        self.reductions: dict[tuple[int, int], set[str]] = defaultdict(set)
        self.pauses: set[tuple[int, int]] = set()
        self.answered: set[tuple[str, int]] = set()
        self.parents: dict[tuple[int, int], str] = {}
        self.stable: list[str] = []
        self.faults: set[str] = set()
        self.fenced: list[str] = []
        self.votes: dict[Any, tuple[int, ...] | None] = {}
        self.named: set[str] = set()
        self.stalled_until_s = 0.0
        self.clock_error_s = 0.0  # of the controller

    def play(self) -> "World":
        self.later(0.0, self.control, ev.RunStarted())
        self.later(TICK_S, self.tick)
        while self.ws.phase is not Phase.ENDED:
            self.now_s, _, act, arguments = heapq.heappop(self.queue)
            assert self.now_s < LIMIT_S, f"the run does not end: {self.ws.state}"
            act(*arguments)
        return self

    def later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self.sent += 1
        heapq.heappush(self.queue, (self.now_s + delay_s, self.sent, act, arguments))

    def delay_s(self) -> float:
        return self.rng.uniform(0.01, 1.0 if self.rng.random() < 0.2 else 0.1)

    def chance(self, fault: str) -> bool:
        """Faults happen only until FAULTS_END_S."""
        happens = self.now_s < FAULTS_END_S and self.rng.random() < getattr(self.plan, fault)
        self.faults |= {fault} if happens else set()
        return happens

    def send(self, channel: tuple[str, str], is_ordered: bool, act: Callable[..., None], *arguments: Any) -> None:
        """By mail; an ordered message does not overtake those before it."""
        at_s = self.now_s + self.delay_s()
        if is_ordered:
            at_s = self.last_s[channel] = max(at_s, self.last_s[channel])
        self.later(at_s - self.now_s, act, *arguments)

    # --- the driver's side ---

    def tick(self) -> None:
        """Monitors in reach tell what they see, then time passes."""
        self.later(TICK_S, self.tick)
        for worker in self.workers.values():
            if worker.is_alive and not self.is_cut(worker, "out"):
                self.control(ev.HostBeat(node=self.node_of(worker.name), readings=(reading_of(worker, self.now_s),)))
        self.control(ev.Tick())

    def control(self, event: ev.Event) -> None:
        """The controller may stand still with a decision made and not told; then it hears all that came meanwhile."""
        if self.now_s < self.stalled_until_s:
            self.later(self.stalled_until_s - self.now_s, self.control, event)
            return
        self.ws.now_s = self.now_s + self.clock_error_s
        if isinstance(event, ev.CorruptionFound) and event.generation == self.ws.generation:
            self.named |= set(event.culprits)
        commands = self.ws.feed(event)
        if not isinstance(event, ev.Tick) and self.chance("stall"):
            self.stalled_until_s = self.now_s + self.rng.uniform(1.0, 4 * LIMITS["freeze_timeout_s"])
        for command in commands:
            self.later(max(0.0, self.stalled_until_s - self.now_s), self.carry_out, command)

    def carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.StartWorker):
            self.later(self.rng.uniform(0.1, 4.0), self.come_up, command.worker)
        elif isinstance(command, cmd.ProveDead | cmd.Fence):
            self.hunt(self.workers[command.worker], isinstance(command, cmd.Fence))
        elif isinstance(command, cmd.Form):
            if command.view.bootstrap and command.view.generation > 1:
                self.start_over()
            members = [member.worker for member in command.view.members]
            assert not self.named & set(members), "a corrupt worker belongs to a generation again"
            self.order(members, command)
        elif isinstance(command, cmd.Pause):
            self.order([command.worker], command)
        elif isinstance(command, cmd.Inspect):
            self.later(self.delay_s(), self.control, ev.StackDumped(worker=command.worker, stack="main.py:1"))
        elif not isinstance(command, cmd.EndRun | cmd.Save):  # nothing waits for what is saved, nor for its being lost
            self.order(command.workers, command)

    def order(self, names: Any, command: cmd.Command) -> None:
        for worker in (self.workers[name] for name in names if name in self.workers):
            if not self.chance("lose_order"):
                self.send(("to", worker.name), self.plan.in_order, self.obey, worker, command)

    def come_up(self, name: str) -> None:
        worker = self.workers[name] = SimWorker(name=name)
        self.control(ev.WorkerPlaced(worker=name, node=self.node_of(name)))
        self.later(self.rng.uniform(0.1, 3.0), self.move, worker)

    def node_of(self, name: str) -> str:
        return f"node-{name}"

    def hunt(self, worker: SimWorker, fence: bool) -> None:
        """Look for proof of death; a fence makes it true, unless the worker is out of reach."""
        if self.is_cut(worker, "in"):
            if fence:  # the order arrives when contact is back
                self.later(worker.muted_until_s - self.now_s, self.hunt, worker, fence)
            return
        if fence:
            worker.is_alive = False
            self.fenced.append(worker.name)
        if not worker.is_alive:
            heard_s = worker.muted_until_s - self.now_s if self.is_cut(worker, "out") else 0.0
            self.later(heard_s + self.delay_s(), self.control, ev.WorkerDead(worker=worker.name, proof="proven"))

    def start_over(self) -> None:
        """Nothing was ever reported, and nobody in reach holds anything: the history begins anew."""
        for worker in self.workers.values():
            if worker.state.healed and worker.state.commit.step >= 0:
                if self.ws.state.workers[worker.name].left_with is not None:
                    continue  # the run went on without it, and it is dismissed
                assert not worker.is_alive or worker.is_hung or worker.muted_until_s > 0.0, "the state was thrown away"
                worker.is_alive = False
        self.stable.clear()

    # --- faults ---

    def is_cut(self, worker: SimWorker, way: str) -> bool:
        """Whether nothing comes through to its host ("in"), or from it ("out")."""
        return self.now_s < worker.muted_until_s and way in worker.cut_ways

    def suffers(self, worker: SimWorker) -> bool:
        """Whether a fault takes this worker now; its last words may come late, or never."""
        trains = worker.state.generation > 0
        if self.chance("crash"):
            self.crash(worker)
        elif trains and self.chance("hang"):
            worker.is_hung, worker.is_stopped = True, self.rng.random() < 0.5
            self.later(40.0, self.crash, worker)  # somebody kills it in the end
        elif trains and self.now_s > worker.muted_until_s and self.chance("mute"):
            worker.muted_at_s, worker.muted_until_s = self.now_s, self.now_s + self.rng.uniform(1.0, 40.0)
            worker.cut_ways = self.rng.choice(WAYS)
        elif self.chance("notice"):
            self.tell(worker, ev.WorkerNotice, reason="SIGTERM")
            self.later(self.rng.uniform(0.5, 5.0), self.crash, worker)
        return not worker.is_alive or worker.is_hung

    def crash(self, worker: SimWorker) -> None:
        if worker.is_alive:
            worker.is_alive, worker.has_last_words = False, self.rng.random() < 0.5
            gone = (ev.WorkerDead(worker=worker.name, proof="gone"), ev.WorkerLost(worker=worker.name, evidence="gone"))
            for news in self.rng.choice((gone, gone[:1], gone[1:])):
                self.later(self.delay_s(), self.control, news)

    # --- a worker is told something, and tells something ---

    def signal(self, worker: SimWorker, signal: Signal, **details: Any) -> Verdict:
        before = worker.state
        reaction = react(before, signal, **details)
        if reaction.state.stage is not before.stage:
            worker.since_s = worker.moved_s = self.now_s
            if worker.contributed and not self.is_full(worker):  # what it gave to an open reduction is cut off
                self.reductions[self.key(worker)].discard(worker.name)
            worker.contributed = False
        worker.state = reaction.state
        return reaction.verdict

    def obey(self, worker: SimWorker, command: Any) -> None:
        if not worker.is_alive or worker.is_hung:
            return
        if self.is_cut(worker, "in"):
            self.later(worker.muted_until_s - self.now_s, self.obey, worker, command)
        elif isinstance(command, cmd.Pause):
            worker.pause_generation = command.generation
        elif isinstance(command, cmd.Form):
            if self.signal(worker, Signal.FORM, generation=command.view.generation) is Verdict.DONE:
                worker.view = command.view
        else:
            signal = {cmd.Freeze: Signal.FREEZE, cmd.Go: Signal.GO, cmd.Finish: Signal.FINISH}.get(
                type(command), Signal.DISMISS
            )
            verdict = self.signal(worker, signal, generation=getattr(command, "generation", 0))
            if verdict is Verdict.LATER:
                worker.deferred.append(command)
            elif verdict is Verdict.DONE and signal is Signal.FREEZE:
                self.answer(worker)
            elif verdict is Verdict.DONE and signal is Signal.FINISH:
                self.make_stable(worker)
                self.publish(worker)

    def tell(self, worker: SimWorker, kind: type[ev.WorkerEvent], **details: Any) -> None:
        """Events keep their order, except answers to a freeze, which may take another way."""
        is_ordered = self.plan.in_order or kind is not ev.FreezeAnswered
        self.send(("from", worker.name), is_ordered, self.hear, worker, kind(worker=worker.name, **details))

    def hear(self, worker: SimWorker, event: ev.Event) -> None:
        if self.is_cut(worker, "out"):
            self.later(worker.muted_until_s - self.now_s, self.hear, worker, event)
        elif worker.has_last_words:
            self.control(event)

    def answer(self, worker: SimWorker) -> None:
        state = worker.state
        self.answered.add((worker.name, state.generation))
        held = {"commit": state.commit, "healed": state.healed, "prepared": state.prepared}
        self.tell(worker, ev.FreezeAnswered, generation=state.generation, **held)

    # --- what a worker does by itself ---

    def move(self, worker: SimWorker) -> None:
        """One move of the training thread; then it thinks about the next one."""
        if self.suffers(worker):
            return
        moves = {
            Stage.LOADING: self.arrive,
            Stage.FORMING: self.form,
            Stage.STEPPING: self.step,
            Stage.APPLYING: self.leave_apply,
            Stage.FINISHED: self.leave,
            Stage.GONE: self.leave,
        }
        if worker.state.stage in moves:
            moves[worker.state.stage](worker)
        elif self.is_late(worker):
            worker.since_s = self.now_s
            self.tell(worker, ev.Overdue, generation=worker.state.generation)
        if worker.is_alive:
            self.later(self.delay_s(), self.move, worker)

    def is_late(self, worker: SimWorker) -> bool:
        return self.now_s - worker.since_s > OVERDUE_S

    def arrive(self, worker: SimWorker) -> None:
        self.signal(worker, Signal.ARRIVE)
        self.tell(worker, ev.WorkerParked, host="h", port=1, pid=1, layout="l", plan=self.data)

    def is_there(self, other: SimWorker, view: View) -> bool:
        return other.is_alive and other.state.generation == view.generation and other.state.stage not in OUT

    def form(self, worker: SimWorker) -> None:
        """The group connects once all are there; those behind receive what the donors hold."""
        view = worker.view
        assert view is not None
        group = [self.workers[member.worker] for member in view.members]
        is_complete = all(self.is_there(other, view) for other in group)
        if self.chance("break_") or (not is_complete and self.is_late(worker)):
            self.signal(worker, Signal.BREAK)
            self.tell(worker, ev.FormingFailed, generation=view.generation, error="refused")
        elif is_complete:
            for donor in () if view.bootstrap else (group[rank].state for rank in view.donors):
                assert donor.healed, f"{donor} gives what it does not hold"
                assert donor.commit.same_state(view.resume), f"{donor} gives something else than {view.resume}"
            if view.behind and self.finds_corruption(worker, ("forming", view.generation), view.donors):
                return
            worker.bits = self.workers[view.members[view.donors[0]].worker].bits
            self.signal(worker, Signal.FORMED, commit=view.resume)
            if worker.pending is not None and worker.pending.step < view.resume.step:
                self.make_stable(worker)
            worker.unpublished = [commit for commit in worker.unpublished if commit.step > view.published]
            self.tell(worker, ev.Formed, generation=view.generation)

    def key(self, worker: SimWorker) -> tuple[int, int]:
        """The reduction it takes part in: (generation, step)."""
        return worker.state.generation, worker.state.commit.step + 1

    def is_full(self, worker: SimWorker) -> bool:
        assert worker.view is not None
        return len(self.reductions[self.key(worker)]) == len(worker.view.members)

    def step(self, worker: SimWorker) -> None:
        """Contribute, then see the reduction complete or break."""
        view = worker.view
        assert view is not None
        if view.leader.worker == worker.name:
            self.publish(worker)
        key = self.key(worker)
        if not worker.contributed:
            self.reductions[key].add(worker.name)
            worker.contributed, worker.since_s, worker.moved_s = True, self.now_s, self.now_s
            newest = self.ws.generation
            assert not self.is_full(worker) or newest == view.generation, f"{key} completes beside generation {newest}"
            self.pauses |= {key} if worker.pause_generation == view.generation else set()
            return
        is_complete = self.is_full(worker)
        is_cut = not all(self.is_there(self.workers[member.worker], view) for member in view.members)
        if self.chance("break_") or (not is_complete and (is_cut or self.is_late(worker))):
            self.signal(worker, Signal.BREAK)
            self.tell(worker, ev.CollectiveBroken, generation=view.generation, error="reset")
        elif is_complete:
            self.reduced(worker, key)

    def reduced(self, worker: SimWorker, key: tuple[int, int]) -> None:
        """All have contributed, so all have applied the step before."""
        (generation, number), parent = key, worker.state.commit
        assert worker.view is not None
        if self.finds_corruption(worker, key, range(len(worker.view.members))):
            return
        assert self.parents.setdefault(key, parent.lineage) == parent.lineage, f"{key} began from different states"
        self.note_stable(parent)
        self.make_stable(worker)
        if number == self.plan.steps:
            self.signal(worker, Signal.END_LOOP)
            self.publish(worker)
            self.tell(worker, ev.LoopEnded, generation=generation, commit=parent)
        elif not self.is_cut(worker, "in") or self.now_s - worker.muted_at_s < LEASE_S * LEASE_MARGIN:
            assert self.signal(worker, Signal.ENTER_APPLY) is Verdict.DONE
            assert (worker.name, generation) not in self.answered, f"{worker.name} applies in a generation it has left"
            lineage = f"{hash32(parent.lineage, generation, number):08x}"
            worker.applying = CommitId(worker.view.incarnation, generation, 1, number, lineage)
            worker.wants_pause = key in self.pauses

    def finds_corruption(self, worker: SimWorker, key: Any, ranks: Any) -> bool:
        """All see the same bits of these ranks; whoever is outvoted is told of, and is healed no more."""
        assert worker.view is not None
        names = [worker.view.members[rank].worker for rank in ranks]
        odd = self.votes.setdefault(key, outvoted([self.workers[name].bits for name in names]))
        if odd == ():
            return False
        culprits = tuple(names[place] for place in odd or ())
        self.signal(worker, Signal.OUTVOTED if worker.name in culprits else Signal.BREAK)
        self.tell(worker, ev.CorruptionFound, generation=worker.view.generation, culprits=culprits, evidence="odd")
        return True

    def leave_apply(self, worker: SimWorker) -> None:
        commit = worker.applying
        assert commit is not None
        assert commit.step == worker.state.commit.step + 1, f"{worker.name} skipped or redid a step: {commit}"
        self.assert_not_redone(worker, commit)
        self.signal(worker, Signal.LEAVE_APPLY, commit=commit)
        if self.plan.corrupt and self.chance("corrupt"):
            worker.bits = self.sent
        worker.pending, orders, worker.deferred = commit, worker.deferred, []
        for command in orders:
            self.obey(worker, command)
        if worker.wants_pause and self.signal(worker, Signal.STOP_AT_DOOR) is Verdict.DONE:
            self.answer(worker)

    def assert_not_redone(self, worker: SimWorker, commit: CommitId) -> None:
        is_exiled = self.ws.standing(worker.name) is Standing.EXILED  # out of reach, it does what can not become stable
        assert is_exiled or commit.step >= len(self.stable), f"{worker.name} redid stable step {commit.step}"

    def note_stable(self, commit: CommitId) -> None:
        """A step that can not be lost any more: the history of the run grows one by one, and never forks."""
        if commit.step == len(self.stable):
            self.stable.append(commit.lineage)
        assert commit.step < 0 or self.stable[commit.step] == commit.lineage, f"{commit} forks from the history"

    def make_stable(self, worker: SimWorker) -> None:
        """Its last applied step is stable: it may be told."""
        if worker.pending is not None:
            assert self.stable[worker.pending.step] == worker.pending.lineage, f"{worker.pending} is told too early"
            worker.unpublished.append(worker.pending)
        worker.pending = None

    def publish(self, worker: SimWorker) -> None:
        for commit in worker.unpublished:
            self.tell(worker, ev.StepStable, report=self.report_of(commit))
        worker.unpublished = []

    def report_of(self, commit: CommitId) -> StepReport:
        when = {"started_at_s": self.now_s, "committed_at_s": self.now_s}
        return StepReport(commit=commit, metrics={}, replicas=1, samples=1, **when)

    def leave(self, worker: SimWorker) -> None:
        is_dismissed = worker.state.stage is Stage.GONE
        self.signal(worker, Signal.LEAVE)
        self.tell(worker, ev.TrainFnReturned, dismissed=is_dismissed)
        worker.is_alive = False
