"""Effect. Finds the Ray cluster to run on, or starts a small local one and stops it again."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import ray

from elastic.errors import NoClusterError
from elastic.settings import Scaling

log = logging.getLogger("elastic")

_CONNECT_S = 5.0
_CHANGING = threading.Lock()
_OBJECT_STORE_BYTES = 256 << 20
_OTHER_VERSIONS = "Version mismatch"  # how what Ray says begins where Python or Ray are others there


@dataclass(slots=True)
class _Opened:
    """The connection that was made here for this process: how many use it, and whether the cluster is its own."""

    users: int = 0
    is_local: bool = False


_OPENED = _Opened()


@contextmanager
def cluster(address: str | None, scaling: Scaling) -> Iterator[bool]:
    """Be connected to a cluster within the context; yields whether it ends with it.

    In this order: the connection this process has; `address`; a running cluster on this machine (`ray start`, or the
    one a submitted job runs in); a local one, which ends with the last context, where several threads are in one.

    Raises:
        NoClusterError: nothing answers at the address; or what does, there or on this machine, has other versions.
    """

    def opened() -> bool:
        if address is None and _connect("auto"):
            return False
        _require(address, scaling)
        return address is None

    with _shared(opened) as is_local:
        yield is_local


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be connected to a cluster that runs already, for a command about it; a connection there is stays.

    Raises:
        NoClusterError: there is none; or it has other versions.
    """
    place = address or os.environ.get("RAY_ADDRESS") or "auto"

    def opened() -> bool:
        if not _listens(place) or not _connect(place):
            raise NoClusterError(f"no Ray cluster answers at {place}: check --address or RAY_ADDRESS")
        return False

    with _shared(opened):
        yield


@contextmanager
def _shared(opened: Callable[[], bool]) -> Iterator[bool]:
    """The connection that the user has made, which stays; or one that ends with the last context that uses it.

    Args:
        opened: makes it; returns whether the cluster ends with it.
    """
    with _CHANGING:
        is_the_users = ray.is_initialized() and not _OPENED.users
        if not is_the_users:
            if not _OPENED.users:
                _OPENED.is_local = opened()
            _OPENED.users += 1
    if is_the_users:
        yield False
        return
    try:
        yield _OPENED.is_local
    finally:
        with _CHANGING:
            _OPENED.users -= 1
            if not _OPENED.users:
                ray.shutdown()


def _require(address: str | None, scaling: Scaling) -> None:
    if address is None:
        _start_local(scaling)
    elif not _listens(address) or not _connect(address):
        raise NoClusterError(
            f"no Ray cluster answers at {address}: check fit(address=...) or RAY_ADDRESS, or leave both out"
        )


def _listens(address: str) -> bool:
    """Whether anybody accepts connections there; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return True  # "auto" and the like: for Ray to resolve
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:  # a name with two dots in a row is none
        log.debug("nobody listens at %s: %s", address, error)
        return False
    return True


def _connect(address: str) -> bool:
    """Raises: NoClusterError: one answers, and is not to be joined from here."""
    try:
        ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())
        if why.startswith(_OTHER_VERSIONS):
            where = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
            raise NoClusterError(
                f"the Ray cluster at {where} has other versions, install the same here and there: {why}", is_there=True
            ) from None
        log.debug("no cluster at %s: %s", address, why)
        return False
    return True


def _start_local(scaling: Scaling) -> None:
    """A one-node cluster with room for the minimum and the spares, and for all cores' worth of more."""
    low, _ = scaling.bounds
    workers = (low + scaling.spares) * scaling.workers_per_replica
    cpus = max(os.cpu_count() or 1, int(workers * scaling.resources.get("CPU", 0) + 0.999))
    ray.init(
        address="local",  # else Ray tries the one of which a killed head has left the address
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        logging_level=logging.WARNING,
    )
