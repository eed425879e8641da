"""Effect. From outside of a run: find its supervisor by name, and ask something of it."""

import math
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util import list_named_actors

from elastic.actors import token
from elastic.actors.cluster import connected
from elastic.actors.peer_source import namespace
from elastic.control import events as ev
from elastic.control.faults import Fault
from elastic.control.injecting import nodes_of
from elastic.control.state import Phase, RunState
from elastic.control.tuning import Tuning
from elastic.control.values import AS_BEFORE
from elastic.errors import ElasticError

_ANSWER_S = 10.0
_POLL_S = 0.2
_GAP_S = 2.0  # between the death of a supervisor and the start of the next one
_PREFIX, _SUFFIX = "elastic-", "-supervisor"


def supervisor_name(run: str) -> str:
    return f"{_PREFIX}{run}{_SUFFIX}"


def tune(
    run: str,
    *,
    lr_factor: float | None = None,
    batch_size: int | None = None,
    micro_batch_size: int | None = None,
    bucket_bytes: int | None = None,
    timeout_s: float = 60.0,
    address: str | None = None,
) -> int:
    """Change settings of a run that trains, between two steps, on all workers, without a restart.

    Args:
        run: name given to `fit`.
        lr_factor: on the learning rates that train_fn sets, at every step from now on; 1 puts them back.
        batch_size: samples of a step. micro_batch_size: samples of one forward.
        bucket_bytes: gradients are summed in buckets of about this size. None leaves a setting as it is.
        timeout_s: until the first step with these settings is stable.
        address: of the cluster; default: the connection there is, RAY_ADDRESS, the one on this machine.

    Returns:
        The first step (update, where steps have phases) that was computed with all of them.

    Raises:
        SettingError: a number is out of its range.
        NoClusterError: nothing answers at the address.
        ElasticError: no such run trains there, it refuses, or no step was told in time.
    """
    sizes = {"batch_size": batch_size, "micro_batch_size": micro_batch_size, "bucket_bytes": bucket_bytes}
    wanted = Tuning(lr_factor=lr_factor, **sizes)
    with connected(address):
        return _tune(run, wanted, timeout_s)


def rewind(
    run: str,
    to_step: int,
    *,
    skip: tuple[int, int] = AS_BEFORE,
    timeout_s: float = 600.0,
    address: str | None = None,
) -> int:
    """Send a run that trains back to an older step: the same processes load it, and go on from there.

    Args:
        run: name given to `fit`.
        to_step: the newest step at or before this one that can be restored is taken.
        skip: steps [begin, end) after it whose batches are left out: their samples count as consumed. It takes the
            place of what earlier rewinds left out; `NONE_LEFT_OUT`: no step is, `AS_BEFORE`: what they left out.
        timeout_s: until all workers have loaded it.
        address: of the cluster; default: the connection there is, RAY_ADDRESS, the one on this machine.

    Returns:
        The step after which the run goes on.

    Raises:
        NoClusterError: nothing answers at the address.
        ElasticError: no such run trains there, it refuses, no such step is kept, or it took too long.
    """
    with connected(address):
        deadline_s = time.monotonic() + timeout_s
        before = _call(run, "state", deadline_s)
        refused = _call(run, "ask", deadline_s, ev.RewindAsked(to_step=to_step, skip=skip))
        if refused:
            raise ElasticError(str(refused))
        while True:
            state = _call(run, "state", deadline_s)
            assert isinstance(state, RunState)
            if len(state.forks) > len(before.forks):
                return state.forks[-1].step
            if state.looks_in_vain > before.looks_in_vain:
                raise ElasticError(
                    f"the run {run} keeps no step at or before {to_step} and trains on: `elastic ls` shows what there "
                    "is, Checkpoint.keep says what is kept"
                )
            if time.monotonic() > deadline_s:
                raise ElasticError(f"the run {run} has not gone back within timeout_s={timeout_s:g}; it may yet")
            time.sleep(_POLL_S)


def pause(run: str, *, for_s: float | None = None, timeout_s: float = 60.0, address: str | None = None) -> None:
    """Have a run that trains stop at the end of a step; its workers keep their state until it is resumed.

    Args:
        run: name given to `fit`.
        for_s: after so many seconds it goes on by itself; None: as `Limits.hold_timeout_s` says.
        timeout_s: until all have stopped.
        address: of the cluster; default: the connection there is, RAY_ADDRESS, the one on this machine.

    Raises:
        NoClusterError: nothing answers at the address.
        ElasticError: no such run is there, it refuses, or it has not stopped in time.
    """
    with connected(address):
        deadline_s, ask_s = time.monotonic() + timeout_s, -math.inf
        while True:
            state = _call(run, "state", deadline_s)
            assert isinstance(state, RunState)
            is_held = state.care.hold is not None
            if is_held and ask_s > 0 and state.phase in (Phase.WAITING, Phase.STARTING):
                return
            if not (is_held and ask_s > 0) and time.monotonic() - ask_s > _GAP_S:  # a supervisor may die with it
                refused = _call(run, "ask", deadline_s, ev.PauseAsked(for_s=for_s))
                if refused:
                    raise ElasticError(str(refused))
                ask_s = time.monotonic()
            if time.monotonic() > deadline_s:
                raise ElasticError(
                    f"the run {run} was told, and has not stopped within timeout_s={timeout_s:g}: it will, at "
                    "the end of its step; raise the timeout where steps take longer"
                )
            time.sleep(_POLL_S)


