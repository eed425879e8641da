"""Effect. Runs a group of worker processes under sabotage and checks promises P1 to P4 on what they wrote down."""

import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.actors.driver import Driver, Finished
from elastic.actors.fleet import Emit
from elastic.actors.injector import Injector
from elastic.actors.journal import Journal
from elastic.actors.process_fleet import ProcessFleet
from elastic.actors.supervisor import Supervisor
from elastic.actors.tiers import NoTiers, Tiers
from elastic.callbacks import Callback, WorkerCallback
from elastic.checkpoint.reach import Reach
from elastic.control.outcome import Ending
from elastic.control.schedules import schedule_of
from elastic.control.state import RunState, Standing
from elastic.control.values import StepReport
from elastic.policies import Ladder, Policy
from elastic.settings import Chaos, Checkpoint, Limits, RunSettings, Scaling
from elastic.train.runner import with_callbacks
from tests.chaos.ledger_checks import booked
from tests.chaos.saboteur import BATCH, GATE, HARMLESS, MICRO_BATCH, Sabotage, train
from tests.lines import whole_lines

STEPS = 14
FOREVER_S = 1000.0
LONG_S = 30.0
CHAOS_SEED = 7


@dataclass(slots=True)
class Stable(Callback):
    """When each step was told to be stable."""

    reports: list[StepReport] = field(default_factory=list)

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        self.reports.append(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All that is known of a run afterwards."""

    finished: Finished
    folder: Path
    reports: list[StepReport]
    lines: list[dict[str, Any]]
    journal: list[dict[str, Any]]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    @property
    def fired(self) -> set[str]:
        return {path.name.removeprefix("fired-") for path in self.folder.glob("fired-*")}

    @property
    def killed(self) -> set[str]:
        """Workers whose process ended by SIGKILL."""
        dead = [line for line in self.journal if line.get("event") == "WorkerDead"]
        return {line["worker"] for line in dead if "code -9" in line["proof"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained, with what else than usual, and what is done about an incident.

    Attributes:
        width: workers of a replica.
        use_gpu: the workers train on GPUs.
        parked: nobody goes beyond step 0 before so many workers, spares among them, have come to the door.
        checkpoint: of the run's settings.
        chaos: of the run's settings: faults that it injects into itself, beside the sabotages.
        watching: callbacks beside the driver.
        at_end: called with the run's name when all workers are gone; takes their snapshots away.
    """

    function: Callable[..., Any] = train
    width: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    callbacks: tuple[WorkerCallback, ...] = ()
    watching: tuple[Callback, ...] = ()
    policy: Policy = field(default_factory=Ladder)
    use_gpu: bool = False
    parked: int = 0
    checkpoint: Checkpoint | None = None
    chaos: Chaos | None = None
    at_end: Callable[[str], None] | None = None


def thinned(stories: Mapping[str, Any], every: int) -> list[Any]:
    """Stories for `parametrize`: each n-th is played by the fast selection, the others are slow."""
    found = []
    for number, (name, story) in enumerate(stories.items()):
        values = story if isinstance(story, tuple) else (story,)
        found.append(pytest.param(*values, id=name, marks=[pytest.mark.slow] if number % every else []))
    return found


def name_of(folder: Path) -> str:
    """Of the run that is played there, the same in every process."""
    return f"chaos-{zlib.crc32(str(folder).encode())}"


def run(
    folder: Path,
    *plan: Sabotage,
    replicas: tuple[int, int] = (1, 3),
    slots: int = 3,
    spares: int = 0,
    micro_batch: int = MICRO_BATCH,
    steps: int = STEPS,
    pause_s: float = 0.002,
    supervisor: type[Supervisor] = Supervisor,
    during: Callable[[ProcessFleet, Path], None] = lambda fleet, folder: None,
    training: Training = Training(),
    **limits: float,
) -> Story:
    """Train with these sabotages; `slots` bounds how many workers are ever started.

    Args:
        during: runs beside the training, with the fleet and the folder of marks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = RunSettings(
        run=name_of(folder),
        scaling=Scaling(
            num_dp_replicas=replicas, spares=spares, workers_per_replica=training.width, use_gpu=training.use_gpu
        ),
        checkpoint=training.checkpoint,
        chaos=training.chaos,
        limits=Limits(**{"start_timeout_s": 120, "hang_floor_s": 30, **limits}),  # type: ignore[arg-type]
    )
    stable = Stable()
    journal = Journal(folder / "run")
    tiers = local_tiers(settings, lambda event: driver.emit(event))
    incarnation, forks = tiers.begin()
    settings = replace(settings, incarnation=incarnation)
    injector = Injector(schedule_of(training.chaos), CHAOS_SEED, lambda event: driver.emit(event))
    brain = supervisor(RunState(settings=settings, forks=forks), training.policy)
    driver = Driver(brain, journal, [stable, injector, *training.watching])
    if training.parked:
        (folder / GATE).touch()
    usual = {"folder": folder, "plan": plan, "steps": steps, "micro_batch": micro_batch, "pause_s": pause_s}
    first = min(slots, replicas[1] * training.width + spares)
    work = partial(begun_together, function=training.function, first=first, **usual, **training.options)
    fleet = ProcessFleet(
        settings, with_callbacks(work, training.callbacks), [f"node{i}" for i in range(slots)], 0, driver.emit
    )
    helpers = [threading.Thread(target=during, args=(fleet, folder), daemon=True)]
    helpers.append(threading.Thread(target=_open_gate, args=(folder, journal.path, training.parked), daemon=True))
    for helper in helpers:
        helper.start()
    try:
        with injector:
            finished = driver.run(fleet, tiers)
    finally:
        fleet.shutdown(keep_memory=training.at_end is not None)
        if training.at_end is not None:
            training.at_end(settings.run)
        for helper in helpers:
            helper.join(LONG_S)
        journal.close()
        tiers.close(keep=False)
    booked(journal.path)
    return Story(
        finished=finished,
        folder=folder,
        reports=stable.reports,
        lines=read(folder.glob("*.jsonl")),
        journal=read([journal.path]),
    )


def begun_together(session: Any, *, function: Callable[..., Any], first: int, folder: Path, **options: Any) -> Any:
    """Nobody comes to the door before all first workers have begun: a run begins without who has no slot by then."""
    (folder / f"here-{session.worker}").touch()
    deadline_s = time.monotonic() + LONG_S
    while len(list(folder.glob("here-*"))) < first and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return function(session, folder=folder, **options)


def local_tiers(settings: RunSettings, emit: Emit) -> Tiers | NoTiers:
    """This machine's memory, and a store, looked at from this process."""
    if settings.checkpoint is None:
        return NoTiers()
    return Tiers(settings.run, Reach(settings.run, settings.checkpoint), emit, timeout_s=30.0)


def _open_gate(folder: Path, journal: Path, parked: int) -> None:
    deadline_s = time.monotonic() + 2 * LONG_S
    while (folder / GATE).exists() and time.monotonic() < deadline_s:
        if journal.read_text().count('"WorkerParked"') >= parked:
            (folder / GATE).unlink()
        time.sleep(0.02)


def read(paths: Any) -> list[dict[str, Any]]:
    lines = [line for path in paths for line in whole_lines(path)]
    return sorted(lines, key=lambda line: line["t"])


def assert_promises(story: Story, clean: Story, *plan: Sabotage, steps: int = STEPS, killed: int | None = None) -> None:
    """Every sabotage struck, and none of P1 to P4 was broken; `killed`: workers that died, default: one a sabotage."""
    assert story.fired == {sabotage.name for sabotage in plan}, "a sabotage did not strike"
    fatal = [sabotage for sabotage in plan if sabotage.point not in HARMLESS or sabotage.delay_s == FOREVER_S]
    assert len(story.killed) == (len(fatal) if killed is None else killed)
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    assert_no_stable_step_lost(story, steps)
    assert_same_answer(story, clean)
    assert_exactly_once(story, clean, steps)
    assert_survivors_never_restart(story)


def assert_no_stable_step_lost(story: Story, steps: int) -> None:
    """P1: each step is reported once, in order; a worker never commits a step at or below its last one."""
    assert [report.commit.step for report in story.reports] == list(range(steps))
    told_s = {
        line["report"]["commit"]["step"]: line["t"] for line in story.journal if line.get("event") == "StepStable"
    }
    for commit in story.of("committed"):
        assert commit["t"] <= told_s[commit["step"]], (
            f"step {commit['step']} was done again after it was told as stable"
        )
    by_worker: dict[str, list[int]] = {}
    for commit in story.of("committed"):
        by_worker.setdefault(commit["worker"], []).append(commit["step"])
    for worker, committed in by_worker.items():
        assert committed == sorted(set(committed)), f"{worker} went back: {committed}"


def assert_same_answer(story: Story, clean: Story) -> None:
    """P2: the fault-free run's parameters and statistics up to rounding; replicas identical to the bit."""
    assert len({line["digest"] for line in story.of("finished")}) == 1
    ours, theirs = (torch.load(one.folder / "final.pt", weights_only=True) for one in (story, clean))
    difference = sum(float((ours[name] - theirs[name]).double().pow(2).sum()) for name in theirs)
    norm = sum(float(theirs[name].double().pow(2).sum()) for name in theirs)
    assert (difference / norm) ** 0.5 <= 1e-9


def assert_exactly_once(story: Story, clean: Story, steps: int) -> None:
    """P3: the committed attempts consumed the samples of the fault-free run, each once."""
    assert committed_samples(story) == committed_samples(clean)
    assert sum(committed_samples(story).values()) == steps * BATCH


def committed_samples(story: Story) -> Counter[tuple[int, int]]:
    """(step, sample) -> times, over the attempts that stand in the end."""
    stands = {line["step"]: line["generation"] for line in story.of("committed")}
    lines = (line for line in story.of("consumed") if stands.get(line["step"]) == line["generation"])
    return Counter((line["step"], sample) for line in lines for sample in line["ids"])


def assert_survivors_never_restart(story: Story) -> None:
    """P4: one process and one set of objects for each worker, from its start to its end."""
    started, finished = story.of("started"), story.of("finished")
    assert len(started) == len({line["worker"] for line in started})
    for end in finished:
        (begin,) = (line for line in started if line["worker"] == end["worker"])
        assert (begin["pid"], begin["objects"]) == (end["pid"], end["objects"])
    first = {line["worker"] for line in story.of("committed") if line["generation"] == 1}
    exiled = {one.name for one in story.finished.state.workers.values() if one.standing is Standing.EXILED}
    assert first - story.killed - exiled <= {line["worker"] for line in finished}
