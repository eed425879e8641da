"""Effect. The priority of this project's processes on a node: that of any other process, and not the least.

Ray starts its workers with a niceness of 15 (`RAY_worker_niceness`), a thirtieth of the weight of whatever else runs on
the node. A worker that trains, and a monitor that judges whether it does, would wait for each agent, exporter and
sidecar there, and a member that waits holds up all others.
"""

import os
import threading
from contextlib import suppress

RAY_NICENESS = "RAY_worker_niceness"
_USUAL = 0
_BEHIND = 10  # a tenth of the weight
_LEAST = 19


def take_usual_priority() -> bool:
    """Give this process, all of its threads, the usual niceness, unless somebody has told Ray another.

    None of them hangs back any more: what such a thread has begun meanwhile does as it did.

    Returns:
        Whether it has it now: that takes root, CAP_SYS_NICE or RLIMIT_NICE where Ray has given it another.
    """
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    niceness = mine if RAY_NICENESS in os.environ else _USUAL
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError, PermissionError):  # it has ended; or that is not ours to decide
            if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
    return os.getpriority(os.PRIO_PROCESS, 0) == _USUAL


def hang_back() -> None:
    """Have this thread run only where no other one wants to, until it is to `come_forward` or `catch_up`.

    A tenth of the weight is not enough by itself: since Linux 6.6 (EEVDF) who wakes up waits until the slice of who
    runs has ended, and a step wakes up many times. An idle thread has to go at once, and its processor counts as a free
    one. Where that could not be taken back it is a tenth nevertheless: beside busy processors it would never end.
    """
    mine, thread = os.getpriority(os.PRIO_PROCESS, 0), threading.get_native_id()
    behind = (mine if RAY_NICENESS in os.environ else _USUAL) + _BEHIND
    if behind < _LEAST:
        try:
            os.setpriority(os.PRIO_PROCESS, thread, behind + 1)
        except PermissionError:  # then workers could not take the usual one either: idle time is a tenth of theirs
            _become_idle(thread)
            return
        with suppress(PermissionError):  # who may not take one step back could not take the whole way back
            os.setpriority(os.PRIO_PROCESS, thread, behind)
            _become_idle(thread)
        return
    _become_idle(thread)  # of who is nice already that is a tenth


def come_forward(thread: threading.Thread) -> None:
    """Have a live thread that hangs back get a tenth of what one of a worker gets, if it had less and may have it."""
    assert thread.native_id is not None, "it has been started"
    workers = os.getpriority(os.PRIO_PROCESS, 0) if RAY_NICENESS in os.environ else _USUAL
    with suppress(PermissionError, ProcessLookupError):
        if os.getpriority(os.PRIO_PROCESS, thread.native_id) == workers + _BEHIND:
            os.sched_setscheduler(thread.native_id, os.SCHED_OTHER, os.sched_param(0))


def catch_up(thread: threading.Thread) -> bool:
    """Give a live thread that hangs back the priority of the others again.

    Returns:
        Whether it has that now: this process may not be allowed to take what it has given away.
    """
    assert thread.native_id is not None, "it has been started"
    try:
        os.sched_setscheduler(thread.native_id, os.SCHED_OTHER, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, thread.native_id, os.getpriority(os.PRIO_PROCESS, os.getpid()))
    except PermissionError:
        return False
    except ProcessLookupError:  # it has just ended
        pass
    return True


def _become_idle(thread: int) -> None:
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
