"""Pure. What a world checks while it is played, and what it says where that does not hold."""

from collections.abc import Callable
from enum import Enum


class Law(Enum):
    """What must hold in every history; a value is how it is told."""

    NOTHING_LOST = "no stable step is lost"
    SAME_ANSWER = "all compute the same"
    EXACTLY_ONCE = "each step is done once"
    ENDS = "every wait ends"
    NEVER_WRONG = "nobody gives or takes wrong state"
    MAY_DIE = "the control plane may die"
    ONE_GENERATION = "one generation at a time"
    CONTROLLER = "the laws of the controller"
    COLLECTED = "what is collected is not needed"
    COMPLETED = "commands are completed"
    ADDS_UP = "the ledger adds up"
    SURVIVES = "who survives is not replaced"
    GOES_ON = "training goes on without the control plane"
    APART = "who missed each other are parted"


class Violation(AssertionError):
    """A law does not hold.

    Attributes:
        law: which one. what: one sentence about this history.
    """

    def __init__(self, law: Law, what: str) -> None:
        super().__init__(f"{law.value}: {what}")
        self.law, self.what = law, what


def must(holds: bool, law: Law, what: Callable[[], str]) -> None:
    """
    Raises:
        Violation: it does not hold.
    """
    if not holds:
        raise Violation(law, what())
