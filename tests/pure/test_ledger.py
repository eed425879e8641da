"""The ledger on journals written by hand: what each second is called, and whose it is."""

from typing import Any

import pytest

from elastic.control import events as ev
from elastic.ledger.ledger import Ledger, ledger_of
from elastic.ledger.lines import happened
from elastic.ledger.model import Account, Category, Incident
from tests.pure.bare_controller import BareController

C = Category
STEP_S = 0.5


class Journal:
    """Lines of a run with two replicas, as its driver would write them; its clock goes on with `sleep`."""

    def __init__(self, replicas: int = 2) -> None:
        self.ledger, self.at_s = Ledger(), 100.0
        self.replicas, self.generation, self.incarnation = replicas, 0, 0
        self.step, self.since_s, self.opened = -1, 0.0, 0
        self.forks: list[dict[str, int]] = []

    def write(self, **line: Any) -> None:
        assert self.ledger.feed({"t": self.at_s, **line})

    def sleep(self, seconds: float) -> "Journal":
        self.at_s += seconds
        return self

    def begin(self, opening: str = "RunStarted") -> "Journal":
        self.incarnation += 1
        scaling = {"num_dp_replicas": [1, self.replicas], "workers_per_replica": 1}
        self.write(life="Begun", settings={"run": "r", "incarnation": self.incarnation, "scaling": scaling})
        self.write(event=opening)
        self.phase("starting" if opening == "RunStarted" else "freezing")
        return self

    def phase(self, phase: str, **more: Any) -> "Journal":
        self.write(phase=phase, **more)
        return self

    def park(self, worker: str, entered_after_s: float, parked_after_s: float) -> "Journal":
        begun_s = self.at_s
        self.sleep(parked_after_s)
        self.write(event="WorkerParked", worker=worker, entered_s=begun_s + entered_after_s)
        return self

    def form(self, members: int, *, took_s: float, healing_s: float = 0.0, back_to: int | None = None) -> "Journal":
        """A generation of so many is formed, and goes."""
        self.generation += 1
        names = [{"worker": f"w{number}"} for number in range(members)]
        resume = {"step": self.step if back_to is None else back_to}
        if back_to is not None:
            self.forks.append({"incarnation": self.incarnation, "generation": self.generation, "step": back_to})
            self.step = back_to
        is_new = self.generation == 1
        about = {"bootstrap": is_new, "restored": back_to is not None, "forks": list(self.forks), "width": 1}
        view = {"incarnation": self.incarnation, "generation": self.generation, "members": names, "resume": resume}
        self.phase("forming")
        self.write(command="Form", reason="because", view={**view, **about})
        self.sleep(took_s)
        for name in names:
            self.write(event="Formed", worker=name["worker"], generation=self.generation, healing_s=healing_s)
        self.phase("running")
        self.since_s = self.at_s
        return self

    def steps(
        self,
        count: int,
        seconds: float = STEP_S,
        replicas: int | None = None,
        costs: dict[str, float] | None = None,
        samples: int = 8,
        **times: float,
    ) -> "Journal":
        for _ in range(count):
            self.sleep(seconds + sum(times.values()))
            self.step += 1
            self.told(self.step, self.since_s, self.at_s, replicas, costs=costs, samples=samples, **times)
            self.since_s = self.at_s
        return self

    def told(
        self,
        step: int,
        since_s: float,
        until_s: float,
        replicas: int | None,
        attempt: int = 1,
        costs: dict[str, float] | None = None,
        samples: int = 8,
        **times: float,
    ) -> None:
        place = {"incarnation": self.incarnation, "generation": self.generation, "attempt": attempt}
        size = {"replicas": replicas or self.replicas, "samples": samples}
        began_s = times.pop("started_at_s", since_s)
        spent = {"times": {"since_s": since_s, **times}, "started_at_s": began_s, "committed_at_s": until_s}
        spent["costs"] = costs or {}
        self.write(event="StepStable", worker="w0", report={"commit": {"step": step, **place}, **size, **spent})

    def incident(self, kind: str, moment: str = "IncidentOpened", resumed_s: float | None = None, **more: Any) -> None:
        told = {"number": self.opened, "kind": kind, "opened_at_s": self.at_s, "culprits": ["w1"], "decision": "swap"}
        told |= {"evidence": ["gone"], "replicas_before": self.replicas, "replicas_after": self.replicas}
        self.write(moment=moment, incident={**told, "resumed_at_s": resumed_s, "step": None, **more})

    def account(self) -> Account:
        account = self.ledger.account()
        assert sum(account.wall_seconds.values()) == pytest.approx(account.wall_s)
        assert sum(account.worker_seconds.values()) == pytest.approx(account.workers_s)
        assert C.UNKNOWN not in account.wall_seconds
        assert all(one.evidence and one.decision for one in account.incidents)
        return account


