"""Effect. The supervisor actor as the driver sees it: asked once a turn, replaced when it dies."""

import logging
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.driver import Observed
from elastic.actors.supervisor import Supervisor
from elastic.control.commands import Command
from elastic.control.remediation import Policy
from elastic.control.state import RunState

log = logging.getLogger("elastic")

_ANSWER_S = 30.0


class RayBrain:
    """A supervisor actor; what it was told and did not answer is told to its successor again."""

    def __init__(self, state: RunState, policy: Policy) -> None:
        self._state, self._policy = state, policy
        self._actor = self._start()

    def observe(self, events: Observed) -> tuple[tuple[Command, ...], RunState]:
        while True:
            try:
                commands, self._state = ray.get(self._actor.observe.remote(events), timeout=_ANSWER_S)
                return commands, self._state
            except (RayActorError, GetTimeoutError) as error:
                log.warning("the supervisor is gone (%s); another one takes up where it was", type(error).__name__)
                ray.kill(self._actor)
                self._actor = self._start()

    def close(self) -> None:
        ray.kill(self._actor)

    def _start(self) -> Any:
        # Beside the driver: it shares the fate of the one process that cannot do without it.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": here}
        return ray.remote(**options)(Supervisor).remote(self._state, self._policy)
