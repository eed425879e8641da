"""Effect. Where the threads of another Python process stand, stopped or not, without its help."""

import subprocess
import sys
import threading
from pathlib import Path

_DUMP_S = 5.0  # a dump takes some 10 ms, but on a busy host it may have to wait for a processor
_KEPT_CHARS = 4000
# Of a process that was stopped then (two of 150 that start a thread all the time), and however often it is asked again.
_HALFWAY = "Failed to find a python interpreter in the .data section"
_LATE = f"no stacks: py-spy did not end within {2 * _DUMP_S:.0f} s, though it was killed"
NO_LIST = "no stacks: its list of threads can not be read; one of them may just have begun or ended"


def dump_stacks(pid: int, timeout_s: float = _DUMP_S) -> str:
    """The stacks of all threads, the one that trains first; or a sentence that says why they can not be seen."""
    beside = Path(sys.executable).with_name("py-spy")
    command = [str(beside) if beside.exists() else "py-spy", "dump", "--nonblocking", "--pid", str(pid)]
    try:
        dump = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except FileNotFoundError:
        return "no stacks: py-spy is not installed"
    except subprocess.TimeoutExpired:
        return f"no stacks: py-spy did not end within {timeout_s:.1f} s"
    if dump.returncode != 0 and _HALFWAY in dump.stderr:
        return NO_LIST
    if dump.returncode != 0:
        return f"no stacks: {(dump.stderr.strip() or 'py-spy failed').splitlines()[0]}"
    _, *threads = dump.stdout.split("\nThread ")
    threads.sort(key=lambda text: "elastic-train" not in text.partition("\n")[0])
    return "\n".join(f"thread {text.strip()}" for text in threads)[:_KEPT_CHARS]


class Dump:
    """The stacks of a process as of now; they are taken beside whoever asked, who may come for them later."""

    def __init__(self, pid: int) -> None:
        self._stacks = _LATE
        self._thread = threading.Thread(target=self._take, args=(pid,), name="elastic-stacks", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Until they are taken, for so long at most."""
        self._thread.join(timeout_s)

    def stacks(self) -> str:
        """See `dump_stacks`; waits for them, a little longer than they may take."""
        self._thread.join(2 * _DUMP_S)
        return self._stacks

    def _take(self, pid: int) -> None:
        self._stacks = dump_stacks(pid)