def formed(replicas: int = 2) -> Journal:
    """A run after 10 s of start."""
    journal = Journal(replicas).begin().park("w0", 3.0, 5.0).park("w1", 1.0, 4.0).sleep(0.5)
    return journal.form(replicas, took_s=0.5, healing_s=0.2)


def started(replicas: int = 2) -> Journal:
    """The same, 20 steps in."""
    return formed(replicas).steps(20)


def only(account: Account, kind: str) -> Incident:
    (found,) = [one for one in account.incidents if one.kind == kind]
    return found


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-6)


def test_the_start_is_told_by_the_worker_that_came_last():
    account = started().account()
    assert only(account, "run start").wall_seconds == {
        C.WORKER_START: near(6.0),
        C.INITIALIZATION: near(3.0),
        C.DECIDING: near(0.5),
        C.FORMING: near(0.3),
        C.HEALING: near(0.2),
    }
    assert account.wall_seconds[C.PRODUCTIVE] == near(10.0)


def test_a_life_begins_when_its_driver_opens_the_journal():
    """Its supervisor starts before it hears of anything; the life before it has ended with its own last line."""
    journal = started()
    journal.sleep(4.0).write(life="Settings", run="r", knobs={})
    journal.sleep(0.5).begin().sleep(2.0).form(2, took_s=0.5).steps(2)
    lost = only(journal.account(), "driver lost").wall_seconds
    assert (lost[C.BETWEEN_INCARNATIONS], lost[C.WORKER_START]) == (near(4.0), near(2.5))


def test_a_failure_is_redone_detected_decided_formed_and_healed():
    """It comes 0.2 s into a step that would take 0.5 s, and is noticed 2 s later."""
    journal = started().sleep(2.2)
    journal.incident("worker_lost")
    journal.phase("freezing").sleep(0.1).form(2, took_s=0.6, healing_s=0.4)
    journal.steps(1)
    journal.incident("worker_lost", "IncidentResolved", resumed_s=journal.at_s)
    incident = only(journal.steps(10).account(), "worker lost")
    assert incident.wall_seconds == {
        C.REDONE: near(0.5),
        C.DETECTING: near(1.7),
        C.DECIDING: near(0.1),
        C.FORMING: near(0.2),
        C.HEALING: near(0.4),
    }
    assert incident.cost_s == near(2.9) and incident.opened_s - incident.began_s == near(1.7)
    assert (incident.culprits, incident.evidence, incident.decision) == (("w1",), ("gone",), "swap")


def test_steps_that_are_told_late_are_not_taken_for_lost():
    """Two steps were committed before the failure, and are told after it."""
    journal = started()
    begun_s, generation = journal.at_s, journal.generation
    journal.sleep(1.2)
    journal.incident("worker_lost")
    journal.phase("freezing").form(2, took_s=0.3)
    forming_s, journal.generation = journal.generation, generation
    for number in range(2):
        journal.step += 1
        journal.told(journal.step, begun_s + number * STEP_S, begun_s + (number + 1) * STEP_S, None)
    journal.generation = forming_s
    account = journal.steps(5).account()
    assert account.wall_seconds[C.PRODUCTIVE] == near(10.0 + 1.0 + 2.5)
    assert only(account, "worker lost").wall_seconds == {C.REDONE: near(0.2), C.FORMING: near(0.3)}


