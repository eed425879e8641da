"""Effect. A durable step that was found for a restore: leased from then on, since its readers may be long in coming.

Workers take leases of their own with the first byte that they read.
"""

import contextlib
import threading

from elastic.checkpoint.records import name_of
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.vault import Vault
from elastic.control.values import CommitId

_PAUSE_S = 60.0  # leases last minutes, and are written anew at half of that
_RELEASE_S = 10.0


class Claim:
    """Nobody deletes the step until `end`.

    Args:
        commit: as its COMMIT names it. pause_s: between looks at whether the lease is to be renewed.

    Raises:
        BusyError: it is being deleted. MissingError: it has been. StoreError.
    """

    def __init__(self, vault: Vault, commit: CommitId, pause_s: float = _PAUSE_S) -> None:
        self._lease, self._pause_s = vault.lease_to_read(name_of(commit)), pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="elastic-claim", daemon=True)
        self._thread.start()

    def end(self, wait_s: float = _RELEASE_S) -> None:
        """Give it up, and wait so long at most until others can see that; the lease ends by itself, too."""
        self._over.set()
        self._thread.join(wait_s)

    def _keep(self) -> None:
        while not self._over.wait(self._pause_s):
            with contextlib.suppress(StoreError):
                self._lease.renew()
        with contextlib.suppress(StoreError):
            self._lease.release()
