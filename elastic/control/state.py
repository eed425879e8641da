"""Pure. The state of a run as the controller keeps it: phases, workers, the current generation."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any

from elastic.control.care import Care
from elastic.control.copies import sent
from elastic.control.data import Plan
from elastic.control.flight import Reading
from elastic.control.outcome import Outcome
from elastic.control.persistent import PersistentMap, persistent
from elastic.control.poison import Flown
from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.control.values import AS_BEFORE, NOTHING_COMMITTED, CommitId, Fork, Incident, View
from elastic.control.xid import Severity
from elastic.settings import RunSettings

if TYPE_CHECKING:
    from elastic.control.tally import Tally


class Phase(Enum):
    """Where a run stands."""

    STARTING = "starting"
    RUNNING = "running"
    FREEZING = "freezing"
    FORMING = "forming"
    WAITING = "waiting"
    FINISHING = "finishing"
    ENDED = "ended"

    __hash__ = object.__hash__  # an Enum hashes the name, in Python; these are looked up all the time


class Standing(Enum):
    """Where a worker stands, as far as the controller knows."""

    REQUESTED = "requested"
    LOADING = "loading"
    PARKED = "parked"
    MEMBER = "member"
    SUSPECT = "suspect"
    FINISHED = "finished"
    DEAD = "dead"
    GONE = "gone"
    EXILED = "exiled"

    __hash__ = object.__hash__


# An exiled worker may be alive, out of reach; it can never again make a step stable.
OVER = frozenset({Standing.DEAD, Standing.GONE, Standing.EXILED})


# What holds of a worker whose state counts again.
IN_STEP: dict[str, Any] = {"left_with": None, "outdated": False, "replaced": False}

# What holds of a member of a generation that it has said nothing of.
NOTHING_SAID: dict[str, Any] = {
    "at_door": False,
    "formed": False,
    "answer": None,
    "prepared": None,
    "missed": (),
    "restoring": None,
    "kept": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """What is known of one worker.

    Attributes:
        gang: the replica it was started for; shard: its place in it.
        answer: the commit it named when it last froze, or loaded; None from when it has formed a generation after that.
        answered_in: the generation in which it froze.
        prepared: the update that it can apply yet; missed: whom it waited for while forming; named with the answer.
        healed: it holds the state of `answer` in full.
        left_with: the commit that it held when its replica was left out, until it is healed.
        outdated: a generation has trained since, so what it holds counts for nothing. replaced: from a commit that is
            not `left_with`, nor goes on from it.
        at_door: it has begun to form the current generation. formed: it has joined its group.
        tries: generations it failed to join.
        doubted: proof of its death is being looked for. fenced: its host monitor was told to kill it.
        notice: why it will be lost soon, empty if it will not; notice_s: when that was heard.
        inspected: its host monitor was asked for its stacks; stack: what came back.
        finding: the last that its node's sensors have said about it, or its GPU, empty if nothing; severity: the worst.
        since_s: when its standing last changed, less `RunState.absent_s`. lived_s: how long it was a member before.
        avoid: nodes on which it must not be placed. pinned: the only one on which it may be, empty: any other.
        gpus: that it was given, as it sees them. slot_bytes: what its snapshots will take of its node's memory.
        is_dismissed: it was told to leave, and is not known to have left.
        restoring: the commit it was told to load at the door, since restoring_s; refused: it could not, and still holds
            what it kept, if that is not None.
        slowness: how many times the group's median a micro-batch takes it. slow_steps: steps in a row over the limit.
        connecting: it was asked to connect ahead, and has not told yet that it has.
    """

    name: str
    gang: int = 0
    shard: int = 0
    standing: Standing = Standing.REQUESTED
    node: str = ""
    host: str = ""
    port: int = 0
    pid: int = 0
    layout: str = ""
    answer: CommitId | None = None
    answered_in: int = 0
    prepared: CommitId | None = None
    missed: tuple[str, ...] = ()
    healed: bool = False
    left_with: CommitId | None = None
    outdated: bool = False
    replaced: bool = False
    at_door: bool = False
    formed: bool = False
    tries: int = 0
    doubted: bool = False
    fenced: bool = False
    notice: str = ""
    notice_s: float = 0.0
    inspected: bool = False
    stack: str = ""
    finding: str = ""
    severity: Severity | None = None
    since_s: float = 0.0
    lived_s: float = 0.0
    restoring: CommitId | None = None
    restoring_s: float = 0.0
    refused: bool = False
    kept: CommitId | None = None
    slowness: float = 1.0
    slow_steps: int = 0
    connecting: bool = False
    avoid: frozenset[str] = frozenset()
    pinned: str = ""
    gpus: tuple[str, ...] = ()
    slot_bytes: int = 0
    is_dismissed: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return sent(self)

    def has_answered(self, generation: int) -> bool:
        """It has said what it holds: when it froze in this generation, or at the door, where it has been since."""
        return self.answer is not None and (self.answered_in == generation or self.standing is Standing.PARKED)

    @property
    def held(self) -> tuple[CommitId, ...]:
        """What it can give, or resume from, once it has answered: the commit it named, the one it is prepared for."""
        if self.standing not in (Standing.MEMBER, Standing.PARKED) or not self.healed or self.answer is None:
            return ()
        return (self.answer,) if self.prepared is None else (self.answer, self.prepared)

    @property
    def is_restoring(self) -> bool:
        """It was told to load a commit, and has not answered."""
        return self.restoring is not None and not self.healed and not self.refused


Gang = tuple[WorkerRecord, ...]
State = tuple[int, str]  # step and lineage of a commit: what they name are the same bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """A restore under way.

    Attributes:
        number: counts the run's restores.
        at_most: the step that was asked for by somebody; None: the newest. skip: see `Fork`.
        is_rewind: it was asked for from outside: no step past where the run was is expected of it.
        needed_for: what has made the state that live workers hold worthless; empty: they can go on with it.
        commit: what is restored, None before it was found. without: commits that proved bad.
        since_s: when it was last looked for. enough_s: when enough replicas had loaded it, None before.
    """

    number: int = 0
    at_most: int | None = None
    is_rewind: bool = False
    needed_for: str = ""
    skip: tuple[int, int] = AS_BEFORE
    commit: CommitId | None = None
    without: tuple[CommitId, ...] = ()
    since_s: float = 0.0
    enough_s: float | None = None


def whole_gangs(workers: Iterable[WorkerRecord], width: int) -> tuple[Gang, ...]:
    """Replicas of which all workers are given, by shard; in the order in which their first worker comes."""
    found: dict[int, dict[int, WorkerRecord]] = {}
    for worker in workers:
        found.setdefault(worker.gang, {}).setdefault(worker.shard, worker)
    return tuple(tuple(one[shard] for shard in range(width)) for one in found.values() if len(one) == width)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The whole state of the controller; a value, so that it can be kept, compared and handed to a successor.

    Attributes:
        view: the current generation, or the one being formed; None before the first.
        generation: number of `view`, 0 before the first.
        published: all stable steps up to this one were reported, -1 before the first.
        published_ahead: later ones that were reported too; a leader that died owes those between.
        planned: the freeze under way was asked for growth or a departure, not caused by a failure.
        survivors_only: the last forming failed, so the next generation takes no joiners.
        formed_in_vain: the last generation that all members had come to form, and had not formed in time.
        balanced: the policy wants micro-batches dealt by speed.
        restore: state is to come from a tier before the next generation is formed; None: from live members.
        forks: where the history began anew, oldest first.
        verified: the last step after which a vote has shown that all replicas held the same bits, -1 before the first.
        disputed_from: what that was when replicas held different ones, and no majority, for the last time.
        found_nothing: the generation after which the tiers were looked at in vain, -1 before. looks_in_vain: how often.
        restores: how many were begun.
        saving: workers that were asked to save what they hold, since the run waits.
        furthest: the last step ever told, -1 before the first.
        restarts: how often in a row state came from a tier, since nobody held it, or the policy wanted it, without a
            step past `furthest`.
        pause_asked: a member was asked to have all stop at the end of a step, last at pause_asked_s.
        ahead: who was asked to connect for the generation after that, None before somebody was; unconnected: how many
            of them have not yet.
        plan: how data is cut, as the workers that came to the door have told; None before the first.
        tuning: what was asked to be changed; tuned: what stable steps are computed at, from step `tuned_from` on; None:
            not known, until the first one after a restore, or under a new driver.
        start_failures: workers in a row that ended before their first step (`control/starts.py`).
        without_progress: incidents in a row with no stable step between them.
        flown: with which micro-batches workers have died, of steps that are not stable yet (`control/poison.py`).
        left_out: steps that all replicas leave out, since one of their micro-batches is poison.
        leaving: nodes that will be taken away, and why.
        asked_s: when members out of contact were last asked again, less absent_s.
        care: what is remembered from one incident to the next.
        heard_s: when each node with a host monitor was last heard; readings: what it saw of each worker.
        knocked: nodes that were knocked at since they were heard last. unreached: from which nothing came back.
        answered: those whose kernel did answer, and when that was, or when they were knocked at again.
        steps_s: how long the last steps took.
        incidents: those under treatment, and the last ones before them; failures: how many there were.
        world_sizes: replicas of the last generations that trained; trained: how many did.
        tally: what is counted over workers and hosts (`control/tally.py`); no part of the value, and not sent along.
        phase_since_s: when the phase was entered; of a freeze that nobody has planned, when the last member answered.
        began_s: when the first generation of this life was begun.
        seen_s: when the last event was taken in, None before the first. absent_s: how long, in all, nobody looked.
    """

    settings: RunSettings
    phase: Phase = Phase.STARTING
    workers: Mapping[str, WorkerRecord] = field(default_factory=PersistentMap)
    view: View | None = None
    generation: int = 0
    published: int = -1
    published_ahead: frozenset[int] = frozenset()
    planned: bool = False
    survivors_only: bool = False
    formed_in_vain: int = -1
    balanced: bool = False
    restore: Restoring | None = None
    forks: tuple[Fork, ...] = ()
    verified: int = -1
    disputed_from: int = -1
    found_nothing: int = -1
    looks_in_vain: int = 0
    restores: int = 0
    saving: tuple[str, ...] = ()
    furthest: int = -1
    restarts: int = 0
    pause_asked: bool = False
    pause_asked_s: float = 0.0
    ahead: View | None = None
    unconnected: int = 0
    plan: Plan | None = None
    tuning: Tuning = NOT_TUNED
    tuned: Tuning | None = NOT_TUNED
    tuned_from: int = 0
    next_worker: int = 0
    next_gang: int = 0
    start_failures: int = 0
    without_progress: int = 0
    flown: tuple[Flown, ...] = ()
    left_out: tuple[int, ...] = ()
    monitors_lost: frozenset[str] = frozenset()
    leaving: Mapping[str, str] = field(default_factory=dict)
    asked_s: float = -inf
    care: Care = field(default_factory=Care)
    heard_s: Mapping[str, float] = field(default_factory=PersistentMap)
    readings: Mapping[str, Reading] = field(default_factory=PersistentMap)
    knocked: frozenset[str] = frozenset()
    unreached: frozenset[str] = frozenset()
    answered: Mapping[str, float] = field(default_factory=dict)
    steps_s: tuple[float, ...] = ()
    incidents: tuple[Incident, ...] = ()
    failures: int = 0
    world_sizes: tuple[int, ...] = ()
    trained: int = 0
    phase_since_s: float = 0.0
    absent_s: float = 0.0
    began_s: float | None = None
    seen_s: float | None = None
    outcome: Outcome | None = None
    tally: "Tally | None" = field(default=None, compare=False, repr=False)

    @property
    def members(self) -> tuple[WorkerRecord, ...]:
        """Records of the current generation's members, in rank order."""
        if self.view is None:
            return ()
        return tuple(persistent(self.workers).many(member.worker for member in self.view.members))

    def standing(self, *standings: Standing) -> tuple[WorkerRecord, ...]:
        """Workers of these standings, in order of their start."""
        return tuple(worker for worker in self.workers.values() if worker.standing in standings)

    @property
    def width(self) -> int:
        """Workers of a replica."""
        return self.settings.scaling.workers_per_replica

    @property
    def replicas(self) -> int:
        """Replicas of the current generation."""
        return 0 if self.view is None else len(self.view.members) // self.width

    @property
    def ready(self) -> tuple[WorkerRecord, ...]:
        """Parked workers that may still be taken into a generation."""
        tries = self.settings.limits.joiner_tries
        return tuple(worker for worker in self.standing(Standing.PARKED) if worker.tries < tries)


def highest_commit(answers: tuple[CommitId, ...]) -> CommitId:
    """The commit to resume from: the highest step that a live, healed member holds.

    Among members at that step, the state most of them hold wins; on a tie, the smallest lineage, so that the choice
    does not depend on order.
    """
    if not answers:
        return NOTHING_COMMITTED
    state = highest(Counter((answer.step, answer.lineage) for answer in answers))
    return next(answer for answer in answers if (answer.step, answer.lineage) == state)


def highest(votes: Mapping[State, int]) -> State:
    """The highest step; of its states the one that most hold, on a tie the one of the smallest lineage.

    Args:
        votes: how many hold each state; not empty.
    """
    top = max(step for step, _ in votes)
    return min((state for state in votes if state[0] == top), key=lambda state: (-votes[state], state[1]))
