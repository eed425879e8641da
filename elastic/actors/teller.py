"""Effect. Tells callbacks what has happened, in its order, in the thread that called `fit`."""

import logging
from collections.abc import Callable, Sequence

from elastic.callbacks.base import Callback
from elastic.checkpoint.rungs import CheckpointRung, Degraded
from elastic.control import events as ev
from elastic.control.moments import Moment, RungDegraded, RungReached, moments
from elastic.control.state import Phase, RunState
from elastic.control.tuning import Tuning
from elastic.control.values import StepReport
from elastic.ledger.ledger import Ledger
from elastic.ledger.lines import Line

log = logging.getLogger("elastic")


class Teller:
    """Callbacks and what is counted for them."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.ledger = Ledger()
        self.last_report: dict[str, float] = {}
        self._callbacks = callbacks
        self._state: RunState | None = None
        self._told = -1
        self._untold: dict[int, StepReport] = {}
        self._shard_bytes: dict[tuple[int, int], int] = {}  # by how many there are, and which one

    def begin(self, tune: Callable[[Tuning], None]) -> None:
        """The run is about to begin, or to go on."""
        for callback in self._callbacks:
            callback.on_begin(tune)

    def tell(self, events: Sequence[tuple[float, ev.Event]], state: RunState, lines: Sequence[Line]) -> None:
        """Steps without gaps, unless the run is over; then what changed in the state. `lines`: of the journal."""
        for line in lines:
            self.ledger.feed(line)
        before, self._state = self._state, state
        if before is not None and len(state.forks) > len(before.forks):
            self._told = min(self._told, state.forks[-1].step)  # from here on steps are told again
            self._untold.clear()
        for _, event in events:
            self._note(event, state)
        for step in sorted(self._untold):
            if step <= state.published or state.phase is Phase.ENDED:
                self._tell_step(self._untold.pop(step), state)
        if before is not None:
            for moment in moments(before, state, [event for _, event in events], self._told):
                self._tell_moment(moment)
            self._tell_changes(before, state)

    def ladder(self, at_s: float, told: CheckpointRung | Degraded) -> None:
        """A step has come to a rung, or a rung is not what was asked for."""
        run = self._state.settings.run if self._state is not None else ""
        if isinstance(told, Degraded):
            facts = {"rung": told.rung, "reason": told.reason}
            self._tell_moment(RungDegraded(run=run, at_s=at_s, step=self._told, **facts))
            return
        self._tell_moment(
            RungReached(
                run=run,
                at_s=at_s,
                step=self._told,
                checkpoint_step=told.commit.step,
                rung=told.rung,
                copies=told.copies,
                degraded=told.degraded,
                reason=told.reason,
                nbytes=sum(size for (shards, _), size in self._shard_bytes.items() if shards == told.shards),
            )
        )

    def _note(self, event: ev.Event, state: RunState) -> None:
        if isinstance(event, ev.ShardStaged):
            self._shard_bytes[event.shards, event.shard] = event.nbytes
        if not isinstance(event, ev.StepStable) or any(fork.voids(event.report.commit) for fork in state.forks):
            return
        if event.report.commit.step > self._told:
            self._untold[event.report.commit.step] = event.report

    def _tell_moment(self, moment: Moment) -> None:
        for callback in self._callbacks:
            callback.on_moment(moment)

    def _tell_step(self, report: StepReport, state: RunState) -> None:
        self._told = report.commit.step
        self.last_report, goodput = report.metrics, self.ledger.goodput
        for callback in self._callbacks:
            callback.on_step(report, state, goodput)

    def _tell_changes(self, before: RunState, state: RunState) -> None:
        if state.care.no_starts and state.care.no_starts != before.care.no_starts:
            log.warning("the run goes on with the workers it has: %s", state.care.no_starts)
        for callback in self._callbacks:
            if state.trained > before.trained and state.view is not None:
                callback.on_generation(state.view)
            if state is not before:
                callback.on_state(state)
