"""Pure. The nouns that events, commands and states share: commits, members, views, incidents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Any

from elastic.control.copies import changed, received, sent, set_field
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.control.xid import Severity


@dataclass(frozen=True, slots=True, order=False)
class CommitId:
    """Which update a state is the result of; states of different ids never mix.

    Attributes:
        incarnation: life of the driver in which it was committed.
        generation, attempt: membership and try that completed the step.
        step: index of the last committed step, -1 before the first.
        lineage: digest over the conservation records of all steps since the start.
    """

    incarnation: int
    generation: int
    attempt: int
    step: int
    lineage: str

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(self)

    def same_state(self, other: "CommitId") -> bool:
        """Whether both name the same bits: same step reached by the same reductions."""
        return self.step == other.step and self.lineage == other.lineage


AS_BEFORE, NONE_LEFT_OUT = (0, 0), (1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A new line of history begins: steps past `step` that were committed before (incarnation, generation) are void.

    Attribute `skip`: steps [begin, end) of the new line that are left out: their samples count as consumed. It takes
        the place of what older forks say of steps past `step`; `AS_BEFORE`: what they say holds.
    """

    incarnation: int
    generation: int
    step: int
    skip: tuple[int, int] = AS_BEFORE

    def voids(self, commit: CommitId) -> bool:
        """Whether a commit was left behind here."""
        return commit.step > self.step and (commit.incarnation, commit.generation) < (self.incarnation, self.generation)


def is_left_out(step: int, forks: Sequence[Fork]) -> bool:
    """Whether a rewind left this step out. forks: oldest first; the newest before the step that tells decides."""
    told = next((fork.skip for fork in reversed(forks) if fork.step < step and fork.skip != AS_BEFORE), AS_BEFORE)
    return told[0] <= step < told[1]


NOTHING_COMMITTED = CommitId(incarnation=0, generation=0, attempt=0, step=-1, lineage="")


