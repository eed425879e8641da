"""Pure. What the tiers of a run hold, as its driver sees it, and why nothing of it may be what the run goes on from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from elastic.checkpoint.catalog import Candidate, Choice, Start
from elastic.checkpoint.manifest import is_visible
from elastic.control.values import CommitId, Fork


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the persistent tier has on record of a run's lives; see `Vault`. `durable`: steps, void ones too."""

    durable: tuple[CommitId, ...] = ()
    forks: tuple[Fork, ...] = ()
    incarnations: tuple[int, ...] = ()
    quarantined: Mapping[CommitId, str] = field(default_factory=dict)
    blamed: tuple[tuple[CommitId, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the tiers hold.

    Attributes:
        forks: where history began anew. starts: those that failed, of the last lives.
        silent: a sentence for each tier that gave no answer. is_durable_heard: the persistent tier, if any, gave one.
        quarantined: a sentence for each whole step that is left out. unread: for each that cannot be read.
        broken: for each of an earlier life of which shards are nowhere.
        void: durable steps that the history has left for an older one; none of those that it has left for nothing.
    """

    candidates: tuple[Candidate, ...]
    forks: tuple[Fork, ...]
    starts: tuple[Start, ...]
    incarnation: int
    silent: tuple[str, ...]
    is_durable_heard: bool
    quarantined: tuple[str, ...]
    unread: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    void: tuple[int, ...] = ()


def left_for_an_older_one(durable: Iterable[CommitId], forks: Iterable[Fork]) -> tuple[int, ...]:
    """See `Seen.void`, newest first: where a run has begun anew, all steps before that were given up on purpose."""
    lines = tuple(forks)
    beginnings = tuple(fork for fork in lines if fork.step < 0)
    void = {one.step for one in durable if is_visible(one, beginnings) and not is_visible(one, lines)}
    return tuple(sorted(void, reverse=True))


def why_nothing(seen: Seen, choice: Choice, story: str, tries: int) -> str:
    """Why no step can be chosen though some are there, or may be; empty: the run may begin anew.

    Args:
        choice: it has no candidate. story: how the lives ended that started from the steps that it leaves out, each
            `tries` times.
    """
    if choice.bad:
        return f"training failed {tries} times soon after each step: choose one with elastic rewind --to-step ({story})"
    if seen.candidates:
        return "; ".join(seen.silent)
    if seen.quarantined:
        bad = "; ".join((*seen.quarantined, *seen.silent))
        return f"every whole step is in quarantine: start the run under another name to begin anew ({bad})"
    if seen.unread:
        bad = "; ".join((*seen.unread, *seen.silent))
        return (
            f"steps are there, and none can be read ({bad}): elastic verify looks at them; start the run under "
            "another name to begin anew"
        )
    if seen.broken:
        bad = "; ".join((seen.broken[0], *seen.silent))
        return f"{bad}: start the run again when the node that holds it is back, or under another name to begin anew"
    if seen.void:
        bad = "; ".join((f"step {seen.void[0]} is the newest of them", *seen.silent))
        return (
            f"all durable steps are void, since the run went back to an older one, of which nothing is left ({bad}): "
            "start the run under another name to begin anew"
        )
    return "; ".join(seen.silent)
