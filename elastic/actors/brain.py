"""Effect. The supervisor actor as the driver sees it: asked once a turn, replaced when it dies."""

import contextlib
import logging
import pickle
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayActorError, RayError

from elastic.actors import crown
from elastic.actors.cycles import Cycles
from elastic.actors.driver import Observed
from elastic.actors.supervisor_actor import start_supervisor
from elastic.actors.token import Token
from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.packing import unpacked
from elastic.control.remediation import Policy
from elastic.control.state import RunState
from elastic.errors import ElasticError
from elastic.policies import Ladder
from elastic.policies.guarded import own_name

log = logging.getLogger("elastic")

_GONE = (RayActorError, ActorUnschedulableError, GetTimeoutError)  # the second: its node died before it was there
_ANSWER_S = 30.0
_FAR_ANSWER_S = 4.0  # it may be out of reach; the next one is beside the driver
_LIVES = 3
_LAST_S = 1.0
_NAME_S = 10.0
_NAME_POLL_S = 0.05
_MANY = 4096  # workers, of which so much is known that a look at all of it would be felt


class RayBrain:
    """A supervisor actor; what it was told and did not answer is told to its successor again.

    Args:
        heeds: takes what it says that is not for the controller, and tells whether it was that.
    """

    def __init__(
        self, state: RunState, policy: Policy, token: Token, heeds: Callable[[ev.Event], bool] = lambda event: False
    ) -> None:
        self._state, self._policy, self._token, self._heeds = state, policy, token, heeds
        self._cycles, self._was_heard = Cycles(), False
        self._asked: list[ev.Event] = []
        self._is_closed = False
        self._start(beside_driver=False)

    def observe(self, events: Observed) -> tuple[tuple[Command, ...], RunState]:
        lost = 0
        while True:
            try:
                told = pickle.dumps(events, protocol=pickle.HIGHEST_PROTOCOL)
                answer, asked = ray.get(self._call("answer", told), timeout=self._answer_s)
                self._asked += self._heeded(asked)
                self._was_heard = True
                commands, change = unpacked(answer, self._state.view)
                self._state = change.applied_to(self._state)
                if len(self._state.workers) > _MANY:
                    self._cycles.spare()
                return commands, self._state
            except _GONE as error:
                if self._is_closed:  # a turn that was waited for in vain when the run ended
                    raise
                log.warning("the supervisor is gone (%s); another one takes up where it was", type(error).__name__)
                ray.kill(self._actor)
                lost += 1
                if lost % _LIVES == 0:
                    self._do_without_policy(error)
                self._start(beside_driver=not isinstance(error, RayActorError))

    def _do_without_policy(self, last: Exception) -> None:
        """It may end its process, or keep it from answering, in ways that no supervisor can tell of itself.

        Raises:
            ElasticError: it is not the policy; or none was ever heard: a policy that can not come there is a mistake.
        """
        ended = f"{_LIVES} supervisors in a row ended, or did not answer within {self._answer_s:.0f} s, over the same"
        if isinstance(self._policy, Ladder) or not self._was_heard:
            raise ElasticError(
                f"{ended} events; the last: {last}: if fit(policy=...) is yours, it must be picklable, and what it is "
                "made of must be there where the supervisor is"
            ) from last
        told = "%s events: the built-in ladder decides from now on in the place of the policy %s"
        log.warning(told, ended, own_name(self._policy))
        self._policy = Ladder()

    def asked(self) -> list[ev.Event]:
        asked, self._asked = self._asked, []
        return asked

    def close(self) -> None:
        self._is_closed = True
        self._cycles.seek()
        with contextlib.suppress(RayError):  # its last lines
            self._heeded(ray.get(self._call("asked"), timeout=_LAST_S))
        ray.kill(self._actor)

    def _heeded(self, asked: list[ev.Event]) -> list[ev.Event]:
        """What of it is for the controller."""
        return [one for one in asked if not self._heeds(one)]

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._actor.call.remote(self._token.secret, method, *arguments)

    def _start(self, beside_driver: bool) -> None:
        """Raises: SupersededError: a newer driver's supervisor is there."""
        run, deadline_s = self._state.settings.run, time.monotonic() + _NAME_S
        while True:
            try:
                self._actor: Any
                self._actor, is_near = start_supervisor(self._token, self._state, self._policy, beside_driver)
                self._answer_s = _ANSWER_S if is_near else _FAR_ANSWER_S
                return
            except ValueError as error:  # the last one's name is free a moment after its death
                crown.refuse_older(run, self._state.settings.incarnation)
                if time.monotonic() > deadline_s:
                    raise ElasticError(
                        f"a run {run!r} trains on this cluster already, or a supervisor of it does not end: give "
                        "fit(name=...) another name"
                    ) from error
                time.sleep(_NAME_POLL_S)
