"""Effect. What is deleted from the persistent tier, and in which order, so that no reader ever meets half a step.

    mark (`clearing`) -> nobody has a lease? -> COMMIT -> payload and records of the step -> mark

A collector that is killed on the way leaves a step without COMMIT, or the mark: `swept` goes on from there.
"""

import threading
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from math import inf

from elastic.checkpoint.leases import SKEW_S, BusyError
from elastic.checkpoint.records import name_of, parse_name
from elastic.checkpoint.retention import Verdict, judged
from elastic.checkpoint.store import MissingError, StoreError, is_stored
from elastic.checkpoint.vault import Vault
from elastic.control.values import CommitId, Fork
from elastic.errors import CorruptError
from elastic.settings import Keep

History = tuple[frozenset[Fork], frozenset[CommitId]]  # forks, and what is in quarantine


class _UndeletableError(StoreError):
    """An object cannot be deleted: somebody else's file, or a hold of the bucket."""


class Janitor:
    """Cleans a run's part of the persistent tier after its commits; what was left behind, once in a lease's time.

    May be asked by several threads, which take turns.
    """

    def __init__(self) -> None:
        self._swept_s = -inf
        self._turn = threading.Lock()

    def clean(self, vault: Vault, keep: Keep) -> None:
        """Delete what nobody wants any more.

        Raises:
            FencedError: `vault` belongs to a driver that has a successor. StoreError.
        """
        with self._turn:
            try:
                collected(vault, keep)
            finally:
                now_s = vault.leases.now_s()
                if now_s - self._swept_s > vault.leases.lease_s:
                    self._swept_s = now_s
                    swept(vault)


def collected(vault: Vault, keep: Keep, *, is_dry: bool = False) -> list[Verdict]:
    """Delete the durable steps that nobody wants any more; returns the verdict on each, newest first.

    A step counts as good only if all its objects are there: the newest `keep.last` are looked at. One that cannot be
    deleted holds up no other one.

    Args:
        is_dry: only judge.

    Raises:
        FencedError: `vault` belongs to a driver that has a successor. StoreError: the first, once all have been tried.
    """
    if vault.incarnation:
        vault.check_fence()
    basis = _history(vault)
    verdicts, failures = _verdicts(vault, keep), list[StoreError]()
    for place, verdict in enumerate(verdicts):
        if not (verdict.is_kept or is_dry) and (reason := _why_kept(vault, verdict.record.name, failures, basis)):
            verdicts[place] = replace(verdict, is_kept=True, reason=reason)
    _raise_first(failures)
    return verdicts


