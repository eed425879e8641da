"""A stand-in for NCCL where there is no GPU: works of threads of this process, with NCCL's ways that matter.

Works are done in the order in which they were started, each once all ranks have started it. An abort takes a moment,
and leaves works that look completed with wrong numbers; who waits for others to connect cannot be aborted.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.effects.helpers import LONG_S

ABORT_S = 0.05


class Meeting:
    """Where the members of all groups of a test find each other."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.members: dict[tuple[str, int], list[Group]] = {}

    def join(self, group: "Group") -> list["Group"]:
        """All members, once they are there."""
        with self.changed:
            here = self.members.setdefault((group.name, group.size), [])
            here.append(group)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: len(here) == group.size, LONG_S)
            return here


class Work:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.value, self.has_ended = tensor, tensor.clone(), False

    def wait(self) -> None:
        """A stream would wait."""

    def is_completed(self) -> bool:
        return self.has_ended


class Group:
    """One member's end."""

    def __init__(self, meeting: Meeting, name: str, size: int) -> None:
        self.name, self.size, self.works, self.is_aborted = name, size, list[Work](), False
        self._meeting = meeting
        self._members = meeting.join(self)

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        if self.is_aborted:
            raise RuntimeError("NCCL communicator was aborted")
        work = Work(tensors[0])
        with self._meeting.changed:
            self.works.append(work)
            number = len(self.works) - 1
            together = [one.works[number] for one in self._members if len(one.works) > number and not one.is_aborted]
            if len(together) == self.size:
                total = sum(one.value for one in together)
                for one in together:
                    one.tensor.copy_(total)
                    one.has_ended = True
        return work

    def abort(self) -> None:
        self.is_aborted = True
        time.sleep(ABORT_S)
        for work in self.works:
            if not work.has_ended:
                work.tensor.fill_(-1)
                work.has_ended = True


class StandIn:
    """In the place of `Nccl`."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def open(self, store: Any, rank: int, size: int) -> Group:
        return Group(self._meeting, str(store), size)

    def word(self) -> torch.Tensor:
        return torch.ones(1)

    def behind(self, work: Work) -> Callable[[], bool]:
        return lambda: work.has_ended
