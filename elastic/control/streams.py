"""Pure. How iterable data is cut into steps: a fixed number of streams, of which a step takes one micro-batch each.

A stream is read in order by whichever replica it is dealt to. What each gives next is part of the committed state, so
a step follows from that state and the number of replicas, like one of a map-style dataset.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elastic.control.batch_size import BatchSize, tuned_sizes
from elastic.control.data import MicroBatch, seed_of
from elastic.control.tuning import Tuning
from elastic.errors import ConservationError, SettingError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stream stands after the committed steps.

    Attributes:
        epoch: how often it has been read to its end.
        taken: micro-batches consumed since.
        count: samples of the next one; at least 1, and fewer than usual only at the stream's end.
    """

    epoch: int
    taken: int
    count: int


@dataclass(frozen=True, slots=True)
class StreamMicroBatch(MicroBatch):
    """The next `count` samples of a stream, before which `first` micro-batches of this epoch were taken from it."""

    stream: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """The next step of streams that stand at `places`.

    A step takes a micro-batch from each of as many streams as it needs: those of which the fewest were taken in this
    epoch, in order. Streams that have ended wait for the others, and an epoch ends when all have; so its last steps
    take from fewer streams. Weights stay exact.

    Attributes:
        places: by stream; empty before anything was read, when there is no next step yet.
        streams: their number, which never changes in a run.

    Raises:
        SettingError: a batch is no multiple of micro_batch_size, or needs more streams than there are.
    """

    places: tuple[Place, ...]
    streams: int
    batch_size: BatchSize
    micro_batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.micro_batch_size < 1 or self.streams < 1:
            raise SettingError(
                f"micro_batch_size={self.micro_batch_size} and streams={self.streams} must be at least 1"
            )
        self._needed(1)

    def global_batch(self, replicas: int) -> int:
        """Samples of a step to which every stream contributes a whole micro-batch."""
        return self.batch_size.samples(replicas, self.micro_batch_size)

    def require(self, replicas: int) -> None:
        """
        Raises:
            SettingError: a step of so many replicas needs more streams than there are.
        """
        try:
            self._needed(replicas)
        except SettingError as error:
            raise SettingError(f"with {replicas} replicas, which Scaling.num_dp_replicas allows, {error}") from None

    def tuned(self, tuning: Tuning) -> "StreamPlan":
        """The same streams in steps of another size.

        Raises:
            SettingError: the sizes do not fit each other or the number of streams, or another micro-batch is wanted.
        """
        size, micro_batch_size = tuned_sizes(self.batch_size, self.micro_batch_size, tuning)
        if micro_batch_size != self.micro_batch_size:
            raise SettingError(
                f"where streams stand is counted in micro-batches of {self.micro_batch_size}: micro_batch_size can not "
                "be tuned where data comes from session.streams"
            )
        return replace(self, batch_size=size)

    def epoch_of(self, consumed: int) -> int:
        """The epoch of the next step."""
        return min((place.epoch for place in self.places), default=0)

    def cut(self, consumed: int, replicas: int) -> tuple[StreamMicroBatch, ...]:
        """The micro-batches of the next step; fewer replicas, should it be tried again, get a prefix of them."""
        epoch = self.epoch_of(consumed)
        live = [stream for stream, place in enumerate(self.places) if place.epoch == epoch]
        chosen = sorted(live, key=lambda stream: self.places[stream].taken)[: self._needed(replicas)]
        return tuple(
            StreamMicroBatch(number, self.places[stream].taken, self.places[stream].count, stream, epoch)
            for number, stream in enumerate(chosen)
        )

    def micro_batch_hash(self, micro_batch: MicroBatch) -> int:
        """32 bits that stand for the samples of one micro-batch in the conservation record."""
        assert isinstance(micro_batch, StreamMicroBatch)
        where = (micro_batch.stream, micro_batch.epoch, micro_batch.first, micro_batch.count)
        return seed_of(self.seed, *where) & 0xFFFFFFFF

    def _needed(self, replicas: int) -> int:
        """Micro-batches of a step."""
        batch = self.global_batch(replicas)
        if batch % self.micro_batch_size:
            raise SettingError(f"a batch of {batch} is no multiple of micro_batch_size={self.micro_batch_size}")
        if batch // self.micro_batch_size > self.streams:
            raise SettingError(
                f"a step of {batch // self.micro_batch_size} micro-batches takes each from a stream of its own, and "
                f"there are {self.streams}: raise session.streams(streams=...)"
            )
        return batch // self.micro_batch_size


def advanced(step: Sequence[MicroBatch], told: Sequence[tuple[int, Place]]) -> dict[int, Place]:
    """Where the streams of a step stand after it, from what all replicas told of those that they read.

    Raises:
        ConservationError: a stream of the step was read by nobody or by several, or stands where it can not.
    """
    after = dict(told)
    wanted = {one.stream: one for one in step if isinstance(one, StreamMicroBatch)}
    if len(after) != len(told) or after.keys() != wanted.keys():
        raise ConservationError(
            f"streams {sorted(stream for stream, _ in told)} were read in a step that takes from {sorted(wanted)}; no "
            "optimizer was run"
        )
    for stream, place in after.items():
        one = wanted[stream]
        if (place.epoch, place.taken) not in ((one.epoch, one.first + 1), (one.epoch + 1, 0)):
            raise ConservationError(f"stream {stream} went from {one} to {place}; no optimizer was run")
    return after
