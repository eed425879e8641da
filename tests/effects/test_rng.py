"""Effect. Random state: what a micro-batch draws follows from (seed, step, micro-batch) and nothing else."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from elastic.train import rng

DRAWS = {
    "python": lambda: random.random(),
    "numpy": lambda: float(np.random.rand()),
    "torch": lambda: float(torch.rand((), dtype=torch.float64)),
    "dropout": lambda: tuple(nn.functional.dropout(torch.ones(64)).tolist()),
}


@pytest.fixture(params=DRAWS, ids=str)
def draw(request):
    return DRAWS[request.param]


def at(place, draw):
    rng.seed_all(*place)
    return [draw() for _ in range(3)]


def test_draws_at_one_place_are_the_same_whatever_came_before(draw):
    """A retry, a joiner and the replica that died draw alike."""
    first = at((1, 2, 3), draw)
    for _ in range(17):
        draw()
    at((1, 2, 4), draw)
    assert at((1, 2, 3), draw) == first


def test_draws_differ_from_place_to_place(draw):
    """Neighbouring seeds, steps and micro-batches share no stream; nor do a step's body and its micro-batches."""
    places = [(seed, step, micro) for seed in (0, 1) for step in (0, 1, 2) for micro in (rng.BODY, 0, 1, 2)]
    assert len({tuple(at(place, draw)) for place in places}) == len(places)


def test_draws_within_a_place_are_no_constant(draw):
    assert len(set(at((1, 2, 3), draw))) == 3


def test_a_micro_batch_does_not_depend_on_who_computes_it(draw):
    """Dealt to one replica or to several, in whatever order, each micro-batch draws the same."""
    alone = {micro: at((5, 9, micro), draw) for micro in range(6)}
    by_others = {micro: at((5, 9, micro), draw) for micro in (4, 1, 5, 0, 3, 2)}
    assert alone == by_others
