"""Effect. One worker as its host monitor sees it, without its help: what its page says, and for how long no more."""

from dataclasses import dataclass, field
from pathlib import Path

from elastic.actors.processes import Process, process_state, ran_on_cpu_ns, waited_for_cpu_ns, waits_for_disk
from elastic.actors.stacks import Dump
from elastic.control.flight import STOPPED, Reading
from elastic.train.flight import Flight, read_page

LOOK_S = 0.1  # from one look to the next
CLOSER_LOOK_S = 0.025  # while somebody is stopped: two of these make sure of it
_LATE_S = 2 * LOOK_S
_LOADED_S = 0.2  # standing still for less interests nobody; for more, it may be the machine that is slow
_DISK_S = 5.0  # a disk that others keep busy may take seconds; a kill would have to wait for it, too


@dataclass(slots=True)
class Watched:
    """A worker process on this node.

    Attributes:
        still_s: since its page last changed, as far as the monitor looked and the process could run.
        stopped_s: since the first look that found it stopped, if it has not run since. ran_ns: on a CPU, until then.
        waited_ns: what each of its threads had waited for a CPU when it was last looked at.
        disk_s: waited for a disk since its page last changed, as far as that does not count.
        dump: of its stacks, from when it was found stopped again: there once that is sure, so that nobody waits for it.
    """

    pid: int
    process: Process
    page: Path
    flight: Flight | None = None
    state: str = ""
    still_s: float = 0.0
    stopped_s: float = 0.0
    ran_ns: int | None = None
    waited_ns: dict[int, int] = field(default_factory=dict)
    disk_s: float = 0.0
    dump: Dump | None = None

    def look(self, elapsed_s: float) -> None:
        """Read its page and its state, `elapsed_s` after the last time."""
        before, self.flight = self.flight, read_page(self.page)
        has_moved = before is None or self.flight is None or self.flight.version != before.version
        self.state = process_state(self.pid)  # whoever has moved since the last look may be stopped by now
        self._look_whether_stopped(elapsed_s, has_moved)
        if has_moved:
            self.still_s, self.waited_ns, self.disk_s = 0.0, {}, 0.0
            return
        elapsed_s = min(elapsed_s, _LATE_S)  # longer: this loop was late, not the worker
        self.still_s += elapsed_s
        if self.still_s > _LOADED_S:
            hindered_s = max(self._starved_s(), self._on_disk_s(elapsed_s))
            self.still_s = max(_LOADED_S, self.still_s - hindered_s)

    def _look_whether_stopped(self, elapsed_s: float, has_moved: bool) -> None:
        """Who stops and goes on between two looks has run: a signal that lets it go on wakes all its threads."""
        ran_ns = ran_on_cpu_ns(self.pid) if self.state == STOPPED else None
        is_as_it_was = not has_moved and ran_ns is not None and ran_ns == self.ran_ns
        self.stopped_s = self.stopped_s + min(elapsed_s, _LATE_S) if is_as_it_was else 0.0
        self.ran_ns = ran_ns
        if not is_as_it_was:
            self.dump = None
        elif self.dump is None:
            self.dump = Dump(self.pid)

    def reading(self, worker: str) -> Reading | None:
        flight = self.flight
        if flight is None:
            return None
        return Reading(
            worker=worker,
            generation=flight.generation,
            step=flight.step,
            phase=flight.phase,
            micro_batch=flight.micro_batch,
            commits=flight.commits,
            still_s=self.stopped_s if self.state == STOPPED else self.still_s,
            state=self.state,
            remark=flight.remark,
        )

    def _on_disk_s(self, elapsed_s: float) -> float:
        """How much of the time since the last look it waited for a disk, as far as that is forgiven."""
        if self.disk_s >= _DISK_S or not waits_for_disk(self.pid):
            return 0.0
        self.disk_s += elapsed_s
        return elapsed_s

    def _starved_s(self) -> float:
        """How long, since the last look, some thread of it wanted to run and got no CPU."""
        before, self.waited_ns = self.waited_ns, waited_for_cpu_ns(self.pid)
        return max((now - before.get(thread, now) for thread, now in self.waited_ns.items()), default=0) / 1e9
