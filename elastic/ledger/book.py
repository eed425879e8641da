"""Pure. What is written down while lines come in: lives, what went on when, steps, incidents. Nothing is judged yet.

Reports of steps come late, and not in order; so what happened between two steps is decided only when somebody asks
(`spans.py`).
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter

from elastic.ledger.model import Category, Injected
from elastic.ledger.stretch import ANY_PART, Shape, Step, Stretch, Usual

_STRETCH_S = 10.0
_STRETCHES = 1000  # about: with a run, its stretches grow longer
_TIERS = 8  # a step may come to one tier while newer ones have come to others
_JOINED_S = 1e-3  # steps that are nearer follow each other

RUN_START, DRIVER_LOST, RESUBMITTED = "run start", "driver lost", "resubmitted"
# As what the sensors of a host see an injected fault, if they do.
_SEEN_AS = {"disk_full": ("space", "memory"), "xid": ("xid", "gpu_lost")}
_SENSED = 64
_EARLY_S, _SEEN_S = 1.0, 10.0  # a sensor looks once a period, and clocks differ
PLANNED_STOP, INJECTED, RAISED = "planned stop", "injected fault", "train_fn raised"
STALLED_STEP, SLOW_STEPS, REPEATED_STEPS = "stalled step", "slow steps", "repeated steps"
INFERRED = (STALLED_STEP, SLOW_STEPS, REPEATED_STEPS)  # no line tells of these

_begin = attrgetter("begin_s")


@dataclass(slots=True, kw_only=True)
class Life:
    """One life of the driver. `workers`: that it asked for; 0: no line has told. end_s: of what is known of it."""

    incarnation: int
    begin_s: float
    end_s: float
    workers: int = 0
    width: int = 1
    is_over: bool = False
    has_failed: bool = False  # not the training: the driver, which nobody had told to end


@dataclass(slots=True, kw_only=True)
class Mark:
    """From `at_s` on, this went on, where no step was computed; no category: steps were to be computed.

    Attributes:
        is_new: a member of the group had never computed a step. rung: that a checkpoint was waited for to come to.
    """

    at_s: float
    category: Category | None
    incident: int | None = None
    is_new: bool = False
    rung: str = ""


@dataclass(slots=True, kw_only=True)
class Entry:
    """An incident as it is told; see `model.Incident`."""

    number: int
    incarnation: int
    kind: str
    opened_s: float
    its_number: int | None = None
    is_planned: bool = False
    decided_s: float | None = None
    resumed_s: float | None = None
    culprits: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    decision: str = ""
    replicas_before: int = 0
    replicas_after: int = 0
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Sensed:
    """What a host monitor has seen. kind: of a finding. where: the node, and the workers that it concerns."""

    at_s: float
    kind: str
    where: frozenset[str]
    detail: str


@dataclass(slots=True)
class Struck:
    """An injected fault.

    Attributes:
        until_s: when it is undone. entry: the incident that stands for it, if no other does.
        is_sensed: a host monitor has seen it.
    """

    what: Injected
    until_s: float
    entry: int
    is_sensed: bool = False

    @property
    def hurts_until_s(self) -> float:
        """How long it makes steps slow by itself; of a notice, what counts is what comes of it."""
        return self.what.at_s if self.what.kind == "notice" else self.until_s


@dataclass(slots=True)
class Book:
    """See the module.

    Attributes:
        run: its name. seen_s: the last moment of which something is known.
        marks: by time. stretches: by time; those of steps that the run went back behind are void.
        usual: by shape of a step. nodes: of workers.
        saved: steps that a checkpoint tier held whole, with the moment at which the first one did. loaded: steps that
            were restored from, with the moment.
        struck: injected faults. sensed: what was seen lately of such kinds as faults bring about.
        waiting: incidents that the first step from a moment on ends, with the moment.
        short_by: the incident since which replicas are missing. cause: the one that what goes on now follows from.
        inferred: incidents that no line tells of, by what shows them.
        groups: cause and short_by of each generation, by (incarnation, generation), for steps that are told late.
        openers: the first step of each generation that is told of.
        noted: by step, the seconds that training has waited for something, by worker and what it was. notes: how many.
    """

    run: str = ""
    begin_s: float | None = None
    seen_s: float = 0.0
    lives: list[Life] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    sensed: deque[Sensed] = field(default_factory=lambda: deque(maxlen=_SENSED))
    usual: dict[Shape, Usual] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    saved: list[tuple[float, int]] = field(default_factory=list)
    loaded: list[tuple[float, int]] = field(default_factory=list)
    inferred: dict[tuple[str, float, float], int] = field(default_factory=dict)
    groups: dict[tuple[int, int], tuple[int | None, int | None]] = field(default_factory=dict)
    openers: dict[tuple[int, int], int] = field(default_factory=dict)
    noted: dict[int, dict[tuple[str, str], float]] = field(default_factory=dict)
    notes: int = 0
    waiting: list[tuple[Entry, float]] = field(default_factory=list)
    short_by: int | None = None
    cause: int | None = None

    # --- lives ---

    def see(self, at_s: float) -> None:
        """Something is known of this moment."""
        self.begin_s = at_s if self.begin_s is None else self.begin_s
        self.seen_s = max(self.seen_s, at_s)
        if self.lives:
            self.lives[-1].end_s = max(self.lives[-1].end_s, at_s)

    def begin_life(self, at_s: float, incarnation: int, workers: int = 0, width: int = 1) -> None:
        """A driver begins; what there was between the last one and it is nobody's."""
        before = self.lives[-1] if self.lives else None
        kind, opened_s, seen = RUN_START, at_s, "no earlier life of the driver is told of"
        if before is not None:
            is_planned, opened_s = before.is_over and not before.has_failed, before.end_s
            kind = RESUBMITTED if is_planned else DRIVER_LOST
            ended = "had ended" if is_planned else "had ended by an error of its driver"
            how = ended if before.is_over else "fell silent before the run had ended"
            seen = f"life {before.incarnation} {how}; for {max(0.0, at_s - opened_s):.1f} s there was no driver"
        entry = self.open(
            kind,
            opened_s,
            is_planned=kind is not DRIVER_LOST,
            evidence=(seen,),
            decision="start workers",
            incarnation=incarnation,
        )
        self.cause = entry.number
        for one in self.entries:  # nobody is left who would tell of those of the life before
            if one.resumed_s is None and one.kind not in INFERRED:
                self.await_step(one, at_s)
        if before is not None:
            self.mark(opened_s, Category.BETWEEN_INCARNATIONS, self.cause)
        life = Life(incarnation=incarnation, begin_s=at_s, end_s=at_s, workers=workers, width=width)
        self.lives.append(life)
        self.see(at_s)
        self.mark(at_s, Category.WORKER_START, self.cause)

    def size(self, replicas: int) -> None:
        """So many replicas are to train: at least so many were asked for."""
        if self.lives:
            self.lives[-1].workers = max(self.lives[-1].workers, replicas * self.lives[-1].width)

    def life_at(self, at_s: float) -> Life | None:
        """The last one that had begun by then; the first, before."""
        found = None
        for life in self.lives:
            if found is None or life.begin_s <= at_s:
                found = life
        return found

    # --- what went on ---

    def mark(self, at_s: float, category: Category | None, incident: int | None = None, is_new: bool = False) -> None:
        """From now on this goes on."""
        at_s = max(at_s, self.marks[-1].at_s) if self.marks else at_s
        self.marks.append(Mark(at_s=at_s, category=category, incident=incident, is_new=is_new))

    def refine(self, marks: list[Mark]) -> None:
        """What went on since the last mark is known better now; in order, the first at its time or later."""
        if self.marks:
            begin_s = self.marks[-1].at_s
            for one in marks:
                begin_s = one.at_s = max(begin_s, one.at_s)
            self.marks += marks

    # --- incidents ---

    def open(
        self,
        kind: str,
        at_s: float,
        *,
        is_planned: bool = False,
        evidence: tuple[str, ...] = (),
        culprits: tuple[str, ...] = (),
        decision: str = "",
        incarnation: int | None = None,
    ) -> Entry:
        """One more reason why time is lost."""
        life = self.lives[-1].incarnation if self.lives else 0
        entry = Entry(
            number=len(self.entries),
            incarnation=life if incarnation is None else incarnation,
            kind=kind,
            opened_s=at_s,
            is_planned=is_planned,
            evidence=evidence,
            culprits=culprits,
            decision=decision,
        )
        self.entries.append(entry)
        return entry

    def await_step(self, entry: Entry, since_s: float) -> None:
        """The first step that is committed from then on is the one after this incident."""
        self.waiting = [(one, at_s) for one, at_s in self.waiting if one is not entry] + [(entry, since_s)]

    def strike(self, what: Injected, lasts_s: float) -> None:
        """A fault was injected; it is an incident of its own until another turns out to be it."""
        entry = self.open(
            INJECTED,
            what.at_s,
            evidence=(what.proof or "its injection was told of",),
            culprits=(what.target,) if what.target else (),
            decision="none: no incident came of it",
        )
        self.struck.append(Struck(what, what.at_s + lasts_s, entry.number))
        for one in self.sensed:
            self._explain(self.struck[-1], one)

    def sense(self, seen: Sensed) -> None:
        """What is seen of an injected fault is evidence of it, beside its own proof; it may be told before that."""
        if any(seen.kind in kinds for kinds in _SEEN_AS.values()):
            self.sensed.append(seen)
            for struck in self.struck[-_SENSED:]:
                self._explain(struck, seen)

    def _explain(self, struck: Struck, seen: Sensed) -> None:
        entry, what = self.entries[struck.entry], struck.what
        is_then = what.at_s - _EARLY_S <= seen.at_s <= struck.until_s + _SEEN_S
        is_it = seen.kind in _SEEN_AS.get(what.kind, ()) and what.target in seen.where
        if is_then and is_it:
            struck.is_sensed = True
            if seen.detail not in entry.evidence:
                entry.evidence = (*entry.evidence, seen.detail)

    # --- checkpoints ---

    def save(self, at_s: float, step: int) -> None:
        """A tier holds this step whole; the next one may tell the same."""
        if all(step != one for _, one in self.saved[-_TIERS:]):
            self.saved.append((at_s, step))

    # --- steps ---

    def step(self, step: Step) -> None:
        """A step was committed; told twice, it counts once."""
        if self._is_known(step.number):
            return
        self._resume(step)
        group = (step.incarnation, step.generation)
        self.openers[group] = min(step.number, self.openers.get(group, step.number))
        self.size(step.replicas)
        last = self.stretches[-1] if self.stretches else None
        is_late = last is not None and step.committed_s < last.end_s
        into, took_s = self._insert(step) if is_late else self._append(step, last)
        # Of how long such steps take.
        says_nothing = step.is_first or step.is_skipped or took_s <= 0 or step.part == ANY_PART
        into.places.append(-1 if says_nothing else self.usual.setdefault(step.shape, Usual()).add(took_s))
        self.see(step.committed_s)

    def _resume(self, step: Step) -> None:
        for entry, since_s in self.waiting:
            if step.committed_s >= since_s:
                entry.resumed_s, entry.step = step.committed_s, step.number
        self.waiting = [(entry, since_s) for entry, since_s in self.waiting if entry.resumed_s is None]

    def _longest_s(self) -> float:
        return max(_STRETCH_S, (self.seen_s - (self.begin_s or 0.0)) / _STRETCHES)

    def _stretch(self, step: Step, begin_s: float) -> Stretch:
        group = (step.incarnation, step.generation)
        cause, short_by = self.groups.get(group, (self.cause, self.short_by))
        return Stretch(
            begin_s=begin_s,
            incarnation=step.incarnation,
            generation=step.generation,
            replicas=step.replicas,
            samples=step.samples,
            first=step.number,
            has_newcomers=step.is_first,
            cause=cause,
            short_by=short_by,
            worker=step.worker,
        )

    def _append(self, step: Step, last: Stretch | None) -> tuple[Stretch, float]:
        """A step behind all others: one more of the last stretch, or the first of a new one."""
        since_s = step.since_s or step.started_s
        begin_s = since_s if last is None or since_s > last.end_s + _JOINED_S else last.end_s
        end_s = max(begin_s, step.committed_s)
        if last is not None and begin_s <= last.end_s and last.takes(step, self._longest_s()):
            return last, last.add(step, last.end_s, end_s)
        new = self._stretch(step, min(begin_s, end_s))
        took_s = new.add(step, new.end_s, end_s)  # first: a line that makes no sense leaves no stretch without steps
        self.stretches.append(new)
        return new, took_s

    def _insert(self, step: Step) -> tuple[Stretch, float]:
        """A step that is told late: it goes where there is room."""
        place = bisect_left(self.stretches, step.committed_s, key=_begin)
        before_s = self.stretches[place - 1].end_s if place else 0.0
        after_s = self.stretches[place].begin_s if place < len(self.stretches) else step.committed_s
        end_s = max(before_s, min(step.committed_s, after_s))
        new = self._stretch(step, min(end_s, max(before_s, step.since_s or step.started_s)))
        took_s = new.add(step, new.begin_s, end_s)
        self.stretches.insert(place, new)
        return new, took_s

    def _is_known(self, number: int) -> bool:
        for stretch in reversed(self.stretches):
            if not stretch.is_void and stretch.first <= number:
                return number <= stretch.last
        return False

    def pace_s(self, stretch: Stretch, place: int) -> float:
        """How long the steps around this one of a stretch took, as a rule; 0: it is not to be compared."""
        usual, at = self.usual.get(stretch.shape_of(place)), stretch.places[place]
        return usual.pace_s(at) if usual is not None and at >= 0 else 0.0

    def go_back(self, to_step: int, incident: int | None) -> None:
        """The run goes on from an older step: what was done after it was done for nothing."""
        for place in range(len(self.stretches) - 1, -1, -1):
            stretch = self.stretches[place]
            if stretch.is_void or stretch.last <= to_step:
                continue
            if stretch.first <= to_step:
                rest = stretch.split(to_step + 1 - stretch.first)
                self.stretches.insert(place + 1, rest)
                stretch = rest
            stretch.is_void, stretch.voided_by = True, incident

    def usual_s(self, shape: Shape | None = None) -> float:
        """How long a step of this shape takes; of the shape with the most steps, where it is not known; 0: none is."""
        known = self.usual.get(shape) if shape is not None else None
        if known is not None and known.steps >= 3:
            return known.seconds
        part = min(shape[1], 0) if shape is not None else 0
        alike = [one for key, one in self.usual.items() if min(key[1], 0) == part]
        most = max(alike, key=lambda one: one.steps, default=None)
        return most.seconds if most is not None else 0.0

    def usual_update_s(self, shape: Shape | None = None) -> float:
        """How long an update takes, on the mean of those of a step of this shape; see `usual_s`."""
        whole = {key: one for key, one in self.usual.items() if key[1] >= 0}
        most = max(whole, key=lambda key: whole[key].steps, default=None)
        replicas = shape[0] if shape is not None else most[0] if most is not None else 0
        parts_s = [one.seconds for (count, part), one in self.usual.items() if part < 0 and count == replicas]
        return (self.usual_s(shape if shape is not None else most) + sum(parts_s)) / (1 + len(parts_s))
