"""Effect. Faults of a GPU that is in order: an XID in the kernel log, or in the state of a stand-in for NVML.

The line is the driver's: "NVRM: Xid (PCI:0000:17:00): 79, pid=1234, name=python, GPU has fallen off the bus." (NVIDIA,
"Xid errors"). The stand-in is a library with NVML's names that reads "key value" lines from a file on each call: an
event is there once `xid.seq` has gone up, and is `xid.code` on GPU `xid.gpu`.
"""

import os
import time
from pathlib import Path

from elastic.chaos.aftermath import CannotStrikeError
from elastic.control.faults import options

_KMSG = "/dev/kmsg"
_BUS = "0000:17:00"
_SEEN_S = 2.0
_POLL_S = 0.01
_RECORD_BYTES = 8192
# The sentences of the driver for those that are injected most often (NVIDIA, "Xid errors").
_TEXTS = {
    13: "Graphics Exception",
    31: "MMU Fault",
    43: "Reset Channel Verif Error",
    48: "An uncorrectable double bit error (DBE) has been detected on GPU",
    63: "Row Remapper: New row marked for remapping",
    64: "Row Remapper: Error: Row remapping failed",
    74: "NVLink: fatal error detected on link",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM. RST: No, D-RST: No",
    95: "Uncontained: SM. RST: Yes, D-RST: No",
}


def raise_xid(argument: str, pid: int) -> str:
    """Have an XID appear where `argument` says; returns what is there to be read now."""
    code, named = options(argument)
    if "nvml" in named:
        return write_stand_in(Path(named["nvml"]), int(code), int(named.get("gpu", "0")))
    return write_line(int(code), Path(named.get("kmsg", _KMSG)), named.get("bus", _BUS), pid)


def write_line(code: int, kmsg: Path = Path(_KMSG), bus: str = _BUS, pid: int = 0) -> str:
    """Write the driver's line to the kernel log, and read it back."""
    who = f"pid={pid}, name=python" if pid else "pid='<unknown>', name=<unknown>"
    line = f"NVRM: Xid (PCI:{bus}): {code}, {who}, {_TEXTS.get(code, 'Unknown Error')}"
    needs = f"{kmsg} takes root, and a machine whose kernel log is not kept from it (a container has none)"
    try:
        reader = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.lseek(reader, 0, os.SEEK_END)
            writer = os.open(kmsg, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(writer, f"<3>{line}\n".encode())
            finally:
                os.close(writer)
            return _found(reader, line, kmsg)
        finally:
            os.close(reader)
    except OSError as error:
        raise CannotStrikeError(f"{needs}: {error.strerror}") from error


def _found(log: int, line: str, kmsg: Path) -> str:
    deadline_s = time.monotonic() + _SEEN_S
    while time.monotonic() < deadline_s:
        try:
            record = os.read(log, _RECORD_BYTES).decode(errors="replace")
        except BlockingIOError:  # all there is was read
            record = ""
        except BrokenPipeError:  # records that were not read yet have been overwritten
            continue
        if line in record:
            return record.strip()
        if not record:
            time.sleep(_POLL_S)
    raise CannotStrikeError(f"a line was written to {kmsg}, and can not be read there")


def write_stand_in(state: Path, code: int, gpu: int) -> str:
    """Add an event to the state of a stand-in for NVML."""
    if not state.exists():
        raise CannotStrikeError(f"there is no stand-in for NVML whose state is {state}: start the run with one")
    text = state.read_text()
    numbers = [int(line.split()[1]) for line in text.splitlines() if line.startswith("xid.seq ")]
    number = (numbers[-1] if numbers else 0) + 1
    event = f"xid.gpu {gpu}\nxid.code {code}\nxid.seq {number}\n"
    beside = state.with_name(f"{state.name}.{os.getpid()}")
    beside.write_text(f"{text.rstrip()}\n{event}".lstrip())
    beside.replace(state)
    return f"{state}: {event.strip()}".replace("\n", ", ")
