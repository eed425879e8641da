"""Effect. What a user's file holds, by name: a policy, a train_fn. `file.py:name`, or `package.module:name`."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ray import cloudpickle

from elastic.errors import SettingError


def load_policy(place: str) -> Any:
    """A policy: a function, or a class with `event_policy`. Raises: SettingError: see `load_named`."""
    return load_named(place, "policy")


def load_named(place: str, knob: str) -> Any:
    """What `place` names: `path/to/file.py:name`, or `package.module:name`.

    The process that calls it, another one, need not have the file: what comes from it travels by value.

    Args:
        knob: what it is given as; for messages.

    Raises:
        SettingError: there is no such file, it cannot be imported, or holds no such name.
    """
    path, colon, name = place.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise SettingError(f"{knob}={place!r} must be file.py:function, or package.module:function")
    module = _from_file(Path(path), knob) if path.endswith(".py") else _by_name(path, knob)
    if not hasattr(module, name):
        raise SettingError(f"{knob}={place!r}: {path} has no {name}")
    return getattr(module, name)


def _from_file(path: Path, knob: str) -> ModuleType:
    if not path.is_file():
        raise SettingError(f"{knob}={str(path)!r}: there is no such file")
    name = f"elastic_{knob}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingError(f"{knob}={str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # what lies beside it can be imported, as from a script
    before = set(sys.modules)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise SettingError(f"{knob}={str(path)!r} cannot be imported: {type(error).__name__}: {error}") from error
    cloudpickle.register_pickle_by_value(module)
    for imported in set(sys.modules) - before:
        if _lies_beside(sys.modules[imported], folder):
            cloudpickle.register_pickle_by_value(sys.modules[imported])
    return module


def _lies_beside(module: ModuleType, folder: str) -> bool:
    """Whether another process, which looks elsewhere, may not find it; what is installed is everywhere."""
    place = getattr(module, "__file__", None) or ""
    is_ours = module.__name__.partition(".")[0] == __name__.partition(".")[0]
    return place.startswith(f"{folder}{os.sep}") and "site-packages" not in place and not is_ours


def _by_name(name: str, knob: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise SettingError(f"{knob}={name!r} cannot be imported: {type(error).__name__}: {error}") from error
