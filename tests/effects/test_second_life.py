"""Effect. Without a persistent tier the journal remembers what must not be restored again, from life to life."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.journal import JOURNAL, Journal, read_past
from elastic.actors.tiers import Tiers
from elastic.checkpoint.arena import Arena
from elastic.checkpoint.reach import Reach
from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending, Outcome
from elastic.control.state import RunState
from elastic.control.values import CommitId, Fork, View
from elastic.ledger.lines import line_of
from elastic.settings import Checkpoint, RunSettings
from tests.effects.helpers import eventually
from tests.effects.test_arena import RUN, stage


class Life:
    """One life of a driver, on a node whose memory holds what `seal` is told of."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, list[ev.RestoreFound]()
        (folder / "memory").mkdir(exist_ok=True)
        kept = read_past(folder / JOURNAL).kept
        self.journal = Journal(folder)
        reach = Reach(RUN, Checkpoint(memory=str(folder / "memory")))
        write: Callable[[Any], None] = lambda told: self.journal.checkpoint(1.0, told)  # noqa: E731
        self.tiers = Tiers(RUN, reach, self.told.append, 30.0, write, kept)  # type: ignore[arg-type]
        self.incarnation, self.forks = self.tiers.begin()

    def seal(self, *steps: int, **parts: Any) -> None:
        with closing(Arena(self.folder / "memory", RUN, self.incarnation, "w0", slots=4)) as arena:
            for step in steps:
                assert stage(arena, step, incarnation=self.incarnation, **parts)

    def answer(self, without: tuple[CommitId, ...] = ()) -> ev.RestoreFound:
        self.tiers.find(0, None, without)
        eventually(lambda: self.told, "the tiers have answered")
        return self.told.pop()

    def found(self, without: tuple[CommitId, ...] = ()) -> CommitId | None:
        return self.answer(without).commit

    def began(self, resume: CommitId) -> None:
        """Its workers hold that state, and the journal says so."""
        self.forks += (Fork(incarnation=self.incarnation, generation=1, step=resume.step),)
        parts: dict[str, Any] = {"members": (), "donors": (), "behind": (), "restored": True, "forks": self.forks}
        view = View(run=RUN, incarnation=self.incarnation, generation=1, resume=resume, **parts)
        self.journal.write([line_of("command", 1.0, cmd.Form(view=view, reason="why"))])
        self.tiers.formed(view, state())

    def ended(self, ending: Ending = Ending.SUCCEEDED, published: int = 0) -> None:
        self.tiers.heed(ev.Tick(), state(outcome=Outcome(ending=ending, message="not finite"), published=published))
        self.tiers.close(keep=True)
        self.journal.close()


def state(**facts: Any) -> RunState:
    return RunState(settings=RunSettings(run=RUN), **facts)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A first life has left steps 4 and 9 in the memory of a node."""
    life = Life(tmp_path)
    life.seal(4, 9)
    life.ended()
    return tmp_path


def found_by_the_next(folder: Path) -> int | None:
    life = Life(folder)
    commit = life.found()
    life.ended()
    return None if commit is None else commit.step


def test_steps_past_a_fork_stay_void_though_its_line_has_sealed_nothing(folder: Path) -> None:
    assert found_by_the_next(folder) == 9
    life = Life(folder)
    commit = life.found(without=(found(life, 9),))
    assert commit is not None and commit.step == 4
    life.began(commit)
    life.ended()
    later = Life(folder)
    assert later.incarnation > life.incarnation, "else what it commits would be void, too"
    later.ended()
    assert found_by_the_next(folder) == 4


def found(life: Life, step: int) -> CommitId:
    commit = life.found()
    assert commit is not None and commit.step == step
    return commit


def test_a_bad_step_in_memory_is_left_out_by_later_lives(folder: Path) -> None:
    """Also where the life that found it out has come to nothing."""
    life = Life(folder)
    bad = found(life, 9)
    life.tiers.heed(ev.RestoreRefused(worker="w0", commit=bad, reason="chunk 0 is bad", is_bad=True), state())
    assert life.found(without=(bad,)) != bad
    life.ended()
    assert found_by_the_next(folder) == 4


def test_c06_a_state_in_memory_that_fails_training_is_left_for_an_older_one(folder: Path) -> None:
    for _ in range(3):
        life = Life(folder)
        life.began(found(life, 9))
        life.ended(Ending.TRAIN_FN_RAISED, published=12)
    assert found_by_the_next(folder) == 4


def test_c08_nothing_is_begun_over_steps_of_which_shards_are_nowhere(tmp_path: Path) -> None:
    """Also where no journal is left: the node that held the others may come back."""
    first = Life(tmp_path)
    first.seal(4, 9, shard=0, shards=2)
    assert first.answer().error == "", "what this life itself has begun is not there in parts only for ever"
    first.ended()
    (tmp_path / JOURNAL).unlink()
    second = Life(tmp_path)
    told = second.answer()
    second.ended()
    assert told.commit is None
    assert told.error == (
        "of step 9, shard 1 of 2 is nowhere: start the run again when the node that holds it is back, or under another "
        "name to begin anew"
    )
