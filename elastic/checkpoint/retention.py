"""Pure. Which durable steps are kept, and why; what nothing may delete comes first."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isnan, nan

from elastic.checkpoint.manifest import is_visible
from elastic.checkpoint.records import VERIFIED, Committed
from elastic.control.values import Fork
from elastic.settings import Keep


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """On one durable step. Attribute `reason`: for people."""

    record: Committed
    is_kept: bool
    reason: str


def judged(
    records: Sequence[Committed],
    keep: Keep,
    *,
    forks: Sequence[Fork] = (),
    bad: Collection[str] = (),
    leased: Collection[str] = (),
    unread: Collection[str] = (),
) -> list[Verdict]:
    """Decide about all durable steps of a run, newest first.

    A step is *good* if it is visible and not bad. The newest good one is kept whatever the settings say, and the newest
    of those before the last vote in which replicas had agreed; so are steps that are leased, and those that cannot be
    read, by this release at least. Without any good step nothing is dropped: what is bad for us may be all its owner
    has.

    Args:
        forks: all that are known. bad, leased: names of commits; bad are those in quarantine, or incomplete.
        unread: names of those whose description is there, and cannot be read.
    """
    newest_first = sorted(records, key=lambda record: record.order, reverse=True)
    good = [record for record in newest_first if record.name not in bad and is_visible(record.commit, forks)]
    if not good:
        return [Verdict(record=record, is_kept=True, reason="no good step is left") for record in newest_first]
    wanted = _wanted(good, keep)

    def verdict(record: Committed) -> Verdict:
        if record.name in leased:
            return Verdict(record=record, is_kept=True, reason="it is being read or written")
        if record.name in unread:
            return Verdict(record=record, is_kept=True, reason="it cannot be read: elastic verify tells why")
        if record.name in wanted:
            return Verdict(record=record, is_kept=True, reason=wanted[record.name])
        if record.name in bad:
            reason = "in quarantine, or incomplete"
        else:
            reason = "not wanted any more" if is_visible(record.commit, forks) else "void: history began anew before it"
        return Verdict(record=record, is_kept=False, reason=reason)

    return [verdict(record) for record in newest_first]


def _wanted(good: Sequence[Committed], keep: Keep) -> dict[str, str]:
    """Names of good steps (newest first) that the settings ask for, each with the reason."""
    wanted: dict[str, str] = {}
    sign = 1.0 if keep.mode == "min" else -1.0
    measured = [record for record in good if not isnan(record.metrics.get(keep.metric, nan))]
    for record in sorted(measured, key=lambda record: sign * record.metrics[keep.metric])[: keep.best]:
        wanted[record.name] = f"among the {keep.best} best by {keep.metric}"
    if keep.every:  # no later step can take its place, so what is kept once stays
        firsts = {record.commit.step // keep.every: record for record in good}
        wanted |= {record.name: f"the first in each {keep.every} steps" for record in firsts.values()}
    for record in good[: keep.last]:
        wanted[record.name] = f"among the last {keep.last}"
    verified = good[0].metrics.get(VERIFIED, nan)
    sound = next((record for record in good if record.commit.step <= verified), None)
    if sound is not None:
        wanted[sound.name] = "what the run goes back to should replicas differ"
    wanted[good[0].name] = "the newest good step"
    return wanted
