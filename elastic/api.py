"""Effect. `elastic.fit`: from a train_fn and settings to a result."""

import logging
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from elastic import errors
from elastic.actors import crown
from elastic.actors import token as tokens
from elastic.actors.brain import RayBrain
from elastic.actors.cluster import cluster
from elastic.actors.code import digest_of
from elastic.actors.driver import Driver, Finished
from elastic.actors.fleet import Emit
from elastic.actors.former import Former, Heirloom
from elastic.actors.injector import Injector
from elastic.actors.journal import JOURNAL, Journal, Past, make_way, read_past
from elastic.actors.journal_copy import JournalCopy, fetch_journal
from elastic.actors.logs_copy import LogsCopy
from elastic.actors.machines import machines_of
from elastic.actors.policy_file import load_policy
from elastic.actors.ray_fleet import RayFleet
from elastic.actors.ray_metrics import RayMetrics
from elastic.actors.ray_tiers import RayTiers
from elastic.actors.run_logs import RunLogs
from elastic.actors.tiers import NoTiers
from elastic.actors.token import Token
from elastic.callbacks import Callback, WorkerCallback, by_place, configured
from elastic.checkpoint.manifest import checked_name
from elastic.checkpoint.remembered import Remembered
from elastic.checkpoint.rungs import CheckpointRung, Degraded, StepLost
from elastic.checkpoint.vault import open_vault
from elastic.config import load
from elastic.control import events as ev
from elastic.control.outcome import Ending, Result
from elastic.control.remediation import Policy
from elastic.control.schedules import Schedule, schedule_of
from elastic.control.state import RunState
from elastic.control.values import Fork
from elastic.knobs import Given, Knob, RunConfig, Tree, effective
from elastic.policies import policy_of
from elastic.progress import Progress
from elastic.report.window import window
from elastic.settings import Chaos, Checkpoint, Health, KubeRay, Limits, Logs, Page, RunSettings, Scaling
from elastic.train.runner import with_callbacks

log = logging.getLogger("elastic")


def fit(  # noqa: PLR0913 - each has a default, and is named by who gives it
    train_fn: Callable[[Any], Any],
    *,
    config: str | os.PathLike[str] | None = None,
    policy: Policy | str | None = None,
    scaling: Scaling | None = None,
    callbacks: Sequence[Callback | WorkerCallback] | None = None,
    limits: Limits | None = None,
    checkpoint: Checkpoint | None = None,
    health: Health | None = None,
    page: Page | None = None,
    chaos: Chaos | None = None,
    logs: Logs | None = None,
    name: str | None = None,
    seed: int | None = None,
    run_dir: str | os.PathLike[str] | None = None,
    address: str | None = None,
) -> Result:
    """Train `train_fn` on a Ray cluster, and survive what happens to it.

    Args:
        train_fn: takes an `elastic.Session`; runs on every worker.
        config: a YAML file with what is not given here, see docs/configuration.md; default: the one that ELASTIC_CONFIG
            names, if it does.
        policy: `(incident, view) -> Remediation`, an object with a method `event_policy`, or where such a one is:
            "file.py:function"; default: `elastic.policies.Ladder()`.
        scaling: how many replicas, on what; default: one on one CPU.
        callbacks: told of steps, incidents and other moments, in this process, or of resizes, on every worker;
            default: a live progress line.
        limits: how long waits may last.
        checkpoint: how safe each step is made below the memory of live workers; default: not at all.
        health: what is sensed of the hardware, and what a node must show before its workers join.
        page: where the live page of the run listens; default: at a free port, for this machine alone.
        chaos: faults that are injected on purpose; default: none, and `elastic chaos` is refused.
        logs: what is kept, and shown, of what its processes log.
        name: of the run; default: made up from time and chance. With `checkpoint`, a run of the same name goes on where
            the last one ended. Where workers of the last driver live, and code and settings are the same, it goes on
            with them.
        seed: base of all random state and of the data order; default: 0.
        run_dir: where the journal goes; default: `runs/<name>`.
        address: of a Ray cluster; default: RAY_ADDRESS, else a running one, else a local one for this call.

    Raises:
        SettingError: a setting cannot work; names it.
        StoreError: the persistent tier cannot be asked.
        SupersededError: another driver has taken the run over meanwhile; its workers are left to that one.
        TrainFnError: train_fn, or a callback on a worker, raised; carries its traceback.
        DivergenceError: replicas hold different bits, and nobody can say whose are right.
        ExitedError: the policy had the run save and exit.
        NoClusterError, NotEnoughSlotsError, ReplicasLostError, NoProgressError: see `elastic.errors`.
        KeyboardInterrupt: after all workers, and a local cluster, are gone.
    """
    given: dict[str, Any] = {"scaling": scaling, "limits": limits, "checkpoint": checkpoint, "chaos": chaos}
    given |= {"logs": logs, "name": name, "seed": seed}
    given |= {"run_dir": None if run_dir is None else os.fspath(run_dir), "address": address, "health": health}
    given["page"] = page
    arguments = {key: Given(value, f"fit({key}=...)") for key, value in given.items() if value is not None}
    return fit_configured(train_fn, *load(config, arguments), policy=policy, callbacks=callbacks)


