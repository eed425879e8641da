"""Effect. A run's checkpoint tiers as its driver uses them: which life this is, and what can be restored."""

import contextlib
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from elastic.checkpoint.catalog import Candidate, Choice, Holder, Start, candidates, in_parts, next_candidate
from elastic.checkpoint.catalog import Ending as StartEnding
from elastic.checkpoint.claim import Claim
from elastic.checkpoint.leases import BusyError
from elastic.checkpoint.manifest import is_visible
from elastic.checkpoint.reach import NEWEST, Reach
from elastic.checkpoint.reader import Inventory, is_bad, take_inventory
from elastic.checkpoint.remembered import Blamed, Quarantined, Remembered
from elastic.checkpoint.seen import Recorded, Seen, left_for_an_older_one, why_nothing
from elastic.checkpoint.source import Source, Tier, troubles_of
from elastic.checkpoint.store import MissingError, StoreError
from elastic.checkpoint.vault import Vault
from elastic.checkpoint.vault_source import VaultSource
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.state import RunState
from elastic.control.values import CommitId, Fork, View
from elastic.errors import CorruptError, ElasticError
from elastic.settings import RunSettings

log = logging.getLogger("elastic")

Bad = tuple[CommitId, ...]

_TRIES = 3  # lives that a state is given in which training fails soon after it
_SOON_STEPS = 100
_AGAIN_S = 30.0
_STATE_MAY_BE_BAD = (Ending.TRAIN_FN_RAISED, Ending.DIVERGED, Ending.NO_PROGRESS)


