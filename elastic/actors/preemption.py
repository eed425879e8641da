"""Effect. The cloud's notice: Google Compute Engine's metadata server tells a machine that it will be taken away.

Protocol: `GET /computeMetadata/v1/instance/preempted` is TRUE from the notice on, and `.../maintenance-event` is
TERMINATE_ON_HOST_MAINTENANCE before maintenance that ends the machine; both with the header `Metadata-Flavor: Google`
(Compute Engine's documentation of preemptible VMs and of host maintenance). Another host can be named in
GCE_METADATA_HOST, as Google's libraries have it.
"""

import logging
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

log = logging.getLogger("elastic")

_DEFAULT_HOST = "metadata.google.internal"
_PATH = "computeMetadata/v1/instance"
_POLL_S = 1.0
_ANSWER_S = 1.0
_TRIES = 3  # a machine without a metadata server is asked no more
# After a live migration the machine is there as before, a moment later.
_QUIET = {"preempted": ("FALSE", ""), "maintenance-event": ("NONE", "MIGRATE_ON_HOST_MAINTENANCE", "")}


def pending_loss(host: str) -> str:
    """Why this machine will be taken away, empty if nobody says so.

    Raises:
        OSError: no metadata server answers there.
    """
    for name, quiet in _QUIET.items():
        said = _ask(host, name)
        if said not in quiet:
            return f"the cloud takes the machine away ({name}: {said})"
    return ""


def _ask(host: str, name: str) -> str:
    request = urllib.request.Request(f"http://{host}/{_PATH}/{name}", headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return str(answer.read().decode().strip())
    except urllib.error.HTTPError:
        return ""  # a server that does not know this entry


class PreemptionWatch:
    """Asks the metadata server every second, until there is a notice or no server.

    Args:
        tell: called once, with the reason.
    """

    def __init__(self, tell: Callable[[str], None], poll_s: float = _POLL_S) -> None:
        self._tell, self._poll_s = tell, poll_s
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
        while not self._is_closed.is_set() and failures < _TRIES:
            try:
                reason = pending_loss(self._host)
            except OSError as error:
                failures += 1
                log.debug("no metadata server at %s: %s", self._host, error)
            else:
                failures = -(1 << 30)  # there is one: it may be away for a while
                if reason:
                    self._tell(reason)
                    return
            self._is_closed.wait(self._poll_s)
