"""Effect. What the flight page says while torch.compile is at work in mid-step: nobody takes it for a hang."""

import subprocess
import sys

import pytest
import torch

from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.errors import StepMisuseError
from elastic.train.flight import read_page
from elastic.train.warming import undone
from tests.effects.idiom import Training
from tests.effects.solo import Solo


def test_a_shape_that_is_new_is_compiled_in_a_phase_of_its_own(solo):
    """Micro-batches of 2, and at the end of an epoch one of 1."""
    seen, phases = [], set()

    def backend(graph, inputs):
        page = read_page(solo.page.path)
        seen.append((page.step, page.phase, page.remark))
        return graph.forward

    def train_fn(session):
        training = Training(session)
        model = torch.compile(training.model, backend=backend, dynamic=False)
        for step in training.steps():
            with step:
                for batch in step:
                    step.backward(model(batch[0]).square().mean())
                    phases.add(read_page(solo.page.path).phase)
                training.apply(step)

    torch._dynamo.reset()
    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert seen == [(0, Flying.SLOW, "compiling"), (2, Flying.SLOW, "compiling")]
    assert phases == {Flying.COMPUTING}, "afterwards it is what it was"
    assert torch._dynamo.callback.callback_handler.start_callbacks == []


def test_a_reset_of_the_compiler_in_mid_run_changes_nothing(solo):
    """It takes all callbacks away."""
    seen = []

    def backend(graph, inputs):
        seen.append(read_page(solo.page.path).remark)
        return graph.forward

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            model = torch.compile(training.model, backend=backend, dynamic=False)
            with step:
                for batch in step:
                    step.backward(model(batch[0]).square().mean())
                training.apply(step)
            torch._dynamo.reset()

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert len(seen) >= 4 and set(seen) == {"compiling"}


class Net(torch.nn.Module):
    """What a forward changes: statistics, and random numbers."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.out = torch.nn.BatchNorm1d(3), torch.nn.Dropout(), torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.out(self.drop(self.norm(x)))


@pytest.fixture
def backend(solo):
    """Compiles nothing; attribute `seen`: the phase and the remark at each call."""

    def compiled(graph, inputs):
        page = read_page(solo.page.path)
        compiled.seen.append((page.phase, page.remark))
        return graph.forward

    torch._dynamo.reset()
    compiled.seen = []
    return compiled


def train(solo, backend, warm_up):
    """Returns the parameters, and the batch norm's statistics, that it ends with."""

    def train_fn(session):
        training = Training(session, Net().double())
        model = torch.compile(training.model, backend=backend, dynamic=True)
        warm_up(session, model)
        before = len(backend.seen)
        for step in training.steps(max_steps=2):  # the third one has a batch of one
            with step:
                for batch in step:
                    step.backward(model(batch[0]).square().mean())
                training.apply(step)
        return len(backend.seen) - before, training.parameters, training.model.norm.running_mean.clone()

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    return ended.value


def warm_up(session, model):
    drawn = torch.get_rng_state()
    with session.warming_up():
        model(torch.ones(2, 3, dtype=torch.float64)).square().mean().backward()
        assert model.norm.num_batches_tracked == 1
    assert model.norm.num_batches_tracked == 0 and torch.equal(drawn, torch.get_rng_state())
    assert all(param.grad is None for param in model.parameters())


def test_what_is_compiled_before_the_loop_is_not_compiled_in_a_step_and_changes_no_bit(solo, backend, tmp_path):
    (tmp_path / "cold").mkdir()
    cold = train(Solo(tmp_path / "cold"), backend, lambda session, model: None)
    torch._dynamo.reset()
    backend.seen.clear()
    warm = train(solo, backend, warm_up)
    assert cold[0] > 0 and warm[0] == 0, "compilations in steps"
    assert {remark for _, remark in backend.seen} == {"warming up"}
    assert all(map(torch.equal, warm[1], cold[1])) and torch.equal(warm[2], cold[2])


def test_a_cache_that_grows_meanwhile_is_no_state_and_stays():
    model = torch.nn.BatchNorm1d(2)
    model.register_buffer("cache", torch.zeros(1), persistent=False)
    with undone(model):
        model(torch.ones(3, 2))
        model.cache = torch.zeros(4)
    assert len(model.cache) == 4 and model.num_batches_tracked == 0


def test_warming_up_has_its_place(solo):
    """Before `prepare` there is no model, and in the loop the others wait."""

    def train_fn(session):
        refused = []

        def warm_up():
            try:
                with session.warming_up():
                    pass
            except StepMisuseError as error:
                refused.append(str(error))

        warm_up()
        training = Training(session)
        for step in training.steps(max_steps=1):
            warm_up()
            with step:
                training.compute(step)
                training.apply(step)
        return refused

    assert solo.run(train_fn).value == ["session.warming_up: use it between session.prepare and session.steps"] * 2


def test_what_nobody_uses_is_not_loaded_for_it():
    """It takes more than a second."""
    script = "import sys, torch, elastic.train.session; print('torch._dynamo' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.strip() == "False"
