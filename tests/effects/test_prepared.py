"""Effect. A worker of a replica of several, alone: it waits for the decision, and its waits are told as waits."""

import pytest
import torch

from elastic.errors import AttemptBroken
from elastic.train.link import Link
from elastic.train.sharded import is_gathering, local, spread
from tests.effects.helpers import LONG_S, Running, eventually
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
