"""Workers let their host monitor see their stacks, also where the kernel lets only a parent look."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.control import events as ev
from elastic.settings import RunSettings
from elastic.train import host as host_module
from elastic.train import traced
from elastic.train.host import WorkerHost, WorkerSpec
from elastic.train.traced import let_be_traced
from tests.effects.helpers import LONG_S, child, hear

SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
USER = 1000  # of the image


def test_a_kernel_that_has_yama_takes_it_and_any_other_is_left_alone():
    with child(report_leave) as (_, pipe):
        assert hear(pipe) is SCOPE.exists()


def report_leave(pipe) -> None:
    pipe.send(let_be_traced())


@pytest.mark.parametrize(("answer", "is_let"), [(0, True), (-1, False)])
def test_it_is_any_process_that_may_look(monkeypatch, answer, is_let):
    asked = []

    class Libc:
        def prctl(self, option, *rest):
            asked.append((option, [one.value for one in rest]))
            return answer

    monkeypatch.setattr(traced.ctypes, "CDLL", lambda name: Libc())
    assert let_be_traced() is is_let
    everybody = ctypes.c_ulong(-1).value
    assert asked == [(int.from_bytes(b"Yama"), [everybody, 0, 0, 0])], "PR_SET_PTRACER, PR_SET_PTRACER_ANY"


def test_a_worker_asks_for_it_at_its_start():
    with child(serve_worker) as (_, pipe):
        assert hear(pipe) == [True]


def leave(session) -> None:
    raise SystemExit("enough")


def serve_worker(pipe) -> None:
    asked = []
    host_module.let_be_traced = lambda: asked.append(True)
    settings = RunSettings(run=f"traced-{os.getpid()}")
    host = WorkerHost(WorkerSpec(worker="w7", seed=0, settings=settings, train_fn=leave), host="127.0.0.1")
    told = []
    while not any(isinstance(event, ev.WorkerDeparted) for event in told):
        told += host.events(LONG_S)
    host.end()
    pipe.send(asked)


def test_a_sibling_without_capabilities_sees_stacks():
    """As a host monitor in a pod: neither a parent of the worker nor root."""
    if SCOPE.exists() and SCOPE.read_text().strip() not in "01":
        pytest.skip("this kernel lets nobody look, or the administrator alone")
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("setpriv is not there, and root may look at whom it will")
    worker = subprocess.Popen([*as_in_a_pod(), sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None and worker.stdout.readline() == "here\n"
        looking = [*as_in_a_pod(), sys.executable, "-c", LOOK, str(worker.pid)]
        seen = subprocess.run(looking, capture_output=True, text=True, timeout=LONG_S, check=True).stdout
    finally:
        worker.kill()
        worker.communicate()
    assert seen.startswith("thread ") and "wait_here" in seen


WORKER = """
import time
from elastic.train.traced import let_be_traced
def wait_here():
    print("here", flush=True)
    time.sleep(60)
let_be_traced()
wait_here()
"""
LOOK = """
import sys
from elastic.actors.stacks import dump_stacks
print(dump_stacks(int(sys.argv[1]), timeout_s=10.0))
"""


def as_in_a_pod() -> list[str]:
    """Begins a command for an ordinary user, with no capability to be had."""
    if os.geteuid():
        return []
    user = ["--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    return ["setpriv", *user, "--inh-caps=-all", "--bounding-set=-all"]
