"""A run whose observability is switched while it trains: its driver, and what its workers do.

`python -m benchmarks.switched JOB.json SECONDS BLOCK_S` is the driver; `benchmarks/observability.py` starts it.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.quadruples import Does, does_at, planned
from benchmarks.training import Job, Rises, new_model
from examples.bytes_gpt import loss_fn

SPIN_S = 250e-6  # the positive control, half a percent of a step of 50 ms
_ENDLESS = 1 << 40
_MICRO_BATCH = 2


class Switch:
    """What is to be done now, by the clock that all processes of a machine share.

    Args:
        folder: of the run; the moment at which the first block begins is written there, once the run has settled.
    """

    def __init__(self, folder: str, seconds: float, block_s: float) -> None:
        self._file, self._blocks = Path(folder) / "begin", planned(seconds, block_s)
        self._began_s: float | None = None

    def begin(self, at_s: float) -> None:
        """For all who have the same folder."""
        (partial := self._file.with_suffix(".partial")).write_text(repr(at_s))
        partial.rename(self._file)

    @property
    def does(self) -> Does:
        if self._began_s is None and self._file.exists():
            self._began_s = float(self._file.read_text())
        return Does.SEEN if self._began_s is None else does_at(self._blocks, time.monotonic() - self._began_s)

    @property
    def is_seen(self) -> bool:
        return self.does is not Does.BARE


def make_train_fn(job: Job, switch: Switch) -> Callable[[Any], None]:
    """Steps of a set length; the first worker writes down when each is committed."""

    def train_fn(session: Any) -> None:
        model = session.prepare(new_model(job.seed))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        session.track(model=model, optimizer=optimizer)
        batches = session.batches(Rises(), batch_size=_MICRO_BATCH * job.workers[1], micro_batch_size=_MICRO_BATCH)
        with Path(job.folder, "commits").open("a", buffering=1) as log:
            for step in session.steps(batches, max_steps=_ENDLESS):
                until_s = time.monotonic() + job.step_s
                if job.is_over(step.index):
                    break
                with step:
                    for _, x, y in step:
                        time.sleep(max(0.0, until_s - time.monotonic()))  # as what is computed elsewhere
                        if session.rank == 0 and switch.does is Does.SPUN:
                            spin(SPIN_S)
                        step.backward(loss_fn(model, x, y))
                    step.apply(optimizer)
                    step.report(loss=step.loss)
                    if session.rank == 0:
                        log.write(f"{time.monotonic()}\n")

    return train_fn


def spin(seconds: float) -> None:
    """Compute for as long; in one worker alone, since the others wait for it, and there may be fewer cores."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass


def only_seen(switch: Switch, does: Callable[..., Any], instead: Any) -> Callable[..., Any]:
    """The same, where observability is on."""
    return lambda *told: does(*told) if switch.is_seen else instead


def make_switched(switch: Switch) -> None:
    """From now on this process keeps its ledger and its journal, and hands out metrics, only where that is on."""
    from elastic import api
    from elastic.actors import driver, journal, ray_metrics, teller
    from elastic.ledger import ledger

    def kind(parent: type, **instead: Any) -> type:
        methods = {name: only_seen(switch, getattr(parent, name), other) for name, other in instead.items()}
        return type(parent.__name__, (parent,), methods)

    class Ledger(kind(ledger.Ledger, feed=True)):  # type: ignore[misc]
        last = 0.0

        @property
        def goodput(self) -> float:
            self.last = super().goodput if switch.is_seen else self.last
            return self.last

    replaced: dict[Any, dict[str, Any]] = {
        api: {
            "Journal": kind(journal.Journal, write=None),
            "RayMetrics": kind(ray_metrics.RayMetrics, on_step=None, on_state=None),
        },
        teller: {"Ledger": Ledger},
        driver: {
            "happened": only_seen(switch, driver.happened, ()),
            "line_of": only_seen(switch, driver.line_of, {}),
        },
    }
    for module, names in replaced.items():
        for name, thing in names.items():
            assert hasattr(module, name), f"{module.__name__} has no {name} any more"
            setattr(module, name, thing)


def main() -> None:
    """Drive the run."""
    import elastic

    job, (seconds, block_s) = Job.read(sys.argv[1]), map(float, sys.argv[2:])
    switch = Switch(job.folder, seconds, block_s)
    make_switched(switch)
    result = elastic.fit(
        make_train_fn(job, switch),
        scaling=elastic.Scaling(num_dp_replicas=job.workers[1], spares=0),
        callbacks=[],
        name=job.name,
        run_dir=Path(job.folder) / "run",
        address=job.address,
    )
    if result.incidents:
        raise RuntimeError(f"not a measurement of undisturbed steps: {result.incidents}")


if __name__ == "__main__":
    main()
