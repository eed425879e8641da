"""Pure. Callbacks: called at named moments, with values; subclass and override what you need.

They run in the thread that called `fit`, in the order of what happened; control does not wait for them.
"""

from elastic.control.state import RunState
from elastic.control.values import Incident, StepReport, View


class Callback:
    """Does nothing. An exception in a callback ends the run, and is raised by fit()."""

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        """A step became stable."""

    def on_generation(self, view: View) -> None:
        """A new generation is training."""

    def on_incident(self, incident: Incident) -> None:
        """An incident was opened."""

    def on_resume(self, incident: Incident) -> None:
        """The first step after an incident became stable."""

    def on_state(self, state: RunState) -> None:
        """The controller's state changed."""