def test_steps_that_nobody_could_tell_of_any_more_are_productive():
    """The leader died with its reports; the run goes on behind them, so they were committed."""
    journal = started().sleep(1.2)
    journal.incident("worker_lost")
    journal.phase("freezing").form(2, took_s=0.3)
    journal.step += 2
    account = journal.steps(5).account()
    assert account.wall_seconds[C.PRODUCTIVE] == near(10.0 + 1.0 + 2.5)
    assert only(account, "worker lost").wall_seconds == {C.REDONE: near(0.2), C.FORMING: near(0.3)}


def test_a_smaller_group_is_charged_to_whoever_made_it_small_until_it_is_back():
    journal = started()
    journal.incident("worker_lost", replicas_after=1)
    journal.phase("freezing").form(1, took_s=0.1).steps(8, replicas=1)
    journal.incident("worker_lost", "IncidentResolved", resumed_s=journal.at_s)
    journal.phase("freezing", planned=True).form(2, took_s=0.1).steps(8)
    account = journal.account()
    lost = only(account, "worker lost")
    assert lost.wall_seconds[C.REDUCED_CAPACITY] == near(2.0)
    assert lost.worker_seconds[C.REDUCED_CAPACITY] == near(4.0)
    assert lost.cost_s == near(0.1), "what it cost to break off and go on; the size is told apart"
    assert only(account, "planned stop").cost_s == near(0.1)
    assert account.worker_seconds[C.PRODUCTIVE] == near(20.0 + 4.0 + 8.0)


def test_who_asks_where_things_stand_is_in_the_journal_and_costs_nothing():
    """A spare asks for as long as it is parked, a member only if an order was lost."""
    ws = BareController(2).run()
    asks = ev.Overdue(worker="w1", generation=1)
    (line,) = happened(ws.state, ws.state, [(7.0, asks)])
    assert line == {"t": 7.0, "event": "Overdue", "worker": "w1", "generation": 1}

    def story(asking: bool) -> Account:
        journal = started()
        for _ in range(3):
            journal.steps(2).phase("freezing").sleep(3.0)
            if asking:
                journal.write(**{**line, "t": journal.at_s})
            journal.sleep(1.0).form(2, took_s=0.5)
        return journal.steps(2).account()

    with_it, without = story(True), story(False)
    assert with_it.wall_seconds == without.wall_seconds and with_it.worker_seconds == without.worker_seconds
    assert [one.wall_seconds for one in with_it.incidents] == [one.wall_seconds for one in without.incidents]


def test_a_run_that_goes_back_has_done_those_steps_for_nothing():
    journal = started().steps(5, data_s=0.1).steps(5, data_s=0.3)
    journal.incident("silent_corruption")
    journal.phase("waiting", waits_for="restore").sleep(1.0).form(2, took_s=0.0, back_to=24).steps(5)
    account = journal.account()
    assert only(account, "silent corruption").wall_seconds == {C.REDONE: near(5 * 0.8), C.RESTORE: near(1.0)}
    assert account.wall_seconds[C.PRODUCTIVE] == near(10.0 + 2.5 + 2.5)
    assert account.wall_seconds[C.DATA_WAIT] == near(0.5)
    assert (account.steps.kept, account.steps.redone, account.steps.last) == (30, 5, 29)


def test_a_step_that_several_tell_of_counts_once():
    journal = started()
    for step in (18, 19, 5):
        journal.told(step, journal.since_s - STEP_S, journal.since_s, None)
    account = journal.steps(3).account()
    assert account.steps.kept == 23 and account.wall_seconds[C.PRODUCTIVE] == near(11.5)


