"""Pure. What was reported of steps, kept for as long as they may become durable: `Keep.best` goes by it.

That takes long, counted in steps: a step is staged, copied and uploaded before its COMMIT names its metrics.
"""

from collections.abc import Mapping

RECENT = 256  # a step may be staged so many after it was reported
STAGED = 4096  # nodes have overwritten or dropped what is older, if it has not become durable

Metrics = Mapping[str, float]


class Reported:
    """See the module. Any thread may call: each change is one call of a dictionary's."""

    def __init__(self) -> None:
        self._recent: dict[int, Metrics] = {}
        self._staged: dict[int, Metrics] = {}
        self._durable = self._before = -1

    def reported(self, step: int, metrics: Metrics) -> None:
        """These are a stable step's, which may have been staged already."""
        self._recent[step] = metrics
        if step in self._staged:
            self._staged[step] = metrics
        _keep_newest(self._recent, RECENT)

    def staged(self, step: int, durable: int) -> None:
        """A shard of the step is; the newest step that is durable is this one.

        An older one may still be on its way when a newer one, in a hurry, has become durable.
        """
        if durable > self._durable:
            self._before, self._durable = self._durable, durable
            for old in [one for one in list(self._staged) if one <= self._before]:
                self._staged.pop(old, None)
        if step not in self._staged:
            self._staged[step] = self._recent.get(step, {})
            _keep_newest(self._staged, STAGED)

    def went_back(self, step: int) -> None:
        """The history goes on from this step: later ones are void, and made anew."""
        self._durable, self._before = min(self._durable, step), min(self._before, step)
        for known in (self._recent, self._staged):
            for void in [one for one in list(known) if one > step]:
                known.pop(void, None)

    def of(self, step: int) -> Metrics:
        """Its metrics, as far as they are known."""
        return self._staged.get(step) or self._recent.get(step, {})


def _keep_newest(known: dict[int, Metrics], most: int) -> None:
    """By when they were told of."""
    if len(known) > most:
        known.pop(next(iter(list(known))), None)
