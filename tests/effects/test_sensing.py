"""Effect. What a host monitor senses: GPUs through the real `pynvml` and a stand-in for the driver's library."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic.actors import monitor as monitor_module
from elastic.actors.monitor import HostMonitor
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.hardware import FindingKind
from elastic.control.xid import Severity
from elastic.hosts.health import check_gpus
from elastic.hosts.nvml import Gpus, NoGpusError
from elastic.settings import Health
from elastic.train.flight import FlightPage, read_page, read_visible
from tests.effects.helpers import LONG_S, eventually
from tests.effects.nvml_standin import STATE, Standin, compiled, install, install_smi

pytestmark = pytest.mark.host

QUICK = Health(period_s=0.05, driver_timeout_s=0.4, cooldown_s=0.6)
UNINITIALIZED, UNSUPPORTED, NO_PERMISSION, NO_DRIVER, TIMEOUT, LOST, UNKNOWN = 1, 3, 4, 9, 10, 15, 999  # nvmlReturn_t
UUIDS = [f"GPU-0000000{index}-aaaa-bbbb-cccc-000000000000" for index in range(2)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def standin(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standin:
    """Two GPUs of which all is well."""
    return install(library, tmp_path, monkeypatch, count=2)


class Heard:
    """A monitor that senses, and the findings that it told."""

    def __init__(self, health: Health) -> None:
        self.monitor = HostMonitor("n1", health=health)
        self.found: list[ev.HardwareFinding] = []

    def of(self, *kinds: FindingKind) -> list[ev.HardwareFinding]:
        self.found += [event for event in self.monitor.events(0) if isinstance(event, ev.HardwareFinding)]
        return [event for event in self.found if event.kind in kinds]

    def first(self, kind: FindingKind, what: str = "") -> ev.HardwareFinding:
        """The first finding of this kind that says so, as soon as it is there."""
        return eventually(lambda: next((one for one in self.of(kind) if what in one.detail), None), f"{kind} {what}")

    def has_looked(self) -> None:
        assert self.monitor._senses is not None
        assert self.monitor._senses.gpus(LONG_S) is not None


@pytest.fixture
def heard(standin: Standin) -> Iterator[Heard]:
    heard = Heard(QUICK)
    heard.has_looked()
    yield heard
    heard.monitor.close()


def on_gpu(heard: Heard, page: Path, visible: str, name: str = "w0") -> None:
    """This process is watched as a worker that was given these GPUs."""
    FlightPage(page).visible(visible)
    assert heard.monitor.watch(name, os.getpid(), page)


def ended_on_gpu(heard: Heard, page: Path, visible: str, name: str = "w0") -> int:
    """A worker that was given these GPUs has ended, and the monitor knows; returns its pid."""
    FlightPage(page).visible(visible)
    with subprocess.Popen(["sleep", str(LONG_S)]) as process:
        assert heard.monitor.watch(name, process.pid, page)
        process.kill()
    eventually(lambda: heard.monitor.flights() == {}, f"the death of {name} is seen")
    eventually(lambda: not page.exists(), "its page is taken away")
    return process.pid


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_a_healthy_gpu_is_read_and_nothing_is_told(heard):
    first, second = heard.monitor.hardware()[0]
    assert (first.device, second.device) == tuple(UUIDS)
    assert (first.pci, second.pci) == ("PCI:ee9a:17:00", "PCI:ee9a:18:00")
    assert (first.temperature_c, first.hot_at_c, first.power_w, first.utilization) == (45, 90, 350.0, 97)
    assert (first.memory_used_bytes, first.memory_bytes) == (50 << 30, 80 << 30)
    assert first.links_up == frozenset(range(18)) and first.recovery_action == 0
    assert first.counters["uncorrected ECC errors"] == 0
    gpu_kinds = set(FindingKind) - {FindingKind.BLIND, FindingKind.CLOCK, FindingKind.SPACE, FindingKind.MEMORY}
    assert heard.of(*(gpu_kinds - {FindingKind.NETWORK})) == []


def test_an_xid_comes_at_once_and_names_the_workers_on_its_gpu(heard, standin, tmp_path):
    on_gpu(heard, tmp_path / "page0", "0")
    on_gpu(heard, tmp_path / "page1", UUIDS[1][:12], "w1")
    standin.xid(94, gpu=1)
    found = heard.first(FindingKind.XID)
    assert (found.node, found.device, found.severity) == ("n1", UUIDS[1], Severity.RESTARTABLE)
    assert found.workers == ("w1",) and "XID 94 (ROBUST_CHANNEL_CONTAINED_ERROR)" in found.detail
    standin.xid(79)
    lost = heard.first(FindingKind.XID, "XID 79")
    assert (lost.device, lost.severity, lost.workers) == (UUIDS[0], Severity.NODE_MUST_GO, ("w0",))


def test_an_xid_that_comes_just_after_a_workers_death_names_it(heard, standin, tmp_path):
    """The error ends the process, and only then does the driver say why."""
    ended_on_gpu(heard, tmp_path / "page", UUIDS[1])
    standin.xid(94, gpu=1)
    assert heard.first(FindingKind.XID).workers == ("w0",)


def test_an_out_of_memory_line_that_comes_just_after_the_death_names_its_worker(heard, tmp_path):
    pid = ended_on_gpu(heard, tmp_path / "page", "")
    heard.monitor._senses._heed(f"Out of memory: Killed process {pid} (python) total-vm:1kB")
    found = heard.first(FindingKind.OUT_OF_MEMORY)
    assert (found.workers, found.severity) == (("w0",), Severity.USER_ERROR)


def test_after_a_while_the_dead_are_named_no_more(heard, standin, tmp_path, monkeypatch):
    """Their GPU is somebody else's by then."""
    monkeypatch.setattr(monitor_module, "_BLAMED_S", 0.0)
    ended_on_gpu(heard, tmp_path / "page", UUIDS[1])
    standin.xid(94, gpu=1)
    assert heard.first(FindingKind.XID).workers == ()


