"""Where a number comes from: the code, the versions and the machine that made it."""

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGES = {"elastic": "ray-elastic", "ray": "ray", "torch": "torch"}


def provenance() -> dict[str, Any]:
    """What someone else needs to know to repeat a measurement, or to doubt it. Take it before measuring."""
    changes = _git("status", "--porcelain")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command(sys.orig_argv),
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else changes != "",
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "load_average_1min": os.getloadavg()[0],  # others at work on a shared machine show here
        },
    }


def command(arguments: Sequence[str]) -> str:
    """How this process was called, as one would type it elsewhere: of this machine's own paths only names are told."""
    return shlex.join(["python", *(Path(one).name if Path(one).is_absolute() else one for one in arguments[1:])])


def _git(*arguments: str) -> str | None:
    """Git's answer about this checkout; None where there is no git, no checkout or no commit."""
    root = Path(__file__).resolve().parent.parent
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(PACKAGES[name])
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name; on Linux the platform module knows only the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
