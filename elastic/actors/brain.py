"""Effect. The supervisor actor as the driver sees it: asked once a turn, replaced when it dies."""

import logging
import pickle
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.asking import supervisor_name
from elastic.actors.driver import Observed
from elastic.actors.peer_source import namespace
from elastic.actors.supervisor import Supervisor
from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.remediation import Policy
from elastic.control.state import RunState
from elastic.errors import ElasticError

log = logging.getLogger("elastic")

_ANSWER_S = 30.0
_LIVES = 3
_NAME_S = 10.0
_NAME_POLL_S = 0.05


class RayBrain:
    """A supervisor actor; what it was told and did not answer is told to its successor again."""

    def __init__(self, state: RunState, policy: Policy) -> None:
        self._state, self._policy = state, policy
        self._actor = self._start()

    def observe(self, events: Observed) -> tuple[tuple[Command, ...], RunState]:
        last: Exception | None = None
        for _ in range(_LIVES):
            try:
                answer = self._actor.answer.remote(pickle.dumps(events, protocol=pickle.HIGHEST_PROTOCOL))
                commands, change = pickle.loads(ray.get(answer, timeout=_ANSWER_S))
                self._state = change.applied_to(self._state)
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

    def asked(self) -> list[ev.Event]:
        try:
            asked: list[ev.Event] = ray.get(self._actor.asked.remote(), timeout=_ANSWER_S)
            return asked
        except (RayActorError, GetTimeoutError) as error:  # `observe` finds that out too, and replaces it
            log.debug("the supervisor can not say what it was asked: %s", error)
            return []

    def close(self) -> None:
        ray.kill(self._actor)

    def _start(self) -> Any:
        # Beside the driver: it shares the fate of the one process that cannot do without it.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        run = self._state.settings.run
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": here}
        options |= {"name": supervisor_name(run), "namespace": namespace(run)}
        deadline_s = time.monotonic() + _NAME_S
        while True:
            try:
                return ray.remote(**options)(Supervisor).remote(self._state, self._policy)
            except ValueError as error:  # the last one's name is free a moment after its death
                if time.monotonic() > deadline_s:
                    raise ElasticError(
                        f"a run {run!r} trains on this cluster already, or a supervisor of it does not end: give "
                        "fit(name=...) another name"
                    ) from error
                time.sleep(_NAME_POLL_S)
