"""Pure. How fast a run trains, from its reports of steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from elastic.control.values import StepReport

TOKENS = "tokens"  # name of a metric: tokens of the whole global batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Over some consecutive steps (updates).

    Attributes:
        steps: how many. step_s: mean time of one, from its beginning to its commit, the last attempt alone.
        between_s: mean time from a commit to the next one, less `step_s`: evaluation, retries, pauses.
        samples_per_s, tokens_per_s: over all of the time; tokens None where nobody counts them.
        replicas: of the last one.
    """

    steps: int
    step_s: float
    between_s: float
    samples_per_s: float
    tokens_per_s: float | None
    replicas: int


def throughput(
    reports: Sequence[StepReport], since_s: float | None = None, tokens_per_sample: float | None = None
) -> Throughput:
    """Of at least one report.

    Args:
        since_s: commit of the step before the first; None: there is none, the time begins with the first.
        tokens_per_sample: tokens are counted so; else by the metric `tokens`, if each update reports it, or, of a step
            in phases, one of them does.
    """
    first, last = reports[0], reports[-1]
    wall_s = max(last.committed_at_s - (first.started_at_s if since_s is None else since_s), 1e-9)
    in_steps_s = sum(max(0.0, one.committed_at_s - one.started_at_s) for one in reports)
    samples = sum(one.samples for one in reports)
    told = [one.metrics[TOKENS] for one in reports if TOKENS in one.metrics]
    tokens: float | None = None
    if tokens_per_sample is not None:
        tokens = samples * tokens_per_sample
    elif told and len(told) >= sum(1 for one in reports if one.samples):  # which the last update of a step tells
        tokens = sum(told)
    return Throughput(
        steps=len(reports),
        step_s=in_steps_s / len(reports),
        between_s=max(0.0, wall_s - in_steps_s) / len(reports),
        samples_per_s=samples / wall_s,
        tokens_per_s=None if tokens is None else tokens / wall_s,
        replicas=last.replicas,
    )
