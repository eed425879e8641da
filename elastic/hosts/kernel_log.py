"""Effect. The kernel's log as it comes: /dev/kmsg, one record a read (kernel documentation, ABI/testing/dev-kmsg)."""

import errno
import os
import select
from pathlib import Path

KMSG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
_MAX_LINES = 1000  # of one call: a kernel that floods its log must not hold the reader


class KernelLog:
    """Reads what is logged from now on.

    Attribute `lost`: how often the kernel has overwritten lines before they were read.

    Raises:
        OSError: the log can not be read here.
    """

    def __init__(self, path: Path = KMSG) -> None:
        self.lost = 0
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            os.close(self._descriptor)
            raise
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def lines(self, timeout_s: float) -> list[str]:
        """Messages, as soon as there are any, without what the kernel puts before them; none after the timeout."""
        self._poll.poll(timeout_s * 1000)
        found: list[str] = []
        while len(found) < _MAX_LINES:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                self.lost += 1
                continue
            if not record:
                break
            message = record.decode(errors="replace").partition(";")[2]
            found.append(message.partition("\n")[0])
        return found

    def close(self) -> None:
        os.close(self._descriptor)
