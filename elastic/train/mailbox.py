"""Effect. What a worker has to tell its driver, until the driver has it. The link's lock guards it."""

from collections import deque
from collections.abc import Sequence

from elastic.control import events as ev
from elastic.control.values import Fork

KEPT_REPORTS = 1 << 14  # more steps than a group makes without a driver, until its lease is over


class Mailbox:
    """Events in the order in which they came.

    Attributes:
        is_urgent: something else waits than reports, which come some at a time, but for the first of a generation.
        published: the driver has told all stable steps up to this one.
    """

    def __init__(self) -> None:
        self.is_urgent = False
        self.published = -1
        self._generation = -1
        self._waiting: list[ev.Event] = []
        self._facts: list[ev.Event] = []  # what every driver has to hear
        self._reports: deque[ev.StepStable] = deque(maxlen=KEPT_REPORTS)  # told, and not in the journal yet

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def notice(self) -> str:
        """Why this process will be ended soon; empty if it will not."""
        return next((fact.reason for fact in self._facts if isinstance(fact, ev.WorkerNotice)), "")

    @property
    def has_ended(self) -> bool:
        """train_fn is over, and not because it was told to leave."""
        is_over = (isinstance(fact, ev.TrainFnReturned) and not fact.dismissed for fact in self._facts)
        return any(is_over) or any(isinstance(fact, ev.TrainFnRaised) for fact in self._facts)

    def put(self, event: ev.Event) -> None:
        self._waiting.append(event)
        if isinstance(event, ev.StepStable):
            self._reports.append(event)
            generation, self._generation = self._generation, event.report.commit.generation
            self.is_urgent |= self._generation != generation  # for that, those who are missing wait to be replaced
        elif not isinstance(event, ev.ShardStaged):
            self.is_urgent = True

    def put_fact(self, event: ev.Event) -> None:
        """A driver that comes later must hear it too."""
        self._facts.append(event)
        self.put(event)

    def take(self) -> list[ev.Event]:
        """All that waits."""
        taken, self._waiting, self.is_urgent = self._waiting, [], False
        return taken

    def readdress(self) -> None:
        """Another driver reads from now on: it has to hear what its predecessor has, or may have, taken with it."""
        others = [event for event in self._waiting if not isinstance(event, ev.StepStable)]
        self._waiting = [*self._reports, *self._facts, *(event for event in others if event not in self._facts)]
        self.is_urgent = True

    def publish(self, published: int, forks: Sequence[Fork] = ()) -> None:
        """Reports up to this step are in the journal; those that were left behind nobody wants."""
        self.published = published
        if forks:
            stand = (told for told in self._reports if not any(fork.voids(told.report.commit) for fork in forks))
            self._reports = deque(stand, maxlen=KEPT_REPORTS)
        while self._reports and self._reports[0].report.commit.step <= published:
            self._reports.popleft()
