"""Effect. A policy from a user's file: `file.py:function`, or a class with `event_policy`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ray import cloudpickle

from elastic.errors import SettingError


def load_policy(place: str) -> Any:
    """What `place` names: `path/to/file.py:name`, or `package.module:name`.

    The supervisor, another process, need not have the file: what comes from it travels by value.

    Raises:
        SettingError: there is no such file, it cannot be imported, or holds no such name.
    """
    path, colon, name = place.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise SettingError(f"policy={place!r} must be file.py:function, or package.module:function")
    module = _from_file(Path(path)) if path.endswith(".py") else _by_name(path)
    if not hasattr(module, name):
        raise SettingError(f"policy={place!r}: {path} has no {name}")
    return getattr(module, name)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise SettingError(f"policy={str(path)!r}: there is no such file")
    name = f"elastic_policy_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingError(f"policy={str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise SettingError(f"policy={str(path)!r} cannot be imported: {type(error).__name__}: {error}") from error
    cloudpickle.register_pickle_by_value(module)
    return module


def _by_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SettingError(f"policy={name!r} cannot be imported: {error}") from error
