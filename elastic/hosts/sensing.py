"""Effect. The senses of a host monitor: what its node's hardware says, told as findings.

Three threads of their own: one calls the GPU driver, one looks at memory, space, network and clock, one reads the
kernel's log. The monitor's loop waits for none; it only counts how long a look lasts, so a driver or a file system that
hangs is a finding, and what the kernel says of it is read all the same.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from elastic.control import events as ev
from elastic.control.hardware import (
    Cooldown,
    Finding,
    FindingKind,
    GpuReading,
    HostReading,
    carried,
    compare_gpu,
    compare_host,
    recognized,
    sees,
)
from elastic.control.kernel_lines import read_line
from elastic.control.xid import Severity, classify
from elastic.hosts import machine
from elastic.hosts.kernel_log import KMSG, KernelLog
from elastic.hosts.nvml import Gpus, NoGpusError
from elastic.hosts.nvrx import Checks
from elastic.settings import Health

log = logging.getLogger("elastic")

_WAIT_S = 0.5  # for events: how long a thread may take to notice that it is to end
_SELDOM = 3  # links and processes: every so many looks
_REOPEN = 12  # a driver of which a GPU is lost
_CHECKS = 12
_LEAVE_S = 2.0
_BACK_S = 0.1
_LATE_S = 0.2  # time in which the judge itself did not run does not count


@dataclass(frozen=True, slots=True)
class Claim:
    """What a worker of this node runs on. visible: its CUDA_VISIBLE_DEVICES."""

    pid: int
    visible: str = ""


class Look:
    """A thread is inside a look while the number is odd; whoever judges it counts how long it stays the same.

    Args:
        kind, severity: of the finding that a look lasts too long.
        hung, well: what that means, and what it means that the look has ended after all.
    """

    def __init__(self, kind: FindingKind, severity: Severity, hung: str, well: str) -> None:
        self._kind, self._severity, self._hung, self._well = kind, severity, hung, well
        self.number = 0
        self._seen = 0
        self._lasted_s = 0.0
        self._is_told = False

    def __enter__(self) -> None:
        self.number += 1

    def __exit__(self, *_: object) -> None:
        self.number += 1

    def judge(self, elapsed_s: float, limit_s: float) -> Finding | None:
        """What is new of it; so much time has passed since the last call."""
        is_same = self.number == self._seen and self.number % 2 == 1
        self._seen = self.number
        self._lasted_s = self._lasted_s + min(elapsed_s, _LATE_S) if is_same else 0.0
        if self._lasted_s >= limit_s and not self._is_told:
            self._is_told = True
            detail = f"{self._hung} within Health.driver_timeout_s={limit_s:g}"
            return Finding(device="", kind=self._kind, severity=self._severity, detail=detail, code=self._hung)
        if self._is_told and self._lasted_s == 0.0:
            self._is_told = False
            kind, severity = self._kind, Severity.INFORMATIONAL
            return Finding(device="", kind=kind, severity=severity, detail=self._well, code=self._well)
        return None


class Senses:
    """Looks, compares, and tells.

    Args:
        node: its name in findings.
        tell: takes what is found, from any thread.
        claims: the node's workers and what they run on.
        kmsg: the kernel's log.
        show: takes each look at the GPUs.
    """

    def __init__(
        self,
        node: str,
        health: Health,
        tell: Callable[[ev.HardwareFinding], None],
        claims: Callable[[], Mapping[str, Claim]],
        kmsg: Path = KMSG,
        show: Callable[[Sequence[GpuReading]], None] = lambda gpus: None,
    ) -> None:
        self._show = show
        self._node, self._health, self._tell, self._claims, self._kmsg = node, health, tell, claims, kmsg
        self._cooldown = Cooldown(health.cooldown_s)
        self._lock = threading.Lock()
        self._gpus: dict[str, GpuReading] = {}
        self._host: HostReading | None = None
        self._has_looked = threading.Event()
        self._is_down = False  # the driver of GPUs that were seen
        self._were_there = False  # GPUs
        self._is_let_go = threading.Event()
        self._driver = threading.Lock()  # held by who has the GPU driver open
        hung, well = "the GPU driver has not answered", "the GPU driver answers again"
        self._gpu_look = Look(FindingKind.DRIVER_HUNG, Severity.NODE_MUST_GO, hung, well)
        hung = "not seen on this node: memory, space, network and clock: a look at them has not ended"
        well = "memory, space, network and clock are looked at again"
        self._host_look = Look(FindingKind.BLIND, Severity.INFORMATIONAL, hung, well)
        self._is_closed = threading.Event()
        watches = (
            (self._watch_gpus, "GPUs", "elastic-gpus"),
            (self._watch_kernel, "the kernel log", "elastic-kernel"),
            (self._watch_host, "the host", "elastic-host"),
        )
        self._threads = [
            threading.Thread(target=self._guarded, args=(watch, what), name=name, daemon=True)
            for watch, what, name in watches
        ]
        for thread in self._threads:
            thread.start()

    def judge(self, elapsed_s: float) -> None:
        """Called by the monitor's loop: the one wait for driver and file systems is here, and costs a comparison."""
        for look in (self._gpu_look, self._host_look):
            finding = look.judge(elapsed_s, self._health.driver_timeout_s)
            if finding is not None:
                self._found(finding)

    def gpus(self, timeout_s: float) -> list[GpuReading] | None:
        """What was last seen of each GPU, none if there are none; None if a look does not end in time.

        That is the first one, or the first since the driver was taken down.
        """
        if not self._has_looked.wait(timeout_s):
            return None
        with self._lock:
            return list(self._gpus.values())

    @contextmanager
    def letting_go(self, within_s: float) -> Iterator[None]:
        """Have the GPU driver to oneself: it resets no GPU that anybody has open, be it to look at it.

        What was seen before holds no more then: whoever asks for the GPUs afterwards waits for a new look.

        Args:
            within_s: for how long to wait for a look that lasts; one that hangs goes on beside.
        """
        self._is_let_go.set()
        has_driver = self._driver.acquire(timeout=max(0.0, within_s))
        try:
            if self._threads[0].is_alive():
                self._has_looked.clear()
            yield
        finally:
            if has_driver:
                self._driver.release()
            self._is_let_go.clear()

    @property
    def host(self) -> HostReading | None:
        """What was last seen of the rest; None before the first look."""
        return self._host

    def close(self) -> None:
        """Stop looking; a thread that hangs is left behind."""
        self._is_closed.set()
        for thread in self._threads:
            thread.join(_LEAVE_S)

    def _guarded(self, watch: Callable[[], None], what: str) -> None:
        """A sense that fails is lost, and is said to be: the monitor has other work."""
        try:
            watch()
        except Exception as error:
            log.exception("the senses of node %s fail", self._node)
            self._blind(f"{what}: {type(error).__name__}: {error}")
            self._has_looked.set()

    # --- the thread that talks to the driver ---

    def _watch_gpus(self) -> None:
        while not self._is_closed.is_set():
            try:
                with self._driver:
                    self._watch_opened()
            except NoGpusError as error:
                if not self._were_there:
                    self._blind(f"GPUs: {error}")
                    self._has_looked.set()
                    return
                self._went_down(error)
                self._is_closed.wait(_SELDOM * self._health.period_s)
            while self._is_let_go.is_set() and not self._is_closed.is_set():
                self._is_closed.wait(_BACK_S)

    def _watch_opened(self) -> None:
        """Raises: NoGpusError: there are none, or the driver was taken down."""
        with self._gpu_look:
            gpus = Gpus()
        try:
            is_first, self._were_there = not self._were_there, True
            self._watch(gpus, is_first)
        finally:
            with self._gpu_look:
                gpus.close()

    @property
    def _looks_on(self) -> bool:
        return not (self._is_closed.is_set() or self._is_let_go.is_set())

    def _went_down(self, error: NoGpusError) -> None:
        """Whoever asks for the GPUs waits for a new look: what was seen of them may hold no more."""
        log.debug("the GPU driver is down: %s", error)
        if not self._is_down:
            self._is_down = True
            self._has_looked.clear()
            self._show([])
            self._blind(f"GPUs that were there: {error}")

    def _is_seen(self) -> None:
        self._has_looked.set()
        if self._is_down:
            self._is_down = False
            kind, severity = FindingKind.BLIND, Severity.INFORMATIONAL
            self._found(
                Finding(device="", kind=kind, severity=severity, detail="the GPUs are seen again", code="again")
            )

    def _watch(self, gpus: Gpus, is_first: bool) -> None:
        """Until the driver is let go of, or taken down, or a GPU is lost: all are found anew then, one may be reset.

        Raises:
            NoGpusError: the driver was taken down.
        """
        checks, number = Checks(list(gpus.devices)), 0
        while self._looks_on:
            with self._gpu_look:
                self._look_at(gpus, with_links=number % _SELDOM == 0)
            if number == 0 and is_first and gpus.unseen:
                self._blind(f"of the GPUs: {', '.join(gpus.unseen)}")
            if number % _CHECKS == _CHECKS - 1 and checks.are_there:
                with self._gpu_look:
                    self._tell_all(checks.run())
            number += 1
            self._is_seen()
            self._show(list(self._gpus.values()))
            self._wait_for_events(gpus)
            if number >= _REOPEN and any(gpu.lost or gpu.needs_reset for gpu in self._gpus.values()):
                return

    def _look_at(self, gpus: Gpus, with_links: bool) -> None:
        for now in gpus.read(with_links):
            before, now = recognized(self._gpus, now)
            now = carried(before, now)
            with self._lock:
                if before is not None and before.device != now.device:
                    del self._gpus[before.device]
                self._gpus[now.device] = now
            self._tell_all(compare_gpu(before, now, self._health))

    def _wait_for_events(self, gpus: Gpus) -> None:
        """XIDs as they come, until the next look is due; what each has damaged is counted at once, as its worker's."""
        due_s = time.monotonic() + self._health.period_s
        while self._looks_on and (left_s := due_s - time.monotonic()) > 0:
            with self._gpu_look:
                news = gpus.wait(min(left_s, _WAIT_S))
            if news is None:
                continue
            device, code = news
            if code == 0:
                return  # something has changed that the next look shows
            severity, sentence = classify(code)
            reading = self._gpus.get(device)
            detail = f"{reading.name if reading else 'a GPU'}: {sentence}"
            finding = Finding(device=device, kind=FindingKind.XID, severity=severity, detail=detail, code=code)
            is_named = bool(self._on(finding))
            if not is_named:  # a process may have come since the processes were last looked at
                with self._gpu_look:
                    self._look_at(gpus, with_links=True)
            self._found(finding)
            if is_named:
                with self._gpu_look:
                    self._look_at(gpus, with_links=False)

    # --- the thread that looks at the rest of the host ---

    def _watch_host(self) -> None:
        paths = (self._health.ramdisk, self._health.disk)
        while not self._is_closed.is_set():
            with self._host_look:
                now = machine.look(paths)
            if self._host is None and (missing := machine.unseen(now)):
                self._blind(", ".join(missing))
            self._tell_all(compare_host(self._host, now, self._health))
            self._host = now
            self._is_closed.wait(self._health.period_s)

    # --- the thread that reads the kernel's log; none of its calls can hang ---

    def _watch_kernel(self) -> None:
        kernel = self._open_kernel_log()
        wait_s = min(_WAIT_S, self._health.period_s)
        try:
            while not self._is_closed.is_set():
                self._tell_overdue()
                if kernel is None:
                    self._is_closed.wait(wait_s)
                    continue
                for line in kernel.lines(wait_s):
                    self._heed(line)
                if kernel.lost:
                    kernel.lost = 0
                    self._blind("lines of the kernel log that were overwritten before they were read")
        finally:
            if kernel is not None:
                kernel.close()

    def _tell_overdue(self) -> None:
        with self._lock:
            overdue = list(self._cooldown.overdue(time.monotonic()))
        for finding, workers in overdue:
            self._emit(finding, workers)

    def _open_kernel_log(self) -> KernelLog | None:
        try:
            return KernelLog(self._kmsg)
        except OSError as error:
            self._blind(f"the kernel log: {error}")
            return None

    def _heed(self, line: str) -> None:
        """A line may be about the GPU of somebody else on the same host: then it is only told."""
        finding = read_line(line)
        if finding is None:
            return
        if finding.kind is FindingKind.XID:
            with self._lock:
                known = {gpu.pci: gpu.device for gpu in self._gpus.values()}
            is_ours = finding.device in known or finding.pid in {claim.pid for claim in self._claims().values()}
            finding = replace(finding, device=known.get(finding.device, finding.device))
            if not is_ours:
                detail = f"{finding.detail} (no GPU that is seen here)"
                finding = replace(finding, severity=Severity.INFORMATIONAL, detail=detail)
        elif finding.kind is FindingKind.OUT_OF_MEMORY and not self._on(finding):
            finding = replace(finding, severity=Severity.INFORMATIONAL)
        self._found(finding)

    # --- telling ---

    def _blind(self, what: str) -> None:
        """Said once: nobody can say whether that is well."""
        detail = f"not seen on this node: {what}"
        self._found(
            Finding(device="", kind=FindingKind.BLIND, severity=Severity.INFORMATIONAL, detail=detail, code=what)
        )

    def _tell_all(self, findings: list[Finding]) -> None:
        for finding in findings:
            self._found(finding)

    def _found(self, finding: Finding) -> None:
        workers = self._on(finding)
        with self._lock:
            is_news = self._cooldown.is_news(finding, workers, time.monotonic())
        if is_news:
            self._emit(finding, workers)

    def _emit(self, finding: Finding, workers: tuple[str, ...]) -> None:
        self._tell(
            ev.HardwareFinding(
                node=self._node,
                device=finding.device,
                kind=finding.kind,
                severity=finding.severity,
                detail=finding.detail,
                workers=workers,
            )
        )

    def _on(self, finding: Finding) -> tuple[str, ...]:
        """Workers whose process is named, or that were given this GPU, or compute on it."""
        with self._lock:
            gpu = self._gpus.get(finding.device)
        found = set()
        for name, claim in self._claims().items():
            is_given = gpu is not None and (sees(claim.visible, gpu.index, gpu.device) or claim.pid in gpu.pids)
            if is_given or (finding.pid and claim.pid == finding.pid):
                found.add(name)
        return tuple(sorted(found))