class Tiers:
    """See the module. Calls that look at tiers block, each for at most `timeout_s`.

    Args:
        emit: takes what is for the controller, and write: what is for the journal, from any thread.
        kept: what the journal tells of earlier lives.
    """

    def __init__(
        self,
        run: str,
        reach: Reach,
        emit: Callable[[ev.Event], None],
        timeout_s: float,
        write: Callable[[Any], None] = lambda told: None,
        kept: Remembered | None = None,
    ) -> None:
        self._run, self._reach, self._emit, self._timeout_s = run, reach, emit, timeout_s
        self._write, self._kept = write, kept or Remembered()
        self._forks: tuple[Fork, ...] = _in_order(self._kept.forks)
        self._start: CommitId | None = None
        self._recorded = Recorded()  # when the persistent tier was last heard
        self._durable = -1  # the newest step that is known to be
        self._left = -1  # the newest whole step of earlier lives, until a generation goes on
        self._found: Candidate | None = None  # by the last look
        self._incarnation = 0
        self._claimed: Claim | None = None  # what is durable of it
        self._loaded: Claim | None = None  # the same, once it is restored, until the fork is recorded
        self._failure = ""
        self._refused: dict[tuple[int, str], ev.RestoreRefused] = {}  # by (step, lineage) that is bad wherever it is
        self._last_look = self._under_way = 0  # by number
        self._looking = threading.Lock()  # one at a time: each leaves behind what it has found, and claimed
        self._is_closed = threading.Event()

    # --- before the run ---

    def begin(self, at_least: int = 1) -> tuple[int, tuple[Fork, ...]]:
        """Take a number for this life of the driver; returns it, and where history began anew so far.

        Raises:
            StoreError: a tier cannot be asked. SettingError: it cannot be used.
        """
        seen = self._look()
        self._forks, self._left = seen.forks, max((one.commit.step for one in seen.candidates[:1]), default=-1)
        vault, self._incarnation = self._reach.vault, max(at_least, seen.incarnation + 1)
        if vault is not None:
            self._incarnation = vault.register(f"{socket.gethostname()} {os.getpid()}", at_least=self._incarnation)
        return self._incarnation, seen.forks

    # --- during the run; none of these waits ---

    def find(self, number: int, at_most: int | None, without: Bad) -> None:
        """Look for the newest step that can be restored; the answer is a RestoreFound of this number."""
        self._last_look = number
        threading.Thread(target=self._find, args=(number, at_most, without), name="elastic-find", daemon=True).start()

    def heed(self, event: ev.Event, state: RunState) -> None:
        """Something happened that the tiers may have to act on."""
        if isinstance(event, ev.RestoreRefused) and event.is_bad:
            self._refused[event.commit.step, event.commit.lineage] = event
        if isinstance(event, ev.RestoreFound) and state.restore is None:
            self._hold(None)  # it is not wanted any more
        start, outcome = self._start, state.outcome
        if start is None or outcome is None or outcome.ending not in _STATE_MAY_BE_BAD:
            return
        if state.published - start.step <= _SOON_STEPS:
            self._failure = outcome.message.partition("\n")[0]

    def formed(self, view: View, state: RunState) -> None:
        """A generation is being formed; where the history begins, that is recorded before anything is durable."""
        claim: Claim | None = None
        if view.restored:
            claim = self._loaded = self._claimed
            self._claimed = None
            self._durable = self._durable_up_to(view.resume)
            self._start = view.resume
            self._forks = view.forks
        elif view.bootstrap:
            self._forks += (Fork(incarnation=view.incarnation, generation=view.generation, step=-1),)
        elif view.forks and view.forks[-1] not in self._forks:  # this life goes on with live workers of another
            self._forks = view.forks
        else:
            return
        threading.Thread(target=self._fork, args=(self._forks[-1], claim), name="elastic-fork", daemon=True).start()

    def close(self, keep: bool) -> None:
        """The run is over; keep: what is in memory may be restored by the next life of the driver."""
        self._is_closed.set()
        self._blame()
        for claim in (self._claimed, self._loaded):
            if claim is not None:
                claim.end()
        try:
            self._reach.close()
        except StoreError as error:
            log.warning("leases on checkpoints end by themselves: %s", error)

    # --- inside ---

    def _find(self, number: int, at_most: int | None, without: Bad) -> None:
        with self._looking:
            if number == self._last_look:  # else it was looked for anew meanwhile
                self._under_way = number
                self._emit(replace(self._found_now(at_most, without), number=number))

    def _found_now(self, at_most: int | None, without: Bad) -> ev.RestoreFound:
        try:
            self._condemn(without)
            seen, choice = self._choose(at_most, without)
        except Exception as error:  # whatever it is, the controller waits for an answer
            told = f"{type(error).__name__}: {error}"
            return ev.RestoreFound(commit=None, error=told)
        bad = [one for one in seen.starts if (one.step, one.lineage) in choice.bad]
        story = "; ".join(f"step {one.step}: {one.told}" for one in bad)
        if choice.bad:
            steps = ", ".join(str(step) for step, _ in choice.bad)
            log.warning("steps left out, since training failed soon after them in %d lives: %s", _TRIES, steps)
            log.warning("how these lives ended: %s", story)
        for told in seen.quarantined:
            log.warning("left out, being in quarantine: %s", told)
        self._found = choice.candidate
        if choice.candidate is not None:
            self._announce(choice.candidate)
            return ev.RestoreFound(commit=choice.candidate.commit)
        self._hold(None)
        why = why_nothing(seen, choice, story, _TRIES)
        return ev.RestoreFound(commit=None, reason=why or "no step is whole", error=why)

    def _choose(self, at_most: int | None, without: Bad) -> tuple[Seen, Choice]:
        """What is seen, and what to take of it; farther back in the persistent tier as long as that is nothing."""
        for newest in (NEWEST << again for again in itertools.count()):
            is_newest_wanted = at_most is None and not without
            seen = self._look(is_newest_wanted=is_newest_wanted, newest=newest, at_most=at_most)
            choice = self._claimed_one(seen, self._wanted(seen, at_most, without), at_most)
            is_last = not seen.is_durable_heard or not self._reach.has_older or self._is_unwanted
            if choice.candidate is not None or is_last:
                break
        return seen, choice

    def _claimed_one(self, seen: Seen, those: list[Candidate], at_most: int | None) -> Choice:
        # Who asks for a step by its number wants it, whatever came of it.
        starts = seen.starts if at_most is None else ()
        choice = next_candidate(those, starts, _TRIES)
        while choice.candidate is not None and not self._claim(choice.candidate):
            those.remove(choice.candidate)
            choice = next_candidate(those, starts, _TRIES)
        return choice

    def _wanted(self, seen: Seen, at_most: int | None, without: Bad) -> list[Candidate]:
        """Where the persistent tier is silent, only what is as new as all that is known to be there."""
        early = [one for one in seen.candidates if at_most is None or one.commit.step <= at_most]
        those = [one for one in early if not any(one.commit.same_state(bad) for bad in without)]
        if seen.is_durable_heard:
            return those
        return [one for one in those if at_most is None and one.commit.step >= self._durable]

    def _claim(self, candidate: Candidate) -> bool:
        """From now on nothing of it is dropped; False: too much of it is being dropped already."""
        is_durable = self._claim_durable(candidate)
        return all(any(is_durable or not _is_durable(one) for one in holders) for holders in candidate.shards)

    def _claim_durable(self, candidate: Candidate) -> bool:
        """Whether what the persistent tier has of it, if anything, stays there until it is loaded."""
        there = next((one for holders in candidate.shards for one in holders if _is_durable(one)), None)
        vault = self._reach.vault
        if there is None or vault is None:
            self._hold(None)
            return True
        try:
            self._hold(Claim(vault, there.manifest.commit))
        except (BusyError, MissingError) as error:
            log.info("not restored from the persistent tier: %s", error)
            return False
        except StoreError as error:  # who cannot load it says so
            log.warning("%s", error)
        return True

    def _hold(self, claim: Claim | None) -> None:
        before, self._claimed = self._claimed, claim
        if before is not None:
            before.end(wait_s=0.0)

    def _announce(self, candidate: Candidate) -> None:
        """It is about to be told that this can be restored; may wait for a moment."""

    def _blame(self) -> None:
        """It is remembered for later lives: by the persistent tier, or else in the journal."""
        vault = self._reach.vault
        if not self._failure or self._start is None:
            return
        if vault is None:
            self._write(Blamed(commit=self._start, incarnation=self._incarnation, reason=self._failure))
            return
        try:
            vault.blame(self._start, self._failure)
        except StoreError as error:
            log.warning("it is not recorded that training failed soon after step %d: %s", self._start.step, error)

    def _condemn(self, without: Bad) -> None:
        """What cannot be restored, and is bad, no later life reads again."""
        vault = self._reach.vault
        for commit in without:
            refused = self._refused.get((commit.step, commit.lineage))
            if refused is None:
                continue
            try:
                is_sound = vault is not None and _is_sound(vault, refused)
                is_durable = vault is not None and not is_sound and _is_put_in_quarantine(vault, commit, refused.reason)
            except (StoreError, OSError) as error:
                log.warning("step %d is bad, and not put in quarantine: %s", commit.step, error)
                continue  # it is tried again with the next look
            del self._refused[commit.step, commit.lineage]
            if is_sound:
                told_of = commit.step, refused.worker, refused.reason
                log.warning(
                    "step %d is left out in this life: %s could not read it (%s), and here it is sound", *told_of
                )
                log.warning("the node of %s may damage what it reads", refused.worker)
            elif not is_durable:  # it was in memory, or on disks: the journal remembers it
                told = Quarantined(commit=commit, reason=refused.reason)
                self._kept = self._kept.without(told)
                self._write(told)

    @property
    def _is_unwanted(self) -> bool:
        """It was looked for anew, and that waits for this look to end."""
        return self._under_way != self._last_look

    def _is_enough(self, is_newest_wanted: bool, holders: Sequence[Holder], waiting: Sequence[Source]) -> bool:
        """Whether those who have not answered can be done without, see `take_inventory`."""
        return False

    def _look(self, is_newest_wanted: bool = False, newest: int = NEWEST, at_most: int | None = None) -> Seen:
        """
        Args:
            newest, at_most: durable steps to look at, see `Reach.sources`.
        """

        def enough(holders: Sequence[Holder], waiting: Sequence[Source]) -> bool:
            return self._is_unwanted or self._is_enough(is_newest_wanted, holders, waiting)

        sources = self._reach.sources(newest, at_most)
        inventory = take_inventory(sources, self._timeout_s, enough=enough)
        found = [holder.manifest for holder in inventory.holders]
        recorded = self._records(inventory)
        lives = [*(manifest.commit.incarnation for manifest in found), *recorded.incarnations]
        forks = {*self._forks, *(fork for manifest in found for fork in manifest.forks), *recorded.forks}
        quarantined = {**self._kept.quarantined, **recorded.quarantined}
        blamed = [(one.commit, one.incarnation, one.reason) for one in self._kept.blamed]
        starts = _failed_starts([*blamed, *recorded.blamed], forks)
        those = candidates(inventory.holders, self._run, forks, quarantined)
        left_out = candidates(inventory.holders, self._run, forks) if quarantined else ()
        durable = [one.commit for one in those if _is_all_durable(one)]
        if not _is_durable_heard(inventory):  # what cannot be read now is there all the same, as its list says
            told = (one for one in recorded.durable if is_visible(one, _in_order(forks)))
            durable += [one for one in told if not any(one.same_state(bad) for bad in quarantined)]
        self._durable = max(self._durable, *(one.step for one in durable), -1)
        return Seen(
            candidates=those,
            forks=_in_order(forks),
            starts=starts,
            incarnation=max([0, *lives, *(fork.incarnation for fork in forks)]),
            silent=inventory.silent,
            is_durable_heard=_is_durable_heard(inventory),
            quarantined=tuple(
                f"step {one.step}: {reason}"
                for one, reason in quarantined.items()
                if any(one.same_state(there.commit) for there in left_out)
            ),
            unread=tuple(troubles_of(sources)),
            broken=tuple(
                told
                for commit, told in in_parts(inventory.holders, self._run, forks, quarantined)
                if commit.incarnation < self._incarnation
            ),
            void=left_for_an_older_one(recorded.durable, forks),
        )

    def _records(self, inventory: Inventory) -> Recorded:
        """As the persistent tier tells them; once this life has begun, as it told them last, if it is silent now.

        Nobody else writes them while a life lasts, and who did not say what it holds may take minutes to say no more.
        """
        vault = self._reach.vault
        if vault is not None and (_is_durable_heard(inventory) or not self._incarnation):
            try:
                self._recorded = Recorded(
                    durable=tuple(vault.durable()),
                    forks=tuple(vault.forks()),
                    incarnations=tuple(vault.incarnations()),
                    quarantined=vault.quarantined(),
                    blamed=tuple(vault.blamed()),
                )
            except StoreError as error:
                if not self._incarnation:
                    raise
                log.warning("records of the persistent tier are taken as they were: %s", error)
        return self._recorded

    def _durable_up_to(self, resume: CommitId) -> int:
        """The newest step of the line that goes on from there that is known to be durable; it need not be that one."""
        found = self._found
        if self._durable == resume.step or (found and found.commit.same_state(resume) and _is_all_durable(found)):
            return resume.step
        return min(self._durable, resume.step - 1)

    def _fork(self, fork: Fork, claim: Claim | None) -> None:
        """Steps of the old line must not win the next restart. Until it is recorded, this life can commit nothing.

        Args:
            claim: on the step that was restored; until then who collects takes those of the old line for better ones.
        """
        self._record(fork)
        if claim is not None:
            claim.end(wait_s=0.0)

    def _record(self, fork: Fork) -> None:
        vault: Vault | None = self._reach.vault
        while vault is not None:
            try:
                vault.fork(fork)
                return
            except ElasticError as error:
                log.warning("it is not recorded yet that history began anew after step %d: %s", fork.step, error)
            if self._is_closed.wait(_AGAIN_S):
                return