def test_a_worker_without_a_claim_is_known_by_its_process(standin, tmp_path):
    """Even if it came after the last look at processes."""
    heard = Heard(QUICK)
    heard.has_looked()
    on_gpu(heard, tmp_path / "page", "")
    standin["gpu1.pid"] = os.getpid()
    standin.xid(31, gpu=1)
    found = heard.first(FindingKind.XID)
    assert (found.severity, found.workers) == (Severity.USER_ERROR, ("w0",))
    heard.monitor.close()


def test_the_same_xid_is_counted_until_the_cooldown_is_over(heard, standin):
    for _ in range(3):
        standin.xid(31)
    again = heard.first(FindingKind.XID, "2 times within 0.6 s")
    assert again.severity is Severity.INFORMATIONAL
    assert len(heard.of(FindingKind.XID)) == 2
    standin.xid(31, gpu=1)
    eventually(lambda: len(heard.of(FindingKind.XID)) == 3, "another GPU has a cooldown of its own")


def test_ecc_errors_that_count_up_are_told(heard, standin):
    standin["gpu1.ecc.sbe.vol"] = 5
    corrected = heard.first(FindingKind.ECC)
    assert corrected.severity is Severity.INFORMATIONAL
    assert "counts 5 more corrected ECC errors: 5" in corrected.detail and corrected.device == UUIDS[1]
    standin["gpu1.ecc.dbe.vol"] = 1
    assert heard.first(FindingKind.ECC, "more uncorrected").severity is Severity.RESTARTABLE


def test_an_nvlink_that_goes_down_is_told_and_when_it_is_back(heard, standin):
    standin["gpu0.link.4"] = 0
    down = heard.first(FindingKind.NVLINK, "has lost NVLink 4")
    assert (down.severity, down.device) == (Severity.RESET_NEEDED, UUIDS[0])
    standin["gpu0.link.4"] = 1
    assert heard.first(FindingKind.NVLINK, "has NVLink 4 back").severity is Severity.INFORMATIONAL


