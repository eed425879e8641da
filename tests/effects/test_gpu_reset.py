"""Effect. A reset goes through `nvidia-smi` with an argument list; whatever that does, it ends in a sentence."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from elastic.actors.gpu_reset import reset_gpus
from elastic.actors.monitor import HostMonitor
from elastic.train.surroundings import Surroundings
from tests.effects.helpers import LONG_S, Running
from tests.effects.nvml_standin import install_smi

pytestmark = pytest.mark.host

UUID = "GPU-8a1f2c3d-0000-1111-2222-333344445555"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A stand-in for nvidia-smi that writes its arguments to a file, one a line, and goes on with a line of shell."""
    told = tmp_path / "arguments"

    def install(then: str) -> Path:
        install_smi(tmp_path, f'printf "%s\\n" "$@" > {told}\n{then}')
        return told

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return install


def test_all_gpus_are_reset_in_one_go(smi):
    told = smi("exit 0")
    assert reset_gpus(("0", UUID), 10.0) == ""
    assert told.read_text().splitlines() == ["--gpu-reset", "-i", f"0,{UUID}"]


def test_the_host_monitor_does_it(smi):
    told = smi("exit 0")
    monitor = HostMonitor()
    try:
        assert monitor.reset_gpus(("3",), 10.0) == ""
    finally:
        monitor.close()
    assert told.read_text().splitlines()[-1] == "3"


def test_who_has_left_has_its_gpu_until_its_process_has_ended(smi, tmp_path):
    told, page = smi("exit 0"), tmp_path / "page"
    monitor, worker = HostMonitor(), subprocess.Popen(["sleep", "600"])
    try:
        monitor.watch("w0", worker.pid, page)
        monitor.forget("w0")
        resetting = Running(lambda: monitor.reset_gpus(("3",), LONG_S))
        time.sleep(0.2)
        assert not told.exists(), "its process lives"
        worker.kill()
        assert resetting.result() == "" and told.exists()
    finally:
        worker.kill()
        worker.wait(LONG_S)
        monitor.close()


def test_a_refusal_is_told(smi):
    smi("echo 'GPU 00000000:17:00.0 is currently in use by another process.' >&2; exit 3")
    assert reset_gpus(("0",), 10.0).startswith("nvidia-smi ended with code 3: GPU 00000000:17:00.0 is currently in use")


def test_a_driver_that_hangs_is_not_waited_for(smi):
    smi("exec sleep 60")
    began_s = time.monotonic()
    assert "did not answer" in reset_gpus(("0",), 0.5)
    assert time.monotonic() - began_s < 30


@pytest.mark.parametrize("gpus", [(), ("0; rm -rf /",), ("all",), ("0", "-x")], ids=str)
def test_what_is_no_gpu_is_handed_to_nobody(smi, gpus):
    told = smi("exit 0")
    assert "is no GPU" in reset_gpus(gpus, 10.0)
    assert not told.exists()


def test_a_node_without_the_program_says_so():
    assert reset_gpus(("0",), 1.0, program="no-such-smi") == "no-such-smi is not installed on this node"


@pytest.mark.parametrize(
    ("device", "given", "gpus"),
    [("cpu", "0,1", ()), ("cuda", "2", ("2",)), ("cuda", f"{UUID}, 3", (UUID, "3")), ("cuda", "", ())],
)
def test_a_worker_tells_which_gpus_it_was_given(monkeypatch, device, given, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert Surroundings.gpus.fget(SimpleNamespace(device=torch.device(device))) == gpus
