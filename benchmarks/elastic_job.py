"""The recovery benchmark's training in elastic; `python -m benchmarks.elastic_job JOB.json` is its driver."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import elastic
from benchmarks.training import BATCH, Ballast, Job, Rises, collate, new_model, new_optimizer
from elastic.policies import Kind, Ladder
from examples.bytes_gpt import StepLog, digest, loss_fn

_ENDLESS = 1 << 40


def make_train_fn(job: Job) -> Callable[[Any], None]:
    """What every worker runs."""

    def train_fn(session: Any) -> None:
        log = StepLog(job.log_folder, session.worker)
        model = session.prepare(new_model(job.seed))
        optimizer = new_optimizer(model)
        session.track(model=model, optimizer=optimizer, ballast=Ballast(job.state_bytes))
        log.write("started", model_id=id(model), optimizer_id=id(optimizer))
        batches = session.batches(Rises(), batch_size=BATCH, micro_batch_size=job.micro_batch, collate=collate)
        for step in session.steps(batches, max_steps=_ENDLESS):
            if job.is_over(step.index):
                break
            with step:
                place = {"step": step.index, "generation": step.generation, "attempt": step.attempt}
                for ids, x, y in step:
                    log.write("consumed", **place, rank=session.rank, ids=ids)
                    job.compute(job.workers[1])
                    step.backward(loss_fn(model, x, y))
                step.apply(optimizer)
                step.report(loss=step.loss)
                log.write("committed", **place, rank=session.rank, loss=float(step.loss))
        log.write("finished", digest=digest(model))
        if session.is_leader:
            torch.save(model.state_dict(), job.final_file)

    return train_fn


def main() -> None:
    """Drive one run to its end."""
    job = Job.read(sys.argv[1])
    elastic.fit(
        make_train_fn(job),
        policy=Ladder(straggler=Kind.REDEAL),
        scaling=elastic.Scaling(num_dp_replicas=job.workers, spares=job.spares),
        checkpoint=elastic.Checkpoint()
        if job.saves
        else None,  # as its documentation shows; the others keep checkpoints, too
        callbacks=[],
        name=job.name,
        seed=job.seed,
        run_dir=Path(job.folder) / "run",
        address=job.address,
    )


if __name__ == "__main__":
    main()
