"""What sensors read, compared; XIDs and lines of the kernel log, classified; and a cooldown that forgets nothing."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.control.hardware import (
    Cooldown,
    Finding,
    FindingKind,
    GpuReading,
    HostReading,
    Link,
    carried,
    compare_gpu,
    compare_host,
    nameless,
    recognized,
    sees,
    short_of,
)
from elastic.control.kernel_lines import pci_address, read_line
from elastic.control.xid import RECOVERY_ACTIONS, XIDS, Severity, classify, is_worse, recovery
from elastic.settings import Health

HEALTH = Health()
DOCS = Path(__file__).resolve().parents[2] / "docs" / "hosts.md"


def gpu(**seen) -> GpuReading:
    return GpuReading(**{"device": "GPU-1", "index": 3, "pci": "PCI:0000:17:00", **seen})


# --- who is who -------------------------------------------------------------------------------------------------------


def test_a_gpu_is_recognized_by_its_name_or_by_its_number_where_it_does_not_tell_its_name():
    whole, other, gone = gpu(pci="PCI:1"), gpu(device="GPU-2"), nameless(3, "GPU is lost")
    assert recognized({}, gone) == (None, gone)
    assert recognized({"GPU-1": whole}, gpu(temperature_c=50)) == (whole, gpu(temperature_c=50))
    assert recognized({"GPU-1": whole}, gone) == (whole, gpu(pci="PCI:1", lost="GPU is lost"))
    assert recognized({gone.device: gone}, whole) == (gone, whole), "it has come back"
    assert recognized({gone.device: gone}, gone) == (gone, gone)
    assert recognized({"GPU-1": whole}, other) == (None, other), "another GPU was put in its place"
    assert recognized({"GPU-1": whole}, nameless(4, "lost")) == (None, nameless(4, "lost"))


# --- XIDs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "severity"),
    [
        (13, Severity.USER_ERROR),
        (31, Severity.USER_ERROR),
        (32, Severity.RESTARTABLE),
        (43, Severity.USER_ERROR),
        (45, Severity.INFORMATIONAL),
        (48, Severity.RESET_NEEDED),
        (63, Severity.INFORMATIONAL),
        (64, Severity.RESET_NEEDED),
        (74, Severity.RESET_NEEDED),
        (79, Severity.NODE_MUST_GO),
        (92, Severity.INFORMATIONAL),
        (94, Severity.RESTARTABLE),
        (95, Severity.RESET_NEEDED),
        (119, Severity.RESET_NEEDED),
        (120, Severity.RESET_NEEDED),
        (135, Severity.RESTARTABLE),
        (999, Severity.INFORMATIONAL),
    ],
)
def test_codes_that_matter_have_their_class(code, severity):
    assert classify(code)[0] is severity


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Severity.RESET_NEEDED),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", Severity.NODE_MUST_GO),
        ("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", Severity.RESTARTABLE),
        ("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", Severity.INFORMATIONAL),
        ("", Severity.INFORMATIONAL),
    ],
)
def test_the_recovery_action_decides_over_xid_154(text, severity):
    assert classify(154, text)[0] is severity


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000)", Severity.RESET_NEEDED),
        ("RLW_REMAP Nonfatal XC1 i0 Link 02 (0x00000004)", Severity.INFORMATIONAL),
        ("RLW_REMAP Non-fatal XC1 i0 Link 02", Severity.INFORMATIONAL),
        ("", Severity.INFORMATIONAL),
    ],
)
def test_newer_nvlink_errors_say_themselves_how_bad_they_are(text, severity):
    assert classify(149, text)[0] is severity


def test_an_action_of_the_catalog_has_one_class_unless_a_note_says_why():
    classes: dict[str, set[Severity]] = {}
    for xid in XIDS.values():
        assert xid.sentence and xid.name
        if not xid.note:
            classes.setdefault(xid.action, set()).add(xid.severity)
    assert all(len(found) == 1 for found in classes.values()), classes
    assert "" not in classes, "a code without an action in the catalog needs a note"


def test_the_document_has_the_table():
    """docs/hosts.md lists every code with its class and the catalog's action."""
    rows = re.findall(r"^\| ([\d, ]+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|", DOCS.read_text(), flags=re.MULTILINE)
    listed = {
        int(code): (action.strip(" `"), severity.strip())
        for codes, _, action, severity in rows
        for code in codes.split(",")
    }
    assert listed == {xid.code: (xid.action, xid.severity.value) for xid in XIDS.values()}


