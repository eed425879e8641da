"""Effect. One gloo group per generation: formed under cancellation, cut apart in about a millisecond.

`ProcessGroupGloo.abort()` does not free a pending collective (measured on torch 2.13), so `cut` shuts down exactly
the group's own sockets: the group has its own gloo device, whose listening port is published, and a socket belongs to
the group when one of its ends is a published address. Each candidate is duplicated before it is looked at, so a
descriptor that another thread closes and reuses meanwhile cannot be hit.

Most works are waited for in slices, since a cut does not always end them: gloo sometimes never ends one whose
connection was closed. Slices do not do for sends and receives, whose connection gloo closes when a wait times out, nor
for reduce-scatters, whose work ignores the timeout of `wait` (measured on torch 2.13). These are waited for in a thread
(`InOneGo`), which a cut leaves behind if need be.

This is the one module that touches torch's private `ProcessGroupGloo._Options` and `create_device`.
"""

import contextlib
import math
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from elastic.control.values import View
from elastic.errors import DivergenceError
from elastic.train.direct import SumTogether, can_go_together, to_everybody
from elastic.train.hangups import Hangups
from elastic.train.meeting import Store, StoreHost
from elastic.train.nccl import Lane, LaneWork, Nccl
from elastic.train.sockets import Address, listeners, own_sockets, plain, unreached

_POLL_S = 0.002
_SLICE = timedelta(milliseconds=50)
_NAMED = 8  # of those that were waited for in vain
_KNOCK_AFTER_S = 3.0  # to connect takes hundredths of a second, once all have met
_KNOCK_S = 1.0
_ONE_AT_A_TIME = threading.Lock()  # of the devices that are made: each is known by the socket that is new
_LEFT_BEHIND: list[Any] = []
Result = TypeVar("Result")


class FormingCancelledError(Exception):
    """A newer order arrived while the group was forming."""


class InOneGo:
    """Works for which a wait in slices does not do: `GlooGroup.wait` waits for them in a thread.

    Args:
        then: called there with the place of each of them, in their order, once it has ended.
        stream: of a GPU, in whose order the last of them is finished: a reduce-scatter copies its result in its wait.
    """

    def __init__(
        self, works: Sequence[Any], then: Callable[[int], object] = lambda place: None, stream: Any = None
    ) -> None:
        self.has_ended = threading.Event()
        self._works, self._then, self._stream = works, then, stream

    def wait(self, timeout: timedelta) -> None:
        try:
            with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
                for place, work in enumerate(self._works):
                    work.wait(timeout)
                    self._then(place)
        finally:
            self.has_ended.set()

    def is_completed(self) -> bool:
        """Whether they have ended; a reduce-scatter's own answer is never yes."""
        return self.has_ended.is_set() or all(work.is_completed() for work in self._works)