def _is_sound(vault: Vault, refused: ev.RestoreRefused) -> bool:
    """Whether the persistent tier gives this process the very bytes that a worker could not have.

    Raises:
        StoreError, OSError: that cannot be said now.
    """
    durable = [one for one in vault.commits() if one.commit.same_state(refused.commit)]
    if not durable or refused.chunk < 0:
        return False
    try:
        manifest = vault.manifest(durable[0], refused.shard)
    except (CorruptError, MissingError):
        return False
    with contextlib.closing(VaultSource(vault, known=[manifest])) as source:
        return not is_bad(Holder(source=source, manifest=manifest), refused.chunk)


def _is_put_in_quarantine(vault: Vault, commit: CommitId, reason: str) -> bool:
    """Whether it was durable at all."""
    durable = [one.commit for one in vault.commits() if one.commit.same_state(commit)]
    for one in durable:
        vault.quarantine(one, reason)
    return bool(durable)


def _in_order(forks: Iterable[Fork]) -> tuple[Fork, ...]:
    return tuple(sorted(forks, key=lambda fork: (fork.incarnation, fork.generation)))


def _is_durable_heard(inventory: Inventory) -> bool:
    return all(source.tier is not Tier.PERSISTENT for source in inventory.unheard)


def _is_durable(holder: Holder) -> bool:
    return holder.source.tier is Tier.PERSISTENT