@dataclass(frozen=True, slots=True)
class Member:
    """One worker of a generation and where its store listens."""

    worker: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A generation: who belongs to it, in rank order, and how they get to hold the same state.

    Attributes:
        members: by rank, the workers of a replica one after the other; rank 0 leads.
        resume: the commit all members hold once the generation is formed.
        donors: ranks that hold `resume` now.
        behind: ranks that receive it from the donors.
        bootstrap: nobody has trained yet, and the leader's freshly built state becomes everybody's.
        published: last step whose report has reached the driver, -1 before the first.
        balanced: micro-batches are dealt in proportion to speed, as measured in this generation.
        restored: members hold `resume` from a checkpoint; what they did after it, or waits to be told, is void.
        forks: where the run's history began anew so far, oldest first; the last one is this generation if `restored`.
        width: workers of a replica. The worker of rank r holds shard r % width in replica r // width.
        part: which of the generation's groups this is, where replicas have several workers.
        tuning: what was asked to be changed since the run, or its incarnation, began.
        replaced: members whose last applied update was lost with the rest of their replica, and done again by others.
        failures: incidents of this life of the driver so far. watched_s: for how long it has lasted.
        restores: orders to load a commit up to this number are over: whoever gets one of them late does not obey.
        left_out: steps that nobody computes: a micro-batch of theirs has ended all who tried.
        is_connected: all members have connected already, as they were asked to (`Connect`).
    """

    run: str
    incarnation: int
    generation: int
    members: tuple[Member, ...]
    resume: CommitId
    donors: tuple[int, ...]
    behind: tuple[int, ...]
    bootstrap: bool = False
    published: int = -1
    balanced: bool = False
    restored: bool = False
    forks: tuple[Fork, ...] = ()
    width: int = 1
    part: str = ""
    tuning: Tuning = NOT_TUNED
    replaced: tuple[str, ...] = ()
    failures: int = 0
    watched_s: float = 0.0
    restores: int = 0
    left_out: tuple[int, ...] = ()
    is_connected: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Its members by column: they are most of it."""
        columns = tuple(zip(*((one.worker, one.host, one.port) for one in self.members), strict=True))
        return _received_view, (columns, *sent(changed(self, members=()))[1])

    @property
    def leader(self) -> Member:
        return self.members[0]

    @property
    def replicas(self) -> int:
        return len(self.members) // self.width

    def gang(self, replica: int) -> tuple[Member, ...]:
        """The workers of one replica, by shard."""
        return self.members[replica * self.width : (replica + 1) * self.width]

    def across(self, shard: int) -> "View":
        """Who holds this shard, one worker of each replica: they sum gradients, and hand state to each other."""
        if self.width == 1:
            return self

        def pick(ranks: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(rank // self.width for rank in ranks if rank % self.width == shard)

        return replace(
            self,
            members=self.members[shard :: self.width],
            donors=pick(self.donors),
            behind=pick(self.behind),
            width=1,
            part=f"shard{shard}/",
        )

    def inside(self, replica: int) -> "View":
        """The workers of one replica, who agree on each step."""
        return replace(self, members=self.gang(replica), donors=(), behind=(), width=1, part=f"replica{replica}/")

    def is_first_of_its_shard(self, worker: str) -> bool:
        """Whether no member of lower rank, on the same host, holds the same shard."""
        rank = self.rank_of(worker)
        before = self.members[rank % self.width : rank : self.width]
        return all(member.host != self.members[rank].host for member in before)

    def rank_of(self, worker: str) -> int:
        for rank, member in enumerate(self.members):
            if member.worker == worker:
                return rank
        raise KeyError(f"{worker} is not a member of generation {self.generation}")


def _received_view(columns: tuple[tuple[Any, ...], ...], *values: Any) -> View:
    view: View = received(*values)
    set_field(view, "members", tuple(map(Member, *columns)) if columns else ())
    return view


class Rung(IntEnum):
    """How safe a step is; each rung includes those below it."""

    STAGED = 0  # some shard is sealed in some node's memory
    LOCAL = 1  # every shard is
    REPLICATED = 2  # every shard is kept on 1 + peers nodes, or on as many as there are
    DURABLE = 3  # committed in the persistent tier


def on_rungs(newest: Mapping[str, int], step: int, rung: str) -> dict[str, int]:
    """The newest step on each rung, once one has come to a rung, or fell back to it; an empty rung: nobody holds it.

    Where it is not any more, the newest on the rung above counts, which includes this one; -1: there is none. Of a step
    that is newer than that, the ladder tells anew. What is durable stays durable, whatever is told of nodes.
    """
    now, above = dict(newest), -1
    reached = Rung[rung.upper()] if rung else -1
    for one in reversed(Rung):
        name = one.name.lower()
        if one <= reached:
            now[name] = max(step, now.get(name, -1))
        elif one is not Rung.DURABLE and now.get(name) == step:
            now[name] = above
        above = now.get(name, above)
    return now


class IncidentClass(Enum):
    """What kind of failure an incident is; later entries are more specific and win when signals are merged."""

    STRAGGLER = "straggler"
    DEPARTURE = "planned departure"
    COLLECTIVE_BROKEN = "collective broken"
    WORKER_UNRESPONSIVE = "worker unresponsive"
    FORMING_FAILED = "forming failed"
    WORKER_LOST = "worker lost"
    WORKER_HUNG = "worker hung"
    GPU_FAULT = "GPU fault"
    NODE_LOST = "node lost"
    HOST_SILENT = "host silent"
    SILENT_CORRUPTION = "silent corruption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One failure, from its first signal to the first committed step after it.

    Attributes:
        number: counts the run's incidents.
        opened_at_s: time of the first signal; `resumed_at_s`: commit of the first step after it.
        absent_s: for which the controller had not looked until then, with jumps of its clock.
        culprits: workers that were lost; evidence: what was seen, in order.
        suspects: workers among which the culprit is, where it can not be told.
        severity: the worst that sensors have found about the hardware of the culprits, or about what they did to it;
            None: nothing.
        decision: the remediation and its reason.
        replicas_before, replicas_after: sizes of the generations around it.
        step: first step committed after it.
    """

    number: int
    kind: IncidentClass
    opened_at_s: float
    absent_s: float = 0.0
    culprits: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    severity: Severity | None = None
    decision: str = ""
    replicas_before: int = 0
    replicas_after: int = 0
    generation: int = 0
    resumed_at_s: float | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What the time up to a commit went into, on the worker that tells of it; the rest is computing.

    Attributes:
        since_s: the commit before, or the go of the generation, whichever came last; 0: not known.
        data_s: waiting for data. wait_s: for other workers. stall_s: for snapshots. evaluation_s: evaluating.
        callback_s: in callbacks on the worker.
    """

    since_s: float = 0.0
    data_s: float = 0.0
    wait_s: float = 0.0
    stall_s: float = 0.0
    evaluation_s: float = 0.0
    callback_s: float = 0.0


NOT_TIMED = StepTimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """A stable step as the leader tells it: known to have been applied by every member of its generation.

    Attributes:
        seconds: smoothed time of a micro-batch, waiting left out, by rank of the worker; 0 where it is not known.
        tuning: what the step was computed at.
        voted: with its reduction all replicas have shown that they held the same bits before it.
        times: what it took on the worker that tells.
        costs: seconds that worker callbacks took around it on the worker that tells of it, by their names.
    """

    commit: CommitId
    metrics: dict[str, float]
    replicas: int
    samples: int
    started_at_s: float
    committed_at_s: float
    skipped: str = ""
    seconds: tuple[float, ...] = ()
    tuning: Tuning = NOT_TUNED
    voted: bool = False
    times: StepTimes = NOT_TIMED
    costs: dict[str, float] = field(default_factory=dict)
