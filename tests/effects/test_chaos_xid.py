"""Effect. XIDs that nobody has: in the kernel log, and in the state of a stand-in for NVML."""

import os
import re
import time
import uuid
from pathlib import Path

import pytest

from elastic.chaos.aftermath import Aftermath, CannotStrikeError
from elastic.chaos.striking import Scene, strike
from elastic.chaos.xid import write_line
from elastic.control.faults import Fault, FaultKind
from tests.effects.helpers import LONG_S

pytestmark = pytest.mark.host

KMSG = Path("/dev/kmsg")
# The driver's form, as readers of the kernel log look for it.
LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:.]+)\): (\d+), pid=('?<?\w+>?'?), name=(\S+), (.+)")


def why_not() -> str:
    try:
        os.close(os.open(KMSG, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        return f"{KMSG}: {error.strerror}"
    return ""


def raise_xid(argument: str) -> str:
    return strike(Fault(kind=FaultKind.XID, argument=argument), Scene(run="xid"), None, Aftermath())


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_whoever_reads_the_kernel_log_finds_the_drivers_line():
    bus = f"{uuid.uuid4().hex[:4]}:17:00"
    reader = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.lseek(reader, 0, os.SEEK_END)
        proof = raise_xid(f"79,bus={bus}")
        found, deadline_s = None, time.monotonic() + LONG_S
        while found is None:
            assert time.monotonic() < deadline_s, "the line is not there"
            try:
                record = os.read(reader, 8192).decode()
            except BlockingIOError:
                time.sleep(0.01)
                continue
            found = LINE.search(record) if bus in record else None
    finally:
        os.close(reader)
    assert found.groups()[:2] == (bus, "79") and found[5] == "GPU has fallen off the bus."
    assert found[0] in proof


def test_the_line_names_the_process_that_it_is_about(tmp_path):
    log = tmp_path / "kmsg"
    log.write_text("earlier\n")
    write_line(48, log, "0000:3b:00", pid=1234)
    match = LINE.search(log.read_text())
    assert match is not None and match.groups()[:4] == ("0000:3b:00", "48", "1234", "python")


@pytest.mark.skipif(os.geteuid() != 0, reason="the sentence is the same for whoever may not open it")
def test_a_kernel_log_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(CannotStrikeError, match="takes root, and a machine whose kernel log is not kept from it"):
        raise_xid(f"79,kmsg={tmp_path / 'none' / 'kmsg'}")


def test_a_stand_in_for_nvml_is_told_of_one_event_more(tmp_path):
    state = tmp_path / "state"
    state.write_text("count 8\nxid.seq 4\ngpu3.temp 90\n")
    proof = raise_xid(f"94,nvml={state},gpu=3")
    lines = dict(line.split() for line in state.read_text().splitlines())
    assert lines == {"count": "8", "gpu3.temp": "90", "xid.gpu": "3", "xid.code": "94", "xid.seq": "5"}
    assert proof == f"{state}: xid.gpu 3, xid.code 94, xid.seq 5"
    raise_xid(f"79,nvml={state}")
    assert state.read_text().endswith("xid.gpu 0\nxid.code 79\nxid.seq 6\n")


def test_without_a_stand_in_there_is_nobody_to_tell(tmp_path):
    with pytest.raises(CannotStrikeError, match="there is no stand-in for NVML"):
        raise_xid(f"79,nvml={tmp_path / 'state'}")