def test_waiting_below_the_minimum_is_paused():
    journal = started()
    journal.incident("node_lost")
    journal.phase("freezing").phase("waiting", waits_for="workers").sleep(7.0).form(2, took_s=0.0).steps(3)
    assert only(journal.account(), "node lost").wall_seconds == {C.PAUSED: near(7.0)}


def test_a_driver_that_dies_leaves_a_gap_but_for_what_its_workers_did():
    journal = started()
    died_s = journal.at_s
    journal.sleep(4.0).begin("RunTakenOver").sleep(0.5)
    journal.form(2, took_s=0.5)
    generation, journal.generation, journal.incarnation = journal.generation, 1, 1
    for number in range(4):  # trained while nobody listened
        journal.step += 1
        journal.told(journal.step, died_s + number * STEP_S, died_s + (number + 1) * STEP_S, None)
    journal.generation, journal.incarnation = generation, 2
    account = journal.steps(2).account()
    assert account.incarnations == 2
    assert only(account, "driver lost").wall_seconds == {
        C.BETWEEN_INCARNATIONS: near(2.0),
        C.DECIDING: near(0.5),
        C.FORMING: near(0.5),
    }
    assert account.wall_seconds[C.PRODUCTIVE] == near(10.0 + 2.0 + 1.0)


def test_what_steps_waited_for_and_what_came_after_the_last_one():
    journal = started().steps(4, data_s=0.1, stall_s=0.2, evaluation_s=0.3)
    times = {"since_s": journal.at_s, "evaluation_s": 1.0, "stall_s": 0.5, "callback_s": 0.25}
    journal.sleep(2.0).write(event="LoopEnded", worker="w0", generation=journal.generation, times=times)
    journal.phase("finishing").sleep(1.0).phase("ended").write(command="EndRun", reason="done")
    journal.sleep(3.0).write(checkpoint="CheckpointRung", commit={"step": journal.step}, rung="durable")
    account = journal.account()
    assert account.wall_seconds[C.DATA_WAIT] == near(0.4)
    assert account.wall_seconds[C.EVALUATION] == near(1.2 + 1.0)
    assert account.wall_seconds[C.CHECKPOINT_STALL] == near(0.8 + 0.5 + 3.0)
    assert account.stall_seconds == {"staged": near(0.8), "local": near(0.5), "durable": near(3.0)}
    assert account.wall_seconds[C.CALLBACKS] == near(0.25)
    assert account.wall_seconds[C.FINISHING] == near(0.25 + 1.0)
    assert account.steps.saved == journal.step and not account.is_live


def test_a_first_step_beyond_the_usual_is_compilation():
    journal = Journal().begin().sleep(1.0).form(2, took_s=0.0).steps(1, 4.0).steps(20)
    account = journal.account()
    assert account.wall_seconds[C.COMPILATION] == near(3.5)
    assert only(account, "run start").wall_seconds[C.COMPILATION] == near(3.5)


def test_an_attempt_that_was_made_again_is_redone():
    journal = started()
    journal.sleep(1.2)
    journal.step += 1
    journal.told(journal.step, journal.since_s, journal.at_s, None, attempt=2, started_at_s=journal.at_s - 0.5)
    account = journal.account()
    assert only(account, "repeated steps").wall_seconds == {C.REDONE: near(0.7)}
    assert account.wall_seconds[C.PRODUCTIVE] == near(10.5)


def test_a_live_run_is_believed_for_a_moment():
    journal = started()
    soon, late = journal.ledger.account(journal.at_s + 1.0), journal.ledger.account(journal.at_s + 60.0)
    assert C.DETECTING not in soon.wall_seconds and soon.is_live
    assert late.wall_seconds[C.DETECTING] == near(60.0 - 2 * STEP_S - 1.0)


