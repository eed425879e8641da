"""Pure. What a training thread is doing, and how a host monitor tells of it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from elastic.control.copies import sent


class Flying(IntEnum):
    """What the training thread is doing; TALKING: it waits in a collective of the user's."""

    LOADING = 0
    AT_DOOR = 1
    FORMING = 2
    IN_BODY = 3
    COMPUTING = 4
    REDUCING = 5
    APPLYING = 6
    OUTSIDE = 7
    FETCHING = 8
    SLOW = 9
    EVALUATING = 10
    TALKING = 11


STOPPED = "T"  # the state of a process that was stopped by a signal, in Linux's words


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a host monitor last saw of one worker, without asking it.

    Attributes:
        generation, step, phase, micro_batch: from its flight page; micro_batch is -1 outside of one.
        remark: what its user says of a long phase.
        commits: steps that its process has committed since it started.
        still_s: since its page last changed, counting only time in which the monitor looked and the worker could run.
        state: state of its process in Linux's letters (R, S, D, T, Z, ...).
    """

    worker: str
    generation: int
    step: int
    phase: Flying
    micro_batch: int
    commits: int
    still_s: float
    state: str
    remark: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(self)

    @property
    def place(self) -> str:
        """In words."""
        batch = f", micro-batch {self.micro_batch}" if self.micro_batch >= 0 else ""
        remark = f" ({self.remark})" if self.remark else ""
        return f"{self.phase.name.lower()}{remark} in step {self.step}{batch}"
