"""Effect. What a worker's steps share: model and reducer, buffers, data, the group of the current generation."""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from elastic.control.data import MicroBatch, deal
from elastic.control.values import StepReport, View
from elastic.errors import StepMisuseError
from elastic.settings import Limits
from elastic.train.buffers import Buffers
from elastic.train.data import Batches
from elastic.train.flight import FlightPage
from elastic.train.gloo import GlooGroup
from elastic.train.link import Link
from elastic.train.reducer import Reducer
from elastic.train.step import Step
from elastic.train.tracked import Tracked
from elastic.train.watch import DIGEST_STEPS, Watch

_KEPT_REPORTS = 256  # more than a leader that dies can owe: it tells of each step as it becomes stable


class Replica:
    """The mutable heart of a session; users do not see it."""

    def __init__(self, link: Link, page: FlightPage, limits: Limits, seed: int) -> None:
        self.link = link
        self.page = page
        self.seed = seed
        self.grace_s = limits.blame_grace_s
        self.settle_timeout_s = limits.settle_timeout_s
        self.tracked = Tracked()
        self.watch = Watch(self, DIGEST_STEPS)
        self.scalers: list[Any] = []
        self.model: torch.nn.Module | None = None
        self.group: GlooGroup | None = None
        self.view: View | None = None
        self.unpublished: deque[StepReport] = deque(maxlen=_KEPT_REPORTS)
        self.on_report: Callable[[StepReport], None] = lambda report: None
        self._retired: list[GlooGroup] = []
        self._pending: Step | None = None
        self._reducer: Reducer | None = None
        self._buffers: Buffers | None = None
        self._batches: Batches | None = None

    # --- set up by the user's calls ---

    def adopt(self, model: torch.nn.Module, bucket_bytes: int, digest_steps: int, reproducible: bool) -> None:
        if self._reducer is not None:
            raise StepMisuseError("session.prepare was called twice: wrap several modules in one torch.nn.ModuleDict")
        self.model = model
        in_order = self._live_group if reproducible else None
        self._reducer = Reducer(model, self._launch, self.link.is_stepping, self.cut, bucket_bytes, in_order)
        self._buffers = Buffers(model)
        self.watch = Watch(self, digest_steps)

    def use(self, batches: Batches) -> None:
        self._batches = batches

    @property
    def reducer(self) -> Reducer:
        if self._reducer is None:
            raise StepMisuseError("no model: call session.prepare(model) before session.steps")
        return self._reducer

    @property
    def layout(self) -> str:
        """What replicas must agree on: how gradients are laid out, how data is cut, when state is compared."""
        return f"{self.reducer.layout}-{self.batches.fingerprint}-{self.watch.digest_steps}"

    @property
    def buffers(self) -> Buffers:
        if self._buffers is None:
            raise StepMisuseError("no model: call session.prepare(model) before session.steps")
        return self._buffers

    @property
    def batches(self) -> Batches:
        if self._batches is None:
            raise StepMisuseError("no data: pass the result of session.batches to session.steps")
        return self._batches

    # --- the current generation ---

    @property
    def rank(self) -> int:
        return self.group.rank if self.group else 0

    @property
    def replicas(self) -> int:
        return self.group.size if self.group else 1

    @property
    def generation(self) -> int:
        return self.view.generation if self.view else 0

    @property
    def incarnation(self) -> int:
        return self.view.incarnation if self.view else 0

    def join(self, group: GlooGroup, view: View) -> None:
        """The group of the view takes the place of the last one, whose works have all ended."""
        if self.group is not None:
            self._retired.append(self.group)  # closing costs milliseconds; not before the next commit
        self.group, self.view = group, view

    def cut(self) -> None:
        """Free whatever waits on the current group."""
        if self.group is not None:
            self.group.cut()

    def settle(self) -> None:
        """Have every reduction of a broken attempt end, or leave it behind."""
        if not self.reducer.settle(self.settle_timeout_s) and self.group is not None:
            self.group.leave_behind()

    def _live_group(self) -> GlooGroup:
        if self.group is None:
            raise RuntimeError("no group")
        return self.group

    def _launch(self, tensor: torch.Tensor) -> Any:
        return self._live_group().allreduce(tensor)

    # --- who computes what ---

    def dealt(self, step: int, attempt: int) -> list[MicroBatch]:
        """The micro-batches that this replica computes."""
        return self.batches.dealt(step, self._shares(step), self._player(self.rank, attempt))

    def hands(self, step: int, attempt: int) -> list[range]:
        """Numbers of the micro-batches of each rank; empty unless sums are made in order, which alone needs them."""
        if not self.reducer.is_ordered:
            return []
        count, shares = len(self.batches.plan.micro_batches(step)), self._shares(step)
        return [deal(count, shares, self._player(rank, attempt)) for rank in range(self.replicas)]

    def _player(self, rank: int, attempt: int) -> int:
        """Whose hand a rank plays: its own, and in a second attempt that of the rank before (`train/watch.py`)."""
        return (rank - attempt + 1) % self.replicas

    def _shares(self, step: int) -> tuple[int, ...]:
        return self.watch.shares(step, len(self.batches.plan.micro_batches(0)))

    # --- steps become stable ---

    def reduced(self, step: Step) -> None:
        """A reduction of this step has completed: all replicas have applied the one before it."""
        if self._pending is not None and self._pending.index < step.index:
            self.make_stable()

    def committed(self, step: Step) -> None:
        self._pending = step
        for group in self._retired:
            group.close()
        self._retired.clear()

    def make_stable(self) -> None:
        """The last applied step can not be lost any more: tell of it."""
        step, self._pending = self._pending, None
        if step is None:
            return
        for act in step.on_stable:
            act()
        report = StepReport(
            commit=step.commit,
            metrics=dict(step.metrics),
            replicas=step.replicas,
            samples=step.samples,
            started_at_s=step.started_at_s,
            committed_at_s=step.committed_at_s,
            skipped=step.skipped,
            seconds=step.seconds,
        )
        self.unpublished.append(report)
        self.on_report(report)

    def resume(self, view: View) -> None:
        """The state of the view's commit is in place."""
        if self._pending is not None and self._pending.index < view.resume.step:
            self.make_stable()  # a later step was applied somewhere, so all had applied this one

    def drop_published(self, last: int) -> None:
        """The driver knows the reports up to step `last`."""
        while self.unpublished and self.unpublished[0].commit.step <= last:
            self.unpublished.popleft()
