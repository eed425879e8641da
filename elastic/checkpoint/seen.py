"""Pure. What the tiers of a run hold, as its driver sees it, and why nothing of it may be what the run goes on from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic.checkpoint.catalog import Candidate, Choice, Start
from elastic.control.values import CommitId, Fork


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the persistent tier has on record of a run's lives, beside their steps; see `Vault`."""

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
        quarantined: a sentence for each whole step that is left out. unread: for each durable one that cannot be read.
        broken: for each of an earlier life of which shards are nowhere.
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
            f"durable steps are there, and none can be read ({bad}): elastic verify looks at them; start the run under "
            "another name to begin anew"
        )
    if seen.broken:
        bad = "; ".join((seen.broken[0], *seen.silent))
        return f"{bad}: start the run again when the node that holds it is back, or under another name to begin anew"
    return "; ".join(seen.silent)
