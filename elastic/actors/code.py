"""Effect. Whether two drivers mean the same by `train_fn`: a digest of its code, and of the values it brings along.

Followed are functions and classes that it names, in its own module or another one that is not installed, and what
closures, defaults and partials hold. A module that it names stands for its source file. What is installed is not looked
into, and neither are objects at the level of a module, but for numbers and strings.
"""

import dis
import functools
import hashlib
import inspect
import sysconfig
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ray import cloudpickle

_PLACES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))
_PLAIN = (str, bytes, int, float, bool, type(None), Path)
_CODE = (types.FunctionType, types.MethodType, types.ModuleType, type)
_BY_CHANCE = frozenset({"__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__"})


def digest_of(train_fn: Callable[..., Any], *values: Any) -> str:
    """The same for the same code and values, in whichever process; one of its own where that can not be told."""
    summer = hashlib.blake2b(digest_size=16)
    try:
        for part in _parts((train_fn, *values), set()):
            summer.update(len(part).to_bytes(8, "big") + part)
    except Exception:  # something that can be neither read nor pickled is never the same as anything
        return uuid.uuid4().hex
    return summer.hexdigest()


def _parts(thing: Any, seen: set[int]) -> Iterator[bytes]:
    if isinstance(thing, functools.partial):
        yield from _parts((thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, tuple | list):
        yield f"{type(thing).__name__} {len(thing)}".encode()
        for item in thing:
            yield from _parts(item, seen)
    elif isinstance(thing, dict):
        for key in sorted(thing, key=repr):
            yield from _parts((key, thing[key]), seen)
    elif isinstance(thing, set | frozenset):
        yield from sorted(b"".join(_parts(item, seen)) for item in thing)
    elif isinstance(thing, _PLAIN):
        yield f"{type(thing).__name__} {thing!r}".encode()
    elif id(thing) not in seen:
        seen.add(id(thing))
        yield from _code_parts(thing, seen) if isinstance(thing, _CODE) else _object_parts(thing, seen)


def _object_parts(thing: Any, seen: set[int]) -> Iterator[bytes]:
    held = getattr(thing, "__dict__", None)
    yield from _parts((type(thing), held) if held else (type(thing), cloudpickle.dumps(thing)), seen)


def _code_parts(thing: Any, seen: set[int]) -> Iterator[bytes]:
    yield f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', None) or thing.__name__}".encode()
    if _is_installed(thing):
        return
    if isinstance(thing, types.ModuleType):
        yield Path(inspect.getfile(thing)).read_bytes()
    elif isinstance(thing, types.MethodType):
        yield from _parts((thing.__func__, thing.__self__), seen)
    elif isinstance(thing, type):
        yield from _class_parts(thing, seen)
    else:
        yield from _function_parts(thing, seen)


def _class_parts(thing: type, seen: set[int]) -> Iterator[bytes]:
    yield from _parts(thing.__bases__, seen)
    for key, value in sorted(vars(thing).items()):
        inner = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if key not in _BY_CHANCE and isinstance(inner, (*_CODE, *_PLAIN, tuple)):
            yield from _parts((key, inner), seen)


def _function_parts(function: types.FunctionType, seen: set[int]) -> Iterator[bytes]:
    codes, names = [function.__code__], set[str]()
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
        yield code.co_code
        yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
        yield from _parts(tuple(one for one in code.co_consts if not isinstance(one, types.CodeType)), seen)
        names |= {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    held = tuple(cell.cell_contents for cell in function.__closure__ or ())
    yield from _parts((held, function.__defaults__, function.__kwdefaults__), seen)
    for name in sorted(names & set(function.__globals__)):
        value = function.__globals__[name]
        known = isinstance(value, (*_CODE, *_PLAIN, tuple, frozenset, functools.partial))
        yield from _parts((name, value if known else type(value)), seen)


def _is_installed(thing: Any) -> bool:
    try:
        path = Path(inspect.getfile(thing)).resolve()
    except (TypeError, OSError):  # built in, or typed in by hand
        return getattr(thing, "__module__", None) != "__main__" and not isinstance(thing, types.FunctionType)
    return any(path.is_relative_to(place) for place in _PLACES)
