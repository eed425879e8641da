"""Effect. Iterable datasets: a fixed number of streams, each read by whichever replica it is dealt to.

Whoever reads a micro-batch of a stream also looks at the next one, so that its size is known before it is dealt, and
tells all others where the stream stands. That is part of the committed state: when a replica dies, others open its
streams anew and go on where the last committed step has left them.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import default_collate

from elastic.control.batch_size import FixedMicroBatches, FollowReplicas, batch_sizes
from elastic.control.data import MicroBatch, hash32, seed_of
from elastic.control.streams import Place, StreamMicroBatch, StreamPlan, advanced
from elastic.control.tuning import Tuning
from elastic.errors import NotStatefulError, SettingError, StateError
from elastic.train import rng, tree
from elastic.train.data import Source


@dataclass(frozen=True, slots=True)
class Entry:
    """A stream between two micro-batches; `state`: (bytes,) uint8, its packed state_dict at `place`."""

    place: Place
    state: torch.Tensor


class Table:
    """What committed steps have left of all streams; the same on all replicas.

    Args:
        streams, micro_batch_size: by which places are counted; another life must not have others.
    """

    def __init__(self, streams: int, micro_batch_size: int) -> None:
        self.entries: list[Entry] = []
        self._cut = {"streams": streams, "micro_batch_size": micro_batch_size}
        self._told = self._cut  # what the state says of it; older ones say nothing

    def commit(self, entries: list[Entry]) -> None:
        self.entries, self._told = entries, self._cut

    def state_dict(self) -> dict[str, Any]:
        return {
            **self._told,
            "places": [[one.place.epoch, one.place.taken, one.place.count] for one in self.entries],
            "states": [one.state for one in self.entries],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Raises:
            SettingError: it was cut into another number of streams, or into other micro-batches.
        """
        told = {name: state[name] for name in self._cut if state.get(name) is not None}
        counted = {"streams": len(state["places"])} if state["places"] else {}
        was = {**self._cut, **counted, **told}
        if was != self._cut:
            ours, theirs = (", ".join(f"{name}={value}" for name, value in one.items()) for one in (self._cut, was))
            raise SettingError(
                f"the stored state says where streams stand with {theirs}, and this run has {ours}: give "
                f"session.streams({theirs}), or start a run of another name"
            )
        pairs = zip(state["places"], state["states"], strict=True)
        self.entries, self._told = [Entry(Place(*place), packed.clone()) for place, packed in pairs], told


class Reader:
    """One stream, as one replica reads it.

    Args:
        open_stream: epoch -> the stream at its beginning.
        name: for messages. size: samples of a micro-batch. seed: of what the stream draws.
    """

    def __init__(self, open_stream: Callable[[int], Any], name: str, size: int, seed: int) -> None:
        self._open, self._name, self._size, self._seed = open_stream, name, size, seed
        self._stream: Any = None
        self._samples: Iterator[Any] = iter(())
        self._stands = (-1, -1)
        self._ahead: list[Any] = []

    def first(self) -> Entry:
        """What it begins with."""
        self._begin(0)
        return self._look(0, 0)

    def take(self, at: Entry) -> tuple[list[Any], Entry]:
        """The samples of the micro-batch at `at`, and where the stream stands after them.

        Raises:
            StateError: it does not give again, from its state, what it gave before.
        """
        place = at.place
        stands, self._stands = self._stands, (-1, -1)  # nowhere until the next place is known: all of this may raise
        if stands != (place.epoch, place.taken):
            self._begin(place.epoch, tree.unpack(tree.raw_bytes(at.state)))
            self._ahead = self._read(place.epoch, place.taken)
        samples = self._ahead
        if len(samples) != place.count:
            raise StateError(
                f"{self._name} gave {len(samples)} samples after load_state_dict, and {place.count} before: its "
                "state_dict() must hold everything that decides what comes next"
            )
        return samples, self._look(place.epoch, place.taken + 1)

    def let_go_unless_at(self, place: Place) -> None:
        """Where another replica has read on, what is open and read ahead here is of no use any more."""
        if self._stream is not None and self._stands != (place.epoch, place.taken):
            self._stream, self._samples, self._ahead, self._stands = None, iter(()), [], (-1, -1)

    def _look(self, epoch: int, taken: int) -> Entry:
        """Read the next micro-batch ahead; at the stream's end, the first one of its next epoch."""
        packed = tree.pack(self._stream.state_dict())
        self._ahead = self._read(epoch, taken)
        if self._ahead:
            self._stands = (epoch, taken)
            state = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
            return Entry(Place(epoch, taken, len(self._ahead)), state)
        if not taken:
            raise SettingError(f"{self._name} has no samples in epoch {epoch}: lower session.streams(streams=...)")
        self._begin(epoch + 1)
        return self._look(epoch + 1, 0)

    def _read(self, epoch: int, taken: int) -> list[Any]:
        rng.seed_all(self._seed, epoch, taken)
        return list(islice(self._samples, self._size))

    def _begin(self, epoch: int, state: Any = None) -> None:
        self._stream = self._open(epoch)
        if not all(hasattr(self._stream, name) for name in ("__iter__", "state_dict", "load_state_dict")):
            raise NotStatefulError(
                f"{self._name} is a {type(self._stream).__name__}: it needs __iter__, state_dict() and "
                "load_state_dict(), or nobody could go on with it when its reader dies"
            )
        if state is not None:
            self._stream.load_state_dict(state)
        self._samples = iter(self._stream)


