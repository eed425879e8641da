"""Effect. What is deleted from the persistent tier, and in which order, so that no reader ever meets half a step.

    mark (`clearing`) -> nobody has a lease? -> COMMIT -> payload and records of the step -> mark

A collector that is killed on the way leaves a step without COMMIT, or the mark: `swept` goes on from there.
"""

from collections import defaultdict

from elastic.checkpoint.leases import SKEW_S, BusyError
from elastic.checkpoint.records import parse_name
from elastic.checkpoint.retention import Verdict, judged
from elastic.checkpoint.store import MissingError
from elastic.checkpoint.vault import Vault
from elastic.control.values import CommitId
from elastic.errors import CorruptError, SettingError
from elastic.settings import Keep


def collected(vault: Vault, keep: Keep, *, is_dry: bool = False) -> list[Verdict]:
    """Delete the durable steps that nobody wants any more; returns the verdict on each, newest first.

    A step counts as good only if all its objects are there: the newest `keep.last` are looked at.

    Args:
        is_dry: only judge.

    Raises:
        FencedError: `vault` belongs to a driver that has a successor. StoreError.
    """
    if vault.incarnation:
        vault.check_fence()
    verdicts = _verdicts(vault, keep)
    for verdict in verdicts:
        if not verdict.is_kept and not is_dry:
            try:
                _clear(vault, verdict.record.name)
            except BusyError:
                continue  # taken up by a reader since, or by another collector: next time
    return verdicts


def deleted(vault: Vault, commit: CommitId) -> None:
    """Delete one durable step.

    Raises:
        SettingError: it is the newest good one, or pinned. BusyError: somebody needs it now. StoreError.
    """
    for verdict in _verdicts(vault, Keep(last=1)):
        if (
            verdict.record.commit.same_state(commit)
            and verdict.is_kept
            and not vault.leases.is_taken(verdict.record.name, is_durable=True)
        ):
            raise SettingError(f"{vault.where}: step {commit.step} stays: {verdict.reason}")
    for record in vault.commits(also_void=True):
        if record.commit.same_state(commit):
            _clear(vault, record.name)


def swept(vault: Vault) -> list[str]:
    """Clean up after those who were killed: uploads without COMMIT, half-deleted steps, leases and files left over.

    Only of this run, and only what nobody has written to or leased for `lease_s`. Returns the names of the steps.

    Raises:
        FencedError: `vault` belongs to a driver that has a successor. StoreError.
    """
    if vault.incarnation:
        vault.check_fence()
    before_s = vault.leases.now_s() - vault.leases.lease_s - SKEW_S
    marks = {item.key.rpartition("/")[2]: item for item in vault.store.list(vault.keys.folder("clearing"))}
    for name, mark in marks.items():
        if parse_name(name) is not None and mark.modified_at_s < before_s:
            vault.store.delete(mark.key)  # its owner is dead; what is without COMMIT comes next
    durable = {item.key.rpartition("/")[2] for item in vault.store.list(vault.keys.folder("commits"))}
    written_s: dict[str, float] = defaultdict(float)
    for item in vault.store.list(vault.keys.folder("steps")):
        name = item.key.removeprefix(vault.keys.folder("steps")).partition("/")[0]
        written_s[name] = max(written_s[name], item.modified_at_s)
    cleared = []
    for name, at_s in written_s.items():
        if parse_name(name) is not None and name not in durable and at_s < before_s and _is_cleared(vault, name):
            cleared.append(name)
    for lease in vault.store.list(vault.keys.folder("leases")):
        if lease.modified_at_s < before_s:
            vault.store.delete(lease.key)
    vault.store.sweep(f"{vault.run}/", before_s)
    return cleared


def _verdicts(vault: Vault, keep: Keep) -> list[Verdict]:
    records = vault.commits(also_void=True)
    bad = set(vault.quarantined())
    for record in [record for record in vault.commits() if record.name not in bad][: keep.last]:
        try:
            vault.check_complete(record)
        except (MissingError, CorruptError):
            bad.add(record.name)
    leased = {record.name for record in records if vault.leases.is_taken(record.name, is_durable=True)}
    return judged(records, keep, forks=vault.forks(), bad=bad, pinned=vault.pinned(), leased=leased)


def _is_cleared(vault: Vault, name: str) -> bool:
    try:
        _clear(vault, name, is_durable=False)
    except BusyError:
        return False
    return True


def _clear(vault: Vault, name: str, *, is_durable: bool = True) -> None:
    """
    Args:
        is_durable: it has a COMMIT. If a partial step has got one meanwhile, it stays.

    Raises:
        BusyError: somebody has a lease on it, or clears it already.
    """
    store, keys = vault.store, vault.keys
    with vault.leases.clearing(name, is_durable=is_durable):
        if not is_durable and any(store.list(keys.commit(name))):
            return
        store.delete(keys.commit(name))
        doomed = [*store.list(keys.step(name)), *store.list(keys.leases(name))]
        vault.all_of(lambda item: store.delete(item.key), doomed, f"{vault.where}: deletion of {name}")
        store.delete(keys.quarantine(name))
        store.delete(keys.pin(name))
