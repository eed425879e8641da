"""Effect. Fault-tolerant, elastic data-parallel training for PyTorch, on Ray.

What users import. Names are loaded on first use, so that `import elastic.control` costs neither ray nor torch.
"""

import importlib
from typing import Any

_HOME = {
    "fit": "elastic.api",
    "Result": "elastic.control.outcome",
    "FixedMicroBatches": "elastic.control.batch_size",
    "FollowReplicas": "elastic.control.batch_size",
    "Chaos": "elastic.settings",
    "Scaling": "elastic.settings",
    "Checkpoint": "elastic.settings",
    "Health": "elastic.settings",
    "Interval": "elastic.settings",
    "Keep": "elastic.settings",
    "Limits": "elastic.settings",
    "Logs": "elastic.settings",
    "Page": "elastic.settings",
    "Session": "elastic.train.session",
    "get_session": "elastic.train.session",
    "tune": "elastic.actors.asking",
    "callbacks": None,
    "config": None,
    "errors": None,
    "policies": None,
    "settings": None,
    "sinks": None,
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'elastic' has no attribute {name!r}")
    home = _HOME[name]
    if home is None:
        return importlib.import_module(f"elastic.{name}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return __all__