def resume(run: str, *, timeout_s: float = 60.0, address: str | None = None) -> None:
    """Have a run go on that is paused.

    Args:
        run: name given to `fit`.
        timeout_s: until its supervisor has taken it in.
        address: of the cluster; default: the connection there is, RAY_ADDRESS, the one on this machine.

    Raises:
        NoClusterError: nothing answers at the address.
        ElasticError: no such run is there, it is not paused, or its supervisor does not answer.
    """
    with connected(address):
        refused = _call(run, "ask", time.monotonic() + timeout_s, ev.ResumeAsked())
        if refused:
            raise ElasticError(str(refused))


def run_dir(run: str, *, address: str | None = None) -> Path:
    """The directory of a run that trains, on the machine of its driver.

    Raises:
        NoClusterError: nothing answers at the address. ElasticError: no such run is there, or it does not answer.
    """
    with connected(address):
        given_up_s = time.monotonic() + _GAP_S
        while True:
            try:
                actor = ray.get_actor(supervisor_name(run), namespace(run))
                where: Any = ray.get(actor.where.remote(), timeout=_ANSWER_S)
                return Path(where[1]).parent
            except (ValueError, RayActorError, GetTimeoutError) as error:
                if time.monotonic() > given_up_s:
                    found = f"trains on this cluster; these do: {', '.join(_runs()) or 'none'}"
                    raise ElasticError(f"no run {run!r} {found}: it has ended, or has another name") from error
                time.sleep(_POLL_S)


def ask_fault(run: str, fault: Fault, is_forced: bool = False) -> str:
    """Have a fault injected into a run of the connected cluster; returns why it is refused, empty if it is not.

    What came of it is in `faults_told` later, under its name.

    Raises:
        ElasticError: no such run trains there, or it does not answer.
    """
    asked = ev.FaultAsked(fault=fault, is_forced=is_forced)
    return str(_call(run, "ask", time.monotonic() + _ANSWER_S, asked))


def faults_told(run: str) -> list[ev.FaultInjected | ev.FaultRefused]:
    """What came of the last faults of a run of the connected cluster. Raises ElasticError, as `ask_fault`."""
    told: list[ev.FaultInjected | ev.FaultRefused] = _call(run, "faults", time.monotonic() + _ANSWER_S)
    return told


def nodes_now(run: str) -> tuple[str, ...]:
    """The nodes of the connected cluster on which a run has workers. Raises ElasticError, as `ask_fault`."""
    state = _call(run, "state", time.monotonic() + _ANSWER_S)
    assert isinstance(state, RunState)
    return nodes_of(state)


def _tune(run: str, wanted: Tuning, timeout_s: float) -> int:
    """Ask until the state shows that it was heard: a supervisor may die with what it was asked."""
    deadline_s = time.monotonic() + timeout_s
    is_asked = False
    while True:
        state = _call(run, "state", deadline_s)
        assert isinstance(state, RunState)
        if is_asked and state.outcome is None and wanted.is_part_of(state.tuned):
            return state.tuned_from
        if not is_asked or not wanted.is_part_of(state.tuning):
            refused = _call(run, "ask", deadline_s, ev.TuneAsked(tuning=wanted))
            if refused:
                raise ElasticError(str(refused))
            is_asked = True
        if time.monotonic() > deadline_s:
            raise ElasticError(
                f"the run {run} was told ({wanted}), and no step with it was stable within timeout_s={timeout_s:g}: it "
                "still comes with the next generation; raise the timeout where steps take longer"
            )
        time.sleep(_POLL_S)


def _call(run: str, method: str, deadline_s: float, *arguments: Any) -> Any:
    """Ask its supervisor, or the next one where it dies meanwhile.

    Raises:
        ElasticError: there is none, it refuses, or it does not answer in time.
    """
    given_up_s = time.monotonic() + _GAP_S
    while True:
        try:
            actor = ray.get_actor(supervisor_name(run), namespace(run))
            where: Any = ray.get(actor.where.remote(), timeout=_ANSWER_S)
            secret = token.find(run, *where)
            return ray.get(actor.call.remote(secret, method, *arguments), timeout=_ANSWER_S)
        except RayTaskError as error:
            if isinstance(error.cause, ElasticError):
                raise ElasticError(str(error.cause)) from None
            raise
        except ValueError as error:
            if time.monotonic() > given_up_s:
                found = f"trains on this cluster; these do: {', '.join(_runs()) or 'none'}"
                raise ElasticError(f"no run {run!r} {found}: it has ended, or has another name") from error
            time.sleep(_POLL_S)
        except (RayActorError, GetTimeoutError) as error:
            if time.monotonic() > deadline_s:
                raise ElasticError(
                    f"the supervisor of the run {run} does not answer: {type(error).__name__}"
                ) from error
            time.sleep(_POLL_S)


def _runs() -> list[str]:
    """Names of the runs that train on the cluster."""
    names = [str(one["name"]) for one in list_named_actors(all_namespaces=True)]
    return sorted(
        one[len(_PREFIX) : -len(_SUFFIX)] for one in names if one.startswith(_PREFIX) and one.endswith(_SUFFIX)
    )
