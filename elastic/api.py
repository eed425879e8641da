"""Effect. `elastic.fit`: from a train_fn and settings to a result."""

import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from elastic import errors
from elastic.actors.brain import RayBrain
from elastic.actors.cluster import cluster
from elastic.actors.driver import Driver, Finished
from elastic.actors.fleet import Emit
from elastic.actors.former import take_over
from elastic.actors.injector import Injector
from elastic.actors.journal import Journal
from elastic.actors.ray_fleet import RayFleet
from elastic.actors.ray_tiers import RayTiers
from elastic.actors.tiers import NoTiers
from elastic.callbacks import Callback, WorkerCallback, by_place
from elastic.checkpoint.manifest import checked_name
from elastic.control import events as ev
from elastic.control.outcome import Ending, Result
from elastic.control.remediation import Policy
from elastic.control.schedules import Schedule, schedule_of
from elastic.control.state import RunState
from elastic.policies import Ladder
from elastic.progress import Progress
from elastic.settings import Chaos, Checkpoint, Limits, RunSettings, Scaling
from elastic.train.runner import with_callbacks


def fit(  # noqa: PLR0913 - the one door, and each of its keywords may be left out
    train_fn: Callable[[Any], Any],
    *,
    policy: Policy | None = None,
    scaling: Scaling | None = None,
    callbacks: Sequence[Callback | WorkerCallback] | None = None,
    limits: Limits | None = None,
    checkpoint: Checkpoint | None = None,
    chaos: Chaos | None = None,
    name: str | None = None,
    seed: int = 0,
    run_dir: str | os.PathLike[str] | None = None,
    address: str | None = None,
) -> Result:
    """Train `train_fn` on a Ray cluster, and survive what happens to it.

    Args:
        train_fn: takes an `elastic.Session`; runs on every worker.
        policy: `(incident, view) -> Remediation`; default: `elastic.policies.Ladder()`.
        scaling: how many replicas, on what; default: one on one CPU.
        callbacks: told of steps, generations and incidents, in this process, or of resizes, on every worker;
            default: a live progress line.
        limits: how long waits may last.
        checkpoint: how safe each step is made below the memory of live workers; None: not at all.
        chaos: faults that are injected on purpose; None: none, and `elastic chaos` is refused.
        name: of the run; default: made up from time and chance. With `checkpoint`, a run of the same name goes on where
            the last one ended.
        seed: base of all random state and of the data order.
        run_dir: where the journal goes; default: `runs/<name>`.
        address: of a Ray cluster; default: RAY_ADDRESS, else a running one, else a local one for this call.

    Raises:
        SettingError: a setting cannot work; names it.
        StoreError: the persistent tier cannot be asked.
        TrainFnError: train_fn, or a callback on a worker, raised; carries its traceback.
        DivergenceError: replicas hold different bits, and nobody can say whose are right.
        NoClusterError, NotEnoughSlotsError, ReplicasLostError, NoProgressError: see `elastic.errors`.
        KeyboardInterrupt: after all workers, and a local cluster, are gone.
    """
    is_named = name is not None
    name = checked_name(name or f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}", "fit(name=...)")
    directory = Path(run_dir) if run_dir is not None else Path("runs") / name
    told, on_workers = by_place(callbacks if callbacks is not None else [Progress()])
    faults = schedule_of(chaos)
    settings = RunSettings(
        run=name, scaling=scaling or Scaling(), limits=limits or Limits(), checkpoint=checkpoint, chaos=chaos
    )
    with cluster(address or os.environ.get("RAY_ADDRESS"), settings.scaling) as is_local:
        take_over(name)
        work = Work(with_callbacks(train_fn, on_workers), policy or Ladder(), told, seed, faults)
        with closing(Journal(directory)) as journal:
            finished = _drive(work, settings, journal, may_come_back=is_named and not is_local)
    return _result(finished, directory)


@dataclass(frozen=True, slots=True)
class Work:
    """What a run is, beside its settings."""

    train_fn: Callable[[Any], Any]
    policy: Policy
    callbacks: Sequence[Callback]
    seed: int
    faults: Schedule


def _drive(work: Work, settings: RunSettings, journal: Journal, may_come_back: bool) -> Finished:
    """Args: may_come_back: another life of the run may want what the memory of nodes holds when this one fails."""

    def emit(event: ev.Event) -> None:
        driver.emit(event)

    def crash(error: Exception) -> None:
        driver.crash(error)

    tiers = _tiers(settings, emit, lambda told: journal.checkpoint(time.time(), told), crash)
    incarnation, forks = tiers.begin()
    settings = replace(settings, incarnation=incarnation)
    brain = RayBrain(RunState(settings=settings, forks=forks), work.policy)
    injector = Injector(work.faults, work.seed, emit)
    driver = Driver(brain, journal, [*work.callbacks, injector])
    fleet = RayFleet(settings, work.train_fn, work.seed, emit, crash)
    tiers.start(settings)
    is_kept = may_come_back
    try:
        with injector:
            finished = driver.run(fleet, tiers)
        if finished.outcome.ending is Ending.SUCCEEDED:
            is_kept = False
            tiers.flush()
        return finished
    finally:
        fleet.shutdown(keep_memory=is_kept)
        brain.close()
        tiers.close(keep=is_kept)


def _tiers(
    settings: RunSettings, emit: Emit, write: Callable[[Any], None], crash: Callable[[Exception], None]
) -> RayTiers | NoTiers:
    if settings.checkpoint is None:
        return NoTiers()
    return RayTiers(settings, ray.get_runtime_context().get_node_id(), emit, write, crash)


def _result(finished: Finished, directory: Path) -> Result:
    outcome, state = finished.outcome, finished.state
    if outcome.ending is not Ending.SUCCEEDED:
        raise getattr(errors, outcome.ending.value)(outcome.message, **outcome.details)
    return Result(
        steps=state.published + 1,
        last_report=finished.last_report,
        value=finished.value,
        world_sizes=list(state.world_sizes),
        incidents=list(state.incidents),
        goodput=finished.goodput.share,
        run_dir=str(directory),
    )
