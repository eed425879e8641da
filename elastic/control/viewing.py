"""Pure. What a policy is shown of the state: counts, times, budgets; nothing that it could change."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from elastic.control.care import middle
from elastic.control.persistent import persistent
from elastic.control.poison import Flown, Poison, worst
from elastic.control.remediation import ClusterView
from elastic.control.speed import by_node
from elastic.control.state import OVER, WorkerRecord
from elastic.control.turn import Turn
from elastic.control.values import Incident, View

V = TypeVar("V")
Workers = Mapping[str, WorkerRecord]


class Lazy(Mapping[str, V]):
    """A mapping that is worked out when somebody first looks into it: most policies look at few, if at any.

    Args:
        make: works it out, from values that do not change.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Mapping[str, V]]) -> None:
        self._make = make
        self._made: Mapping[str, V] | None = None

    def __getitem__(self, key: str) -> V:
        return self._all[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return repr(self._all)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self._all,)

    @property
    def _all(self) -> Mapping[str, V]:
        if self._made is None:
            self._made = self._make()
        return self._made


def cluster_view(turn: Turn, incident: Incident, survivors: int, spares: int) -> ClusterView:
    """What is left, as far as it is known now; counts of replicas."""
    state, limits, care = turn.state, turn.settings.limits, turn.state.care
    low, high = turn.settings.scaling.bounds
    size, refill_s = limits.budget_incidents, limits.budget_refill_s
    return ClusterView(
        survivors=survivors,
        spares=spares,
        minimum=low,
        maximum=high,
        incidents_without_progress=state.without_progress,
        allowed_without_progress=limits.max_in_job_restarts,
        poison=_poison(state.flown, limits.poison_deaths),
        slowness=Lazy(partial(_slowness, state.workers, state.view)),
        node_slowness=Lazy(partial(_node_slowness, state.workers, state.view)),
        width=state.width,
        nodes=Lazy(partial(_nodes, state.workers, {*incident.culprits, *incident.suspects})),
        budget_left={kind: one.level(turn.now_s, size, refill_s) for kind, one in care.budgets.items()},
        node_incidents=care.node_incidents,
        quarantined={node: until_s - turn.now_s for node, until_s in care.quarantine.items()},
        recovery_s={kind: took for kind, seconds in care.recovery_s.items() if (took := middle(seconds)) is not None},
        loading_s=middle(care.loading_s),
        node_return_s=middle(care.placing_s),
        step_s=middle(state.steps_s),
        step=max(state.published, *state.published_ahead, -1),
        tier_steps={rung: step for rung, step in care.tier_steps.items() if step >= 0},
        nodes_missing=care.nodes_missing,
    )


def _poison(flown: tuple[Flown, ...], allowed: int) -> Poison | None:
    found = worst(flown)
    return found if found is not None and len(found.workers) >= allowed else None


def _slowness(workers: Workers, view: View | None) -> dict[str, float]:
    return {member.name: member.slowness for member in _members(workers, view)}


def _node_slowness(workers: Workers, view: View | None) -> dict[str, float]:
    return by_node((member.node, member.slowness) for member in _members(workers, view))


def _members(workers: Workers, view: View | None) -> list[WorkerRecord]:
    return persistent(workers).many(member.worker for member in view.members) if view is not None else []


def _nodes(workers: Workers, lost: set[str]) -> dict[str, str]:
    """Of those who are there, or were lost just now."""
    named = (worker for worker in workers.values() if worker.standing not in OVER or worker.name in lost)
    return {worker.name: worker.node for worker in named if worker.node}
