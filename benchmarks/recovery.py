"""What faults cost, here and elsewhere: how long until survivors go on, what is lost, what is repeated.

    sudo python -m benchmarks.recovery --systems elastic,torchft --scenario kill,stop --out recovery.json

Each repetition is a run of its own on hosts of this machine (`benchmarks.hosts`): four workers, steps of 50 ms, by
sleeping. An observer outside of the system breaks something and reads the step log that each training function writes;
nothing is taken from a system's own word. Systems take turns. `docs/benchmarks.md` says what the figures mean.
"""

import argparse
import dataclasses
import json
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import link
from benchmarks.hosts import Hosts, why_not
from benchmarks.provenance import provenance
from benchmarks.remains import HostsError
from benchmarks.rows import FIGURES, Fault, medians, recovery, share_of_ideal, step_time_s, whole_run
from benchmarks.scenarios import GROUNDS, SPEED_S, STRIKES, Ground
from benchmarks.stage import LateError, RunEndedError, ScenarioError, Stage
from benchmarks.storm import report, strike_often
from benchmarks.systems import DEFAULT, RAY_TUNED, SETTINGS, SYSTEMS, TUNED, versions
from benchmarks.training import BATCH, Job
from benchmarks.turns import Turn, misfire, played, turns

STORM = "storm"
_FEWEST_WORKERS = 2
_START_S = 240.0  # of a run, cold, on a busy machine
_LOOK_S = 0.25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line says; `state_mb` None: what the scenario says; `patience_s` None: `deadline_s`."""

    repeats: int = 5
    step_s: float = 0.05
    state_mb: int | None = None
    deadline_s: float = 240.0
    patience_s: float | None = None
    storm_s: float = 600.0
    every_s: float = 15.0
    seed: int = 0


class Bench:
    """Runs repetitions one after the other; hosts that one leaves whole serve the next one too.

    Args:
        folder: for everything that the runs write.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings, self._folder = settings, folder
        self._hosts: Hosts | None = None
        self._ray: dict[str, str] = {}

    def close(self) -> None:
        if self._hosts is not None:
            self._hosts.close()
        self._hosts = None

    def repetition(self, turn: Turn) -> dict[str, Any]:
        """The row of one repetition; `discarded` says why it does not count."""
        system = SYSTEMS[turn.system]
        row: dict[str, Any] = {"scenario": turn.scenario, "system": turn.system, "settings": turn.settings}
        row |= {"repetition": turn.number, "knobs": system.knobs(turn.settings), "timed_out": False}
        row |= dict.fromkeys((*FIGURES, "digests_equal")) | {"note": "", "unavailable": "", "discarded": ""}
        if reason := system.why_not(turn.scenario):
            return row | {"unavailable": reason, "note": reason}
        stage = self._stage(GROUNDS.get(turn.scenario, Ground()), turn)
        try:
            with stage:
                stage.wait_until_calm()
                stage.allow_s(self._settings.deadline_s)
                row |= self._storm(stage) if turn.scenario == STORM else self._one_fault(stage, turn.scenario)
            if turn.scenario == STORM and not row["note"]:
                row |= self._compare_with_clean(stage, turn)
        except (LateError, RunEndedError, HostsError) as error:
            row |= {"timed_out": isinstance(error, LateError), "note": f"{error}; its driver: {stage.last_word}"}
        except ScenarioError as error:
            row |= {"discarded": str(error), "note": f"{error}; its driver: {stage.last_word}"}
        if row["note"] and system.on_ray:
            self.close()  # who knows what still runs there
        else:
            self._give_up(stage.spoiled)
        return row

    # --- the runs ---

    def _one_fault(self, stage: Stage, scenario: str) -> dict[str, Any]:
        speed = self._link(stage)
        fault = STRIKES[scenario](stage)
        late = ""
        try:
            self._wait_until_whole(stage, fault)
            stage.wait_s(1.0)
        except LateError as error:
            late = str(error)
        before = stage.watch.log(fault.at_s)
        figures = {"step_s": step_time_s(before), "seen": fault.note, "remark": stage.system.why_small(scenario)}
        try:
            code = stage.finish()
            late = late or (f"the run ended with code {code}" if code else "")
        except LateError as error:
            late = late or str(error)
        log = stage.watch.log()
        figures |= recovery(log, fault) | whole_run(log, BATCH) | speed | {"discarded": misfire(log, fault)}
        if scenario == "straggler":
            figures |= share_of_ideal(log, fault, SPEED_S)
        note = f"{late}; its driver: {stage.last_word}" if late else ""
        return figures | {"timed_out": late.startswith("not in time"), "note": note}

    def _wait_until_whole(self, stage: Stage, fault: Fault) -> None:
        """As the row will have it, looked at from time to time; or it has gone on for long enough without being so."""
        looked_s = 0.0
        patience_s = 1.0 if stage.system.why_small(fault.kind) else self._settings.patience_s or math.inf

        def is_whole() -> bool:
            nonlocal looked_s
            if time.monotonic() - looked_s < _LOOK_S:
                return False
            looked_s = time.monotonic()
            row = recovery(stage.watch.log(), fault)
            resumed_s = row["t_resume_s"]
            waits = resumed_s is None or time.time() - fault.at_s - resumed_s < patience_s
            return row["t_full_s"] is not None or not waits

        stage.wait_for(is_whole, "the run was whole again")

    def _storm(self, stage: Stage) -> dict[str, Any]:
        stage.allow_s(2 * self._settings.storm_s + self._settings.deadline_s)
        faults: list[Fault] = []
        try:
            strike_often(stage, self._settings.storm_s, self._settings.every_s, faults)
            code = stage.finish()
            note = f"the run ended with code {code}" if code else ""
        except (LateError, RunEndedError) as error:
            if not faults:
                raise
            note = str(error)
        told = f"{note}; its driver: {stage.last_word}" if note else ""
        return report(stage, faults) | {"timed_out": note.startswith("not in time"), "note": told}

    def _compare_with_clean(self, stormy: Stage, turn: Turn) -> dict[str, Any]:
        """Promise P2: the same steps without faults, and without sleeping."""
        from elastic.demo.report import relative_difference

        for host in stormy.spoiled & stormy.hosts.slots.keys():
            stormy.hosts.lose(host)
        clean = self._stage(GROUNDS[STORM], turn, step_s=0.0, spares=0)
        with clean:
            clean.job.stop_at(stormy.job.end_step or 0)
            if code := clean.wait_for_end(self._settings.storm_s + self._settings.deadline_s):
                raise RunEndedError(f"the run without faults ended with code {code}")
        ours, theirs = (stage.job.final_file for stage in (stormy, clean))
        return {"param_rel_diff_vs_clean": relative_difference(ours, theirs)}

    def _link(self, stage: Stage) -> dict[str, Any]:
        """What copying the state would take at best; measured before anything is broken."""
        size = stage.job.state_bytes
        if not size:
            return {}
        speed = link.bytes_per_s(stage.hosts, size)
        return {"state_bytes": size, "link_bytes_per_s": speed, "copy_s": size / speed}

    # --- the ground ---

    def _stage(self, ground: Ground, turn: Turn, **changes: Any) -> Stage:
        system, seed = SYSTEMS[turn.system], self._settings.seed + turn.number
        hosts = self._arrange(ground.slots, RAY_TUNED if turn.settings == TUNED else {})
        name = "-".join((turn.scenario, turn.system, turn.settings, str(turn.number)))
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))
        state_mb = ground.state_mb if self._settings.state_mb is None else self._settings.state_mb
        job = Job(
            name=f"{hosts.name}-{folder.name}",
            folder=str(folder),
            address=hosts.ray_address,
            workers=(_FEWEST_WORKERS, ground.workers + ground.wanted),
            spares=ground.spares if system.has_spares else 0,
            step_s=self._settings.step_s,
            state_bytes=state_mb << 20,
            micro_batch=ground.micro_batch,
            seed=seed,
            knobs=system.knobs(turn.settings),
        )
        job = dataclasses.replace(job, **changes)
        deadline_s = time.monotonic() + _START_S
        chance = random.Random(seed)
        return Stage(
            system=system,
            hosts=hosts,
            job=job,
            size=ground.workers,
            deadline_s=deadline_s,
            chance=chance,
            long_s=self._settings.storm_s,
        )

    def _arrange(self, slots: tuple[int, ...], ray: dict[str, str]) -> Hosts:
        """Hosts with these slots, and no others, in a cluster with these variables."""
        if self._ray != ray:
            self.close()
        if self._hosts is None:
            self._ray = ray
            self._hosts = Hosts(slots, environment=ray).__enter__()
            return self._hosts
        missing, surplus = list(slots), []
        for name, have in self._hosts.slots.items():
            if have in missing:
                missing.remove(have)
            else:
                surplus.append(name)
        self._give_up(set(surplus))
        for wanted in missing:
            self._hosts.add(wanted)
        return self._hosts

    def _give_up(self, names: set[str]) -> None:
        for name in names:
            if self._hosts is not None and name in self._hosts.slots:
                self._hosts.lose(name)


