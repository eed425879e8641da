"""Effect. The link: a worker's two threads meet under one lock, and what was answered holds."""

import threading
import time
from dataclasses import replace

import pytest

from elastic.control import events as ev
from elastic.control.values import NOTHING_COMMITTED, CommitId, StepReport
from elastic.control.worker_protocol import Stage
from elastic.errors import AttemptBroken, Dismissed
from elastic.train import link as link_module
from elastic.train.link import Link
from elastic.train.mailbox import Mailbox
from tests.effects.helpers import HOST, LONG_S, MOMENT_S, Running, eventually, view_of

ADDRESS = [(HOST, 1)]


def commit(step, generation=1):
    return CommitId(incarnation=1, generation=generation, attempt=1, step=step, lineage=f"l{step}")


def parked():
    return ev.WorkerParked(worker="w0", host=HOST, port=1, pid=1, layout="same")


def view(generation, resume=NOTHING_COMMITTED, behind=()):
    return view_of(ADDRESS, generation, resume=resume, behind=behind)


def enter(link, generation, resume=NOTHING_COMMITTED):
    """Brings a worker that waits for orders into a generation, as training thread and driver."""
    assert link.form(view(generation, resume))
    forming = Running(lambda: link.formed(link.wait_for_orders(), lambda: None))
    eventually(lambda: link.state.stage is Stage.READY, "the worker has formed")
    assert link.go(generation)
    assert forming.result()


@pytest.fixture
def link():
    """In a live generation, number 1."""
    link = Link("w0", lease_s=LONG_S)
    link.arrive(parked())
    enter(link, 1)
    link.take_events(0)
    return link


class Applying:
    """A training thread inside apply, until it is let out."""

    def __init__(self, link, step=0):
        self.is_inside, self._out = threading.Event(), threading.Event()
        self._running = Running(lambda: self._apply(link, step))

    def _apply(self, link, step):
        with link.applying(commit(step)):
            self.is_inside.set()
            assert self._out.wait(LONG_S)

    def end(self):
        self._out.set()
        return self._running.error()


# --- freeze and apply ---


def test_a_freeze_waits_for_an_apply_and_answers_with_its_commit(link):
    """Nobody learns of a state that is neither the old nor the new one."""
    applying = Applying(link)
    assert applying.is_inside.wait(LONG_S)
    freeze = Running(lambda: link.freeze(1))
    threading.Event().wait(MOMENT_S)
    assert not freeze.is_over
    assert applying.end() is None
    assert freeze.result() == ev.FreezeAnswered(worker="w0", generation=1, commit=commit(0), healed=True)


def test_after_a_freeze_nothing_is_applied(link):
    """Who has answered a freeze never applies in that generation again."""
    applied = []
    assert link.freeze(1).commit == NOTHING_COMMITTED
    with pytest.raises(AttemptBroken), link.applying(commit(0)):
        applied.append(0)
    assert not applied and link.state.commit == NOTHING_COMMITTED
    with pytest.raises(AttemptBroken):
        link.check()


def test_whoever_comes_first_wins_and_the_other_learns_it(link):
    """Freeze and apply at the same time, many times: the answer always names exactly what was applied."""
    outcomes = set()
    for generation in range(1, 101):
        start, applied = threading.Barrier(2), []
        turn = commit(generation, generation)

        def apply(start=start, turn=turn, applied=applied):
            start.wait()
            with link.applying(turn):
                applied.append(turn)

        def freeze(start=start, generation=generation):
            start.wait()
            return link.freeze(generation)

        before = link.state.commit
        training, control = Running(apply), Running(freeze)
        answer, error = control.result(), training.error()
        assert (error is None) == bool(applied)
        assert answer.commit == (turn if applied else before) == link.state.commit
        outcomes.add(bool(applied))
        enter(link, generation + 1, answer.commit)
    assert outcomes


def test_an_apply_that_raised_is_never_answered_for(link):
    """A state that is half old and half new must not become anybody's."""
    with pytest.raises(ValueError, match="in the optimizer"), link.applying(commit(0)):
        raise ValueError("in the optimizer")
    assert link.freeze(1) is None
    link.leave(ev.TrainFnRaised(worker="w0", summary="", traceback=""))
    assert link.state.stage is Stage.GONE


def test_a_freeze_frees_what_waits_on_the_group(link):
    cuts = []
    link.cut = lambda: cuts.append(link.state.stage)
    link.freeze(1)
    assert cuts == [Stage.FROZEN]


