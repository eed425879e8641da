"""Effect. One worker process: the training thread on one side, the driver's calls on the other.

Plain Python: a Ray actor hosts it in a cluster, a child process in tests and on machines without Ray.
"""

import logging
import os
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from elastic.checkpoint.reach import Reach
from elastic.checkpoint.source import Source
from elastic.control import events as ev
from elastic.control.adoption import Adopted
from elastic.control.faults import Fault
from elastic.control.values import CommitId, View
from elastic.hosts.nvrx import Sections
from elastic.settings import RunSettings
from elastic.train.flight import FlightPage, page_path, storage_switch, sweep_pages
from elastic.train.heap import set_aside
from elastic.train.link import Link
from elastic.train.logs import LogBuffer
from elastic.train.runner import TrainFn, run_train_fn
from elastic.train.session import Surroundings
from elastic.train.sigterm import heed_sigterm
from elastic.train.traced import let_be_traced

log = logging.getLogger("elastic")

_WATCH_S = 1.0
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker is started with; `gang`: the replica that it is started for."""

    worker: str
    seed: int
    settings: RunSettings
    train_fn: TrainFn
    shard: int = 0
    gang: int = 0


class WorkerHost:
    """The methods that the driver calls; each returns at once, except `news`, which waits for some.

    `incarnation` is the driver's; one that is not heeded any more is told so by a SupersededError.

    Args:
        spec: who this is.
        host: address of this node for other workers.
        on_orphan: called when no driver was heard for the orphan lease, and the state is saved in the node's memory,
            before the process ends itself; with what was saved last, and the seconds that it has.
        dumps, ray_blocks: see `Surroundings`.
        peers: sources of checkpoints that this process cannot open by itself.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        host: str,
        on_orphan: Callable[[ev.ShardStaged | None, float], None] = lambda *_: None,
        dumps: Callable[[Any], bytes] = pickle.dumps,
        ray_blocks: Callable[[Any, float], Any] | None = None,
        peers: Callable[[], Sequence[Source]] = tuple,
    ) -> None:
        limits = spec.settings.limits
        self._link = Link(spec.worker, limits.lease_s, spec.settings.incarnation)
        self._place = {"gang": spec.gang, "shard": spec.shard, "pid": os.getpid()}
        page = FlightPage(page_path(spec.settings.run, spec.worker, spec.settings.incarnation))
        page.visible(os.environ.get("CUDA_VISIBLE_DEVICES", "") if spec.settings.scaling.use_gpu else "")
        self._run = spec.settings.run
        self._logs = LogBuffer(spec.worker, spec.settings.logs, lambda: (*page.placed, self._link.rank))
        self._logs.attach()
        self._page, self._orphan_lease_s, self._on_orphan = page, limits.orphan_lease_s, on_orphan
        self._save_s = limits.restore_timeout_s if spec.settings.checkpoint is not None else 0.0
        self._value: Any = None
        self._told, self._untold = 0, list[ev.Event]()
        if spec.settings.scaling.use_gpu and not torch.cuda.is_available():
            log.warning("Scaling.use_gpu is set and torch sees no GPU on %s: training on its CPU", host)
        checkpoint = spec.settings.checkpoint
        switch = storage_switch(spec.settings.run) if spec.settings.is_breakable else None
        sources = Reach(spec.settings.run, checkpoint, peers, switch).sources if checkpoint is not None else tuple
        use_cuda = spec.settings.scaling.use_gpu and torch.cuda.is_available()
        around = Surroundings(
            run=spec.settings.run,
            worker=spec.worker,
            host=host,
            device=torch.device("cuda" if use_cuda else "cpu"),
            seed=spec.seed,
            limits=limits,
            link=self._link,
            page=page,
            dumps=dumps,
            ray_blocks=ray_blocks,
            shard=spec.shard,
            width=spec.settings.scaling.workers_per_replica,
            threads=spec.settings.scaling.threads_per_worker,
            most_replicas=spec.settings.scaling.bounds[1],
            checkpoint=checkpoint,
            sources=sources,
            incarnation=spec.settings.incarnation,
            section=Sections(self._slow).section if use_cuda else nullcontext,
            has_nccl=spec.settings.scaling.has_nccl,
        )
        heed_sigterm(self.notice)
        let_be_traced()
        set_aside()
        arguments = (spec.train_fn, around, self._keep)
        threading.Thread(target=run_train_fn, args=arguments, name="elastic-train", daemon=True).start()
        threading.Thread(target=self._watch_for_driver, name="elastic-orphan-watch", daemon=True).start()

    def ready(self) -> int:
        """The pid; answers once the process is up."""
        self._link.touch()
        return os.getpid()

    def heeded(self) -> int:
        """Incarnation of the driver that this worker heeds; answered in the middle of an update, too."""
        return self._link.heeded

    def adopt(self, incarnation: int) -> Adopted:
        """Heed this driver from now on, and no older one; see `Link.adopt`."""
        return self._link.adopt(incarnation, **self._place)

    def events(self, timeout_s: float) -> list[ev.Event]:
        """News for the controller; waits for some, at most `timeout_s`. Renews the lease."""
        self._link.touch()
        return [*self._link.take_events(timeout_s), *self._logs.taken()]

    def news(self, incarnation: int, seen: int, timeout_s: float, told: tuple[int, int]) -> tuple[int, list[ev.Event]]:
        """Like `events`, with a number; what the caller has not `seen`, since an answer was lost, is told again.

        Args:
            told: (generation, step): all stable steps up to this one are in the journal.
        """
        self._link.touch(incarnation)
        self._link.told(*told)
        if seen == self._told:
            self._untold = [*self._link.take_events(timeout_s, incarnation), *self._logs.taken()]
            self._told += 1
        return self._told, self._untold

    def told(self, generation: int, published: int) -> None:
        """See `news`."""
        self._link.told(generation, published)

    def freeze(self, incarnation: int, generation: int) -> ev.FreezeAnswered | None:
        self._link.touch(incarnation)
        return self._link.freeze(generation, incarnation)

    def form(self, incarnation: int, view: View) -> bool:
        self._link.touch(incarnation)
        return self._link.form(view)

    def restore(self, incarnation: int, commit: CommitId, number: int) -> None:
        self._link.touch(incarnation)
        self._link.restore(commit, number, incarnation)

    def save(self, incarnation: int, commit: CommitId) -> None:
        self._link.touch(incarnation)
        self._link.save(commit, incarnation)

    def go(self, incarnation: int, generation: int) -> bool:
        self._link.touch(incarnation)
        return self._link.go(generation, incarnation)

    def connect(self, incarnation: int, view: View) -> None:
        self._link.touch(incarnation)
        self._link.connect(view)

    def pause(self, incarnation: int, generation: int, patience_s: float) -> None:
        self._link.pause(generation, incarnation, patience_s)

    def finish(self, incarnation: int) -> None:
        self._link.finish(incarnation)

    def dismiss(self, incarnation: int) -> None:
        self._link.dismiss(incarnation)

    def inject(self, fault: Fault) -> None:
        """Have train_fn raise."""
        self._link.inject(fault)

    def notice(self, reason: str) -> None:
        """This worker is to go soon: it leaves in good order."""
        self._link.notice(reason)

    def end(self) -> None:
        """The process is about to end: take the flight page away."""
        self._page.remove()

    def value(self) -> Any:
        """What train_fn returned."""
        return self._value

    def _slow(self, share: float) -> None:
        """What a profiler in this process says of its GPU."""
        self._link.post(ev.GpuSlow(worker=self._link.worker, share=share))

    def _keep(self, value: Any) -> None:
        self._value = value

    def _watch_for_driver(self) -> None:
        """A worker without a driver saves its state, and frees its slot by itself."""
        pause = threading.Event()
        while True:
            while self._link.silent_s < self._orphan_lease_s:
                pause.wait(min(_WATCH_S, self._orphan_lease_s / 4))
            if self._save_s:
                _within(self._save_s + _LEAVE_S, lambda: self._link.forsake(self._save_s, self._orphan_lease_s))
            if self._link.silent_s >= self._orphan_lease_s:  # else a driver has come after all
                break
        self._page.remove()
        sweep_pages(self._run)  # of those that were killed after their driver, which takes its host monitors along
        left_s = _LEAVE_S + self._save_s
        _within(left_s + _LEAVE_S, lambda: self._on_orphan(self._link.sealed, left_s))
        os._exit(1)


def _within(seconds: float, act: Callable[[], object]) -> None:
    """Go on after so many seconds, whether or not it has ended: the training thread may hang with the link's lock."""
    thread = threading.Thread(target=act, name="elastic-leaving", daemon=True)
    thread.start()
    thread.join(seconds)
