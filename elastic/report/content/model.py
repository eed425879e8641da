"""Pure. What a report shows, as values that become JSON as they are.

Moments (`at_s` and the like) are seconds since the run began, unless they are said to be of the wall clock.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The run in a few figures.

    Attributes:
        run: its name. phase: where it stands, in the controller's words. ending: how it ended, empty before.
        began_s, seen_s: first and last word of it, of the wall clock. wall_s: between them.
        goodput: productive share of the workers' time, by the ledger.
        incarnation, generation, step: the newest; step is the last stable one, -1 before the first.
        replicas: of the current generation; most_replicas: of any.
        workers: that are there. spares: of these, parked.
        steps_per_s, samples_per_s: lately. loss: the last one told, None if none is.
        incidents: failures so far; open_incidents: of these, not yet resolved.
        typical_resume_s, worst_resume_s: from the first signal of an incident to the next committed step; None: no
            incident was resolved.
    """

    run: str
    phase: str
    ending: str
    began_s: float
    seen_s: float
    wall_s: float
    goodput: float
    incarnation: int
    generation: int
    step: int
    replicas: int
    most_replicas: int
    workers: int
    spares: int
    steps_per_s: float
    samples_per_s: float
    loss: float | None
    incidents: int
    open_incidents: int
    typical_resume_s: float | None
    worst_resume_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a category of the ledger took.

    Attributes:
        wall_s: of the run's wall time. worker_s: of its workers' time. meaning: of the category.
    """

    category: str
    wall_s: float
    worker_s: float
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Where the time went: the categories add up to the whole, in both views."""

    wall_s: float
    worker_s: float
    spent: tuple[Spent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A published definition of goodput, and what it says of this run.

    Attributes:
        value: None where it says nothing. parts: seconds by the names that its authors gave them; most have none.
    """

    name: str
    value: float | None
    formula: str
    source: str
    parts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a worker's life: "starting", "ready" (parked) or "training"."""

    state: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A worker, or a node where there are many workers.

    Attributes:
        end: how the worker ended, empty while it is there; ended_s: when.
        segments: of the worker. shares: of the node's lane: which part of it trains, for each of the timeline's bins.
    """

    name: str
    node: str
    end: str = ""
    ended_s: float | None = None
    segments: tuple[Segment, ...] = ()
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Who did what, when.

    Attributes:
        is_by_node: a lane is a node. bin_s: length of a bin of its shares.
        lanes: in the order of nodes. left_out: lanes that are not told of, for there are too many.
        unplaced: workers that came to no node, and have a lane only where lanes are workers.
    """

    is_by_node: bool
    bin_s: float
    lanes: tuple[Lane, ...]
    left_out: int = 0
    unplaced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A line of a story: what the journal has at a moment."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """An incident, and all that is known of it.

    Attributes:
        number: its place in the order of beginnings. label: the number that the controller gave a failure, behind that
            of the driver's life where there are several; empty for what is no failure.
        is_planned: it was wanted. is_failure: something failed; else it is a planned stop, or steps that were slow.
        began_s: when progress ceased. opened_s: its first signal. resumed_s: the first committed step after it, None
            while there is none.
        cost_s: lost wall time; costs: by category of the ledger. cost_worker_s: lost time of workers.
        culprits: workers. evidence: what was seen. decision: what was done, and why.
        injected: what was done on purpose to cause it, empty if nothing was.
        replicas_before, replicas_after: of the generations around it, 0 if not known. step: committed first after it.
        told: what the journal has around it.
    """

    number: int
    label: str
    kind: str
    is_planned: bool
    is_failure: bool
    began_s: float
    opened_s: float
    resumed_s: float | None
    cost_s: float
    cost_worker_s: float
    costs: tuple[tuple[str, float], ...] = ()
    culprits: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    decision: str = ""
    injected: str = ""
    replicas_before: int = 0
    replicas_after: int = 0
    step: int | None = None
    told: tuple[Told, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values over time, thinned: of each stretch the lowest, the highest and the last."""

    name: str
    at_s: tuple[float, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A step that was not committed at the first try.

    Attributes:
        value: its loss, None if none was told. why: "tried again" after a failure, or "redone" from a checkpoint.
    """

    at_s: float
    step: int
    value: float | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How often a tier is written from now on, or that it is written less safely, and why."""

    at_s: float
    tier: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """How a worker's micro-batches compare with the median of its group: 1 is as fast as that.

    Attributes:
        mean, worst: over its life. latest: None where it is no member of the newest generation. seconds: of its
            micro-batches lately.
    """

    worker: str
    node: str
    mean: float
    worst: float
    latest: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A knob, its value, and where that was given."""

    path: str
    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it.

    Attributes:
        sizes: replicas of generations. throughput: samples a second. losses: of stable steps; metric: its name.
        retries: steps of `losses` that were not committed at the first try; retried: how many there were in all;
            redone: of these, from a checkpoint.
        rungs: the newest step on each rung of the checkpoint ladder, over time; -1: what was there is lost.
        stalls: checkpoint costs in the ledger, by category. decisions: on intervals, the newest, which are last;
            decided: how many there were in all.
        stragglers: slowest first. paced: of so many workers.
        summaries: what each part shows, in a sentence, by the part's name.
        notes: what is not shown, and why.
    """

    headline: Headline
    waterfall: Waterfall
    timeline: Timeline
    measures: tuple[Measure, ...] = ()
    incidents: tuple[Story, ...] = ()
    sizes: Series = field(default_factory=lambda: Series(name="replicas"))
    throughput: Series = field(default_factory=lambda: Series(name="samples a second"))
    losses: Series = field(default_factory=lambda: Series(name="loss"))
    metric: str = ""
    retries: tuple[Retry, ...] = ()
    retried: int = 0
    redone: int = 0
    rungs: tuple[Series, ...] = ()
    stalls: tuple[Spent, ...] = ()
    decisions: tuple[Decision, ...] = ()
    decided: int = 0
    stragglers: tuple[Slowness, ...] = ()
    paced: int = 0
    settings: tuple[Setting, ...] = ()
    summaries: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
