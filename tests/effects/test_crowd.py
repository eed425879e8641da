"""The benchmark of the control plane, small: the crowd trains, loses a host, and trains on without it."""

import pytest

from benchmarks.controller_rate import controller_rates
from benchmarks.crowd import Crowd, Loop, Size
from elastic.actors.supervisor import Supervisor
from elastic.control.state import Phase, RunState
from elastic.policies import Ladder


def test_a_crowd_survives_the_loss_of_hosts():
    size = Size(hosts=20, workers_per_host=2, hosts_per_relay=4)
    brain = Supervisor(RunState(settings=size.settings), Ladder())
    loop = Loop(brain, Crowd(size))
    loop.start()
    loop.run(0.5)
    calm, loop.waits_s = len(loop.waits_s), []
    loop.run(1.5, fail_after_s=0.0)
    state = brain.state()
    assert (state.phase, state.generation, state.replicas) == (Phase.RUNNING, 2, 19)
    (incident,) = state.incidents
    assert len(incident.culprits) == 2 and incident.resumed_at_s is not None
    assert calm >= 2 and len(loop.waits_s) >= 5 and len(loop.failure_waits_s) == 1
    assert list(loop.moments) == ["freeze", "form", "go"]
    assert len(state.heard_s) == 20


@pytest.mark.parametrize("seed", range(20))
def test_all_hosts_train_before_one_fails(seed):
    """The run may begin with fewer; then a host that waits at the door might fail, and nothing would follow."""
    size = Size(hosts=16, workers_per_host=2, hosts_per_relay=16)
    brain = Supervisor(RunState(settings=size.settings), Ladder())
    loop = Loop(brain, Crowd(size, seed))
    loop.start()
    assert brain.state().replicas == 16
    loop.failed_at_s = loop.clock()
    loop.observe(loop.crowd.fail())
    assert list(loop.moments) == ["freeze"]


def test_the_rate_of_the_controller_counts_every_kind_of_event():
    rates = controller_rates(workers=16, per_host=2, seconds=4)
    assert {"all", "HostBeat", "Tick", "StepStable", "WorkerLost", "WorkerDead", "FreezeAnswered", "Formed"} <= set(
        rates
    )
    assert all(rate > 0 for rate in rates.values())
