"""Effect. Who needs the objects of a step in the persistent tier, and until when; and that somebody is deleting them.

Each party writes its own sign first and then looks for the other's, so at least one of the two sees the other and
stands back: `Leases.take` writes a lease and looks for a mark, `Leases.clearing` writes a mark and looks for leases.
"""

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterator
from enum import Enum

from elastic.checkpoint.records import Keys, opened, sealed
from elastic.checkpoint.store import MissingError, Store, StoreError
from elastic.errors import CorruptError

SKEW_S = 60.0  # clocks of nodes differ by less


class BusyError(StoreError):
    """The step's objects are being deleted, or may not be deleted now; try again later."""


class Use(Enum):
    """What a lease is for. Once a step is durable, what its uploaders still hold is of no account."""

    UPLOAD = "upload"
    READ = "read"


class Lease:
    """A sign that somebody needs the objects of a step until a time of the wall clock; renewed while it is used."""

    def __init__(self, leases: "Leases", name: str, use: Use) -> None:
        self._leases, self._name = leases, name
        self._key = f"{leases.keys.leases(name)}{use.value}-{leases.holder}-{next(leases.numbers)}"
        self._until_s = 0.0

    def renew(self) -> None:
        """Write it anew once half of it has passed. Any thread; writing it twice does no harm. Raises StoreError."""
        now_s = self._leases.now_s()
        if self._until_s - now_s > self._leases.lease_s / 2:
            return
        before_s, until_s = self._until_s, now_s + self._leases.lease_s
        self._until_s = until_s  # other threads need not write it, too
        try:
            self._leases.store.put(self._key, sealed("lease", {"name": self._name, "until_s": until_s}))
        except StoreError:
            self._until_s = before_s
            raise

    def check(self) -> None:
        """Raises BusyError: it is over, since this process has been stopped, and others may have deleted the step."""
        if self._leases.now_s() > self._until_s:
            raise BusyError(f"{self._name}: the lease on it is over, since this took longer than it lasts; try again")

    def release(self) -> None:
        """Give it up. Raises StoreError."""
        self._leases.store.delete(self._key)


class Leases:
    """Of the steps of one run.

    Attributes:
        holder: tells this process' signs from others', and `numbers` one of its leases from another.
        lease_s: how long a lease lasts. now_s: reads the wall clock.
    """

    def __init__(self, store: Store, keys: Keys, lease_s: float, now_s: Callable[[], float]) -> None:
        self.store, self.keys, self.lease_s, self.now_s = store, keys, lease_s, now_s
        self.holder, self.numbers = uuid.uuid4().hex, itertools.count()

    def take(self, name: str, use: Use) -> Lease:
        """
        Raises:
            BusyError: the step's objects are being deleted.
        """
        lease = Lease(self, name, use)
        lease.renew()
        try:
            self.check_stays(name)
        except BusyError:
            lease.release()
            raise
        return lease

    def check_stays(self, name: str) -> None:
        """Raises BusyError: the step's objects are being deleted."""
        if any(self.store.list(self.keys.clearing(name))):
            raise BusyError(f"{self._where(name)} is being deleted; try again later, or take another step")

    def is_taken(self, name: str, *, is_durable: bool) -> bool:
        """Whether anybody needs a step's objects now. A lease that cannot be read counts as a full one."""
        prefix = self.keys.leases(name) + (Use.READ.value if is_durable else "")
        return any(
            self._until_s(item.key, item.modified_at_s) + SKEW_S > self.now_s() for item in self.store.list(prefix)
        )

    @contextlib.contextmanager
    def clearing(
        self, name: str, *, is_durable: bool, is_due: Callable[[], bool] = lambda: True
    ) -> Iterator[Callable[[], None]]:
        """While it lasts, nobody begins to use the step's objects. After a failure the mark stays, until it is old.

        Args:
            is_due: asked behind the mark: whether the step is still to go.

        Yields:
            What is to be called before each deletion. Raises BusyError once the mark is so old that others may take it
            for a dead man's: this process has been stopped, and somebody may read the step by now.

        Raises:
            BusyError: somebody needs them, or deletes them already; or they are not to go any more.
        """
        until_s = self.now_s() + self.lease_s

        def check() -> None:
            if self.now_s() > until_s:
                raise BusyError(f"{self._where(name)}: its deletion took longer than {self.lease_s:.0f} s")

        # Of this call alone: to take it away, late or once more, takes away no other collector's.
        # And empty: for a name there mostly is room on a mount that is full.
        mark = f"{self.keys.clearing(name)}{self.holder}-{next(self.numbers)}"
        self.store.create(mark, b"")
        try:
            if any(item.key != mark for item in self.store.list(self.keys.clearing(name))):
                raise BusyError(f"{self._where(name)} is being deleted by somebody else")
            if self.is_taken(name, is_durable=is_durable):
                raise BusyError(f"{self._where(name)} is needed by somebody; it stays until their lease ends")
            if not is_due():
                raise BusyError(f"{self._where(name)} was to go by what was known before; it is looked at again")
        except Exception:
            self.store.delete(mark)
            raise
        yield check
        self.store.delete(mark)

    def _where(self, name: str) -> str:
        return f"{self.store.url}/{self.keys.run}: {name}"

    def _until_s(self, key: str, modified_at_s: float) -> float:
        try:
            return float(opened("lease", self.store.read(key))["until_s"])
        except MissingError:
            return 0.0
        except (CorruptError, KeyError, TypeError, ValueError):
            return modified_at_s + self.lease_s
