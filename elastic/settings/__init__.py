"""Pure. What users set: how many replicas, on what, how long each wait may last, how safe steps are made.

Each attribute says in brackets its unit, its default, and why it is that. `docs/configuration.md` is written from here.
"""

from elastic.settings.chaos import Chaos
from elastic.settings.checkpoint import Checkpoint, Interval, Keep
from elastic.settings.health import Health
from elastic.settings.kuberay import KubeRay
from elastic.settings.limits import Limits
from elastic.settings.logs import Logs
from elastic.settings.page import Page
from elastic.settings.run import RunSettings
from elastic.settings.scaling import Scaling

__all__ = [
    "Chaos",
    "Checkpoint",
    "Health",
    "Interval",
    "Keep",
    "KubeRay",
    "Limits",
    "Logs",
    "Page",
    "RunSettings",
    "Scaling",
]
