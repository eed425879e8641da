"""Effect. The kernel log, memory, space, network, clock; and the checks that a node passes before workers join."""

import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elastic.actors.monitor import HostMonitor
from elastic.control import events as ev
from elastic.control.hardware import FindingKind, GpuReading, Link
from elastic.control.xid import Severity
from elastic.hosts import health as health_module
from elastic.hosts import machine, peers, sensing
from elastic.hosts.health import check_gpus, check_node, within
from elastic.hosts.kernel_log import KMSG, KernelLog
from elastic.settings import Health
from elastic.train.flight import FlightPage
from tests.effects.helpers import ENDLESS_S, LONG_S, MOMENT_S, eventually
from tests.effects.nvml_standin import STATE, compiled, install

pytestmark = pytest.mark.host

QUICK = Health(period_s=0.05, cooldown_s=60.0)


# --- the kernel's log -------------------------------------------------------------------------------------------------


def needs_kmsg() -> None:
    """The tests write to the real log."""
    if os.geteuid() != 0 or not os.access(KMSG, os.R_OK | os.W_OK):
        pytest.skip("only root may write to /dev/kmsg, and not in every container")
    try:
        KernelLog().close()
    except OSError as error:
        pytest.skip(f"/dev/kmsg can not be read: {error}")


def log_line(text: str) -> None:
    KMSG.write_text(f"{text}\n")


def monitor_findings(monitor: HostMonitor, mark: str, count: int = 1) -> list[ev.HardwareFinding]:
    """Findings that carry this mark: others may write to the same log."""
    found: list[ev.HardwareFinding] = []

    def are_there() -> bool:
        news = [event for event in monitor.events(0) if isinstance(event, ev.HardwareFinding)]
        found.extend(event for event in news if mark in event.detail or mark in event.device)
        return len(found) >= count

    eventually(are_there, f"{count} findings about {mark}")
    return found


@pytest.fixture
def monitor():
    monitor = HostMonitor("n1", health=QUICK)
    eventually(lambda: monitor.hardware()[1] is not None, "the host is looked at")
    yield monitor
    monitor.close()


def test_lines_come_as_they_are_written():
    needs_kmsg()
    mark = f"elastic-test-{os.getpid()}"
    log_line(f"{mark}: before")
    kernel = KernelLog()
    log_line(f"{mark}: after")
    heard: list[str] = []
    eventually(lambda: heard.extend(kernel.lines(0.1)) or any("after" in line for line in heard), "the line is read")
    assert [line for line in heard if mark in line] == [f"{mark}: after"], "what was there before is not news"
    kernel.close()