def main() -> None:
    """Measure, write the result after each repetition, print a line for each."""
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
    parser.add_argument("--deadline-s", type=float, default=240.0, help="for the run to be whole again")
    parser.add_argument("--patience-s", type=float, help="to be whole again once it goes on (default: the deadline)")
    parser.add_argument("--storm-s", type=float, default=600.0, help="length of a storm, or of busy")
    parser.add_argument("--every-s", type=float, default=15.0, help="between two faults of a storm")
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
    names = [field.name for field in dataclasses.fields(Settings)]
    settings = Settings(**{name: getattr(args, name) for name in names})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is cleaned up
    measure(settings, list(turns(scenarios, chosen, systems, settings.repeats)), args.out, args.keep)


def measure(settings: Settings, order: list[Turn], out: Path, keep: Path | None) -> None:
    """All repetitions, in this order."""
    origin = provenance() | {"peers": versions()}
    rows: list[dict[str, Any]] = []
    discarded: list[dict[str, Any]] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = keep.absolute() if keep is not None else Path(tempfile.mkdtemp(prefix="recovery-"))
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(settings, folder)
    try:
        for turn in order:
            counted, thrown_away = played(turn, bench.repetition)
            rows += counted
            discarded += thrown_away
            for row in thrown_away + counted:
                _tell(row)
            result = {"benchmark": "recovery", "rows": rows, "discarded": discarded}
            result |= {"medians": medians(rows, discarded)}
            details = {"settings": dataclasses.asdict(settings), "provenance": origin}
            out.write_text(json.dumps(result | details, indent=2) + "\n")
    finally:
        bench.close()
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _tell(row: dict[str, Any]) -> None:
    figures = [f"{name} {_short(row[name])}" for name in (*FIGURES, "digests_equal")]
    what = " ".join(str(row[name]) for name in ("scenario", "system", "settings", "repetition"))
    notes = [row["note"], f"does not count: {row['discarded']}" if row["discarded"] else ""]
    print(f"{what}: {'  '.join(figures)}  {'  '.join(filter(None, notes))}", flush=True)


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
