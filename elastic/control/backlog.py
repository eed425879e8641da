"""Pure. What has been told and not yet decided, in the order in which it is: news, then beats, then answers.

All members answer a freeze at once, and the loss of a host, told after 80,000 answers, shall not wait for them. What an
answer says stays true however late it is taken: so it may come after what was told later, of the same worker too. All
else comes in the order in which it was told.
"""

from collections import deque

from elastic.control import events as ev

# Everybody is asked, everybody answers, and nothing is decided before the last one has.
_ANSWERS = (
    ev.FreezeAnswered,
    ev.AtDoor,
    ev.Formed,
    ev.Restored,
    ev.RestoreRefused,
    ev.WorkerParked,
    ev.Overdue,
)


class Backlog:
    """Filled and emptied by one thread."""

    def __init__(self) -> None:
        self._news: deque[ev.Event] = deque()
        self._beats: deque[ev.Event] = deque()
        self._answers: deque[ev.Event] = deque()

    def __len__(self) -> int:
        return len(self._news) + len(self._beats) + len(self._answers)

    def add(self, event: ev.Event) -> None:
        if isinstance(event, _ANSWERS):
            self._answers.append(event)
        elif isinstance(event, ev.HostsHeard):
            self._beats.append(event)
        else:
            self._news.append(event)

    def take(self, most: int) -> list[ev.Event]:
        """The next ones, so many at most."""
        taken: list[ev.Event] = []
        for waiting in (self._news, self._beats, self._answers):
            taken += [waiting.popleft() for _ in range(min(len(waiting), most - len(taken)))]
        return taken
