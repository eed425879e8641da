"""Pure. Moments: what users are told of, each with a name and typed content; found by comparing states.

A moment is told once, after it has happened; nothing waits for whoever is told.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from elastic.control import events as ev
from elastic.control.doubt import flapping_until_s
from elastic.control.outcome import Ending
from elastic.control.state import RunState
from elastic.control.values import Incident, IncidentClass, Rung

_NO_DEFEAT = (Ending.SUCCEEDED, Ending.STOPPED, Ending.EXITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Base of all moments.

    Attributes:
        at_s: of the wall clock. step: the last stable step by then, -1 before the first.
    """

    name: ClassVar[str] = ""
    run: str
    at_s: float
    step: int

    @property
    @abstractmethod
    def sentence(self) -> str:
        """For people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOpened(Moment):
    """The first signal of a failure."""

    name: ClassVar[str] = "incident_opened"
    incident: Incident

    @property
    def sentence(self) -> str:
        return f"incident {self.incident.number} opened: {self.incident.kind.value}: {_whom(self.incident)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentDecided(Moment):
    """The policy has said what is done about it; again where it has changed its mind."""

    name: ClassVar[str] = "incident_decided"
    incident: Incident

    @property
    def sentence(self) -> str:
        return f"incident {self.incident.number} decided: {self.incident.decision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentResolved(Moment):
    """The first step after it is stable. `seconds`: from the first signal to the commit of that step."""

    name: ClassVar[str] = "incident_resolved"
    incident: Incident
    seconds: float

    @property
    def sentence(self) -> str:
        told = f"incident {self.incident.number} resolved: {self.incident.decision}"
        return f"{told}; step {self.incident.step} committed {self.seconds:.2f} s after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized(Moment):
    """A generation trains with another number of replicas than the last one."""

    name: ClassVar[str] = "resized"
    generation: int
    replicas_before: int
    replicas: int

    @property
    def sentence(self) -> str:
        return f"resized from {self.replicas_before} to {self.replicas} replicas in generation {self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReached(Moment):
    """A step has come to a rung of the checkpoint ladder, or fell back to it.

    Attributes:
        checkpoint_step: that step. copies: nodes that keep the shard with the fewest.
        degraded: why they are fewer than asked for, or empty. nbytes: of one copy of its state, 0 if not known.
    """

    name: ClassVar[str] = "rung_reached"
    checkpoint_step: int
    rung: Rung
    copies: int
    degraded: str
    reason: str
    nbytes: int = 0

    @property
    def sentence(self) -> str:
        less = f" (degraded: {self.degraded})" if self.degraded else ""
        return f"step {self.checkpoint_step} is {self.rung.name.lower()}{less}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RungDegraded(Moment):
    """A rung is not what was asked for: fewer copies, above all. An empty reason: it is again."""

    name: ClassVar[str] = "rung_degraded"
    rung: str
    reason: str

    @property
    def sentence(self) -> str:
        return f"rung {self.rung} is {f'degraded: {self.reason}' if self.reason else 'as asked for again'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeHeard(Moment):
    """A node, or one worker, will be lost soon; the other of the two names is empty."""

    name: ClassVar[str] = "notice"
    node: str
    worker: str
    reason: str

    @property
    def sentence(self) -> str:
        return f"notice for {self.worker or f'node {self.node}'}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerFound(Moment):
    """A worker was slow for `Limits.slow_steps` steps: `slowness` times the group's median."""

    name: ClassVar[str] = "straggler"
    worker: str
    node: str
    slowness: float

    @property
    def sentence(self) -> str:
        return f"straggler {self.worker} on node {self.node}: {self.slowness:.2f} times the group's median"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuarantined(Moment):
    """A node gets no worker before `until_s`, of the wall clock; infinite: not at all."""

    name: ClassVar[str] = "quarantine"
    node: str
    until_s: float

    @property
    def sentence(self) -> str:
        for_s = self.until_s - self.at_s
        return f"node {self.node} is in quarantine for {f'{for_s:.0f} s' if isfinite(for_s) else 'good'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveUp(Moment):
    """The run ends without success. `error`: the class that fit() raises; message: its first line."""

    name: ClassVar[str] = "give_up"
    error: str
    message: str

    @property
    def sentence(self) -> str:
        return f"the run {self.run} gave up after step {self.step}: {self.error}: {self.message}"


MOMENTS: tuple[type[Moment], ...] = (
    IncidentOpened,
    IncidentDecided,
    IncidentResolved,
    Resized,
    RungReached,
    RungDegraded,
    NoticeHeard,
    StragglerFound,
    NodeQuarantined,
    GaveUp,
)
NAMES = frozenset(kind.name for kind in MOMENTS)


