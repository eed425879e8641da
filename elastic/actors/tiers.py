"""Effect. A run's checkpoint tiers as its driver uses them: which life this is, and what can be restored."""

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from elastic.checkpoint.catalog import Candidate, candidates
from elastic.checkpoint.reach import Reach
from elastic.checkpoint.reader import take_inventory
from elastic.checkpoint.records import parse_name
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.vault import Vault
from elastic.control import events as ev
from elastic.control.state import RunState
from elastic.control.values import CommitId, Fork, View
from elastic.errors import ElasticError
from elastic.settings import RunSettings

log = logging.getLogger("elastic")

Bad = tuple[CommitId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the tiers hold. forks: where history began anew. silent: a sentence for each that gave no answer."""

    candidates: tuple[Candidate, ...]
    forks: tuple[Fork, ...]
    incarnation: int
    silent: tuple[str, ...]


class Tiers:
    """See the module. Calls that look at tiers block, each for at most `timeout_s`.

    Args:
        emit: takes what is for the controller, from any thread.
    """

    def __init__(self, run: str, reach: Reach, emit: Callable[[ev.Event], None], timeout_s: float) -> None:
        self._run, self._reach, self._emit, self._timeout_s = run, reach, emit, timeout_s
        self._forks: tuple[Fork, ...] = ()

    # --- before the run ---

    def begin(self) -> tuple[int, tuple[Fork, ...]]:
        """Take the number of this life of the driver; returns it, and where history began anew so far.

        Raises:
            StoreError: a tier cannot be asked. SettingError: it cannot be used.
        """
        seen = self._look()
        self._forks = seen.forks
        vault = self._reach.vault
        if vault is None:
            return seen.incarnation + 1, seen.forks
        return vault.register(f"{socket.gethostname()} {os.getpid()}", at_least=seen.incarnation + 1), seen.forks

    # --- during the run; none of these waits ---

    def find(self, at_most: int | None, without: Bad) -> None:
        """Look for the newest step that can be restored; the answer is a RestoreFound."""
        threading.Thread(target=self._find, args=(at_most, without), name="elastic-find", daemon=True).start()

    def heed(self, event: ev.Event, state: RunState) -> None:
        """Something happened that the tiers may have to act on."""

    def formed(self, view: View, state: RunState) -> None:
        """A generation is being formed."""
        if view.restored:
            self._forks = view.forks
            threading.Thread(target=self._fork, args=(view.forks[-1],), name="elastic-fork", daemon=True).start()

    def close(self, keep: bool) -> None:
        """The run is over; keep: what is in memory may be restored by the next life of the driver."""
        try:
            self._reach.close()
        except StoreError as error:
            log.warning("leases on checkpoints end by themselves: %s", error)

    # --- inside ---

    def _find(self, at_most: int | None, without: Bad) -> None:
        try:
            seen = self._look()
        except Exception as error:  # whatever it is, the controller waits for an answer
            told = f"{type(error).__name__}: {error}"
            self._emit(ev.RestoreFound(commit=None, error=told))
            return
        for one in seen.candidates:
            is_early = at_most is None or one.commit.step <= at_most
            if is_early and not any(one.commit.same_state(bad) for bad in without):
                self._emit(ev.RestoreFound(commit=one.commit))
                return
        silent = "; ".join(seen.silent)
        self._emit(ev.RestoreFound(commit=None, reason=silent or "no step is whole", error=silent))

    def _look(self) -> Seen:
        vault = self._reach.vault
        inventory = take_inventory(self._reach.sources(), self._timeout_s)
        found = [holder.manifest for holder in inventory.holders]
        lives = [manifest.commit.incarnation for manifest in found]
        forks = {*self._forks, *(fork for manifest in found for fork in manifest.forks)}
        quarantined: set[tuple[int, str]] = set()
        if vault is not None:
            forks |= set(vault.forks())
            lives += vault.incarnations()
            named = [parse_name(name) for name in vault.quarantined()]
            quarantined = {(commit.step, commit.lineage) for commit in named if commit is not None}
        return Seen(
            candidates=candidates(inventory.holders, self._run, forks, quarantined),
            forks=tuple(sorted(forks, key=lambda fork: (fork.incarnation, fork.generation))),
            incarnation=max([0, *lives, *(fork.incarnation for fork in forks)]),
            silent=inventory.silent,
        )

    def _fork(self, fork: Fork) -> None:
        """Before anything is committed on the new line: steps of the old one must not win the next restart."""
        vault: Vault | None = self._reach.vault
        try:
            if vault is not None:
                vault.fork(fork)
        except ElasticError as error:
            log.warning("it is not recorded yet that history began anew after step %d: %s", fork.step, error)


class NoTiers:
    """Nothing is kept below the memory of live workers."""

    def begin(self) -> tuple[int, tuple[Fork, ...]]:
        return 1, ()

    def start(self, settings: RunSettings) -> None:
        pass

    def flush(self) -> None:
        pass

    def find(self, at_most: int | None, without: Bad) -> None:
        raise RuntimeError("there are no tiers to look at")

    def heed(self, event: ev.Event, state: RunState) -> None:
        pass

    def formed(self, view: View, state: RunState) -> None:
        pass

    def close(self, keep: bool) -> None:
        pass
