"""Pure. What callbacks are called with, and where they run.

A `Callback` runs in the thread that called `fit`, in the order of what happened; control does not wait for it. A
`WorkerCallback` is sent to every worker and runs inside its steps; training waits for it.
"""

from collections.abc import Callable, Iterable
from typing import Any

from elastic.callbacks.rates import ScaledLR
from elastic.callbacks.worker import WorkerCallback
from elastic.control.moments import (
    GaveUp,
    IncidentDecided,
    IncidentOpened,
    IncidentResolved,
    Moment,
    NodeQuarantined,
    NoticeHeard,
    Resized,
    RungDegraded,
    RungReached,
    StragglerFound,
)
from elastic.control.state import RunState
from elastic.control.tuning import Tuning
from elastic.control.values import StepReport, View
from elastic.errors import SettingError
from elastic.settings import Checkpoint


class Callback:
    """Does nothing. An exception in a callback ends the run, and is raised by fit()."""

    def configure(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Before the run: the checkpoint settings as this callback needs them.

        Raises:
            SettingError: it can not work with them.
        """
        return checkpoint

    def on_begin(self, tune: Callable[[Tuning], None]) -> None:
        """Before anything else; `tune(wish)` asks for what `elastic tune` does, at any time, and does not wait."""

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

    def on_rung_degraded(self, moment: RungDegraded) -> None:
        """A rung of the checkpoint ladder is not what was asked for, or is again."""

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


def by_place(
    callbacks: Iterable[Callback | WorkerCallback],
) -> tuple[tuple[Callback, ...], tuple[WorkerCallback, ...]]:
    """Those that run in the driver, and those that run on workers, in their order.

    Raises:
        SettingError: one is neither, or two of them scale the learning rates.
    """
    all_of_them: tuple[Any, ...] = tuple(callbacks)
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


def configured(callbacks: Iterable[Callback], checkpoint: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint settings as all of these need them. Raises: SettingError: one can not work with them."""
    for one in callbacks:
        checkpoint = one.configure(checkpoint)
    return checkpoint
