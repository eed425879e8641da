"""Pure. A mapping that never changes: a changed version of it costs what changed, and shares the rest.

Values lie in a tree of short lists, by the number of their key; numbers are given out in the order in which keys come.
Which key has which number stands in an index that versions share: it only grows, each version knows how much of it is
its own, and two versions that go on differently from a third have two.
"""

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Any, TypeVar

V = TypeVar("V")

_BITS = 6
_WIDTH = 1 << _BITS
_MASK = _WIDTH - 1
_NOTHING: Any = object()  # in the place of a value that was taken out


class _Index:
    """The number of each key."""

    __slots__ = ("names", "numbers")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = list(names)
        self.numbers = {name: number for number, name in enumerate(self.names)}

    def with_next(self, used: int, key: str) -> "_Index":
        """One in which `key` comes after the first `used`: this one, unless another version has gone on differently."""
        index = self
        if used < len(self.names) and self.names[used] != key:
            index = _Index(self.names[:used])
        if used == len(index.names):
            index.names.append(key)
            index.numbers[key] = used
        return index


class PersistentMap(Mapping[str, V]):
    """A mapping by string, in the order in which keys were first added."""

    __slots__ = ("_count", "_index", "_root", "_shift", "_used")

    def __init__(self, items: Mapping[str, V] | None = None) -> None:
        items = {} if items is None else items
        self._index = _Index(items)
        self._root, self._shift = _tree(list(items.values()))
        self._used = self._count = len(items)

    def __getitem__(self, key: str) -> V:
        found = self.get(key, _NOTHING)
        if found is _NOTHING:
            raise KeyError(key)
        return found  # type: ignore[no-any-return]

    def get(self, key: str, default: Any = None) -> Any:  # the inherited one raises and catches
        used = self._used
        number = self._index.numbers.get(key, used)
        if number >= used:
            return default
        node, level = self._root, self._shift
        while level:
            node = node[number >> level & _MASK]
            level -= _BITS
        found = node[number & _MASK]
        return default if found is _NOTHING else found

    def __contains__(self, key: object) -> bool:
        return self.get(key, _NOTHING) is not _NOTHING  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self._pairs())

    def items(self) -> ItemsView[str, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return dict(self.items()) == dict(other.items()) if isinstance(other, Mapping) else NotImplemented

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self.items())!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PersistentMap, (dict(self.items()),)

    def number(self, key: str) -> int:
        """By which keys are ordered.

        Raises:
            KeyError: there is no such key.
        """
        return self._index.numbers[key]

    def many(self, keys: Iterable[str]) -> list[V]:
        """The values of these keys, all of which there are."""
        numbers, root, shift = self._index.numbers, self._root, self._shift
        if shift == 0:
            return [root[numbers[key]] for key in keys]
        if shift == _BITS:
            return [root[(number := numbers[key]) >> _BITS][number & _MASK] for key in keys]
        if shift == 2 * _BITS:
            return [
                root[(number := numbers[key]) >> 2 * _BITS][number >> _BITS & _MASK][number & _MASK] for key in keys
            ]
        return [self[key] for key in keys]

    def updated(self, changes: Mapping[str, V]) -> "PersistentMap[V]":
        """A version in which these keys have these values."""
        if not changes:
            return self
        index, used, count = self._index, self._used, self._count
        root, shift = self._root[:], self._shift
        own = {id(root)}  # nodes that no other version has
        for key, value in changes.items():
            number = index.numbers.get(key, used)
            if number >= used:
                index = index.with_next(used, key)
                number, used = used, used + 1
                if number >> shift >= _WIDTH:
                    root, shift = [root], shift + _BITS
                    own.add(id(root))
            node, level = root, shift
            while level:
                place = number >> level & _MASK
                child = node[place] if place < len(node) else []
                if id(child) not in own:
                    child = child[:]
                    own.add(id(child))
                    node[place : place + 1] = [child]
                node, level = child, level - _BITS
            place = number & _MASK
            count += place == len(node) or node[place] is _NOTHING
            node[place : place + 1] = [value]
        return _version(index, root, shift, used, count)

    def without(self, keys: Iterable[str]) -> "PersistentMap[V]":
        """A version that does not have these keys; one that comes back has its old place."""
        gone = {key: _NOTHING for key in keys if key in self}
        if not gone:
            return self
        if self._used > 2 * (self._count - len(gone)) + _WIDTH:  # mostly holes
            return PersistentMap({key: value for key, value in self.items() if key not in gone})
        made = self.updated(gone)
        made._count = self._count - len(gone)
        return made

    def changes_since(self, old: "PersistentMap[V]") -> tuple[dict[str, V], tuple[str, ...]]:
        """What has another value than in an earlier version, or is new; and which keys are gone."""
        if old._index is not self._index or old._used > self._used:
            changed = {key: value for key, value in self.items() if old.get(key, _NOTHING) is not value}
            return changed, tuple(key for key in old if key not in self)
        before, level = old._root, old._shift
        while level < self._shift:
            before, level = [before], level + _BITS
        found = list(_differences(self._root, before, level, 0))
        names = self._index.names
        changed = {names[number]: value for number, value in found if value is not _NOTHING}
        return changed, tuple(names[number] for number, value in found if value is _NOTHING)

    def _pairs(self) -> Iterator[tuple[str, V]]:
        pairs = zip(self._index.names, chain.from_iterable(self._leaves()), strict=False)
        return pairs if self._count == self._used else (pair for pair in pairs if pair[1] is not _NOTHING)

    def _leaves(self) -> list[list[V]]:
        nodes, level = [self._root], self._shift
        while level:
            nodes, level = [child for node in nodes for child in node], level - _BITS
        return nodes


class _Values(ValuesView[V]):
    def __init__(self, of: PersistentMap[V]) -> None:
        super().__init__(of)
        self._of = of

    def __iter__(self) -> Iterator[V]:
        of = self._of
        values = chain.from_iterable(of._leaves())
        return values if of._count == of._used else (value for value in values if value is not _NOTHING)


class _Items(ItemsView[str, V]):
    def __init__(self, of: PersistentMap[V]) -> None:
        super().__init__(of)
        self._of = of

    def __iter__(self) -> Iterator[tuple[str, V]]:
        return self._of._pairs()


def persistent(items: Mapping[str, V]) -> PersistentMap[V]:
    """The same as a mapping of which versions can be made; it may be one already."""
    return items if isinstance(items, PersistentMap) else PersistentMap(items)


def _version(index: _Index, root: list[Any], shift: int, used: int, count: int) -> PersistentMap[Any]:
    made: PersistentMap[Any] = PersistentMap.__new__(PersistentMap)
    made._index, made._root, made._shift, made._used, made._count = index, root, shift, used, count
    return made


def _tree(values: list[Any]) -> tuple[list[Any], int]:
    """The root, and by how many bits a number is shifted there."""
    nodes, shift = [values[start : start + _WIDTH] for start in range(0, len(values), _WIDTH)] or [[]], 0
    while len(nodes) > 1:
        nodes, shift = [nodes[start : start + _WIDTH] for start in range(0, len(nodes), _WIDTH)], shift + _BITS
    return nodes[0], shift


def _differences(now: list[Any], before: list[Any], level: int, first: int) -> Iterator[tuple[int, Any]]:
    """Numbers and values that differ below two nodes of the same place; what both share is not looked at."""
    for place, child in enumerate(now):
        old = before[place] if place < len(before) else [] if level else _NOTHING
        if child is old:
            continue
        number = first + (place << level)
        if level:
            yield from _differences(child, old, level - _BITS, number)
        else:
            yield number, child