class Streams(Source):
    """An iterable dataset as streams; see `Session.streams`."""

    def __init__(self, dataset: Any, plan: StreamPlan, collate: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self.fingerprint = f"{hash32(plan):08x}"
        self._empty_plan = self._untuned = plan
        self._collate = collate
        self._table = Table(plan.streams, plan.micro_batch_size)
        self._first: list[Entry] = []
        self._next: dict[int, Entry] = {}
        self._read: dict[StreamMicroBatch, Entry] = {}
        self._readers = [self._reader(dataset, stream) for stream in range(plan.streams)]

    @property
    def plan(self) -> StreamPlan:  # type: ignore[override]
        """Of the next step."""
        plan = self._empty_plan
        return StreamPlan(
            places=tuple(entry.place for entry in self._entries),
            streams=plan.streams,
            batch_size=plan.batch_size,
            micro_batch_size=plan.micro_batch_size,
            seed=plan.seed,
        )

    @property
    def outline(self) -> StreamPlan:
        return self._untuned

    def tune(self, tuning: Tuning) -> None:
        self._empty_plan = self._untuned.tuned(tuning)

    @property
    def tracked(self) -> dict[str, Any]:
        return {"elastic.streams": self._table}

    @property
    def is_closed(self) -> bool:  # type: ignore[override]
        return not self._entries

    def open(self) -> None:
        """Look at what each stream begins with. All replicas see the same."""
        self._first = [reader.first() for reader in self._readers]

    def take(self, micro_batch: MicroBatch, hand: Hashable, forecast: Callable[[], Iterable[MicroBatch]]) -> Any:
        self._let_go()
        return self._collate(self._samples(micro_batch))

    def offer(self, dealt: Sequence[MicroBatch]) -> bytes:
        """Where the streams that this replica was dealt stand after the step; reads what was left out."""
        self._let_go()
        for micro_batch in dealt:
            if micro_batch not in self._read:
                self._samples(micro_batch)
        entries = {one.stream: self._read[one] for one in dealt if isinstance(one, StreamMicroBatch)}
        return tree.pack(
            {
                stream: {"place": [one.place.epoch, one.place.taken, one.place.count], "state": one.state}
                for stream, one in entries.items()
            }
        )

    def receive(self, step: Sequence[MicroBatch], offers: Sequence[bytes]) -> None:
        """Where all streams of the step stand after it, as all replicas told; it counts once the step is committed.

        Raises:
            ConservationError: a stream was read by nobody, or by several.
        """
        told = [(stream, one) for offer in offers for stream, one in tree.unpack(offer).items()]
        after = advanced(step, [(stream, Place(*one["place"])) for stream, one in told])
        self._next = {stream: Entry(after[stream], one["state"]) for stream, one in told}

    def commit(self) -> None:
        entries = self._entries
        self._table.commit([self._next.get(stream, entry) for stream, entry in enumerate(entries)])
        self._first = []
        self._next = {}
        self._read = {}

    def close(self) -> None:
        self._readers = []

    def _let_go(self) -> None:
        """At the first word of a step: a group that changes would have each of its members hold all streams open."""
        if not self._read:
            for reader, entry in zip(self._readers, self._entries, strict=True):
                reader.let_go_unless_at(entry.place)

    @property
    def _entries(self) -> list[Entry]:
        return self._table.entries or self._first

    def _samples(self, micro_batch: MicroBatch) -> list[Any]:
        assert isinstance(micro_batch, StreamMicroBatch)
        stream = micro_batch.stream
        samples, self._read[micro_batch] = self._readers[stream].take(self._entries[stream])
        return samples

    def _reader(self, dataset: Any, stream: int) -> Reader:
        plan = self._empty_plan
        return Reader(
            lambda epoch: opener(dataset)(stream, plan.streams, epoch),
            f"stream {stream} of {plan.streams} of {type(dataset).__name__}",
            plan.micro_batch_size,
            seed_of(plan.seed, stream),
        )


def opener(dataset: Any) -> Callable[[int, int, int], Any]:
    """(index, count, epoch) -> that part of a dataset, at its beginning.

    Raises:
        SettingError: it can not be divided.
    """
    if _has(dataset, "stream"):
        opened: Callable[[int, int, int], Any] = dataset.stream
        return opened
    if _has(dataset, "shard", "state_dict", "load_state_dict"):  # as iterable datasets of Hugging Face
        return partial(_shard, dataset)
    raise SettingError(
        f"session.streams needs a dataset with stream(index, count, epoch), or with shard(num_shards, index) and "
        f"state_dict(), got {type(dataset).__name__}: a plain iterable can neither be divided nor taken up again where "
        "it was left"
    )


def _shard(dataset: Any, index: int, count: int, epoch: int) -> Any:
    part = dataset.shard(num_shards=count, index=index)
    if _has(part, "set_epoch"):
        part.set_epoch(epoch)
    return part


def _has(thing: Any, *names: str) -> bool:
    return all(callable(getattr(thing, name, None)) for name in names)


def make_streams(
    dataset: Any,
    *,
    batch_size: int | FollowReplicas | FixedMicroBatches,
    micro_batch_size: int | None,
    streams: int | None,
    seed: int,
    collate: Callable[[list[Any]], Any] | None,
) -> Streams:
    """See `Session.streams`."""
    opener(dataset)
    size, micro_batch = batch_sizes(batch_size, micro_batch_size)
    if streams is None and not isinstance(batch_size, int):
        raise SettingError(f"session.streams(batch_size={batch_size}): say how many streams, e.g. streams=64")
    number = streams if streams is not None else max(1, size.samples(1, micro_batch) // max(1, micro_batch))
    plan = StreamPlan(places=(), streams=number, batch_size=size, micro_batch_size=micro_batch, seed=seed)
    return Streams(dataset, plan, collate or default_collate)
