"""Pure. The workers of a small world: real protocol states, and abstract steps.

A step's reduction completes once all members have contributed, and who has not seen that yet may see it break instead.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.data import Plan as DataPlan
from elastic.control.data import hash32
from elastic.control.integrity import outvoted
from elastic.control.state import Standing
from elastic.control.striping import summed_by
from elastic.control.values import CommitId, Member, StepReport, View
from elastic.control.worker_protocol import Signal, Stage, Verdict, has_lease, react
from elastic.sim.door import Door
from elastic.sim.laws import Law, must
from elastic.sim.parts import Plan, SimWorker
from elastic.sim.samples import Samples, data_of

_CONNECTS = 8  # of so many workers one does not connect ahead
REST = 5  # times as long between two moves of a worker that waits to be told something
OUT = frozenset({Stage.FROZEN, Stage.BROKEN, Stage.FINISHED, Stage.GONE})


class Crew(Door):
    """What workers do, and what they are told.

    Attributes:
        data: how the run's data is cut, as workers tell. samples: what steps are made of.
        reductions: by (generation, step), who has contributed. pauses: in which a pause was asked for.
        answered: (worker, generation) that has answered a freeze. parents: by reduction, what it began from.
        stable: lineages of the steps that can not be lost any more.
        votes: by reduction, the places of those who were outvoted; None: nobody can tell who is right.
        truth: the bits of the history, as the last vote has left them.
        trained: who has contributed to a reduction.
        moving_s: when a step was last seen to be stable, or the world broke a collective.
        pause_s: the longest time between two of these.
        begun: how many drivers have found nobody who had trained, and begun anew.
    """

    data: DataPlan | None = None

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.samples = Samples(data_of(seed))
        self.reductions: dict[Any, set[str]] = defaultdict(set)
        self.pauses: set[Any] = set()
        self.answered: set[tuple[str, int]] = set()
        self.parents: dict[tuple[int, int], str] = {}
        self.stable: list[str] = []
        self.votes: dict[Any, tuple[int, ...] | None] = {}
        self.truth = 0
        self.begun = 0
        self.trained: set[str] = set()
        self.moving_s = self.pause_s = 0.0

    @abstractmethod
    def suffers(self, worker: SimWorker) -> bool:
        """Whether a fault keeps this worker from moving now."""

    def clear_generations(self) -> None:
        super().clear_generations()
        for of_generations in (self.reductions, self.pauses, self.answered, self.parents, self.votes):
            of_generations.clear()

    def is_cut(self, worker: SimWorker, way: str) -> bool:
        """Whether nothing comes through to its host ("in"), or from it ("out")."""
        return self.now_s < worker.muted_until_s and way in worker.cut_ways

    def has_lease(self, worker: SimWorker) -> bool:
        """It stops where it has not been reached for too long, by the clock of its host."""
        silent_s = worker.clock_rate * (self.now_s - worker.muted_at_s) if self.is_cut(worker, "in") else 0.0
        return has_lease(silent_s, self.plan.lease_s)

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
        if before.stage in _AT_REST and reaction.state.stage not in _AT_REST:
            self.move_soon(worker)
        return reaction.verdict

    def done(self, worker: SimWorker, signal: Signal, **details: Any) -> None:
        """What the protocol lets it do here in any case."""
        verdict = self.signal(worker, signal, **details)
        must(verdict is Verdict.DONE, Law.ENDS, lambda: f"{worker.name}, {worker.state}: {signal} is {verdict}")

    def obey(self, worker: SimWorker, command: Any) -> None:
        if not worker.is_alive or worker.is_hung:
            return
        if self.is_cut(worker, "in"):
            self.later(worker.muted_until_s - self.now_s, self.obey, worker, command)
        elif isinstance(command, cmd.Pause):
            worker.pause_generation = command.generation
        elif isinstance(command, cmd.Connect):
            self.connect_ahead(worker, command.view)
        elif isinstance(command, cmd.Form):
            self.begin_to_form(worker, command.view)
        else:
            signal = {cmd.Freeze: Signal.FREEZE, cmd.Go: Signal.GO, cmd.Finish: Signal.FINISH}.get(
                type(command), Signal.DISMISS
            )
            before = worker.state.generation
            verdict = self.signal(worker, signal, generation=getattr(command, "generation", 0))
            if verdict is Verdict.DONE and isinstance(command, cmd.Freeze | cmd.Go):
                self.check_not_of_old(worker, command.generation, before)
            if verdict is Verdict.LATER:
                worker.deferred.append(command)
            elif verdict is Verdict.DONE and signal is Signal.FREEZE:
                self.answer(worker)
            elif verdict is Verdict.DONE and signal is Signal.FINISH:
                self.make_stable(worker)
                self.publish(worker)

    def connect_ahead(self, worker: SimWorker, view: View) -> None:
        if hash32(worker.name, view.generation) % _CONNECTS:
            self.tell(worker, ev.Connected, generation=view.generation - 1)

    def begin_to_form(self, worker: SimWorker, view: View) -> None:
        before = worker.state.generation
        resumed = None if view.rank_of(worker.name) in view.behind else view.resume
        if self.signal(worker, Signal.FORM, generation=view.generation, commit=resumed) is Verdict.DONE:
            self.check_not_of_old(worker, view.generation, before)
            worker.view = view

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
        held: dict[str, Any] = {"commit": state.commit, "healed": state.healed, "prepared": state.prepared}
        held |= {"outvoted": state.outvoted, "missed": worker.missing}
        self.tell(worker, ev.FreezeAnswered, generation=state.generation, **held)

    # --- what a worker does by itself ---

    def move(self, worker: SimWorker, turn: int) -> None:
        """One move of the training thread; then it thinks about the next one."""
        if turn != worker.turn or self.suffers(worker):
            return
        stage = worker.state.stage
        if worker.applying is not None:  # what has begun ends, whatever is asked of it meanwhile
            self.leave_apply(worker)
        elif stage is Stage.STEPPING:
            self.step(worker)
        elif (move := _MOVES.get(stage)) is not None:
            move(self, worker)
        elif self.is_late(worker):
            worker.since_s = self.now_s
            self.tell(worker, ev.Overdue, generation=worker.state.generation)
        if worker.is_alive:
            self.move_soon(worker)

    def move_soon(self, worker: SimWorker) -> None:
        """It thinks first; who waits to be told something looks up now and then."""
        worker.turn += 1
        self.later(self.think_s() * (REST if self.is_at_rest(worker) else 1), self.move, worker, worker.turn)

    def is_at_rest(self, worker: SimWorker) -> bool:
        return worker.state.stage in _AT_REST and worker.applying is None

    def arrive(self, worker: SimWorker) -> None:
        self.signal(worker, Signal.ARRIVE)
        plan = self.data or self.samples.plan
        told = {"layout": "l", "plan": plan, "gpus": self.plan.gpus}
        self.tell(worker, ev.WorkerParked, host="h", port=1, pid=1, **told)

    def is_there(self, other: SimWorker, view: View) -> bool:
        is_in = other.is_alive and other.state.generation == view.generation and other.state.stage not in OUT
        return is_in and (other.at_door == view.generation or not self.plan.says_at_door)

    def has_heard(self, worker: SimWorker, members: tuple[Member, ...]) -> bool:
        return all(self.are_in_touch(worker, self.workers[one.worker]) for one in members)

    def may_install(self, worker: SimWorker, view: View) -> bool:
        """Nobody else has to have received something first."""
        return True

    def form(self, worker: SimWorker) -> None:
        """The group connects once all are there; those behind receive what the donors hold."""
        view = worker.view
        assert view is not None
        if self.plan.says_at_door and not self.is_at_door(worker, view):
            return
        group = [self.workers[member.worker] for member in view.members]
        is_complete = all(self.is_there(other, view) and self.are_in_touch(worker, other) for other in group)
        if self.breaks() or (not is_complete and self.is_late_to_form(worker)):
            self.signal(worker, Signal.BREAK)
            self.tell(worker, ev.FormingFailed, generation=view.generation, error="refused")
        elif is_complete and self.may_install(worker, view):
            for held in () if view.bootstrap else (group[rank].state for rank in view.donors):
                must(held.healed, Law.NEVER_WRONG, lambda: f"{held} gives what it does not hold")  # noqa: B023
                is_it = held.commit.same_state(view.resume)
                must(is_it, Law.NEVER_WRONG, lambda: f"{held} gives something else than {view.resume}")  # noqa: B023
            donors = [group[rank] for rank in view.donors]
            is_read = view.behind and self.is_handed_on(donors)
            if is_read and self.finds_corruption(worker, ("forming", view.generation), view.donors):
                return
            worker.missing = ()
            if view.rank_of(worker.name) not in view.donors:
                clean = next(
                    (one for one in donors if not one.is_tainted), None
                )  # none: but what is handed on is right
                worker.bits, worker.is_tainted = (self.truth if clean is None else clean.bits), False
                worker.consumed = donors[0].consumed
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
            self.trained.add(worker.name)
            rank = view.rank_of(worker.name)
            self.samples.deal(key, worker.name, worker.consumed, view.replicas, rank // view.width)
            worker.contributed, worker.since_s, worker.moved_s = True, self.now_s, self.now_s
            newest = self.ws.generation
            is_alone = not self.is_full(worker) or newest == view.generation
            must(is_alone, Law.ONE_GENERATION, lambda: f"{key} completes beside generation {newest}")
            self.pauses |= {key} if worker.pause_generation == view.generation else set()
            return
        is_complete = self.is_full(worker) and self.has_heard(worker, view.members)
        if self.breaks() or not (is_complete or self.may_become(worker, view.members)):
            self.signal(worker, Signal.BREAK)
            self.tell(worker, ev.CollectiveBroken, generation=view.generation, error="reset")
        elif is_complete:
            self.reduced(worker, key)

    def may_become(self, worker: SimWorker, group: tuple[Member, ...]) -> bool:
        """Whether it is worth waiting for what these members do together."""
        view = worker.view
        assert view is not None
        return not self.is_late(worker) and all(self.is_there(self.workers[one.worker], view) for one in group)

    def reduced(self, worker: SimWorker, key: tuple[int, int]) -> None:
        """All have contributed, so all have applied the step before."""
        (generation, number), parent = key, worker.state.commit
        assert worker.view is not None
        if self.finds_corruption(worker, key, range(len(worker.view.members))):
            return
        is_same = self.parents.setdefault(key, parent.lineage) == parent.lineage
        must(is_same, Law.SAME_ANSWER, lambda: f"{key} began from different states")
        self.note_stable(parent)
        self.make_stable(worker)
        if number == self.plan.steps:
            self.signal(worker, Signal.END_LOOP)
            self.publish(worker)
            self.tell(worker, ev.LoopEnded, generation=generation, commit=parent)
        elif self.has_lease(worker):
            self.done(worker, Signal.ENTER_APPLY)
            self.check_not_left(worker, generation)
            lineage = self.lineage_of(parent, generation, number)
            self.samples.sum_up(key, self.reductions[key], lineage, parent.lineage)
            worker.applying = CommitId(worker.view.incarnation, generation, 1, number, lineage)
            worker.wants_pause = key in self.pauses

    def lineage_of(self, parent: CommitId, generation: int, number: int) -> str:
        """Of the step that follows `parent`; who begins a history anew counts generations anew, too."""
        anew = (self.begun,) if self.begun else ()
        return f"{hash32(parent.lineage, generation, number, *anew):08x}"

    def is_handed_on(self, donors: list[SimWorker]) -> bool:
        """Whether bits that went wrong lie in a part of the state that their holder gives, or sums for another donor.

        If not, nobody sees them, and nobody receives them.
        """
        parts = len(donors)
        return any(hash32(one.bits) % parts in summed_by(place, parts) for place, one in enumerate(donors) if one.bits)

    def finds_corruption(self, worker: SimWorker, key: Any, ranks: Any) -> bool:
        """All see the same bits of these ranks; whoever is outvoted is told of, and is healed no more."""
        assert worker.view is not None
        names = [worker.view.members[rank].worker for rank in ranks]
        if key not in self.votes:
            self.votes[key] = outvoted([self.workers[name].bits for name in names])
            self.check_vote([self.workers[name] for name in names], self.votes[key])
        odd = self.votes[key]
        if odd == ():
            return False
        culprits = tuple(names[place] for place in odd or ())
        self.signal(worker, Signal.OUTVOTED if worker.name in culprits else Signal.BREAK)
        self.tell(worker, ev.CorruptionFound, generation=worker.view.generation, culprits=culprits, evidence="odd")
        return True

    def check_vote(self, voters: list[SimWorker], odd: tuple[int, ...] | None) -> None:
        """Those who differ from what most hold are outvoted, and nobody else; who is alone is believed."""
        bits = [one.bits for one in voters]
        most = max(bits, key=bits.count)
        is_clear = 2 * bits.count(most) > len(bits)
        wanted = tuple(place for place, one in enumerate(bits) if one != most) if is_clear else None
        must(odd == wanted, Law.NEVER_WRONG, lambda: f"of {bits}, {odd} were outvoted")
        if wanted == ():
            self.truth = most if len(bits) == 1 else self.truth
            must(most == self.truth, Law.SAME_ANSWER, lambda: f"all hold {most}, and the history is {self.truth}")
            for one in voters:
                one.is_tainted = False

    def leave_apply(self, worker: SimWorker) -> None:
        commit, worker.applying = worker.applying, None
        assert commit is not None
        is_next = commit.step == worker.state.commit.step + 1
        must(is_next, Law.EXACTLY_ONCE, lambda: f"{worker.name} skipped or redid a step: {commit}")
        self.check_not_redone(worker, commit)
        verdict = self.signal(worker, Signal.LEAVE_APPLY, commit=commit)
        must(
            verdict is Verdict.DONE, Law.ONE_GENERATION, lambda: f"{worker.name} applied {commit} after it had stopped"
        )
        if self.plan.corrupt and self.chance("corrupt"):
            worker.bits, worker.is_tainted = self.sent, True
            self.struck.add(worker.name)  # others may have to leave its node
        worker.consumed = self.samples.consumed[commit.lineage]
        worker.pending, orders, worker.deferred = commit, worker.deferred, []
        for command in orders:
            self.obey(worker, command)
        if worker.wants_pause and self.signal(worker, Signal.STOP_AT_DOOR) is Verdict.DONE:
            self.answer(worker)

    def check_not_of_old(self, worker: SimWorker, ordered: int, generation: int) -> None:
        told = f"{worker.name} heeds an order of generation {ordered} in generation {generation}"
        must(ordered >= generation, Law.ONE_GENERATION, lambda: told)

    def check_not_left(self, worker: SimWorker, generation: int) -> None:
        is_in = (worker.name, generation) not in self.answered
        must(is_in, Law.ONE_GENERATION, lambda: f"{worker.name} applies in a generation it has left")

    def check_not_redone(self, worker: SimWorker, commit: CommitId) -> None:
        is_exiled = self.ws.standing(worker.name) is Standing.EXILED  # out of reach, it does what can not become stable
        is_new = commit.step >= len(self.stable)
        must(is_exiled or is_new, Law.NOTHING_LOST, lambda: f"{worker.name} redid stable step {commit.step}")

    def note_stable(self, commit: CommitId) -> None:
        """A step that can not be lost any more: the history of the run grows one by one, and never forks."""
        if commit.step == len(self.stable):
            self.stable.append(commit.lineage)
            self.samples.follow(self.stable)
            self.note_moving()
        is_known = commit.step < 0 or self.stable[commit.step] == commit.lineage
        must(is_known, Law.NOTHING_LOST, lambda: f"{commit} forks from the history")

    def note_moving(self) -> None:
        self.pause_s = max(self.pause_s, self.now_s - (self.moving_s or self.now_s))
        self.moving_s = self.now_s

    def breaks(self) -> bool:
        """Whether a collective breaks now: where each one does, no step is made, whoever is there to decide."""
        happens = self.chance("break_")
        if happens and self.stable:
            self.note_moving()
        return happens

    def make_stable(self, worker: SimWorker) -> None:
        """Its last applied step is stable: it may be told."""
        if worker.pending is not None:
            told, stable = worker.pending, self.stable
            is_stable = told.step < len(stable) and stable[told.step] == told.lineage
            must(is_stable, Law.NOTHING_LOST, lambda: f"{told} is told too early")
            worker.unpublished.append(worker.pending)
        worker.pending = None

    def publish(self, worker: SimWorker) -> None:
        for commit in worker.unpublished:
            self.tell(worker, ev.StepStable, report=self.report_of(commit))
        worker.unpublished = []

    def report_of(self, commit: CommitId, **details: Any) -> StepReport:
        told = {"started_at_s": self.now_s, "committed_at_s": self.now_s, "metrics": {}, "replicas": 1, "samples": 1}
        return StepReport(commit=commit, **{**told, **details})

    def leave(self, worker: SimWorker) -> None:
        is_dismissed = worker.state.stage is Stage.GONE
        self.signal(worker, Signal.LEAVE)
        self.tell(worker, ev.TrainFnReturned, dismissed=is_dismissed)
        worker.is_alive = False


_AT_REST = frozenset({Stage.PARKED, Stage.FROZEN, Stage.READY})
_MOVES: dict[Stage, Callable[[Crew, SimWorker], None]] = {
    Stage.LOADING: lambda crew, worker: crew.arrive(worker),
    Stage.FORMING: lambda crew, worker: crew.form(worker),
    Stage.FINISHED: lambda crew, worker: crew.leave(worker),
    Stage.GONE: lambda crew, worker: crew.leave(worker),
}
