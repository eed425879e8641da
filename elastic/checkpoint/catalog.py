"""Pure. What can be restored from all that sources say they hold, and which of it to take after what came of it before.

Newest comes before nearest: a tier that is close, and behind, costs steps. Among holders of the same bytes the nearest
comes first. Nothing here is believed for good: readers check every chunk, and come back for the next best.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from elastic.checkpoint.manifest import Fork, Manifest, is_visible
from elastic.checkpoint.source import Source
from elastic.control.values import CommitId
from elastic.errors import RefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A source that says it holds the shard of this manifest."""

    source: Source
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A commit of which every shard is held by somebody.

    Attributes:
        shards: the holders of each shard, nearest first; all of one shard agree on its sums.
        outvoted: holders that say the sums are others: silent corruption before the bytes were summed.
    """

    commit: CommitId
    shards: tuple[tuple[Holder, ...], ...]
    outvoted: tuple[Holder, ...] = ()

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """By shard."""
        return tuple(holders[0].manifest for holders in self.shards)


def candidates(
    found: Iterable[Holder],
    run: str,
    forks: Collection[Fork] = (),
    quarantined: Collection[CommitId] = (),
) -> tuple[Candidate, ...]:
    """What could be restored, best first: by step, then the newest line, then the nearest.

    Args:
        found: whatever sources hold, of any step, in any order.
        forks: beside those that the manifests name.
        quarantined: what must not be taken; the same step made anew, in a later generation, may be.
    """
    groups = _groups(found, run, forks, quarantined)
    whole = [one for (_, _, shards), held in groups.items() if (one := _whole(held, shards)) is not None]
    return tuple(sorted(whole, key=_rank, reverse=True))


def in_parts(
    found: Iterable[Holder],
    run: str,
    forks: Collection[Fork] = (),
    quarantined: Collection[CommitId] = (),
) -> tuple[tuple[CommitId, str], ...]:
    """The steps of which shards are there, but not all: newest first, each with a sentence; arguments as above."""
    broken = []
    for (step, _, shards), held in _groups(found, run, forks, quarantined).items():
        if _whole(held, shards) is None:
            missing = sorted(set(range(shards)) - {holder.manifest.shard for holder in held})
            told = f"of step {step}, shard {', '.join(map(str, missing))} of {shards} is nowhere"
            broken.append((max((holder.manifest.commit for holder in held), key=_made), told))
    return tuple(sorted(broken, key=lambda one: (one[0].step, _made(one[0])), reverse=True))


def find(those: Iterable[Candidate], commit: CommitId, silent: Sequence[str] = ()) -> Candidate:
    """The one that holds this state.

    Args:
        silent: a sentence for each source that gave no answer, for the message.

    Raises:
        RefusedError: there is none.
    """
    for one in those:
        if one.commit.same_state(commit):
            return one
    told = f"; {'; '.join(silent)}" if silent else ""
    raise RefusedError(
        f"step {commit.step} cannot be read here: the sources that answer do not hold all of its shards{told}",
        shard=None,
    )


class Ending(Enum):
    """How a start from a checkpoint ended."""

    PROGRESSED = "it went on as it should, or still does"
    REFUSED = "its bytes could not be had"
    FAILED = "training failed: it raised, was not finite, or diverged"
    LOST = "workers or nodes were lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start from a checkpoint, and what came of it; `told`: in words."""

    step: int
    lineage: str
    ending: Ending
    told: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which candidate to start from, or None; why; and which (step, lineage) were passed over."""

    candidate: Candidate | None
    reason: str
    bad: tuple[tuple[int, str], ...] = ()


def next_candidate(those: Sequence[Candidate], history: Sequence[Start], tries: int = 2) -> Choice:
    """The best candidate that was not tried in vain too often, so that one bad step cannot hold a run for ever.

    Only what may be the state's fault counts: the loss of workers says nothing about the checkpoint.

    Args:
        those: best first. history: all starts of the run so far, oldest first.
        tries: starts that a state is given.
    """
    vain = Counter((one.step, one.lineage) for one in history if one.ending in (Ending.REFUSED, Ending.FAILED))
    bad: list[tuple[int, str]] = []
    for one in those:
        state = one.commit.step, one.commit.lineage
        if vain[state] < tries:
            reason = f"step {one.commit.step} is the newest whole one"
            if bad:
                reason += f" that was not tried {tries} times in vain, as step {bad[0][0]} was"
            return Choice(candidate=one, reason=reason, bad=tuple(bad))
        bad.append(state)
    told = f"all {len(those)} whole steps were tried {tries} times in vain" if those else "no step is whole"
    return Choice(candidate=None, reason=told, bad=tuple(bad))


def _groups(
    found: Iterable[Holder], run: str, forks: Collection[Fork], quarantined: Collection[CommitId]
) -> dict[tuple[int, str, int], list[Holder]]:
    """Who holds what of each state: by step, lineage, and number of shards."""
    mine = [holder for holder in found if holder.manifest.run == run]
    bad = {(one.step, one.lineage, *_line(one)) for one in quarantined}
    lines = {*forks, *(fork for holder in mine for fork in holder.manifest.forks)}
    groups: dict[tuple[int, str, int], list[Holder]] = {}
    for holder in mine:
        commit = holder.manifest.commit
        if is_visible(commit, tuple(lines)) and (commit.step, commit.lineage, *_line(commit)) not in bad:
            groups.setdefault((commit.step, commit.lineage, holder.manifest.shards), []).append(holder)
    return groups


def _whole(held: Sequence[Holder], shards: int) -> Candidate | None:
    by_shard, outvoted = [], []
    for shard in range(shards):
        agreed, others = _agreed([holder for holder in held if holder.manifest.shard == shard])
        if not agreed:
            return None
        by_shard.append(agreed)
        outvoted += others
    newest = max((holders[0].manifest.commit for holders in by_shard), key=_made)
    return Candidate(commit=newest, shards=tuple(by_shard), outvoted=tuple(outvoted))


def _agreed(held: Sequence[Holder]) -> tuple[tuple[Holder, ...], list[Holder]]:
    """Most agree, or the one farthest away is right: it was checked on its way there."""
    ordered = sorted(held, key=lambda holder: holder.source.tier)
    votes = Counter(_content(holder.manifest) for holder in ordered)
    farthest = {_content(holder.manifest): holder.source.tier for holder in ordered}
    chosen = max(votes, key=lambda content: (votes[content], farthest[content]), default=None)
    agreed = tuple(holder for holder in ordered if _content(holder.manifest) == chosen)
    return agreed, [holder for holder in ordered if _content(holder.manifest) != chosen]


def _content(manifest: Manifest) -> tuple[Any, ...]:
    return manifest.skeleton, manifest.nbytes, manifest.chunk_bytes, manifest.chunks


def _line(commit: CommitId) -> tuple[int, int]:
    return commit.incarnation, commit.generation


def _made(commit: CommitId) -> tuple[int, int, int]:
    return *_line(commit), commit.attempt


def _rank(one: Candidate) -> tuple[Any, ...]:
    farthest = max(holders[0].source.tier for holders in one.shards)
    return one.commit.step, _made(one.commit), -farthest
