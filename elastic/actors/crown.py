"""Effect. Which driver of a run is the newest: each takes a number that no other gets, and the cluster keeps it.

This is the one module that touches Ray's key-value store (`ray.experimental.internal_kv`), in which a key is created
once. It is asked when a driver begins, when it would leave somebody behind, and now and then; not on the way of a step.
"""

import logging
import time
from collections.abc import Callable

from ray.experimental import internal_kv

from elastic.errors import ElasticError, SupersededError

log = logging.getLogger("elastic")

_NAMESPACE = "elastic"
_CLAIMS, _BEGUN = "claims", "begun"
_RETRY_S = 0.5
_LOOK_S = 1.0


def claim(run: str, incarnation: int) -> bool:
    """Take this number; False if somebody has it."""
    return not _put(run, _CLAIMS, incarnation)


def claimed(run: str) -> int:
    """The highest number that was taken in this cluster, 0 if none was."""
    return _highest(run, _CLAIMS)


def begin(run: str, incarnation: int) -> None:
    """Whoever has taken this number drives the run from now on."""
    _put(run, _BEGUN, incarnation)


def refuse_older(run: str, incarnation: int) -> None:
    """Raises: SupersededError: a newer driver has begun."""
    latest = _highest(run, _BEGUN)
    if latest > incarnation:
        raise SupersededError(
            f"a newer driver of the run {run} has begun (incarnation {latest}, this one is {incarnation}): "
            "fit(name=...) was called again while this one seemed dead"
        )


def confirm(run: str, incarnation: int, timeout_s: float) -> None:
    """Be sure that no newer driver goes on with those who are to be left behind.

    Raises:
        SupersededError: one does.
        ElasticError: the cluster can not say so within the time; it may be this driver that is cut off.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return refuse_older(run, incarnation)
        except SupersededError:
            raise
        except Exception as error:  # whatever Ray raises while its head is out of reach
            log.warning("the cluster does not say whether this driver is the newest: %s", error)
            if time.monotonic() > deadline_s:
                raise ElasticError(
                    f"nobody can say within Limits.lease_s={timeout_s:g} whether another driver of the run {run} goes "
                    "on with the workers that are out of reach: Ray's head does not answer"
                ) from error
            time.sleep(_RETRY_S)


class Reign:
    """One driver's view of it: whether a newer one has begun while it was out of reach, or stood still.

    Args:
        crash: takes the error, once.

    Attributes:
        is_over: a newer one has.
    """

    def __init__(self, run: str, incarnation: int, crash: Callable[[Exception], None]) -> None:
        self._run, self._incarnation, self._crash = run, incarnation, crash
        self._looked_s = 0.0
        self.is_over = False

    def look_now_and_then(self) -> None:
        if time.monotonic() - self._looked_s > _LOOK_S:
            self.look()

    def look(self) -> None:
        self._looked_s = time.monotonic()
        try:
            refuse_older(self._run, self._incarnation)
        except SupersededError as error:
            self.end(error)
        except Exception as error:  # whatever Ray raises while its head is out of reach
            log.debug("the cluster does not say whether this driver is the newest: %s", error)

    def end(self, error: SupersededError) -> None:
        """Somebody has said so."""
        if not self.is_over:
            self.is_over = True
            self._crash(error)


def _put(run: str, kind: str, incarnation: int) -> bool:
    """Create a key; whether it was there already."""
    key = f"{run}/{kind}/{incarnation:010d}"
    return internal_kv._internal_kv_put(key, b"", overwrite=False, namespace=_NAMESPACE)


def _highest(run: str, kind: str) -> int:
    keys = internal_kv._internal_kv_list(f"{run}/{kind}/", namespace=_NAMESPACE)
    return max((int(bytes(key).rpartition(b"/")[2]) for key in keys), default=0)
