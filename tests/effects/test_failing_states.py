"""Effect. C6: a state after which training fails again and again is left for an older one; nobody loops for ever."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic.actors import tiers
from elastic.actors.tiers import Tiers
from elastic.checkpoint.boxes import Want, plan, whole_box
from elastic.checkpoint.catalog import Candidate, candidates
from elastic.checkpoint.reach import Reach
from elastic.checkpoint.reader import Effort, read, take_inventory
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.vault import open_vault
from elastic.checkpoint.vault_source import VaultSource
from elastic.control import events as ev
from elastic.control.outcome import Ending, Outcome
from elastic.control.state import RunState
from elastic.control.values import CommitId, Fork, View
from elastic.errors import RefusedError
from elastic.settings import Checkpoint, RunSettings
from tests.effects.helpers import eventually
from tests.effects.vault_parts import made_durable

RUN = "night-1"
SAID = "train_fn raised ValueError: not finite"


class Life:
    """One life of a driver."""

    def __init__(self, folder: Path, url: str = "") -> None:
        url = url or str(folder / "store")
        checkpoint = Checkpoint(memory=str(folder / "memory"), persistent=url)
        self.told: list[ev.RestoreFound] = []
        self.tiers = Tiers(RUN, Reach(RUN, checkpoint), self.told.append, timeout_s=30.0)  # type: ignore[arg-type]
        self.incarnation, self.forks = self.tiers.begin()
        self.vault = open_vault(url, RUN)

    def found(self, at_most: int | None = None, without: tuple[CommitId, ...] = ()) -> ev.RestoreFound:
        self.tiers.find(0, at_most, without)
        eventually(lambda: self.told, "the tiers have answered")
        return self.told.pop()

    def restored(self) -> tuple[int | None, str]:
        """As workers do it: the newest step, or the next older one; with what the tiers said in the end."""
        told, without = self.found(), list[CommitId]()
        while told.commit is not None:
            (one, *_) = (each for each in self.candidates() if told.commit.same_state(each.commit))
            try:
                entries = one.manifests[0].entries
                wants = [Want(path=e.path, dtype=e.dtype, whole=e.shape, box=whole_box(e.shape)) for e in entries]
                into = [np.empty(entry.nbytes, dtype=np.uint8) for entry in entries]
                read(one, plan(wants, one.manifests, own=0), into, Effort(timeout_s=30.0))
                return told.commit.step, told.error
            except RefusedError as error:
                where = {"is_bad": error.is_bad, "shard": error.shard, "chunk": error.chunk}
                refused = ev.RestoreRefused(worker="w0", commit=told.commit, reason=str(error), **where)  # type: ignore[arg-type]
            self.tiers.heed(refused, RunState(settings=RunSettings(run=RUN)))
            without.append(told.commit)
            told = self.found(without=tuple(without))
        return None, told.error

    def candidates(self) -> tuple[Candidate, ...]:
        return candidates(take_inventory([VaultSource(self.vault)]).holders, RUN)

    def started(self, resume: CommitId) -> None:
        """Its workers hold that state."""
        fork = self.formed(resume)
        eventually(lambda: fork in self.vault.forks(), "the fork is recorded")

    def formed(self, resume: CommitId) -> Fork:
        """The same, whether that can be recorded or not."""
        fork = Fork(incarnation=self.incarnation, generation=1, step=resume.step)
        self.forks = (*self.forks, fork)
        view = View(
            run=RUN,
            incarnation=self.incarnation,
            generation=1,
            members=(),
            resume=resume,
            donors=(),
            behind=(),
            restored=True,
            forks=self.forks,
        )
        self.tiers.formed(view, RunState(settings=RunSettings(run=RUN)))
        return fork

    def ended(self, ending: Ending, published: int) -> None:
        outcome = Outcome(ending=ending, message=SAID)
        self.tiers.heed(ev.Tick(), RunState(settings=RunSettings(run=RUN), outcome=outcome, published=published))
        self.tiers.close(keep=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    vault = open_vault(str(tmp_path / "store"), RUN)
    vault.register("test")
    for step in (10, 20):
        made_durable(vault, step)
    return tmp_path


def failed(folder: Path, ending: Ending = Ending.TRAIN_FN_RAISED, after: int = 3) -> int:
    """A life that fails some steps after the state it began from; returns that state's step."""
    life = Life(folder)
    commit = life.found().commit
    assert commit is not None
    life.started(commit)
    life.ended(ending, published=commit.step + after)
    return commit.step


def test_c06_a_state_that_fails_training_is_left_for_an_older_one(folder: Path, caplog) -> None:
    endings = (Ending.TRAIN_FN_RAISED, Ending.DIVERGED, Ending.NO_PROGRESS)
    assert [failed(folder, ending) for ending in endings] == [20, 20, 20]
    assert "left out" not in caplog.text
    assert [failed(folder) for _ in range(3)] == [10, 10, 10]
    assert "steps left out, since training failed soon after them in 3 lives: 20" in caplog.text
    last = Life(folder)
    told = last.found()
    assert told.commit is None and "training failed 3 times soon after each step" in told.error
    assert "elastic rewind" in told.error
    assert all(f"step {step}: life {life}: {SAID}" in told.error for step, life in ((10, 5), (10, 6), (10, 7)))
    asked = last.found(at_most=10)
    assert asked.commit is not None and asked.commit.step == 10, "who asks for it gets it"
    last.tiers.close(keep=True)