def _history(vault: Vault) -> History:
    """What verdicts follow from, beside the steps: while some are deleted, a run may go back to what was to go."""
    return frozenset(vault.forks()), frozenset(vault.quarantined())


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What those who were killed have left behind in a run.

    Attributes:
        steps: names of those without COMMIT, of which parts were there. marks: how many, of collectors.
        leases: how many that are over. files: how many that are no objects.
    """

    steps: tuple[str, ...] = ()
    marks: int = 0
    leases: int = 0
    files: int = 0


def swept(vault: Vault, *, is_dry: bool = False) -> Swept:
    """Clean up after those who were killed: uploads without COMMIT, half-deleted steps, leases and files left over.

    Only of this run, and only what nobody has written to or leased for `lease_s`.

    Args:
        is_dry: only look.

    Raises:
        FencedError: `vault` belongs to a driver that has a successor. StoreError: the first, once all have been tried.
    """
    if vault.incarnation:
        vault.check_fence()
    store, folder = vault.store, vault.keys.folder
    before_s = vault.leases.now_s() - vault.leases.lease_s - SKEW_S
    left, failures = _left(vault, before_s), list[StoreError]()
    _delete_each(vault, () if is_dry else left, failures)  # their owners are dead; what is without COMMIT comes next
    leases = [lease.key for lease in store.list(folder("leases")) if lease.modified_at_s < before_s]
    steps = _without_commit(vault, before_s)
    steps = [
        name for name in steps if (_is_free(vault, name, left) if is_dry else not _why_kept(vault, name, failures))
    ]
    _delete_each(vault, () if is_dry else leases, failures)
    files = store.sweep(f"{vault.run}/", before_s, is_dry=is_dry)
    _raise_first(failures)
    return Swept(steps=tuple(steps), marks=len(left), leases=len(leases), files=files)


def _left(vault: Vault, before_s: float) -> list[str]:
    """Keys of the marks whose owners are dead."""
    folder = vault.keys.folder("clearing")
    return [
        mark.key
        for mark in vault.store.list(folder)
        if mark.modified_at_s < before_s and parse_name(mark.key.removeprefix(folder).rsplit("-", 2)[0]) is not None
    ]


def _without_commit(vault: Vault, before_s: float) -> list[str]:
    """Names of the steps that are not durable, and that nobody has written to since then."""
    durable = {item.key.rpartition("/")[2] for item in vault.store.list(vault.keys.folder("commits"))}
    written_s: dict[str, float] = defaultdict(float)
    for item in vault.store.list(vault.keys.folder("steps")):
        name = item.key.removeprefix(vault.keys.folder("steps")).partition("/")[0]
        written_s[name] = max(written_s[name], item.modified_at_s)
    old = (name for name, at_s in written_s.items() if at_s < before_s)
    return [name for name in old if parse_name(name) is not None and name not in durable]


def _verdicts(vault: Vault, keep: Keep) -> list[Verdict]:
    records = vault.commits(also_void=True)
    bad = {name_of(commit) for commit in vault.quarantined()}
    complete, unread = 0, set[str]()
    for record in [record for record in vault.commits() if record.name not in bad]:
        if complete == keep.last:
            break
        try:
            vault.check_complete(record)
            complete += 1
        except CorruptError:
            unread.add(record.name)
            bad.add(record.name)
        except MissingError:  # the next older one takes its place among those that are kept
            bad.add(record.name)
    leased = {record.name for record in records if vault.leases.is_taken(record.name, is_durable=True)}
    return judged(records, keep, forks=vault.forks(), bad=bad, leased=leased, unread=unread)


def _is_free(vault: Vault, name: str, left: Collection[str]) -> bool:
    """Whether a step without COMMIT could be deleted now.

    Args:
        left: keys of the marks whose owners are dead.
    """
    is_being = any(item.key not in left for item in vault.store.list(vault.keys.clearing(name)))
    return not is_being and not vault.leases.is_taken(name, is_durable=False)


def _why_kept(vault: Vault, name: str, failures: list[StoreError], basis: History | None = None) -> str:
    """Why a step is there yet, empty if it is gone. What cannot be deleted is added to `failures`.

    Raises:
        FencedError: as `collected`. StoreError: not even a mark can be written, or nothing listed.
    """
    try:
        _clear(vault, name, basis)
    except BusyError as error:  # taken up by a reader since, or by another collector, or gone back to: next time
        return str(error)
    except _UndeletableError as error:
        failures.append(error)
        return str(error)
    return ""


def _delete_each(vault: Vault, keys: Collection[str], failures: list[StoreError]) -> None:
    for key in keys:
        try:
            vault.store.delete(key)
        except StoreError as error:
            failures.append(error)


def _raise_first(failures: list[StoreError]) -> None:
    if failures:
        raise failures[0]


def _clear(vault: Vault, name: str, basis: History | None = None) -> None:
    """
    Args:
        basis: of the verdict on a step that has a COMMIT; None: it has none. If one has got one meanwhile, it stays.

    Raises:
        BusyError: somebody has a lease on it, or clears it already, or history has changed; or this process was stopped
            for too long. _UndeletableError. FencedError: as `collected`.
    """
    store, keys = vault.store, vault.keys
    is_durable = basis is not None

    def is_due() -> bool:
        if is_durable and vault.incarnation:
            vault.check_fence()
        if basis is None:
            return not is_stored(store, keys.commit(name))
        forks, quarantined = _history(vault)
        return forks == basis[0] and quarantined <= basis[1]  # what was deleted is in quarantine no more

    with vault.leases.clearing(name, is_durable=is_durable, is_due=is_due) as check:

        def delete(key: str) -> None:
            check()
            try:
                store.delete(key)
            except StoreError as error:
                raise _UndeletableError(str(error)) from error

        delete(keys.commit(name))
        doomed = [*store.list(keys.step(name)), *store.list(keys.leases(name))]
        vault.all_of(lambda item: delete(item.key), doomed, f"{vault.where}: deletion of {name}")
        delete(keys.quarantine(name))
