"""Pure. Values as text that is the same on every machine and Python version, so that histories can be compared."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

_PLAIN = frozenset({str, float, int, bool, type(None)})
_WRITERS: dict[type, Callable[[Any], str]] = {}  # of each kind of value that was met


def text_of(value: Any) -> str:
    """Floats to their last bit; sets in order; numbers of an Enum, whose own text has changed, by their names."""
    kind = type(value)
    if kind not in _WRITERS:
        _WRITERS[kind] = _writer_of(kind)
    return _WRITERS[kind](value)


def _writer_of(kind: Any) -> Callable[[Any], str]:
    if kind in _PLAIN:
        return repr
    if issubclass(kind, tuple | list):
        return lambda value: f"[{_joined(value)}]"
    if issubclass(kind, Enum):
        return lambda value: f"{kind.__name__}.{value.name}"
    if issubclass(kind, frozenset | set):
        return lambda value: f"{{{','.join(sorted(map(text_of, value)))}}}"
    if issubclass(kind, Mapping):
        return lambda value: f"{{{','.join(f'{text_of(name)}:{text_of(one)}' for name, one in value.items())}}}"
    if is_dataclass(kind):
        return _of_fields(kind)
    raise TypeError(f"{kind.__name__} has no text that is the same everywhere")


def _of_fields(kind: Any) -> Callable[[Any], str]:
    names = [field.name for field in fields(kind)]
    if len(names) < 2:
        return lambda value: f"{kind.__name__}({_joined(getattr(value, name) for name in names)})"
    values = attrgetter(*names)
    return lambda value: f"{kind.__name__}({_joined(values(value))})"


def _joined(values: Iterable[Any]) -> str:
    return ",".join([repr(one) if type(one) in _PLAIN else text_of(one) for one in values])
