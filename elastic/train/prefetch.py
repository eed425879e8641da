"""Effect. Loader processes: they fetch the micro-batches that this replica is expected to compute next.

What a replica computes follows from the plan, so a forecast is made of it and handed, a few micro-batches ahead, to
torch's DataLoader. After a change of hands the forecast is made anew: what was loaded and is still expected is kept,
the rest is dropped. Nothing is lost by that, since a sample counts as consumed only when its step is committed.
"""

import multiprocessing
import os
import pickle
import selectors
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from elastic.control.data import MicroBatch
from elastic.errors import SettingError
from elastic.train.loading import Carried, Failure, Loading

Dumps = Callable[[Any], bytes]

_REVIVALS = 3  # of loader processes that died, without a micro-batch delivered in between

Span = tuple[int, int]  # which samples, whatever the number of the micro-batch in its step


class Prefetch:
    """The loader processes of one worker, and what they have been asked for.

    They start with `start`, end with the worker, however it ends, and have one torch thread each.

    Args:
        workers: number of processes. prefetch: micro-batches that each has ahead.
        dumps: pickles the dataset for them.

    Raises:
        SettingError: the dataset or the collate function can not be pickled.
    """

    def __init__(self, loading: Loading, workers: int, prefetch: int, dumps: Dumps = pickle.dumps) -> None:
        try:
            self._carried = Carried(dumps(loading))
        except Exception as error:  # each pickler, and each object in its way, has its own
            raise SettingError(
                f"session.batches(workers={workers}): dataset and collate go to other processes, and cannot be pickled "
                f"({type(error).__name__}: {error}); make them so, or leave workers=0"
            ) from error
        self._workers, self._prefetch = workers, prefetch
        self._asked: deque[Span] = deque()
        self._kept: dict[Span, Any] = {}
        self._source: Iterator[MicroBatch] = iter(())
        self._belongs_to: Hashable = None
        self._deaths = 0
        self._loader: DataLoader[Any] | None = None
        self._results: Iterator[Any] | None = None

    def start(self) -> None:
        """Start the processes, and wait until they are ready."""
        if self._loader is None:
            self._loader = self._new_loader()
            self._results = iter(self._loader)  # asks for nothing: starts them
            self._ask(())  # returns when each of them has answered

    def close(self) -> None:
        """End the processes."""
        self._loader = self._results = None  # the loader ends them with its last reference
        self._source = iter(())
        self._asked.clear()
        self._kept.clear()

    def take(self, wanted: MicroBatch, hand: Hashable, forecast: Callable[[], Iterator[MicroBatch]]) -> Any:
        """The micro-batch `wanted`, loaded.

        Args:
            hand: changes with everything that the forecast depends on but the progress of steps.
            forecast: the micro-batches to come, beginning with `wanted`.

        Raises:
            Exception: whatever the dataset raised, with its traceback as a note.
            RuntimeError: loader processes die again and again.
        """
        while True:
            try:
                batch = self._take(_span(wanted), hand, forecast)
                break
            except (RuntimeError, OSError, EOFError) as error:  # the dataset's come as Failure: a process has died
                self._bury(error)
        self._deaths = 0
        if isinstance(batch, Failure):
            batch.reraise()
        return batch

    def _take(self, wanted: Span, hand: Hashable, forecast: Callable[[], Iterator[MicroBatch]]) -> Any:
        if self._loader is None:
            self.start()
        if hand != self._belongs_to or not (wanted in self._kept or wanted in self._asked):
            self._belongs_to = hand
            self._ask_anew(forecast())
        if wanted in self._kept:
            return self._kept.pop(wanted)
        while True:
            span, batch = self._next()
            if span == wanted:
                return batch

    def _next(self) -> tuple[Span, Any]:
        """What was asked for longest ago; asks for one more."""
        if self._results is None:
            raise RuntimeError("no loader process")
        batch = next(self._results)
        return self._asked.popleft(), batch if isinstance(batch, Failure) else pickle.loads(batch)

    def _ask_anew(self, forecast: Iterator[MicroBatch]) -> None:
        """Another forecast: keep of what was loaded what it begins with, drop the rest.

        What could not be loaded is tried again: what has broken a generation may have hit its data, too.
        """
        self._source = iter(())
        loaded = dict(self._kept)
        while self._asked:
            span, batch = self._next()
            if not isinstance(batch, Failure):
                loaded[span] = batch
        ahead = list(islice(forecast, self._workers * self._prefetch))
        self._kept = {}
        missing = []
        for micro_batch in ahead:
            if (span := _span(micro_batch)) in loaded:
                self._kept[span] = loaded.pop(span)
            else:
                missing.append(micro_batch)
        self._ask(chain(missing, forecast))

    def _ask(self, forecast: Iterable[MicroBatch]) -> None:
        self._source = iter(forecast)
        if self._loader is not None:
            self._results = iter(self._loader)

    def _bury(self, error: Exception) -> None:
        """A loader process has died: start them all anew, unless that happens too often."""
        self.close()
        self._belongs_to = None
        self._deaths += 1
        if self._deaths > _REVIVALS:
            raise RuntimeError(
                f"loader processes died {self._deaths} times in a row ({error}): lower session.batches(workers=..., "
                "prefetch=...) if memory ran out"
            ) from error

    def _new_loader(self) -> DataLoader[Any]:
        context = multiprocessing.get_context("forkserver")  # a fork of this process would copy threads' locks
        context.set_forkserver_preload(["elastic.train.prefetch"])
        return DataLoader(
            self._carried,  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Sampler(self),
            num_workers=self._workers,
            prefetch_factor=self._prefetch,
            persistent_workers=True,
            collate_fn=_as_it_is,
            multiprocessing_context=context,
            worker_init_fn=partial(_end_with, os.getpid()),
            generator=torch.Generator(),  # its own: the loop's random numbers stay what they are
        )


class _Sampler:
    """What the DataLoader asks for the next thing to load; notes what it was told."""

    def __init__(self, prefetch: Prefetch) -> None:
        self._prefetch = prefetch

    def __iter__(self) -> Iterator[MicroBatch]:
        prefetch = self._prefetch
        while (micro_batch := next(prefetch._source, None)) is not None:  # a source may take the other's place
            prefetch._asked.append(_span(micro_batch))
            yield micro_batch


def _span(micro_batch: MicroBatch) -> Span:
    return micro_batch.first, micro_batch.count


def _as_it_is(batch: Any) -> Any:
    return batch


def _end_with(pid: int, number: int) -> None:
    """In a loader process: end as soon as the training process has, whatever it died of.

    Its parent is the fork server, which lives as long as any of its children; so nobody else would tell.
    """
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_wait_and_exit, args=(process,), name="elastic-end-with", daemon=True).start()


def _wait_and_exit(process: int) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(process, selectors.EVENT_READ)
        selector.select()
    os._exit(1)
