"""Pure. What the ledger answers: accounts, incidents with their costs, spans of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Category(Enum):
    """What a second went into; docs/goodput.md has the definitions."""

    PRODUCTIVE = "productive"
    REDONE = "redone"
    DETECTING = "detecting"
    DECIDING = "deciding"
    FORMING = "forming"
    HEALING = "healing"
    WORKER_START = "worker_start"
    INITIALIZATION = "initialization"
    COMPILATION = "compilation"
    DATA_WAIT = "data_wait"
    CHECKPOINT_STALL = "checkpoint_stall"
    RESTORE = "restore"
    STRAGGLER_DRAG = "straggler_drag"
    REDUCED_CAPACITY = "reduced_capacity"
    EVALUATION = "evaluation"
    CALLBACKS = "callbacks"
    PAUSED = "paused"
    BETWEEN_INCARNATIONS = "between_incarnations"
    FINISHING = "finishing"
    UNKNOWN = "unknown"


Seconds = Mapping[Category, float]  # categories without a second may be left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A fault that was injected on purpose, and struck. `fault`: kind, target and options, as in a schedule."""

    fault: str
    kind: str
    target: str
    at_s: float
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Why time was lost: a failure, or something planned, with what it cost.

    Attributes:
        number: counts what is listed, from 0, over all lives of the run.
        incarnation: life of the driver. its_number: of that life's own count; None: the controller had no incident.
        kind: the class of a failure ("worker lost"); or "run start", "planned stop", "driver lost", "resubmitted",
            "stalled step", "slow steps", "train_fn raised", "injected fault".
        is_planned: nothing had failed.
        began_s: when progress ceased, as far as it shows: the first moment at which a step was overdue, or the first
            signal, if that came earlier. opened_s: first signal. decided_s: last decision. resumed_s: commit of the
            first step after it. None: has not happened.
        culprits: workers. evidence: what was seen, in order. decision: the remediation and its reason.
        replicas_before, replicas_after: sizes of the generations around it; 0: not known.
        step: first step committed after it.
        injected: what caused it, where that was done on purpose, oldest first.
        wall_seconds, worker_seconds: lost by category; no second belongs to two incidents.
    """

    number: int
    incarnation: int = 0
    its_number: int | None = None
    kind: str
    is_planned: bool = False
    began_s: float
    opened_s: float
    decided_s: float | None = None
    resumed_s: float | None = None
    culprits: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    decision: str = ""
    replicas_before: int = 0
    replicas_after: int = 0
    step: int | None = None
    injected: tuple[Injected, ...] = ()
    wall_seconds: Seconds = field(default_factory=dict)
    worker_seconds: Seconds = field(default_factory=dict)

    @property
    def cost_s(self) -> float:
        """Wall seconds in which nothing, or less, was done because of it; without those at a smaller size."""
        return sum(seconds for name, seconds in self.wall_seconds.items() if name is not Category.REDUCED_CAPACITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of the run's time: steps one after the other, or one thing that was done instead.

    Attributes:
        wall_seconds, worker_seconds: what it went into; each adds up to its whole.
        stall_seconds: what CHECKPOINT_STALL in it waited for, by rung.
        callback_seconds: CALLBACKS in it, by callback.
        incidents: numbers of those that seconds of it are booked to, with these.
        workers: that were asked for. generation, replicas: that trained; 0 where nobody did.
        first_step: of those that were committed in it, None where there were none; ends_s: when each of them was.
        is_void: they were lost again.
    """

    begin_s: float
    end_s: float
    wall_seconds: Seconds
    worker_seconds: Seconds
    workers: int
    stall_seconds: Mapping[str, float] = field(default_factory=dict)
    callback_seconds: Mapping[str, float] = field(default_factory=dict)
    incidents: Mapping[int, tuple[Seconds, Seconds]] = field(default_factory=dict)
    incarnation: int = 0
    generation: int = 0
    replicas: int = 0
    first_step: int | None = None
    ends_s: Sequence[float] = ()
    is_void: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A published measure of the same run. value: a share, None where the run has not what it takes.

    Attributes:
        formula: with the numbers of this run in it. source: who defines it so.
        parts: seconds by the names that its authors give them, where they have any.
    """

    name: str
    value: float | None
    formula: str
    source: str
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What came of steps.

    Attributes:
        kept: committed, and part of the history that counts. redone: committed, and lost again. broken: attempts that
            were lost in the middle. last: -1 before any.
        usual_s: how long a step takes this run at its most frequent size, at its best for a while; 0 before any. Of
            steps in phases, their updates' mean.
        saved: the last that a checkpoint tier below the memory of one worker held whole; loaded: those restored from.
    """

    kept: int = 0
    redone: int = 0
    broken: int = 0
    last: int = -1
    usual_s: float = 0.0
    saved: int | None = None
    loaded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where the time between two moments went.

    Attributes:
        run: name; empty if no line tells it. run_begin_s, run_end_s: of all that is known of it.
        workers_s: the workers that were asked for (the largest number of replicas), each for the whole time.
        wall_seconds: adds up to `wall_s`. worker_seconds: adds up to `workers_s`.
        stall_seconds: CHECKPOINT_STALL by rung: what was waited for.
        callback_seconds: CALLBACKS by callback, as far as the time in steps goes.
        incidents: those with a second in it, or that began in it, oldest first.
        incarnations: lives of the driver that it touches.
        is_live: the last life has not ended, as far as the journal tells.
    """

    run: str
    run_begin_s: float
    run_end_s: float
    begin_s: float
    end_s: float
    workers_s: float
    wall_seconds: Seconds
    worker_seconds: Seconds
    stall_seconds: Mapping[str, float]
    incidents: tuple[Incident, ...]
    steps: Steps
    incarnations: int
    is_live: bool
    callback_seconds: Mapping[str, float] = field(default_factory=dict)
    definitions: tuple[Definition, ...] = ()

    @property
    def wall_s(self) -> float:
        return self.end_s - self.begin_s

    @property
    def is_part(self) -> bool:
        """Of the run, and not all of it."""
        return (self.begin_s, self.end_s) != (self.run_begin_s, self.run_end_s)

    @property
    def goodput(self) -> float:
        """Productive share of the worker-seconds that were asked for; 0 before there are any."""
        whole_s = self.workers_s
        return self.worker_seconds.get(Category.PRODUCTIVE, 0.0) / whole_s if whole_s > 0 else 0.0
