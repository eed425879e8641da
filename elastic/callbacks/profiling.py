"""Effect. Traces of some steps on some workers, by torch's profiler."""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic.callbacks.worker import WorkerCallback
from elastic.errors import SettingError

log = logging.getLogger("elastic")


class Profile(WorkerCallback):
    """Trace steps with torch.profiler: chosen ones, those after an incident, those after a checkpoint.

    A trace is a file `<folder>/<run>/<worker>-<why>-step<first>.json.gz` for Perfetto or chrome://tracing; why is
    `steps`, `checkpoint`, or `incident-<number>-g<generation>`: the first steps of the generation that followed it,
    with the number that `Incident.number` has; without one where a step was tried again and no incident was opened.
    Those of incidents are kept all; of the others the newest `keep` of each worker. Where its generation breaks, a
    trace ends.

    Cost: nothing in steps that are not traced. Traced steps take longer, which shows in their times, and so does
    starting and writing a trace, typically tenths of a second for which all replicas wait: told in `StepReport.costs`
    (of the leader), and for each trace, on whichever worker, as a `Noted` line in the journal, with its path.

    Args:
        folder: where workers write: a path of each node, or one that all share.
        steps: ranges of steps, e.g. `[range(100, 103)]`, traced as one; of `range(0, 9000, 1000)` each is by itself.
        ranks: replicas that are traced, by their rank at that time.
        after_incident: so many steps after an incident, or a step that had to be tried again; 0: none.
        every_checkpoint: the step after each so manieth staged one; 0: none.
        keep: see above. with_memory: trace allocations, too.

    Raises:
        SettingError: a number is negative, or nothing is asked for.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        steps: Sequence[range] = (),
        ranks: Sequence[int] = (0,),
        after_incident: int = 0,
        every_checkpoint: int = 0,
        keep: int = 8,
        with_memory: bool = False,
    ) -> None:
        if after_incident < 0 or every_checkpoint < 0 or keep < 1:
            raise SettingError("Profile: after_incident and every_checkpoint must not be negative, keep at least 1")
        if not (steps or after_incident or every_checkpoint):
            raise SettingError(
                "Profile traces nothing: give steps=[range(100, 103)], after_incident or every_checkpoint"
            )
        self._folder, self._steps, self._ranks = os.fspath(folder), tuple(steps), frozenset(ranks)
        self._after_incident, self._every_checkpoint = after_incident, every_checkpoint
        self._keep, self._with_memory = keep, with_memory
        self._session: Any = None
        self._trace: _Trace | None = None
        self._incident = False  # there was one, or the last attempt came to nothing
        self._number: int | None = None  # of the last incident, if it is news
        self._incidents: int | None = None  # when the last step began here
        self._staged = 0
        self._is_checkpoint = False
        self._has_failed = False

    def on_begin(self, session: Any) -> None:
        self._session = session

    def on_step_begin(self, step: Any) -> None:
        has_come = self._hear_of_incidents()
        if self._trace is not None:
            if not has_come:
                return
            trace, self._trace = self._trace, None
            self._write(trace, step)
        why, count = self._wanted(step)
        self._incident, self._number, self._is_checkpoint = False, None, False
        if count and self._session.rank in self._ranks:
            self._trace = _Trace(why, step.index, step.generation, count, self._with_memory)

    def on_step_end(self, step: Any) -> None:
        trace = self._trace
        if not step.is_committed:
            self._incident = self._after_incident > 0
        elif step.is_staged and self._every_checkpoint:
            self._staged += 1
            self._is_checkpoint = self._staged % self._every_checkpoint == 0
        if trace is None:
            return
        trace.left -= int(step.is_committed and step.is_last_phase)
        if trace.left <= 0 or not step.is_committed:
            self._trace = None
            self._write(trace, step)

    def on_end(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:  # a run that ends is told nothing more
            self._save(trace)

    def _hear_of_incidents(self) -> bool:
        """Whether there was one since the last step here: it may have found this worker between two steps."""
        before, self._incidents = self._incidents, self._session.incidents
        if not self._after_incident or before is None or self._incidents <= before:
            return False
        self._incident, self._number = True, self._incidents - 1
        return True

    def _wanted(self, step: Any) -> tuple[str, int]:
        """Why, and how many steps, from this one on."""
        if self._incident:
            which = f"incident-{self._number}" if self._number is not None else "incident"
            return f"{which}-g{step.generation}", self._after_incident
        for chosen in self._steps:
            if step.index in chosen:
                is_one_trace = abs(chosen.step) == 1
                return "steps", max(chosen[0], chosen[-1]) - step.index + 1 if is_one_trace else 1
        return ("checkpoint", 1) if self._is_checkpoint else ("", 0)

    def _write(self, trace: "_Trace", step: Any) -> None:
        since_s = time.perf_counter()
        path = self._save(trace)
        if path is not None:
            seconds = time.perf_counter() - since_s + trace.start_s
            self._session.note("profile", step=step.number, seconds=seconds, detail=str(path))

    def _save(self, trace: "_Trace") -> Path | None:
        """Where it is; None: it cannot be written, which is logged once."""
        session = self._session
        path = Path(self._folder) / session.run / f"{session.worker}-{trace.why}-step{trace.first}.json.gz"
        try:
            trace.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            trace.save(path)
            self._drop_old(path)
            self._has_failed = False
        except (OSError, RuntimeError) as error:  # a full disk ends no training; RuntimeError: torch could not open it
            if not self._has_failed:
                log.warning("a trace is not written to %s: %s", path, error)
            self._has_failed = True
            return None
        return path

    def _drop_old(self, newest: Path) -> None:
        mine = f"{self._session.worker}-"
        others = [
            path
            for path in newest.parent.glob(f"{mine}*.json.gz")
            if not path.name.startswith(f"{mine}incident-") and path != newest
        ]
        others.sort(key=lambda path: path.stat().st_mtime)
        for path in others[: max(0, len(others) + 1 - self._keep)]:
            path.unlink(missing_ok=True)


class _Trace:
    """A trace under way."""

    def __init__(self, why: str, first: int, generation: int, count: int, with_memory: bool) -> None:
        import torch

        since_s = time.perf_counter()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, profile_memory=with_memory)
        self._profiler.start()
        self.why, self.first, self.generation, self.left = why, first, generation, count
        self.start_s = time.perf_counter() - since_s

    def stop(self) -> None:
        self._profiler.stop()

    def save(self, path: Path) -> None:
        self._profiler.export_chrome_trace(str(path))