class GlooGroup:
    """The process group of one generation, as seen by one of its ranks.

    Args:
        nccl: for tensors on this worker's GPU; None: gloo takes them by way of this machine's memory.
        is_summing: whether gradients are summed over it.

    Attributes:
        missing: members that this one waits for, while it forms; empty where they are not known by name.
    """

    def __init__(
        self,
        view: View,
        rank: int,
        collective_timeout_s: float,
        prefix: str = "",
        nccl: Nccl | None = None,
        is_summing: bool = True,
    ) -> None:
        self.view = view
        self._prefix, self._nccl, self._is_summing = prefix, nccl, is_summing
        self.rank = rank
        self.size = len(view.members)
        self.is_cut = False
        self.missing: tuple[str, ...] = ()
        self._timeout, self._knob = timedelta(seconds=collective_timeout_s), "Limits.collective_timeout_s"
        self._pg: Any = None
        self._others: dict[str, Any] = {}
        self._lane: Lane | None = None
        self._lanes: dict[str, Lane] = {}
        self._wholes: dict[str, Any] = {}
        self._notes: list[Any] = []
        self._device: Any = None
        self._store: Store | None = None
        self._stop: Callable[[], bool] = lambda: self.is_cut
        self._deadline_s, self._within = math.inf, ""
        self._own_port = 0
        self._peers: set[Address] = set()
        self._members: dict[Address, str] = {}
        self._hangups: Hangups | None = None
        self._is_stuck = False

    def form(
        self,
        own: StoreHost,
        layout: str,
        is_cancelled: Callable[[], bool],
        timeout_s: float,
        knob: str = "Limits.door_timeout_s",
    ) -> None:
        """Connect to all members of the view.

        Args:
            own: the store this worker hosts; its address is where the others reach this worker.
            layout: digest of the reduction layout; must be the same on all ranks.
            is_cancelled: asked every few milliseconds while waiting for others.
            timeout_s: deadline for all of it. knob: the setting that says so.

        Raises:
            FormingCancelledError: a newer order arrived, or `cut` was called.
            TimeoutError: some ranks did not appear; names them.
            DivergenceError: ranks with another layout; names them.
        """
        self._stop = lambda: self.is_cut or is_cancelled()
        self._deadline_s, self._within = time.monotonic() + timeout_s, knob
        store = self._store = self._open_store()
        self._device, self._own_port = _listening_device(own.host)
        self._peers = {(self.view.leader.host, self.view.leader.port)}  # what a cut must reach while members meet
        presence = self._meet(store, f"{own.host} {self._own_port} {layout}")
        layouts = [entry.split(" ", 2)[2] for entry in presence]
        if len(set(layouts)) > 1:
            raise DivergenceError(f"ranks train different things (model, data, what is tracked): {_grouped(layouts)}")
        places = [(host, int(port)) for host, port, _ in (entry.split(" ", 2) for entry in presence)]
        self._peers.update(places)
        all_of_them = zip(places, self.view.members, strict=True)
        self._members = {place: member.worker for place, member in all_of_them if place != places[self.rank]}
        self._pg = self._connect("gloo", store, range(self.size))
        if self._nccl is not None and self._is_summing:
            self._lane = self._open_lane("sums", self._nccl, store, range(self.size))
        self._check("")

    def become(self, view: View) -> None:
        """Be the group of this view, whose members are those with whom it has connected."""
        self.view = view
        self._stop = lambda: self.is_cut

    def watch(self, tell: Callable[[str], None]) -> None:
        """From now on, have it told, once, in a thread, whose side of a connection has been closed.

        Until `unwatch`, or a cut: that closes connections here.
        """
        if self.size > 1:
            self._hangups = Hangups(self._whose, tell)
        if self.is_cut:
            self.unwatch()

    def unwatch(self) -> None:
        """Members may end from now on."""
        if self._hangups is not None:
            self._hangups.close()

    def other(self, name: str, ranks: Sequence[int]) -> Any:
        """Another gloo group among members, freed by the same cut; connected now, if all of them call this.

        Args:
            name: one for each group that is to have connections of its own. ranks: who belongs to it, in its order.

        Raises:
            FormingCancelledError: the group was cut.
            TimeoutError: some member did not call.
            RuntimeError: the connection broke.
        """
        store = self._store
        if name not in self._others and store is not None:
            self._others[name] = self._called(lambda: self._connect(name, store, ranks))
        return self._others.get(name)

    def other_lane(self, name: str, ranks: Sequence[int]) -> Lane | None:
        """The same on GPUs; None where gloo takes their tensors. Raises like `other`."""
        nccl, store = self._nccl, self._store
        if name not in self._lanes and nccl is not None and store is not None:
            return self._called(lambda: self._open_lane(name, nccl, store, ranks))
        return self._lanes.get(name)

    def _called(self, connect: Callable[[], Result]) -> Result:
        """Connect in the middle of training."""
        self._stop = lambda: self.is_cut
        self._deadline_s, self._within = time.monotonic() + self._timeout.total_seconds(), self._knob
        try:
            return connect()
        except TimeoutError as error:
            raise TimeoutError(
                "some worker did not come to a collective: call it on all of them (Limits.collective_timeout_s)"
            ) from error

    def _open_lane(self, name: str, nccl: Nccl, own: Store, ranks: Sequence[int]) -> Lane:
        """Known before it is connected, so that a cut reaches it."""
        lane = self._lanes[name] = Lane(nccl, self._timeout.total_seconds())
        store = dist.PrefixStore(self._key(f"nccl/{name}/"), own)
        self._aside(
            lambda: lane.connect(store, ranks.index(self.rank), len(ranks)),
            f"a connection by NCCL with each of {', '.join(self._places(ranks))}, who had all appeared",
        )
        return lane

    @contextlib.contextmanager
    def patient(self, heal_timeout_s: float) -> Iterator[None]:
        """What is started inside may take as long as healing does; the group is connected."""
        usual = self._timeout, self._knob
        self._timeout, self._knob = max(usual[0], timedelta(seconds=heal_timeout_s)), "Limits.heal_timeout_s"
        self._pg._set_default_timeout(self._timeout)
        try:
            yield
        finally:
            self._timeout, self._knob = usual
            if self._pg is not None:
                self._pg._set_default_timeout(self._timeout)

    def note(self, work: Any) -> None:
        """A work of another group has been started."""
        self._notes = [one for one in self._notes if not one.is_completed()] + [work]

    def has_pending_notes(self) -> bool:
        """Whether a work of another group is under way."""
        return any(not one.is_completed() for one in self._notes)

    def settle_notes(self, timeout_s: float) -> bool:
        """Whether works of other groups have ended, after a cut and a while."""
        return have_ended(self._notes, timeout_s)

    def whole(self, name: str, make: Callable[[], Any]) -> Any:
        """Something made once for this group, and let go of with it."""
        if name not in self._wholes:
            self._wholes[name] = make()
        return self._wholes[name]

    def finish(self, work: Any) -> None:
        """Wait for a work of another group, and forget it: some of gloo's never call themselves completed."""
        self.wait(work)
        self._notes = [one for one in self._notes if one is not work]

    def pass_on(self, work: LaneWork) -> None:
        """Have a stream wait for a work on a GPU, and forget it: what comes after it there waits, too."""
        work.pass_on()
        self._notes = [one for one in self._notes if one is not work]

    def finish_all(self) -> None:
        """Wait for all works of other groups; raises like `wait`."""
        for one in self._notes:
            self.finish(one)

    def allreduce(self, *tensors: torch.Tensor) -> Any:
        """Start a sum over all ranks, in place; several go in one message to everybody. Returns a work to wait for."""
        if self._lane is not None and self._nccl is not None and len(tensors) == 1 and self._nccl.takes(tensors[0]):
            return self._lane.allreduce(tensors[0])
        if len(tensors) > 1 or can_go_together(tensors, self.size):
            return SumTogether(self._pg, tensors)
        return self._pg.allreduce(list(tensors))

    def all_to_all(
        self, received: torch.Tensor, sent: torch.Tensor, received_bytes: list[int], sent_bytes: list[int]
    ) -> Any:
        """Start an exchange of contiguous tensors' bytes: some for each rank, in rank order; returns a work."""
        return self._pg.alltoall_base(received.view(torch.uint8), sent.view(torch.uint8), received_bytes, sent_bytes)

    def all_gather(self, gathered: torch.Tensor, mine: torch.Tensor) -> Any:
        """Start to collect all ranks' equally large, contiguous tensors, in rank order; returns a work."""
        parts = gathered.view(torch.uint8).chunk(self.size)
        return self._pg.allgather([list(parts)], [mine.view(torch.uint8)])

    def send(self, tensor: torch.Tensor, rank: int) -> Any:
        return self._pg.send([tensor], rank, 0)

    def recv(self, tensor: torch.Tensor, rank: int) -> Any:
        return self._pg.recv([tensor], rank, 0)

    def gather_words(self, words: list[int]) -> list[list[int]]:
        """All ranks' equally long lists of 64-bit integers."""
        mine = torch.tensor([word - (1 << 63) for word in words], dtype=torch.int64)
        return [[word + (1 << 63) for word in row] for row in self._gather(mine).tolist()]

    def gather_bytes(self, mine: bytes) -> list[bytes]:
        """What all ranks have to say, in rank order."""
        sizes = [row[0] for row in self.gather_words([len(mine)])]
        padded = torch.frombuffer(bytearray(mine.ljust(max(1, *sizes), b"\0")), dtype=torch.uint8)
        rows = self._gather(padded)
        return [row.numpy().tobytes()[:size] for row, size in zip(rows, sizes, strict=True)]

    def _gather(self, mine: torch.Tensor) -> torch.Tensor:
        """(ranks, elements): what all ranks have, which is equally much."""
        rows = torch.empty(self.size, mine.numel(), dtype=mine.dtype)
        is_small = can_go_together([mine], self.size)
        self.wait(to_everybody(self._pg, rows, mine) if is_small else self.all_gather(rows.view(-1), mine))
        return rows

    def wait(self, work: Any) -> None:
        """Wait for a work of this group.

        Raises:
            RuntimeError: it failed, or the group was cut. FormingCancelledError: the group was cut.
        """
        if isinstance(work, InOneGo):
            self._wait_aside(work)
            return
        while True:
            had_ended = work.is_completed()  # asked before: it may end between a slice's end and the question
            try:
                work.wait(_SLICE)
                return
            except RuntimeError as error:
                if had_ended:
                    self._name(error)
                    raise
                if self.is_cut:
                    self._is_stuck = self._is_stuck or not work.is_completed()
                    raise

    def _wait_aside(self, work: "InOneGo") -> None:
        try:
            _aside(lambda: work.wait(self._timeout), lambda: self.is_cut, math.inf, "a transfer or reduce-scatter")
        except RuntimeError as error:
            self._name(error)
            raise
        except FormingCancelledError:
            self._is_stuck = self._is_stuck or not work.has_ended.wait(_SLICE.total_seconds())
            raise

    def _name(self, error: RuntimeError) -> None:
        """Gloo tells of a wait that has ended in vain neither for whom it was nor what sets its length.

        Raises:
            RuntimeError: that says so, if this was such a wait.
        """
        told = self.named(str(error))
        if told != str(error):
            raise RuntimeError(told) from error

    def named(self, error: str) -> str:
        """With whom was waited for, and for how long, if that is what it tells of."""
        if not any(word in error.lower() for word in ("timed out", "timeout")):
            return error
        others = [member.worker for rank, member in enumerate(self.view.members) if rank != self.rank]
        more = f" and {len(others) - _NAMED} others" if len(others) > _NAMED else ""
        return (
            f"{', '.join(others[:_NAMED])}{more} have not all come to a collective, or a transfer, within "
            f"{self._knob}={self._timeout.total_seconds():g}: {error}"
        )

    def leave_behind(self) -> None:
        """An operation of this group may never end: keep what it uses, since taking it down would wait for it."""
        self._is_stuck = True

    def cut(self) -> None:
        """Free every pending operation of this group, here and at the neighbours; callable from any thread.

        Gloo's first: what an abort leaves on GPUs must not be followed by a word that all is well.
        """
        self.is_cut = True
        self.unwatch()
        try:
            for sock in own_sockets():
                with contextlib.suppress(OSError), sock:
                    if self._owns(sock):
                        sock.shutdown(socket.SHUT_RDWR)
        finally:
            self.cut_lanes()

    def cut_lanes(self) -> None:
        """Those of NCCL alone."""
        for lane in list(self._lanes.values()):
            lane.cut()

    def close(self) -> None:
        """Drop the group, whose works have ended, or were left behind."""
        if self._is_stuck:
            _LEFT_BEHIND.extend((self._pg, *self._others.values()))
        self.cut_lanes()
        self.unwatch()
        self._pg = self._device = self._lane = None
        self._others, self._wholes, self._notes = {}, {}, []
        if self._store is not None:
            self._store.close()

    def _owns(self, sock: socket.socket) -> bool:
        if sock.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        return sock.getsockname()[1] == self._own_port or plain(sock.getpeername()) in self._peers

    def _whose(self, sock: socket.socket) -> str | None:
        """With whom it connects this member; None: it is the store's, or not of this group."""
        if not self._owns(sock):
            return None
        if sock.getsockname()[1] == self._own_port:
            return "a member"  # which one is known to gloo alone
        return self._members.get(plain(sock.getpeername()))

    def _check(self, waiting_for: str) -> None:
        _check(self._stop, self._deadline_s, f"{waiting_for} ({self._within})")

    def _aside(self, make: Callable[[], Any], waiting_for: str, meanwhile: Callable[[], None] = lambda: None) -> Any:
        return _aside(make, self._stop, self._deadline_s, f"{waiting_for} ({self._within})", meanwhile)

    def _open_store(self) -> Store:
        """A connection of this group's own, for the leader too: it can be cut without harm to its store.

        Opened aside, since a host that is gone lets a connection wait.
        """
        leader = self.view.leader
        self.missing = (leader.worker,)
        whom = f"the store of the leader {leader.worker} at {leader.host}:{leader.port}"
        opened = self._aside(lambda: Store(leader.host, leader.port, self._check, whom), whom)
        assert isinstance(opened, Store)
        return opened

    def _connect(self, name: str, own: Store, ranks: Sequence[int]) -> Any:
        """Build a group; its constructor waits for others to connect, with no socket yet that a cut could shut."""
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [self._device]
        options._timeout = timedelta(seconds=max(_POLL_S, self._deadline_s - time.monotonic()))
        store = dist.PrefixStore(self._key(name), own)
        places = self._places(ranks)
        knock_s = time.monotonic() + _KNOCK_AFTER_S

        def knock() -> None:
            """Whoever is not reached either where its store listens is out of reach, and named."""
            nonlocal knock_s
            if time.monotonic() >= knock_s:
                found = unreached(places, _KNOCK_S, self._stop)
                self.missing = self.missing if found is None else found
                knock_s = time.monotonic() + _KNOCK_AFTER_S

        group = self._aside(
            lambda: dist.ProcessGroupGloo(store, ranks.index(self.rank), len(ranks), options),
            f"a connection with each of {', '.join(places)}, who had all appeared",
            knock,
        )
        self.missing = ()
        group._set_default_timeout(self._timeout)
        return group

    def _places(self, ranks: Sequence[int]) -> dict[str, Address]:
        """Where the stores of the others of these listen."""
        others = (self.view.members[rank] for rank in ranks if rank != self.rank)
        return {member.worker: (member.host, member.port) for member in others}

    def _meet(self, store: Store, entry: str) -> list[str]:
        """Publish an entry and wait for everybody's."""
        keys = [self._key(f"rank{rank}") for rank in range(self.size)]
        store.set(keys[self.rank], entry)
        while None in (entries := store.look(keys)):
            members = zip(self.view.members, entries, strict=True)
            self.missing = tuple(member.worker for member, found in members if found is None)
            self._check(f"members that did not appear: {', '.join(self.missing)}")
            time.sleep(_POLL_S)
        self.missing = ()
        return [found for found in entries if found is not None]

    def _key(self, name: str) -> str:
        return f"{self.view.run}/{self.view.incarnation}/{self.view.generation}/{self._prefix}{self.view.part}{name}"


