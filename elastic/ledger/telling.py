"""Pure. An account as facts for JSON, as lines for people, as rows for a spreadsheet."""

from collections.abc import Iterator, Mapping
from typing import Any

from elastic.ledger.model import Account, Category, Incident, Seconds

HEADER = ("category", "wall_s", "worker_s")


def facts(account: Account) -> dict[str, Any]:
    """Names, numbers and texts; every category is there, with 0 where nothing went into it."""
    return {
        "run": account.run,
        "begin_s": account.begin_s,
        "end_s": account.end_s,
        "wall_s": account.wall_s,
        "workers_s": account.workers_s,
        "goodput": account.goodput,
        "is_live": account.is_live,
        "incarnations": account.incarnations,
        "wall_seconds": _named(account.wall_seconds, Category),
        "worker_seconds": _named(account.worker_seconds, Category),
        "checkpoint_stall_by_rung": dict(account.stall_seconds),
        "callbacks_by_name": dict(account.callback_seconds),
        "steps": {
            "kept": account.steps.kept,
            "redone": account.steps.redone,
            "broken": account.steps.broken,
            "last": account.steps.last,
            "usual_s": account.steps.usual_s,
            "saved": account.steps.saved,
            "loaded": list(account.steps.loaded),
        },
        "incidents": [incident_facts(incident) for incident in account.incidents],
        "definitions": [
            {
                "name": one.name,
                "value": one.value,
                "formula": one.formula,
                "source": one.source,
                "parts": dict(one.parts),
            }
            for one in account.definitions
        ],
    }


def incident_facts(incident: Incident) -> dict[str, Any]:
    """One incident; only the categories that it cost something in."""
    return {
        "number": incident.number,
        "incarnation": incident.incarnation,
        "kind": incident.kind,
        "is_planned": incident.is_planned,
        "began_s": incident.began_s,
        "opened_s": incident.opened_s,
        "decided_s": incident.decided_s,
        "resumed_s": incident.resumed_s,
        "culprits": list(incident.culprits),
        "evidence": list(incident.evidence),
        "decision": incident.decision,
        "replicas_before": incident.replicas_before,
        "replicas_after": incident.replicas_after,
        "step": incident.step,
        "injected": [
            {"fault": one.fault, "kind": one.kind, "target": one.target, "at_s": one.at_s, "proof": one.proof}
            for one in incident.injected
        ],
        "cost_s": incident.cost_s,
        "wall_seconds": _named(incident.wall_seconds, incident.wall_seconds),
        "worker_seconds": _named(incident.worker_seconds, incident.worker_seconds),
    }


def rows(account: Account) -> Iterator[tuple[str, float, float]]:
    """By category, then the whole; see HEADER."""
    for category in Category:
        wall_s, worker_s = account.wall_seconds.get(category, 0.0), account.worker_seconds.get(category, 0.0)
        yield category.value, wall_s, worker_s
    yield "all", account.wall_s, account.workers_s


def lines(account: Account) -> Iterator[str]:
    """What most time went into comes first; moments are seconds since the run began."""
    lives = "1 life" if account.incarnations == 1 else f"{account.incarnations} lives"
    yield f"run {account.run}: {account.wall_s:.1f} s {_of_what(account)}, {lives} of the driver"
    yield f"goodput {account.goodput:.1%} of {account.workers_s:.1f} worker-seconds; {_steps(account)}"
    yield ""
    yield f"{'':22}{'wall s':>12}{'':>8}{'worker-s':>14}{'':>8}"
    spent = [row for row in rows(account) if row[1] or row[2]]
    for name, wall_s, worker_s in sorted(spent, key=lambda row: (row[0] == "all", -row[2])):
        shares = _share(wall_s, account.wall_s), _share(worker_s, account.workers_s)
        yield f"{name:22}{wall_s:12.2f}{shares[0]:>8}{worker_s:14.2f}{shares[1]:>8}"
    if account.callback_seconds:
        yield f"callbacks: {named(account.callback_seconds)}"
    if account.incidents:
        yield ""
    for incident in account.incidents:
        yield from _story(incident, account.run_begin_s)
    yield ""
    for one in account.definitions:
        value = "-" if one.value is None else f"{one.value:.1%}"
        yield f"{one.name:32}{value:>8}  {one.formula}"
        for name, spent_s in one.parts.items():
            if spent_s:
                yield f"  {name:42}{spent_s:12.2f} s"


def named(seconds: Mapping[str, float]) -> str:
    """Names and seconds, the most first."""
    return ", ".join(f"{name} {spent_s:.2f} s" for name, spent_s in sorted(seconds.items(), key=lambda one: -one[1]))


def _of_what(account: Account) -> str:
    if not account.is_part:
        return "so far" if account.is_live else "in all"
    begin_s, end_s = (at_s - account.run_begin_s for at_s in (account.begin_s, account.end_s))
    return f"of it, from {begin_s:.1f} s to {end_s:.1f} s"


def _steps(account: Account) -> str:
    steps = account.steps
    lost = f", {steps.redone} done for nothing" if steps.redone else ""
    return f"{steps.kept} steps kept{lost}, {steps.usual_s:.3g} s as a rule"


def _story(incident: Incident, begin_s: float) -> Iterator[str]:
    culprits = f": {', '.join(incident.culprits)}" if incident.culprits else ""
    size = sum(incident.worker_seconds.values())
    cost = f"{incident.cost_s:.2f} s, {size:.2f} worker-seconds"
    yield f"{incident.number:>3}  at {incident.began_s - begin_s:.2f} s  {incident.kind}{culprits}  cost {cost}"
    for cause in incident.injected:
        yield f"     injected: {cause.fault} at {cause.at_s - begin_s:.2f} s"
    for told in incident.evidence[:1]:
        yield f"     seen: {told.splitlines()[0] if told else ''}"
    if incident.decision:
        yield f"     done: {incident.decision}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else ""


def _named(seconds: Seconds, categories: Any) -> dict[str, float]:
    return {category.value: seconds.get(category, 0.0) for category in categories}
