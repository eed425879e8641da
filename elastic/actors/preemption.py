"""Effect. The cloud's notice: Google Compute Engine's metadata server tells a machine that it will be taken away.

Protocol: `GET /computeMetadata/v1/instance/preempted` is TRUE from the notice on, and `.../maintenance-event` is
TERMINATE_ON_HOST_MAINTENANCE before maintenance that ends the machine; questions and answers carry the header
`Metadata-Flavor: Google` (Compute Engine's documentation of preemptible VMs, of host maintenance, and of the metadata
server). Another host can be named in GCE_METADATA_HOST, as Google's libraries have it.
"""

import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

log = logging.getLogger("elastic")

_DEFAULT_HOST = "metadata.google.internal"
_PATH = "computeMetadata/v1/instance"
_HEADER, _FLAVOR = "Metadata-Flavor", "Google"  # who asks must send it, and every answer carries it
_WELL, _BROKEN = 200, 500  # status
_POLL_S = 1.0
_ANSWER_S = 1.0
_TRIES = 20  # a machine without one is asked no more; GKE's own is there some seconds after a Pod has begun
# By entry what it says before the end. After a live migration the machine is there as before, a moment later.
_NOTICES = {"preempted": "TRUE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Who sends elsewhere is another kind of server."""

    def redirect_request(self, *_: Any) -> None:
        return None


# The server is this machine's own: a proxy would tell of another machine, or answer in its place.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


def pending_loss(host: str) -> str:
    """Why this machine will be taken away, empty if nobody says so.

    Raises:
        OSError, HTTPException, ValueError: no metadata server answers there.
    """
    for name, notice in _NOTICES.items():
        if (said := _ask(host, name)) == notice:
            return f"the cloud takes the machine away ({name}: {said})"
    return ""


def _ask(host: str, name: str) -> str:
    request = urllib.request.Request(f"http://{host}/{_PATH}/{name}", headers={_HEADER: _FLAVOR})
    try:
        answer = _OPENER.open(request, timeout=_ANSWER_S)
    except urllib.error.HTTPError as error:
        answer = error  # an answer like others
    with answer:
        if answer.headers.get(_HEADER) != _FLAVOR:
            raise OSError("what answers there is another kind of server")
        if answer.status >= _BROKEN:
            raise OSError(f"it answers with status {answer.status}")
        return answer.read().decode().strip() if answer.status == _WELL else ""  # it may not know this entry


class PreemptionWatch:
    """Asks the metadata server every second, until there is a notice or no server.

    Args:
        tell: called once, with the reason.
        give_up: called once, with the reason why nobody is asked any more, if there is no server.
    """

    def __init__(self, tell: Callable[[str], None], give_up: Callable[[str], None], poll_s: float = _POLL_S) -> None:
        self._tell, self._give_up, self._poll_s = tell, give_up, poll_s
        self._host = os.environ.get("GCE_METADATA_HOST", _DEFAULT_HOST)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="elastic-preemption", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _watch(self) -> None:
        failures = 0
        while not self._is_closed.is_set():
            try:
                reason = pending_loss(self._host)
            except (OSError, HTTPException, ValueError) as error:
                failures += 1
                log.debug("no metadata server at %s: %s", self._host, error)
                if failures == _TRIES:
                    self._give_up(f"no metadata server answers at {self._host}: {error}")
                    return
            else:
                failures = -(1 << 30)  # there is one: it may be away for a while
                if reason:
                    self._tell(reason)
                    return
            self._is_closed.wait(self._poll_s)