def test_a_freeze_of_another_generation_is_refused_and_cuts_nothing(link):
    link.cut = lambda: pytest.fail("a stale order cut the group")
    assert link.freeze(0) is None and link.freeze(2) is None
    assert link.is_stepping()


def test_a_freeze_may_be_repeated(link):
    """The first answer may have been lost on its way."""
    assert link.freeze(1) == link.freeze(1) != None  # noqa: E711


def test_a_frozen_worker_is_not_freed_by_a_late_go(link):
    link.freeze(1)
    assert not link.go(1)
    assert not link.is_stepping()


# --- the door ---


def test_a_worker_that_stops_at_a_door_tells_by_itself(link):
    """All members agreed on it in a reduction; the later freeze of the driver finds the same answer."""
    with link.applying(commit(0)):
        pass
    link.stop_at_door()
    answer = ev.FreezeAnswered(worker="w0", generation=1, commit=commit(0), healed=True)
    assert link.take_events(0) == [answer]
    assert link.freeze(1) == answer
    assert not link.is_stepping()


def test_a_wish_to_pause_holds_for_its_generation_alone(link):
    assert not link.wants_pause()
    link.pause(1)
    assert link.wants_pause()
    enter(link, 2) if link.freeze(1) else None
    assert not link.wants_pause()
    link.pause(1)
    assert not link.wants_pause()


def test_orders_come_as_a_view_an_end_or_a_dismissal():
    """Each of them wakes a worker that waits at the door."""
    for order, expected in ((lambda x: x.form(view(1)), view(1)), (lambda x: x.dismiss(), Dismissed)):
        link = Link("w0", lease_s=LONG_S)
        link.arrive(parked())
        waiting = Running(link.wait_for_orders)
        assert not waiting.is_over
        order(link)
        if expected is Dismissed:
            assert isinstance(waiting.error(), Dismissed)
        else:
            assert waiting.result() == expected


def test_a_frozen_worker_is_told_that_the_loop_is_over(link):
    """It holds the last step already."""
    link.freeze(1)
    waiting = Running(link.wait_for_orders)
    link.finish()
    assert waiting.result() is None


@pytest.mark.parametrize("generation", [0, 1])
def test_an_order_to_form_an_old_generation_is_refused(link, generation):
    link.freeze(1)
    assert not link.form(view(generation))
    assert link.form(view(2))


def test_a_live_member_does_not_form_without_a_freeze(link):
    """Only a freeze ends a generation."""
    assert not link.form(view(2))
    assert link.is_stepping()


def test_a_worker_that_waits_long_asks_where_things_stand(monkeypatch):
    """Its freeze or its go may have been lost."""
    monkeypatch.setattr(link_module, "_OVERDUE_S", 0.02)
    link = Link("w0", lease_s=LONG_S)
    waiting = Running(link.wait_for_orders)
    assert link.take_events(LONG_S)[0] == ev.Overdue(worker="w0", generation=0)
    link.dismiss()
    assert isinstance(waiting.error(), Dismissed)


# --- forming ---


def forming_link():
    link = Link("w0", lease_s=LONG_S)
    link.arrive(parked())
    link.form(view(1, resume=commit(4), behind=(0,)))
    link.take_events(0)
    return link


def test_received_state_is_installed_before_anybody_is_told():
    link, installed = forming_link(), []

    def install():
        assert link.take_events(0) == []
        installed.append(link.state.healed)

    forming = Running(lambda: link.formed(view(1, resume=commit(4), behind=(0,)), install))
    assert link.take_events(LONG_S) == [ev.Formed(worker="w0", generation=1)]
    assert installed == [False] and link.state.healed and link.state.commit == commit(4)
    link.go(1)
    assert forming.result() is True


def test_a_freeze_sees_the_state_before_or_after_an_installation():
    """Never in the middle: it waits, as it does for an apply."""
    link, inside, out = forming_link(), threading.Event(), threading.Event()

    def install():
        inside.set()
        assert out.wait(LONG_S)

    forming = Running(lambda: link.formed(view(1, resume=commit(4), behind=(0,)), install))
    assert inside.wait(LONG_S)
    freeze = Running(lambda: link.freeze(1))
    threading.Event().wait(MOMENT_S)
    assert not freeze.is_over
    out.set()
    answer = freeze.result()
    assert (answer.commit, answer.healed) == (commit(4), True)
    assert forming.result() is False


def test_nothing_is_installed_after_a_freeze():
    """Whoever was told that this worker is not healed must be right."""
    link = forming_link()
    answer = link.freeze(1)
    assert (answer.commit, answer.healed) == (NOTHING_COMMITTED, False)
    assert not link.formed(view(1, resume=commit(4), behind=(0,)), lambda: pytest.fail("installed after a freeze"))
    assert not link.is_forming(1)


