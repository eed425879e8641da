"""Effect. Faults of processes: each strikes a real one, with proof, and is undone when its time is over."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from elastic.actors.monitor import HostMonitor
from elastic.chaos import processes
from elastic.chaos.aftermath import Aftermath, CannotStrikeError
from elastic.chaos.striking import Scene
from elastic.control import events as ev
from elastic.control.faults import Fault, InjectedError, kind_of
from elastic.errors import AttemptBroken
from elastic.train.flight import FlightPage
from elastic.train.link import Link
from tests.effects.helpers import LONG_S, MOMENT_S, child, eventually, hear, process_state
from tests.effects.idiom import once, raised, trained
from tests.effects.test_link import enter, parked

pytestmark = pytest.mark.host

SCENE = Scene(run="strikes")


def spin(pipe, path):
    """A worker's process that never rests, and says when it is told of its end."""
    FlightPage(path)
    signal.signal(signal.SIGTERM, lambda number, frame: pipe.send("told"))
    pipe.send("up")
    while True:
        pass


def cpu_s(pid: int) -> float:
    """What a process has had of processors so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def worker(tmp_path):
    with child(spin, tmp_path / "page") as (process, pipe):
        assert hear(pipe) == "up"
        process.pipe = pipe
        yield process


@pytest.fixture
def monitor(worker, tmp_path):
    monitor = HostMonitor("node-a")
    assert monitor.watch("w0", worker.pid, tmp_path / "page")
    yield monitor
    monitor.forget("w0")
    monitor.close()


def inject(monitor: HostMonitor, kind: str, worker: str = "w0", **how) -> Fault:
    fault = Fault(kind=kind_of(kind), name="0", **how)
    monitor.inject(fault, worker, "node-a", SCENE)
    return fault


def told(monitor: HostMonitor, kind: type[ev.Event]) -> ev.Event:
    """The first news of this kind."""
    found: list[ev.Event] = []
    eventually(lambda: found.extend(monitor.events(0.1)) or any(isinstance(e, kind) for e in found), kind.__name__)
    return next(event for event in found if isinstance(event, kind))


def test_a_kill_ends_the_process_and_its_proof_says_so(monitor, worker):
    began_s = time.time()
    fault = inject(monitor, "kill")
    event = told(monitor, ev.FaultInjected)
    assert (event.fault, event.target) == (fault, "w0") and began_s <= event.at_s <= time.time()
    assert event.proof == f"pid {worker.pid} has ended after SIGKILL"
    worker.join(LONG_S)
    assert worker.exitcode == -signal.SIGKILL


def test_a_stop_lasts_as_long_as_it_should(monitor, worker):
    inject(monitor, "stop", duration_s=1.0)
    assert told(monitor, ev.FaultInjected).proof == f"pid {worker.pid} was seen stopped"
    assert process_state(worker.pid) == "T"
    eventually(lambda: process_state(worker.pid) != "T", "it went on")
    used_s = cpu_s(worker.pid)
    eventually(lambda: cpu_s(worker.pid) > used_s, "it worked on")


def test_who_cannot_be_stopped_now_is_not_stopped_later(monkeypatch):
    """It is in the kernel, and heeds the signal once it is out of there."""
    monkeypatch.setattr(processes, "_SEEN_S", 0.0)
    sent = []
    busy = SimpleNamespace(pid=7, state="D", send=sent.append)
    with pytest.raises(CannotStrikeError, match="pid 7 does not stop: its state is D"):
        processes.stop(busy, Aftermath(), 1.0)
    assert sent == [signal.SIGSTOP, signal.SIGCONT]


def test_a_stop_without_a_duration_is_for_good(monitor, worker):
    inject(monitor, "stop")
    told(monitor, ev.FaultInjected)
    time.sleep(MOMENT_S)
    assert process_state(worker.pid) == "T"


def test_a_slow_worker_gets_its_share_of_the_time_and_no_more(monitor, worker):
    inject(monitor, "slow", duration_s=2.0, argument="5")
    assert "for 80% of 2 s" in told(monitor, ev.FaultInjected).proof
    began_s, used_s, states = time.monotonic(), cpu_s(worker.pid), set()
    while (elapsed_s := time.monotonic() - began_s) < 1.2:
        states.add(process_state(worker.pid))
        time.sleep(0.003)
    share = (cpu_s(worker.pid) - used_s) / elapsed_s
    assert {"T", "R"} <= states, "it is stopped and continued in turns"
    assert share < 0.6
    eventually(lambda: cpu_s(worker.pid) - used_s > 1.0, "it runs again when the fault is over")


def test_what_lasts_is_undone_when_the_monitor_ends(monitor, worker):
    inject(monitor, "slow", duration_s=1000.0, argument="50")
    told(monitor, ev.FaultInjected)
    monitor.close()
    used_s = cpu_s(worker.pid)
    eventually(lambda: cpu_s(worker.pid) > used_s + 0.3, "it runs freely")


def test_a_notice_is_sigterm_first_and_sigkill_in_the_end(monitor, worker):
    inject(monitor, "notice", duration_s=0.5)
    assert f"pid {worker.pid} was sent SIGTERM, and has 0.5 s" in told(monitor, ev.FaultInjected).proof
    assert hear(worker.pipe) == "told"
    worker.join(LONG_S)
    assert worker.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kind", "worker_", "reason"),
    [
        ("kill", "w9", "its worker is not watched on this node"),
        ("kill_supervisor", "", "is not a fault of a node"),
        ("node_down", "", "is no raylet: there is no node to end"),
    ],
)
def test_what_cannot_strike_here_says_why(monitor, worker, kind, worker_, reason):
    fault = inject(monitor, kind, worker_)
    event = told(monitor, ev.FaultRefused)
    assert event.fault == fault and reason in event.reason
    assert worker.is_alive()


NODE = """
sleep 600 & one=$!
sleep 600 & two=$!
echo $one $two
read line
"$0" -c "from elastic.chaos.processes import end_node; end_node()" &
wait
"""


def test_a_node_that_goes_down_takes_all_its_processes_along():
    """A raylet as the fault knows it: the parent of the one that strikes, by that name."""
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        ["raylet", "-c", NODE, sys.executable],
        executable="/bin/sh",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    ) as raylet:
        assert raylet.stdin is not None and raylet.stdout is not None
        others = [int(pid) for pid in raylet.stdout.readline().split()]
        raylet.stdin.write("strike\n")
        raylet.stdin.flush()
        assert raylet.wait(LONG_S) == -signal.SIGKILL
        for pid in others:
            eventually(lambda pid=pid: is_gone(pid), f"{pid} has ended")


def is_gone(pid: int) -> bool:
    try:
        return process_state(pid) in "ZX"
    except OSError:
        return True


# --- in train_fn ------------------------------------------------------------------------------------------------------


def test_an_error_is_raised_once_and_told_with_its_proof():
    link = Link("w0", lease_s=LONG_S)
    link.arrive(parked())
    enter(link, 1)
    link.take_events(0)
    fault = Fault(kind=kind_of("raise"), name="7")
    link.inject(fault)
    with pytest.raises(InjectedError, match="injected by elastic chaos: raise any"):
        link.check()
    (event,) = link.take_events(0)
    assert (event.fault, event.target) == (fault, "w0") and "InjectedError is raised in train_fn" in event.proof
    link.check()


def test_an_error_waits_for_a_step_of_its_own():
    """In an attempt that is broken anyway it would be taken for a victim's."""
    link = Link("w0", lease_s=LONG_S)
    link.arrive(parked())
    enter(link, 1)
    link.freeze(1)
    link.inject(Fault(kind=kind_of("raise")))
    with pytest.raises(AttemptBroken):
        link.check()
    enter(link, 2)
    with pytest.raises(InjectedError):
        link.check()


def test_an_injected_error_is_the_users(solo):
    """train_fn raises it, in the middle of a step, and so the run is told."""
    fault = Fault(kind=kind_of("raise"))
    ended = solo.run(trained(once(1, "start", lambda step, training: solo.link.inject(fault))))
    assert raised(ended, "InjectedError") == "InjectedError: injected by elastic chaos: raise any"
    (event,) = [event for event in ended.events if isinstance(event, ev.FaultInjected)]
    assert event.proof.endswith("after step 0")
