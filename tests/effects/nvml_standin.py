"""Effect. Compiles the stand-in for NVIDIA's management library, and scripts what it says."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pynvml
import pytest

SOURCE = Path(__file__).with_name("nvml_standin.c")
STATE = "NVML_STANDIN_STATE"
COMPILE_S = 60.0


def compiled(folder: Path) -> Path:
    """The library, under the name by which it is looked for in LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for libnvidia-ml.so.1 can not be built")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=COMPILE_S)
    return library


class Standin:
    """The driver of this process, as tests want it: `standin["gpu1.temp"] = 95`."""

    def __init__(self, path: Path, **state: int) -> None:
        self._path, self._state = path, dict(state)
        self._write()

    def __setitem__(self, key: str, value: int) -> None:
        self._state[key] = value
        self._write()

    def xid(self, code: int, gpu: int = 0) -> None:
        """An XID arrives."""
        self._state |= {"xid.code": code, "xid.gpu": gpu, "xid.seq": self._state.get("xid.seq", 0) + 1}
        self._write()

    def _write(self) -> None:
        """As a whole, since it is read at any moment."""
        new = self._path.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self._state.items()))
        os.replace(new, self._path)


def install(library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **state: int) -> Standin:
    """Has pynvml call this library in this process, until the test ends."""
    path = folder / "nvml.state"
    standin = Standin(path, **state)
    monkeypatch.setenv(STATE, str(path))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return standin


def install_smi(folder: Path, then: str) -> None:
    """A stand-in for `nvidia-smi`, a line of shell; `folder` is to be put on the PATH."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{then}\n")
    program.chmod(0o755)
