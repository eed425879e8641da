"""Effect. The persistent tier: how shards become a durable step of a run, in any `Store`.

    register    a life of the driver takes its number, created once
    fork        it says where its history begins: steps past that, made earlier, are void for every reader
    upload      chunks, then the manifest; each object is named by its sum, so an upload that broke off is continued
    commit      one object, created last, naming the digest of each shard's manifest

A step is DURABLE when its COMMIT is there. A driver whose successor has registered is refused (FencedError). It may
still slip through between the look and the COMMIT, and that is harmless: if its COMMIT is there when the successor
lists them, its bytes are whole and may be resumed from; if it comes later, the successor's fork has made it void.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic.checkpoint import summing
from elastic.checkpoint.leases import Lease, Leases, Use
from elastic.checkpoint.manifest import Manifest, checked_name, is_visible
from elastic.checkpoint.parallel import Throttle, in_parallel
from elastic.checkpoint.records import Committed, Keys, digest_of, name_of, opened, parse_fork, parse_name, sealed
from elastic.checkpoint.store import MissingError, Store, StoreError, TakenError, is_stored
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.stores.faulty import FaultyStore
from elastic.control.values import CommitId, Fork
from elastic.errors import CorruptError, SettingError

LEASE_S = 900.0
STALL_S = 600.0
THREADS = 8
_REGISTER_TRIES = 100
_TAKEN_BACK_TRIES = 3


class FencedError(StoreError):
    """A later life of the driver has registered: this one may not commit any more."""


class Vault:
    """The objects of one run. Methods may be called from any thread and any process, and raise StoreError.

    Attributes:
        incarnation: of the driver that commits through this object; 0 for those that only read or upload.
        leases: of its steps. What nobody has touched or leased for `lease_s`, and is not durable, may be cleaned away.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        incarnation: int = 0,
        threads: int = THREADS,
        bytes_per_s: float | None = None,
        lease_s: float = LEASE_S,
        stall_s: float = STALL_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            bytes_per_s: cap on uploads of this object. stall_s: when nothing has moved for so long, a call fails.

        Raises:
            SettingError: `run` cannot be part of a key.
        """
        self.store, self.run, self.keys = store, checked_name(run, "the run"), Keys(run)
        self.incarnation, self.leases = incarnation, Leases(store, self.keys, lease_s, now_s)
        self._threads, self._stall_s, self._throttle = threads, stall_s, Throttle(bytes_per_s)
        self._commits: dict[str, Committed] = {}

    @property
    def where(self) -> str:
        return f"{self.store.url}/{self.run}"

    # Who may commit

    def register(self, writer: str, at_least: int = 1) -> int:
        """Begin a life of the driver: takes a number that is higher than all before, and commits under it from now on.

        Args:
            writer: for people, e.g. host and pid.
        """
        for _ in range(_REGISTER_TRIES):
            number = max([at_least - 1, *self.incarnations()]) + 1
            body = {"writer": writer, "holder": self.leases.holder, "registered_at_s": self.leases.now_s()}
            try:
                self.store.create(self.keys.incarnation(number), sealed("incarnation", body))
            except TakenError:
                continue
            self.incarnation = number
            return number
        raise StoreError(f"{self.where}: {_REGISTER_TRIES} others registered first; is a loop starting drivers?")

    def incarnations(self) -> list[int]:
        """All registered lives, oldest first."""
        return sorted(int(name) for name in self._names("incarnations") if name.isdecimal())

    def check_fence(self) -> None:
        """
        Raises:
            FencedError: a later life of the driver has registered. SettingError: this one has not.
        """
        known = self.incarnations()
        if self.incarnation not in known:
            raise SettingError(f"{self.where}: incarnation {self.incarnation} has not registered; call register first")
        if known[-1] > self.incarnation:
            raise FencedError(
                f"{self.where}: incarnation {known[-1]} has taken over from {self.incarnation}, which may not commit "
                "any more; end this driver"
            )

    def fork(self, fork: Fork) -> None:
        """Record where a line of history begins: after `register`, look at `commits`, go on from one, and say which.

        Before that, nothing of this life can be committed. -1 is the step of a beginning from nothing.

        Raises:
            FencedError: it is not this life's to say any more; if that came about meanwhile, it is taken back, or it
                might void what the later life goes on from.
        """
        self.check_fence()
        self.store.create(key := self.keys.fork(fork), sealed("fork", {"step": fork.step}))
        try:
            self.check_fence()
        except FencedError:
            for _ in range(_TAKEN_BACK_TRIES):
                with contextlib.suppress(StoreError):
                    self.store.delete(key)
                    break
            raise

    def forks(self) -> list[Fork]:
        """All that were recorded, oldest first."""
        found = [fork for name in self._names("forks") if (fork := parse_fork(name)) is not None]
        return sorted(found, key=lambda fork: (fork.incarnation, fork.generation, fork.step))

    # Making a step durable

    def upload(self, manifest: Manifest, read: Callable[[int, int], Any]) -> str:
        """Store one shard; what is there already is not sent again. Returns the digest that `commit` wants.

        A lease keeps the objects from being cleaned away until `commit`; it lasts `lease_s` longer than the upload.

        Args:
            read: gives bytes [begin, end) of the payload: `bytes`, or a contiguous uint8 array. Called by many threads.

        Raises:
            CorruptError: what `read` gave does not match the manifest; nothing of it was stored.
            BusyError: the step is just being deleted. StoreError, and what `read` raises.
        """
        if manifest.run != self.run:
            raise SettingError(f"{self.where}: a shard of run {manifest.run!r} does not belong here")
        name, data = name_of(manifest.commit), manifest.encode()
        lease = self.leases.take(name, Use.UPLOAD)
        folder = self.keys.shard(name, manifest.shard, manifest.shards)
        there = {item.key: item.nbytes for item in self.store.list(folder)}

        def send(number: int) -> None:
            begin, end = manifest.chunk(number)
            payload = read(begin, end)
            manifest.verify(number, payload, summing.value)
            self._throttle.take(end - begin)
            self._create_chunk(self.keys.chunk(manifest, number), payload)
            lease.renew()

        missing = [number for number, (key, nbytes) in enumerate(self._sizes(manifest)) if there.get(key) != nbytes]
        self.all_of(send, missing, f"{self.where}: upload of {manifest.name}", manifest.chunk_bytes)
        digest = digest_of(data)
        self.store.create(self.keys.manifest(name, manifest.shard, manifest.shards, digest), data)
        return digest

    def uploaded(self, commit: CommitId, shards: int) -> list[str]:
        """Digests of the manifests of a step that are there, by shard; one each, and none of a shard that is not."""
        name, found = name_of(commit), list[str]()
        for shard in range(shards):
            marks = (
                item.key.rpartition("/manifest-") for item in self.store.list(self.keys.shard(name, shard, shards))
            )
            digests = sorted(digest for _, mark, digest in marks if mark)
            found += digests[:1]
        return found

    def commit(self, commit: CommitId, digests: Sequence[str], metrics: Mapping[str, float] | None = None) -> Committed:
        """Make a step durable whose shards are all uploaded. Doing it again is success.

        Args:
            digests: what `upload` returned, by shard. metrics: of the step, for `Keep.best`.

        Raises:
            FencedError: this driver has a successor; whether the step counts is for the successor's fork to say.
            BusyError: the step is just being deleted, or may be, since this process was stopped for long.
            MissingError, CorruptError: a shard is not there in full, or is of another commit.
        """
        self.check_fence()
        name = name_of(commit)
        lease = self.leases.take(name, Use.READ)
        manifests = self._read_manifests(commit, digests)
        self._check_whole(name, manifests)
        self._check_forks(manifests)
        record = Committed(
            run=self.run,
            commit=commit,
            manifests=tuple(digests),
            nbytes=sum(manifest.nbytes for manifest in manifests),
            metrics=dict(metrics or {}),
            committed_at_s=self.leases.now_s(),
        )
        lease.check()
        try:
            self.store.create(self.keys.commit(name), record.encode())
        except TakenError:
            record = Committed.decode(self.store.read(self.keys.commit(name)))
        self.check_fence()
        with contextlib.suppress(StoreError):  # hints, and a lease that ends by itself
            lease.release()
            for newest in self.commits()[:1]:
                self._point_to(newest)
        return record

    # Looking

    def commits(self, *, also_void: bool = False) -> list[Committed]:
        """Durable steps, newest first: those on the newest line of history, or all. What cannot be read is left out."""
        return self.looked(also_void=also_void)[0]

    def durable(self) -> list[CommitId]:
        """Steps that have a COMMIT, their attempts left at 0: void ones, and what cannot be read, too."""
        return [commit for name in self._names("commits") if (commit := parse_name(name)) is not None]

    def looked(self, *, also_void: bool = False) -> tuple[list[Committed], dict[CommitId, str]]:
        """`commits`; and of those whose COMMIT is there, and cannot be read, why: a sentence each."""
        found, unread, forks = list[Committed](), dict[CommitId, str](), [] if also_void else self.forks()
        self._forget_all_but(names := self._names("commits"))
        for name in names:
            commit = parse_name(name)
            if commit is None or not is_visible(commit, forks):
                continue
            with contextlib.suppress(MissingError):  # deleted meanwhile
                try:
                    found.append(self._committed(name))
                except CorruptError as error:
                    unread[commit] = f"{self.where}: the COMMIT of step {commit.step} cannot be used: {error}"
        return sorted(found, key=lambda record: record.order, reverse=True), unread

    def manifest(self, record: Committed, shard: int) -> Manifest:
        """One shard's manifest of a durable step, checked against its COMMIT.

        Raises:
            MissingError, CorruptError.
        """
        return self._read_manifest(record.commit, shard, record.shards, record.manifests[shard])

    def check_complete(self, record: Committed) -> None:
        """Whether all objects of a durable step are there, with the right sizes; reads manifests, no payload.

        Raises:
            MissingError, CorruptError.
        """
        self._check_whole(record.name, self._read_manifests(record.commit, record.manifests))

    def lease_to_read(self, name: str) -> Lease:
        """Of a durable step. Once it is taken, looks again: a step whose COMMIT is gone may lack anything.

        Raises:
            BusyError: it is being deleted. MissingError: it has been.
        """
        lease = self.leases.take(name, Use.READ)
        try:
            self._check_durable(name)
        except MissingError:
            lease.release()
            raise
        return lease

    def check_unleased(self, name: str) -> None:
        """Look whether a durable step could be read now without a lease, where the tier takes none.

        Raises:
            BusyError: it is being deleted. MissingError: it has been.
        """
        self.leases.check_stays(name)
        self._check_durable(name)

    def _check_durable(self, name: str) -> None:
        if not is_stored(self.store, self.keys.commit(name)):
            raise MissingError(f"{self.where}: {name} has been deleted")

    def quarantine(self, commit: CommitId, reason: str) -> None:
        """Record that a step must not be restored again. The first reason stays."""
        with contextlib.suppress(TakenError):
            self.store.create(self.keys.quarantine(name_of(commit)), sealed("quarantine", {"reason": reason}))

    def quarantined(self) -> dict[CommitId, str]:
        """Reasons, by commit, its attempt left at 0; a reason that cannot be read counts, too."""
        named = [commit for name in self._names("quarantine") if (commit := parse_name(name)) is not None]
        return {one: self._reason("quarantine", self.keys.quarantine(name_of(one))) for one in named}

    def blame(self, commit: CommitId, reason: str) -> None:
        """Record that training failed soon after this life had begun from a step. The first reason stays."""
        with contextlib.suppress(TakenError):
            key = self.keys.failure(name_of(commit), self.incarnation)
            self.store.create(key, sealed("failure", {"reason": reason}))

    def blamed(self) -> list[tuple[CommitId, int, str]]:
        """(commit, the life of the driver that failed after it, why), oldest life first."""
        found = []
        for path in self._names("failures"):
            name, _, life = path.partition("/")
            commit = parse_name(name)
            if commit is not None and life.isdecimal():
                found.append((commit, int(life), self._reason("failure", f"{self.keys.folder('failures')}{path}")))
        return sorted(found, key=lambda row: row[1])

    # Transfers

    def all_of(self, work: Callable, items: Sequence, what: str, nbytes: int = 0) -> list:
        """`in_parallel` with this vault's threads and deadline; `nbytes`: the most that one item sends.

        Two shards at a time share a cap (`actors/uploading.py`), so that an item of one may wait for as many of the
        other as there are threads.
        """
        stall_s = self._stall_s + self._throttle.duration_s(2 * self._threads * nbytes)
        return in_parallel(work, items, threads=self._threads, stall_s=stall_s, what=what)

    def close(self) -> None:
        self.store.close()

    def _names(self, kind: str) -> list[str]:
        folder = self.keys.folder(kind)
        return [item.key.removeprefix(folder) for item in self.store.list(folder)]

    def _point_to(self, newest: Committed) -> None:
        """LATEST names it, unless it names a newer step by now: another driver may come between."""

        def is_older(latest: bytes) -> bool:
            name = latest.decode(errors="replace").strip()
            try:
                named = self._committed(name) if parse_name(name) is not None else None
            except (CorruptError, MissingError):
                named = None
            return named is None or not is_visible(named.commit, self.forks()) or named.order < newest.order

        self.store.advance(self.keys.latest, f"{newest.name}\n".encode(), is_older)

    def _reason(self, kind: str, key: str) -> str:
        try:
            return str(opened(kind, self.store.read(key))["reason"])
        except (CorruptError, MissingError, KeyError):
            return "not readable"

    def _committed(self, name: str) -> Committed:
        """Raises MissingError, CorruptError."""
        if name in self._commits:  # created once, so it cannot have changed
            return self._commits[name]
        record = Committed.decode(self.store.read(self.keys.commit(name)))
        if record.run != self.run or record.name != name:
            raise CorruptError(f"it is that of step {record.commit.step} of run {record.run}")
        self._commits[name] = record
        return record

    def _forget_all_but(self, names: Collection[str]) -> None:
        """Of steps that are there no more: a run of weeks has had thousands, and records of many shards are large."""
        for name in set(self._commits) - set(names):
            self._commits.pop(name, None)  # another thread may have done it

    def _read_manifests(self, commit: CommitId, digests: Sequence[str]) -> list[Manifest]:
        def one(shard: int) -> Manifest:
            return self._read_manifest(commit, shard, len(digests), digests[shard])

        return self.all_of(one, range(len(digests)), f"{self.where}: manifests of step {commit.step}")

    def _read_manifest(self, commit: CommitId, shard: int, shards: int, digest: str) -> Manifest:
        data = self.store.read(self.keys.manifest(name_of(commit), shard, shards, digest))
        what = f"{self.where}: the manifest of step {commit.step}, shard {shard} of {shards},"
        if digest_of(data) != digest:
            raise CorruptError(f"{what} is not the one that was committed")
        manifest = Manifest.decode(data)
        if (manifest.run, name_of(manifest.commit)) != (self.run, name_of(commit)):
            raise CorruptError(f"{what} is of {manifest.name}")
        if (manifest.shard, manifest.shards) != (shard, shards):
            raise CorruptError(f"{what} is of {manifest.name}")
        return manifest

    def _check_whole(self, name: str, manifests: Sequence[Manifest]) -> None:
        there = {item.key: item.nbytes for item in self.store.list(self.keys.step(name))}
        for manifest in manifests:
            for key, nbytes in self._sizes(manifest):
                if there.get(key) != nbytes:
                    raise MissingError(f"{self.where}: {manifest.name} is not there in full; upload it again")

    def _check_forks(self, manifests: Sequence[Manifest]) -> None:
        known = set(self.forks())
        for fork in {fork for manifest in manifests for fork in manifest.forks} - known:
            self.fork(fork)
            known.add(fork)
        is_first = self.incarnation == self.incarnations()[0]
        if not is_first and all(fork.incarnation != self.incarnation for fork in known):
            raise SettingError(
                f"{self.where}: incarnation {self.incarnation} has not said where its history begins; call fork first"
            )

    def _sizes(self, manifest: Manifest) -> Iterator[tuple[str, int]]:
        for number in range(len(manifest.chunks)):
            begin, end = manifest.chunk(number)
            yield self.keys.chunk(manifest, number), end - begin

    def _create_chunk(self, key: str, payload: Any) -> None:
        data = payload if isinstance(payload, bytes) else memoryview(payload)
        try:
            self.store.create(key, data)
        except TakenError:  # named by its sum, so what is there instead is damaged
            self.store.delete(key)
            self.store.create(key, data)


def open_vault(url: str, run: str, *, switch: Path | None = None, **settings: Any) -> Vault:
    """The vault of a run at a URL (`open_store`); `settings` are `Vault`'s.

    Args:
        switch: calls fail while this file says so (`stores.faulty`); None: they do not.

    Raises:
        SettingError: the URL, or the name of the run, cannot be used. StoreError: no credentials.
    """
    store = open_store(url)
    return Vault(store if switch is None else FaultyStore(store, switch), run, **settings)


def runs_of(store: Store) -> list[str]:
    """Names of the runs that have a durable step in a store. Raises StoreError."""
    parts = (item.key.split("/") for item in store.list(""))
    return sorted(
        {run for run, kind, *rest in (p for p in parts if len(p) == 3) if kind == "commits" and parse_name(rest[0])}
    )
