"""Pure. Values as text that is the same on every machine and Python version, so that histories can be compared."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

_PLAIN = frozenset({str, float, int, bool, type(None)})
_FIELDS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}  # of each kind of value that was met


def text_of(value: Any) -> str:
    """Floats to their last bit; sets in order; numbers of an Enum, whose own text has changed, by their names."""
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is tuple or kind is list:
        return f"[{','.join([repr(one) if type(one) in _PLAIN else text_of(one) for one in value])}]"
    if kind in _FIELDS:
        parts = [repr(one) if type(one) in _PLAIN else text_of(one) for one in _FIELDS[kind](value)]
        return f"{kind.__name__}({','.join(parts)})"
    if isinstance(value, Enum):
        return f"{kind.__name__}.{value.name}"
    if isinstance(value, frozenset | set):
        return f"{{{','.join(sorted(map(text_of, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{text_of(name)}:{text_of(one)}' for name, one in value.items())}}}"
    if is_dataclass(value):
        _FIELDS[kind] = _fields_of(kind)
        return text_of(value)
    raise TypeError(f"{kind.__name__} has no text that is the same everywhere")


def _fields_of(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in fields(kind)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)
