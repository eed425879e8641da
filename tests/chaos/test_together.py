"""Effect. All at once: phases, weights, a scaler, evaluation, votes, sums in order, and faults."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.chaos.group import Training, run
from tests.chaos.saboteur import Sabotage, Saboteur, Samples

pytestmark = pytest.mark.timeout(180)
STEPS, PHASES, POISON = 8, 2, 17


def everything(session: Any, *, folder: Path, plan: tuple[Sabotage, ...], steps: int, **_: Any) -> tuple[Any, Any]:
    """Returns digests of all state, and the results of the last evaluation; sample POISON's loss is infinite."""
    saboteur = Saboteur(plan, folder)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 6))
    session.prepare(model, bucket_bytes=200, digest_steps=1, reproducible=True)
    turns = [torch.optim.Adam(model[place].parameters(), lr=1e-2) for place in (0, 4)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
    session.track(model=model, first=turns[0], second=turns[1], scaler=scaler)

    def evaluate(evaluation: Any) -> dict[str, float]:
        saboteur.at("evaluating", session.rank, evaluation.step, session.generation)
        errors = [(model(x.float()) - x).square().mean() for _, x in evaluation.batches(Samples(), batch_size=20)]
        (total,) = evaluation.sum(len(errors))
        return {"batches": total, "weight": float(model[0].weight.detach().double().sum())}

    session.evaluate_every(2, evaluate)
    batches = session.batches(Samples(), batch_size=12, micro_batch_size=2)
    for step in session.steps(batches, max_steps=steps, phases=PHASES):
        with step:
            for number, (ids, x) in enumerate(step):
                if number == 1:
                    saboteur.at("pending", session.rank, step.number, step.generation)
                loss = (model(x.float()) - x.float()).square().mean()
                spoiled = POISON in ids and step.phase == 0
                step.backward(loss * float("inf") if spoiled else loss, scaler=scaler, weight=float(1 + ids[0] % 3))
            saboteur.at("reduced", session.rank, step.number, step.generation)
            scaler.unscale_(turns[step.phase])
            nn.utils.clip_grad_norm_(model[4 * step.phase].parameters(), 0.5)
            step.apply(turns[step.phase], scaler=scaler)
            step.report(loss=step.loss)
    digests = session._replica.tracked.digests()
    del digests["elastic.cursor"]  # it holds the number of replicas
    return digests, session.evaluated


def test_all_at_once(tmp_path: Path) -> None:
    """A second look at a loss, two kills, one of them in an evaluation: the bits of a fault-free run of two."""
    plan = [Sabotage(point="evaluating", rank=1, step=3), Sabotage(point="pending", rank=1, step=13, delay_s=0.1)]
    training = Training(function=everything)
    clean = run(tmp_path / "clean", steps=STEPS, replicas=(1, 2), slots=2, training=training)
    story = run(tmp_path / "story", *plan, steps=STEPS, replicas=(1, 4), slots=4, training=training)
    assert story.fired == {one.name for one in plan} and len(story.killed) == len(plan)
    assert story.finished.state.world_sizes == (4, 3, 2)
    assert story.finished.value == clean.finished.value
    for one in (clean, story):
        assert [report.commit.step for report in one.reports] == list(range(STEPS * PHASES))
        assert {report.commit.attempt for report in one.reports} == {1, 2}