def fit_configured(
    train_fn: Callable[[Any], Any],
    chosen: RunConfig,
    tree: Tree,
    *,
    policy: Policy | str | None = None,
    callbacks: Sequence[Callback | WorkerCallback] | None = None,
) -> Result:
    """`fit`, with settings that are loaded already; what is not said here, and errors, are those of `fit`.

    Args:
        chosen, tree: what is in effect, and where it came from (`elastic.config.load`).
    """
    made_up = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"
    given = tree.get("name")
    name = checked_name(chosen.name or made_up, f"{given.source}: the name" if isinstance(given, Given) else "the name")
    directory = Path(chosen.run_dir) if chosen.run_dir is not None else Path("runs") / name
    told, on_workers = by_place(callbacks if callbacks is not None else [Progress()])
    faults = schedule_of(chosen.chaos)
    settings = RunSettings(
        run=name,
        scaling=chosen.scaling,
        limits=chosen.limits,
        checkpoint=configured(told, chosen.checkpoint),
        health=chosen.health,
        chaos=chosen.chaos,
        logs=chosen.logs,
    )
    with ExitStack() as stack:
        run_logs = stack.enter_context(RunLogs(directory, settings))  # until callbacks have had their last word
        for callback in told:
            stack.callback(callback.on_end)
        is_local = stack.enter_context(cluster(chosen.address or os.environ.get("RAY_ADDRESS"), settings.scaling))
        wanted = policy if policy is not None else chosen.policy
        decides = policy_of(load_policy(wanted) if isinstance(wanted, str) else wanted)
        work = Work(with_callbacks(train_fn, on_workers), decides, told, chosen.seed, faults, chosen.kuberay)
        former, past = Former(name), _past(directory / JOURNAL, settings)
        journal = stack.enter_context(closing(Journal(directory)))
        _announce(stack.enter_context(window(chosen.page, directory, journal.path, name)), told)
        token = tokens.draw(directory)
        stack.callback(tokens.forget, token)
        may_come_back = chosen.name is not None and not is_local
        in_effect = replace(chosen, name=name, run_dir=str(directory), checkpoint=settings.checkpoint)
        knobs = effective(in_effect, tree)
        finished = _drive(work, settings, journal, run_logs, knobs, token, former, past, may_come_back=may_come_back)
    return _result(finished, directory)


@dataclass(frozen=True, slots=True)
class Work:
    """What a run is, beside its settings."""

    train_fn: Callable[[Any], Any]
    policy: Policy
    callbacks: Sequence[Callback]
    seed: int
    faults: Schedule
    kuberay: KubeRay | None = None


