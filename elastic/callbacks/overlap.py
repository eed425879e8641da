"""Effect. Buckets of gradients of the size with which steps are shortest."""

import logging
from collections.abc import Callable

from elastic.callbacks.base import Callback
from elastic.control.overlap import Search, Trials
from elastic.control.state import RunState
from elastic.control.tuning import Tuning
from elastic.control.values import StepReport

log = logging.getLogger("elastic")


class OverlapCommunication(Callback):
    """Find the size of gradient buckets with which computing and communication overlap best, by trying.

    Gradients are summed in buckets, while the backward goes on. The callback measures some steps with the size there
    is, then with four times that, and so on as long as steps get shorter, or smaller ones if they do not; the best
    stays. All replicas change at the same step, and who joins later has the size too. It begins anew where the group,
    or the size of a step, changes in the middle; once it has chosen, it leaves things alone.

    Cost: for each size that is tried, usually two to five, one planned stop of all replicas (0.1 s or so; in the ledger
    it is a `planned stop`, with `tuned: bucket_bytes=...` as its evidence), fresh memory for the gradients, and
    `settle_steps + steps` steps that may be slower than the best. Steps themselves: nothing.

    Args:
        start_bytes: what `session.prepare(bucket_bytes=...)` was given; its default.
        least_bytes, most_bytes: no size beyond these is tried.
        gain: the share by which steps must be shorter for a size to count as better.
        steps: that are measured at each size; the median counts. settle_steps: before them, that do not count.

    Raises:
        SettingError: a number is out of its range.
    """

    def __init__(
        self,
        *,
        start_bytes: int = 16 << 20,
        least_bytes: int = 1 << 20,
        most_bytes: int = 1 << 30,
        gain: float = 0.03,
        steps: int = 20,
        settle_steps: int = 5,
    ) -> None:
        self._trials = Trials(
            start_bytes=start_bytes,
            least_bytes=least_bytes,
            most_bytes=most_bytes,
            gain=gain,
            steps=steps,
            settle_steps=settle_steps,
        )
        self._search = Search(self._trials)
        self._tune: Callable[[Tuning], None] = lambda wish: None

    @property
    def tried(self) -> dict[int, float]:
        """Seconds of a step, by size of the buckets in bytes."""
        return dict(self._search.tried)

    @property
    def chosen_bytes(self) -> int | None:
        """The size that was chosen, None as long as none is."""
        return self._search.chosen

    def on_begin(self, tune: Callable[[Tuning], None]) -> None:
        self._search, self._tune = Search(self._trials), tune

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        was_over = self._search.is_over
        wish = self._search.heed(report)
        if wish is not None:
            self._tune(wish)
        if self._search.is_over and not was_over:
            told = ", ".join(f"{size / 2**20:g} MiB {seconds:.4g} s" for size, seconds in self.tried.items())
            log.info("buckets of %d bytes sum gradients best; a step took with %s", self.chosen_bytes, told)
