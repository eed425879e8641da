"""Effect. A directory that is soon full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.effects.helpers import LONG_S


@contextmanager
def mounted(parent: Path, size: str) -> Iterator[Path]:
    """A tmpfs of this size ("64k", "1m") in a new folder; the test is skipped, with the reason, where none can be."""
    directory = parent / "tiny"
    directory.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    made = subprocess.run(mounting, capture_output=True, text=True, timeout=LONG_S)
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True, timeout=LONG_S)
