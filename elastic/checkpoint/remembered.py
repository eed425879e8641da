"""Pure. What a run's journal remembers of its checkpoints, where no persistent tier does: what must not be restored.

The lines of a journal are of any version: what this one cannot read of them is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.control.values import CommitId, Fork


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A step whose bytes are wrong wherever it is: for the journal. `reason`: what its holders said."""

    commit: CommitId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blamed:
    """Training failed soon after this life of the driver had begun from a step: for the journal."""

    commit: CommitId
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """See the module.

    Attributes:
        forks: where the history began anew. quarantined: reasons, by commit, its attempt left at 0.
        blamed: as told, oldest first.
    """

    forks: frozenset[Fork] = frozenset()
    quarantined: Mapping[CommitId, str] = field(default_factory=dict)
    blamed: tuple[Blamed, ...] = ()

    def without(self, told: Quarantined | Blamed) -> "Remembered":
        """This is not to be restored any more, or, if it happens again and again, to be passed over."""
        if isinstance(told, Blamed):
            return replace(self, blamed=(*self.blamed, told))
        commit = replace(told.commit, attempt=0)
        return replace(self, quarantined={commit: told.reason, **self.quarantined})

    def read(self, line: Mapping[str, Any]) -> "Remembered":
        """What is known after this line of the journal."""
        try:
            match line:
                case {"command": "Form", "view": view}:
                    made = {Fork(**{**one, "skip": tuple(one.get("skip", (0, 0)))}) for one in view["forks"]}
                    if view["bootstrap"]:
                        made.add(Fork(incarnation=view["incarnation"], generation=view["generation"], step=-1))
                    return replace(self, forks=self.forks | made)
                case {"checkpoint": "Quarantined", "commit": commit, "reason": reason}:
                    return self.without(Quarantined(commit=CommitId(**commit), reason=reason))
                case {"checkpoint": "Blamed", "commit": commit, "incarnation": incarnation, "reason": reason}:
                    return self.without(Blamed(commit=CommitId(**commit), incarnation=incarnation, reason=reason))
        except (KeyError, TypeError, ValueError):
            pass
        return self