def looks(heard: Heard, count: int = 4) -> None:
    """So many looks, some of them at links."""
    shown = []
    heard.monitor._senses._show = shown.append
    eventually(lambda: len(shown) > count, "the GPUs are looked at")


def test_an_nvlink_that_does_not_answer_once_is_not_lost_nor_are_those_after_it(heard, standin):
    standin["gpu0.link.rc.5"] = TIMEOUT
    looks(heard)
    standin["gpu0.link.rc.5"] = 0
    looks(heard)
    assert heard.of(FindingKind.NVLINK) == []
    assert heard.monitor.hardware()[0][0].links_up == frozenset(range(18))
    standin["gpu0.link.7"] = 0
    assert heard.first(FindingKind.NVLINK).detail.endswith("has lost NVLink 7"), "links after it are looked at still"


def test_an_nvlink_that_never_answers_again_hides_no_other_one(heard, standin):
    looks(heard)
    standin["gpu0.link.rc.5"] = TIMEOUT
    standin["gpu0.link.7"] = 0
    assert heard.first(FindingKind.NVLINK).detail.endswith("has lost NVLink 7")
    assert heard.monitor.hardware()[0][0].links_up == frozenset(range(18)) - {7}


@pytest.mark.parametrize("key", ["fields.rc", "field.rc"], ids=["the call fails", "each field does"])
def test_what_the_driver_asks_for_is_known_though_it_is_not_told_for_a_while(heard, standin, key):
    standin["gpu1.action"] = 2
    reboot = heard.first(FindingKind.RECOVERY_ACTION, "Node Reboot")
    standin[f"gpu1.{key}"] = UNKNOWN
    looks(heard)
    assert heard.of(FindingKind.RECOVERY_ACTION) == [reboot]
    assert reboot.detail in check_gpus(heard.monitor.hardware()[0])
    standin["gpu1.field.52"] = 7
    standin[f"gpu1.{key}"] = 0
    heard.first(FindingKind.NVLINK, "counts 7 more NVLink replays")
    standin["gpu1.action"] = 0
    heard.first(FindingKind.RECOVERY_ACTION, "asks for: None")


def test_fields_that_a_gpu_does_not_have_are_said_to_be_out_of_sight(standin):
    standin["field.rc"] = UNSUPPORTED
    heard = Heard(QUICK)
    blind = heard.first(FindingKind.BLIND, "of the GPUs")
    assert "NVLink errors" in blind.detail and "recovery action" in blind.detail
    heard.monitor.close()


@pytest.mark.parametrize(
    ("key", "kind", "what", "severity"),
    [
        ("ecc.sbe.agg", FindingKind.ECC, "corrected ECC errors since ever", Severity.INFORMATIONAL),
        ("ecc.dbe.agg", FindingKind.ECC, "uncorrected ECC errors since ever", Severity.INFORMATIONAL),
        ("remap.corrected", FindingKind.ROW_REMAP, "remapped rows after corrected errors", Severity.INFORMATIONAL),
        ("remap.uncorrected", FindingKind.ROW_REMAP, "remapped rows after uncorrected errors", Severity.INFORMATIONAL),
        ("field.38", FindingKind.NVLINK, "NVLink CRC errors (flow)", Severity.INFORMATIONAL),
        ("field.45", FindingKind.NVLINK, "NVLink CRC errors (data)", Severity.INFORMATIONAL),
        ("field.52", FindingKind.NVLINK, "NVLink replays", Severity.INFORMATIONAL),
        ("field.59", FindingKind.NVLINK, "NVLink recoveries", Severity.INFORMATIONAL),
        ("field.160", FindingKind.NVLINK, "NVLink ECC errors", Severity.INFORMATIONAL),
    ],
)
def test_every_counter_is_told_when_it_goes_up(heard, standin, key, kind, what, severity):
    standin[f"gpu1.{key}"] = 7
    found = heard.first(kind, f"counts 7 more {what}: 7")
    assert (found.device, found.severity) == (UUIDS[1], severity)


