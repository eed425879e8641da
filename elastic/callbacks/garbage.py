"""Effect. Python's garbage collection at the same step on all workers."""

import gc
from typing import Any

from elastic.callbacks.worker import WorkerCallback
from elastic.errors import SettingError


class CollectGarbage(WorkerCallback):
    """Collect garbage every so many steps, on all workers before the same step, and at no other time.

    Python collects when a process has made so many objects. Each worker comes to that at a step of its own, and as all
    wait for the slowest, a run of many workers pays for every one's collection. Collected together, they are paid once.

    Cost: one collection in `every_steps` steps, tens of milliseconds or more where there are millions of objects; told
    in `StepReport.costs`. Between two, cycles of garbage stay in memory. Objects made before train_fn (imports) are set
    aside first, and not looked at again (`gc.freeze`).

    Args:
        every_steps: between two collections. generation: the oldest that is collected, 0 to 2 (everything).

    Raises:
        SettingError: a number is out of its range.
    """

    def __init__(self, every_steps: int = 100, generation: int = 2) -> None:
        if every_steps < 1 or generation not in (0, 1, 2):
            raise SettingError(
                f"CollectGarbage(every_steps={every_steps}, generation={generation}): every_steps must be at least 1, "
                "generation 0, 1 or 2"
            )
        self._every_steps, self._generation = every_steps, generation
        self._was_on = False

    def on_begin(self, session: Any) -> None:
        self._was_on = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()

    def on_step_begin(self, step: Any) -> None:
        if step.phase == 0 and step.index % self._every_steps == 0:
            gc.collect(self._generation)

    def on_end(self) -> None:
        gc.unfreeze()
        if self._was_on:
            gc.enable()