def _note(told: Any, journal: Journal, emit: Emit, driver: Driver) -> None:
    """What the tiers tell, for the journal; where a step is on the ladder, for the controller and callbacks, too."""
    journal.checkpoint(time.time(), told)
    if isinstance(told, CheckpointRung | StepLost):
        rung = "" if isinstance(told, StepLost) else told.rung.name.lower()
        emit(ev.RungReached(commit=told.commit, rung=rung))
    if isinstance(told, CheckpointRung | Degraded):
        driver.ladder(told)


def _drive(
    work: Work,
    settings: RunSettings,
    journal: Journal,
    logs: RunLogs,
    knobs: Sequence[Knob],
    token: Token,
    former: Former,
    past: Past,
    may_come_back: bool,
) -> Finished:
    """Go on with what an earlier life has left, or begin.

    Args:
        knobs: what is in effect, for the journal.
        may_come_back: another life of the run may want what the memory of nodes holds when this one fails.
    """

    def emit(event: ev.Event) -> None:
        if not logs.heed(event):
            driver.emit(event)

    def crash(error: Exception) -> None:
        driver.crash(error)

    def keep(told: Any) -> None:
        _note(told, journal, emit, driver)

    with ExitStack() as given_up:  # if the rest cannot be made: a train_fn that cannot be sent to workers, or Ctrl-C
        tiers = _tiers(settings, emit, keep, crash, past.kept)
        given_up.callback(tiers.close, keep=True)
        incarnation, forks = _number(tiers, settings.run, former.incarnation)
        logs.incarnation = incarnation
        settings, digest = replace(settings, incarnation=incarnation), digest_of(work.train_fn, work.seed)
        copying = _copied_logs(logs, settings)
        journal.settings(time.time(), settings.run, incarnation, knobs)
        brain = RayBrain(RunState(settings=settings, forks=forks), work.policy, token, logs.heed)
        given_up.callback(brain.close)
        injector = Injector(work.faults, work.seed, emit)
        metrics = RayMetrics(settings.run)
        driver = Driver(brain, journal, [*work.callbacks, injector, metrics])
        fleet = RayFleet(settings, work.train_fn, work.seed, emit, crash, digest)
        given_up.pop_all()
    is_kept = may_come_back
    with ExitStack() as afterwards:  # what is written while the tiers are closed is copied, too
        try:
            crown.begin(settings.run, incarnation)
            left = former.hand_over(settings, digest)
            opening = _opening(left, past)
            logs.heed(opening)  # before the workers that were adopted say anything
            if left is not None:
                fleet.adopt(left)
            tiers.start(settings)
            copy_journal = afterwards.enter_context(_copied(journal, settings))
            machines = closing(machines_of(work.kuberay, settings, emit))
            with _heeding_sigterm(emit), injector, machines as machine_keeper:
                finished = driver.run(fleet, tiers, opening=opening, machines=machine_keeper)
                metrics.on_end()
                stays = is_kept and finished.outcome.ending is not Ending.SUCCEEDED
                if finished.outcome.ending is Ending.EXITED:
                    _hand_over(finished, fleet, tiers, is_kept=stays)
                if finished.outcome.ending in (Ending.SUCCEEDED, Ending.EXITED):
                    stays = _make_safe(tiers, stays)
                    driver.tell_late()
                is_kept = stays  # not before: who is interrupted while the last step comes down leaves its only copy
            copy_journal()
            return finished
        finally:
            copying()  # whoever had the run exit may not wait for what follows
            fleet.shutdown(keep_memory=is_kept)
            brain.close()
            tiers.close(keep=is_kept or fleet.is_superseded)


def _hand_over(finished: Finished, fleet: RayFleet, tiers: RayTiers | NoTiers, is_kept: bool) -> None:
    """Whoever had the run exit may kill this process at any moment: nothing that must be done waits for it.

    Args:
        is_kept: what is in the memory of nodes stays, so that its workers need not.
    """
    log.warning("%s", finished.outcome.message)
    tiers.hand_over()
    if is_kept:
        fleet.shutdown(keep_memory=True)


