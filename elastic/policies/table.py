"""Pure. What each built-in policy does about each class of incident, as a table; docs/policies.md shows it."""

from collections.abc import Iterator

from elastic.control.remediation import ClusterView, Kind, Policy
from elastic.control.values import Incident, IncidentClass
from elastic.policies.cost_aware import CostAware
from elastic.policies.exit_on_notice import ExitOnNotice
from elastic.policies.hot_swap import HotSwapFirst
from elastic.policies.ladder import Ladder
from elastic.policies.shrink_first import ShrinkFirst

BUILT_IN: dict[str, Policy] = {
    "Ladder": Ladder(),
    "HotSwapFirst": HotSwapFirst(),
    "ShrinkFirst": ShrinkFirst(),
    "ExitOnNotice": ExitOnNotice(),
    "CostAware": CostAware(),
}
NOBODY_LOST = frozenset({IncidentClass.COLLECTIVE_BROKEN, IncidentClass.FORMING_FAILED})
# Two to four replicas, four of them trained: a spare is ready; none is; only one replica is left.
SITUATIONS = {"a spare is ready": (3, 1), "no spare": (3, 0), "below the minimum": (1, 0)}


def incident_of(kind: IncidentClass) -> Incident:
    """As it usually is: with one culprit, or with none."""
    culprits = () if kind in NOBODY_LOST else ("w1",)
    return Incident(number=0, kind=kind, opened_at_s=0.0, culprits=culprits, evidence=("as told",), replicas_before=4)


def view_of(survivors: int, spares: int) -> ClusterView:
    return ClusterView(
        survivors=survivors,
        spares=spares,
        minimum=2,
        maximum=4,
        incidents_without_progress=1,
        allowed_without_progress=10,
        nodes={f"w{number}": f"node-{number}" for number in range(4)},
        slowness={"w1": 2.0},
    )


def answers(policy: Policy, kind: IncidentClass) -> tuple[Kind, ...]:
    """What it does in each situation."""
    return tuple(policy(incident_of(kind), view_of(*left)).kind for left in SITUATIONS.values())


def render() -> str:
    """The table in Markdown: where the situation matters, what is done in each, in their order."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f"| incident | {' | '.join(BUILT_IN)} |"
    yield "|---" * (1 + len(BUILT_IN)) + "|"
    for kind in IncidentClass:
        cells = [_cell(answers(policy, kind)) for policy in BUILT_IN.values()]
        yield f"| {kind.value} | {' | '.join(cells)} |"


def _cell(kinds: tuple[Kind, ...]) -> str:
    return kinds[0].value if len(set(kinds)) == 1 else " / ".join(kind.value for kind in kinds)
