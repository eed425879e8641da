"""Effect. The objects whose state makes up a replica: read as one tree, and set in place, tensor by tensor."""

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from elastic.errors import NotStatefulError, StepMisuseError
from elastic.train import tree
from elastic.train.buffers import buffers_of
from elastic.train.sharded import local, spread

Kind = TypeVar("Kind")


@runtime_checkable
class Stateful(Protocol):
    """What can be tracked."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class Tracked:
    """Named objects of one worker.

    Raises (from `add`):
        NotStatefulError: an object lacks state_dict() or load_state_dict().
        StepMisuseError: another object has that name.
    """

    def __init__(self) -> None:
        self._objects: dict[str, Stateful] = {}
        self._fresh: dict[str, Any] = {}
        self._sizes: dict[int, list[int]] = {}  # of the groups of each optimizer, once the loop has begun

    def add(self, objects: dict[str, Any], fresh: Any = None) -> None:
        """
        Args:
            fresh: the state that they take where a checkpoint holds none for them; None: such a one is refused.
        """
        if fresh is not None:
            self._fresh |= dict.fromkeys(objects, fresh)
        for name, thing in objects.items():
            if not isinstance(thing, Stateful):
                raise NotStatefulError(
                    f"session.track({name}={type(thing).__name__}(...)): it needs state_dict() and load_state_dict(); "
                    "track only objects whose state must be the same on all replicas"
                )
            if self._objects.setdefault(name, thing) is not thing:
                raise StepMisuseError(
                    f"session.track({name}=...) holds another object already: give this a name of its own"
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._objects)

    def lacking(self, held: Collection[str]) -> tuple[str, ...]:
        """Names of those for which a checkpoint that holds these has no state, and that need one."""
        return tuple(name for name in self._objects if name not in held and name not in self._fresh)

    def freshen(self, held: Collection[str]) -> None:
        """Those that need none take their fresh state where a checkpoint that is installed holds none for them."""
        for name, state in self._fresh.items():
            if name not in held:
                self._objects[name].load_state_dict(copy.deepcopy(state))

    def require(self, *things: Any) -> None:
        """Refuse what is used in a step and not tracked: a joiner would come without it, and drift.

        Raises:
            StepMisuseError: names the kind of the first one that is missing.
        """
        for thing in things:
            if not any(thing is one for one in self._objects.values()):
                raise StepMisuseError(
                    f"a {type(thing).__name__} is used in a step and not tracked, so joiners would not receive it: "
                    f"call session.track({type(thing).__name__.lower()}=...)"
                )

    def seal(self) -> None:
        """The loop begins: from now on whoever joins loads optimizers of these groups."""
        self._sizes = {id(one): _sizes(one) for one in self.optimizers}

    def refuse_grown(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """
        Raises:
            StepMisuseError: the groups of one are others than at the start.
        """
        for one in optimizers:
            if self._sizes.get(id(one), _sizes(one)) != _sizes(one):
                raise StepMisuseError(
                    f"the parameter groups of a {type(one).__name__} changed after the loop began, so joiners could "
                    "not load them: give it all groups at the start, with lr=0 until they are wanted"
                )

    def holds(self, model: torch.nn.Module) -> bool:
        """Whether all parameters of a model, and the buffers of its state, belong to tracked modules."""
        tracked = {id(one) for module in self.modules for one in (*module.parameters(), *module.buffers())}
        return all(id(one) in tracked for one in (*model.parameters(), *buffers_of(model).values()))

    def named(self, kind: type[Kind]) -> dict[str, Kind]:
        """The objects of a kind, by name."""
        return {name: thing for name, thing in self._objects.items() if isinstance(thing, kind)}

    @property
    def modules(self) -> list[torch.nn.Module]:
        return list(self.named(torch.nn.Module).values())

    def flatten(self) -> tree.Flat:
        """The whole state now; tensors are the live ones."""
        return tree.flatten({name: thing.state_dict() for name, thing in self._objects.items()})

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return list(self.named(torch.optim.Optimizer).values())

    def digests(self, names: Collection[str] | None = None) -> dict[str, int]:
        """64 bits for each tracked object, or for those named."""
        wanted = {name: thing for name, thing in self._objects.items() if names is None or name in names}
        return {name: tree.digest(tree.flatten(thing.state_dict())) for name, thing in wanted.items()}

    def lent(self) -> dict[str, torch.Tensor]:
        """By path, the live tensors of modules that may be written to before all is there, instead of being set later.

        Those on the CPU that lie in one piece, and share their memory with no other: each is received once. What sets
        itself in a way of its own gets what it reads in memory of its own.
        """
        flat = self.flatten()
        paths = Counter(path for path, _ in flat.leaves)
        storages = Counter(_storage(tensor) for tensor in flat.tensors if tensor.is_cpu)
        plain = {name for name, one in self.named(torch.nn.Module).items() if _is_memory_of(one, one.state_dict())}
        return {
            path: tensor
            for (path, _), tensor in zip(flat.leaves, flat.tensors, strict=True)
            if path.split("/")[1] in plain
            and (tensor.is_cpu and tensor.is_contiguous() and paths[path] == storages[_storage(tensor)] == 1)
        }

    def install(self, skeleton: bytes, tensors: list[torch.Tensor]) -> list[str]:
        """Set every object of the received state; live tensors keep their identity wherever they fit.

        Returns:
            Names of the objects that were set by code of their own, and not copied bit by bit.
        """
        received = tree.unflatten(skeleton, tensors)
        mine = {name: thing for name, thing in self._objects.items() if name in received}
        return [name for name, thing in mine.items() if not _install(thing, received[name])]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _install(thing: Stateful, received: Any) -> bool:
    """Set one object; whether it was copied bit by bit."""
    if isinstance(thing, torch.nn.Module):
        return _install_module(thing, received)
    if isinstance(thing, torch.optim.Optimizer):
        return _install_optimizer(thing, received)
    thing.load_state_dict(_like(thing.state_dict(), received))
    return False


def _like(live: Any, received: Any) -> Any:
    """What was received, on the devices, and in the kinds of dicts, of what is here: some keep what they are given."""
    if isinstance(received, torch.Tensor):
        return received.to(local(live).device) if isinstance(live, torch.Tensor) else received
    if isinstance(received, dict):
        known = live if isinstance(live, Mapping) else {}
        made = {key: _like(known.get(key), value) for key, value in received.items()}
        if not isinstance(live, dict) or type(live) is dict:
            return made
        kind = copy.copy(live)  # a Counter, a defaultdict
        kind.clear()
        kind.update(made)
        return kind
    if isinstance(received, list | tuple):
        beside = live[: len(received)] if isinstance(live, list | tuple) else ()
        return type(received)(_like(here, value) for here, value in zip_longest(beside, received))
    return received


def _install_module(module: torch.nn.Module, received: dict[str, Any]) -> bool:
    live = module.state_dict()
    if _shape({0: live}) != _shape({0: received}) or not _is_memory_of(module, live):
        module.load_state_dict(received)  # its state is made of what it holds; or the error says what does not fit
        return False
    with torch.no_grad():
        for key, value in live.items():
            local(value).copy_(received[key])
    return True


def _is_memory_of(module: torch.nn.Module, state: dict[str, Any]) -> bool:
    """Whether to write into `state` is to write into the module: its own `state_dict` may copy, or hold extra state."""
    if type(module).load_state_dict is not torch.nn.Module.load_state_dict:
        return False
    held = {local(tensor.detach()).data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    return all(isinstance(value, torch.Tensor) and local(value).data_ptr() in held for value in state.values())


def _install_optimizer(optimizer: torch.optim.Optimizer, received: dict[str, Any]) -> bool:
    """Copy where the trees fit; load, and undo load_state_dict's casts, where they differ.

    `load_state_dict` casts floating-point state to the dtype of its parameter: the float32 moments of bfloat16
    parameters would lose half their bits.
    """
    live, is_plain = optimizer.state_dict(), _is_plain(optimizer)
    if is_plain and _shape(live["state"]) == _shape(received["state"]):
        with torch.no_grad():
            for index, entries in live["state"].items():
                for key, value in entries.items():
                    if isinstance(value, torch.Tensor):
                        local(value).copy_(received["state"][index][key])
                    else:
                        _state_of(optimizer, index)[key] = _like(value, received["state"][index][key])
        for group, values in zip(optimizer.param_groups, received["param_groups"], strict=True):
            _set_group(group, values)
        return True
    optimizer.load_state_dict(received)
    for index, entries in received.get("state", {}).items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                _mend(_state_of(optimizer, index), key, value, params_of(optimizer)[index])
            elif isinstance(value, dict | list | tuple):  # whose tensors were cast like others
                held = _state_of(optimizer, index)
                held[key] = _like(held[key], value)
    return is_plain and _is_held(optimizer, received)


def _sizes(optimizer: torch.optim.Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its state is what torch makes of it, and no more."""
    base, kind = torch.optim.Optimizer, type(optimizer)
    return kind.state_dict is base.state_dict and kind.load_state_dict is base.load_state_dict


