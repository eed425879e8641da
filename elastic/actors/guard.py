"""Effect. The guard: the actor that others find by the run's name; behind it, the supervisor.

All who are connected to a cluster can call its actors. So a call must tell the run's token: another run, or somebody
who has mistaken the name, changes nothing.
"""

import logging
from typing import Any

from elastic.actors.leased_supervisor import LeasedSupervisor
from elastic.actors.priority import take_usual_priority
from elastic.actors.supervisor import Supervisor
from elastic.actors.token import Token
from elastic.control.remediation import Policy
from elastic.control.state import RunState
from elastic.errors import ElasticError

log = logging.getLogger("elastic")


class Guard:
    """A supervisor that heeds only those who know the token.

    Args:
        token: of the run. state, policy: see `Supervisor`.
        driver: (node id, pid): without a word of it for long, the actor ends itself; None: it stays.
    """

    def __init__(self, token: Token, state: RunState, policy: Policy, driver: tuple[str, int] | None = None) -> None:
        if driver is not None:  # else in the driver's own process
            take_usual_priority()
        self._token = token
        self._run, logs = state.settings.run, state.settings.logs
        self._supervisor = (
            Supervisor(state, policy) if driver is None else LeasedSupervisor(state, policy, driver, logs)
        )
        self._has_refused = False

    def where(self) -> tuple[str, str]:
        """(host, path) of the token's file: for everybody, since the file itself says who may read it."""
        return self._token.host, self._token.path

    def silent_s(self) -> float:
        """For how long nothing was heard of the driver: for everybody, since it tells nothing else."""
        return self._supervisor.silent_s() if isinstance(self._supervisor, LeasedSupervisor) else 0.0

    def call(self, secret: str, method: str, *arguments: Any) -> Any:
        """Call a method of the supervisor.

        Raises:
            ElasticError: the secret is not the run's token; or there is no such method.
        """
        if not self._token.is_known_by(secret):
            if not self._has_refused:
                told = "run %s: a call (%s) without the run's token was refused; further ones are not told of"
                log.warning(told, self._run, method)
            self._has_refused = True
            raise ElasticError(f"the run {self._run} refuses {method!r}: the token that was told is not its own")
        if method.startswith("_") or not hasattr(self._supervisor, method):
            raise ElasticError(f"the supervisor of the run {self._run} knows no {method!r}: use the same version")
        return getattr(self._supervisor, method)(*arguments)
