"""Pure. Callbacks: called at named moments, with values; subclass and override what you need.

A `Callback` runs in the thread that called `fit`, in the order of what happened; control does not wait for it. A
`WorkerCallback` is sent to every worker and runs inside its steps; training waits for it. `elastic.sinks` has callbacks
that write moments to a file, to TensorBoard, or post them.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from elastic.control.moments import (
    GaveUp,
    IncidentDecided,
    IncidentOpened,
    IncidentResolved,
    Moment,
    NodeQuarantined,
    NoticeHeard,
    Resized,
    RungReached,
    StragglerFound,
)
from elastic.control.pace import Resize
from elastic.control.state import RunState
from elastic.control.values import StepReport, View
from elastic.errors import SettingError

__all__ = [
    "Callback",
    "GaveUp",
    "IncidentDecided",
    "IncidentOpened",
    "IncidentResolved",
    "LinearLR",
    "Moment",
    "NodeQuarantined",
    "NoticeHeard",
    "Resize",
    "Resized",
    "RungReached",
    "ScaledLR",
    "SquareRootLR",
    "StragglerFound",
    "WorkerCallback",
    "by_place",
]


class Callback:
    """Does nothing. An exception in a callback ends the run, and is raised by fit()."""

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        """A step became stable."""

    def on_generation(self, view: View) -> None:
        """A new generation is training."""

    def on_state(self, state: RunState) -> None:
        """The controller's state changed."""

    def on_moment(self, moment: Moment) -> None:
        """All moments come through here: calls the method of the moment's name. Override it to get them all."""
        getattr(self, f"on_{moment.name}")(moment)

    def on_incident_opened(self, moment: IncidentOpened) -> None:
        """The first signal of a failure."""

    def on_incident_decided(self, moment: IncidentDecided) -> None:
        """The policy has said what is done about it."""

    def on_incident_resolved(self, moment: IncidentResolved) -> None:
        """The first step after an incident became stable."""

    def on_resized(self, moment: Resized) -> None:
        """A generation trains with another number of replicas."""

    def on_rung_reached(self, moment: RungReached) -> None:
        """A step has come to a rung of the checkpoint ladder."""

    def on_notice(self, moment: NoticeHeard) -> None:
        """A node or a worker will be lost soon."""

    def on_straggler(self, moment: StragglerFound) -> None:
        """A worker was slow for long."""

    def on_quarantine(self, moment: NodeQuarantined) -> None:
        """A node gets no worker for some time."""

    def on_give_up(self, moment: GaveUp) -> None:
        """The run ends without success."""

    def on_end(self) -> None:
        """fit() is about to return or raise; nothing is told any more."""


class WorkerCallback:
    """Does nothing. Each worker has its own copy; an exception in it ends the run with `TrainFnError`."""

    def on_resize(self, resize: Resize) -> None:
        """A step is about to be applied at another size than the one before it; before its optimizers run.

        Called on every worker that computes the step, once; not for an attempt that failed.
        """


def linear(batch: int, reference_batch: int) -> float:
    """Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017."""
    return batch / reference_batch


def square_root(batch: int, reference_batch: int) -> float:
    """For Adam and its kin: Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022."""
    return math.sqrt(batch / reference_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledLR(WorkerCallback):
    """Learning rates follow the global batch, by a rule of your own.

    The factor acts inside the optimizer's step alone: schedulers, and the rates in `param_groups`, never see it.

    Attributes:
        rule: (global batch, reference batch) -> factor; it must give the same number on every worker.
        warmup_steps: steps over which a factor rises after a resize; it falls at once.
        reference_batch: global batch at which your rates hold as they are; None: that of the first committed step.

    Raises:
        SettingError: a number is out of its range.
    """

    rule: Callable[[int, int], float]
    warmup_steps: int = 0
    reference_batch: int | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.warmup_steps < 0:
            raise SettingError(f"{name}.warmup_steps={self.warmup_steps} must not be negative")
        if self.reference_batch is not None and self.reference_batch < 1:
            raise SettingError(f"{name}.reference_batch={self.reference_batch} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearLR(ScaledLR):
    """Learning rates in proportion to the global batch."""

    rule: Callable[[int, int], float] = linear


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareRootLR(ScaledLR):
    """Learning rates in proportion to the square root of the global batch."""

    rule: Callable[[int, int], float] = square_root


def by_place(
    callbacks: Iterable[Callback | WorkerCallback],
) -> tuple[tuple[Callback, ...], tuple[WorkerCallback, ...]]:
    """Those that run in the driver, and those that run on workers, in their order.

    Raises:
        SettingError: one is neither, or two of them scale the learning rates.
    """
    all_of_them = tuple(callbacks)
    for one in all_of_them:
        if not isinstance(one, Callback | WorkerCallback):
            raise SettingError(
                f"callbacks holds {one!r}: derive it from elastic.callbacks.Callback, which runs where fit was "
                "called, or WorkerCallback, which runs on every worker"
            )
    on_workers = tuple(one for one in all_of_them if isinstance(one, WorkerCallback))
    rules = [type(one).__name__ for one in on_workers if isinstance(one, ScaledLR)]
    if len(rules) > 1:
        raise SettingError(f"callbacks holds {' and '.join(rules)}: only one of them can scale the learning rates")
    return tuple(one for one in all_of_them if isinstance(one, Callback)), on_workers
