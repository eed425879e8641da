"""Pure. What the controller is told. Every event names its source; times are seconds of the wall clock."""

from dataclasses import dataclass, field
from typing import Any

from elastic.control.adoption import Adopted, last_generation
from elastic.control.bequest import Bequest
from elastic.control.copies import sent
from elastic.control.data import Plan
from elastic.control.faults import Fault
from elastic.control.flight import Reading
from elastic.control.hardware import FindingKind
from elastic.control.logs import WORKER, LogLine
from elastic.control.tuning import Tuning
from elastic.control.values import AS_BEFORE, NOT_TIMED, CommitId, StepReport, StepTimes
from elastic.control.xid import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The driver is ready to start workers; `left`: by the driver before it."""

    left: Bequest = field(default_factory=Bequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTakenOver(Event):
    """The driver is ready to go on with live workers of an earlier one; comes instead of RunStarted.

    Attributes:
        found: workers that heed it from now on.
        published: all stable steps up to this one are told, as the journal has it, -1 if it has none. ahead: later
            ones that are told too.
        verified: the last of them after which a vote has shown that all held the same bits, -1 if none has.
        next_worker, next_gang: no worker, or replica, of this number or a higher one has been there.
        left: by the driver before it.
    """

    found: tuple[Adopted, ...]
    published: int = -1
    ahead: tuple[int, ...] = ()
    verified: int = -1
    next_worker: int = 0
    next_gang: int = 0
    left: Bequest = field(default_factory=Bequest)

    @property
    def generation(self) -> int:
        """The last one that may have been numbered before."""
        return last_generation(self.found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked(Event):
    """The driver's user wants the run to end."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitAsked(Event):
    """Whoever started the run wants it to save what it has and to end, soon: more than this word may not come."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindAsked(Event):
    """Somebody wants the run to go on from an older step.

    Attributes:
        to_step: not from a later one than this. skip: see `Fork`.
    """

    to_step: int
    skip: tuple[int, int] = AS_BEFORE


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFound(Event):
    """The answer to FindRestore.

    Attributes:
        commit: the newest step that can be restored, None if there is none; reason: why not.
        error: why the tiers could not be looked at, empty if they could.
        number: of the FindRestore; 0: of the last one.
    """

    commit: CommitId | None
    reason: str = ""
    error: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneAsked(Event):
    """Somebody wants the run to go on at other settings."""

    tuning: Tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseAsked(Event):
    """Somebody wants all to stop at the end of a step, for so long at most; None: as `Limits.hold_timeout_s` says."""

    for_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAsked(Event):
    """Somebody wants a run to go on that is paused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReached(Event):
    """A step is as safe as this rung of the checkpoint ladder says: "staged", "local", "replicated", "durable".

    An empty rung: nobody holds anything of it any more.
    """

    commit: CommitId
    rung: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReset(Event):
    """The answer to ResetGpu; `error`: why the GPUs were not reset, empty if they were."""

    node: str
    gpus: tuple[str, ...]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knocked(Event):
    """The answer to Knock.

    Attributes:
        unreached: those of its workers from whose hosts nothing came back, nor a refusal, though from others' it did.
        answered: those from whose hosts something did.
    """

    workers: tuple[str, ...]
    unreached: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultAsked(Event):
    """Somebody wants a fault to be injected; `is_forced`: even into a run that was not started for it."""

    fault: Fault
    is_forced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInjected(Event):
    """A fault has struck.

    Attributes:
        target: the worker or node that it struck. at_s: when, by the clock of who injected it.
        proof: what was seen of it.
    """

    fault: Fault
    target: str
    at_s: float
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRefused(Event):
    """A fault was asked for and has not struck."""

    fault: Fault
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorLost(Event):
    """The host monitor of a node does not answer; with all its workers lost too, the node is gone."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNotice(Event):
    """A node will be taken away soon: preemption, maintenance, drain."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesMissing(Event):
    """So many machines were asked for long ago and are not there, since `reason`; 0: all are there again."""

    missing: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBeat(Event):
    """A host monitor lives, and this is what it sees of its workers."""

    node: str
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareFinding(Event):
    """A host monitor has found something on its node, or has checked it.

    Attributes:
        device: a GPU's UUID, an address on the PCI bus, an interface, a path; empty: the node.
        workers: those that the device was given to, or whose process is concerned.
    """

    node: str
    device: str
    kind: FindingKind
    severity: Severity
    detail: str
    workers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsHeard(Event):
    """The host monitors of these nodes live; of their workers, a relay tells what is not as it was told before."""

    nodes: tuple[str, ...]
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent(Event):
    """Base of what concerns one worker."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlaced(WorkerEvent):
    """Its slot was found and its process is starting."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParked(WorkerEvent):
    """It stands at the door of its first step.

    Attributes:
        host, port: where its store listens.
        plan: how its data is cut, before anything was tuned.
        gpus: that it was given, as indices or UUIDs.
        no_room: why its snapshots do not fit into the memory of its node, empty if they do, or none are taken.
        slot_bytes, free_bytes: what they will take of it, and what is free there; see `control/room.py`.
        entered_s: when it entered train_fn, by its clock; 0: not known.
    """

    host: str
    port: int
    pid: int
    layout: str
    plan: Plan | None = None
    gpus: tuple[str, ...] = ()
    no_room: str = ""
    slot_bytes: int = 0
    free_bytes: int = 0
    entered_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(WorkerEvent):
    """Contact is lost; it may still be alive."""

    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDead(WorkerEvent):
    """Proof that its process is gone and can never apply a step again; last: what its flight page said, if known."""

    proof: str
    last: Reading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNotice(WorkerEvent):
    """Its process was told that it will be ended soon."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDumped(WorkerEvent):
    """Where its threads stood when it was inspected, or why that could not be seen."""

    stack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSlow(WorkerEvent):
    """A profiler in its process finds its GPU slow: it computes at this share of its own best speed."""

    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBroken(WorkerEvent):
    """One of its reductions failed in this generation."""

    generation: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionFound(WorkerEvent):
    """A completed reduction of `generation` has shown whose state or arithmetic is wrong; nobody, if no majority is."""

    generation: int
    culprits: tuple[str, ...]
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeAnswered(WorkerEvent):
    """It has stopped in `generation` for good and holds `commit`.

    Attributes:
        prepared: the update whose gradients it holds, checked; it applies it if the next generation resumes there.
        missed: members that it was waiting for, to form the generation with.
        outvoted: its bits, or its arithmetic, are wrong: it may only die.
    """

    generation: int
    commit: CommitId
    healed: bool
    prepared: CommitId | None = None
    missed: tuple[str, ...] = ()
    outvoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AtDoor(WorkerEvent):
    """Its training thread has come to the door and begins to form `generation`."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed(WorkerEvent):
    """It has joined the group of `generation`, holds the view's state, and waits for the go.

    Attribute `healing_s`: how long state was handed on, or taken.
    """

    generation: int
    healing_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected(WorkerEvent):
    """It has connected with all who will probably be the next generation, as it was asked to while `generation` ran."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FormingFailed(WorkerEvent):
    """It could not join the group of `generation`."""

    generation: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue(WorkerEvent):
    """It has waited in vain for what follows a freeze or a forming, and asks where things stand."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(WorkerEvent):
    """It stands at the door and holds its part of this commit, checked.

    Attributes:
        seconds: reading, checking and installing. nbytes: read.
        places: "tier where bytes" of each source, most bytes first. retries: requests that gave nothing usable.
    """

    commit: CommitId
    seconds: float = 0.0
    nbytes: int = 0
    places: tuple[str, ...] = ()
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRefused(WorkerEvent):
    """It could not get its part of this commit.

    Attributes:
        kept: the one that it still holds, None if it holds none in full.
        is_bad: nobody can: the persistent tier, and whoever else holds it, gave wrong bytes, or none.
        shard, chunk: of which; -1: of none in particular.
    """

    commit: CommitId
    reason: str
    kept: CommitId | None = None
    is_bad: bool = False
    shard: int = -1
    chunk: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStable(WorkerEvent):
    """The leader tells of a stable step."""

    report: StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStaged(WorkerEvent):
    """The shared memory of its host holds its shard of a stable step, sealed: `nbytes` of state."""

    commit: CommitId
    shard: int
    shards: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierDegraded(WorkerEvent):
    """It goes on without a tier of its checkpoints; told once."""

    tier: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChosen(WorkerEvent):
    """The group's leader writes to a tier as often as `reason` says, which is not as often as before."""

    tier: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged(WorkerEvent):
    """What its process has logged, for the run's log files; of no concern to the controller.

    Attributes:
        worker: whose file it is: a worker's name, or who else it is, as in "monitor-5f0c...".
        role: worker, supervisor, monitor or replica. node: of the process; empty: that of the worker.
    """

    lines: tuple[LogLine, ...]
    role: str = WORKER
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(WorkerEvent):
    """Something for the journal, of no concern to the controller.

    Attributes:
        what: of what kind. step: it belongs to, -1: to none. seconds: that training has waited for it.
    """

    what: str
    step: int = -1
    seconds: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEnded(WorkerEvent):
    """It has left the last step together with all members of `generation`; times: what went on since."""

    generation: int
    commit: CommitId
    times: StepTimes = NOT_TIMED


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFnReturned(WorkerEvent):
    """train_fn has returned; `dismissed` if it was told to leave."""

    dismissed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFnRaised(WorkerEvent):
    """train_fn raised an exception that is the user's."""

    summary: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeparted(WorkerEvent):
    """It leaves by itself (SystemExit, KeyboardInterrupt, a signal) and will never apply a step again."""

    reason: str
