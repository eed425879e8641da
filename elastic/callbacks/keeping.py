"""Pure. Which steps are kept for good, said as a callback."""

from dataclasses import dataclass, replace

from elastic.callbacks.base import Callback
from elastic.errors import SettingError
from elastic.settings import Checkpoint, Interval, Keep


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheckpoint(Callback):
    """Write the model to the persistent tier every so many steps or seconds, and keep the best by a metric.

    It saves nothing itself: it sets `Checkpoint.persistent_interval` and `Checkpoint.keep` of the run, and the tiers do
    the rest. What is written is the newest snapshot at that time; to have one of those very steps, give
    `Checkpoint.local_interval` the same number. `elastic ls` lists what there is, `elastic export` makes files of it.

    Cost: that of the tiers. Uploads hold no worker up; what a snapshot takes from training is `Checkpoint.overhead` at
    most, or what a `local_interval` of yours asks for.

    Attributes:
        every_steps, every_s: between two; whichever comes first. Neither: as measured.
        top_k: steps with the best value of `metric` that are kept beside the newest; 0: none.
        metric: a name given to step.report, or `evaluation/<name>`; mode: "min" or "max".
        last: newest steps that are kept.
        persistent: where; None: as `Checkpoint.persistent` says.

    Raises:
        SettingError: a number is out of its range.
    """

    every_steps: int | None = None
    every_s: float | None = None
    top_k: int = 0
    metric: str = "loss"
    mode: str = "min"
    last: int = 2
    persistent: str | None = None

    def __post_init__(self) -> None:
        self.keep()
        self.interval()

    def keep(self) -> Keep:
        """As the persistent tier understands it."""
        return Keep(last=self.last, best=self.top_k, metric=self.metric, mode=self.mode)

    def interval(self) -> Interval:
        """As the persistent tier understands it."""
        return Interval(steps=self.every_steps, seconds=self.every_s)

    def configure(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        given = checkpoint or Checkpoint()
        persistent = self.persistent or given.persistent
        if persistent is None:
            raise SettingError(
                "ModelCheckpoint(persistent=...), or Checkpoint.persistent, must say where steps are kept"
            )
        if self.persistent is not None and given.persistent not in (None, self.persistent):
            raise SettingError("ModelCheckpoint(persistent=...) and Checkpoint.persistent differ: give one of them")
        if not given.upload_interval.is_auto and not self.interval().is_auto:
            raise SettingError("ModelCheckpoint and Checkpoint both say how often to save: give the interval to one")
        if given.keep not in (Keep(), self.keep()):
            raise SettingError("ModelCheckpoint and Checkpoint.keep both say what is kept: leave one of them out")
        interval = given.persistent_interval if self.interval().is_auto else self.interval()
        return replace(given, persistent=persistent, persistent_interval=interval, keep=self.keep())
