"""Pure. What each built-in policy does about each class of incident, as a table; docs/policies.md shows it."""

from collections.abc import Iterator

from elastic.control.remediation import ClusterView, Kind, Policy
from elastic.control.values import Incident, IncidentClass
from elastic.control.xid import Severity
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
# Where the class of a finding matters: of the other incidents it is evidence, and changes nothing.
SEVERITIES: dict[IncidentClass, tuple[Severity | None, ...]] = {
    IncidentClass.WORKER_LOST: (None, Severity.USER_ERROR),
    IncidentClass.GPU_FAULT: (Severity.RESTARTABLE, Severity.RESET_NEEDED, Severity.NODE_MUST_GO),
}
CASES = tuple((kind, severity) for kind in IncidentClass for severity in SEVERITIES.get(kind, (None,)))


def incident_of(kind: IncidentClass, severity: Severity | None = None) -> Incident:
    """As it usually is: with one culprit, or with none."""
    culprits = () if kind in NOBODY_LOST else ("w1",)
    return Incident(
        number=0,
        kind=kind,
        opened_at_s=0.0,
        culprits=culprits,
        evidence=("as told",),
        severity=severity,
        replicas_before=4,
    )


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


def answers(policy: Policy, kind: IncidentClass, severity: Severity | None = None) -> tuple[Kind, ...]:
    """What it does in each situation."""
    return tuple(policy(incident_of(kind, severity), view_of(*left)).kind for left in SITUATIONS.values())


def render() -> str:
    """The table in Markdown: where the situation matters, what is done in each, in their order."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f"| incident | {' | '.join(BUILT_IN)} |"
    yield "|---" * (1 + len(BUILT_IN)) + "|"
    for kind, severity in CASES:
        cells = [_cell(answers(policy, kind, severity)) for policy in BUILT_IN.values()]
        yield f"| {name_of(kind, severity)} | {' | '.join(cells)} |"


def name_of(kind: IncidentClass, severity: Severity | None) -> str:
    """Of a row of the table."""
    return kind.value if severity is None else f"{kind.value}, {severity.value}"


def _cell(kinds: tuple[Kind, ...]) -> str:
    return kinds[0].value if len(set(kinds)) == 1 else " / ".join(kind.value for kind in kinds)
