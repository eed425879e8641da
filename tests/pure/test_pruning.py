"""A long run: what the controller keeps does not grow, and nothing that it needs is forgotten."""

import pickle

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.controller import step
from elastic.control.invariants import check, check_step
from elastic.control.pruning import KEPT_INCIDENTS, KEPT_SIZES, KEPT_WORKERS
from elastic.control.state import RunState
from elastic.policies import Ladder
from elastic.settings import Limits, RunSettings, Scaling
from tests.pure.bare_controller import commit, report

INCIDENT_S = 1.0
CHECKED = 100  # each so many incidents, the laws are checked
AT_MOST_BYTES = 400_000


class LongRun:
    """Two replicas; again and again one dies, its replacement joins, and a step becomes stable."""

    def __init__(self, spares: int = 0) -> None:
        limits, scaling = Limits(grow_after_s=1e-9, flap_losses=10**9), Scaling(num_dp_replicas=(1, 2), spares=spares)
        self.state = RunState(settings=RunSettings(run="r", scaling=scaling, limits=limits))
        self.policy, self.now_s, self.is_checked, self.steps = Ladder(), 0.0, True, 0
        self.given: list[cmd.Command] = []
        self.lost: list[str] = []
        self.feed(ev.RunStarted())
        self.come(*self.state.workers)
        self.form()

    def feed(self, *events: ev.Event) -> None:
        for event in events:
            decision = step(self.state, event, self.now_s, self.policy)
            if self.is_checked:
                broken = check(decision.state) + check_step(self.state, event, decision.state, decision.commands)
                assert not broken, f"{event}: {broken}"
            self.state = decision.state
            self.given += decision.commands

    def come(self, *workers: str) -> None:
        for worker in workers:
            self.feed(ev.WorkerPlaced(worker=worker, node=f"node-{worker}"), ev.HostBeat(node=f"node-{worker}"))
        for worker in workers:
            self.feed(ev.WorkerParked(worker=worker, host="h", port=1, pid=1, layout="l"))

    def form(self) -> None:
        generation = self.state.generation
        self.feed(*(ev.Formed(worker=member.worker, generation=generation) for member in self.state.view.members))

    def answer(self) -> None:
        for member in self.state.members:
            if member.standing.value == "member":
                told = ev.FreezeAnswered(
                    worker=member.name, generation=self.state.generation, commit=commit(self.steps), healed=True
                )
                self.feed(told)

    def survive_an_incident(self) -> None:
        self.now_s += INCIDENT_S
        self.given.clear()
        self.steps += 1
        lost = self.state.view.members[-1].worker
        self.lost.append(lost)
        self.feed(ev.MonitorLost(node=f"node-{lost}"), ev.WorkerDead(worker=lost, proof="gone"))
        self.answer()
        self.form()
        told = report(self.steps, self.state.generation, self.now_s)
        self.feed(ev.StepStable(worker=self.state.view.members[0].worker, report=told))
        (started,) = [command.worker for command in self.given if isinstance(command, cmd.StartWorker)]
        self.come(started)
        self.now_s += INCIDENT_S / 2
        self.feed(ev.Tick())
        self.answer()
        self.form()
        assert len(self.state.view.members) == 2 and self.state.incidents[-1].resumed_at_s is not None

    def dismiss_a_spare(self) -> str:
        """One is told to leave; returns its name."""
        spare = f"w{self.state.next_worker - 1}"
        self.come(spare)
        self.feed(ev.WorkerNotice(worker=spare, reason="preempted"))
        return spare


def play(incidents: int) -> tuple[int, int]:
    """Bytes of the state half way, and in the end."""
    run, sizes = LongRun(), []
    for number in range(incidents):
        run.is_checked = number % CHECKED == 0
        run.survive_an_incident()
        if number in (incidents // 2, incidents - 1):
            sizes.append(len(pickle.dumps(run.state)))
    state = run.state
    assert (state.failures, state.trained) == (incidents, 2 * incidents + 1)
    assert len(state.world_sizes) <= KEPT_SIZES
    horizon = (state.settings.limits.flap_window_s + state.settings.limits.flap_cooldown_s) / INCIDENT_S
    assert KEPT_INCIDENTS <= len(state.incidents) <= KEPT_INCIDENTS + horizon
    assert len(state.workers) <= 3 * KEPT_WORKERS + len(state.incidents)
    assert len(state.heard_s) <= len(state.workers) and state.monitors_lost <= state.heard_s.keys()
    assert state.care.node_incidents.keys() <= {worker.node for worker in state.workers.values()}
    assert state.care.noticed <= state.workers.keys()
    assert state.incidents[-1].number == incidents - 1
    return sizes[0], sizes[1]


@pytest.mark.slow
def test_the_state_does_not_grow_with_the_incidents_of_a_run():
    half, whole = play(2500)
    assert max(half, whole) < AT_MOST_BYTES  # it goes up and down: the oldest are forgotten some at a time


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_state_does_not_grow_with_100_000_incidents():
    half, whole = play(100_000)
    assert max(half, whole) < AT_MOST_BYTES  # it goes up and down: the oldest are forgotten some at a time


def test_the_last_incidents_are_kept_and_those_by_which_a_node_may_be_judged():
    run = LongRun()
    limits = run.state.settings.limits
    for number in range(KEPT_INCIDENTS + 1):
        run.is_checked = number % CHECKED == 0
        run.survive_an_incident()
    run.is_checked = True
    assert len(run.state.incidents) == KEPT_INCIDENTS + 1, "the first is not old enough"
    run.now_s += limits.flap_window_s + limits.flap_cooldown_s
    run.survive_an_incident()
    assert [one.number for one in run.state.incidents] == [*range(2, KEPT_INCIDENTS + 2)]


@pytest.mark.slow
def test_a_worker_that_was_forgotten_is_nobody():
    run = LongRun()
    for number in range(2 * KEPT_WORKERS + 2):
        run.is_checked = number % CHECKED == 0
        run.survive_an_incident()
    first = run.lost[0]
    assert first not in run.state.workers and run.lost[-1] in run.state.workers
    before = run.state
    run.feed(ev.WorkerDead(worker=first, proof="again"), ev.StackDumped(worker=first, stack="late"))
    assert run.state == before


def test_who_is_needed_is_not_forgotten():
    """The culprit of an incident that is kept, by whose node joiners are judged, however many spares die after it.

    And a worker that was told to leave, and has not yet.
    """
    run = LongRun(spares=1)
    culprit = run.state.view.members[-1].worker
    run.feed(ev.WorkerDead(worker=culprit, proof="gone"))
    run.answer()
    run.form()
    run.feed(ev.StepStable(worker=run.state.view.members[0].worker, report=report(1, run.state.generation)))
    dismissed = run.dismiss_a_spare()
    for number in range(2 * KEPT_WORKERS + 2):
        run.is_checked = number % CHECKED == 0
        run.now_s += 0.01
        spare = f"w{run.state.next_worker - 1}"
        run.come(spare)
        run.feed(ev.WorkerDead(worker=spare, proof="gone"))
    assert len(run.state.incidents) == 1 and len(run.state.members) == 2
    assert run.state.tally.leaving.keys() == {dismissed} <= run.state.workers.keys()
    assert culprit in run.state.workers and "w4" not in run.state.workers