def test_what_a_joiner_holds_may_be_written_over_once():
    """Not twice: what a try that was cut has left behind could still write there."""
    link = forming_link()
    assert [link.spoil(), link.spoil()] == [True, False]


def test_what_a_survivor_holds_is_not_written_over():
    link = forming_link()
    forming = Running(lambda: link.formed(view(1, resume=commit(4), behind=(0,)), lambda: None))
    eventually(lambda: link.state.healed, "it is healed")
    link.freeze(1)
    assert forming.result() is False
    link.form(view(2, resume=commit(5), behind=(0,)))
    assert not link.spoil()


def test_what_the_run_may_begin_with_is_not_written_over():
    link = Link("w0", lease_s=LONG_S)
    link.arrive(parked())
    link.form(view(1, behind=(0,)))
    assert not link.spoil()


def test_the_run_does_not_begin_with_what_was_written_over():
    link = forming_link()
    link.spoil()
    link.freeze(1)
    link.form(view(2))
    assert link.lacks(view(2)) == "what it began with"
    assert link.is_spoilt


def test_who_is_to_receive_lacks_nothing():
    link = forming_link()
    assert link.lacks(view(1, resume=commit(4), behind=(0,))) == ""
    assert not link.is_spoilt


@pytest.mark.parametrize("is_forming", [False, True])
def test_what_was_loaded_is_installed_at_the_door_and_not_once_it_is_called_to_join_the_others(is_forming):
    link, installed = Link("w0", lease_s=LONG_S), []
    link.arrive(parked())
    link.restore(commit(3), 1)
    assert link.wait_for_orders() == commit(3)
    if is_forming:
        link.form(view(1, resume=commit(4), behind=(0,)))
    link.restored(commit(3), lambda: installed.append(3), ev.Restored(worker="w0", commit=commit(3)))
    assert installed == ([] if is_forming else [3])
    assert link.state.healed is not is_forming


def test_what_was_loaded_for_an_older_driver_is_not_installed_once_a_newer_one_was_told_what_is_held():
    link, installed = Link("w0", lease_s=LONG_S), []
    link.arrive(parked())
    link.restore(commit(3), 1)
    assert link.wait_for_orders() == commit(3)
    assert not link.adopt(2, gang=0, shard=0, pid=1).state.healed
    link.restored(commit(3), lambda: installed.append(3), ev.Restored(worker="w0", commit=commit(3)))
    assert not installed and not link.state.healed


def test_state_of_which_a_part_was_installed_is_of_no_worth():
    link = Link("w0", lease_s=LONG_S)
    link.arrive(parked())

    def install():
        raise RuntimeError("half of it is set")

    with pytest.raises(RuntimeError, match="half of it"):
        link.restored(commit(3), install, ev.Restored(worker="w0", commit=commit(3)))
    assert link.is_spoilt
    link.restored(commit(3), lambda: None, ev.Restored(worker="w0", commit=commit(3)))
    assert not link.is_spoilt


def test_a_forming_that_failed_is_told_unless_a_newer_order_came():
    link = forming_link()
    link.forming_failed(view(1), TimeoutError("w1 is missing"))
    assert link.take_events(0) == [ev.FormingFailed(worker="w0", generation=1, error="TimeoutError: w1 is missing")]
    link.freeze(1)
    link.form(view(2))
    link.forming_failed(view(1), TimeoutError("late"))
    assert link.take_events(0) == [] and link.is_forming(2)


# --- the lease ---


def test_nothing_is_applied_while_the_driver_is_silent():
    """A lone survivor's collectives always work: only the lease keeps it from going on as if it were the run."""
    link = Link("w0", lease_s=MOMENT_S)
    link.arrive(parked())
    enter(link, 1)
    eventually(lambda: link.silent_s > MOMENT_S, "the lease is over")
    applying = Applying(link)
    threading.Event().wait(MOMENT_S)
    assert not applying.is_inside.is_set()
    link.touch()
    assert applying.is_inside.wait(LONG_S)
    assert applying.end() is None


def test_a_freeze_ends_the_wait_for_the_lease():
    link = Link("w0", lease_s=MOMENT_S)
    link.arrive(parked())
    enter(link, 1)
    eventually(lambda: link.silent_s > MOMENT_S, "the lease is over")
    applying = Applying(link)
    assert link.freeze(1).commit == NOTHING_COMMITTED
    assert isinstance(applying.end(), AttemptBroken)
    assert not applying.is_inside.is_set()


