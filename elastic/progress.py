"""Effect. One live line for a run: step, loss, replicas, generation, goodput so far; incidents get their own."""

import contextlib
import shutil
import sys
import time
from typing import TextIO

from elastic.callbacks import Callback, IncidentOpened, IncidentResolved
from elastic.control.state import Phase, RunState, Standing
from elastic.control.values import StepReport, View

_REDRAW_S = 0.2
_LINE_S = 5.0
_COLUMNS = 100  # of a terminal that does not tell


class Progress(Callback):
    """Rewrites one line on a terminal; elsewhere writes a line every few seconds.

    Cost: nothing on workers; a write to `stream`, a few times a second at most, where `fit` was called.

    Args:
        stream: default: stderr.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream: TextIO | None = stream or sys.stderr  # which is None where it was closed before Python began
        self._is_terminal = self._stream is not None and self._stream.isatty()
        self._drawn_s = float("-inf")
        self._waiting = ""
        self._is_drawn = False

    def on_state(self, state: RunState) -> None:
        if state.phase is not Phase.STARTING:
            return
        ready, coming = len(state.standing(Standing.PARKED)), len(state.standing(Standing.LOADING))
        slotless = len(state.standing(Standing.REQUESTED))
        text = f"starting: {ready} workers ready, {coming} loading, {slotless} without a slot"
        if text != self._waiting:
            self._waiting = text
            self._draw(text)

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        now_s = time.monotonic()
        if now_s - self._drawn_s < (_REDRAW_S if self._is_terminal else _LINE_S):
            return
        self._drawn_s = now_s
        metrics = "  ".join(f"{name} {value:.4f}" for name, value in report.metrics.items())
        spares = len(state.standing(Standing.PARKED))
        self._draw(
            f"step {report.commit.step:>6}  {metrics}  replicas {report.replicas} (+{spares} spare)  "
            f"generation {report.commit.generation}  goodput {goodput:.1%}"
        )

    def on_generation(self, view: View) -> None:
        self.say(f"generation {view.generation}: {view.replicas} replicas from step {view.resume.step + 1}")

    def on_incident_opened(self, moment: IncidentOpened) -> None:
        incident = moment.incident
        who = ", ".join(incident.culprits) or "nobody to blame yet"
        self.say(f"incident {incident.number}: {incident.kind.value}: {who}")

    def on_incident_resolved(self, moment: IncidentResolved) -> None:
        incident = moment.incident
        told = f"incident {incident.number}: {incident.decision}"
        self.say(f"{told}; step {incident.step} committed {moment.seconds:.2f} s after")

    def on_end(self) -> None:
        """What is written next begins a line."""
        if self._is_drawn:
            self._write("\n")
        self._is_drawn = False

    def say(self, text: str) -> None:
        """A line that stays."""
        self._write(f"\r\x1b[K{text}\n" if self._is_terminal else text + "\n")
        self._is_drawn = False

    def _draw(self, text: str) -> None:
        if not self._is_terminal:
            self._write(text + "\n")
            return
        columns = shutil.get_terminal_size((_COLUMNS, 24)).columns
        self._write(f"\r\x1b[K{text[: columns - 1]}")  # a line that wraps could not be taken back
        self._is_drawn = True

    def _write(self, text: str) -> None:
        """A terminal that is gone, or a disk that is full, ends no training."""
        if self._stream is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
