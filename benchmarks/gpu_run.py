"""A run in this process and its children, without Ray; and a module that plays one, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic.actors.driver import Driver
from elastic.actors.journal import Journal
from elastic.actors.process_fleet import ProcessFleet
from elastic.actors.supervisor import Supervisor
from elastic.control.outcome import Ending
from elastic.control.state import RunState
from elastic.policies import Ladder
from elastic.settings import Limits, RunSettings, Scaling

DEADLINE_S = 600.0


def play(train_fn: Callable[[Any], Any], folder: Path, scaling: Scaling, **limits: float) -> None:
    """Play it to its end, on as many slots as it has replicas at most; one that fails ends this process with its story.

    Args:
        folder: where its journal goes.
    """
    settings = RunSettings(
        run=f"benchmark-gpu-run-{os.getpid()}",
        scaling=scaling,
        limits=Limits(**{"start_timeout_s": DEADLINE_S, **limits}),  # type: ignore[arg-type]
    )
    driver = Driver(Supervisor(RunState(settings=settings), Ladder()), Journal(folder), [])
    fleet = ProcessFleet(settings, train_fn, ["node"] * scaling.bounds[1], 0, driver.emit)
    try:
        finished = driver.run(fleet)
        if finished.outcome.ending is not Ending.SUCCEEDED:
            sys.exit(finished.outcome.message)
    finally:
        fleet.shutdown()


def play_apart(module: str, *arguments: str) -> None:
    """Have a module play one.

    Raises:
        RuntimeError: it failed; says how.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        raise RuntimeError(f"the run ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
