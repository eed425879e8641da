"""Effect. A supervisor that outlives its driver for a while, and knows how long it has not heard of it."""

import logging
import math
import os
import threading
import time

import ray

from elastic.actors.processes import process_state
from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.remediation import Policy
from elastic.control.state import RunState
from elastic.settings import Logs
from elastic.train.logs import LogBuffer

log = logging.getLogger("elastic")

_WATCH_S = 1.0
_ROLE = "supervisor"


class LeasedSupervisor(Supervisor):
    """See `Supervisor`; it ends itself when it has heard no driver for the orphan lease, as workers do.

    Args:
        driver: (node id, pid) of the driver.
        logs: what of the lines of this process is told with what was asked; None: nothing, it is not its own.
    """

    def __init__(self, state: RunState, policy: Policy, driver: tuple[str, int], logs: Logs | None = None) -> None:
        super().__init__(state, policy)
        here, self._lines = ray.get_runtime_context().get_node_id(), None
        if logs is not None:
            self._lines = LogBuffer(_ROLE, logs, role=_ROLE, node=here)
            self._lines.attach()
        log.info("decides for the run %s, from generation %d on", state.settings.run, state.generation)
        self._lease_s = state.settings.limits.orphan_lease_s
        node, pid = driver
        self._driver_pid = pid if node == here else None
        self._heard_s = time.monotonic()
        threading.Thread(target=self._watch_for_driver, name="elastic-orphan-watch", daemon=True).start()

    def observe(self, events: list[tuple[float, ev.Event]]) -> tuple[tuple[Command, ...], RunState]:
        """See `Supervisor.observe`."""
        answer = super().observe(events)
        self._heard_s = time.monotonic()
        return answer

    def asked(self) -> list[ev.Event]:
        """See `Supervisor.asked`; and what was logged here since."""
        return [*super().asked(), *(self._lines.taken() if self._lines is not None else [])]

    def silent_s(self) -> float:
        """For how long nothing was heard of the driver; for ever, if its process is seen to be gone."""
        if self._driver_pid is not None and process_state(self._driver_pid) in ("", "Z", "X"):
            return math.inf
        return time.monotonic() - self._heard_s

    def _watch_for_driver(self) -> None:
        pause = threading.Event()
        while time.monotonic() - self._heard_s < self._lease_s:
            pause.wait(min(_WATCH_S, self._lease_s / 4))
        os._exit(0)
