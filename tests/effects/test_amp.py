"""Effect. Gradient scaling: a retry starts as if the failed attempt had never touched the scaler."""

import pytest
import torch
from torch import nn

from elastic.control import events as ev
from elastic.train.amp import ScalerState
from tests.effects.solo import Solo

STEPS = 3
CPU = torch.device("cpu")


def scaler_of(**options):
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1, **options)


def unscaled_once():
    """A scaler in the middle of a step: scaled, and unscaled already."""
    weight = nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), scaler_of()
    state = ScalerState(scaler, CPU)
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    return state, scaler, optimizer, weight


def test_an_optimizer_may_be_unscaled_again_after_a_restore():
    """Without it the retry is refused: this is what the restore is for."""
    state, scaler, optimizer, weight = unscaled_once()
    with pytest.raises(RuntimeError, match="unscale_.. has already been called"):
        scaler.unscale_(optimizer)
    state.restore()
    optimizer.zero_grad()
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    assert weight.grad.tolist() == [1.0, 1.0]


def test_scale_and_growth_are_restored():
    state, scaler, optimizer, _ = unscaled_once()
    before = {**scaler.state_dict()}
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2048.0
    state.restore()
    assert scaler.state_dict() == before


def test_a_state_may_be_restored_twice():
    """A step may fail more than once."""
    state, scaler, optimizer, weight = unscaled_once()
    for _ in range(2):
        state.restore()
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2048.0


def test_a_disabled_scaler_is_no_special_case():
    """`enabled=use_amp` is how most code is written."""
    ScalerState(scaler_of(enabled=False), CPU).restore()


def run(directory, hook=lambda step, place: None, poison=-1):
    """A run with unscaling and clipping; `poison` is a step whose gradients are infinite."""
    directory.mkdir()
    solo = Solo(directory, blame_grace_s=0.05)

    def train_fn(session):
        torch.manual_seed(0)
        model = session.prepare(nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = scaler_of()
        session.track(model=model, optimizer=optimizer, scaler=scaler)
        batches = session.batches(torch.randn(12, 3), batch_size=4, micro_batch_size=2)
        scales = []
        for step in session.steps(batches, max_steps=STEPS):
            with step:
                for batch in step:
                    loss = model(batch).square().mean()
                    step.backward(loss * float("inf") if step.index == poison else loss, scaler=scaler)
                scaler.unscale_(optimizer)
                hook(solo, step, "unscaled")
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                step.apply(optimizer, scaler=scaler)
                hook(solo, step, "applied")
            scales.append(scaler.get_scale())
        return [p.detach().clone() for p in model.parameters()], scales

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    return ended.value


@pytest.mark.parametrize("place", ["unscaled", "applied"])
@pytest.mark.parametrize("poison", [-1, 1], ids=["finite", "infinite"])
def test_a_retry_after_unscaling_gives_the_update_of_an_undisturbed_run(tmp_path, place, poison):
    """Bit for bit, and so are the scales, which grow in every step and shrink after infinities."""
    hits = []

    def hook(solo, step, where):
        if step.index == 1 and where == place and not hits:
            hits.append(where)
            solo.break_generation()

    clean = run(tmp_path / "clean", lambda *arguments: None, poison)
    disturbed = run(tmp_path / "disturbed", hook, poison)
    assert hits
    assert all(map(torch.equal, clean[0], disturbed[0]))
    assert clean[1] == [2048.0, 4096.0 if poison < 0 else 1024.0, 8192.0 if poison < 0 else 2048.0]
    assert disturbed[1][-1] == clean[1][-1]


def test_code_that_goes_on_after_a_skip_leaves_no_trace_in_the_scaler(solo):
    """It unscales, clips and applies as ever; the next step must find a scaler that was not unscaled yet."""

    def train_fn(session):
        model = session.prepare(nn.Linear(3, 1))
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), scaler_of()
        session.track(model=model, optimizer=optimizer, scaler=scaler)
        for step in session.steps(session.batches(torch.randn(12, 3), batch_size=4), max_steps=STEPS):
            with step:
                for batch in step:
                    if step.index == 1:
                        step.skip("no")
                        break
                    step.backward(model(batch).square().mean(), scaler=scaler)
                scaler.unscale_(optimizer)
                step.apply(optimizer, scaler=scaler)
        return scaler.get_scale()

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert ended.value == 1024.0 * 2 ** (STEPS - 1)
