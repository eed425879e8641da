"""Effect. From outside of a run: find its supervisor by name, and ask something of it."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, GetTimeoutError, RayActorError, RayTaskError
from ray.util import list_named_actors

from elastic.actors import token
from elastic.actors.cluster import connected
from elastic.actors.peer_source import namespace
from elastic.control import events as ev
from elastic.control.faults import Fault
from elastic.control.injecting import nodes_of
from elastic.control.state import Phase, RunState
from elastic.control.tuning import Tuning
from elastic.control.values import AS_BEFORE, Fork
from elastic.errors import ElasticError, SettingError

_GONE = (RayActorError, ActorUnschedulableError, GetTimeoutError)
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

    def is_tuned(state: RunState) -> bool:
        return state.outcome is None and state.tuned is not None and wanted.is_part_of(state.tuned)

    late = (
        f"the run {run} was told ({wanted}), and no step with it was stable within timeout_s={timeout_s:g}: it still "
        "comes with the next generation; raise the timeout where steps take longer"
    )
    with connected(address):
        wish = ev.TuneAsked(tuning=wanted)
        state = _carried_out(run, wish, timeout_s, lambda state: wanted.is_part_of(state.tuning), is_tuned, late)
        return state.tuned_from


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
        before = _state(run, time.monotonic() + timeout_s)

        def gone_back(state: RunState) -> Fork | None:
            """Not where the run went on from a later step, under a new driver that has not heard of this."""
            new = (fork for fork in state.forks if fork not in before.forks)
            return next((fork for fork in new if 0 <= fork.step <= to_step), None)

        def is_over(state: RunState) -> bool:
            return gone_back(state) is not None or state.looks_in_vain > before.looks_in_vain

        def is_heard(state: RunState) -> bool:
            return state.restore is not None or is_over(state)

        late = f"the run {run} has not gone back within timeout_s={timeout_s:g}; it may yet"
        state = _carried_out(run, ev.RewindAsked(to_step=to_step, skip=skip), timeout_s, is_heard, is_over, late)
        if (fork := gone_back(state)) is not None:
            return fork.step
        raise ElasticError(
            f"the run {run} keeps no step at or before {to_step} and trains on: `elastic ls` shows what there is, "
            "Checkpoint.keep says what is kept"
        )


def pause(run: str, *, for_s: float | None = None, timeout_s: float = 60.0, address: str | None = None) -> None:
    """Have a run that trains stop at the end of a step; its workers keep their state until it is resumed.

    Args:
        run: name given to `fit`.
        for_s: after so many seconds it goes on by itself; None: as `Limits.hold_timeout_s` says.
        timeout_s: until all have stopped.
        address: of the cluster; default: the connection there is, RAY_ADDRESS, the one on this machine.

    Raises:
        SettingError: for_s is out of its range.
        NoClusterError: nothing answers at the address.
        ElasticError: no such run is there, it refuses, or it has not stopped in time.
    """

    if for_s is not None and not 0 < for_s < math.inf:
        raise SettingError(f"for_s={for_s} must be a positive number of seconds; None: as Limits.hold_timeout_s says")

    def is_held(state: RunState) -> bool:
        return state.care.hold is not None

    late = (
        f"the run {run} was told, and has not stopped within timeout_s={timeout_s:g}: it will, at the end of its step; "
        "raise the timeout where steps take longer"
    )
    with connected(address):
        stopped = (Phase.WAITING, Phase.STARTING)
        wish = ev.PauseAsked(for_s=for_s)
        _carried_out(run, wish, timeout_s, is_held, lambda state: is_held(state) and state.phase in stopped, late)


def resume(run: str, *, timeout_s: float = 60.0, address: str | None = None) -> None:
    """Have a run go on that is paused.

    Args:
        run: name given to `fit`.
        timeout_s: until it is paused no more.
        address: of the cluster; default: the connection there is, RAY_ADDRESS, the one on this machine.

    Raises:
        NoClusterError: nothing answers at the address.
        ElasticError: no such run is there, it is not paused, or is still after that time.
    """

    def is_free(state: RunState) -> bool:
        return state.care.hold is None

    late = f"the run {run} was told, and is paused still after timeout_s={timeout_s:g}: does its driver run?"
    with connected(address):
        _carried_out(run, ev.ResumeAsked(), timeout_s, is_free, is_free, late)


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
            except ValueError as error:
                if time.monotonic() > given_up_s:
                    raise _no_run(run) from error
            except _GONE as error:
                if time.monotonic() > given_up_s:
                    raise _no_answer(run, error, "ask again") from error
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
    return nodes_of(_state(run, time.monotonic() + _ANSWER_S))


def _carried_out(
    run: str,
    wish: ev.Event,
    timeout_s: float,
    is_heard: Callable[[RunState], bool],
    is_done: Callable[[RunState], bool],
    late: str,
) -> RunState:
    """Ask until the state shows that it was heard: a supervisor may die with what it was asked. Stay until it is done.

    Raises:
        ElasticError: it is refused, or not done in time: `late`; or as `_call`.
    """
    deadline_s, asked_s = time.monotonic() + timeout_s, -math.inf
    while True:
        state, is_asked = _state(run, deadline_s), asked_s > -math.inf
        if is_asked and is_done(state):
            return state
        if not is_asked or (time.monotonic() - asked_s > _GAP_S and not is_heard(state)):
            refused = _call(run, "ask", deadline_s, wish)
            if refused and not (is_asked and is_heard(_state(run, deadline_s))):  # else it was heard just now
                raise ElasticError(str(refused))
            asked_s = time.monotonic()
        if time.monotonic() > deadline_s:
            raise ElasticError(late)
        time.sleep(_POLL_S)


def _state(run: str, deadline_s: float) -> RunState:
    """Where the run stands. Raises ElasticError, as `_call`."""
    state = _call(run, "state", deadline_s)
    assert isinstance(state, RunState)
    return state


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
                raise _no_run(run) from error
        except _GONE as error:
            if time.monotonic() > deadline_s:
                raise _no_answer(run, error, "ask again, or give it longer (timeout_s)") from error
        time.sleep(_POLL_S)


def _no_run(run: str) -> ElasticError:
    there = ", ".join(_runs()) or "none"
    return ElasticError(f"no run {run!r} trains on this cluster; these do: {there}: it has ended, or has another name")


def _no_answer(run: str, error: Exception, what_to_do: str) -> ElasticError:
    return ElasticError(
        f"the supervisor of the run {run} does not answer ({type(error).__name__}): where it died, the driver starts "
        f"the next one within seconds: {what_to_do}"
    )


def _runs() -> list[str]:
    """Names of the runs that train on the cluster."""
    names = [str(one["name"]) for one in list_named_actors(all_namespaces=True)]
    return sorted(
        one[len(_PREFIX) : -len(_SUFFIX)] for one in names if one.startswith(_PREFIX) and one.endswith(_SUFFIX)
    )