@pytest.mark.parametrize(
    ("bit", "why"),
    [(8, "hardware slowdown"), (32, "heat (software)"), (64, "heat (hardware)"), (128, "power brake")],
)
def test_every_reason_for_low_clocks_is_told(heard, standin, bit, why):
    standin["gpu0.throttle"] = bit | 4  # at its power cap, as every busy GPU is
    assert heard.first(FindingKind.THROTTLE).detail.endswith(f"holds its clocks back: {why}")


@pytest.mark.parametrize("event", [1 << 14, 1 << 15], ids=["it is unavailable", "it asks for something"])
def test_other_news_of_a_gpu_have_it_looked_at_at_once(standin, event):
    """Long before the next look is due."""
    heard = Heard(replace(QUICK, period_s=LONG_S))
    try:
        heard.has_looked()
        standin["gpu1.action"] = 1
        standin["xid.type"] = event
        standin.xid(0, gpu=1)
        assert heard.first(FindingKind.RECOVERY_ACTION).device == UUIDS[1]
    finally:
        heard.monitor.close()


def test_heat_throttling_and_remapped_rows_are_told(heard, standin):
    standin["gpu0.temp"] = 89
    assert "is at 89 C, and slows down at 90 C" in heard.first(FindingKind.TEMPERATURE).detail
    standin["gpu0.throttle"] = 0x40 | 0x80
    assert "heat (hardware), power brake" in heard.first(FindingKind.THROTTLE).detail
    standin["gpu1.remap.pending"] = 1
    assert heard.first(FindingKind.ROW_REMAP).severity is Severity.INFORMATIONAL
    standin["gpu1.remap.failure"] = 1
    assert heard.first(FindingKind.ROW_REMAP, "could not").severity is Severity.RESET_NEEDED


def test_what_the_driver_asks_for_is_told(heard, standin):
    standin["gpu1.action"] = 1
    found = heard.first(FindingKind.RECOVERY_ACTION)
    assert (found.severity, found.device) == (Severity.RESET_NEEDED, UUIDS[1]) and "GPU Reset" in found.detail
    standin["gpu0.reset"] = 1
    assert heard.first(FindingKind.RECOVERY_ACTION, "says its driver").device == UUIDS[0]


def test_a_lost_gpu_is_told_once_and_when_it_is_back(heard, standin, tmp_path):
    on_gpu(heard, tmp_path / "page", "1")
    standin["gpu1.lost"] = 1
    lost = heard.first(FindingKind.GPU_LOST)
    assert (lost.severity, lost.device, lost.workers) == (Severity.NODE_MUST_GO, UUIDS[1], ("w0",))
    standin["gpu0.temp"] = 89
    heard.first(FindingKind.TEMPERATURE)  # the other one is looked at all the same
    assert len(heard.of(FindingKind.GPU_LOST)) == 1
    standin["gpu1.lost"] = 0
    assert heard.first(FindingKind.GPU_LOST, "is back").severity is Severity.INFORMATIONAL
    standin.xid(31, gpu=1)
    heard.first(FindingKind.XID)


