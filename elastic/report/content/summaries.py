"""Pure. What each part of a report shows, in a sentence: for who does not see the charts, and for who does."""

from elastic.report.content.model import Report
from elastic.report.content.words import duration, numbered, several

_NO_CHECKPOINTS = "No checkpoint is told of: fit(checkpoint=...) says how safe each step is made."


def summaries(report: Report, failures_s: float) -> dict[str, str]:
    """By the part's name. failures_s: what all failures have cost, those that are not listed included."""
    return {
        "waterfall": _waterfall(report),
        "timeline": _timeline(report),
        "incidents": _incidents(report, failures_s),
        "sizes": _sizes(report),
        "throughput": _throughput(report),
        "losses": _losses(report),
        "rungs": _rungs(report),
        "checkpoints": _checkpoints(report),
        "stragglers": _stragglers(report),
        "settings": _settings(report),
    }


def notes(report: Report, stories_left_out: int) -> tuple[str, ...]:
    """What is not shown."""
    found = []
    if report.timeline.left_out:
        found.append(f"{report.timeline.left_out} more nodes are not drawn.")
    if report.timeline.unplaced:
        found.append(f"Not drawn are workers that came to no node: {report.timeline.unplaced}.")
    if stories_left_out:
        more = f"{stories_left_out} more incidents are not listed"
        found.append(f"{more}: failures come first, and what cost most; `elastic goodput` has all.")
    if report.retried > len(report.retries):
        found.append(f"{report.retried - len(report.retries)} more retries are not marked.")
    return tuple(found)


def _waterfall(report: Report) -> str:
    whole = report.waterfall
    spent = {one.category: one.wall_s for one in whole.spent}
    productive_s = spent.pop("productive", 0.0)
    if whole.wall_s <= 0:
        return "Nothing has been measured yet."
    text = f"Of {duration(whole.wall_s)}, {productive_s / whole.wall_s:.1%} went into steps that count."
    dearest = sorted((one for one in spent.items() if one[1] > 0), key=lambda one: -one[1])[:3]
    most = ", ".join(f"{name} ({duration(seconds)})" for name, seconds in dearest)
    return f"{text} Most of the rest: {most}." if most else text


def _timeline(report: Report) -> str:
    lanes = report.timeline.lanes
    if not lanes:
        return "No worker has been started yet."
    if report.timeline.is_by_node:
        return f"{len(lanes)} nodes; the darker, the more of a node's workers train."
    ended = [lane.name for lane in lanes if lane.end.startswith(("dead", "lost"))]
    lost = f" Lost: {several(ended)}." if ended else " None was lost."
    return f"{len(lanes)} workers on {len({lane.node for lane in lanes})} nodes.{lost}"


def _incidents(report: Report, failures_s: float) -> str:
    count = report.headline.incidents
    if not count:
        return "Nothing has failed."
    worst = max((one for one in report.incidents if one.is_failure), key=lambda one: one.cost_s)
    number = f" (number {worst.label})" if worst.label else ""
    told = "1 failure" if count == 1 else f"{count} failures"
    return f"{told}, {duration(failures_s)} in all; the dearest is {worst.kind}{number}, {duration(worst.cost_s)}."


def _sizes(report: Report) -> str:
    values = [int(one) for one in report.sizes.values]
    if not values:
        return "No generation has trained yet."
    if len(set(values)) == 1:
        return f"{values[-1]} replicas all the time."
    return f"{min(values)} to {max(values)} replicas; {values[-1]} at the end."


def _throughput(report: Report) -> str:
    values = report.throughput.values
    if not values:
        return "No step is stable yet."
    return f"Up to {max(values):.4g} samples a second, {sum(values) / len(values):.4g} on average."


def _losses(report: Report) -> str:
    values = report.losses.values
    if not values:
        return "No step has reported a loss: step.report(loss=step.loss) does."
    text = f"{report.metric} from {values[0]:.4g} to {values[-1]:.4g}."
    if not report.retried:
        return f"{text} No step had to be tried again."
    redone, again = report.redone, report.retried - report.redone
    told = [f"tried again: {again}"] * bool(again) + [f"redone from a checkpoint: {redone}"] * bool(redone)
    return f"{text} Steps {', '.join(told)}."


def _rungs(report: Report) -> str:
    newest = [f"{one.name} {numbered(one.values[-1])}" for one in report.rungs if one.values]
    if len(newest) < 2:
        return _NO_CHECKPOINTS
    return f"The newest step that is {', '.join(newest)}."


def _checkpoints(report: Report) -> str:
    if len(report.rungs) < 2 and not report.decisions:
        return _NO_CHECKPOINTS
    cost_s = sum(one.wall_s for one in report.stalls)
    last = f" The last decision: {report.decisions[-1].reason}." if report.decisions else ""
    return f"Steps waited {duration(cost_s)} for checkpoints.{last}"


def _stragglers(report: Report) -> str:
    if not report.stragglers:
        return "No worker's pace is known: it takes two replicas, and some steps."
    slowest = report.stragglers[0]
    text = f"The slowest, {slowest.worker}, takes {slowest.latest or slowest.mean:.2f} times the median."
    if report.paced == len(report.stragglers):
        return text
    return f"{text} Of {report.paced} workers the {len(report.stragglers)} slowest are listed."


def _settings(report: Report) -> str:
    if not report.settings:
        return "The journal does not tell them."
    given = sum(one.source != "default" for one in report.settings)
    return f"{given} of {len(report.settings)} were given; the others are defaults."
