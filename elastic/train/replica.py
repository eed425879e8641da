"""Effect. What a worker's steps share: model and reducer, buffers, data, the group of the current generation."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from elastic.control.pace import Pace, RateRule, Resize, next_pace, resize_of
from elastic.control.values import StepReport, View
from elastic.errors import StepMisuseError
from elastic.settings import Limits
from elastic.train.buffers import Buffers
from elastic.train.cursor import Cursor, rates
from elastic.train.data import Batches
from elastic.train.flight import FlightPage
from elastic.train.gloo import GlooGroup
from elastic.train.link import Link
from elastic.train.reducer import Reducer
from elastic.train.step import Step
from elastic.train.tracked import Tracked

_CURSOR = "elastic.cursor"  # no name that session.track can be given
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
        self.cursor = Cursor()
        self.tracked.add({_CURSOR: self.cursor})
        self.rate_rule: RateRule | None = None
        self.on_resize: list[Callable[[Resize], None]] = []
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

    def adopt(self, model: torch.nn.Module, bucket_bytes: int) -> None:
        if self._reducer is not None:
            raise StepMisuseError("session.prepare was called twice: wrap several modules in one torch.nn.ModuleDict")
        self.model = model
        self._reducer = Reducer(model, self._launch, self.link.is_stepping, self.cut, bucket_bytes)
        self._buffers = Buffers(model)

    def use(self, batches: Batches) -> None:
        self._batches = batches

    @property
    def reducer(self) -> Reducer:
        if self._reducer is None:
            raise StepMisuseError("no model: call session.prepare(model) before session.steps")
        return self._reducer

    @property
    def layout(self) -> str:
        """What replicas must agree on: how gradients are laid out, and how data is cut."""
        return f"{self.reducer.layout}-{self.batches.fingerprint}"

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

    def _launch(self, tensor: torch.Tensor) -> Any:
        if self.group is None:
            raise RuntimeError("no group")
        return self.group.allreduce(tensor)

    # --- the size of a step ---

    def next_pace(self, index: int) -> Pace:
        """The pace of step `index` in the current generation."""
        batch = self.batches.plan.global_batch(self.replicas)
        return next_pace(self.cursor.pace, index, self.replicas, batch, self.rate_rule)

    def tell_resize(self, index: int, pace: Pace, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Inside apply: call what is to be called if the size has changed since the last committed step."""
        last = self.cursor.pace
        if last is None or last.replicas == pace.replicas or not self.on_resize:
            return
        resize = resize_of(last, pace, index, rates(optimizers))
        for act in self.on_resize:
            act(resize)

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