def test_a_gpu_that_was_lost_before_anybody_looked_is_found_and_fails_the_check(standin, tmp_path):
    standin["gpu1.handle"] = LOST
    heard = Heard(QUICK)
    on_gpu(heard, tmp_path / "page", "1")
    heard.has_looked()
    told = heard.first(FindingKind.GPU_LOST)
    assert (told.severity, told.node) == (Severity.NODE_MUST_GO, "n1")
    assert told.detail == "GPU 1 (it does not say where) is lost: GPU is lost"
    assert told.detail in heard.monitor.check_health()
    standin["gpu0.temp"] = 89
    heard.first(FindingKind.TEMPERATURE)  # the other one is looked at all the same
    eventually(lambda: len(heard.monitor.hardware()[0]) == 2, "both are known")
    standin["gpu1.handle"] = 0
    back = heard.first(FindingKind.GPU_LOST, "is back")
    assert (back.device, back.severity, back.workers) == (UUIDS[1], Severity.INFORMATIONAL, ("w0",))
    assert {gpu.device for gpu in heard.monitor.hardware()[0]} == set(UUIDS)
    assert not any("GPU 1" in sentence for sentence in heard.monitor.check_health())
    standin["gpu1.handle"] = LOST
    standin["gpu1.lost"] = 1
    again = heard.first(FindingKind.GPU_LOST, "ee9a:18:00) is lost")
    assert again.device == UUIDS[1], "it is known by now"
    heard.monitor.close()


def test_where_all_gpus_are_lost_the_check_fails(standin):
    standin["handle"] = LOST
    heard = Heard(QUICK)
    heard.has_looked()
    assert len([one for one in heard.monitor.check_health() if "is lost" in one]) == 2
    heard.monitor.close()


def test_a_gpu_that_nobody_here_may_use_is_said_to_be_out_of_sight(standin):
    standin["gpu1.handle"] = NO_PERMISSION
    heard = Heard(QUICK)
    assert "GPU 1 (" in heard.first(FindingKind.BLIND, "of the GPUs").detail
    assert heard.of(FindingKind.GPU_LOST) == []
    assert [gpu.device for gpu in heard.monitor.hardware()[0]] == UUIDS[:1]
    heard.monitor.close()


def test_a_driver_that_hangs_is_a_finding_and_blocks_nobody(heard, standin, tmp_path):
    page = FlightPage(tmp_path / "page")
    assert heard.monitor.watch("w0", os.getpid(), tmp_path / "page")
    standin["gpu0.hang"] = 1
    hung = heard.first(FindingKind.DRIVER_HUNG)
    assert hung.severity is Severity.NODE_MUST_GO and "driver_timeout_s=0.4" in hung.detail
    page.note(Flying.COMPUTING, micro_batch=3)
    eventually(lambda: heard.monitor.readings()[0].micro_batch == 3, "pages are read while the driver hangs")
    standin["gpu0.hang"] = 0
    assert heard.first(FindingKind.DRIVER_HUNG, "answers again").severity is Severity.INFORMATIONAL


def test_a_driver_that_hangs_from_the_start_fails_the_check(standin):
    standin["hang"] = 1
    heard = Heard(QUICK)
    try:
        assert heard.monitor._senses.gpus(0.2) is None
        heard.first(FindingKind.DRIVER_HUNG)
    finally:
        standin["hang"] = 0
        heard.has_looked()
        heard.monitor.close()


def test_what_a_gpu_does_not_tell_is_said_once(standin):
    standin["no.ecc"] = standin["no.events"] = 1
    heard = Heard(QUICK)
    blind = heard.first(FindingKind.BLIND, "of the GPUs")
    assert "ECC errors" in blind.detail and "XIDs as events" in blind.detail
    standin["gpu0.temp"] = 89
    heard.first(FindingKind.TEMPERATURE)
    assert len([one for one in heard.of(FindingKind.BLIND) if "of the GPUs" in one.detail]) == 1
    heard.monitor.close()


@pytest.mark.parametrize("state", [{}, {"count": 0}, {"count": 2, "init_rc": 9}], ids=["no file", "none", "no driver"])
def test_where_there_is_no_gpu_the_rest_is_seen(library, tmp_path, monkeypatch, state):
    install(library, tmp_path, monkeypatch, **state)
    if not state:
        monkeypatch.delenv(STATE)
    heard = Heard(QUICK)
    assert "GPUs: " in heard.first(FindingKind.BLIND, "GPUs").detail
    heard.has_looked()
    eventually(lambda: heard.monitor.hardware()[1] is not None, "the host is looked at")
    assert heard.monitor.check_health() == []
    heard.monitor.close()