def test_goodput_of_the_progress_line_is_that_of_the_account():
    journal = started()
    assert journal.ledger.goodput == pytest.approx(journal.account().goodput)
    journal.steps(1)
    assert journal.ledger.goodput <= journal.account().goodput, "up to a second old"


def test_a_journal_that_was_cut_in_the_middle_of_a_line():
    texts = ['{"t": 1.0, "event": "RunStarted"}\n', '{"t": 2.0, "phase": "star\n', "\n"]
    ledger, passed_over = ledger_of([*texts, "notes\n", '{"t": 3.0, "ev'])
    assert ledger.account().wall_s == 0.0
    assert passed_over == (2, 4), "one is empty, and one is being written"


def test_a_line_of_another_version_is_passed_over():
    ledger = Ledger()
    assert not ledger.feed({"t": 1.0, "event": "StepStable", "report": {"step": 3}})
    assert not ledger.feed({"t": 1.0, "moment": "IncidentOpened", "incident": {"number": 0, "kind": "unheard_of"}})
    assert ledger.feed({"t": 1.0, "event": "SomethingNew"})


def test_what_begins_a_life_says_what_was_seen_and_how_it_went_on():
    journal = started()
    begun = only(journal.account(), "run start")
    assert (begun.evidence, begun.decision) == (("no earlier life of the driver is told of",), "start workers: because")
    journal.sleep(7.0).begin("RunTakenOver")
    lost = only(journal.account(), "driver lost")
    assert lost.evidence == ("life 1 fell silent before the run had ended; for 7.0 s there was no driver",)
    assert lost.decision == "take over 0 live workers"
    journal.form(2, took_s=0.5).steps(2).write(command="EndRun")
    assert only(journal.account(), "driver lost").decision == "take over 0 live workers: because"
    journal.sleep(3.0).begin()
    again = only(journal.account(), "resubmitted")
    assert again.evidence == ("life 2 had ended; for 3.0 s there was no driver",)
    assert again.decision == "start workers"
    journal.sleep(-5.0).begin()  # on a machine whose clock is behind
    (_, behind) = [one for one in journal.account().incidents if one.kind == "driver lost"]
    assert behind.evidence == ("life 3 fell silent before the run had ended; for 0.0 s there was no driver",)


def test_the_first_step_after_a_beginning_or_a_planned_stop_ends_it():
    journal = started()
    journal.write(command="Pause", worker="w0", generation=1, reason="w5 can join")
    journal.phase("freezing", planned=True).sleep(0.1).told(20, journal.since_s, journal.at_s, None)  # was in flight
    journal.step = 20
    journal.sleep(0.2).phase("forming")
    opened = only(journal.account(), "planned stop")
    assert opened.resumed_s is None and opened.step is None
    account = journal.form(2, took_s=0.1).steps(2).account()
    begun, stop = only(account, "run start"), only(account, "planned stop")
    assert (begun.resumed_s, begun.step) == (near(110.0 + STEP_S), 0)
    assert (stop.resumed_s, stop.step) == (near(journal.at_s - STEP_S), 21)


@pytest.mark.parametrize("lives_without_a_step", [0, 1])
def test_what_was_open_when_a_driver_was_lost_ends_with_the_first_step_of_the_next_life(lives_without_a_step):
    journal = started()
    journal.incident("worker_lost")
    journal.phase("freezing").sleep(0.5)
    for _ in range(lives_without_a_step):
        journal.begin().sleep(1.0)
    journal.sleep(4.0).begin("RunTakenOver")
    died_s, journal.generation, journal.incarnation = journal.at_s - 1.0, 1, 1
    journal.told(20, died_s - STEP_S, died_s, None)  # by a worker, while nobody listened
    journal.step, journal.generation, journal.incarnation = 20, 1, 2 + lives_without_a_step
    account = journal.form(2, took_s=0.5).steps(2).account()
    resumed_s = journal.at_s - STEP_S
    ended = {one.kind: (one.resumed_s, one.step) for one in account.incidents}
    assert ended.pop("run start") == (near(110.0 + STEP_S), 0)
    assert ended == {"worker lost": (near(resumed_s), 21), "driver lost": (near(resumed_s), 21)}


