"""A stand-in for NCCL where there is no GPU: works of threads of this process, with NCCL's ways that matter.

Works are done in the order in which they were started, each once all ranks have started it. An abort takes a moment,
and leaves works that look completed with wrong numbers, here and at the other ranks, which do not know of it; who waits
for others to connect cannot be aborted.
"""

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import torch

from tests.effects.helpers import LONG_S

ABORT_S = 0.05
WRONG = -1.0


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

    def end(self, total: Any) -> None:
        self.tensor.copy_(total) if isinstance(total, torch.Tensor) else self.tensor.fill_(total)
        self.has_ended = True


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
                    one.end(total)
        return work

    def abort(self) -> None:
        """Kernels walk to their ends, and send what they have."""
        self.is_aborted = True
        time.sleep(ABORT_S)
        with self._meeting.changed:
            for member in self._members:
                for work in member.works:
                    if not work.has_ended:
                        work.end(WRONG)


class StandIn:
    """In the place of `Nccl`."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting

    def takes(self, tensor: torch.Tensor) -> bool:
        """As if gradients were on a GPU."""
        return tensor.dtype is torch.float32 and tensor.numel() > 1

    def open(self, store: Any, rank: int, size: int) -> Group:
        return Group(self._meeting, store if isinstance(store, str) else _named(store, rank), size)

    def first_sum(self, group: Group) -> Callable[[], bool]:
        return self.behind(group.allreduce([torch.ones(1)]))

    def behind(self, work: Work) -> Callable[[], bool]:
        return lambda: work.has_ended


def _named(store: Any, rank: int) -> str:
    """Who has the same store has the same name."""
    if rank == 0:
        store.set("name", uuid.uuid4().hex)
    return str(store.get("name").decode())
