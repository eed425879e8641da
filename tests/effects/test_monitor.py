"""Effect. The host monitor: knows of a death with proof, and ends what does not answer."""

import logging
import os
import signal
import subprocess
import threading
import time

import pytest

from elastic.actors import monitor as monitor_module
from elastic.actors import stacks as stacks_module
from elastic.actors import watched as watched_module
from elastic.actors.monitor import HostMonitor
from elastic.actors.processes import waited_for_cpu_ns, waits_for_disk
from elastic.actors.stacks import NO_LIST, dump_stacks
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.train.flight import FlightPage, read_page
from tests.effects.helpers import LONG_S, child, eventually, hear, process_state, stop

pytestmark = pytest.mark.host


def fly(pipe, path):
    """A worker's process in the middle of a micro-batch."""
    page = FlightPage(path)
    page.place(generation=2, step=17, attempt=1)
    page.note(Flying.COMPUTING, micro_batch=5)
    pipe.send("flying")
    time.sleep(LONG_S)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "elastic-run-1-w0"


@pytest.fixture
def worker(path):
    with child(fly, path) as (process, pipe):
        assert hear(pipe) == "flying"
        yield process


@pytest.fixture
def monitor():
    monitor = HostMonitor()
    yield monitor
    for name in list(monitor.flights()):
        monitor.forget(name)
    monitor.close()


def test_a_killed_worker_is_reported_with_proof_and_last_place(monitor, worker, path):
    """What was in flight is known after the death: the page outlives the process."""
    assert monitor.watch("w0", worker.pid, path)
    worker.kill()
    (event,) = monitor.events(LONG_S)
    assert isinstance(event, ev.WorkerDead) and event.worker == "w0"
    assert f"pid {worker.pid} is gone" in event.proof
    assert "last seen computing in step 17, generation 2, micro-batch 5 at " in event.proof
    eventually(lambda: not path.exists(), "the page of the dead is taken away")
    assert monitor.flights() == {}
    assert monitor.events(0) == []


def test_a_worker_that_dies_without_a_page_is_reported_too(monitor, worker, path):
    """It may die while it loads."""
    path.unlink()
    monitor.watch("w0", worker.pid, path)
    worker.kill()
    (event,) = monitor.events(LONG_S)
    assert event.proof.endswith("it left no flight page")


def test_a_worker_that_is_gone_already_is_not_watched(monitor, worker, path):
    worker.kill()
    worker.join(LONG_S)
    assert not monitor.watch("w0", worker.pid, path)


def test_a_fence_kills_a_stopped_process_with_proof(monitor, worker, path):
    """It cannot answer, and it must not wake up again later."""
    monitor.watch("w0", worker.pid, path)
    stop(worker.pid)
    assert monitor.fence("w0") == f"pid {worker.pid} was killed by its host monitor"
    worker.join(LONG_S)
    assert worker.exitcode == -9
    (event,) = monitor.events(LONG_S)
    assert event.worker == "w0"


def test_who_was_killed_has_left_its_last_word_though_it_is_forgotten_at_once(monitor, worker, path):
    """Its process may not have ended by then: what it was doing when it hung is told all the same."""
    monitor.watch("w0", worker.pid, path)
    stop(worker.pid)
    assert monitor.fence("w0")
    monitor.forget("w0")
    (event,) = monitor.events(LONG_S)
    assert isinstance(event, ev.WorkerDead) and event.last is not None and event.last.worker == "w0"
    assert "last seen" in event.proof


def test_who_is_inspected_is_killed_after_its_stacks_are_taken_whichever_call_comes_first(monitor, worker, path):
    monitor.watch("w0", worker.pid, path)
    fencing = threading.Thread(target=monitor.fence, args=("w0", LONG_S), daemon=True)
    fencing.start()
    eventually(lambda: "w0" in monitor._dumps, "the fence has come")
    assert "fly (" in monitor.inspect("w0")
    fencing.join(LONG_S)
    worker.join(LONG_S)
    assert worker.exitcode == -9


def test_who_is_stopped_is_killed_after_the_dump_that_was_begun_has_ended(monitor, worker, path, monkeypatch):
    """Else a busy host, where that takes longer, would have nothing to say of why it was killed."""
    monkeypatch.setattr(stacks_module, "dump_stacks", lambda pid: time.sleep(0.3) or process_state(pid))
    monitor.watch("w0", worker.pid, path)
    stop(worker.pid)
    eventually(lambda: monitor._watched["w0"].dump is not None, "a dump has begun")
    assert monitor.fence("w0", LONG_S) == f"pid {worker.pid} was killed by its host monitor"
    assert monitor.inspect("w0") == "T", "it was still there"