def in_phases(journal: Journal, steps: int, seconds: tuple[float, ...] = (0.02, 1.5, 0.4)) -> Journal:
    """Each step in several updates, as of several optimizers: samples are told with the last one."""
    for _ in range(steps):
        for place, took_s in enumerate(seconds):
            journal.steps(1, seconds=took_s, samples=8 if place == len(seconds) - 1 else 0)
    return journal


def test_updates_of_a_step_are_compared_with_their_own_kind_and_kept_together():
    journal = in_phases(formed(), 30)
    account = journal.account()
    assert [one.kind for one in account.incidents] == ["run start"]
    assert account.wall_seconds[C.PRODUCTIVE] == near(30 * 1.92)
    assert len(journal.ledger._book.stretches) < 12, "each update has a stretch of its own"
    assert account.steps.usual_s == near(1.92 / 3)
    slow = in_phases(journal, 1, (0.02, 3.5, 0.4)).account()
    assert only(slow, "slow steps").wall_seconds == {C.STRAGGLER_DRAG: near(2.0)}


def test_each_update_of_a_first_step_may_compile():
    account = in_phases(in_phases(formed(), 1, (0.5, 20.0)), 30, (0.2, 0.4)).account()
    assert [one.kind for one in account.incidents] == ["run start"]
    assert account.wall_seconds[C.COMPILATION] == near(20.5 - 0.6)


def test_an_update_of_which_it_is_not_known_which_it_is_is_compared_with_none():
    journal = in_phases(formed(), 30)
    journal.sleep(0.02)
    journal.step += 1  # nobody told of it
    account = journal.steps(1, seconds=1.5, samples=0).steps(1, seconds=0.4).account()
    assert [one.kind for one in account.incidents] == ["run start"]
    assert in_phases(journal, 20).account().incidents == account.incidents


def test_of_a_size_that_is_new_each_update_is_compared_with_those_of_its_kind():
    journal = in_phases(formed(), 30, (0.4, 0.02, 1.5))
    journal.phase("freezing", planned=True).sleep(0.1).phase("forming")
    account = in_phases(journal.form(1, took_s=0.1), 1, (0.4, 0.02, 1.5)).account()
    assert "stalled step" not in {one.kind for one in account.incidents}


# --- callbacks --------------------------------------------------------------------------------------------------------


def test_callbacks_have_a_category_and_each_of_them_its_share():
    """A callback behind a commit is told with that step, and takes its time from the next: shares are in proportion."""
    account = started().steps(4, callback_s=0.2, costs={"Profile": 0.3, "CollectGarbage": 0.1}).account()
    assert account.wall_seconds[C.CALLBACKS] == near(0.8) and account.wall_seconds[C.PRODUCTIVE] == near(12.0)
    assert account.callback_seconds == {"Profile": near(0.6), "CollectGarbage": near(0.2)}
    assert not any(C.CALLBACKS in one.wall_seconds for one in account.incidents)
    (custom,) = [one.parts["CUSTOM_BADPUT_EVENTS"] for one in account.definitions if one.parts]
    assert custom == near(0.8)


@pytest.mark.parametrize(("worker", "noted_s", "drag_s"), [("w1", 0.8, 0.0), ("w1", 0.5, 0.5), ("w0", 0.8, 1.0)])
def test_what_another_worker_noted_is_taken_from_steps_that_were_slow(worker, noted_s, drag_s):
    """What the worker that tells of the steps did itself is in its times already."""
    journal = started()
    journal.write(event="Noted", worker=worker, what="profile", step=journal.step, seconds=noted_s, detail="")
    account = journal.steps(1, seconds=STEP_S + 1.0).steps(3).account()
    assert account.wall_seconds.get(C.CALLBACKS, 0.0) == near(noted_s if worker == "w1" else 0.0)
    assert account.wall_seconds.get(C.STRAGGLER_DRAG, 0.0) == near(drag_s)
    assert account.callback_seconds == ({"profile": near(noted_s)} if worker == "w1" else {})


