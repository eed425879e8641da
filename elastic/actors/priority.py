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

    Returns:
        Whether it has it now: that takes root, CAP_SYS_NICE or RLIMIT_NICE where Ray has given it another.
    """
    if RAY_NICENESS in os.environ:
        return os.getpriority(os.PRIO_PROCESS, 0) == _USUAL
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError, PermissionError):  # it has ended; or that is not ours to decide
            os.setpriority(os.PRIO_PROCESS, thread, _USUAL)
    return os.getpriority(os.PRIO_PROCESS, 0) == _USUAL


def hang_back() -> None:
    """Have this thread get a tenth of what one of a worker gets, where both want a processor."""
    mine, thread = os.getpriority(os.PRIO_PROCESS, 0), threading.get_native_id()
    workers = mine if RAY_NICENESS in os.environ else _USUAL
    if workers + _BEHIND <= _LEAST:
        with suppress(PermissionError):  # then workers could not take the usual one either
            os.setpriority(os.PRIO_PROCESS, thread, workers + _BEHIND)
            return
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))  # of who is nice already that is a tenth


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
