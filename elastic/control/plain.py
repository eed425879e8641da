"""Pure. The controller's vocabulary as plain data, for JSON."""

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from typing import Any

_PLAIN = (bool, int, float, str, type(None))


def plain(value: Any) -> Any:
    """Names, numbers, texts and lists of them; an enum is its name in lower case."""
    if isinstance(value, _PLAIN) and not isinstance(value, Enum):  # most are
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return repr(value)


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Of the fields of a class, of which there are as many as there are kinds of events and commands."""
    return tuple(field.name for field in fields(kind))


def finite(value: Any) -> Any:
    """Plain data in which what is no finite number is null, since JSON has no other word for it."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def in_json(value: Any, indent: int | None = None) -> str:
    """Plain data as any program reads it; what is no finite number is null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:  # rare, and only then is it worth a copy
        return json.dumps(finite(value), indent=indent)
