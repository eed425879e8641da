"""Effect. NVIDIA's resiliency extension: what it finds, by a stand-in that is held to the real one where it is here."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.control.hardware import FindingKind
from elastic.hosts import nvrx
from tests.effects import nvrx_standin

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT / ".bench" / "nvrx" / "bin" / "python"
CONTRACT = Path(__file__).with_name("nvrx_contract.py")
STAND_INS = {"0.4": nvrx_standin.HEALTH_CHECK_04, "0.6": nvrx_standin.HEALTH_CHECK_06}
CONTRACT_TIMEOUT_S = 100.0  # torch is loaded from a disk that may be cold
needs_the_real_one = pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is missing (make bench-env)")


@pytest.fixture
def version() -> str:
    return "0.6"


@pytest.fixture
def extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> Iterator[Any]:
    """The extension is installed, as far as we use it."""
    nvrx_standin.write(tmp_path, STAND_INS[version])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    nvrx_standin.forget()


def test_checks_of_the_extension_feed_the_same_findings(extension: Any) -> None:
    checks = nvrx.Checks(["GPU-a", "GPU-b"])
    assert checks.are_there
    gpu, nic = checks.run()
    assert (gpu.kind, gpu.device) == (FindingKind.RECOVERY_ACTION, "GPU-b")
    assert gpu.detail == "GPUHealthCheck of GPU 1 of nvidia-resiliency-ext fails"
    assert (nic.kind, nic.device) == (FindingKind.NETWORK, "GPU-a")
    assert checks.run() == [], "told once"


@pytest.mark.parametrize("version", ["0.4"])
def test_checks_of_version_04_are_told_afterwards_whose_they_are(extension: Any, version: str) -> None:
    """Its check of GPUs looks at all of them, and an adapter's check is given its GPU when it is there."""
    gpu, nic = nvrx.Checks(["GPU-a", "GPU-b"]).run()
    assert (gpu.kind, gpu.device) == (FindingKind.RECOVERY_ACTION, "")
    assert gpu.detail == "GPUHealthCheck of nvidia-resiliency-ext fails"
    assert (nic.kind, nic.device) == (FindingKind.NETWORK, "GPU-b")
    assert nic.detail == "NicHealthCheck of GPU 1 of nvidia-resiliency-ext fails"


def test_straggler_sections_of_the_extension_tell_how_slow_the_gpu_is(extension: Any) -> None:
    told: list[float] = []
    sections = nvrx.Sections(told.append, every=2)
    assert sections.are_there
    for _ in range(5):
        with sections.section():
            pass
    assert told == [0.5]


def test_without_the_extension_nothing_breaks() -> None:
    assert not nvrx.Checks(["GPU-a"]).are_there and nvrx.Checks(["GPU-a"]).run() == []
    sections = nvrx.Sections(lambda finding: pytest.fail(str(finding)))
    with sections.section():
        pass
    assert not sections.are_there


# --- the contract -----------------------------------------------------------------------------------------------------


def held(python: Path | str, folder: Path) -> dict[str, Any]:
    """What an interpreter's extension answers to the contract; `folder` holds what it lacks."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(python), str(CONTRACT), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CONTRACT_TIMEOUT_S, env=environment)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cupti")
    nvrx_standin.write_cupti(folder)
    return held(REAL, folder)


@needs_the_real_one
@pytest.mark.timeout(2 * CONTRACT_TIMEOUT_S)
def test_the_real_extension_has_all_that_is_used_and_answers_as_expected(real: dict[str, Any]) -> None:
    assert real["breaches"] == []


@pytest.mark.timeout(2 * CONTRACT_TIMEOUT_S)
@pytest.mark.parametrize("version", STAND_INS)
def test_the_stand_in_keeps_the_same_contract(version: str, tmp_path: Path) -> None:
    nvrx_standin.write(tmp_path, STAND_INS[version])
    assert held(sys.executable, tmp_path)["breaches"] == []


@needs_the_real_one
@pytest.mark.timeout(2 * CONTRACT_TIMEOUT_S)
def test_the_stand_in_takes_nothing_that_the_real_extension_does_not(real: dict[str, Any], tmp_path: Path) -> None:
    """And has nothing that it lacks: version 0.4, the newest that package registries have."""
    nvrx_standin.write(tmp_path, STAND_INS["0.4"])
    there = real["parameters"]
    for name, parameters in held(sys.executable, tmp_path)["parameters"].items():
        assert parameters == [parameter for parameter in there[name] if parameter in parameters], name
