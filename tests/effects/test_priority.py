"""Effect. A process that Ray has made the least on its node takes the usual priority, where it may and nobody minds."""

import os
import subprocess
import sys

import pytest

from elastic.actors.priority import RAY_NICENESS

CODE = """
import os, sys, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
from elastic.actors.priority import take_usual_priority
for thread in os.listdir("/proc/self/task"):
    os.setpriority(os.PRIO_PROCESS, int(thread), 15)
if sys.argv[1:]:
    os.setuid(int(sys.argv[1]))
has_it = take_usual_priority()
print(has_it, *{os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")})
"""
BACK = """
import os, sys
from elastic.actors.priority import hang_back
os.setpriority(os.PRIO_PROCESS, 0, 15)
if sys.argv[1:]:
    os.setuid(int(sys.argv[1]))
hang_back()
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) == os.SCHED_IDLE)
"""
CATCHES_UP = """
import os, sys, threading
from elastic.actors.priority import catch_up, hang_back
os.setpriority(os.PRIO_PROCESS, 0, 15)
if sys.argv[1:]:
    os.setuid(int(sys.argv[1]))
hangs_back, may_end = threading.Event(), threading.Event()
def work():
    hang_back()
    hangs_back.set()
    may_end.wait(60)
thread = threading.Thread(target=work)
thread.start()
hangs_back.wait(60)
has_it = catch_up(thread)
number = thread.native_id
print(has_it, os.getpriority(os.PRIO_PROCESS, number), os.sched_getscheduler(number) == os.SCHED_IDLE)
may_end.set()
"""
BEGINS = """
import os, sys, threading
from elastic.actors.priority import hang_back, take_usual_priority
os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[1]))
may_end, has_begun = threading.Event(), threading.Event()
def work():
    hang_back()
    threading.Thread(target=may_end.wait, args=(60,)).start()
    has_begun.set()
thread = threading.Thread(target=work)
thread.start()
has_begun.wait(60)
thread.join(60)
take_usual_priority()
threads = list(map(int, os.listdir("/proc/self/task")))
print({os.getpriority(os.PRIO_PROCESS, one) for one in threads}, {os.sched_getscheduler(one) for one in threads})
may_end.set()
"""
FRESH = """
import os
from elastic.actors.worker_actor import WorkerActor
os.setpriority(os.PRIO_PROCESS, 0, 15)
WorkerActor()
print(os.getpriority(os.PRIO_PROCESS, 0))
"""
COMES_FORWARD = CATCHES_UP.replace("has_it = catch_up(thread)", "has_it = come_forward(thread)").replace(
    "import catch_up, hang_back", "import come_forward, hang_back"
)
NOBODY = "65534"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may take a higher priority")


def niceness(*arguments: str, code: str = CODE, **more: str) -> str:
    """What such a process says of its threads, once it has asked."""
    environment = {name: value for name, value in os.environ.items() if name != RAY_NICENESS} | more
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


@needs_root
def test_all_of_its_threads_take_it() -> None:
    assert niceness() == "True 0"


@needs_root
def test_what_was_begun_by_who_hung_back_takes_it_too() -> None:
    """As threads that modules begin when they are imported: they are a worker's from now on."""
    assert niceness("15", code=BEGINS) == "{0} {0}"
    assert niceness("5", code=BEGINS, **{RAY_NICENESS: "5"}) == "{5} {0}"


@needs_root
def test_what_ray_was_told_holds() -> None:
    assert niceness(**{RAY_NICENESS: "15"}) == "False 15"


@needs_root
def test_who_may_not_says_so_and_goes_on() -> None:
    assert niceness(NOBODY) == "False 15"


@needs_root
def test_who_is_to_be_a_worker_at_once_has_it_before_it_is_begun() -> None:
    """What `begin` is given is unpickled before it runs, and that imports torch: forever, beside busy neighbours."""
    assert niceness(code=FRESH) == "0"


@needs_root
def test_who_hangs_back_gets_idle_time() -> None:
    """As long as it could get a tenth of a worker afterwards; between two that are nice already idle time is that."""
    assert niceness(code=BACK) == "10 True"
    assert niceness(code=BACK, **{RAY_NICENESS: "15"}) == "15 True"
    assert niceness(NOBODY, code=BACK) == "15 True"


@needs_root
def test_a_thread_that_hung_back_catches_up_if_this_process_may() -> None:
    assert niceness(code=CATCHES_UP) == "True 15 False"
    assert niceness(code=CATCHES_UP, **{RAY_NICENESS: "15"}) == "True 15 False"
    assert niceness(NOBODY, code=CATCHES_UP) == "False 15 True"


@needs_root
def test_who_could_not_take_back_that_it_is_idle_does_not_become_so() -> None:
    unniced = BACK.replace("0, 15)", "0, 0)")
    assert niceness(NOBODY, code=unniced, **{RAY_NICENESS: "0"}) == "11 False"


@needs_root
def test_a_thread_that_was_idle_for_long_comes_forward_to_a_tenth_of_a_worker() -> None:
    assert niceness(code=COMES_FORWARD) == "None 10 False"
    assert niceness(code=COMES_FORWARD, **{RAY_NICENESS: "15"}) == "None 15 True", "there is no room for a tenth"
    assert niceness(NOBODY, code=COMES_FORWARD) == "None 15 True", "it may not"
