"""Effect. State as a tree of tensors and scalars: it comes back as it went, and its digest sees every byte."""

import enum
import math

import numpy as np
import pytest
import torch

from elastic.errors import StateError
from elastic.train import tree

TREE = {
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.arange(6.0).view(2, 3)}, 7: {}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 7], "foreach": None, "nesterov": False}],
    },
    "half": torch.tensor([1.5, -2.25]).bfloat16(),
    "empty": torch.zeros(0, 4),
    "flags": torch.tensor([True, False]),
    "whole": torch.tensor([2**62, -1]),
    "complex": torch.tensor([1 + 2j]),
    "strided": torch.arange(6.0).view(2, 3).t(),
    "text": "Grüße\n",
    "huge": 2**80,
    "nothing": [],
    1.5: True,
}


def same(a, b) -> bool:
    """Equal in type, key order, and bits."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        keys = [(type(k), k) for k in a] == [(type(k), k) for k in b]
        return isinstance(b, dict) and keys and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_a_tree_comes_back_as_it_went():
    """Keys keep their types, tuples stay tuples, dtypes and shapes stay; tensors are the same objects' data."""
    flat = tree.flatten(TREE)
    back = tree.unflatten(flat.skeleton, flat.tensors)
    assert same(back, TREE)
    assert back["half"].data_ptr() == TREE["half"].data_ptr()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 1e-320, 0.1])
def test_floats_travel_exactly(value):
    flat = tree.flatten({"x": value})
    (back,) = tree.unflatten(flat.skeleton, []).values()
    assert np.float64(back).tobytes() == np.float64(value).tobytes()


def test_a_number_of_another_kind_travels_as_the_number_that_it_is():
    """Whoever has it, and whoever got it, hold the same then."""
    size = enum.IntEnum("Size", {"SMALL": 3}).SMALL
    given, plain = {"lr": np.float64(0.1), "size": size}, {"lr": 0.1, "size": 3}
    flat = tree.flatten(given)
    back = tree.unflatten(flat.skeleton, [])
    assert back == plain and {type(one) for one in back.values()} == {float, int}
    assert tree.digest(flat) == tree.digest(tree.flatten(plain))


def test_slots_say_where_each_tensor_goes():
    """In the order of the tensors, with memory of the right kind."""
    flat = tree.flatten(TREE)
    slots = tree.slots(flat.skeleton)
    assert [slot.path for slot in slots][:3] == ["/optimizer/state/0/step", "/optimizer/state/0/exp_avg", "/half"]
    for slot, tensor in zip(slots, flat.tensors, strict=True):
        memory = slot.empty()
        assert (memory.dtype, memory.shape) == (tensor.dtype, tensor.shape)


def test_parameters_travel_without_their_history():
    flat = tree.flatten({"p": torch.nn.Parameter(torch.ones(2))})
    assert not flat.tensors[0].requires_grad


@pytest.mark.parametrize(
    "state, path, kind",
    [
        ({"a": {"b": [1, object()]}}, "/a/b/1", "object"),
        ({"a": ({1, 2},)}, "/a/0", "set"),
        ({"x": np.float32(1.0)}, "/x", "float32"),
        ({"x": b"bytes"}, "/x", "bytes"),
        ({3: {"f": print}}, "/3/f", "builtin_function_or_method"),
        (object(), "/", "object"),
    ],
)
def test_what_does_not_travel_is_refused_with_its_path(state, path, kind):
    """Better at the first door than as a pickle nobody can read."""
    with pytest.raises(StateError, match=f"state at {path} is a {kind}: "):
        tree.flatten(state)


def test_a_key_that_does_not_travel_is_refused_with_its_path():
    with pytest.raises(StateError, match="a key of the state at /a is a tuple"):
        tree.flatten({"a": {(1, 2): 3}})


def small() -> dict:
    return {
        "w": torch.arange(5.0),
        "h": torch.ones(3).bfloat16(),
        "n": torch.tensor(4),
        "f": torch.tensor([True, False]),
        "lr": 0.1,
    }


def test_the_digest_changes_with_any_byte_of_any_tensor():
    """Each byte is flipped in turn; flipped back, the digest is the old one."""
    state = small()
    whole, seen = tree.digest(tree.flatten(state)), set()
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        data = tensor.view(-1).view(torch.uint8)
        for i in range(len(data)):
            data[i] ^= 1
            seen.add(tree.digest(tree.flatten(state)))
            data[i] ^= 1
            assert tree.digest(tree.flatten(state)) == whole, (name, i)
    assert whole not in seen and len(seen) == 5 * 4 + 3 * 2 + 8 + 2


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {**s, "lr": math.nextafter(0.1, 1)},
        lambda s: {**s, "lr": "0.1"},
        lambda s: {"v": s["w"], **{k: v for k, v in s.items() if k != "w"}},
        lambda s: dict(reversed(s.items())),
        lambda s: {**s, "w": s["w"].view(torch.int32)},
        lambda s: {**s, "w": s["w"].view(5, 1)},
        lambda s: {**s, "new": torch.zeros(0)},
        lambda s: {**s, "n": 4},
    ],
    ids=["scalar", "type", "name", "order", "dtype", "shape", "empty tensor", "tensor or number"],
)
def test_the_digest_changes_with_the_tree(change):
    assert tree.digest(tree.flatten(change(small()))) != tree.digest(tree.flatten(small()))


def test_the_digest_does_not_depend_on_how_tensors_lie_in_memory():
    """A view and its copy hold the same state."""
    strided = torch.arange(12.0).view(3, 4)[:, ::2]
    assert tree.digest(tree.flatten({"x": strided})) == tree.digest(tree.flatten({"x": strided.clone()}))