def _is_all_durable(candidate: Candidate) -> bool:
    return all(any(map(_is_durable, holders)) for holders in candidate.shards)


def _failed_starts(blamed: list[tuple[CommitId, int, str]], forks: set[Fork]) -> tuple[Start, ...]:
    """Since the last life that began from a step and did not fail so, or in which somebody sent the run back."""
    failed = {life for _, life, _ in blamed}
    good = max((fork.incarnation for fork in forks if fork.incarnation not in failed), default=0)
    return tuple(
        Start(step=one.step, lineage=one.lineage, ending=StartEnding.FAILED, told=f"life {life}: {reason}")
        for one, life, reason in blamed
        if life > good
    )


class NoTiers:
    """Nothing is kept below the memory of live workers."""

    def begin(self, at_least: int = 1) -> tuple[int, tuple[Fork, ...]]:
        return at_least, ()

    def start(self, settings: RunSettings) -> None:
        pass

    def hand_over(self) -> None:
        pass

    def flush(self) -> bool:
        return True

    def find(self, number: int, at_most: int | None, without: Bad) -> None:
        raise RuntimeError("there are no tiers to look at")

    def heed(self, event: ev.Event, state: RunState) -> None:
        pass

    def formed(self, view: View, state: RunState) -> None:
        pass

    def close(self, keep: bool) -> None:
        pass
