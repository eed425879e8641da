"""Effect. The journal of a run: one JSON line for each event, command and decision, with its time and reason.

What a line holds is said in `elastic/ledger/lines.py`.
"""

import contextlib
import dataclasses
import fcntl
import json
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from elastic.checkpoint.remembered import Blamed, Quarantined, Remembered
from elastic.checkpoint.rungs import CheckpointRung, Degraded, PeersChosen, Prefetch, StepLost, UploadInterval
from elastic.control import events as ev
from elastic.control.bequest import Bequest, bequest_of
from elastic.control.plain import in_json, plain
from elastic.control.state import RunState
from elastic.control.values import Fork
from elastic.errors import SettingError
from elastic.knobs import Knob
from elastic.ledger.lines import Line, line_of

log = logging.getLogger("elastic")

JOURNAL = "journal.jsonl"
_WAITING_BYTES = 64 << 20  # hours of steps
_HEAD = 64  # the kind of a line is among its first characters
_OF_THE_PAST = ("StepStable", "Form", "StartWorker", "Settings", "Bequest", "Quarantined", "Blamed")


class Journal:
    """Appends to `<run_dir>/journal.jsonl`, a line at a time, from any thread; its lock tells that somebody does.

    What cannot be written, since the disk is full or fails, ends no run: it waits, and is tried again with each call.
    """

    def __init__(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run_dir / JOURNAL
        self._file = self.path.open("ab", buffering=0)
        self.before_bytes = self._file.tell()  # of earlier lives
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(self._file, fcntl.LOCK_SH)  # shared: a driver that takes a run over writes beside the old one
        if not _ends_with_a_line(self.path):
            self._file.write(b"\n")  # the last driver was killed in the middle of one
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._has_failed = self._has_dropped = False

    @property
    def is_behind(self) -> bool:
        """Something waits to be written: whoever dies now takes it along."""
        return bool(self._waiting) or self._has_dropped

    def write(self, lines: Iterable[Line]) -> None:
        """In this order; nothing, once it is closed."""
        text = "".join(in_json(line) + "\n" for line in lines).encode()
        with self._lock:
            self._append(text)

    def settings(self, at_s: float, run: str, incarnation: int, knobs: Iterable[Knob]) -> None:
        """What is in effect in this life of the driver, and where each value came from."""
        values = {one.path: {"value": one.value, "source": one.source} for one in knobs}
        told = {"life": "Settings", "run": run, "incarnation": incarnation, "knobs": plain(values)}
        self.write([{"t": round(at_s, 6), **told}])

    def checkpoint(
        self,
        at_s: float,
        told: CheckpointRung | StepLost | Degraded | PeersChosen | Prefetch | UploadInterval | Quarantined | Blamed,
    ) -> None:
        """A tier of the checkpoints has something to tell."""
        self.write([line_of("checkpoint", at_s, told)])

    def close(self) -> None:
        with self._lock:
            self._append(b"")
            if self._waiting and not self._file.closed:
                log.error("%s lacks its last %d bytes: they could not be written", self.path, len(self._waiting))
            self._file.close()

    def _append(self, text: bytes) -> None:
        """Behind what waits; its bytes go in order, and none goes twice."""
        if self._file.closed:  # a thread that tells on may end a little later than the run
            return
        if self._waiting and len(self._waiting) + len(text) > _WAITING_BYTES:
            if not self._has_dropped:
                log.error("lines of %s are lost: too many wait to be written", self.path)
            self._has_dropped = True
        else:
            self._waiting += text
        try:
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                why = error.strerror or type(error).__name__
                log.warning("%s is not written now (%s), and is tried again: make room there", self.path, why)
            self._has_failed = True


def _ends_with_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(0, end - 1))
        return file.read() in (b"", b"\n")


