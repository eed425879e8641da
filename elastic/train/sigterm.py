"""Effect. SIGTERM to a worker is a notice: whoever sends it kills a while later."""

import signal
import threading
from collections.abc import Callable
from types import FrameType


def heed_sigterm(notice: Callable[[str], object]) -> None:
    """Have SIGTERM give notice instead of ending the process; does nothing outside of the main thread.

    Args:
        notice: called in a thread of its own, since the interrupted code may hold a lock that it needs.
    """

    def heed(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=notice, args=("SIGTERM",), daemon=True).start()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, heed)