def test_severities_are_ordered():
    order = list(Severity)
    assert all(is_worse(order[i], order[j]) == (i > j) for i in range(5) for j in range(5))
    assert recovery(99) == (Severity.INFORMATIONAL, "action 99")
    assert set(RECOVERY_ACTIONS) == set(range(8))


# --- lines of the kernel log ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind", "severity", "device", "pid"),
    [
        (
            "NVRM: Xid (PCI:0000:38:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            FindingKind.XID,
            Severity.NODE_MUST_GO,
            "PCI:0000:38:00",
            0,
        ),
        (
            "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset GPU.",
            FindingKind.XID,
            Severity.INFORMATIONAL,
            "PCI:0000:10:1c",
            1896,
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", FindingKind.XID, Severity.INFORMATIONAL, "PCI:0000:03:00", 0),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 28006, Non-fatal, Link 29 MC TS crumbstore MCTO",
            FindingKind.NVSWITCH,
            Severity.INFORMATIONAL,
            "PCI:0000:c3:00",
            0,
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:0b:00.0): 11001, Fatal, ingress invalid command",
            FindingKind.NVSWITCH,
            Severity.NODE_MUST_GO,
            "PCI:0000:0b:00",
            0,
        ),
        (
            "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB",
            FindingKind.OUT_OF_MEMORY,
            Severity.USER_ERROR,
            "",
            4242,
        ),
        (
            "Out of memory: Killed process 7 (ray::RayWorker) total-vm:1kB",
            FindingKind.OUT_OF_MEMORY,
            Severity.USER_ERROR,
            "",
            7,
        ),
    ],
)  # fmt: skip
def test_a_line_is_read(line, kind, severity, device, pid):
    found = read_line(line)
    assert (found.kind, found.severity, found.device, found.pid) == (kind, severity, device, pid)


