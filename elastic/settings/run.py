"""Pure. All settings of a run."""

from dataclasses import dataclass, field

from elastic.settings.chaos import Chaos
from elastic.settings.checkpoint import Checkpoint
from elastic.settings.health import Health
from elastic.settings.limits import Limits
from elastic.settings.logs import Logs
from elastic.settings.scaling import Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything the control plane needs to know about a run before it starts."""

    run: str
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    checkpoint: Checkpoint | None = None
    health: Health = field(default_factory=Health)
    chaos: Chaos | None = None
    logs: Logs = field(default_factory=Logs)
    incarnation: int = 1

    @property
    def is_breakable(self) -> bool:
        """Whether faults may be injected."""
        return self.chaos is not None and self.chaos.enable_fault_injection