class Written:
    """Which stable steps are in the journal: each is written once, however often it is told, and by whom.

    Args:
        published: all steps up to this one are there. ahead: later ones that are there too.
    """

    def __init__(self, published: int = -1, ahead: set[int] | None = None) -> None:
        self._published, self._ahead, self._forks = published, ahead or set(), -1

    def is_new(self, event: ev.Event, forks: Sequence[Fork] = ()) -> bool:
        """Whether an event is to be written; of a step that was skipped only one member knows why.

        Args:
            forks: of a step that history has left behind, a worker may still tell whoever takes the run over.
        """
        if not isinstance(event, ev.StepStable):
            return True
        if any(fork.voids(event.report.commit) for fork in forks):
            return False
        if event.report.skipped:
            return True
        step = event.report.commit.step
        if step <= self._published or step in self._ahead:
            return False
        self._ahead.add(step)
        return True

    def follow(self, state: RunState) -> None:
        """The controller has taken in what was told; where history begins anew, steps are told again."""
        if self._forks not in (-1, len(state.forks)):
            self._ahead = {step for step in self._ahead if step <= state.published}
        self._forks, self._published = len(state.forks), state.published
        self._ahead = {step for step in self._ahead if step > state.published}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a journal tells of the lives before.

    Attributes:
        published, ahead: stable steps of the last line of history, as in `RunState`; -1 if there are none.
        verified: of them, as there.
        next_worker, next_gang: none of this number or a higher one was started.
        left: by the last driver. kept: of checkpoints.
    """

    published: int = -1
    ahead: tuple[int, ...] = ()
    verified: int = -1
    next_worker: int = 0
    next_gang: int = 0
    left: Bequest = dataclasses.field(default_factory=Bequest)
    kept: Remembered = dataclasses.field(default_factory=Remembered)


def make_way(path: Path, run: str) -> None:
    """Have a run find its own journal at `path`, or none: that of a run of another name is put beside, under its name.

    Two runs in one account would be told as lives of one.

    Raises:
        SettingError: the other run trains, or may do so.
    """
    others = [line["run"] for line in _lines_of_the_past(path) if line.get("life") == "Settings"]
    if others and others[-1] != run:
        if _is_written(path):
            raise SettingError(f"the run {others[-1]} writes to {path} now: give another fit(run_dir=...)")
        path.rename(_beside(path, others[-1]))
    if not path.exists():
        with contextlib.suppress(FileNotFoundError):
            _beside(path, run).rename(path)


def _is_written(path: Path) -> bool:
    """Whether a `Journal` is open there."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            raise SettingError(
                f"another run has written to {path}, and whether it trains cannot be told: this file system has no "
                f"locks ({error.strerror}): give another fit(run_dir=...)"
            ) from error
    return False


def _beside(path: Path, run: str) -> Path:
    return path.with_stem(f"{path.stem}-{run}")


def newest_life(path: Path) -> int:
    """The incarnation of the last driver that has opened a journal; 0: none says so."""
    opened = (line for line in _lines_of_the_past(path, ("Settings",)) if "life" in line)
    return max((line["incarnation"] for line in opened), default=0)


def read_past(path: Path) -> Past:
    """Of a journal that a driver has left."""
    steps: set[int] = set()
    begin, verified, worker, gang, left, kept = 0, -1, -1, -1, Bequest(), Remembered()
    for line in _lines_of_the_past(path):
        kept = kept.read(line)
        if line.get("event") == "StepStable":
            steps.add(step := line["report"]["commit"]["step"])
            verified = max(verified, step - 1) if line["report"].get("voted") else verified
        elif line.get("life") == "Bequest":
            left = bequest_of(line)
        elif line.get("command") == "StartWorker":
            worker, gang = max(worker, int(line["worker"][1:])), max(gang, line["gang"])
        elif line.get("command") == "Form" and (line["view"]["bootstrap"] or line["view"]["restored"]):
            begin = line["view"]["resume"]["step"] + 1
            verified = min(verified, begin - 1)
            steps.clear()
    published = begin - 1
    while published + 1 in steps:
        published += 1
    ahead = tuple(sorted(step for step in steps if step > published))
    left = dataclasses.replace(left, furthest=max(left.furthest, published, *ahead))
    return Past(
        published=published,
        ahead=ahead,
        verified=verified,
        next_worker=worker + 1,
        next_gang=gang + 1,
        left=left,
        kept=kept,
    )


def _lines_of_the_past(path: Path, kinds: Sequence[str] = _OF_THE_PAST) -> Iterator[Line]:
    """Those that tell of it; the last one may have been cut off."""
    with contextlib.suppress(FileNotFoundError), path.open(errors="replace") as texts:
        for text in texts:
            if any(f'": "{kind}"' in text[:_HEAD] for kind in kinds):
                with contextlib.suppress(ValueError):
                    yield json.loads(text)
