"""What a checkpoint costs, by the way it is kept: this library's, and others', in turns on one machine.

    python -m benchmarks.checkpoint_systems --out FILE        # --systems elastic,dcp-async, --bytes, --repeats

Each way has a state in a process of its own, with one thread of torch, and, where it is a peer's, in the environment
that `make bench-env` has made for it. They take turns: within a repetition every way once, in another order each time,
the first repetition left out. A way that is not there, or that fails, has a row with the reason, and no figures.

    stall_s     the training thread waits: where the checkpoint begins, and before the state may change, a step between
    process_s   from the beginning until it survives the process
    node_s      until it survives the node
    durable_s   from the beginning until files on the disk are synced
    restore_s   until the state is back

Then each way, in a new process, is asked for some while its storage is away (where the folder was lies a file):

    outage_s    from the beginning until it survives the process; `lost`: what the training function was told instead

A turn with the storage there comes first, as a warm-up.

At last checkpoints of this library and of torch's formats are damaged, `--trials` of each, and loaded.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.checkpoints.serving import AWAY
from benchmarks.provenance import provenance
from benchmarks.recovery import clean_up_when_told_to_end
from benchmarks.remains import swept
from benchmarks.tables import KEPT

ROOT = Path(__file__).resolve().parent.parent
START_S, TURN_S, END_S = 240.0, 240.0, 60.0
LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to keep a checkpoint.

    Attributes:
        module: serves it. title: for tables.
        environment: folder below `.bench/` with the interpreter; empty: this one's.
    """

    module: str
    title: str
    environment: str = ""

    @property
    def python(self) -> Path:
        """The interpreter that its process runs with."""
        return ROOT / ".bench" / self.environment / "bin" / "python" if self.environment else Path(sys.executable)

    def why_not(self) -> str:
        """Why it cannot be measured here; empty if it can."""
        if self.python.exists():
            return ""
        return f"{self.python.relative_to(ROOT)} is missing (make bench-env)"


def _way(module: str, title: str, environment: str = "") -> Way:
    return Way(module=f"benchmarks.checkpoints.{module}", title=title, environment=environment)


WAYS = {
    "elastic": _way("elastic_slots", "elastic: slots in shared memory"),
    "elastic-peer": _way("elastic_peer", "elastic: slots, and another node"),
    "dcp-sync": _way("torch_files", "torch DCP `save`"),
    "dcp-async": _way("torch_files", "torch DCP `async_save`, one stager"),
    "dcp-async-default": _way("torch_files", "torch DCP `async_save`, as it comes"),
    "torch-save": _way("torch_files", "`torch.save`"),
    "ray-train": _way("ray_report", "Ray Train `report`"),
    "ray-train-async": _way("ray_report", "Ray Train `report`, ASYNC"),
    "torchft-http": _way("torchft_transport", "torchft, HTTP to a joiner", "torchft"),
    "torchft-pg": _way("torchft_transport", "torchft, process group to a joiner", "torchft"),
    "nvrx-local": _way("nvrx_local", "NVRx local checkpoint", "nvrx"),
}


class AbsentError(Exception):
    """A way cannot be measured here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured. `step_memcpys`: length of the step between, in copies of the state."""

    nbytes: int = 256 << 20
    repeats: int = 10
    outages: int = 3
    step_memcpys: float = 10.0