def groups_of(
    view: View, worker: str, collective_timeout_s: float, prefix: str = "", nccl: Nccl | None = None
) -> list[GlooGroup]:
    """The groups of a member, not formed yet: with who holds the same shard, and with the other workers of its replica.

    The second one is left out where replicas have one worker.

    Args:
        prefix: of the keys under which its members meet.
        nccl: see `GlooGroup`.
    """
    views = views_of(view, worker)
    return [
        GlooGroup(one, one.rank_of(worker), collective_timeout_s, prefix, nccl, is_summing=not place)
        for place, one in enumerate(views)
    ]


def views_of(view: View, worker: str) -> list[View]:
    """Of the groups of a member: see `groups_of`."""
    replica, shard = divmod(view.rank_of(worker), view.width)
    return [view.across(shard), view.inside(replica)][: min(2, view.width)]


def cut_all(groups: Iterable[GlooGroup]) -> None:
    """See `GlooGroup.cut`."""
    for group in groups:
        group.cut()


def close_all(groups: Iterable[GlooGroup]) -> None:
    """Of a forming that failed: now, and not when the last reference goes, since one that is stuck is left behind."""
    for group in groups:
        group.close()


def have_ended(works: Sequence[Any], timeout_s: float) -> bool:
    """Whether these have, after a while: so long, or as long as one says that it takes it (`settle_s`)."""
    began_s = time.monotonic()
    while late := [work for work in works if not work.is_completed()]:
        if all(time.monotonic() - began_s > max(timeout_s, getattr(work, "settle_s", 0.0)) for work in late):
            return False
        time.sleep(_POLL_S / 2)
    return True


