"""Effect. What the flight page says while torch.compile is at work in mid-step: nobody takes it for a hang."""

import subprocess
import sys

import torch

from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.train.flight import read_page
from tests.effects.idiom import Training


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


def test_what_nobody_uses_is_not_loaded_for_it():
    """It takes more than a second."""
    script = "import sys, torch, elastic.train.session; print('torch._dynamo' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert told.stdout.strip() == "False"
