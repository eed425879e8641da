"""Pure. What a line of the kernel log says about this host: GPU errors, killed processes, disks, network, buses."""

import re

from elastic.control.hardware import Finding, FindingKind
from elastic.control.xid import Severity, classify

# NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus.
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)(.*)")
_XID_PID = re.compile(r"\bpid=(\d+)")
# nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 28006, Non-fatal, Link 29 MC TS crumbstore MCTO
_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (Non-fatal|Fatal)(.*)")
_KILLED = re.compile(r"ut of memory: Killed process (\d+) \(([^)]*)\)")

# What a line must match, by kind; the first group is the device.
_RULES = {
    FindingKind.DISK: (
        r"I/O error, dev (\w+)",
        r"Buffer I/O error on dev(?:ice)? ([\w-]+)",
        r"(?:EXT4|BTRFS|F2FS)-fs(?: error)? \(?(?:device )?([\w-]+)\)?:.*(?:error|emounting filesystem read-only)",
        r"EXT4-fs error \(device ([\w-]+)\)",
        r"XFS \(([\w-]+)\):.*(?:orruption|I/O error|hutting down)",
        r"nvme (nvme\d+): (?:controller is down|I/O \d+ QID \d+ timeout|Device not ready|Removing after probe failure)",
    ),
    FindingKind.NETWORK: (
        r"NETDEV WATCHDOG: (\w+)",
        r"(\w+):? (?:NIC )?Link is [Dd]own",
        r"mlx5_core ([0-9a-f:.]*[0-9a-f])[: ].*(?:[Ll]ink down|health (?:poll fail|comprom)|device's health|Fatal err)",
    ),
    FindingKind.BUS: (
        r"EDAC (\w+): \d+ UE",
        r"(mce): \[Hardware Error\]",
        r"([0-9a-f:.]+): PCIe Bus Error: severity=Uncorrect",
    ),
}
_COMPILED = tuple((re.compile(pattern), kind) for kind, patterns in _RULES.items() for pattern in patterns)
_HEX = re.compile("[0-9a-f]{1,8}")
_KEPT_CHARS = 200


def pci_address(text: str) -> str:
    """ "00000000:17:00.0", "0000:17:00" and "17:00.0" are one: domain, bus and device, as in the kernel log."""
    *domain, bus, device = text.lower().split(":")
    number = int(domain[0], 16) if domain and _HEX.fullmatch(domain[0]) else 0
    return f"PCI:{number:04x}:{bus}:{device.partition('.')[0]}"


def read_line(line: str) -> Finding | None:
    """What follows from a line, None if it is of no interest here."""
    found = _xid(line) or _sxid(line) or _killed(line)
    if found is not None:
        return found
    for pattern, kind in _COMPILED:
        match = pattern.search(line)
        if match is not None:
            device, detail = match[1], line.strip()[:_KEPT_CHARS]
            return Finding(device=device, kind=kind, severity=Severity.INFORMATIONAL, detail=detail, code="kernel log")
    return None


def _xid(line: str) -> Finding | None:
    match = _XID.search(line)
    if match is None or not 1 <= match[1].count(":") <= 2:
        return None
    address, code, rest = match[1], int(match[2]), match[3].strip(" ,")
    severity, sentence = classify(code, rest)
    pid = _XID_PID.search(rest)
    return Finding(
        device=pci_address(address),
        kind=FindingKind.XID,
        severity=severity,
        detail=f"{sentence}; the kernel log says: {rest[:_KEPT_CHARS] or 'no more'}",
        code=code,
        pid=int(pid[1]) if pid is not None else 0,
    )


def _sxid(line: str) -> Finding | None:
    """The switch between GPUs; what is fatal to it ends with a reset of all of them (Fabric Manager User Guide)."""
    match = _SXID.search(line)
    if match is None or not 1 <= match[1].count(":") <= 2:
        return None
    is_fatal = match[3] == "Fatal"
    return Finding(
        device=pci_address(match[1]),
        kind=FindingKind.NVSWITCH,
        severity=Severity.NODE_MUST_GO if is_fatal else Severity.INFORMATIONAL,
        detail=f"SXid {match[2]} of an NVSwitch, {match[3]}{match[4][:_KEPT_CHARS]}",
        code=int(match[2]),
    )


def _killed(line: str) -> Finding | None:
    """The kernel ends a process that took too much memory: what its worker's incident needs as evidence."""
    match = _KILLED.search(line)
    if match is None:
        return None
    return Finding(
        device="",
        kind=FindingKind.OUT_OF_MEMORY,
        severity=Severity.USER_ERROR,
        detail=f"the kernel killed process {match[1]} ({match[2]}), out of memory",
        code=int(match[1]),
        pid=int(match[1]),
    )
