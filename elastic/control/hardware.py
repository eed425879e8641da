"""Pure. What sensors of a host read, and what changes between two readings mean.

A counter that goes up is told each time; a state (hot, nearly full, throttled) when it is entered. `Cooldown` keeps a
device that says the same again and again from flooding the run, and forgets nothing: what it holds back it counts.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from elastic.control.xid import Severity, is_worse, recovery
from elastic.settings import Health


class FindingKind(Enum):
    """Where a finding comes from."""

    XID = "XID"
    ECC = "ECC errors"
    ROW_REMAP = "row remapping"
    RECOVERY_ACTION = "recovery action"
    NVLINK = "NVLink"
    NVSWITCH = "NVSwitch"
    TEMPERATURE = "temperature"
    THROTTLE = "throttled clocks"
    GPU_LOST = "GPU lost"
    DRIVER_HUNG = "hung driver"
    OUT_OF_MEMORY = "out of memory"
    DISK = "disk"
    NETWORK = "network"
    BUS = "host hardware"
    MEMORY = "host memory"
    SPACE = "free space"
    CLOCK = "clock"
    BLIND = "not seen"
    HEALTH = "health check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something on a host that somebody should know.

    Attributes:
        device: a GPU's UUID, "PCI:0000:17:00", an interface, a path; empty: the host.
        code: tells findings of one kind on one device apart; the XID.
        pid: a process that is concerned, 0 if none is named.
    """

    device: str
    kind: FindingKind
    severity: Severity
    detail: str
    code: int | str = 0
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One look at a GPU; None is what its driver does not tell.

    Attributes:
        device: its UUID; pci: its address as in the kernel log.
        lost: why it does not answer, empty if it does; needs_reset: the driver says so to every call.
        counters: ECC and NVLink errors, by name; a name that starts with "uncorrected" is data that was lost.
        remap_pending, remap_failed: flags of the row remapper.
        links_up: NVLinks that are active; None where this look left them out.
        hot_at_c: the temperature at which the GPU slows itself down.
        throttled: why its clocks are held back now.
        pids: processes that compute on it.
    """

    device: str
    index: int
    pci: str
    lost: str = ""
    needs_reset: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)
    remap_pending: bool = False
    remap_failed: bool = False
    recovery_action: int | None = None
    links_up: frozenset[int] | None = None
    temperature_c: int | None = None
    hot_at_c: int | None = None
    power_w: float | None = None
    throttled: frozenset[str] = frozenset()
    utilization: int | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    pids: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """For sentences."""
        return f"GPU {self.index} ({self.pci})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A network interface. errors: received or sent in error so far; downs: how often it went down."""

    is_up: bool
    errors: int = 0
    downs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """One look at what is not a GPU.

    Attributes:
        memory_free: share of the memory that this host, or container, may still take.
        space_free: by path, the share that is free.
        clock_offset_s: how far the clock is off, as the kernel's own time discipline estimates; None: not disciplined.
    """

    memory_free: float | None = None
    space_free: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, Link] = field(default_factory=dict)
    clock_offset_s: float | None = None


def nameless(index: int, why: str) -> GpuReading:
    """A GPU that tells nothing, not even its name: it is known by its number alone."""
    return GpuReading(device=f"GPU {index}", index=index, pci="it does not say where", lost=why)


def recognized(known: Mapping[str, GpuReading], now: GpuReading) -> tuple[GpuReading | None, GpuReading]:
    """What was last seen of this GPU, and what is seen now, under its own name if that was ever told.

    Args:
        known: by `GpuReading.device`.
    """
    before = known.get(now.device)
    if before is None:
        alike = (one for one in known.values() if one.index == now.index and (_is_nameless(one) or _is_nameless(now)))
        before = next(alike, None)
    if before is not None and _is_nameless(now):
        return before, replace(before, lost=now.lost)
    return before, now


def _is_nameless(gpu: GpuReading) -> bool:
    return gpu.device == nameless(gpu.index, "").device