def _set_group(group: dict[str, Any], values: dict[str, Any]) -> None:
    """A tensor, such as a learning rate that a graph on a GPU reads, keeps its identity where it fits."""
    for key, value in values.items():
        live = group.get(key)
        if isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor) and _is_alike(live, value):
            with torch.no_grad():
                live.copy_(value)
        elif key != "params":
            group[key] = copy.copy(value)
        if key in group:
            group[key] = group.pop(key)  # in the order received, which a digest sees


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.dtype) == (other.shape, other.dtype)


def _is_held(optimizer: torch.optim.Optimizer, received: dict[str, Any]) -> bool:
    """Whether it has kept the very tensors that were received, so that nobody needs to read them again to know.

    What its groups have beside what was received is what torch gives to those of an older version.
    """
    live = optimizer.state_dict()
    pairs_of_groups = zip(live["param_groups"], received["param_groups"], strict=True)
    groups = [{key: one[key] for key in was if key in one} for one, was in pairs_of_groups]
    mine, theirs = tree.flatten({**live, "param_groups": groups}), tree.flatten(received)
    pairs = zip(mine.tensors, theirs.tensors, strict=True)
    return mine.skeleton == theirs.skeleton and all(one.data_ptr() == other.data_ptr() for one, other in pairs)


def _mend(entries: dict[str, Any], key: str, received: torch.Tensor, param: torch.nn.Parameter) -> None:
    """What load_state_dict made of a tensor, in the dtype it came in; a moment is placed as its parameter is."""
    if entries[key].dtype != received.dtype:
        entries[key] = received.to(entries[key].device)
    if received.dim() and received.shape == local(param.detach()).shape:
        entries[key] = spread(entries[key], param)


def _state_of(optimizer: torch.optim.Optimizer, index: int) -> dict[str, Any]:
    return optimizer.state[params_of(optimizer)[index]]


def params_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _shape(state: dict[Any, dict[str, Any]]) -> dict[Any, Any]:
    def one(value: Any) -> Any:
        return (tuple(local(value).shape), value.dtype) if isinstance(value, torch.Tensor) else None

    return {index: {key: one(value) for key, value in entries.items()} for index, entries in state.items()}
