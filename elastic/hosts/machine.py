"""Effect. One look at a host: free memory, space, network interfaces, the clock."""

import ctypes
import os
from pathlib import Path

from elastic.control.hardware import HostReading, Link

PROC, SYS = Path("/proc"), Path("/sys")
_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000
_ERROR_COUNTERS = ("rx_errors", "tx_errors")
_IB_ERRORS = ("port_rcv_errors", "port_xmit_discards", "symbol_error", "local_link_integrity_errors")


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), as far as it is needed; the rest is room for the kernel's answer."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("maximum_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def look(paths: tuple[str, ...], proc: Path = PROC, system: Path = SYS) -> HostReading:
    """One look.

    Args:
        paths: file systems whose free space counts.
        proc, system: where the kernel shows itself.
    """
    return HostReading(
        memory_free=memory_free(proc, system),
        space_free={path: free for path in paths if (free := space_free(path)) is not None},
        links=links(system),
        clock_offset_s=clock_offset_s(),
    )


def unseen(reading: HostReading) -> list[str]:
    """What this look could not see."""
    missing = [] if reading.memory_free is not None else ["memory"]
    missing += [] if reading.links else ["network interfaces"]
    missing += [] if reading.clock_offset_s is not None else ["the clock's offset (nothing disciplines it)"]
    return missing


def memory_free(proc: Path = PROC, system: Path = SYS) -> float | None:
    """The share of memory that can still be taken: of the host, or of the container if that is less."""
    shares = [share for share in (_of_host(proc), _of_container(system)) if share is not None]
    return min(shares) if shares else None


def _of_host(proc: Path) -> float | None:
    sizes = {}
    for line in _text(proc / "meminfo").splitlines():
        name, _, size = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            sizes[name] = int(size.split()[0])
    return sizes["MemAvailable"] / sizes["MemTotal"] if len(sizes) == 2 else None


def _of_container(system: Path) -> float | None:
    """Of control groups, version 2; page cache that can be given back counts as free."""
    group = system / "fs/cgroup"
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is None or used is None:
        return None
    statistics = dict(line.split() for line in _text(group / "memory.stat").splitlines() if line.count(" ") == 1)
    cached = sum(int(statistics.get(name, 0)) for name in ("inactive_file", "active_file"))
    return 1 - (used - cached) / limit


def space_free(path: str) -> float | None:
    """The share of a file system that may still be written, None if it is not there."""
    try:
        there = os.statvfs(path)
    except OSError:
        return None
    return there.f_bavail / there.f_blocks if there.f_blocks else None


def links(system: Path = SYS) -> dict[str, Link]:
    """Network interfaces but the loopback, and ports of InfiniBand and RoCE adapters."""
    found = {}
    for interface in sorted((system / "class/net").glob("*")):
        if interface.name == "lo" or not (interface / "operstate").exists():
            continue
        # "unknown" is what interfaces say that do not watch their line
        is_up = _text(interface / "operstate").strip() in ("up", "unknown")
        errors = sum(_number(interface / "statistics" / name) or 0 for name in _ERROR_COUNTERS)
        found[interface.name] = Link(is_up=is_up, errors=errors, downs=_number(interface / "carrier_down_count") or 0)
    for port in sorted((system / "class/infiniband").glob("*/ports/*")):
        is_up = "ACTIVE" in _text(port / "state")
        errors = sum(_number(port / "counters" / name) or 0 for name in _IB_ERRORS)
        name = f"{port.parents[1].name}/{port.name}"
        found[name] = Link(is_up=is_up, errors=errors, downs=_number(port / "counters/link_downed") or 0)
    return found


def clock_offset_s() -> float | None:
    """How far the clock is off, as NTP or PTP have told the kernel (adjtimex(2)); None if nothing disciplines it."""
    answer = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(answer))
    if state < 0 or answer.status & _STA_UNSYNC:
        return None
    return answer.offset / (1e9 if answer.status & _STA_NANO else 1e6)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None
