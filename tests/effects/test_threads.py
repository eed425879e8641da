"""Effect. The training thread computes with as many threads as are set, since sums change with their number."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# OpenMP is asked itself: torch sets the number for a thread that has not computed yet when it is asked for it.
TRAIN = """
import ctypes, sys
from pathlib import Path
from tests.effects.solo import Solo

def openmp_threads():
    (library,) = {line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line}
    return ctypes.CDLL(library).omp_get_max_threads()

def train_fn(session):
    print("train_fn", openmp_threads())

print("others", openmp_threads())
Solo(Path(sys.argv[1])).run(train_fn)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has one thread whatever is set")
def test_threads_are_pinned_in_the_thread_that_trains(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=100
    )
    said = dict(line.split() for line in done.stdout.splitlines())
    assert int(said["others"]) > 1, "nothing was set from outside"
    assert said["train_fn"] == "1", done.stderr
