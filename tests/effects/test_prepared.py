"""Effect. A worker of a replica of several, alone: it waits for the decision, and its waits are told as waits."""

from functools import partial

import pytest
import torch

from elastic.control import events as ev
from elastic.errors import AttemptBroken
from elastic.train.link import Link
from elastic.train.session import Session
from elastic.train.sharded import is_gathering, local, spread
from tests.effects.helpers import LONG_S, Running, eventually
from tests.effects.idiom import Training
from tests.effects.solo import Solo
from tests.effects.test_link import commit, enter, parked, view


def prepared(applied: list[int]) -> tuple[Link, Running]:
    """Frozen while it was open whether the rest of its replica had come to the apply of step 0."""
    link = Link("w0", lease_s=LONG_S)
    link.arrive(parked())
    enter(link, 1)

    def apply() -> None:
        with link.applying(commit(0), lambda: False):
            applied.append(link.state.commit.step)

    training = Running(apply)
    eventually(lambda: link.state.prepared, "it has given its word")
    answer = link.freeze(1)
    assert answer is not None
    assert (answer.commit.step, answer.prepared) == (-1, commit(0))
    return link, training


def test_it_applies_what_the_next_generation_resumes_from() -> None:
    applied: list[int] = []
    link, training = prepared(applied)
    assert not training.is_over and not applied
    link.form(view(2, commit(0)))
    assert training.error() is None
    assert applied == [-1]
    assert (link.state.commit, link.state.prepared) == (commit(0), None)


@pytest.mark.parametrize("resume", [commit(-1), commit(1)], ids=["the one before", "a later one"])
def test_it_drops_what_the_next_generation_does_not_resume_from(resume) -> None:
    applied: list[int] = []
    link, training = prepared(applied)
    link.form(view(2, resume))
    assert isinstance(training.error(), AttemptBroken)
    assert applied == []


def test_what_it_was_to_apply_is_dropped_for_good_when_it_is_called_to_something_else() -> None:
    """Its sums are gone; a driver that takes it for one who could apply them yet, from before, is told."""
    applied: list[int] = []
    link, training = prepared(applied)
    link.restore(commit(-1), 1)
    assert isinstance(training.error(), AttemptBroken) and not applied
    assert link.wait_for_orders() == commit(-1)
    link.answer_restore(ev.RestoreRefused(worker="w0", commit=commit(-1), reason="nothing there"))
    assert link.state.prepared is None
    link.form(view(2, commit(0)))
    assert link.lacks(view(2, commit(0))) == "update 0"
    assert link.freeze(2) is not None
    assert (link.state.commit.step, link.state.prepared) == (-1, None)


def test_it_does_not_wait_when_it_is_dismissed() -> None:
    applied: list[int] = []
    link, training = prepared(applied)
    link.dismiss()
    assert isinstance(training.error(), AttemptBroken)
    assert applied == []


def test_a_plain_tensor_is_its_own_part() -> None:
    tensor = torch.zeros(3)
    assert local(tensor) is tensor
    assert spread(tensor, tensor) is tensor
    assert not is_gathering(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("is_replaced", [True, False])
def test_what_hangs_on_an_update_that_was_replaced_is_never_run(solo: Solo, is_replaced: bool) -> None:
    """It is told when it comes back; an update that is a part of the history is told as stable."""
    told: list[int] = []

    def train_fn(session: Session) -> None:
        training = Training(session)
        for step in training.steps(3):
            with step:
                training.compute(step)
                step.on_commit(partial(told.append, step.index))
                training.apply(step)
            if step.index == 1:
                solo.replaced = ("w0",) if is_replaced else ()
                solo.break_generation()

    ended = solo.run(train_fn)
    assert told == ([0, 2] if is_replaced else [0, 1, 2])
    assert ended.steps == told
