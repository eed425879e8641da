"""Plays the repetitions of the recovery benchmark: each a run of its own, whatever became of the one before it."""

import dataclasses
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import link, storm
from benchmarks.hosts import Hosts
from benchmarks.phases import phases_s
from benchmarks.remains import HostsError
from benchmarks.rows import (
    FIGURES,
    Fault,
    broken_promises,
    mean_step_s,
    pause,
    recovery,
    share_of_ideal,
    step_time_s,
    whole_run,
)
from benchmarks.scenarios import CLEAN_S, GROUNDS, SPEED_S, STRIKES, Ground
from benchmarks.stage import QUIET_S, LateError, RunEndedError, ScenarioError, Stage
from benchmarks.systems import DEFAULT, RAY_TUNED, SYSTEMS
from benchmarks.training import BATCH, Job
from benchmarks.turns import Turn, misfire, storm_plan

STORM = "storm"
_COMPARED = "elastic"  # who promises the same parameters as without faults, and is held to it
_FEWEST_WORKERS = 2
_START_S = 120.0  # of a run, cold, on a busy machine
_CALM_AND_END_S = 60.0  # of a storm, before and after its faults
_CLOSINGS = 3
_LOOK_S = 0.25
_LOOK_SHARE = 0.05  # of a core at most, for the observer's arithmetic while others train


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line says; `state_mb` None: what the scenario says; `patience_s` None: `deadline_s`.

    `calm_s`: no run is calm for longer before it is broken, if all is prepared; None: as long as the scenario says.
    """

    repeats: int = 5
    step_s: float = 0.05
    state_mb: int | None = None
    deadline_s: float = 240.0
    patience_s: float | None = None
    calm_s: float | None = None
    storm_s: float = 600.0
    every_s: tuple[float, float] = (15.0, 30.0)
    seed: int = 0


class Bench:
    """Runs repetitions one after the other; hosts that one leaves whole serve the next one too.

    Args:
        folder: for everything that the runs write.

    Attributes:
        settings: of the repetitions that follow.
        troubles: what went wrong with the bench itself, and promises of ours that a run has broken, a line each.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self._folder = settings, folder
        self._hosts: Hosts | None = None
        self._ray: dict[str, str] = {}
        self.troubles: list[str] = []

    def close(self) -> None:
        """Remove the hosts; what cannot be removed is told, and ends nothing."""
        for _ in range(_CLOSINGS if self._hosts is not None else 0):
            try:
                if self._hosts is not None:
                    self._hosts.close()
                self._hosts = None  # not before: who is told to end meanwhile closes them once more
            except Exception as error:
                self.troubles.append(f"hosts were not removed: {_told(error)}")
        self._hosts = None

    def repetition(self, turn: Turn) -> dict[str, Any]:
        """The row of one repetition; `discarded` says why it does not count, `note` what went wrong.

        A run in which nothing was struck does not count, whoever is to blame: it says nothing of what a fault costs.
        Nor does one whose hosts failed, which is no system's doing.
        Nothing is raised: whatever goes wrong, a run has a row, its hosts are given up, and the next run is measured.
        """
        system, ground = SYSTEMS[turn.system], GROUNDS.get(turn.scenario, Ground())
        row = blank(turn) | {"saves": ground.saves, "spares": ground.spares if system.has_spares else 0}
        if reason := system.why_not(turn.scenario, turn.settings):
            return row | {"unavailable": reason, "note": reason}
        stage: Stage | None = None
        is_clear = True
        try:
            stage = self._stage(ground, turn)
            with stage:
                most_s = ground.calm_s if self.settings.calm_s is None else self.settings.calm_s
                stage.wait_until_calm(min(ground.calm_s, most_s), ground.is_prepared)
                stage.allow_s(self.settings.deadline_s)
                row |= self._storm(stage) if turn.scenario == STORM else self._one_fault(stage, turn.scenario)
            is_compared = turn.scenario == STORM and turn.system == _COMPARED
            if is_compared and not (row["note"] or row["discarded"]):
                row |= self._compare_with_clean(stage, turn)
        except ScenarioError as error:
            row |= {"discarded": str(error), "note": _told(error)}
        except Exception as error:
            is_clear = isinstance(error, LateError | RunEndedError)
            row |= {"timed_out": isinstance(error, LateError), "note": _told(error)}
            if isinstance(error, HostsError) or not _is_struck(stage, turn.scenario):
                row["discarded"] = _told(error)
            if not is_clear:
                self.troubles.append(f"{turn}: {_told(error)}")
        if turn.system == _COMPARED and not row["discarded"] and (broken := broken_promises(row)):
            self.troubles.append(f"{turn}: {', '.join(broken)}")
        if row["note"] and stage is not None:
            row["note"] += f"; its driver: {stage.last_word}"
        self._tidy(stage, is_clear and not (row["note"] and system.on_ray))
        return row

    def _tidy(self, stage: Stage | None, is_clear: bool) -> None:
        """Give up the hosts that the next run cannot use: all of them, where nobody knows what still runs there."""
        try:
            if is_clear and stage is not None:
                return self._give_up(stage.spoiled)
        except Exception as error:
            self.troubles.append(f"a host was not removed: {_told(error)}")
        self.close()

    # --- the runs ---

    def _one_fault(self, stage: Stage, scenario: str) -> dict[str, Any]:
        speed = self._link(stage)
        stage.wait_s(stage.chance.uniform(0.0, stage.job.step_s))  # or each would fall on a step's beginning
        fault: Fault | None = None
        late: Exception | None = None
        began_s = time.time()  # some strikes take a while, in which steps are not what they are else
        try:
            fault = STRIKES[scenario](stage)
            stage.allow_s(self.settings.deadline_s)
            self._wait_until_whole(stage, fault)
            stage.wait_s(1.0)
        except (ScenarioError, HostsError):
            raise
        except Exception as error:  # what was done is known, and what the run wrote until then is kept
            fault, late = fault or stage.struck, error  # what the strike told of itself, if it was over
            if fault is None or fault.kind != scenario:
                raise
        before = stage.watch.log(fault.at_s)
        seen = ", ".join(filter(None, (fault.proof, fault.note)))
        usual = (began_s, fault.at_s) if scenario == "clean" else (began_s - QUIET_S, began_s)
        usual_s = step_time_s(before, *usual) or step_time_s(before)
        figures = {"step_s": usual_s, "seen": seen, "remark": stage.system.why_small(scenario)}
        if scenario == "clean" and late is None:
            figures["mean_step_s"] = mean_step_s(before, fault.at_s - CLEAN_S, fault.at_s)
        try:
            code = stage.finish()
            late = late or (RunEndedError(f"the run ended with code {code}") if code else None)
        except Exception as error:
            late = late or error
        stage.watch.look()
        log = stage.watch.log()
        figures |= recovery(log, fault) | whole_run(log, BATCH, figures["step_s"]) | speed
        figures["discarded"] = misfire(log, fault)
        if (journal := stage.journal) and (paused := pause(figures, fault)):
            figures["phases_s"] = phases_s(journal, *paused)
        if scenario == "straggler":
            figures |= share_of_ideal(log, fault, SPEED_S)
        return figures | {"timed_out": isinstance(late, LateError), "note": _told(late) if late else ""}

    def _wait_until_whole(self, stage: Stage, fault: Fault) -> None:
        """As the row will have it, looked at from time to time; or it has gone on for long enough without being so.

        Patience begins when it goes on and the strike is over: nobody is whole while half of the hosts are away.
        """
        look_again_s, over_s = 0.0, time.time()
        patience_s = 1.0 if stage.system.why_small(fault.kind) else self.settings.patience_s or math.inf

        def is_whole() -> bool:
            nonlocal look_again_s
            if (began_s := time.monotonic()) < look_again_s:
                return False
            row = recovery(stage.watch.log(), fault)
            resumed_s = row["t_resume_s"]
            waits = resumed_s is None or time.time() - max(fault.at_s + resumed_s, over_s) < patience_s
            ended_s = time.monotonic()
            look_again_s = ended_s + max(_LOOK_S, (ended_s - began_s) / _LOOK_SHARE)
            return row["t_full_s"] is not None or not waits

        stage.wait_for(is_whole, "the run was whole again")

    def _storm(self, stage: Stage) -> dict[str, Any]:
        storm_s = self.settings.storm_s
        stage.allow_s(storm_s + _CALM_AND_END_S + self.settings.deadline_s)
        return storm.play(stage, storm_plan(storm_s, self.settings.every_s, stage.job.seed), storm_s)

    def _compare_with_clean(self, stormy: Stage, turn: Turn) -> dict[str, Any]:
        """Promise P2: the same steps without faults, and without sleeping. A reference that fails spoils no storm."""
        from elastic.demo.report import relative_difference

        try:
            for host in stormy.spoiled & stormy.hosts.slots.keys():
                stormy.hosts.lose(host)
            clean = self._stage(GROUNDS[STORM], turn, step_s=0.0, spares=0)
            with clean:
                clean.job.stop_at(stormy.job.end_step or 0)
                if code := clean.wait_for_end(self.settings.storm_s + self.settings.deadline_s):
                    raise RunEndedError(f"it ended with code {code}")
            ours, theirs = (stage.job.final_file for stage in (stormy, clean))
            return {"param_rel_diff_vs_clean": relative_difference(ours, theirs)}
        except Exception as error:
            return {"note": f"the run without faults, which it is compared with: {_told(error)}"}

    def _link(self, stage: Stage) -> dict[str, Any]:
        """What copying the state would take at best; measured before anything is broken."""
        size = stage.job.state_bytes
        if not size:
            return {}
        speed = link.bytes_per_s(stage.hosts, size)
        return {"state_bytes": size, "link_bytes_per_s": speed, "copy_s": size / speed}

    # --- the ground ---

    def _stage(self, ground: Ground, turn: Turn, **changes: Any) -> Stage:
        system, seed = SYSTEMS[turn.system], self.settings.seed + turn.number
        hosts = self._arrange(ground.slots, {} if turn.settings == DEFAULT else RAY_TUNED)
        name = "-".join((turn.scenario, turn.system, turn.settings, str(turn.number)))
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))
        state_mb = ground.state_mb if self.settings.state_mb is None else self.settings.state_mb
        job = Job(
            name=f"{hosts.name}-{folder.name}",
            folder=str(folder),
            address=hosts.ray_address,
            workers=(_FEWEST_WORKERS, ground.workers + ground.wanted),
            spares=ground.spares if system.has_spares else 0,
            step_s=self.settings.step_s,
            state_bytes=state_mb << 20,
            micro_batch=ground.micro_batch,
            seed=seed,
            saves=ground.saves,
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
            long_s=self.settings.storm_s,
        )

    def _arrange(self, slots: tuple[int, ...], ray: dict[str, str]) -> Hosts:
        """Hosts with these slots, and no others, in a cluster with these variables."""
        if self._ray != ray:
            self.close()
        if self._hosts is None:
            self._ray = ray
            self._hosts = Hosts(slots, environment=ray).__enter__()  # which removes what it has made where it fails
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


def blank(turn: Turn) -> dict[str, Any]:
    """The row of a repetition before anything was measured."""
    row: dict[str, Any] = {"scenario": turn.scenario, "system": turn.system, "settings": turn.settings}
    row |= {"repetition": turn.number, "knobs": SYSTEMS[turn.system].knobs(turn.settings), "timed_out": False}
    return row | dict.fromkeys((*FIGURES, "digests_equal")) | {"note": "", "unavailable": "", "discarded": ""}


def _is_struck(stage: Stage | None, scenario: str) -> bool:
    """Whether what the scenario is about was done; of a storm, any of it."""
    struck = stage.struck if stage is not None else None
    return struck is not None and scenario in (struck.kind, STORM)


def _told(error: Exception) -> str:
    """An error in a line; of one that nobody has foreseen its kind, too."""
    known = isinstance(error, LateError | RunEndedError | ScenarioError | HostsError)
    text = " ".join(str(error).split())
    return text if known else f"{type(error).__name__}: {text}"
