"""Pure. What runs on every worker, inside its steps."""

from typing import Any

from elastic.control.pace import Resize


class WorkerCallback:
    """Does nothing. Each worker has its own copy; an exception in it ends the run with `TrainFnError`.

    Training waits for it. What the leader's `on_step_begin` and `on_step_end` take is told with the step, as
    `StepReport.costs`, and so is in the journal.
    """

    def on_begin(self, session: Any) -> None:
        """Before train_fn; with the `elastic.Session` that it will be given."""

    def on_step_begin(self, step: Any) -> None:
        """An attempt at a step (an `elastic.train.step.Step`) is about to be handed to train_fn."""

    def on_step_end(self, step: Any) -> None:
        """train_fn is back for the next one; `step.is_committed` says whether this one was applied here."""

    def on_resize(self, resize: Resize) -> None:
        """A step is about to be applied at another size than the one before it; before its optimizers run.

        Called on every worker that computes the step, once; not for an attempt that failed.
        """

    def on_end(self) -> None:
        """train_fn is over, however it ended."""
