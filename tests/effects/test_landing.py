"""Effect. Memory that is touched before it is needed."""

import io

import pytest
import torch

from elastic.train.landing import Landing
from elastic.train.tracked import Tracked
from elastic.train.tree import Slot
from elastic.train.tree import slots as slots_in


def slots(*shapes, dtype="float32"):
    return [Slot(path=str(number), dtype=dtype, shape=shape) for number, shape in enumerate(shapes)]


def is_touched(tensor: torch.Tensor) -> bool:
    """What is reserved is filled with ones."""
    return bool((tensor.view(-1).view(torch.uint8) == 1).all())


def test_tensors_of_the_reserved_state_fit_and_do_not_overlap():
    landing, state = Landing(), [torch.ones(3, 5), torch.ones(()), torch.ones(7, dtype=torch.int64)]
    landing.reserve(state, [])
    landed = [
        landing.empty(Slot(path="", dtype=str(one.dtype).removeprefix("torch."), shape=tuple(one.shape)))
        for one in state
    ]
    assert all(is_touched(one) for one in landed)
    for number, one in enumerate(landed):
        one.fill_(number)
    assert [(one == number).all().item() for number, one in enumerate(landed)] == [True] * 3
    assert all(one.data_ptr() % 64 == 0 for one in landed)
    assert [one.untyped_storage().nbytes() for one in landed] == [one.nbytes for one in landed]


def test_the_moments_of_an_optimizer_that_has_not_stepped_fit_too():
    model, landing = torch.nn.Linear(50, 50), Landing()
    optimizer = torch.optim.AdamW(model.parameters())
    landing.reserve(model.state_dict().values(), [optimizer])
    shapes = [(50, 50), (50,)] * 3 + [()] * 2
    assert all(is_touched(landing.empty(slot)) for slot in slots(*shapes))


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
    (slot,) = slots((4, 2), dtype="bfloat16")
    landed = landing.empty(slot)
    assert (landed.shape, landed.dtype) == ((4, 2), torch.bfloat16)


def test_what_has_landed_outlives_the_reservation():
    landing = Landing()
    landing.reserve([torch.ones(4)], [])
    landed = landing.empty(slots((4,))[0])
    landed.fill_(3.0)
    landing.release()
    assert landed.tolist() == [3.0] * 4


def test_what_an_optimizer_keeps_of_it_can_be_saved_and_holds_no_other_memory():
    """Moments of one dtype and counts of another, beside a model that is copied out."""
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        model, landing = torch.nn.Linear(50, 50, dtype=dtype), Landing()
        optimizer = torch.optim.AdamW(model.parameters())
        tracked = Tracked()
        tracked.add({"model": model, "optimizer": optimizer})
        landing.reserve(tracked.flatten().tensors, tracked.optimizers)
        donor = torch.nn.Linear(50, 50, dtype=dtype)
        theirs = torch.optim.AdamW(donor.parameters())
        donor(torch.ones(1, 50, dtype=dtype)).sum().backward()
        theirs.step()
        other = Tracked()
        other.add({"model": donor, "optimizer": theirs})
        given = other.flatten()
        pairs = zip(slots_in(given.skeleton), given.tensors, strict=True)
        landed = [landing.empty(slot).copy_(one) for slot, one in pairs]
        tracked.install(given.skeleton, landed)
        landing.release()
        file, plain = io.BytesIO(), io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        torch.save(theirs.state_dict(), plain)
        assert abs(file.tell() - plain.tell()) < 1024, "the model is as large as a moment"
        file.seek(0)
        optimizer.load_state_dict(torch.load(file))
        assert tracked.digests() == other.digests()


def test_what_fits_lands_in_the_receivers_own_tensors_and_the_rest_beside():
    landing, lent = Landing(), {"/a": torch.zeros(3, 4), "/b": torch.zeros(5)}
    landing.reserve([torch.ones(7)], [])
    over = landing.over(lent)
    wanted = [Slot("/a", "float32", (3, 4)), Slot("/b", "float64", (5,)), Slot("/c", "float32", (7,))]
    landed = [over.empty(slot) for slot in wanted]
    assert landed[0] is lent["/a"]
    assert landed[1].data_ptr() != lent["/b"].data_ptr()
    assert is_touched(landed[2])


def test_each_of_its_own_tensors_is_lent_once():
    lent, slot = {"/a": torch.zeros(4)}, Slot("/a", "float32", (4,))
    over = Landing().over(lent)
    assert [over.empty(slot) is lent["/a"] for _ in range(2)] == [True, False]