def test_what_was_noted_is_booked_once_and_only_where_steps_were_slow():
    journal = started()
    journal.write(event="Noted", worker="w1", what="profile", step=journal.step + 1, seconds=0.8, detail="")
    account = journal.steps(2, seconds=STEP_S + 1.0).steps(3).account()
    assert account.wall_seconds[C.CALLBACKS] == near(0.8) and account.wall_seconds[C.STRAGGLER_DRAG] == near(1.0)
    journal.write(event="Noted", worker="w1", what="profile", step=journal.step, seconds=1.5, detail="")
    assert journal.steps(3).account().wall_seconds[C.CALLBACKS] == near(0.8)


def test_callbacks_of_steps_that_were_lost_again_are_redone():
    journal = started().steps(5, callback_s=0.2, costs={"Profile": 0.2})
    journal.incident("silent_corruption")
    journal.phase("waiting", waits_for="restore").sleep(1.0).form(2, took_s=0.0, back_to=22).steps(5)
    account = journal.account()
    assert account.wall_seconds[C.CALLBACKS] == near(0.6)
    assert account.callback_seconds == {"Profile": near(0.6)}


# --- what ends a run, and what is told twice --------------------------------------------------------------------------


def test_an_error_of_the_users_costs_the_attempt_in_flight_and_what_follows_is_finishing():
    journal = started().sleep(0.3)
    journal.write(event="TrainFnRaised", worker="w1", summary="ValueError: no", traceback="")
    journal.phase("ended").write(command="EndRun", reason="train_fn raised")
    journal.sleep(1.0).write(event="WorkerLost", worker="w0", evidence="its pipe closed")
    account = journal.account()
    raised = only(account, "train_fn raised")
    assert raised.wall_seconds == {C.REDONE: near(0.3)} and account.wall_seconds[C.FINISHING] == near(1.0)
    assert (raised.culprits, raised.evidence) == (("w1",), ("ValueError: no",))


def strike(journal: Journal, kind: str, name: str, target: str = "w1") -> None:
    fault = {"kind": kind, "target": "rank:1", "at_s": 1.0, "duration_s": 0.0, "argument": "", "draw": 0, "name": name}
    journal.write(event="FaultInjected", fault=fault, target=target, at_s=journal.at_s, proof="seen")


def test_an_injected_error_is_that_incident_and_no_other():
    journal = started().sleep(0.2)
    strike(journal, "raise", "one")
    journal.sleep(0.1).write(event="TrainFnRaised", worker="w1", summary="InjectedError", traceback="")
    account = journal.phase("ended").account()
    assert only(account, "train_fn raised").injected
    assert [one.kind for one in account.incidents] == ["run start", "train_fn raised"]


def test_a_fault_that_is_told_twice_has_struck_once():
    """A monitor that was out of reach is back, and what it tells was told of it meanwhile."""
    journal = started()
    strike(journal, "kill_monitor", "one")
    strike(journal.sleep(3.0), "kill_monitor", "one")
    strike(journal, "kill_monitor", "two")
    assert [one.kind for one in journal.steps(3).account().incidents].count("injected fault") == 2


def causes(incident: Incident) -> list[tuple[str, str]]:
    return [(one.kind, one.target) for one in incident.injected]