def sees(visible: str, index: int, device: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES of a process names this GPU, by number or by (the beginning of) its UUID."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return any(name == str(index) or (name.startswith("GPU-") and device.startswith(name)) for name in names)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def compare_gpu(before: GpuReading | None, now: GpuReading, health: Health) -> list[Finding]:
    """What is new since the last look, or since before the first one."""
    before = before or GpuReading(device=now.device, index=now.index, pci=now.pci, counters=now.counters)
    if now.lost:
        return [] if before.lost else [_on(now, FindingKind.GPU_LOST, Severity.NODE_MUST_GO, f"is lost: {now.lost}")]
    found = [*_states(before, now), *_counted(before, now), *_links(before, now), *_heat(before, now, health)]
    if before.lost:
        found.append(_on(now, FindingKind.GPU_LOST, Severity.INFORMATIONAL, "is back", "back"))
    return found


def _on(now: GpuReading, kind: FindingKind, severity: Severity, what: str, code: int | str = 0) -> Finding:
    return Finding(device=now.device, kind=kind, severity=severity, detail=f"{now.name} {what}", code=code)


def _states(before: GpuReading, now: GpuReading) -> Iterator[Finding]:
    """What the driver says the GPU needs."""
    if now.needs_reset and not before.needs_reset:
        yield _on(now, FindingKind.RECOVERY_ACTION, Severity.RESET_NEEDED, "needs a reset, says its driver")
    if now.recovery_action != before.recovery_action and (now.recovery_action or before.recovery_action):
        severity, name = recovery(now.recovery_action or 0)
        yield _on(now, FindingKind.RECOVERY_ACTION, severity, f"asks for: {name}", now.recovery_action or 0)
    if now.remap_failed and not before.remap_failed:
        yield _on(now, FindingKind.ROW_REMAP, Severity.RESET_NEEDED, "could not remap a row of its memory", "failed")
    if now.remap_pending and not before.remap_pending:
        what = "remaps a row of its memory at the next reset; what runs is not affected"
        yield _on(now, FindingKind.ROW_REMAP, Severity.INFORMATIONAL, what, "pending")


_COUNTED = {"NVLink": FindingKind.NVLINK, "remapped": FindingKind.ROW_REMAP}  # by a word in the counter's name


def _counted(before: GpuReading, now: GpuReading) -> Iterator[Finding]:
    """Counters that went up; one that went down was reset."""
    for name, count in now.counters.items():
        more = count - before.counters.get(name, count)
        if more <= 0:
            continue
        kind = next((kind for word, kind in _COUNTED.items() if word in name), FindingKind.ECC)
        is_lost = name.startswith("uncorrected") and "since ever" not in name
        severity = Severity.RESTARTABLE if is_lost else Severity.INFORMATIONAL
        yield _on(now, kind, severity, f"counts {more} more {name}: {count}", name)


def _links(before: GpuReading, now: GpuReading) -> Iterator[Finding]:
    if now.links_up is None or before.links_up is None:
        return
    for link in sorted(before.links_up - now.links_up):
        yield _on(now, FindingKind.NVLINK, Severity.RESET_NEEDED, f"has lost NVLink {link}", f"link {link}")
    for link in sorted(now.links_up - before.links_up):
        yield _on(now, FindingKind.NVLINK, Severity.INFORMATIONAL, f"has NVLink {link} back", f"link {link} back")


def _heat(before: GpuReading, now: GpuReading, health: Health) -> Iterator[Finding]:
    if _is_hot(now, health) and not _is_hot(before, health):
        what = f"is at {now.temperature_c} C, and slows down at {now.hot_at_c} C"
        yield _on(now, FindingKind.TEMPERATURE, Severity.INFORMATIONAL, what)
    reasons = sorted(now.throttled - before.throttled)
    if reasons:
        what = f"holds its clocks back: {', '.join(reasons)}"
        yield _on(now, FindingKind.THROTTLE, Severity.INFORMATIONAL, what, ",".join(reasons))


def _is_hot(now: GpuReading, health: Health) -> bool:
    if now.temperature_c is None or now.hot_at_c is None:
        return False
    return now.temperature_c > now.hot_at_c - health.heat_margin_c


def carried(before: GpuReading | None, now: GpuReading) -> GpuReading:
    """A look that left the links out, or could not see, knows of them what the last one did."""
    if before is None:
        return now
    known: dict[str, Any] = {"counters": {**before.counters, **now.counters}}
    if now.recovery_action is None:
        known["recovery_action"] = before.recovery_action
    if now.links_up is None:
        known |= {"links_up": before.links_up, "pids": now.pids or before.pids}
    return replace(now, **known)


# --- the rest of the host ---------------------------------------------------------------------------------------------


def compare_host(before: HostReading | None, now: HostReading, health: Health) -> list[Finding]:
    """What is new since the last look, or since before the first one."""
    before = before or HostReading(links=now.links)
    return [*_room(before, now, health), *_network(before, now), *_time(before, now, health)]


def short_of(reading: HostReading, health: Health) -> dict[str, str]:
    """What there is too little of, by its name: a sentence each."""
    short = {}
    if reading.memory_free is not None and reading.memory_free < health.memory_free:
        short["memory"] = _little("memory", reading.memory_free, f"Health.memory_free={health.memory_free:g}")
    for path, free in reading.space_free.items():
        if free < health.space_free:
            short[path] = _little(path, free, f"Health.space_free={health.space_free:g}")
    return short


def _little(what: str, free: float, limit: str) -> str:
    return f"{free:.1%} of {what} is free, less than {limit}"


def _room(before: HostReading, now: HostReading, health: Health) -> Iterator[Finding]:
    known = short_of(before, health)
    for name, sentence in short_of(now, health).items():
        if name not in known:
            kind = FindingKind.MEMORY if name == "memory" else FindingKind.SPACE
            device = "" if name == "memory" else name
            yield Finding(device=device, kind=kind, severity=Severity.INFORMATIONAL, detail=sentence)


def _network(before: HostReading, now: HostReading) -> Iterator[Finding]:
    for name, link in now.links.items():
        last = before.links.get(name, link)
        says = {}
        if link.downs > last.downs or (last.is_up and not link.is_up):
            says["down"] = f"went down ({link.downs} times so far)" if link.is_up else "is down"
        elif link.is_up and not last.is_up:
            says["up"] = "is up again"
        if link.errors > last.errors:
            says["errors"] = f"counts {link.errors - last.errors} more errors: {link.errors}"
        for code, sentence in says.items():
            detail = f"{name} {sentence}"
            yield Finding(
                device=name, kind=FindingKind.NETWORK, severity=Severity.INFORMATIONAL, detail=detail, code=code
            )


def _time(before: HostReading, now: HostReading, health: Health) -> Iterator[Finding]:
    limit_s = health.clock_offset_s
    is_off = now.clock_offset_s is not None and abs(now.clock_offset_s) > limit_s
    was_off = before.clock_offset_s is not None and abs(before.clock_offset_s) > limit_s
    if is_off and not was_off:
        detail = f"the clock is off by {now.clock_offset_s:+.3f} s, more than Health.clock_offset_s={limit_s:g}"
        yield Finding(device="", kind=FindingKind.CLOCK, severity=Severity.INFORMATIONAL, detail=detail)


# --- the cooldown -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Window:
    """What was told of one device and code, when, and what came since."""

    told: Finding
    workers: tuple[str, ...]
    until_s: float
    held: int = 0
    last: Finding | None = None


class Cooldown:
    """For each device and code one finding in so many seconds; the others are counted, and told when time is up.

    What is worse than what was told, or concerns other workers, is told at once: a new worker on a bad GPU is news.
    """

    def __init__(self, cooldown_s: float) -> None:
        self._cooldown_s = cooldown_s
        self._windows: dict[tuple[str, FindingKind, int | str], _Window] = {}

    def is_news(self, finding: Finding, workers: tuple[str, ...], now_s: float) -> bool:
        """Whether to tell it now; else it is counted."""
        key = (finding.device, finding.kind, finding.code)
        window = self._windows.get(key)
        is_known = window is not None and set(workers) <= set(window.workers)
        if window is None or not is_known or is_worse(finding.severity, window.told.severity):
            held, last = (window.held, window.last) if window is not None else (0, None)
            self._windows[key] = _Window(finding, workers, now_s + self._cooldown_s, held, last)
            return True
        window.held, window.last = window.held + 1, finding
        return False

    def overdue(self, now_s: float) -> Iterable[tuple[Finding, tuple[str, ...]]]:
        """What was held back, of windows that are over: the last finding of each, with the count."""
        for key, window in list(self._windows.items()):
            if now_s < window.until_s:
                continue
            del self._windows[key]
            if window.held and window.last is not None:
                again = f"{window.last.detail} (the same {window.held} times within {self._cooldown_s:g} s)"
                self._windows[key] = _Window(window.told, window.workers, now_s + self._cooldown_s)
                yield replace(window.last, detail=again, severity=Severity.INFORMATIONAL), window.workers
