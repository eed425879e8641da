"""Effect. Why Kubernetes did not do what it was asked, told apart by what to do about it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from elastic.errors import ElasticError, SettingError


class Why(Enum):
    """Why Kubernetes did not do what it was asked."""

    UNKNOWN = "the token is not taken, as before it is renewed"
    FORBIDDEN = "the rights do not suffice"
    MISSING = "there is no such object"
    CONFLICT = "somebody else has changed it, or it is there already"
    INVALID = "the object is not valid"
    HELD = "a disruption budget holds it"
    BUSY = "the API server has too much to do, or has failed"
    REFUSED = "the API server refuses it"
    UNREACHABLE = "the API server does not answer"
    GARBLED = "the API server's answer makes no sense"


class KubeError(ElasticError):
    """Kubernetes has refused, or does not answer. Attributes: `why`, `status` (HTTP, 0 without an answer)."""

    why: Why
    status: int


_BY_STATUS = {
    401: Why.UNKNOWN,
    403: Why.FORBIDDEN,
    404: Why.MISSING,
    409: Why.CONFLICT,
    422: Why.INVALID,
    400: Why.INVALID,
    429: Why.BUSY,
}


@contextmanager
def packaged() -> Iterator[None]:
    """Import the client.

    Raises:
        SettingError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingError("the package kubernetes is missing: pip install 'ray-elastic[kubernetes]'") from error


@contextmanager
def told_apart(what: str) -> Iterator[None]:
    """Turn what the client raises while it does `what` into what to do about it."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        status = error.status or 0
        why = Why.HELD if _is_held(error) else why_of(status)
        raise KubeError(f"{what}: {why.value} ({status}: {_said(error)})", why=why, status=status) from error
    except (HTTPError, OSError) as error:
        said = (str(error).strip() or repr(error)).splitlines()[0]
        raise KubeError(f"{what}: {Why.UNREACHABLE.value} ({said})", why=Why.UNREACHABLE, status=0) from error
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise KubeError(f"{what}: {Why.GARBLED.value} ({error!r})", why=Why.GARBLED, status=200) from error


def why_of(status: int) -> Why:
    """What an HTTP status says; 0: there was no answer."""
    other = Why.BUSY if status >= 500 else Why.REFUSED if status else Why.UNREACHABLE
    return _BY_STATUS.get(status, other)


def _is_held(error: Any) -> bool:
    """An eviction is refused with the status of a server that is busy; the cause says which."""
    try:
        causes = json.loads(error.body)["details"]["causes"]
        return error.status == 429 and any(cause.get("reason") == "DisruptionBudget" for cause in causes)
    except (TypeError, ValueError, LookupError, AttributeError):
        return False


def _said(error: Any) -> str:
    """The server's own sentence."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
