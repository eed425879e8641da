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
from elastic.errors import ElasticError

log = logging.getLogger("elastic")

_ANSWER_S = 30.0
_LIVES = 3


class RayBrain:
    """A supervisor actor; what it was told and did not answer is told to its successor again."""

    def __init__(self, state: RunState, policy: Policy) -> None:
        self._state, self._policy = state, policy
        self._actor = self._start()

    def observe(self, events: Observed) -> tuple[tuple[Command, ...], RunState]:
        last: Exception | None = None
        for _ in range(_LIVES):
            try:
                commands, self._state = ray.get(self._actor.observe.remote(events), timeout=_ANSWER_S)
                return commands, self._state
            except (RayActorError, GetTimeoutError) as error:
                log.warning("the supervisor is gone (%s); another one takes up where it was", type(error).__name__)
                ray.kill(self._actor)
                self._actor = self._start()
                last = error
        raise ElasticError(
            f"{_LIVES} supervisors in a row ended, or did not answer within {_ANSWER_S:.0f} s, over the same events; "
            f"the last: {last}: if fit(policy=...) is yours, it must be picklable, quick, and must not exit"
        )

    def close(self) -> None:
        ray.kill(self._actor)

    def _start(self) -> Any:
        # Beside the driver: it shares the fate of the one process that cannot do without it.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": here}
        return ray.remote(**options)(Supervisor).remote(self._state, self._policy)