def test_an_xid_line_is_a_finding_and_kept_low_where_the_gpu_is_not_ours(monitor, tmp_path):
    needs_kmsg()
    log_line("NVRM: Xid (PCI:ee9b:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    (found,) = monitor_findings(monitor, "PCI:ee9b:17:00")
    assert (found.kind, found.severity, found.workers) == (FindingKind.XID, Severity.INFORMATIONAL, ())
    assert "no GPU that is seen here" in found.detail


def test_an_xid_line_of_a_gpu_of_ours_has_its_class(tmp_path, monkeypatch):
    needs_kmsg()
    install(compiled(tmp_path), tmp_path, monkeypatch, count=2)
    monitor = HostMonitor("n1", health=QUICK)
    assert monitor._senses.gpus(LONG_S) is not None
    FlightPage(tmp_path / "page").visible("1")
    assert monitor.watch("w0", os.getpid(), tmp_path / "page")
    log_line("NVRM: Xid (PCI:ee9a:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    (found,) = monitor_findings(monitor, "XID 154")
    assert found.device.startswith("GPU-00000001") and found.severity is Severity.RESET_NEEDED
    assert found.workers == ("w0",)
    monitor.close()


def test_a_line_that_names_a_process_of_ours_is_ours(monitor, tmp_path):
    needs_kmsg()
    FlightPage(tmp_path / "page")
    assert monitor.watch("w0", os.getpid(), tmp_path / "page")
    log_line(f"NVRM: Xid (PCI:ee9b:18:00): 94, pid={os.getpid()}, name=python, Contained memory error")
    (found,) = monitor_findings(monitor, "PCI:ee9b:18:00")
    assert (found.severity, found.workers) == (Severity.RESTARTABLE, ("w0",))
    log_line(f"Out of memory: Killed process {os.getpid()} (elastic-test) total-vm:1kB")
    (killed,) = monitor_findings(monitor, "(elastic-test)")
    assert (killed.kind, killed.severity) == (FindingKind.OUT_OF_MEMORY, Severity.USER_ERROR)
    assert killed.workers == ("w0",)


@pytest.mark.parametrize(
    ("line", "kind", "device"),
    [
        ("blk_update_request: I/O error, dev elastictest0, sector 8 op 0x0:(READ)", FindingKind.DISK, "elastictest0"),
        ("NETDEV WATCHDOG: elastictest1 (mlx5_core): transmit queue 3 timed out", FindingKind.NETWORK, "elastictest1"),
        ("elastictest2: NIC Link is Down", FindingKind.NETWORK, "elastictest2"),
    ],
    ids=["disk", "stuck adapter", "link"],
)
def test_other_hardware_in_the_log_is_told(monitor, line, kind, device):
    needs_kmsg()
    log_line(line)
    (found,) = monitor_findings(monitor, device)
    assert (found.kind, found.device) == (kind, device)


def test_a_log_that_can_not_be_read_is_said_once(tmp_path):
    from elastic.hosts.sensing import Senses

    told: list[ev.HardwareFinding] = []
    senses = Senses("n1", QUICK, told.append, dict, kmsg=tmp_path / "nothing")
    eventually(lambda: any("the kernel log" in one.detail for one in told), "it is said")
    time.sleep(MOMENT_S)
    assert len([one for one in told if "the kernel log" in one.detail]) == 1
    assert all(one.severity is Severity.INFORMATIONAL for one in told)
    senses.close()


class Kernel:
    """The kernel's log, as tests write it."""

    def __init__(self, path: Path = KMSG) -> None:
        self.lost = 0

    def lines(self, timeout_s: float) -> list[str]:
        time.sleep(0.01)
        return [written.pop() for _ in written[:]]

    def close(self) -> None:
        """Nothing is held."""


written: list[str] = []


def test_a_file_system_that_hangs_is_told_once_and_hides_neither_the_kernel_log_nor_other_threads(monkeypatch):
    hangs, over, statvfs = threading.Event(), threading.Event(), os.statvfs

    def hung(path: str) -> os.statvfs_result:
        if hangs.is_set():
            over.wait(ENDLESS_S)
        return statvfs(path)

    monkeypatch.setattr(machine.os, "statvfs", hung)
    monkeypatch.setattr(sensing, "KernelLog", Kernel)
    monitor = HostMonitor("n1", health=replace(QUICK, driver_timeout_s=0.4, check_timeout_s=0.2))
    try:
        eventually(lambda: monitor.hardware()[1] is not None, "the host is looked at")
        hangs.set()
        (found,) = monitor_findings(monitor, "a look at them has not ended within Health.driver_timeout_s=0.4")
        assert (found.kind, found.severity) == (FindingKind.BLIND, Severity.INFORMATIONAL)
        written.append("blk_update_request: I/O error, dev elastictest0, sector 8 op 0x0:(READ)")
        (found,) = monitor_findings(monitor, "elastictest0")
        assert found.kind is FindingKind.DISK
        assert monitor.check_health() == ["the check did not end within Health.check_timeout_s=0.2"]
        for _ in range(2):
            assert monitor.check_health()[0].startswith("an earlier check still has not ended")
        assert [one.name for one in threading.enumerate()].count("elastic-health") == 1
        assert not [event for event in monitor.events(0) if "has not ended" in event.detail], "told once"
        hangs.clear()
        over.set()
        monitor_findings(monitor, "are looked at again")
        eventually(lambda: monitor.check_health() == [], "the check is over")
    finally:
        over.set()
        monitor.close()


# --- memory, space, network, clock ------------------------------------------------------------------------------------


def test_this_machine_can_be_looked_at():
    seen = machine.look(("/dev/shm", "/tmp", "/nowhere"))
    assert 0 < seen.memory_free <= 1
    assert set(seen.space_free) == {"/dev/shm", "/tmp"} and all(0 <= free <= 1 for free in seen.space_free.values())
    assert seen.clock_offset_s is None or abs(seen.clock_offset_s) < 3600


def sysfs(folder: Path, **files: str) -> Path:
    """A tree as the kernel shows it; "__" stands for "/"."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


def test_links_are_read(tmp_path):
    system = sysfs(
        tmp_path,
        class__net__lo__operstate="unknown",
        class__net__eth0__operstate="up",
        class__net__eth0__carrier_down_count="2",
        class__net__eth0__statistics__rx_errors="3",
        class__net__eth0__statistics__tx_errors="4",
        class__net__eth1__operstate="down",
        class__infiniband__mlx5_0__ports__1__state="4: ACTIVE",
        class__infiniband__mlx5_0__ports__1__counters__link_downed="1",
        class__infiniband__mlx5_0__ports__1__counters__symbol_error="9",
        class__infiniband__mlx5_1__ports__1__state="1: DOWN",
    )
    assert machine.links(system) == {
        "eth0": Link(is_up=True, errors=7, downs=2),
        "eth1": Link(is_up=False),
        "mlx5_0/1": Link(is_up=True, errors=9, downs=1),
        "mlx5_1/1": Link(is_up=False),
    }
    assert machine.links(tmp_path / "nothing") == {}


def test_a_container_has_less_memory_than_its_host(tmp_path):
    proc = sysfs(tmp_path / "proc", meminfo="MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 500 kB")
    system = sysfs(
        tmp_path / "sys",
        **{
            "fs__cgroup__memory.max": "1000",
            "fs__cgroup__memory.current": "900",
            "fs__cgroup__memory.stat": "anon 700\ninactive_file 10\nactive_file 90",
        },
    )
    assert machine.memory_free(proc, system) == pytest.approx(0.2)
    assert machine.memory_free(proc, tmp_path / "nothing") == 0.5
    sysfs(tmp_path / "sys", **{"fs__cgroup__memory.max": "max"})
    assert machine.memory_free(proc, system) == 0.5
    assert machine.memory_free(tmp_path / "nothing", tmp_path / "nothing") is None


def test_a_disk_that_fills_up_is_told(tmp_path):
    """A small file system of its own, filled for real."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    mount = tmp_path / "disk"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(mount)], check=False).returncode:
        pytest.skip("nothing can be mounted in this container")
    try:
        monitor = HostMonitor("n1", health=Health(period_s=0.05, disk=str(mount), space_free=0.2))
        eventually(lambda: monitor.hardware()[1] is not None, "the host is looked at")
        assert monitor.check_health() == []
        (mount / "file").write_bytes(bytes(1 << 20))
        (found,) = monitor_findings(monitor, str(mount))
        assert (found.kind, found.severity) == (FindingKind.SPACE, Severity.INFORMATIONAL)
        (failed,) = monitor.check_health()
        assert failed == f"0.0% of {mount} is free, less than Health.space_free=0.2"
        monitor.close()
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_real_interface_that_goes_down_is_seen():
    """A pair of virtual ones in the kernel of this machine; the far end is taken down, as a switch would."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip")
    near, far = f"ela{os.getpid() % 100000}", f"elb{os.getpid() % 100000}"
    pair = ["ip", "link", "add", near, "type", "veth", "peer", "name", far]
    if subprocess.run(pair, check=False, capture_output=True).returncode:
        pytest.skip("no virtual interfaces can be made in this container")
    try:
        for name in (near, far):
            subprocess.run(["ip", "link", "set", name, "up"], check=True)
        eventually(lambda: machine.links()[near].is_up, "the link is up")
        downs = machine.links()[near].downs
        subprocess.run(["ip", "link", "set", far, "down"], check=True)
        eventually(lambda: not machine.links()[near].is_up, "the link is down")
        assert machine.links()[near].downs > downs
    finally:
        subprocess.run(["ip", "link", "del", near], check=True)


# --- health checks ----------------------------------------------------------------------------------------------------


def healthy_gpu(**seen) -> GpuReading:
    return GpuReading(**{"device": "GPU-1", "index": 3, "pci": "PCI:0000:17:00", **seen})


def test_a_healthy_node_passes():
    assert check_node(Health(), lambda _: [healthy_gpu()]) == []


@pytest.mark.parametrize(
    ("limits", "failed"),
    [
        ({"memory_bytes_per_s": 1e15}, "a copy in memory: "),
        ({"hash_bytes_per_s": 1e15}, "SHA-256: "),
        ({"memory_free": 0.9999}, "of memory is free, less than Health.memory_free=0.9999"),
    ],
)
def test_limits_are_settings(limits, failed):
    (found,) = check_node(Health(**limits), lambda _: [])
    assert failed in found and f"Health.{next(iter(limits))}" in found


@pytest.mark.parametrize(
    ("seen", "failed"),
    [
        ({"lost": "GPU is lost"}, "GPU 3 (PCI:0000:17:00) is lost: GPU is lost"),
        ({"needs_reset": True}, "GPU 3 (PCI:0000:17:00) needs a reset"),
        ({"recovery_action": 2}, "GPU 3 (PCI:0000:17:00) asks for: Node Reboot"),
        ({"remap_failed": True}, "GPU 3 (PCI:0000:17:00) could not remap a row of its memory"),
    ],
)
def test_a_gpu_that_can_not_be_used_fails_the_check(seen, failed):
    assert check_gpus([healthy_gpu(), healthy_gpu(**seen)]) == [failed]
    assert check_gpus([healthy_gpu(remap_pending=True, recovery_action=0)]) == []
    assert check_gpus(None) == ["the GPU driver does not answer"]


def test_a_node_that_shows_fewer_gpus_than_a_worker_is_given_fails_the_check():
    (found,) = check_gpus([], 2)
    assert found.startswith("the driver shows 0 GPUs, and workers are given 2 on a node: ")
    assert check_gpus([healthy_gpu()], 2) != []
    assert check_gpus([healthy_gpu(), healthy_gpu()], 2) == []
    assert check_node(Health(), lambda _: [], None, 1) != []
    assert check_node(Health(), None, None, 1) == [], "where nothing is sensed, nobody can say"


def test_where_gpus_are_wanted_no_product_of_a_cpu_counts():
    (found,) = health_module.multiply(1 + torch.cuda.device_count())
    assert found.startswith(f"torch sees {torch.cuda.device_count()} GPUs, and workers are given ")


def test_a_check_that_hangs_has_failed_and_one_that_raises_says_so():
    turn, over = threading.Semaphore(), threading.Event()
    hung, late = "the check did not end within", "an earlier check still has not ended, nor within"
    assert within(lambda: over.wait(ENDLESS_S) and [], 0.1, turn) == [f"{hung} Health.check_timeout_s=0.1"]
    fail = lambda: [str(1 // 0)]  # noqa: E731
    assert within(fail, 0.1, turn) == [f"{late} Health.check_timeout_s=0.1 more"]
    over.set()
    assert within(fail, LONG_S, turn) == ["ZeroDivisionError: integer division or modulo by zero"]


def test_bytes_from_a_peer_are_measured():
    port = peers.lend("127.0.0.1")
    speed = peers.bytes_per_s("127.0.0.1", port, LONG_S)
    assert speed > 0
    health = Health(peer_bytes_per_s=1e15)
    (found,) = check_node(health, lambda _: [], ("127.0.0.1", peers.lend("127.0.0.1")))
    assert found.startswith("what comes from 127.0.0.1: ") and "Health.peer_bytes_per_s=1e+15" in found
    (gone,) = check_node(health, lambda _: [], ("127.0.0.1", port))
    assert gone.startswith("ConnectionRefusedError")


def test_a_matrix_product_is_checked_in_a_process_of_its_own(monkeypatch):
    """What that process may say, with little processes in its place; the real one is slow."""
    for script, found in (
        ("print('')", []),
        ("print('cuda:1 multiplies matrices wrongly')", ["cuda:1 multiplies matrices wrongly"]),
        ("raise SystemExit('CUDA error')", ["a matrix product failed (code 1): CUDA error"]),
    ):
        run = subprocess.run
        monkeypatch.setattr(
            health_module.subprocess,
            "run",
            lambda command, script=script, run=run, **how: run([command[0], "-c", script], **how),
        )
        assert health_module.check_matmul(LONG_S) == found
        monkeypatch.undo()


def test_the_process_that_multiplies_is_told_how_many_gpus_are_wanted(monkeypatch):
    commands = []
    answer = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(health_module.subprocess, "run", lambda command, **how: commands.append(command) or answer)
    assert check_node(Health(matmul=True), None, None, 4) == []
    assert commands[0][-2:] == ["elastic.hosts.health", "4"]


@pytest.mark.slow
def test_matrices_are_multiplied_exactly():
    assert health_module.check_matmul(4 * LONG_S) == []


def test_a_node_whose_gpu_needs_a_reboot_fails_its_check(tmp_path, monkeypatch):
    """From the driver's answer to the sentence."""
    standin = install(compiled(tmp_path), tmp_path, monkeypatch, count=2, action=0)
    monitor = HostMonitor("n1", health=QUICK)
    assert monitor.check_health() == []
    standin["gpu1.action"] = 2
    eventually(lambda: monitor.check_health() == ["GPU 1 (PCI:ee9a:18:00) asks for: Node Reboot"], "it is seen")
    monitor.close()


def test_a_monitor_that_senses_nothing_has_nothing_to_say(monkeypatch):
    monkeypatch.delenv(STATE, raising=False)
    monitor = HostMonitor("n1", health=Health(sensing=False))
    assert monitor.check_health() == [] and monitor.events(MOMENT_S) == []
    monitor.close()
    bare = HostMonitor("n1")
    assert bare.check_health() == []
    bare.close()
