"""Effect. Proof of death without a host monitor: the address of a process that is gone refuses connections."""

import logging
import socket
import threading
import time

from elastic.actors.fleet import Emit
from elastic.control import events as ev

log = logging.getLogger("elastic")

_PROBE_S = 1.0
_AGAIN_S = 0.02  # a process that was killed listens until its memory is gone


class Probes:
    """Looks at addresses until they refuse, the worker is heard of after all, or nobody waits for a proof any more.

    Args:
        emit: takes the WorkerDead.
        limit_s: how long anybody waits; a host that is gone refuses nothing, ever.
    """

    def __init__(self, emit: Emit, limit_s: float) -> None:
        self._emit, self._limit_s = emit, limit_s
        self._unproven: set[str] = set()
        self._lock = threading.Lock()
        self._is_closed = threading.Event()

    def begin(self, worker: str, address: tuple[str, int]) -> None:
        with self._lock:
            if worker in self._unproven:
                return
            self._unproven.add(worker)
        threading.Thread(target=self._probe, args=(worker, address), name="elastic-probe", daemon=True).start()

    def end(self, worker: str) -> None:
        """It has answered, or nobody asks any more."""
        with self._lock:
            self._unproven.discard(worker)

    def close(self) -> None:
        self._is_closed.set()

    def _probe(self, worker: str, address: tuple[str, int]) -> None:
        """A refused connection is proof: the kernel of its node answers, and the process that listened is gone."""
        deadline_s = time.monotonic() + self._limit_s
        while worker in self._unproven and time.monotonic() < deadline_s:
            try:
                socket.create_connection(address, timeout=_PROBE_S).close()
            except ConnectionRefusedError:
                self._emit(ev.WorkerDead(worker=worker, proof=f"{address[0]}:{address[1]} refuses connections"))
                return
            except OSError as error:
                log.debug("no word from %s at %s: %s", worker, address, error)
            if self._is_closed.wait(_AGAIN_S):
                return
        self.end(worker)
