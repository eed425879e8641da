"""Pure. What the controller wants done. Each command carries the reason it was given for."""

from dataclasses import dataclass

from elastic.control.faults import Fault
from elastic.control.outcome import Outcome
from elastic.control.values import CommitId, View


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Base of all commands."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker(Command):
    """Reserve a slot and start a worker in it, however long that takes; workers of one gang are one replica.

    Attributes:
        avoid: nodes on which it must not be placed. node: the only one on which it may be; empty: any other.
        doubted: nodes that may be lost soon: it is placed there only if no other one has a stand-in ready.
    """

    worker: str
    gang: int = 0
    shard: int = 0
    avoid: frozenset[str] = frozenset()
    node: str = ""
    doubted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(Command):
    """Stop these members of `generation` at once, whatever they are doing, except inside apply."""

    workers: tuple[str, ...]
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect(Command):
    """Those who will probably be the next generation connect now, while the running one goes on; each tells Connected.

    Attribute `view`: of its fields, those count that say who they are.
    """

    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Command):
    """Ask one member to have all members stop at the end of a step.

    Attribute `patience_s`: for which it lets them go on, unless it is asked again: those who come next still connect.
    """

    worker: str
    generation: int
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Command):
    """Form this generation.

    Attribute `only`: members that are told again, since they have missed it; empty: all are told.
    """

    view: View
    only: tuple[str, ...] = ()

    @property
    def addressees(self) -> tuple[str, ...]:
        return self.only or tuple(member.worker for member in self.view.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Go(Command):
    """All members have formed: train."""

    workers: tuple[str, ...]
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Command):
    """These members hold the last step: leave the loop."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss(Command):
    """These workers are not needed: leave train_fn, free the slot."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveDead(Command):
    """Watch this worker until there is proof that its process is gone."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect(Command):
    """Have its host monitor dump the stacks of this worker."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Command):
    """Kill this worker's process through its host monitor, and prove it gone."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Knock(Command):
    """See whether the hosts of these workers answer at all: connect with where they listen; the answer is Knocked.

    Attributes:
        workers: one on each host that is in doubt. others: on hosts that are heard. Where none of them takes a
            connection either, it says nothing that the first do not.
    """

    workers: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetGpu(Command):
    """Have the host monitor of a node reset these GPUs (indices or UUIDs), on which no worker is left."""

    node: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRestore(Command):
    """Look in all tiers for the newest step that can be restored; the answer is RestoreFound.

    Attributes:
        number: counts the run's restores, see `Restoring`; whoever looks anew waits for that answer only.
        at_most: not a later one, if given. without: commits that were found bad.
    """

    number: int = 0
    at_most: int | None = None
    without: tuple[CommitId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore(Command):
    """These workers, at the door, load their part of a commit; each answers Restored or RestoreRefused.

    Attribute `number`: of the order; who has answered it says the same again.
    """

    workers: tuple[str, ...]
    commit: CommitId
    number: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Save(Command):
    """These workers, stopped with this commit, stage and seal it in the memory of their nodes; each tells ShardStaged.

    Who holds another one, or has saved it already, does nothing.
    """

    workers: tuple[str, ...]
    commit: CommitId


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectFault(Command):
    """Have a fault strike this worker, or node; the answer is FaultInjected or FaultRefused."""

    fault: Fault
    worker: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFault(Command):
    """This fault is not injected; the answer is FaultRefused."""

    fault: Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun(Command):
    """Remove all workers; the run has this outcome."""

    outcome: Outcome
