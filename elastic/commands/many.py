"""Effect. Many simulated runs, on all processors of this machine."""

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

from elastic.commands.counting import Count
from elastic.policies import policy_of
from elastic.policies.table import BUILT_IN
from elastic.sim.ran import Ran
from elastic.sim.scenario import Scenario
from elastic.sim.study import simulate

T = TypeVar("T")
S = TypeVar("S")

_YOUNG = 100_000  # new values, after which cycles are looked for: a world makes many values, and few cycles
_CHUNKS = 64  # a process is given its share in so many parts: fewer leave one at work when the others are done


def processors() -> int:
    return len(os.sched_getaffinity(0))


def spread(act: Callable[[S], T], over: Iterable[S], jobs: int, label: str = "", count: Count | None = None) -> list[T]:
    """The answers, in order; in this process where one is enough. However this one ends, so do the others.

    Args:
        label: what is counted. count: tells how many are done; None: nobody does.
    """
    items = list(over)
    if jobs <= 1 or len(items) <= 1:
        return _counted(map(act, items), len(items), label, count)
    size = max(1, len(items) // (_CHUNKS * jobs))
    context = get_context("spawn")
    listening, held = context.Pipe(duplex=False)
    with listening, held, ProcessPoolExecutor(min(jobs, len(items)), context, _begin, (listening,)) as pool:
        try:
            return _counted(pool.map(act, items, chunksize=size), len(items), label, count)
        except BaseException:
            held.close()  # nobody wants their answers any more, and what they are at may take minutes
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _counted(answers: Iterable[T], total: int, label: str, count: Count | None) -> list[T]:
    if count is None:
        return list(answers)
    found = []
    with count.of(label, total) as another:
        for answer in answers:
            found.append(answer)
            another()
    return found


def _begin(held: Connection) -> None:
    """This process ends when nobody holds the other end of the pipe; an interrupt is for the one who does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(_YOUNG, 50, 100)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            held.recv()
        os._exit(1)

    threading.Thread(target=watch, name="elastic-parent", daemon=True).start()


Wanted = tuple[Scenario, str | None]  # under a policy: "FILE.py:FUNCTION", a built-in one's name, None for the ladder


def runs_of(
    wanted: Sequence[Wanted], seeds: int, jobs: int, label: str = "", count: Count | None = None
) -> list[list[Ran]]:
    """For each of these: seeds 0 to seeds - 1."""
    each = [(scenario, policy, seed) for scenario, policy in wanted for seed in range(seeds)]
    runs = spread(_one, each, jobs, label, count)
    return [runs[first : first + seeds] for first in range(0, len(runs), seeds)]


def _one(of: tuple[Scenario, str | None, int]) -> Ran:
    scenario, policy, seed = of
    if policy is None or policy in BUILT_IN:
        return simulate(scenario, seed, BUILT_IN[policy] if policy else None)
    from elastic.actors.policy_file import load_policy  # loads Ray, which takes seconds

    return simulate(scenario, seed, policy_of(load_policy(policy)))