def test_contact_counts_from_the_last_touch(link):
    eventually(lambda: link.silent_s > 0.02, "some time passes")
    before_s = link.silent_s
    link.touch()
    assert link.silent_s < before_s


# --- events ---


def stable(step, generation=1):
    commit_of = commit(step, generation)
    report = StepReport(commit=commit_of, metrics={}, replicas=1, samples=1, started_at_s=0.0, committed_at_s=0.0)
    return ev.StepStable(worker="w0", report=report)


def test_events_are_waited_for_and_wake_the_waiting(link):
    waiting = Running(lambda: link.take_events(LONG_S))
    threading.Event().wait(0.05)
    assert not waiting.is_over
    event = ev.Overdue(worker="w0", generation=1)
    link.post(event)
    assert waiting.result() == [event]


def test_no_events_come_back_at_the_timeout(link):
    assert link.take_events(0.01) == []


def test_events_are_handed_over_once_and_in_order(link):
    posted = [stable(0), stable(1), ev.Overdue(worker="w0", generation=1), stable(2)]
    for event in posted:
        link.post(event)
    assert link.take_events(LONG_S) == posted
    assert link.take_events(0) == []


def test_the_first_report_of_a_generation_comes_at_once():
    """Those who are to replace the lost are started once it is there."""
    mail = Mailbox()
    told = []
    for report in (stable(0), stable(1), stable(2, generation=2), stable(3, generation=2)):
        mail.put(report)
        told.append(mail.is_urgent)
        mail.take()
    assert told == [True, False, True, False]


def test_reports_of_steps_are_not_kept_for_long(link):
    """They wait for each other a moment, and for nothing else."""
    link.post(stable(0))
    assert link.take_events(LONG_S) == [stable(0)]


# --- breaking ---


def test_who_reads_the_mail_sleeps_through_the_steps(link):
    class Looked(Mailbox):
        """Counts how often somebody looked whether there is any."""

        looks = 0

        def __bool__(self):
            self.looks += 1
            return super().__bool__()

    mail = link._mail = Looked()
    reading = Running(lambda: link.take_events(LONG_S))
    eventually(lambda: mail.looks, "the mail is waited for")
    before = mail.looks
    for step in range(20):
        link.touch()
        with link.applying(commit(step)):
            pass
    time.sleep(MOMENT_S)
    assert mail.looks == before and not reading.is_over
    link.post(stable(0))
    assert reading.result() == [stable(0)]


def test_a_broken_collective_is_told_once_and_only_in_a_live_generation(link):
    link.broke("connection reset")
    link.broke("connection reset again")
    assert link.take_events(0) == [ev.CollectiveBroken(worker="w0", generation=1, error="connection reset")]
    link.freeze(1)
    link.broke("late")
    assert link.take_events(0) == []


def test_a_broken_worker_does_not_apply(link):
    link.broke("connection reset")
    with pytest.raises(AttemptBroken), link.applying(commit(0)):
        pytest.fail("applied")


def test_news_of_a_break_end_the_wait_for_them(link):
    waiting = Running(lambda: link.is_broken_within(LONG_S))
    assert not waiting.is_over
    link.freeze(1)
    assert waiting.result() is True


def test_a_live_generation_is_not_broken(link):
    assert link.is_broken_within(0) is False
    assert link.is_broken_within(0.01) is False


def test_the_end_of_the_loop_is_told_with_the_last_commit(link):
    with link.applying(commit(7)):
        pass
    link.end_loop()
    assert link.take_events(0) == [ev.LoopEnded(worker="w0", generation=1, commit=commit(7))]
    assert link.freeze(1) is None


def test_a_worker_that_left_answers_no_freeze(link):
    """It is told apart from one that stopped: nobody is there to form with."""
    link.leave(ev.WorkerDeparted(worker="w0", reason="SystemExit"))
    assert link.take_events(0) == [ev.WorkerDeparted(worker="w0", reason="SystemExit")]
    assert link.freeze(1) is None and not link.form(view(2))


def test_a_restore_that_comes_after_its_worker_has_formed_is_not_obeyed(link):
    """It would take a member that has trained since back to the checkpoint, and nobody would know."""
    link.freeze(1)
    assert link.form(replace(view(2), restores=3))
    link.freeze(2)
    waiting = Running(link.wait_for_orders)
    link.restore(commit(0), 3)
    time.sleep(MOMENT_S)
    link.restore(commit(5), 4)
    assert waiting.result() == commit(5)