def _make_safe(tiers: RayTiers | NoTiers, is_kept: bool) -> bool:
    """Wait for the last step to come down; whether what is in the memory of nodes stays.

    Where it takes longer than anybody waits, that is the only copy: actors push on with it, and end when they have.
    """
    if not tiers.flush() and not is_kept:
        tiers.hand_over()
        return True
    return is_kept


def _number(tiers: RayTiers | NoTiers, run: str, heeded: int) -> tuple[int, tuple[Fork, ...]]:
    """A number for this life that no other has, above all that workers have heard of; and the forks so far."""
    at_least = max(heeded, crown.claimed(run)) + 1
    while True:
        incarnation, forks = tiers.begin(at_least)
        if crown.claim(run, incarnation):
            return incarnation, forks
        at_least = incarnation + 1


def _opening(left: Heirloom | None, past: Past) -> ev.RunStarted | ev.RunTakenOver:
    if left is None:
        return ev.RunStarted(left=past.left)
    return ev.RunTakenOver(
        found=left.found,
        published=past.published,
        ahead=past.ahead,
        verified=past.verified,
        next_worker=past.next_worker,
        next_gang=past.next_gang,
        left=past.left,
    )


def _past(path: Path, settings: RunSettings) -> Past:
    """What the journal tells of earlier lives; a driver on another machine has it from the persistent tier."""
    make_way(path, settings.run)
    if settings.checkpoint is not None and settings.checkpoint.persistent is not None:
        with closing(open_vault(settings.checkpoint.persistent, settings.run)) as vault:
            fetch_journal(path, vault.store, settings.run)
    return read_past(path)


def _announce(place: str, callbacks: Sequence[Callback]) -> None:
    """Where the live page is, for who looks at the progress line."""
    for one in callbacks:
        if isinstance(one, Progress) and place:
            one.say(f"live page: {place}")


def _copied_logs(logs: RunLogs, settings: RunSettings) -> Callable[[], None]:
    """Lines are copied to the persistent tier from the first to the last, if that is asked for; returns: do it now."""
    if settings.checkpoint is None or settings.checkpoint.persistent is None or not settings.logs.persistent:
        return lambda: None
    vault = logs.afterwards.enter_context(closing(open_vault(settings.checkpoint.persistent, settings.run)))
    copy = LogsCopy(logs, vault.store, settings.run, settings.incarnation)
    return logs.afterwards.enter_context(closing(copy)).copy_now


@contextmanager
def _copied(journal: Journal, settings: RunSettings) -> Iterator[Callable[[], None]]:
    """The journal is copied to the persistent tier, if there is one; yields: do it now, without waiting for it."""
    if settings.checkpoint is None or settings.checkpoint.persistent is None:
        yield lambda: None
        return
    vault = open_vault(settings.checkpoint.persistent, settings.run)
    who = settings.run, settings.incarnation
    copy = JournalCopy(journal.path, vault.store, *who, before_bytes=journal.before_bytes)
    with closing(vault), closing(copy):
        yield copy.copy_now


@contextmanager
def _heeding_sigterm(emit: Emit) -> Iterator[None]:
    """Whoever ends this process, such as `ray job stop`, leaves it seconds: the run saves what it has, and exits.

    The next SIGTERM does what it would have done without.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)

    def heed(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, before)
        emit(ev.ExitAsked(reason="the driver was told to end (SIGTERM)"))

    signal.signal(signal.SIGTERM, heed)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tiers(
    settings: RunSettings,
    emit: Emit,
    write: Callable[[Any], None],
    crash: Callable[[Exception], None],
    kept: Remembered,
) -> RayTiers | NoTiers:
    if settings.checkpoint is None:
        return NoTiers()
    return RayTiers(settings, ray.get_runtime_context().get_node_id(), emit, write, crash, kept)


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
        goodput=finished.goodput,
        run_dir=str(directory),
    )