class Child:
    """A process that serves one module's ways.

    Args:
        folders: of its own, in the ramdisk and on the disk.
    """

    def __init__(self, way: Way, settings: Settings, ramdisk: Path, disk: Path) -> None:
        self._log, self.has_ended = disk / "log.txt", False
        with socket.create_server(("127.0.0.1", 0)) as server:
            place = f"127.0.0.1:{server.getsockname()[1]}"
            command = [str(way.python), "-m", way.module, "--address", place, "--nbytes", str(settings.nbytes)]
            command += ["--step-memcpys", str(settings.step_memcpys), "--ramdisk", str(ramdisk), "--disk", str(disk)]
            environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_TRAIN_V2_ENABLED": "1"}
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            self._connection = self._accepted(server)
        self._connection.settimeout(TURN_S)
        self._file = self._connection.makefile("rw")
        line = self._file.readline()
        if not line:
            self.__exit__()
            raise AbsentError(f"its process ended: {self._last_word()}")
        self.versions: dict[str, str] = json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """It ends when nobody asks any more."""
        self._file.close()
        self._connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)

    def turn(self, name: str) -> dict[str, Any]:
        """One repetition's figures, or the reason why there are none."""
        try:
            print(name, file=self._file, flush=True)
            line = self._file.readline()
        except OSError as error:
            return {"note": f"no answer within {TURN_S:g} s ({error})"}
        self.has_ended = not line
        return json.loads(line) if line else {"note": f"its process ended: {self._last_word()}"}

    def _accepted(self, server: socket.socket) -> socket.socket:
        server.settimeout(LOOK_S)
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            try:
                return server.accept()[0]
            except TimeoutError:
                if self._process.poll() is not None:
                    raise AbsentError(f"its process ended: {self._last_word()}") from None
        self._process.kill()
        self._process.wait(END_S)
        raise AbsentError(f"its process was not ready within {START_S:g} s: {self._last_word()}")

    def _last_word(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"


def order(systems: Sequence[str], number: int) -> list[str]:
    """Who has which turn in a repetition."""
    first = number % len(systems)
    return [*systems[first:], *systems[:first]]


def measure(
    settings: Settings, systems: Sequence[str], ramdisk: Path, disk: Path | None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows: one for each repetition of each way, and one with its reason for a way that is not there; and versions."""
    rows, versions = list[dict[str, Any]](), dict[str, str]()
    children: dict[str, Child] = {}
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        for name in systems:
            module = WAYS[name].module
            if module in children or module in absent:
                continue
            try:
                children[module] = stack.enter_context(_child(WAYS[name], settings, ramdisk, disk))
                versions |= children[module].versions
            except AbsentError as error:
                absent[module] = str(error)
        rows += [_row(name, 0, {"note": absent[WAYS[name].module]}) for name in systems if WAYS[name].module in absent]
        print(*map(told, rows), sep="\n", flush=True)
        here = [name for name in systems if WAYS[name].module in children]
        for number in range(1 + settings.repeats if here else 0):
            for name in order(here, number):
                row = _row(name, number, children[WAYS[name].module].turn(name))
                print(told(row), flush=True)
                rows += [row] if number else []
    return rows, versions


def outages(settings: Settings, systems: Sequence[str], ramdisk: Path, disk: Path | None) -> list[dict[str, Any]]:
    """Rows of what each way keeps while its storage is away; of one that is not there, none.

    Whoever has lost one is not asked again: its process may be past help.
    """
    rows = list[dict[str, Any]]()
    for name in systems if settings.outages else ():
        try:
            with _child(WAYS[name], settings, ramdisk, disk) as child:
                for row in _outages(name, child, settings.outages):
                    print(told(row), flush=True)
                    rows.append(row)
        except AbsentError:
            continue  # its other rows say so
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            rows.append(_row(name, 0, {"note": f"{type(error).__name__}: {error}"}))
    return rows


def _outages(name: str, child: Child, count: int) -> Iterator[dict[str, Any]]:
    if note := child.turn(name).get("note"):
        yield _row(name, 0, {"note": note})
        return
    for number in range(1, 1 + count):
        figures = child.turn(f"{name} {AWAY}")
        row = _row(name, number, {"lost": figures["note"]} if child.has_ended else figures)
        yield row
        if row["note"] or row["lost"]:
            return


@contextmanager
def _child(way: Way, settings: Settings, ramdisk: Path, disk: Path | None) -> Iterator[Child]:
    if reason := way.why_not():
        raise AbsentError(reason)
    with _folder(ramdisk) as fast, _folder(disk) as slow, Child(way, settings, Path(fast), Path(slow)) as child:
        yield child


def _folder(place: Path | None) -> tempfile.TemporaryDirectory[str]:
    prefix = swept(place or Path(tempfile.gettempdir()), "bench-checkpoint")
    return tempfile.TemporaryDirectory(dir=place, prefix=prefix, ignore_cleanup_errors=True)


def _row(name: str, number: int, figures: dict[str, Any]) -> dict[str, Any]:
    return {"system": name, "repetition": number} | dict.fromkeys(KEPT) | {"note": "", "lost": ""} | figures


def left_out(systems: Sequence[str]) -> list[dict[str, Any]]:
    """Rows without figures of the ways that nobody asked for."""
    return [_row(name, 0, {"note": "left out of this run"}) for name in WAYS if name not in systems]


def told(row: dict[str, Any]) -> str:
    """A row as a line."""
    figures = [f"{name} {row[name]:.4f}" for name in KEPT if row[name] is not None]
    return f"{row['system']} {row['repetition']}: {'  '.join(figures)}  {row['note'] or row['lost']}"


def corruption(trials: int, seed: int = 0) -> dict[str, dict[str, int]]:
    """Damaged checkpoints of this library and of torch's formats."""
    from benchmarks import corruption, corruption_torch

    found = {"elastic": corruption.counts(trials, seed)}
    return found | {name: corruption_torch.counts(one, trials, seed) for name, one in corruption_torch.FORMATS.items()}


def main() -> None:
    """Measure, write the result, print a line for each row."""
    from benchmarks.checkpoints.bench import size

    usual = Settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--systems", default=",".join(WAYS), help="some of them, with commas between")
    parser.add_argument("--bytes", type=size, default=usual.nbytes, help="of the state, e.g. 64MiB; each way holds one")
    parser.add_argument("--repeats", type=int, default=usual.repeats, help="the first one not counted")
    parser.add_argument("--outages", type=int, default=usual.outages, help="of each way's storage; 0: none")
    parser.add_argument("--step", type=float, default=usual.step_memcpys, help="length of a step, in memcpys")
    parser.add_argument("--trials", type=int, default=1000, help="damaged checkpoints of each format; 0: none")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"), help="a ramdisk")
    parser.add_argument("--disk", type=Path, help="where durable files go; default: where temporary files do")
    args = parser.parse_args()
    systems = args.systems.split(",")
    if unknown := {*systems} - {*WAYS}:
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(WAYS)}")
    settings = Settings(nbytes=args.bytes, repeats=args.repeats, outages=args.outages, step_memcpys=args.step)
    clean_up_when_told_to_end()
    origin = provenance()
    rows, versions = measure(settings, systems, args.directory, args.disk)
    rows += outages(settings, systems, args.directory, args.disk)
    origin["peers"] = {name: version for name, version in versions.items() if name not in origin["versions"]}
    result = {
        "benchmark": "checkpoint_systems",
        "rows": rows + left_out(systems),
        "corruption": corruption(args.trials) if args.trials else {},
        "titles": {name: way.title for name, way in WAYS.items()},
        "settings": {name: getattr(settings, name) for name in settings.__slots__},
        "provenance": origin,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    for name, counts in result["corruption"].items():
        print(f"{name}: {counts}")


if __name__ == "__main__":
    main()
