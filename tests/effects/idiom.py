"""Effect. A train_fn with the whole idiom of a step, the same training in a plain loop, and the comparison."""

import pytest
import torch
from torch import nn

from elastic.control import events as ev
from elastic.train.data import make_batches
from tests.effects.solo import SEED

STEPS = 4
SAMPLES, BATCH, MICRO = 13, 6, 2  # an epoch of 3 steps: 3, 3 and 1 micro-batches


class Numbers:
    """A dataset that remembers what was read."""

    def __init__(self, samples=SAMPLES):
        self.x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], index


class Training:
    """The pieces of a train_fn; `loop` is the idiom, with a hook at each place where something may go wrong."""

    def __init__(self, session, model=None):
        torch.manual_seed(3)
        self.session = session
        self.model = session.prepare(model or nn.Linear(3, 1).double())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
        session.track(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
        self.batches = session.batches(Numbers(), batch_size=BATCH, micro_batch_size=MICRO)

    def steps(self, max_steps=STEPS):
        return self.session.steps(self.batches, max_steps=max_steps)

    def loss(self, batch):
        return self.model(batch[0]).square().mean()

    def compute(self, step):
        for batch in step:
            step.backward(self.loss(batch))

    def apply(self, step):
        step.apply(self.optimizer, scheduler=self.scheduler)

    @property
    def parameters(self):
        return [p.detach().clone() for p in self.model.parameters()]


def nothing(step, training, place):
    """Goes wrong nowhere."""


def trained(hook=nothing, max_steps=STEPS):
    """A train_fn with the whole idiom; calls hook(step, training, place) at each place of it."""

    def train_fn(session):
        training = Training(session)
        for step in training.steps(max_steps):
            hook(step, training, "before")
            one_step(step, training, hook)
            hook(step, training, "after")
        return training.parameters

    return train_fn


def one_step(step, training, hook):
    """What is inside of its `with`."""
    with step:
        hook(step, training, "start")
        for batch in step:
            hook(step, training, "batch")
            step.backward(training.loss(batch))
            hook(step, training, "backward")
        hook(step, training, "reduced")
        step.report(loss=step.loss, index=step.index)
        training.apply(step)
        hook(step, training, "applied")


def reference(skipped=()):
    """The same training in a plain loop of one process: parameters, and the loss of each step."""
    torch.manual_seed(3)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    data = Numbers()
    plan = make_batches(
        data, batch_size=BATCH, micro_batch_size=None, seed=SEED, shuffle=True, collate=None
    ).plan  # the order alone matters here
    losses = []
    consumed = 0
    for index in range(STEPS):
        (whole,) = plan.cut(consumed, replicas=1)
        consumed += whole.count
        loss = model(data.x[plan.sample_indices(whole)]).square().mean()
        losses.append(float(loss.detach()))
        if index not in skipped:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    return [p.detach() for p in model.parameters()], losses


def assert_like_a_plain_loop(ended, skipped=()):
    """Same parameters, and every step reported once, in order."""
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    wanted, losses = reference(skipped)
    torch.testing.assert_close(ended.value, wanted, rtol=1e-12, atol=1e-12)
    assert ended.steps == list(range(STEPS))
    told = {report.commit.step: report.metrics for report in ended.reports if not report.skipped}
    assert {step: metrics["loss"] for step, metrics in told.items()} == pytest.approx(
        {step: loss for step, loss in enumerate(losses) if step not in skipped}, rel=1e-12
    )


def once(step_index, place, act):
    """A hook that acts at one place of one step, the first time only."""
    calls = []

    def hook(step, training, where):
        if (step.index, where) == (step_index, place) and not calls:
            calls.append(step)
            act(step, training)

    hook.calls = calls
    return hook


def raised(ended, name):
    """The sentence of the error that ended train_fn."""
    assert isinstance(ended.last, ev.TrainFnRaised), ended.last
    assert ended.last.summary.startswith(name), ended.last.traceback
    return ended.last.summary
