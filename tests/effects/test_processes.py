"""Effect. When a process is known to do nothing any more: real ones, alive, stopped and killed."""

import mmap
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.actors.processes import Process, all_exit
from tests.effects.helpers import LONG_S, eventually

MOMENT_S = 0.05
# Some threads count, and much memory has to be given back. Arguments: the file that they count in.
COUNTS = """
import mmap, sys, threading
held = bytearray(b"1") * (256 << 20)
file = open(sys.argv[1], "r+b")
page = mmap.mmap(file.fileno(), 4096)

def count(place):
    while True:
        page[place] = (page[place] + 1) % 256

threads = [threading.Thread(target=count, args=(place,), daemon=True) for place in range(4)]
for thread in threads:
    thread.start()
print("ready", flush=True)
threads[0].join(60)  # whoever has begun it may be gone
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page"
    path.write_bytes(bytes(4096))
    return path


@pytest.fixture
def counting(page: Path) -> Iterator[Process]:
    with subprocess.Popen([sys.executable, "-c", COUNTS, str(page)], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
            yield Process(child.pid)
        finally:
            child.kill()


def counts(page: Path) -> bytes:
    with page.open("rb") as file, mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ) as seen:
        return bytes(seen[:4])


def test_who_lives_runs(counting: Process) -> None:
    assert not counting.runs_no_more(MOMENT_S)
    counting.send(signal.SIGSTOP)
    assert not counting.runs_no_more(MOMENT_S), "who is stopped may go on"


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_who_was_killed_does_nothing_from_then_on(counting: Process, page: Path, is_stopped: bool) -> None:
    if is_stopped:
        counting.send(signal.SIGSTOP)
    counting.kill()
    assert counting.runs_no_more(LONG_S)
    last = counts(page)
    time.sleep(MOMENT_S)
    assert counts(page) == last
    assert counting.has_ended(LONG_S) and counting.runs_no_more(0.0)


PID, RUNNING, EXITING = 7, 0x400040, 0x40004C


def told(proc: Path, *flags: int, threads: int | None = None) -> Path:
    """What /proc has of a process whose threads have these flags."""

    def stat(folder: Path, flags: int, threads: int) -> None:
        folder.mkdir(parents=True)
        numbers = [1, 7, 7, 0, -1, flags, *[0] * 10, threads, 0]
        (folder / "stat").write_text(f"7 (a) (b) R {' '.join(map(str, numbers))}\n")

    stat(proc / f"{PID}", flags[0], len(flags) if threads is None else threads)
    for number, one in enumerate(flags):
        stat(proc / f"{PID}/task/{PID + number}", one, len(flags))
    return proc


def test_the_kernel_says_of_each_thread_whether_it_is_being_ended(tmp_path: Path) -> None:
    assert all_exit(PID, told(tmp_path / "all", EXITING, EXITING, EXITING))
    assert not all_exit(PID, told(tmp_path / "but one", EXITING, EXITING, RUNNING))
    assert not all_exit(PID, told(tmp_path / "not all are listed", EXITING, EXITING, threads=3))
    assert not all_exit(PID, tmp_path / "nothing")


def test_who_cannot_be_seen_may_run(tmp_path: Path) -> None:
    proc = told(tmp_path, EXITING, EXITING)
    other = proc / f"{PID}/task/{PID + 1}/stat"
    other.write_text("7 (a) R\n")
    assert not all_exit(PID, proc)
    other.unlink()
    assert all_exit(PID, proc), "it is gone"
    other.mkdir()
    assert not all_exit(PID, proc), "nothing of it can be read"


def test_so_the_kernel_says_it_here(counting: Process) -> None:
    assert not all_exit(counting.pid)
    counting.kill()
    eventually(lambda: all_exit(counting.pid), "all its threads are being ended")
