"""Effect. What a replica actor uploads: each shard once at a time, a few shards at once; the others hold their slots.

Who waits for its turn holds what it will send: the ladder has let the slots of the step go by then, and their workers
would write the next steps there.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.node import Node
from elastic.checkpoint.store import MissingError, StoreError
from elastic.checkpoint.vault import Vault
from elastic.errors import ElasticError

AT_ONCE = 2  # each sends many chunks at a time
WAITING = 32  # calls that hold a slot, or wait for another one of their shard
_TURN_S = 1800.0  # the store has deadlines of its own, which follow from sizes
_NEXT_S = 5.0  # within which an upload that waited for a thread has begun


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadAnswer:
    """How an upload ended.

    Attributes:
        digest: of the shard's manifest. reason: why it is not there, empty if it is. is_gone: since its slot has been
            written anew before the upload began.
        cost_s: CPU time that this actor took meanwhile, divided by the cores that it shares with the workers.
    """

    digest: str = ""
    reason: str = ""
    is_gone: bool = False
    cost_s: float = 0.0


class Uploads:
    """See the module. Methods may be called from any thread.

    Args:
        node: what is uploaded. opened: the persistent tier.
    """

    def __init__(self, node: Node, opened: Callable[[], Vault]) -> None:
        self._node, self._opened = node, opened
        self._uploading: set[ShardKey] = set()
        self._at_work, self._worked_s = 0, -math.inf  # those that wait for another included; when one ended
        self._turn, self._turns = threading.Condition(), threading.BoundedSemaphore(AT_ONCE)

    @property
    def is_at_work(self) -> bool:
        """Something is uploaded or committed, or may be about to be."""
        return self._at_work > 0 or time.monotonic() - self._worked_s < _NEXT_S

    @contextlib.contextmanager
    def working(self, key: ShardKey) -> Iterator[None]:
        """The actor stays meanwhile. A shard is uploaded once at a time: the second finds what the first has sent."""
        with self._turn:
            self._at_work += 1
            if not self._turn.wait_for(lambda: key not in self._uploading, _TURN_S):
                self._at_work -= 1
                raise StoreError(f"node {self._node.name}: an earlier upload of {key} has not ended in {_TURN_S:.0f} s")
            self._uploading.add(key)
        try:
            yield
        finally:
            with self._turn:
                self._uploading.discard(key)
                self._worked_s = time.monotonic()
                self._at_work -= 1
                self._turn.notify_all()

    def upload(self, key: ShardKey) -> UploadAnswer:
        """Write a shard to the persistent tier, when it is its turn; `working` on it."""
        try:
            with contextlib.ExitStack() as sending:
                try:
                    with self._node.held(key):
                        sending.enter_context(self._turns)
                        began_s = time.process_time()
                        manifest, read = sending.enter_context(self._node.lent(key))
                except MissingError as error:
                    return UploadAnswer(reason=f"node {self._node.name}: {error}", is_gone=True)
                digest = self._opened().upload(manifest, read)
        except ElasticError as error:
            return UploadAnswer(reason=f"node {self._node.name}: {error}")
        cost_s = (time.process_time() - began_s) / len(os.sched_getaffinity(0))
        return UploadAnswer(digest=digest, cost_s=cost_s)