@pytest.mark.parametrize(
    ("line", "kind", "device"),
    [
        ("blk_update_request: I/O error, dev sda, sector 8 op 0x0", FindingKind.DISK, "sda"),
        ("critical medium error, dev sdb, sector 9", None, ""),
        ("Buffer I/O error on dev dm-0, logical block 1, async page read", FindingKind.DISK, "dm-0"),
        ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: reading", FindingKind.DISK, "sda1"),
        ("EXT4-fs (sda1): error count since last fsck: 3", FindingKind.DISK, "sda1"),
        ("EXT4-fs (sda1): mounted filesystem with ordered data mode", None, ""),
        (
            "XFS (nvme0n1): Corruption of in-memory data detected.  Shutting down filesystem",
            FindingKind.DISK,
            "nvme0n1",
        ),
        ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff", FindingKind.DISK, "nvme0"),
        ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out", FindingKind.NETWORK, "eth0"),
        ("igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down", FindingKind.NETWORK, "eno1"),
        ("mlx5_core 0000:17:00.0: mlx5_health: device's health compromised", FindingKind.NETWORK, "0000:17:00.0"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", FindingKind.BUS, "MC0"),
        ("mce: [Hardware Error]: Machine check events logged", FindingKind.BUS, "mce"),
        ("usb 1-1: new high-speed USB device number 2", None, ""),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", None, ""),
        ("NVRM: Xid (nonsense): 79, x", None, ""),
        ("", None, ""),
    ],
)
def test_other_hardware_is_told_and_noise_is_not(line, kind, device):
    found = read_line(line)
    assert (found.kind if found else None, found.device if found else "") == (kind, device)
    assert found is None or found.severity is Severity.INFORMATIONAL


@given(st.text(max_size=60))
def test_any_line_can_be_read(text):
    for line in (
        text,
        f"NVRM: Xid (PCI:0000:38:00): 79, {text}",
        f"NVRM: Xid (PCI:{text}): 13, x",
        f"SXid (PCI:{text}",
    ):
        read_line(line)


@pytest.mark.parametrize("text", ["00000000:17:00.0", "0000:17:00", "17:00.0", "0000:17:00.0", ":17:00"])
def test_addresses_of_one_device_are_one(text):
    assert pci_address(text) == "PCI:0000:17:00"


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_counters_of_the_first_look_are_no_news():
    assert compare_gpu(None, gpu(counters={"uncorrected ECC errors": 7}, links_up=frozenset({1})), HEALTH) == []


def test_states_of_the_first_look_are_news():
    bad = gpu(recovery_action=2, remap_failed=True, temperature_c=90, hot_at_c=88, throttled=frozenset({"power brake"}))
    kinds = [finding.kind for finding in compare_gpu(None, bad, HEALTH)]
    expected = {FindingKind.RECOVERY_ACTION, FindingKind.ROW_REMAP, FindingKind.TEMPERATURE, FindingKind.THROTTLE}
    assert set(kinds) == expected and len(kinds) == 4
    assert compare_gpu(bad, bad, HEALTH) == []


def test_a_counter_that_was_reset_is_no_news():
    before, now = gpu(counters={"corrected ECC errors": 9}), gpu(counters={"corrected ECC errors": 1})
    assert compare_gpu(before, now, HEALTH) == []


@pytest.mark.parametrize(
    ("name", "severity"),
    [
        ("uncorrected ECC errors", Severity.RESTARTABLE),
        ("uncorrected ECC errors since ever", Severity.INFORMATIONAL),
        ("corrected ECC errors", Severity.INFORMATIONAL),
        ("NVLink replays", Severity.INFORMATIONAL),
        ("remapped rows after uncorrected errors", Severity.INFORMATIONAL),
    ],
)
def test_only_data_that_was_lost_costs_a_worker(name, severity):
    (found,) = compare_gpu(gpu(counters={name: 1}), gpu(counters={name: 2}), HEALTH)
    assert found.severity is severity


def test_a_look_without_links_knows_them_still():
    first = gpu(links_up=frozenset({0, 1}), counters={"NVLink replays": 3}, pids=(7,))
    second = carried(first, gpu(counters={"corrected ECC errors": 0}))
    assert second.links_up == frozenset({0, 1}) and second.pids == (7,)
    assert dict(second.counters) == {"NVLink replays": 3, "corrected ECC errors": 0}
    third = carried(second, gpu(links_up=frozenset({0}), counters={"NVLink replays": 3}))
    assert [finding.detail for finding in compare_gpu(second, third, HEALTH)] == [
        "GPU 3 (PCI:0000:17:00) has lost NVLink 1"
    ]


def test_a_look_that_is_not_told_what_the_driver_asks_for_knows_it_still():
    first = gpu(links_up=frozenset({0}), counters={"NVLink replays": 3}, recovery_action=2)
    assert carried(None, first) is first
    second = carried(first, gpu(links_up=frozenset({0}), counters={}, recovery_action=None))
    assert second.recovery_action == 2 and compare_gpu(first, second, HEALTH) == []
    third = carried(second, gpu(links_up=frozenset({0}), counters={"NVLink replays": 4}, recovery_action=0))
    assert [finding.detail for finding in compare_gpu(second, third, HEALTH)] == [
        "GPU 3 (PCI:0000:17:00) asks for: None",
        "GPU 3 (PCI:0000:17:00) counts 1 more NVLink replays: 4",
    ]


def test_a_lost_gpu_says_nothing_else():
    lost = gpu(lost="GPU is lost", recovery_action=None)
    (found,) = compare_gpu(gpu(links_up=frozenset({1}), recovery_action=1), lost, HEALTH)
    assert (found.kind, found.severity) == (FindingKind.GPU_LOST, Severity.NODE_MUST_GO)
    assert compare_gpu(lost, lost, HEALTH) == []
    (back,) = compare_gpu(lost, gpu(), HEALTH)
    assert (back.kind, back.severity) == (FindingKind.GPU_LOST, Severity.INFORMATIONAL)


@pytest.mark.parametrize(
    ("visible", "is_seen"),
    [("3", True), ("0, 3", True), ("13", False), ("GPU-1", True), ("GPU-12", False), ("GPU-", True), ("", False)],
)
def test_who_was_given_a_gpu(visible, is_seen):
    assert sees(visible, 3, "GPU-1abc" if visible == "GPU-1" else "GPU-1") is is_seen


# --- the host ---------------------------------------------------------------------------------------------------------


def test_too_little_room_is_told_when_it_becomes_too_little():
    fine, short = (
        HostReading(memory_free=0.5, space_free={"/d": 0.5}),
        HostReading(memory_free=0.01, space_free={"/d": 0.001}),
    )
    found = compare_host(fine, short, HEALTH)
    assert [(one.kind, one.device) for one in found] == [(FindingKind.MEMORY, ""), (FindingKind.SPACE, "/d")]
    assert "1.0% of memory is free, less than Health.memory_free=0.03" in found[0].detail
    assert compare_host(short, short, HEALTH) == [] and compare_host(short, fine, HEALTH) == []
    assert len(compare_host(None, short, HEALTH)) == 2
    assert set(short_of(short, HEALTH)) == {"memory", "/d"} and short_of(fine, HEALTH) == {}


def test_links_that_go_down_or_count_errors_are_told():
    up, down = Link(is_up=True), Link(is_up=False, downs=1)
    said = [
        one.detail for one in compare_host(HostReading(links={"ib0": up}), HostReading(links={"ib0": down}), HEALTH)
    ]
    assert said == ["ib0 is down"]
    said = [
        one.detail for one in compare_host(HostReading(links={"ib0": down}), HostReading(links={"ib0": up}), HEALTH)
    ]
    assert said == ["ib0 is up again"]
    flapped = HostReading(links={"ib0": Link(is_up=True, downs=2, errors=5)})
    said = [one.detail for one in compare_host(HostReading(links={"ib0": up}), flapped, HEALTH)]
    assert said == ["ib0 went down (2 times so far)", "ib0 counts 5 more errors: 5"]
    assert compare_host(None, HostReading(links={"ib0": down}), HEALTH) == []


def test_a_clock_that_is_off_is_told_once():
    off, fine = HostReading(clock_offset_s=-0.4), HostReading(clock_offset_s=0.0)
    (found,) = compare_host(fine, off, HEALTH)
    assert "off by -0.400 s, more than Health.clock_offset_s=0.1" in found.detail
    assert compare_host(off, off, HEALTH) == [] and compare_host(None, HostReading(), HEALTH) == []


# --- the cooldown -----------------------------------------------------------------------------------------------------


def xid(code: int = 31, device: str = "GPU-1", severity: Severity = Severity.USER_ERROR) -> Finding:
    return Finding(device=device, kind=FindingKind.XID, severity=severity, detail=f"XID {code}", code=code)


def test_each_gpu_and_code_has_a_cooldown_of_its_own():
    cooldown = Cooldown(60.0)
    assert cooldown.is_news(xid(), ("w0",), 0.0)
    assert not cooldown.is_news(xid(), ("w0",), 1.0)
    assert cooldown.is_news(xid(device="GPU-2"), ("w1",), 1.0)
    assert cooldown.is_news(xid(code=13), ("w0",), 1.0)


def test_what_is_worse_and_who_is_new_does_not_wait():
    cooldown = Cooldown(60.0)
    assert cooldown.is_news(xid(), ("w0",), 0.0)
    assert cooldown.is_news(xid(severity=Severity.RESET_NEEDED), ("w0",), 1.0)
    assert not cooldown.is_news(xid(), ("w0",), 2.0)
    assert cooldown.is_news(xid(), ("w5",), 3.0), "a new worker on the same GPU"
    assert not cooldown.is_news(xid(), (), 4.0)
    ((again, _),) = cooldown.overdue(100.0)
    assert "the same 2 times" in again.detail, "what was held back before is not forgotten"


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from([13, 31]), st.sampled_from(["a", "b"])), max_size=60))
def test_nothing_is_dropped(steps):
    """Whatever comes when: each finding was told at once, or is counted in a summary."""
    cooldown, now_s, told, came = Cooldown(20.0), 0.0, 0, 0
    for after_s, code, device in [*steps, (100.0, 99, "end"), (100.0, 99, "end")]:
        now_s += after_s
        for finding, _ in cooldown.overdue(now_s):
            told += int(re.search(r"the same (\d+) times", finding.detail)[1])
            assert finding.severity is Severity.INFORMATIONAL
        came += 1
        told += cooldown.is_news(xid(code, device), (), now_s)
    for finding, _ in cooldown.overdue(now_s + 100.0):
        told += int(re.search(r"the same (\d+) times", finding.detail)[1])
    assert told == came


def test_windows_that_are_over_take_no_room():
    cooldown = Cooldown(1.0)
    for code in range(100):
        cooldown.is_news(xid(code), (), 0.0)
    assert list(cooldown.overdue(2.0)) == [] and cooldown._windows == {}


@pytest.mark.parametrize(
    ("before", "now", "severity", "detail"),
    [
        ({}, {"needs_reset": True}, Severity.RESET_NEEDED, "needs a reset, says its driver"),
        ({}, {"remap_pending": True}, Severity.INFORMATIONAL, "remaps a row of its memory at the next reset"),
        (
            {"links_up": frozenset({1})},
            {"links_up": frozenset({1, 2})},
            Severity.INFORMATIONAL,
            "has NVLink 2 back",
        ),
    ],
)
def test_a_state_is_told_when_it_begins_and_not_again(before, now, severity, detail):
    (found,) = compare_gpu(gpu(**before), gpu(**now), HEALTH)
    assert found.severity is severity and detail in found.detail
    assert compare_gpu(gpu(**now), gpu(**now), HEALTH) == []