def test_a_fence_waits_for_stacks_no_longer_than_it_is_told(monitor, worker, path, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(stacks_module, "dump_stacks", lambda pid: str(never.wait(LONG_S)))
    monitor.watch("w0", worker.pid, path)
    assert monitor.fence("w0", 0.05) == f"pid {worker.pid} was killed by its host monitor"
    never.set()


def test_a_fence_of_somebody_unknown_proves_nothing(monitor):
    assert monitor.fence("stranger") == ""


def test_states_and_pages_are_read_without_asking(monitor, worker, path):
    """A process that is stopped shows as such, with the place at which it stopped."""
    monitor.watch("w0", worker.pid, path)
    eventually(lambda: monitor.flights()["w0"][1] is not None, "the page was read")
    assert monitor.flights()["w0"][1] == read_page(path)
    assert monitor.flights()["w0"][0] == process_state(worker.pid)
    stop(worker.pid)
    eventually(lambda: monitor.flights()["w0"][0] == "T", "the stop was seen")


def only(monitor):
    """What is seen of the one worker, None before its page was read."""
    readings = monitor.readings()
    return readings[0] if readings else None


def test_who_waits_for_a_beat_is_told_at_once_of_a_worker_that_has_come_to_stand_still(worker, path):
    """And once: later beats come when they are due."""
    monitor = HostMonitor(hang_floor_s=0.3)
    try:
        monitor.watch("w0", worker.pid, path)
        news, (reading,) = monitor.beat(LONG_S)
        assert (news, reading.worker) == ([], "w0") and 0.3 <= reading.still_s < LONG_S
        _, (later,) = monitor.beat(0.3)
        assert later.still_s > reading.still_s + 0.1
    finally:
        monitor.forget("w0")
        monitor.close()


def test_a_look_that_is_asked_for_is_told_to_who_waits_for_a_beat(monitor, path):
    """With what is so now, and not what it was at the last look."""
    page = FlightPage(path)
    page.note(Flying.COMPUTING, micro_batch=5)
    monitor.watch("w0", os.getpid(), path)
    eventually(lambda: only(monitor) is not None, "the page was read")
    beats = []
    asker = threading.Thread(target=lambda: beats.append(monitor.beat(LONG_S)))
    asker.start()
    page.note(Flying.REDUCING)
    monitor.look()
    asker.join(LONG_S / 2)
    ((news, (reading,)),) = beats
    assert (news, reading.phase) == ([], Flying.REDUCING)


def test_who_waits_for_a_beat_is_told_at_once_of_a_worker_that_was_stopped(worker, path):
    monitor = HostMonitor(hang_floor_s=LONG_S, stopped_timeout_s=0.1)
    try:
        monitor.watch("w0", worker.pid, path)
        stop(worker.pid)
        _, (reading,) = monitor.beat(LONG_S)
        assert reading.state == "T" and 0.1 <= reading.still_s < LONG_S
    finally:
        monitor.forget("w0")
        monitor.close()


def test_who_was_stopped_only_now_has_not_been_for_as_long_as_it_stands_still(worker, path):
    one = watched_module.Watched(worker.pid, None, path)
    for _ in range(5):
        one.look(0.1)
    assert one.reading("w0").state != "T"
    stop(worker.pid)
    for stopped_s in (0.0, 0.1, 0.2):
        one.look(0.1)
        assert (one.reading("w0").state, one.reading("w0").still_s) == ("T", pytest.approx(stopped_s))


def test_who_has_moved_since_the_last_look_may_be_stopped_all_the_same(path):
    with child(move_when_told, path) as (process, pipe):
        one = watched_module.Watched(process.pid, None, path)
        eventually(lambda: read_page(path), "it has begun")
        one.look(0.1)
        pipe.send("move")
        eventually(lambda: read_page(path).version > one.flight.version, "it has moved on")
        stop(process.pid)
        one.look(0.1)
        assert (one.still_s, one.state) == (0.0, "T")


def test_the_stacks_of_who_is_stopped_are_taken_as_soon_as_it_is_found_so_again(worker, path, monkeypatch):
    dumped = []
    monkeypatch.setattr(stacks_module, "dump_stacks", lambda pid: dumped.append(pid) or "as it stood")
    one = watched_module.Watched(worker.pid, None, path)
    stop(worker.pid)
    one.look(0.1)
    assert one.dump is None, "it may run now and then, as one does that is slowed down by signals"
    one.look(0.1)
    one.look(0.1)
    assert one.dump is not None and (one.dump.stacks(), dumped) == ("as it stood", [worker.pid])
    os.kill(worker.pid, signal.SIGCONT)
    eventually(lambda: process_state(worker.pid) == "S", "it goes on")
    one.look(0.1)
    assert one.dump is None, "it stands elsewhere by now"


def test_a_dump_that_never_ends_is_waited_for_no_longer_than_it_may_take(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(stacks_module, "dump_stacks", lambda pid: str(never.wait(LONG_S)))
    monkeypatch.setattr(stacks_module, "_DUMP_S", 0.05)
    assert stacks_module.Dump(os.getpid()).stacks().startswith("no stacks: py-spy did not end")
    never.set()


def test_who_runs_between_two_looks_is_not_stopped(worker, path):
    """As one is that is slowed down by signals; whatever it waits for, it is woken for a moment."""
    one = watched_module.Watched(worker.pid, None, path)
    for _ in range(5):
        stop(worker.pid)
        one.look(0.1)
        assert one.reading("w0").still_s == 0.0
        os.kill(worker.pid, signal.SIGCONT)
        eventually(lambda: process_state(worker.pid) == "S", "it goes on")


def test_a_worker_that_stands_still_is_told_from_one_that_moves(monitor, path):
    with child(move_when_told, path) as (process, pipe):
        monitor.watch("w0", process.pid, path)
        eventually(lambda: only(monitor) and only(monitor).still_s > 0.5, "it stands still")
        seen = only(monitor)
        assert (seen.worker, seen.generation, seen.step, seen.phase) == ("w0", 2, 17, Flying.COMPUTING)
        assert (seen.micro_batch, seen.commits, seen.state, seen.remark) == (5, 1, "S", "warming up")
        pipe.send("move")
        eventually(lambda: only(monitor).still_s < 0.5, "it moved on")


def move_when_told(pipe, path):
    page = FlightPage(path)
    page.place(generation=2, step=17, attempt=1)
    page.committed()
    page.remark("warming up")
    page.note(Flying.COMPUTING, micro_batch=5)
    pipe.recv()
    page.note(Flying.COMPUTING, micro_batch=6)
    time.sleep(LONG_S)


def watched(path, *pages):
    """A worker as the monitor holds it, whose page changes from look to look as told."""
    one = watched_module.Watched(os.getpid(), None, path)
    page = FlightPage(path)
    for is_new, elapsed_s in pages:
        if is_new:
            page.note(Flying.COMPUTING)
        one.look(elapsed_s)
    return one


def test_a_monitor_that_was_late_does_not_count_its_own_absence(path):
    """Its host was suspended, or it got no CPU: the worker may have got none either."""
    assert watched(path, (True, 0.1), (False, 0.1), (False, 60.0)).still_s == pytest.approx(0.3)
    assert watched(path, (True, 0.1), (False, 60.0), (True, 0.1)).still_s == 0.0


def wait_in_the_kernel(pipe, path):
    """A vfork is such a wait: it lasts until the child has opened a pipe that nobody writes to."""
    page = FlightPage(path)
    page.note(Flying.COMPUTING)
    opens = [(os.POSIX_SPAWN_OPEN, 9, pipe.recv(), os.O_RDONLY, 0)]
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=opens)
    page.note(Flying.REDUCING)
    time.sleep(LONG_S)


def test_who_waits_for_a_disk_is_forgiven_some_seconds_and_no_more(path, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with child(wait_in_the_kernel, path) as (process, pipe):
        eventually(lambda: read_page(path) is not None, "it has begun")
        assert not waits_for_disk(process.pid)
        pipe.send(str(fifo))
        eventually(lambda: waits_for_disk(process.pid), "it waits, and no signal ends that")
        one = watched_module.Watched(process.pid, None, path)
        for _ in range(50):
            one.look(0.1)
        assert one.still_s <= 0.3
        for _ in range(20):
            one.look(0.1)
        assert one.still_s > 1.0, "a disk that never answers is a hang"
        fifo.open("w").close()
        eventually(lambda: read_page(path).phase is Flying.REDUCING, "it goes on")
        one.look(0.1)
        assert (one.still_s, one.disk_s) == (0.0, 0.0)
        pid = process.pid
    assert not waits_for_disk(pid), "it has ended"


def test_a_worker_that_waits_for_a_cpu_does_not_stand_still(path, monkeypatch):
    """On a loaded machine its threads are runnable and do not run."""
    waited = iter([{7: 0, 8: 5}, {7: 100_000_000, 8: 5}, {7: 100_000_000, 8: 30_000_005}])
    monkeypatch.setattr(watched_module, "waited_for_cpu_ns", lambda pid: next(waited))
    looks = [(True, 0.1), *[(False, 0.1)] * 3]
    assert watched(path, *looks).still_s == pytest.approx(0.3)
    waited = iter([{7: 0, 8: 5}, {7: 100_000_000, 8: 5}, {7: 100_000_000, 8: 30_000_005}])
    looks += [(False, 0.1)] * 2
    assert watched(path, *looks).still_s == pytest.approx(0.3 + 0.1 - 0.1 + 0.1 - 0.03)


def test_waiting_for_a_cpu_is_measured(monitor):
    """Three busy processes on one CPU wait for each other."""
    cpu = min(os.sched_getaffinity(0))
    with child(spin, cpu) as (one, _), child(spin, cpu), child(spin, cpu):
        first = sum(waited_for_cpu_ns(one.pid).values())
        eventually(lambda: sum(waited_for_cpu_ns(one.pid).values()) > first + 50_000_000, "it waited")


def spin(pipe, cpu):
    os.sched_setaffinity(0, {cpu})
    while True:
        pass


def test_stacks_are_seen_without_the_workers_help(monitor, worker, path):
    monitor.watch("w0", worker.pid, path)
    stop(worker.pid)
    assert "fly (" in monitor.inspect("w0")
    assert monitor.inspect("stranger") == "it is not watched"


def test_a_list_of_threads_that_changes_is_told_of_in_words(monkeypatch):
    """As py-spy says it, nobody would think of that."""
    said = "Error: Failed to find a python interpreter in the .data section\n\nStack backtrace:\n"
    failed = subprocess.CompletedProcess([], returncode=1, stdout="", stderr=said)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: failed)
    assert dump_stacks(os.getpid()) == NO_LIST


def test_stacks_that_can_not_be_seen_have_a_reason(worker):
    worker.kill()
    worker.join(LONG_S)
    assert dump_stacks(worker.pid).startswith("no stacks: ")
    assert dump_stacks(os.getpid(), timeout_s=1e-6) == "no stacks: py-spy did not end within 0.0 s"


def test_a_page_of_garbage_does_not_blind_the_monitor(monitor, worker, path, tmp_path):
    """Deaths are still seen."""
    path.write_bytes(b"\xff" * 4096)
    monitor.watch("w0", worker.pid, path)
    eventually(lambda: monitor.flights()["w0"][0] != "", "the page was read")
    worker.kill()
    assert isinstance(monitor.events(LONG_S)[0], ev.WorkerDead)


def test_a_forgotten_worker_lives_on_unwatched(monitor, worker, path):
    """It was told to leave, and its end is no news."""
    monitor.watch("w0", worker.pid, path)
    monitor.forget("w0")
    assert worker.is_alive() and not path.exists()
    worker.kill()
    worker.join(LONG_S)
    assert monitor.events(0.3) == []


def test_the_end_of_a_run_leaves_no_process_and_no_page(monitor, worker, path, tmp_path, monkeypatch):
    """Pages of workers that another monitor watched go as well; those of other runs stay."""
    monkeypatch.setattr(monitor_module, "PAGES", tmp_path)
    orphaned, foreign = tmp_path / "elastic-run-1-w7", tmp_path / "elastic-other-1-w0"
    orphaned.touch()
    foreign.touch()
    monitor.watch("w0", worker.pid, path)
    assert monitor.end_all("elastic-run-1-*") == []
    worker.join(LONG_S)
    assert not worker.is_alive()
    assert not path.exists() and not orphaned.exists() and foreign.exists()


def test_nobody_waits_for_a_cpu_in_a_process_that_is_gone(worker):
    worker.kill()
    worker.join(LONG_S)
    assert waited_for_cpu_ns(worker.pid) == {}


def test_a_look_that_fails_is_not_the_last_one(monitor, worker, path, monkeypatch, caplog):
    """A monitor that no longer looks would beat on, and miss every hang."""
    real, failures = watched_module.Watched.look, iter([OSError("of a test"), OSError("of a test")])

    def look(watched, elapsed_s):
        if (failure := next(failures, None)) is not None:
            raise failure
        real(watched, elapsed_s)

    monkeypatch.setattr(watched_module.Watched, "look", look)
    assert monitor.watch("w0", worker.pid, path)
    eventually(lambda: monitor.flights()["w0"][1] is not None, "it looks again")
    said = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert said == ["a look at the workers failed; the next one comes"] * 2
