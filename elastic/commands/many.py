"""Effect. Many simulated runs, on all processors of this machine."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

from elastic.policies import policy_of
from elastic.policies.table import BUILT_IN
from elastic.sim.ran import Ran
from elastic.sim.scenario import Scenario
from elastic.sim.study import simulate

T = TypeVar("T")
S = TypeVar("S")


def processors() -> int:
    return len(os.sched_getaffinity(0))


def spread(act: Callable[[S], T], over: Iterable[S], jobs: int) -> list[T]:
    """The answers, in order; in this process where one is enough. However this one ends, so do the others."""
    items = list(over)
    if jobs <= 1 or len(items) <= 1:
        return [act(item) for item in items]
    size = max(1, len(items) // (8 * jobs))
    context = get_context("spawn")
    listening, held = context.Pipe(duplex=False)
    with listening, held, ProcessPoolExecutor(min(jobs, len(items)), context, _end_with, (listening,)) as pool:
        try:
            return list(pool.map(act, items, chunksize=size))
        except BaseException:
            held.close()  # nobody wants their answers any more, and what they are at may take minutes
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_with(held: Connection) -> None:
    """This process ends when nobody holds the other end of the pipe; an interrupt is for the one who does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            held.recv()
        os._exit(1)

    threading.Thread(target=watch, name="elastic-parent", daemon=True).start()


def runs_of(scenario: Scenario, policy: str | None, seeds: int, jobs: int) -> list[Ran]:
    """Seeds 0 to seeds - 1; `policy`: "FILE.py:FUNCTION", a built-in policy's name, None for the ladder."""
    return spread(partial(_one, scenario, policy), range(seeds), jobs)


def _one(scenario: Scenario, policy: str | None, seed: int) -> Ran:
    if policy is None or policy in BUILT_IN:
        return simulate(scenario, seed, BUILT_IN[policy] if policy else None)
    from elastic.actors.policy_file import load_policy  # loads Ray, which takes seconds

    return simulate(scenario, seed, policy_of(load_policy(policy)))
