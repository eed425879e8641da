"""Effect. `elastic.fit`: from a train_fn and settings to a result."""

import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from elastic import errors
from elastic.actors.brain import RayBrain
from elastic.actors.cluster import cluster
from elastic.actors.driver import Driver, Finished
from elastic.actors.journal import Journal
from elastic.actors.ray_fleet import RayFleet
from elastic.callbacks import Callback, WorkerCallback, by_place
from elastic.control.outcome import Ending, Result
from elastic.control.remediation import Policy
from elastic.control.state import RunState
from elastic.policies import Ladder
from elastic.progress import Progress
from elastic.settings import Limits, RunSettings, Scaling
from elastic.train.runner import with_callbacks


def fit(
    train_fn: Callable[[Any], Any],
    *,
    policy: Policy | None = None,
    scaling: Scaling | None = None,
    callbacks: Sequence[Callback | WorkerCallback] | None = None,
    limits: Limits | None = None,
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
        name: of the run; default: made up from time and chance.
        seed: base of all random state and of the data order.
        run_dir: where the journal goes; default: `runs/<name>`.
        address: of a Ray cluster; default: RAY_ADDRESS, else a running one, else a local one for this call.

    Raises:
        SettingError: a setting cannot work; names it.
        TrainFnError: train_fn, or a callback on a worker, raised; carries its traceback.
        DivergenceError: replicas hold different bits, and nobody can say whose are right.
        NoClusterError, NotEnoughSlotsError, ReplicasLostError, NoProgressError: see `elastic.errors`.
        KeyboardInterrupt: after all workers, and a local cluster, are gone.
    """
    name = name or f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    directory = Path(run_dir) if run_dir is not None else Path("runs") / name
    told, on_workers = by_place(callbacks if callbacks is not None else [Progress()])
    settings = RunSettings(run=name, scaling=scaling or Scaling(), limits=limits or Limits())
    with cluster(address or os.environ.get("RAY_ADDRESS"), settings.scaling):
        finished = _drive(
            with_callbacks(train_fn, on_workers), settings, policy or Ladder(), told, seed, Journal(directory)
        )
    return _result(finished, directory)


def _drive(
    train_fn: Callable[[Any], Any],
    settings: RunSettings,
    policy: Policy,
    callbacks: Sequence[Callback],
    seed: int,
    journal: Journal,
) -> Finished:
    with closing(journal), closing(RayBrain(RunState(settings=settings), policy)) as brain:
        driver = Driver(brain, journal, callbacks)
        fleet = RayFleet(settings, train_fn, seed, driver.emit, driver.crash)
        try:
            return driver.run(fleet)
        finally:
            fleet.shutdown()


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
