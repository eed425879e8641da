"""Effect. Event files for TensorBoard, in tensorboardX's form, written by a thread of our own.

tensorboardX's thread dies with the first write that fails, as on a full disk, and whoever has more for it then waits
forever. Ours drops what it cannot write, and comes back with a new file, since the end of the old one may be torn.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

log = logging.getLogger("elastic")

_MOST = 10_000  # entries that wait
_FLUSH_S = 10.0
_AGAIN_S = 60.0  # between a failure and the next try
_END_S = 5.0  # for what waits when the run ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is shown at a step: numbers and texts, by their tags. at_s: of the wall clock."""

    step: int
    at_s: float
    scalars: Mapping[str, float] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


class Board:
    """Writes entries below a folder, and holds up nobody.

    Args:
        log_dir: where TensorBoard looks. what: that is written, for messages.
    """

    def __init__(self, log_dir: str, what: str) -> None:
        self._log_dir, self._what = log_dir, what
        self._waiting: queue.Queue[Entry | None] = queue.Queue(_MOST)
        self._has_failed = self._has_dropped = False
        self._writer: Any = None
        self._is_dirty = False
        self._due_s = self._again_s = -inf
        self._thread = threading.Thread(target=self._write_all, name="elastic-tensorboard", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        try:
            self._waiting.put_nowait(entry)
        except queue.Full:
            if not self._has_dropped:
                told = "%s come faster than they are written to %s: some are left out"
                log.warning(told, self._what, self._log_dir)
            self._has_dropped = True

    def close(self) -> None:
        """Write the rest, within a time."""
        deadline_s = time.monotonic() + _END_S
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_END_S)
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s may lack their end in %s: it was not written when the run ended", self._what, self._log_dir)

    def _write_all(self) -> None:
        is_over = False
        while not is_over:
            entry = None
            with contextlib.suppress(queue.Empty):
                entry = self._waiting.get(timeout=_FLUSH_S)
                is_over = entry is None
            try:
                if entry is not None and time.monotonic() >= self._again_s:
                    self._write(entry)
                if self._is_dirty and (is_over or time.monotonic() >= self._due_s):
                    self._flush()
            except Exception as error:  # what tensorboardX's writers to buckets raise may be of any class
                self._give_up(error)
        if self._writer is not None:
            self._close()

    def _write(self, entry: Entry) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import scalar, text

        if self._writer is None:
            self._writer = self._opened()
            self._writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        shown = [scalar(tag, value) for tag, value in entry.scalars.items()]
        shown += [text(tag, told) for tag, told in entry.texts.items()]
        summary = Summary(value=[value for one in shown for value in one.value])
        event = Event(summary=summary, wall_time=entry.at_s, step=entry.step)
        self._writer.write(event.SerializeToString())
        self._is_dirty = True

    def _opened(self) -> Any:
        """A new file, whose name no other has: two of one second in one folder would write over each other."""
        from tensorboardX.record_writer import RecordWriter, directory_check

        directory_check(self._log_dir)
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{uuid.uuid4().hex[:8]}"
        return RecordWriter(os.path.join(self._log_dir, name))

    def _flush(self) -> None:
        self._writer.flush()
        self._is_dirty, self._due_s, self._has_failed = False, time.monotonic() + _FLUSH_S, False

    def _give_up(self, error: Exception) -> None:
        if not self._has_failed:
            why = getattr(error, "strerror", None) or error
            log.warning("%s are not written to %s now: %s", self._what, self._log_dir, why)
        self._has_failed, self._is_dirty, self._again_s = True, False, time.monotonic() + _AGAIN_S
        if self._writer is not None:
            self._close()

    def _close(self) -> None:
        """Its file is closed whatever its last bytes come to."""
        with contextlib.suppress(Exception):
            self._writer.close()
        self._writer = None
