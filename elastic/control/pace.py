"""Pure. What follows from a change of size: the factor on the learning rates, and the event that users see.

A pace belongs to a committed step. That of the next step follows from it and from the size at which the step is
computed, so an attempt that fails leaves nothing behind, and a joiner that receives the last pace gets the same factor
as everybody else.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from elastic.control.tuning import NOT_TUNED, Tuning
from elastic.errors import SettingError


class RateRule(Protocol):
    """How learning rates follow the global batch.

    Attributes:
        rule: (global batch, reference batch) -> factor on the rates that the user has set.
        warmup_steps: steps over which a factor rises after a resize.
        reference_batch: global batch at which the rates hold as they are; None: that of the first committed step.
    """

    @property
    def rule(self) -> Callable[[int, int], float]: ...

    @property
    def warmup_steps(self) -> int: ...

    @property
    def reference_batch(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The size of a step and the factor on its learning rates.

    Attributes:
        replicas: that computed it. batch: samples of a whole global batch of so many replicas.
        reference_batch: global batch at which the factor is 1.
        ramp_from, ramp_to: from step `ramp_step` on the factor moves from one to the other, in `ramp_steps` equal
            parts.
        tuning: the settings that were changed while the run goes on; its factor comes on top.
    """

    replicas: int
    batch: int
    reference_batch: int
    ramp_from: float = 1.0
    ramp_to: float = 1.0
    ramp_step: int = 0
    ramp_steps: int = 0
    tuning: Tuning = NOT_TUNED

    def factor(self, step: int) -> float:
        """What the learning rates of a step are multiplied with."""
        return self.batch_factor(step) * self.tuning.rate_factor

    def batch_factor(self, step: int) -> float:
        """The part of it that follows the batch; `ramp_to` exactly once the ramp is over."""
        done = step - self.ramp_step
        if done >= self.ramp_steps:
            return self.ramp_to
        return self.ramp_from + (self.ramp_to - self.ramp_from) * done / self.ramp_steps


def next_pace(
    last: Pace | None, step: int, replicas: int, batch: int, rule: RateRule | None, tuning: Tuning = NOT_TUNED
) -> Pace:
    """The pace of `step`, computed by `replicas` with whole global batches of `batch` samples, and so tuned.

    A factor rises over the rule's warm-up (Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2) and falls
    at once, since a smaller batch does not bear the rate of a larger one.

    Args:
        last: of the step before, None for the first.

    Raises:
        SettingError: the rule gives a factor that is not a positive number.
    """
    if last is not None and last.ramp_step > step:  # of an export: steps are numbered anew, and its warm-up is over
        last = replace(last, ramp_from=last.ramp_to, ramp_step=step, ramp_steps=0)
    reference_batch = last.reference_batch if last is not None else batch
    if rule is not None:
        reference_batch = rule.reference_batch or reference_batch
    target = _target(rule, batch, reference_batch)
    if rule is None:  # or not any more, in this life of the run, be it in the middle of a warm-up
        return Pace(replicas=replicas, batch=batch, reference_batch=reference_batch, tuning=tuning)
    if last is not None and (last.batch, last.ramp_to) == (batch, target):
        return replace(last, replicas=replicas, tuning=tuning)
    before = last.batch_factor(step) if last is not None else target
    return Pace(
        replicas=replicas,
        batch=batch,
        reference_batch=reference_batch,
        ramp_from=min(before, target),
        ramp_to=target,
        ramp_step=step,
        ramp_steps=rule.warmup_steps,
        tuning=tuning,
    )


def _target(rule: RateRule | None, batch: int, reference_batch: int) -> float:
    """Raises: SettingError: see `next_pace`."""
    target = 1.0 if rule is None else float(rule.rule(batch, reference_batch))
    if not (math.isfinite(target) and target > 0):
        raise SettingError(
            f"the learning-rate rule gives {target} for a batch of {batch} and a reference of {reference_batch}: it "
            "must give a positive number"
        )
    return target


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """The first step that is committed at another size, or otherwise tuned, than the one before it.

    Attributes:
        step: index of that step.
        replicas_before, replicas: that computed the step before it, and compute it.
        batch_before, batch: samples of a whole global batch before and now.
        rates_before, rates: learning rates of this step, by parameter group in the order given to `step.apply`, as
            they would be without the resize, and as they are; empty if the step is skipped.
    """

    step: int
    replicas_before: int
    replicas: int
    batch_before: int
    batch: int
    rates_before: tuple[float, ...]
    rates: tuple[float, ...]


def resize_of(last: Pace, pace: Pace, step: int, rates: tuple[float, ...]) -> Resize:
    """What has changed between two steps.

    Args:
        last, pace: of the step before and of `step`.
        rates: learning rates as the user has set them, before any factor.
    """
    before, now = last.factor(step), pace.factor(step)
    return Resize(
        step=step,
        replicas_before=last.replicas,
        replicas=pace.replicas,
        batch_before=last.batch,
        batch=pace.batch,
        rates_before=tuple(rate * before for rate in rates),
        rates=tuple(rate * now for rate in rates),
    )
