"""Effect. The part of the keeper that has nodes write to their disks, as `Disks` says. All in the keeper's thread."""

import logging
from collections.abc import Callable
from typing import Any

from elastic.actors.replica import PullAnswer
from elastic.checkpoint import rungs
from elastic.checkpoint.disks import Disks
from elastic.checkpoint.rungs import Holding

log = logging.getLogger("elastic")

_WRITE_S = 6 * 3600.0  # actors have tighter deadlines of their own, which follow from sizes
_ERASE_S = 600.0

Then = Callable[[Callable[[], Any], float, Callable[[Any], Any], Callable[[str], Any]], None]


class DiskKeeper:
    """See the module.

    Args:
        tell: takes what is for the journal. then: continues when a call to an actor is answered, see `Calls`.
        actor_of: the actor of a node, None if it has none now.
        held: takes what a node holds after a call.
    """

    def __init__(
        self,
        incarnation: int,
        tell: Callable[[rungs.DiskStep | rungs.Degraded], None],
        then: Then,
        actor_of: Callable[[str], Any],
        held: Callable[[str, Holding], None],
    ) -> None:
        self._incarnation, self._tell, self._then = incarnation, tell, then
        self._actor_of, self._held = actor_of, held
        self._disks = Disks()

    def heed(self, event: rungs.Event | rungs.OnDisk) -> None:
        """Something happened to nodes."""
        for order in self._disks.heed(event):
            match order:
                case rungs.DiskStep() | rungs.Degraded():
                    self._tell(order)
                case rungs.ToDisk():
                    self._write(order)
                case rungs.OffDisk():
                    self._erase(order)

    def _write(self, order: rungs.ToDisk) -> None:
        actor = self._actor_of(order.node)
        if actor is None:
            return  # its loss is being told

        def ended(answer: PullAnswer) -> None:
            if answer.reason:
                log.warning("checkpoints: not written to disk: %s", answer.reason)
            reason, is_full = answer.reason, answer.is_full
            self.heed(rungs.OnDisk(key=order.key, node=order.node, reason=reason, is_full=is_full))
            self._held(order.node, answer.holding)

        def failed(reason: str) -> None:
            log.warning("checkpoints: not written to disk: %s", reason)
            self.heed(rungs.OnDisk(key=order.key, node=order.node, reason=reason))

        self._then(
            lambda: actor.to_disk.options(concurrency_group="disk").remote(self._incarnation, order.key),
            _WRITE_S,
            ended,
            failed,
        )

    def _erase(self, order: rungs.OffDisk) -> None:
        actor = self._actor_of(order.node)
        if actor is not None:
            self._then(
                lambda: actor.off_disk.options(concurrency_group="disk").remote(self._incarnation, order.key),
                _ERASE_S,
                lambda holding: self._held(order.node, holding),
                lambda _: None,
            )
