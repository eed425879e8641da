"""Effect. Memory that is touched before it is needed."""

import pytest
import torch

from elastic.train.landing import Landing
from elastic.train.tree import Slot


def slots(*shapes, dtype="float32"):
    return [Slot(path=str(number), dtype=dtype, shape=shape) for number, shape in enumerate(shapes)]


def test_tensors_of_the_reserved_state_fit_and_do_not_overlap():
    landing, state = Landing(), [torch.ones(3, 5), torch.ones(()), torch.ones(7, dtype=torch.int64)]
    landing.reserve(state, [])
    landed = [
        landing.empty(Slot(path="", dtype=str(one.dtype).removeprefix("torch."), shape=tuple(one.shape)))
        for one in state
    ]
    assert len({one.untyped_storage().data_ptr() for one in landed}) == 1
    for number, one in enumerate(landed):
        one.fill_(number)
    assert [(one == number).all().item() for number, one in enumerate(landed)] == [True] * 3
    assert all(one.data_ptr() % 64 == 0 for one in landed)


def test_the_moments_of_an_optimizer_that_has_not_stepped_fit_too():
    model, landing = torch.nn.Linear(50, 50), Landing()
    optimizer = torch.optim.AdamW(model.parameters())
    landing.reserve(model.state_dict().values(), [optimizer])
    shapes = [(50, 50), (50,)] * 3 + [()] * 2
    assert len({landing.empty(slot).untyped_storage().data_ptr() for slot in slots(*shapes)}) == 1


def test_what_does_not_fit_is_allocated_as_usual():
    landing = Landing()
    landing.reserve([torch.ones(4)], [])
    first, second = (landing.empty(slot) for slot in slots((4,), (4,)))
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


@pytest.mark.parametrize("is_released", [False, True])
def test_without_a_reservation_it_is_ordinary_memory(is_released):
    landing = Landing()
    if is_released:
        landing.reserve([torch.ones(4)], [])
        landing.release()
    landed = landing.empty(slots((4, 2), dtype="bfloat16")[0])
    assert (landed.shape, landed.dtype) == ((4, 2), torch.bfloat16)


def test_what_has_landed_outlives_the_reservation():
    landing = Landing()
    landing.reserve([torch.ones(4)], [])
    landed = landing.empty(slots((4,))[0])
    landed.fill_(3.0)
    landing.release()
    assert landed.tolist() == [3.0] * 4
