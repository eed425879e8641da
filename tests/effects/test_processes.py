"""Effect. When a process is known to do nothing any more: real ones, alive, stopped and killed."""

import mmap
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.actors.processes import Process
from tests.effects.helpers import LONG_S

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
threads[0].join()
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
