"""Effect. The GPU benchmark without a GPU: it says so; its parts are played on the CPU as far as they go there."""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_group, gpu_kill, gpu_step
from tests.effects.helpers import LONG_S
from tests.effects.nvml_standin import compiled, install
from tests.effects.solo import Solo

SMALL = gpu.Settings(nbytes=3 << 18, repeats=3, matrix=64, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a GPU here")
def test_without_a_gpu_it_says_so_in_a_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--out", str(tmp_path / "gpu.json")])
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {gpu.NO_GPU}\n"
    assert not (tmp_path / "gpu.json").exists()


def test_a_snapshot_is_taken_beside_a_step() -> None:
    found = gpu.snapshot(SMALL)
    assert found.keys() == gpu.PARTS["snapshot"].rows.keys()
    assert found["step_s"] > 0 and found["host_s"] > 0
    assert not list(Path("/dev/shm").glob("*benchmark-gpu-*"))


def test_a_digest_is_taken_of_all_state() -> None:
    found = gpu.digest(SMALL)
    assert found.keys() == gpu.PARTS["digest"].rows.keys() and found["digest_gb_per_s"] > 0


def test_the_driver_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(compiled(tmp_path), tmp_path, monkeypatch, count=2)
    found = gpu.nvml(SMALL)
    assert found.keys() == gpu.PARTS["nvml"].rows.keys()
    assert found["gpus"] == 2 and found["seldom_ms"] > 0


def test_parts_that_cannot_be_measured_leave_rows_empty_with_the_reason() -> None:
    for name, part in gpu.PARTS.items():
        rows = gpu.rows_of(name, part, SMALL, gpus=0)
        assert [row["key"] for row in rows] == list(part.rows)
        assert all(row["value"] is None and "torch sees 0" in row["note"] for row in rows)

    def fails(settings: gpu.Settings) -> dict[str, float]:
        raise RuntimeError("out of memory\nand much more")

    part = gpu.Part(measure=fails, rows={"a": ("what", "s")})
    (row,) = gpu.rows_of("snapshot", part, SMALL, gpus=1)
    assert (row["value"], row["note"]) == (None, "out of memory")


class NvmlError(Exception):
    """As pynvml's: of no kind in particular."""


def test_what_the_driver_does_not_tell_leaves_its_rows_empty() -> None:
    def fails(settings: gpu.Settings) -> dict[str, float]:
        raise NvmlError("Not Supported")

    part = gpu.Part(measure=fails, rows={"a": ("what", "s")})
    (row,) = gpu.rows_of("copies", part, SMALL, gpus=1)
    assert (row["value"], row["note"]) == (None, "Not Supported")


def test_blocks_of_both_kinds_of_steps_take_turns(tmp_path: Path, solo: Solo) -> None:
    out, blocks = tmp_path / "seconds.json", 2
    ended = solo.run(partial(gpu_step.train, out=out, device="cpu", blocks=blocks))
    assert len(ended.steps) == (1 + blocks) * gpu_step.STEPS + 1, ended.last
    seconds = json.loads(out.read_text())
    assert len(seconds["elastic"]) == 1 + blocks and len(seconds["plain"]) == 2 + blocks
    assert min(*seconds["elastic"], *seconds["plain"]) > 0


def test_it_runs_where_ray_is_not_installed() -> None:
    """As on most machines that one borrows for a GPU."""
    code = "import sys; sys.modules['ray'] = None; import benchmarks.gpu"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_run_goes_on_without_the_worker_that_was_hit(fault: signal.Signals) -> None:
    found = gpu_kill.measure("cpu", repeats=1, fault=fault)
    assert found.keys() == gpu.PARTS["kill"].rows.keys()
    assert found["step_s"] > 0 and found["resumed_s"] > 0


def test_processes_that_share_a_gpu_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert gpu_group.apart("w0", world=2) == {}
    assert gpu_group.apart("w0", world=3)["NCCL_HOSTID"] == "w0"


@pytest.mark.slow
def test_steps_with_and_without_this_library_take_turns() -> None:
    found = gpu_step.measure("cpu", blocks=3)
    assert found.keys() == gpu.PARTS["step"].rows.keys()
    assert 0 < found["ratio"] < 3 and found["plain_s"] > 0


@pytest.mark.slow
def test_a_group_that_loses_a_process_forms_again() -> None:
    found = gpu_group.measure("gloo", world=3, repeats=1)
    assert found.keys() == gpu.PARTS["nccl"].rows.keys()
    assert 0 < found["abort_s"] <= found["formed_s"] <= found["first_s"]