def test_two_faults_of_one_incident_are_both_told_as_its_causes_and_booked_once():
    """A second member dies while the incident of the first one is open."""
    journal = started(replicas=3)
    journal.sleep(0.2)
    begun_s = journal.at_s
    strike(journal, "kill", "one")
    journal.sleep(0.1).incident("worker_lost")
    opened_s = journal.at_s
    journal.phase("freezing").sleep(1.0)
    strike(journal, "kill", "two", "w2")
    journal.sleep(0.1).incident("worker_lost", "IncidentDecided", opened_at_s=opened_s, culprits=["w1", "w2"])
    journal.form(3, took_s=0.5).steps(1)
    resolved = {"opened_at_s": opened_s, "resumed_s": journal.at_s, "culprits": ["w1", "w2"]}
    journal.incident("worker_lost", "IncidentResolved", **resolved)
    account = journal.steps(5).account()
    assert [one.kind for one in account.incidents] == ["run start", "worker lost"]
    lost = only(account, "worker lost")
    assert causes(lost) == [("kill", "w1"), ("kill", "w2")]
    assert [one.at_s - begun_s for one in lost.injected] == [near(0.0), near(1.1)]
    assert lost.cost_s == near(0.3 + 1.1 + 0.5)


def test_a_fault_that_finishes_off_who_was_hit_before_belongs_to_the_same_incident():
    journal = started()
    strike(journal, "stop", "one")
    journal.sleep(2.0).incident("worker_hung")
    opened_s = journal.at_s
    journal.phase("freezing").sleep(1.0)
    strike(journal, "kill", "two")
    journal.form(2, took_s=0.5).steps(1)
    journal.incident("worker_hung", "IncidentResolved", opened_at_s=opened_s, resumed_s=journal.at_s)
    account = journal.account()
    assert [one.kind for one in account.incidents] == ["run start", "worker hung"]
    assert causes(only(account, "worker hung")) == [("stop", "w1"), ("kill", "w1")]


def test_a_fault_that_becomes_an_incident_of_its_own_is_no_cause_of_the_one_before():
    journal = started(replicas=3)
    journal.write(event="WorkerPlaced", worker="w1", node="n")
    journal.write(event="WorkerPlaced", worker="w2", node="n")
    strike(journal, "kill", "one")
    journal.incident("worker_lost")
    journal.form(3, took_s=0.5)
    strike(journal, "partition", "two", "n")
    journal.sleep(0.1).incident("worker_lost", number=1, culprits=["w2"])
    journal.form(3, took_s=0.5).steps(2)
    first, second = [one for one in journal.account().incidents if one.kind == "worker lost"]
    assert (causes(first), causes(second)) == ([("kill", "w1")], [("partition", "n")])


def test_a_fault_that_came_to_nothing_is_no_cause_of_what_another_did_later():
    journal = started()
    journal.write(event="WorkerPlaced", worker="w1", node="n")
    strike(journal, "partition", "one", "n")
    journal.steps(20)
    strike(journal, "kill", "two")
    journal.incident("worker_lost")
    account = journal.form(2, took_s=0.5).steps(2).account()
    assert causes(only(account, "worker lost")) == [("kill", "w1")]
    assert causes(only(account, "injected fault")) == [("partition", "n")]


def test_a_line_that_makes_no_sense_leaves_the_ledger_as_it_was():
    journal = Journal().begin().form(2, took_s=1.0).steps(3).sleep(60.0)
    before = journal.ledger.account(journal.at_s)
    commit = {"step": 3, "incarnation": 1, "generation": 1, "attempt": 1}
    took = {"started_at_s": journal.at_s - STEP_S, "committed_at_s": journal.at_s, "times": {"stall_s": None}}
    report = {"commit": commit, "replicas": 2, "samples": 8, **took}
    assert not journal.ledger.feed({"t": journal.at_s, "event": "StepStable", "worker": "w0", "report": report})
    after = journal.ledger.account(journal.at_s)
    assert (after.steps, after.wall_seconds) == (before.steps, before.wall_seconds)
    journal.since_s = journal.at_s
    assert journal.steps(2).ledger.account().steps.kept == 5
