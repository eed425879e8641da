"""Pure. How a run ended, and what fit() returns."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from elastic.control.values import Incident


class Ending(Enum):
    """Why a run is over; the value names the error class that fit() raises, empty for none."""

    SUCCEEDED = ""
    STOPPED = "KeyboardInterrupt"
    DRIVER_FAILED = "Exception"  # the driver's own, or that of one of its callbacks
    TRAIN_FN_RAISED = "TrainFnError"
    NOT_ENOUGH_SLOTS = "NotEnoughSlotsError"
    NO_ROOM = "NoRoomError"
    REPLICAS_LOST = "ReplicasLostError"
    NO_PROGRESS = "NoProgressError"
    DIVERGED = "DivergenceError"
    EXITED = "ExitedError"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a run: kind, sentence, and the details that become attributes of the error."""

    ending: Ending
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What `elastic.fit` returns.

    Attributes:
        steps: committed steps.
        last_report: metrics of the last stable step, as given to `step.report`.
        value: what train_fn returned on the leader.
        world_sizes: replicas of each generation, in order; of the last 1,024 in a long run.
        incidents: failures that were survived; the last 64 or more in a long run, the journal has all.
        goodput: productive share of the worker-seconds of this life of the driver, see docs/goodput.md.
        run_dir: where the run's journal lies.
    """

    steps: int
    last_report: dict[str, float]
    value: Any
    world_sizes: list[int]
    incidents: list[Incident]
    goodput: float
    run_dir: str