@pytest.mark.parametrize(
    ("ending", "after"),
    [(Ending.REPLICAS_LOST, 3), (Ending.STOPPED, 3), (Ending.TRAIN_FN_RAISED, 1000)],
    ids=["workers were lost", "stopped", "long after"],
)
def test_c06_what_is_not_its_fault_does_not_count(folder: Path, ending: Ending, after: int) -> None:
    assert [failed(folder, ending, after) for _ in range(5)] == [20] * 5


def test_c06_a_life_that_went_well_or_a_rewind_wipes_the_slate(folder: Path) -> None:
    assert [failed(folder), failed(folder)] == [20, 20]
    assert failed(folder, Ending.SUCCEEDED, after=1000) == 20
    assert [failed(folder) for _ in range(3)] == [20, 20, 20]
    assert failed(folder) == 10


def spoiled(folder: Path, step: int, how: str) -> None:
    """In the persistent tier; every chunk of it, so that the one that is read first is among them."""
    fired = 0
    for path in (folder / "store").rglob(f"{step:010d}-*/shard-*/chunk-*"):
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] + (b"" if how == "cut off" else b"?"))
        fired += 1
    assert fired


@pytest.mark.parametrize("how", ["a flipped byte", "cut off", "gone"])
def test_c06_what_is_bad_wherever_it_is_goes_into_quarantine_and_is_not_read_again(folder: Path, how: str) -> None:
    spoiled(folder, 20, how)
    first = Life(folder)
    assert first.restored() == (10, "")
    ((bad, reason),) = first.vault.quarantined().items()
    assert bad.step == 20 and "chunk" in reason
    first.tiers.close(keep=True)  # it dies before it has said that its history begins at step 10
    second = Life(folder)
    told = second.found()
    assert told.commit is not None and told.commit.step == 10, "step 20 is read again"
    second.tiers.close(keep=True)


def test_c06_what_a_worker_alone_cannot_read_is_left_out_in_this_life_and_stays_good(folder: Path, caplog) -> None:
    """The memory of its host, or its network, damages whatever it reads: it would condemn step after step."""
    first = Life(folder)
    bad = first.found().commit
    assert bad is not None and bad.step == 20
    where = {"shard": 0, "chunk": 0, "is_bad": True, "reason": "chunk 0 is bad, everywhere"}
    first.tiers.heed(ev.RestoreRefused(worker="w0", commit=bad, **where), RunState(settings=RunSettings(run=RUN)))  # type: ignore[arg-type]
    told = first.found(without=(bad,))
    assert told.commit is not None and told.commit.step == 10
    assert first.vault.quarantined() == {} and "the node of w0 may damage what it reads" in caplog.text
    first.tiers.close(keep=True)
    second = Life(folder)
    told = second.found()
    assert told.commit is not None and told.commit.step == 20
    second.tiers.close(keep=True)


def test_c06_a_store_that_fails_while_a_step_goes_into_quarantine_is_asked_again(folder: Path, monkeypatch) -> None:
    spoiled(folder, 20, "gone")
    life, failures = Life(folder), [StoreError("unavailable")]
    put = tiers._is_put_in_quarantine

    def late(*about: Any) -> bool:
        if failures:
            raise failures.pop()
        return put(*about)

    monkeypatch.setattr(tiers, "_is_put_in_quarantine", late)
    assert life.restored() == (10, "")
    assert not failures and life.vault.quarantined() == {}
    (bad,) = [one.commit for one in life.candidates() if one.commit.step == 20]
    life.found(without=(bad,))
    assert [commit.step for commit in life.vault.quarantined()] == [20]
    life.tiers.close(keep=True)


def test_c16_records_that_cannot_be_read_for_once_are_as_they_were(folder: Path, monkeypatch) -> None:
    """A life that has begun goes on with what it can reach: nobody else writes records while it lasts."""
    life = Life(folder)
    assert life.found().commit is not None

    def fail(vault: Any) -> Any:
        raise StoreError("gs://b: cannot list what failed")

    monkeypatch.setattr("elastic.checkpoint.vault.Vault.blamed", fail)
    told = life.found()
    assert told.commit is not None and (told.commit.step, told.error) == (20, "")
    life.tiers.close(keep=True)


def test_c06_a_run_whose_every_step_is_bad_ends_with_its_story(folder: Path) -> None:
    """It does not begin anew over them, in no life."""
    for step in (10, 20):
        spoiled(folder, step, "a flipped byte")
    for life in (Life(folder), Life(folder)):
        step, error = life.restored()
        assert step is None and "every whole step is in quarantine" in error
        assert "step 10: " in error and "step 20: " in error and "another name" in error
        life.tiers.close(keep=True)


def test_c06_what_is_only_out_of_reach_is_not_put_in_quarantine(folder: Path) -> None:
    life = Life(folder)
    told = life.found()
    assert told.commit is not None and told.commit.step == 20
    refused = ev.RestoreRefused(worker="w0", commit=told.commit, reason="the network is gone")
    life.tiers.heed(refused, RunState(settings=RunSettings(run=RUN)))
    again = life.found(without=(told.commit,))
    assert again.commit is not None and again.commit.step == 10
    assert life.vault.quarantined() == {}
    life.tiers.close(keep=True)