def _check(stop: Callable[[], bool], deadline_s: float, waiting_for: str) -> None:
    if stop():
        raise FormingCancelledError
    if time.monotonic() > deadline_s:
        raise TimeoutError(f"waited in vain for {waiting_for}")


def _aside(
    make: Callable[[], Any],
    stop: Callable[[], bool],
    deadline_s: float,
    waiting_for: str,
    meanwhile: Callable[[], None] = lambda: None,
) -> Any:
    """Run a call that blocks in C++ in a thread, which is left behind if the order is cancelled meanwhile."""
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run() -> None:
        try:
            made.put(make())
        except Exception as error:
            made.put(error)

    threading.Thread(target=run, name="elastic-aside", daemon=True).start()
    while True:
        with contextlib.suppress(queue.Empty):
            result = made.get(timeout=_POLL_S)
            if isinstance(result, Exception):
                raise result
            return result
        meanwhile()
        _check(stop, deadline_s, waiting_for)


def _grouped(layouts: list[str]) -> str:
    return "; ".join(
        f"{layout} on ranks {[r for r, x in enumerate(layouts) if x == layout]}" for layout in sorted(set(layouts))
    )


def _listening_device(host: str) -> tuple[Any, int]:
    """A gloo device of its own, and the port it listens on: the listener that was not there before."""
    with _ONE_AT_A_TIME:  # a group that is formed ahead, by another thread, has its own
        return _device_and_port(host)


def _device_and_port(host: str) -> tuple[Any, int]:
    before = listeners()
    device = dist.ProcessGroupGloo.create_device(hostname=host)
    new = [port for inode, port in listeners().items() if inode not in before]
    if len(new) != 1:
        raise RuntimeError(f"expected one new listening socket for gloo's device, found {len(new)}")
    return device, new[0]