def moments(before: RunState, state: RunState, events: Sequence[ev.Event], step: int) -> list[Moment]:
    """What has happened between two states, in this order: notices, incidents, quarantines, resizes, the end.

    Args:
        events: that led from one to the other. step: the last one that was told as stable.
    """
    at_s = state.seen_s if state.seen_s is not None else 0.0
    told = _Told(run=state.settings.run, at_s=at_s, step=step)
    has_news = before.incidents != state.incidents
    is_shut_anew = before.care.quarantine != state.care.quarantine
    return [
        *_notices(told, before, events),
        *(_incidents(told, before, state) if has_news else ()),
        *(_quarantines(told, before, state) if has_news or is_shut_anew else ()),
        *_resizes(told, before, state),
        *_ends(told, before, state),
    ]


def incident_moments(before: RunState, state: RunState) -> list[Moment]:
    """Those of `moments` that are of incidents; cheap where there is no news of any."""
    if before.incidents == state.incidents:
        return []
    at_s = state.seen_s if state.seen_s is not None else 0.0
    return list(_incidents(_Told(run=state.settings.run, at_s=at_s, step=state.published), before, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What all moments between two states have in common."""

    run: str
    at_s: float
    step: int


def _notices(told: _Told, before: RunState, events: Sequence[ev.Event]) -> Iterator[Moment]:
    heard = [event for event in events if isinstance(event, ev.NodeNotice | ev.WorkerNotice)]
    if not heard:
        return
    known = {*before.leaving, *(name for name, worker in before.workers.items() if worker.notice)}
    for event in heard:
        node, worker = (event.node, "") if isinstance(event, ev.NodeNotice) else ("", event.worker)
        if node + worker not in known:
            known.add(node + worker)
            whom = {"node": node, "worker": worker, "reason": event.reason}
            yield NoticeHeard(run=told.run, at_s=told.at_s, step=told.step, **whom)


def _incidents(told: _Told, before: RunState, state: RunState) -> Iterator[Moment]:
    known = {one.number: one for one in before.incidents}
    newest = max(known, default=-1)
    for incident in state.incidents:
        old = known.get(incident.number)
        if old is None and incident.number <= newest:
            continue
        if old is None:
            yield IncidentOpened(run=told.run, at_s=incident.opened_at_s, step=told.step, incident=incident)
            if incident.kind is IncidentClass.STRAGGLER:
                yield from _stragglers(told, state, incident)
        if incident.decision and (old is None or old.decision != incident.decision):
            yield IncidentDecided(run=told.run, at_s=told.at_s, step=told.step, incident=incident)
        if incident.resumed_at_s is not None and (old is None or old.resumed_at_s is None):
            took_s = incident.resumed_at_s - incident.opened_at_s
            yield IncidentResolved(run=told.run, at_s=told.at_s, step=told.step, incident=incident, seconds=took_s)


def _stragglers(told: _Told, state: RunState, incident: Incident) -> Iterator[Moment]:
    for name in incident.culprits:
        worker = state.workers.get(name)
        if worker is not None:
            where = {"worker": name, "node": worker.node}
            yield StragglerFound(run=told.run, at_s=told.at_s, step=told.step, slowness=worker.slowness, **where)


def _quarantines(told: _Told, before: RunState, state: RunState) -> Iterator[Moment]:
    culprits = {name for incident in state.incidents if incident.resumed_at_s is None for name in incident.culprits}
    nodes = {state.workers[name].node for name in culprits if name in state.workers} | set(state.care.quarantine)
    reset = {one.node for one in before.care.resets} - {one.node for one in state.care.resets}
    for node in sorted(nodes - {""}):
        until_s, was_s = _shut_until_s(state, node), _shut_until_s(before, node)
        if until_s is None or until_s <= told.at_s:
            continue
        was_reset = node in reset  # it was shut for a reset, and stays so, as that has failed
        if was_s is None or was_s <= told.at_s or (was_reset and until_s > was_s):
            yield NodeQuarantined(run=told.run, at_s=told.at_s, step=told.step, node=node, until_s=until_s)


def _shut_until_s(state: RunState, node: str) -> float | None:
    """Until when a node gets no worker, be it that the policy says so, or that it has lost one after another."""
    known = (state.care.quarantine.get(node), flapping_until_s(state, node))
    return max((until_s for until_s in known if until_s is not None), default=None)


def _resizes(told: _Told, before: RunState, state: RunState) -> Iterator[Moment]:
    if state.trained == before.trained or not before.world_sizes or state.view is None:
        return
    was, now = before.world_sizes[-1], state.world_sizes[-1]
    if was != now:
        sizes = {"replicas_before": was, "replicas": now, "generation": state.view.generation}
        yield Resized(run=told.run, at_s=told.at_s, step=told.step, **sizes)


def _ends(told: _Told, before: RunState, state: RunState) -> Iterator[Moment]:
    outcome = state.outcome
    if outcome is None or before.outcome is not None or outcome.ending in _NO_DEFEAT:
        return
    error, message = outcome.ending.value, outcome.message.partition("\n")[0]
    yield GaveUp(run=told.run, at_s=told.at_s, step=told.step, error=error, message=message)


def _whom(incident: Incident) -> str:
    return ", ".join(incident.culprits) or "nobody to blame yet"
