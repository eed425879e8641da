"""Effect. What becomes of the state when a node is about to be taken away."""

import logging
from dataclasses import dataclass

from elastic.callbacks.base import Callback
from elastic.control.moments import NoticeHeard, RungReached
from elastic.control.values import Rung
from elastic.errors import SettingError
from elastic.settings import Checkpoint

log = logging.getLogger("elastic")


@dataclass(slots=True)
class _Open:
    """A notice, and the rungs that a step told after it has come to."""

    moment: NoticeHeard
    reached: Rung | None = None


class AutoCheckpoint(Callback):
    """See to it that the state is saved when notice is heard (preemption, maintenance, drain, SIGTERM), and say so.

    With `fit(checkpoint=...)` the run does this anyway: all stop at the end of a step, which is staged and copied to
    other nodes; where a whole node leaves, the newest step is written to the persistent tier at once, too. This
    callback refuses a run without that, and tells how long it took, or that it has not come so far in time. To have
    the run end then, use the policy `ExitOnNotice`.

    Cost: none on workers beyond that one snapshot.

    Args:
        rung: how safe the state must become: "local", "replicated" or "durable".
        within_s: until then, after the notice.

    Raises:
        SettingError: there is no such rung.
    """

    def __init__(self, rung: str = "replicated", within_s: float = 25.0) -> None:
        if rung not in ("local", "replicated", "durable"):
            raise SettingError(f"AutoCheckpoint(rung={rung!r}) must be local, replicated or durable")
        self._rung, self._within_s = Rung[rung.upper()], within_s
        self._open: list[_Open] = []
        self.saved_s: list[float] = []

    def configure(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        if checkpoint is None:
            raise SettingError(
                "AutoCheckpoint needs fit(checkpoint=elastic.Checkpoint(...)): without it nothing is saved"
            )
        if self._rung is Rung.DURABLE and checkpoint.persistent is None:
            raise SettingError("AutoCheckpoint(rung='durable') needs Checkpoint.persistent")
        return checkpoint

    def on_notice(self, moment: NoticeHeard) -> None:
        self._open.append(_Open(moment))

    def on_rung_reached(self, moment: RungReached) -> None:
        for one in list(self._open):
            if moment.rung < self._rung or moment.checkpoint_step < one.moment.step:
                continue
            self._open.remove(one)
            took_s = max(0.0, moment.at_s - one.moment.at_s)
            self.saved_s.append(took_s)
            told = "%s: step %d is %s, %.2f s after the notice"
            level = logging.WARNING if took_s > self._within_s else logging.INFO
            log.log(level, told, one.moment.sentence, moment.checkpoint_step, moment.rung.name.lower(), took_s)

    def on_end(self) -> None:
        for one in self._open:
            told = "%s: no step from after it had become %s when the run ended"
            log.warning(told, one.moment.sentence, self._rung.name.lower())
        self._open.clear()
