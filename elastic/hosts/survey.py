"""Effect. A look at this machine for `elastic doctor`: versions, memory, ramdisk, limits, clock, GPUs."""

import importlib.metadata
import os
import platform
import resource
from pathlib import Path

from elastic.control.diagnosis import Machine
from elastic.hosts.health import check_gpus
from elastic.hosts.machine import PROC, SYS, clock_offset_s
from elastic.hosts.nvml import Gpus, NoGpusError

PACKAGES = {"ray": "ray", "torch": "torch", "elastic": "ray-elastic"}
_IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")


def survey(name: str, ramdisk: str, proc: Path = PROC, system: Path = SYS) -> Machine:
    """One look.

    Args:
        name: of the machine, in findings. ramdisk: directory of the node tier.
        proc, system: where the kernel shows itself.
    """
    size, free = _space(ramdisk)
    gpus, trouble = _gpus()
    has_cuda, nccl = _cuda() if gpus else (False, "")
    return Machine(
        name=name,
        versions=versions(),
        memory_bytes=memory_bytes(proc, system),
        ramdisk=ramdisk,
        ramdisk_bytes=size,
        ramdisk_free_bytes=free,
        is_in_memory=kind_of_file_system(ramdisk, proc) in _IN_MEMORY,
        is_ramdisk_writable=os.access(ramdisk, os.W_OK | os.X_OK),
        files=_limit(resource.RLIMIT_NOFILE),
        processes=_limit(resource.RLIMIT_NPROC),
        clock_offset_s=clock_offset_s(),
        gpus=gpus,
        gpu_trouble=trouble,
        has_cuda=has_cuda,
        nccl=nccl,
    )


def versions() -> dict[str, str]:
    """Of Python and what driver and nodes must have alike; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name, distribution in PACKAGES.items():
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def memory_bytes(proc: Path = PROC, system: Path = SYS) -> int | None:
    """Of the host, or of the container (control groups, version 2) if that is less."""
    sizes = []
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            sizes.append(int(line.split()[1]) * 1024)
    limit = _text(system / "fs/cgroup/memory.max").strip()
    if limit.isdigit():
        sizes.append(int(limit))
    return min(sizes, default=None)


def kind_of_file_system(path: str, proc: Path = PROC) -> str:
    """Of the innermost mount that holds a path, empty if that can not be seen."""
    target, best, kind = os.path.realpath(path), "", ""
    for line in _text(proc / "self/mounts").splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        mount = parts[1].replace("\\040", " ")
        if len(mount) >= len(best) and Path(target).is_relative_to(mount):
            best, kind = mount, parts[2]
    return kind


def _space(path: str) -> tuple[int | None, int | None]:
    try:
        there = os.statvfs(path)
    except OSError:
        return None, None
    return there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _gpus() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of those that the driver knows, and what is wrong with them."""
    try:
        gpus = Gpus()
    except NoGpusError:
        return (), ()
    try:
        readings = gpus.read(with_links=False)
    finally:
        gpus.close()
    return tuple(one.name for one in readings), tuple(check_gpus(readings))


def _cuda() -> tuple[bool, str]:
    """Whether torch sees a GPU, and the version of its NCCL."""
    try:
        import torch
    except ImportError:
        return False, ""
    if not torch.cuda.is_available():
        return False, ""
    found = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
    return True, ".".join(map(str, found))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
