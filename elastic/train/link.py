"""Effect. Where the training thread and the control thread of a worker meet: one lock, one state, one mailbox.

All decisions are made by `worker_protocol.react`; this class holds the lock around them, waits, and passes events on.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from elastic.control import events as ev
from elastic.control.adoption import Adopted
from elastic.control.faults import Fault, InjectedError
from elastic.control.values import NOT_TIMED, NOTHING_COMMITTED, CommitId, StepTimes, View
from elastic.control.worker_protocol import THE_DRIVER, Signal, Stage, Verdict, WorkerState, has_lease, react
from elastic.errors import AttemptBroken, Dismissed, SupersededError
from elastic.train.mailbox import Mailbox

_OVERDUE_S = 3.0
_OVERDUE_MAX_S = 30.0
_REPORTS_S = 0.5  # a message a step would cost more than it tells


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """The training thread saves the state that it has at the door, since nobody may come to go on with it.

    Attribute `is_asked`: whoever it is. By the driver, which asks one worker of each host; or since the group had lost
    somebody, perhaps who usually saves, before it could know that no driver would come.
    """

    is_asked: bool


class Link:
    """One worker's end of the protocol.

    Args:
        worker: name of the worker.
        lease_s: a member without contact for this long (less a margin) does not apply.
        incarnation: of the driver that has started it.
    """

    def __init__(self, worker: str, lease_s: float, incarnation: int = 0) -> None:
        self.worker = worker
        self.cut: Callable[[], None] = lambda: None
        self.missed: Callable[[], tuple[str, ...]] = tuple
        self.connect: Callable[[View], None] = lambda view: None
        self._lease_s = lease_s
        self._state = WorkerState(incarnation=incarnation)
        self._parked: ev.WorkerParked | None = None
        self._mail = Mailbox()
        self._view: View | None = None
        lock = threading.RLock()  # one for both: a step changes the state a few times, and who reads the mail sleeps on
        self._lock, self._news = threading.Condition(lock), threading.Condition(lock)
        self._contact_s = time.monotonic()
        self._pause_generation, self._pause_due_s = 0, 0.0
        self._to_restore: CommitId | None = None
        self._restore_number = self._restores_for = 0
        self._restore_answer: ev.Restored | ev.RestoreRefused | None = None
        self._is_forsaken = self._has_saved = self._is_asked_to_save = False
        self._saved: CommitId | None = None
        self._sealed: ev.ShardStaged | None = None
        self._silent_at_break_s = 0.0
        self._is_spoilt = False
        self._fault: Fault | None = None

    @property
    def state(self) -> WorkerState:
        with self._lock:
            return self._state

    @property
    def heeded(self) -> int:
        return self._state.incarnation  # one attribute read; the lock is held while optimizers run

    @property
    def is_spoilt(self) -> bool:
        """Whether some of what it holds may be of no state at all: it was written over, and nothing whole since."""
        with self._lock:
            return self._is_spoilt and not self._state.healed

    @property
    def published(self) -> int:
        """The driver has told all stable steps up to this one."""
        return self._mail.published

    @property
    def rank(self) -> int:
        """In the generation that was formed last; -1 before the first. Takes no lock."""
        view = self._view
        members = view.members if view is not None else ()
        return next((rank for rank, member in enumerate(members) if member.worker == self.worker), -1)

    @property
    def silent_s(self) -> float:
        """Seconds since the driver was last heard."""
        return time.monotonic() - self._contact_s

    @property
    def sealed(self) -> ev.ShardStaged | None:
        """The last state that this worker has saved in its node's memory, whether or not a driver has heard of it."""
        return self._sealed

    @property
    def mates(self) -> tuple[str, ...]:
        """The workers of its replica in the generation that was formed last, by shard, itself among them."""
        view = self._view
        return () if view is None else tuple(member.worker for member in view.gang(self.rank // view.width))

    # --- what the driver says (control thread) ---

    def touch(self, incarnation: int = THE_DRIVER) -> None:
        """The driver was heard.

        Raises:
            SupersededError: another one has adopted this worker since.
        """
        with self._lock:
            self._refuse_older(incarnation)
            self._contact_s = time.monotonic()
            self._lock.notify_all()

    def told(self, generation: int, published: int) -> None:
        """All stable steps up to this one are in the journal; as the driver saw it in `generation`."""
        with self._lock:
            if self._view is None or generation >= self._view.generation:
                self._mail.publish(published)

    def adopt(self, incarnation: int, **place: int) -> Adopted:
        """Heed this driver from now on, and no older one; stop for good wherever this worker is, and say where.

        Waits while an apply is under way. What a driver must know is told to this one anew.

        Args:
            place: gang, shard and pid of the worker.

        Raises:
            SupersededError: it heeds this one or a newer one already.
        """
        with self._lock:
            was, door = self._state.stage, self._parked
            if self._react(Signal.ADOPT, incarnation=incarnation) is not Verdict.DONE:
                raise _superseded(incarnation, self._state.incarnation)
            self._contact_s, self._is_forsaken = time.monotonic(), False
            self._mail.readdress()
            self._news.notify_all()
            told: dict[str, Any] = {"view": self._view, "restores": self._restore_number, **place}
            if door is not None:
                told |= {name: getattr(door, name) for name in ("host", "port", "layout", "plan", "gpus")}
            told |= {"notice": self._mail.notice, "is_dismissed": was is Stage.GONE and not self._mail.has_ended}
            adopted = Adopted(worker=self.worker, was=was, state=self._state, **told)
            cut = self.cut if self._state.stage is Stage.FROZEN else (lambda: None)
        cut()
        return adopted

    def forsake(self, timeout_s: float, lease_s: float) -> None:
        """No driver was heard for long: stop for good, and wait until the state is saved, or a driver comes after all.

        Nothing is saved where there is no state that is worth it.

        Args:
            lease_s: how long is long. A group that breaks towards its end was cut by those who are forsaken, too; if
                it broke before, somebody is lost.
        """
        with self._lock:
            has_lost_somebody = self._state.stage is Stage.BROKEN and self._silent_at_break_s < lease_s / 2
            self._react(Signal.FREEZE, generation=self._state.generation)
            if self._state.stage is not Stage.FROZEN or not self._state.healed or self._state.commit.step < 0:
                return
            self._is_forsaken, self._has_saved, cut = True, False, self.cut
            self._is_asked_to_save = self._is_asked_to_save or has_lost_somebody
            self.post(self._answer())  # for a driver that comes back meanwhile: it asks nobody whom it takes for well
            self._lock.notify_all()
        cut()
        with self._lock:
            self._lock.wait_for(lambda: self._has_saved or not self._is_forsaken, timeout_s)

    def freeze(self, generation: int, incarnation: int = THE_DRIVER) -> ev.FreezeAnswered | None:
        """Stop for good in this generation, and say what is held; None if the order is stale.

        Waits while an apply is under way: its lock is the same.
        """
        with self._lock:
            if self._react(Signal.FREEZE, generation=generation, incarnation=incarnation) is not Verdict.DONE:
                return None
            answer, cut = self._answer(), self.cut
        cut()
        return answer

    def form(self, view: View) -> bool:
        with self._lock:
            resumed = None if view.rank_of(self.worker) in view.behind else view.resume
            told = {"generation": view.generation, "commit": resumed, "incarnation": view.incarnation}
            if self._react(Signal.FORM, **told) is not Verdict.DONE:
                return False
            self._is_asked_to_save = False
            self._view = view
            if self._restore_number < view.restores:
                self._restore_number, self._restore_answer = view.restores, None
            self._mail.publish(view.published, view.forks)
            return True

    def restore(self, commit: CommitId, number: int, incarnation: int = THE_DRIVER) -> None:
        """Load this commit at the door; an order that was answered is only answered again."""
        with self._lock:
            self._refuse_older(incarnation)
            if number == self._restore_number and self._restore_answer is not None:
                self.post(self._restore_answer)
            elif number > self._restore_number and self._state.stage in (Stage.PARKED, Stage.FROZEN):
                self._to_restore, self._restore_number, self._restore_answer = commit, number, None
                self._lock.notify_all()

    def save(self, commit: CommitId, incarnation: int = THE_DRIVER) -> None:
        """Save this state, if this worker has stopped with it and has not saved it already."""
        with self._lock:
            self._refuse_older(incarnation)
            held = self._state
            is_held = held.healed and held.prepared is None and held.commit.same_state(commit)
            if held.stage is Stage.FROZEN and is_held and not commit.same_state(self._saved or NOTHING_COMMITTED):
                self._is_asked_to_save = True
                self._lock.notify_all()

    def go(self, generation: int, incarnation: int = THE_DRIVER) -> bool:
        return self._react(Signal.GO, generation=generation, incarnation=incarnation) is Verdict.DONE

    def pause(self, generation: int, incarnation: int = THE_DRIVER, patience_s: float = 0.0) -> None:
        """Have all members stop at the end of a step: the wish travels with the next reduction.

        Args:
            patience_s: not before that, unless it is asked for again with less of it.
        """
        with self._lock:
            self._refuse_older(incarnation)
            due_s = time.monotonic() + patience_s
            if generation == self._pause_generation:
                due_s = min(due_s, self._pause_due_s)
            if generation >= self._pause_generation:
                self._pause_generation, self._pause_due_s = generation, due_s

    def finish(self, incarnation: int = THE_DRIVER) -> None:
        self._react_and_cut(Signal.FINISH, incarnation)

    def dismiss(self, incarnation: int = THE_DRIVER) -> None:
        self._react_and_cut(Signal.DISMISS, incarnation)

    def inject(self, fault: Fault) -> None:
        """Have the training thread raise in train_fn, the next time that it comes by."""
        self._fault = fault

    def notice(self, reason: str) -> None:
        """This process will be ended soon: leave at the end of a step."""
        self._post_fact(ev.WorkerNotice(worker=self.worker, reason=reason))

    def take_events(self, timeout_s: float, incarnation: int = THE_DRIVER) -> list[ev.Event]:
        """Events for the controller: at once if one is urgent, reports of steps some at a time, none at the timeout.

        Raises:
            SupersededError: another driver has adopted this worker; it gets them.
        """

        def is_older() -> bool:
            return incarnation < self._state.incarnation

        with self._lock:
            if self._news.wait_for(lambda: bool(self._mail) or is_older(), timeout_s):
                self._news.wait_for(lambda: self._mail.is_urgent or is_older(), _REPORTS_S)
            self._refuse_older(incarnation)
            return self._mail.take()

    # --- what the training thread does ---

    def post(self, event: ev.Event) -> None:
        with self._lock:
            if isinstance(event, ev.ShardStaged):
                self._sealed = event
            self._put(event, self._mail.put)

    def _post_fact(self, event: ev.Event) -> None:
        with self._lock:
            self._put(event, self._mail.put_fact)

    def arrive(self, parked: ev.WorkerParked) -> None:
        with self._lock:
            self._react(Signal.ARRIVE)
            self._parked = parked
            self.post(parked)

    def wait_for_orders(self) -> View | CommitId | SaveOrder | None:
        """Wait at the door; returns the generation to form, the commit to load, or None when the loop is over.

        Raises:
            Dismissed: this worker is not needed any more.
        """
        with self._lock:
            self._await(self._has_orders)
            if self._state.stage is Stage.GONE:
                raise Dismissed
            if self._has_to_save():
                return SaveOrder(self._is_asked_to_save)
            to_restore, self._to_restore = self._to_restore, None
            if to_restore is not None and self._state.stage in (Stage.PARKED, Stage.FROZEN):
                self._restores_for = self._state.incarnation
                return to_restore
            return self._view if self._state.stage is Stage.FORMING else None

    def _has_orders(self) -> bool:
        is_door_open = self._state.stage in (Stage.FORMING, Stage.FINISHED, Stage.GONE)
        return is_door_open or self._to_restore is not None or self._has_to_save()

    def _has_to_save(self) -> bool:
        is_forsaken = self._is_forsaken and not self._has_saved
        return (is_forsaken or self._is_asked_to_save) and self._state.stage is Stage.FROZEN

    def saved(self) -> None:
        """The training thread has done what it could."""
        with self._lock:
            self._has_saved, self._is_asked_to_save, self._saved = True, False, self._state.commit
            self._lock.notify_all()

    def answer_restore(self, answer: ev.Restored | ev.RestoreRefused) -> None:
        with self._lock:
            self._restore_answer = answer
            self.post(answer)

    def restored(self, commit: CommitId, install: Callable[[], object], report: ev.Restored) -> None:
        """Install what was loaded, under the lock: a freeze sees the state before or after it.

        Not where the others have gone on meanwhile, and called this worker to join them: they hand it what they hold;
        nor where a newer driver was told what it holds instead.

        Raises:
            Exception: what `install` raises; this worker then holds no state of worth.
        """
        with self._lock:
            is_void = self._state.incarnation != self._restores_for
            if is_void or self._state.stage not in (Stage.PARKED, Stage.FROZEN):
                return
            try:
                install()
            except Exception:
                self._react(Signal.TEAR)
                raise
            if self._react(Signal.RESTORED, commit=commit) is Verdict.DONE:
                self.answer_restore(report)

    def is_forming(self, generation: int) -> bool:
        with self._lock:
            return self._state.stage is Stage.FORMING and self._state.generation == generation

    def forming_failed(self, view: View, error: Exception) -> None:
        """Tell why, unless a newer order has come already."""
        with self._lock:
            if self.is_forming(view.generation):
                self._react(Signal.BREAK)
                text = f"{type(error).__name__}: {error}"
                self.post(ev.FormingFailed(worker=self.worker, generation=view.generation, error=text))

    def lacks(self, view: View) -> str:
        """What it is taken to hold, and does not, where it is taken for one of those who hold what all resume from."""
        with self._lock:
            if self.rank in view.behind:
                return ""
            if view.bootstrap:
                return "what it began with" if self._is_spoilt else ""
            holds = self._state.healed and self._state.commit.same_state(view.resume)
            return "" if holds else f"update {view.resume.step}"

    def spoil(self) -> bool:
        """Whether what this worker holds may be written over while the state of a view arrives.

        It may where nobody would miss it: a joiner's, but not where the run begins, since any of those may yet have to
        give what it has built; from then on the run can not begin with this worker's. And it may once: what is left
        behind of a try that was cut could write there later.
        """
        with self._lock:
            is_worthless = self._view is not None and not self._view.bootstrap and not self._state.healed
            was_spoilt, self._is_spoilt = self._is_spoilt, self._is_spoilt or is_worthless
            return is_worthless and not was_spoilt

    def formed(self, view: View, install: Callable[[], None], healing_s: float = 0.0) -> bool:
        """Install the received state and wait for the go; False if the generation ended before it began.

        Like an apply, the installation holds the lock: a freeze sees the state before or after it.
        """
        with self._lock:
            if not self.is_forming(view.generation):
                return False
            try:
                install()
            except Exception as error:  # half of it may be set: from now on this worker holds no state of worth
                self._react(Signal.TEAR)
                text = f"{type(error).__name__}: {error}"
                self.post(ev.FormingFailed(worker=self.worker, generation=view.generation, error=text))
                return False
            self._react(Signal.FORMED, commit=view.resume)
            self.post(ev.Formed(worker=self.worker, generation=view.generation, healing_s=healing_s))
            self._await(lambda: self._state.stage is not Stage.READY)
            return self._state.stage is Stage.STEPPING

    def is_stepping(self) -> bool:
        return self._state.stage is Stage.STEPPING  # one attribute read; called from gradient hooks

    def check(self) -> None:
        """Raise AttemptBroken if this attempt cannot be committed any more, or what somebody has injected."""
        if not self.is_stepping():
            raise AttemptBroken
        if self._fault is not None:
            self._raise_injected()

    def _raise_injected(self) -> None:
        fault, self._fault = self._fault, None
        if fault is not None:
            error, at_s = InjectedError(f"injected by elastic chaos: {fault}"), time.time()
            proof = f"{type(error).__name__} is raised in train_fn, after step {self._state.commit.step}"
            self.post(ev.FaultInjected(fault=fault, target=self.worker, at_s=at_s, proof=proof))
            raise error

    def hung_up(self, generation: int, whom: str) -> None:
        """A member of this generation is gone; what has been reduced is applied, unless a freeze comes first."""
        with self._lock:
            if self._state.stage is Stage.STEPPING and self._state.generation == generation:
                error = f"the connection with {whom} was closed on the other side"
                self.post(ev.CollectiveBroken(worker=self.worker, generation=generation, error=error))

    def broke(self, error: str) -> None:
        """A reduction of the running generation failed; if it was frozen meanwhile, everybody knows already."""
        with self._lock:
            if self._state.stage is Stage.STEPPING:
                self._react(Signal.BREAK)
                generation = self._state.generation
                self.post(ev.CollectiveBroken(worker=self.worker, generation=generation, error=error))

    def corrupt(self, culprits: tuple[str, ...], evidence: str) -> None:
        """All members saw that these compute or hold something wrong: such a one never gives its state again."""
        with self._lock:
            if self._state.stage in (Stage.STEPPING, Stage.FORMING):
                self._react(Signal.OUTVOTED if self.worker in culprits else Signal.BREAK)
                generation = self._state.generation
                self._post_fact(
                    ev.CorruptionFound(worker=self.worker, generation=generation, culprits=culprits, evidence=evidence)
                )

    def is_broken_within(self, grace_s: float) -> bool:
        """Whether the generation is broken, or turns out to be within a moment."""
        with self._lock:
            return self._lock.wait_for(lambda: self._state.stage is not Stage.STEPPING, grace_s)

    @contextmanager
    def applying(self, commit: CommitId, agree: Callable[[], bool] | None = None) -> Iterator[None]:
        """The atomic part of a step: no freeze is answered inside, and none was answered before.

        Args:
            agree: whether all workers of the replica are prepared to apply. If that stays open, or a freeze comes
                first, this worker waits for what the next generation resumes from, which may be this very commit.

        Raises:
            AttemptBroken: the generation was frozen first, and the next one resumes from something else.
        """
        has_agreed = agree is None or self._has_prepared(commit, agree)
        with self._lock:
            self._lock.wait_for(lambda: self._has_lease() or self._state.stage is not Stage.STEPPING)
            if has_agreed and self._react(Signal.ENTER_APPLY) is Verdict.DONE:
                yield
                self._react(Signal.LEAVE_APPLY, commit=commit)
                return
            if agree is not None:
                self._await(self._has_orders)
            if self._state.stage is not Stage.FORMING or self._state.prepared is None:
                self._react(Signal.FORGO)  # its sums are gone: it must not be taken for one who could apply them yet
                raise AttemptBroken
            yield
            self._react(Signal.ROLL_FORWARD)

    def _has_prepared(self, commit: CommitId, agree: Callable[[], bool]) -> bool:
        if self._react(Signal.PREPARE, commit=commit) is not Verdict.DONE:
            raise AttemptBroken
        return agree()

    def wants_pause(self) -> bool:
        return self._pause_generation == self._state.generation and time.monotonic() >= self._pause_due_s

    def stop_at_door(self) -> None:
        """All agreed to stop after this step: freeze without being asked."""
        with self._lock:
            if self._react(Signal.STOP_AT_DOOR) is Verdict.DONE:
                self.post(self._answer())

    def end_loop(self, times: StepTimes = NOT_TIMED) -> None:
        """The closing reduction completed: the last step is stable. `times`: since it was committed."""
        with self._lock:
            state = self._state
            self._react(Signal.END_LOOP)
            generation, commit = state.generation, state.commit
            self._post_fact(ev.LoopEnded(worker=self.worker, generation=generation, commit=commit, times=times))

    def leave(self, event: ev.Event) -> None:
        """The training thread is over."""
        with self._lock:
            self._react(Signal.LEAVE)
            self._post_fact(event)

    # --- inside ---

    def _put(self, event: ev.Event, put: Callable[[ev.Event], None]) -> None:
        """Wake who waits for mail only where it would go: a report beside others waits with them."""
        was_empty = not self._mail
        put(event)
        if was_empty or self._mail.is_urgent:
            self._news.notify_all()

    def _react(self, signal: Signal, **details: Any) -> Verdict:
        with self._lock:
            reaction = react(self._state, signal, **details)
            self._is_spoilt = self._is_spoilt or signal is Signal.TEAR
            if reaction.state.stage is Stage.BROKEN and self._state.stage is not Stage.BROKEN:
                self._silent_at_break_s = self.silent_s
            self._state = reaction.state
            self._lock.notify_all()
            return reaction.verdict

    def _refuse_older(self, incarnation: int) -> None:
        """Raises: SupersededError: a newer driver has adopted this worker."""
        if incarnation < self._state.incarnation:
            raise _superseded(incarnation, self._state.incarnation)

    def _react_and_cut(self, signal: Signal, incarnation: int) -> None:
        with self._lock:
            verdict, cut = self._react(signal, incarnation=incarnation), self.cut
        if verdict is Verdict.DONE:
            cut()

    def _answer(self) -> ev.FreezeAnswered:
        state = self._state
        return ev.FreezeAnswered(
            worker=self.worker,
            generation=state.generation,
            commit=state.commit,
            healed=state.healed,
            prepared=state.prepared,
            missed=self.missed(),
            outvoted=state.outvoted,
        )

    def _await(self, condition: Callable[[], bool]) -> None:
        """Wait for the driver; ask where things stand when it takes long.

        The wait itself ends: a worker whose driver is silent for its orphan lease is ended by its own watchdog.
        """
        wait_s = _OVERDUE_S
        while not self._lock.wait_for(condition, wait_s):
            self.post(ev.Overdue(worker=self.worker, generation=self._state.generation))
            wait_s = min(2 * wait_s, _OVERDUE_MAX_S)

    def _has_lease(self) -> bool:
        return has_lease(self.silent_s, self._lease_s)


def _superseded(incarnation: int, newest: int) -> SupersededError:
    return SupersededError(
        f"the driver of incarnation {incarnation} is not heeded: one of incarnation {newest} has taken the run over, "
        "since fit(name=...) was called again while this one seemed dead"
    )