def test_the_library_is_found_by_its_name(library, tmp_path):
    """As on a machine with a driver: nothing of the process is patched."""
    Standin(tmp_path / "state", count=3)
    code = "from elastic.hosts.nvml import Gpus; print(len(Gpus().read(True)))"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), STATE: str(tmp_path / "state")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=LONG_S)
    assert (done.stdout.strip(), done.returncode) == ("3", 0), done.stderr


def test_a_driver_that_is_taken_down_is_a_kind_of_no_gpus(standin):
    gpus = Gpus()
    standin["init_rc"] = 9
    gpus.close()
    with pytest.raises(NoGpusError, match="no driver library of NVIDIA answers"):
        Gpus()


def test_gpus_whose_driver_is_taken_down_later_are_said_to_be_out_of_sight_until_it_is_back(heard, standin):
    """What was seen of them before passes no check meanwhile."""
    senses = heard.monitor._senses
    assert check_gpus(senses.gpus(0.0), wanted=2) == []
    standin["rc"] = UNINITIALIZED
    down = heard.first(FindingKind.BLIND, "GPUs that were there")
    assert down.severity is Severity.INFORMATIONAL
    assert check_gpus(senses.gpus(0.0), wanted=2) == ["the GPU driver does not answer"]
    assert heard.monitor.hardware()[0] == []
    standin["init_rc"] = NO_DRIVER
    tried = senses._gpu_look.number
    eventually(lambda: senses._gpu_look.number > tried + 6, "it is tried again and again")
    assert heard.of(FindingKind.BLIND).count(down) == 1
    standin["init_rc"] = standin["rc"] = 0
    assert heard.first(FindingKind.BLIND, "seen again").severity is Severity.INFORMATIONAL
    assert check_gpus(senses.gpus(0.0), wanted=2) == []
    standin.xid(31, gpu=1)
    assert heard.first(FindingKind.XID).device == UUIDS[1]


def test_the_driver_is_let_go_of_while_a_gpu_is_reset_and_what_was_seen_before_is_seen_anew(
    heard, standin, tmp_path, monkeypatch
):
    """It resets no GPU that anybody has open, and whoever watches for XIDs has all of them open."""
    told = tmp_path / "told"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    install_smi(tmp_path, f'[ ! -e "${STATE}.open" ] || {{ echo In use by another client; exit 255; }}\necho > {told}')
    open_ = Path(f"{os.environ[STATE]}.open")
    assert open_.exists(), "it is watched"
    standin["gpu1.reset"] = 1
    eventually(lambda: heard.monitor.hardware()[0][1].needs_reset, "it is seen that one needs a reset")
    standin["gpu1.reset"] = 0
    assert heard.monitor.reset_gpus(("1",), LONG_S) == "" and told.exists()
    gpus = heard.monitor._senses.gpus(LONG_S)
    assert gpus is not None and not gpus[1].needs_reset
    standin.xid(31, gpu=1)
    assert heard.first(FindingKind.XID).device == UUIDS[1]


def test_what_an_xid_has_damaged_is_counted_before_another_worker_is_there(standin, tmp_path):
    heard = Heard(replace(QUICK, period_s=LONG_S))
    heard.has_looked()
    on_gpu(heard, tmp_path / "page0", "0")
    standin["gpu0.ecc.dbe.vol"] = 1
    standin.xid(94)
    assert heard.first(FindingKind.ECC, "uncorrected").workers == ("w0",), "and not when the next look is due"
    heard.monitor.close()


def test_the_gpus_of_a_worker_are_read_from_its_page(tmp_path):
    page = FlightPage(tmp_path / "page")
    assert read_visible(tmp_path / "page") == ""
    page.visible("GPU-1,GPU-2")
    page.remark("x" * 200)
    page.note(Flying.COMPUTING)
    assert read_visible(tmp_path / "page") == "GPU-1,GPU-2"
    assert read_page(tmp_path / "page").remark == "x" * 128
    assert read_visible(tmp_path / "nothing") == ""
