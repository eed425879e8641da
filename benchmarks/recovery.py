"""What faults cost, here and elsewhere: how long until survivors go on, what is lost, what is repeated.

    sudo python -m benchmarks.recovery --systems elastic,torchft --scenario kill,stop --out recovery.json

Each repetition is a run of its own on hosts of this machine (`benchmarks.hosts`): four workers, steps of 50 ms, by
sleeping. An observer outside of the system breaks something and reads the step log that each training function writes;
nothing is taken from a system's own word. Systems take turns. `docs/benchmarks.md` says what the figures mean.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.bench import STORM, Bench, Settings, blank
from benchmarks.hosts import why_not
from benchmarks.provenance import provenance
from benchmarks.remains import swept
from benchmarks.rows import FIGURES, medians
from benchmarks.scenarios import GROUNDS, STRIKES, Ground
from benchmarks.systems import DEFAULT, SETTINGS, SYSTEMS, versions
from benchmarks.training import MODEL
from benchmarks.turns import Turn, played, turns

NO_TIME = "the time that was set for all of them was over"
_MEMORY = Path("/dev/shm")  # where a line of a step log is written, no disk that others keep busy is measured
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main() -> None:
    """Measure, print a line for each repetition, write the result; until all are there, its file ends in `.partial`.

    The exit code is 1 if something went wrong with the bench itself, or a run of ours has broken a promise.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    known = [*STRIKES, STORM]
    parser.add_argument(
        "--scenario", required=True, help=f"some of {','.join(known)}, with commas between; or all short ones"
    )
    parser.add_argument("--systems", default="elastic", help=f"some of {','.join(SYSTEMS)}, with commas between")
    parser.add_argument("--settings", default=DEFAULT, help=f"some of {','.join(SETTINGS)}, with commas between")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--step-s", type=float, default=0.05, help="length of a step with all workers")
    parser.add_argument("--state-mb", type=int, help="state beside the model (default: 400 for join and donor, else 0)")
    parser.add_argument("--calm-s", type=float, help="at most, before a run is broken; default: as the scenario says")
    parser.add_argument("--deadline-s", type=float, default=240.0, help="for the run to be whole again")
    parser.add_argument("--patience-s", type=float, help="to be whole again once it goes on (default: the deadline)")
    parser.add_argument("--storm-s", type=float, default=600.0, help="length of a storm, or of busy")
    parser.add_argument(
        "--every-s", type=float, nargs=2, default=(15.0, 30.0), help="least, most between two faults of a storm"
    )
    parser.add_argument("--seed", type=int, default=0, help="of data, and of whom the faults hit")
    parser.add_argument("--keep", type=Path, help="folder in which step logs and journals stay")
    args = parser.parse_args()
    short = [name for name in known if name not in (STORM, "busy")]
    scenarios = short if args.scenario == "all" else args.scenario.split(",")
    systems, chosen = args.systems.split(","), args.settings.split(",")
    if unknown := {*scenarios, *systems, *chosen} - {*known, *SYSTEMS, *SETTINGS}:
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join([*known, *SYSTEMS, *SETTINGS])}")
    needs = {command for name in scenarios for command in GROUNDS.get(name, Ground()).needs}
    if reason := why_not(*needs):
        parser.exit(1, f"error: {reason}\n")
    names = [field.name for field in dataclasses.fields(Settings) if field.name != "every_s"]
    settings = Settings(**{name: getattr(args, name) for name in names}, every_s=tuple(args.every_s))
    clean_up_when_told_to_end()
    with opened(settings, args.keep) as bench:
        measure(bench, list(turns(scenarios, chosen, systems, settings.repeats)), args.out)
    sys.exit(1 if bench.troubles else 0)


def clean_up_when_told_to_end() -> None:
    """A signal that asks for the end raises SystemExit; those that come while things are cleaned up change nothing."""

    def end(number: int, _frame: FrameType | None) -> None:
        for each in asked:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    asked = [each for each in _ENDS if signal.getsignal(each) != signal.SIG_IGN]  # nohup ignores one of them
    for each in asked:
        signal.signal(each, end)


@contextlib.contextmanager
def opened(settings: Settings, keep: Path | None) -> Iterator[Bench]:
    """A bench; its hosts and, unless they are to be kept, its files go with it.

    Args:
        keep: folder for them; None: one that is removed, as are those of benches that were killed.
    """
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    own = swept(place, "recovery")
    folder = keep.absolute() if keep is not None else Path(tempfile.mkdtemp(prefix=own, dir=place))
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(settings, folder)
    try:
        yield bench
    finally:
        bench.close()
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        for trouble in bench.troubles:
            print(f"trouble: {trouble}", file=sys.stderr, flush=True)


def measure(bench: Bench, order: list[Turn], out: Path, until_s: float = math.inf) -> None:
    """All repetitions, in this order; after each of them a file beside `out`, which takes its place in the end.

    Args:
        until_s: none begins after this moment of the monotonic clock; those have rows that say so,
            or why there would have been none at any time.
    """
    origin = provenance() | {"peers": versions()}
    rows: list[dict[str, Any]] = []
    discarded: list[dict[str, Any]] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".partial")
    for turn in order:
        counted, thrown_away = played(turn, bench.repetition, has_time=lambda: time.monotonic() < until_s)
        if not counted:
            tried = f"in none of {len(thrown_away)} tries did its fault fire"
            # Who has a reason would not have had a run with more time either.
            never = SYSTEMS[turn.system].why_not(turn.scenario, turn.settings)
            counted = [_without(turn, tried if thrown_away else never or NO_TIME)]
        rows += counted
        discarded += thrown_away
        for row in thrown_away + counted:
            _tell(row)
        result = {"benchmark": "recovery", "rows": rows, "discarded": discarded}
        result |= {"medians": medians(rows, discarded)}
        details = {"model": MODEL, "settings": dataclasses.asdict(bench.settings), "provenance": origin}
        new = partial.with_suffix(".new")
        new.write_text(json.dumps(result | details, indent=2) + "\n")
        new.rename(partial)
    partial.rename(out)


def _without(turn: Turn, reason: str) -> dict[str, Any]:
    """The row of a repetition that was not measured."""
    return blank(turn) | {"unavailable": reason, "note": reason}


def _tell(row: dict[str, Any]) -> None:
    figures = [f"{name} {_short(row[name])}" for name in (*FIGURES, "digests_equal")]
    what = " ".join(str(row[name]) for name in ("scenario", "system", "settings", "repetition"))
    notes = [row["note"], f"does not count: {row['discarded']}" if row["discarded"] else ""]
    print(f"{what}: {'  '.join(figures)}  {'  '.join(filter(None, notes))}", flush=True)


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
