"""Effect. The journal in the persistent tier: what a driver on another machine finds there."""

import errno
import fcntl
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.journal import JOURNAL, Journal, Past, Written, make_way, newest_life, read_past
from elastic.actors.journal_copy import JournalCopy, fetch_journal
from elastic.actors.stored_journal import StoredJournal
from elastic.checkpoint.remembered import Remembered
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.stores.directory import DirectoryStore
from elastic.control import events as ev
from elastic.control.bequest import Bequest
from elastic.control.commands import Form, StartWorker
from elastic.control.state import RunState
from elastic.control.values import NOTHING_COMMITTED, CommitId, Fork, Member, StepReport, View
from elastic.errors import CorruptError, SettingError
from elastic.ledger.lines import line_of
from elastic.settings import RunSettings
from tests.lines import whole_lines

RUN = "r"
SOON_S, NEVER_S = 0.01, 3600.0


def stable(step: int, voted: bool = False) -> ev.StepStable:
    told: dict[str, Any] = {"voted": voted}
    told |= {"metrics": {"loss": 0.5}, "replicas": 1, "samples": 1, "started_at_s": 0.0, "committed_at_s": 0.0}
    return ev.StepStable(worker="w0", report=StepReport(commit=CommitId(1, 1, 1, step, f"s{step}"), **told))


def form(resume: int, restored: bool = False) -> Form:
    commit = CommitId(1, 1, 1, resume, "s") if resume >= 0 else NOTHING_COMMITTED
    told = {"run": RUN, "incarnation": 1, "generation": 2, "members": (Member("w0", "h", 1),)}
    lead = {"donors": (0,), "behind": (), "bootstrap": resume < 0, "restored": restored}
    return Form(view=View(**told, resume=commit, **lead), reason="of a test")


def write(folder: Path, *lines: Any) -> Path:
    journal = Journal(folder)
    for line in lines:
        role = "event" if isinstance(line, ev.Event) else "life" if isinstance(line, Bequest) else "command"
        journal.write([line_of(role, 1.0, line)])
    journal.close()
    return journal.path


def copy(path: Path, store: Any, incarnation: int = 1) -> None:
    JournalCopy(path, store, RUN, incarnation, period_s=SOON_S).close()


def test_a_driver_elsewhere_finds_all_lives(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    path = write(tmp_path / "here", form(-1), stable(0))
    copy(path, store)
    there = tmp_path / "there" / JOURNAL
    assert fetch_journal(there, store, RUN)
    write(there.parent, stable(1), stable(2))
    copy(there, store, incarnation=2)
    last = tmp_path / "last" / JOURNAL
    assert fetch_journal(last, store, RUN)
    assert last.read_text() == there.read_text() != path.read_text()
    assert read_past(last).published == 2
    assert not fetch_journal(last, store, RUN), "a journal that is there is left alone"
    assert not fetch_journal(tmp_path / "none" / JOURNAL, store, "another")


def test_a_driver_that_comes_back_finds_the_life_that_was_elsewhere(tmp_path: Path) -> None:
    """What it had itself is put beside, and its own life is copied from the first line on."""
    store = DirectoryStore(tmp_path / "store")
    here, there = tmp_path / "here", tmp_path / "there"
    for life, folder in enumerate((here, there, here), start=1):
        fetch_journal(folder / JOURNAL, store, RUN)
        journal = Journal(folder)
        journal.settings(1.0, RUN, life, ())
        journal.write([line_of("event", 1.0, stable(life))])
        before = {"before_bytes": journal.before_bytes}
        JournalCopy(journal.path, store, RUN, life, period_s=SOON_S, **before).close()
        journal.close()
    path = here / JOURNAL
    told = whole_lines(path)
    assert [line["incarnation"] for line in told if "life" in line] == [1, 2, 3]
    assert read_past(path).ahead == (1, 2, 3)
    assert newest_life(path.with_name(f"{JOURNAL}.until-life-1")) == 1
    assert fetch_journal(tmp_path / "last" / JOURNAL, store, RUN)
    assert (tmp_path / "last" / JOURNAL).read_bytes() == path.read_bytes()


def test_a_journal_that_is_further_than_this_one_hides_no_line_of_this_life(tmp_path: Path) -> None:
    """The disk has lost its end, which the tier has."""
    store = DirectoryStore(tmp_path / "store")
    journal = Journal(tmp_path / "here")
    journal.settings(1.0, RUN, 1, ())
    journal.write([line_of("event", 1.0, stable(step)) for step in range(9)])
    copy(journal.path, store)
    journal.close()
    journal.path.write_bytes(journal.path.read_bytes().splitlines(keepends=True)[0])
    journal = Journal(tmp_path / "here")
    journal.settings(2.0, RUN, 2, ())
    JournalCopy(journal.path, store, RUN, 2, period_s=SOON_S, before_bytes=journal.before_bytes).close()
    journal.close()
    fetch_journal(tmp_path / "there", store, RUN)
    assert newest_life(tmp_path / "there") == 2


def test_a_driver_that_stood_still_copies_no_line_of_its_successor(tmp_path: Path) -> None:
    """They write to one file, and each line of the second life would be there twice."""
    store, journal = DirectoryStore(tmp_path / "store"), Journal(tmp_path / "here")
    journal.settings(1.0, RUN, 1, ())
    journal.write([line_of("event", 1.0, stable(0))])
    first = journal.path.stat().st_size
    second = Journal(tmp_path / "here")
    second.settings(2.0, RUN, 2, ())
    second.write([line_of("event", 2.0, stable(1))])
    JournalCopy(journal.path, store, RUN, 1, period_s=SOON_S, before_bytes=0).close()
    JournalCopy(journal.path, store, RUN, 2, period_s=SOON_S, before_bytes=first).close()
    for one in (journal, second):
        one.close()
    fetch_journal(tmp_path / "there", store, RUN)
    assert (tmp_path / "there").read_bytes() == journal.path.read_bytes()


def test_who_stood_still_while_an_answer_was_lost_copies_no_line_of_its_successor(tmp_path: Path) -> None:
    """Its segment is there, and shorter than what it would write now; another driver has gone on behind it."""

    class Losing(DirectoryStore):
        lost = 0

        def create(self, key: str, data: bytes | memoryview) -> None:
            super().create(key, data)
            self.lost += 1
            if self.lost == 1:
                raise StoreError("no answer")

    store, journal = DirectoryStore(tmp_path / "store"), Journal(tmp_path / "here")
    journal.settings(1.0, RUN, 1, ())
    copying = JournalCopy(journal.path, Losing(tmp_path / "store"), RUN, 1, period_s=NEVER_S, before_bytes=0)
    copying.copy()
    journal.write([line_of("event", 1.0, stable(0))])
    second = Journal(tmp_path / "here")
    first = journal.path.stat().st_size
    second.settings(2.0, RUN, 2, ())
    second.write([line_of("event", 2.0, stable(1))])
    following = JournalCopy(journal.path, store, RUN, 2, period_s=NEVER_S, before_bytes=first)
    following.copy()
    second.write([line_of("event", 3.0, stable(2))])
    copying.copy()
    for one in (copying, following, journal, second):
        one.close()
    fetch_journal(tmp_path / "there", store, RUN)
    assert (tmp_path / "there").read_bytes() == journal.path.read_bytes()


def test_it_is_copied_while_it_is_written(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    journal = Journal(tmp_path)
    copying = JournalCopy(journal.path, store, RUN, 1, period_s=SOON_S)
    try:
        for step in range(200):
            journal.write([line_of("event", 1.0, stable(step))])
            threading.Event().wait(0.001)
    finally:
        copying.close()
        journal.close()
    assert len(list(store.list(f"{RUN}/journal/"))) > 1
    fetch_journal(tmp_path / "there", store, RUN)
    assert (tmp_path / "there").read_bytes() == journal.path.read_bytes()


def test_many_segments_are_read_at_once_and_put_in_order(tmp_path: Path) -> None:
    """A bucket takes its time for each, and a week of a run has a hundred thousand."""
    store = DirectoryStore(tmp_path / "store")
    path = write(tmp_path / "here", form(-1))
    for step in range(8):
        write(path.parent, stable(step))
        copy(path, store, incarnation=step + 1)
    assert len(list(store.list(f"{RUN}/journal/"))) == 8
    together, read = threading.Barrier(4), store.read

    def reading(key: str) -> bytes:
        together.wait(30.0)  # none has an answer before three others have asked
        return read(key)

    store.read = reading  # type: ignore[method-assign, assignment]
    assert fetch_journal(tmp_path / "there", store, RUN)
    assert (tmp_path / "there").read_bytes() == path.read_bytes()


def test_a_segment_that_can_not_be_read_is_no_shorter_journal(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    path = write(tmp_path / "here", stable(0))
    copy(path, store)
    write(path.parent, stable(1))
    copy(path, store, incarnation=2)
    torn, _ = [item.key for item in store.list(f"{RUN}/journal/")]
    store.put(torn, b"not what was written")
    with pytest.raises(CorruptError, match=f"{torn} is damaged .*: once it is deleted, the rest can be read"):
        fetch_journal(tmp_path / "there", store, RUN)
    assert not (tmp_path / "there").exists()
    store.delete(torn)
    assert fetch_journal(tmp_path / "there", store, RUN)
    assert path.read_text().endswith((tmp_path / "there").read_text())


def test_who_is_killed_while_it_fetches_a_journal_leaves_no_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path / "store")
    path, there = write(tmp_path / "here", form(-1), stable(0), stable(1)), tmp_path / "there" / JOURNAL
    copy(path, store)

    def killed(journal: StoredJournal) -> Iterator[str]:
        yield path.read_text()[:100]
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(StoredJournal, "parts", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch_journal(there, store, RUN)
    assert not there.exists() and list(there.parent.iterdir()), "it was killed in the middle"
    assert fetch_journal(there, store, RUN)
    assert there.read_bytes() == path.read_bytes()
    assert list(there.parent.iterdir()) == [there]


def test_half_a_line_waits_for_its_end_and_spoils_none(tmp_path: Path) -> None:
    """A driver was killed while it wrote; the next one begins a line of its own."""
    store = DirectoryStore(tmp_path / "store")
    path = write(tmp_path, stable(0))
    with path.open("a") as file:
        file.write('{"t": 1, "event": "StepSt')
    copy(path, store)
    write(tmp_path, stable(1))
    copy(path, store, incarnation=2)
    fetch_journal(tmp_path / "there", store, RUN)
    assert (tmp_path / "there").read_bytes() == path.read_bytes()
    assert len(path.read_text().splitlines()) == 3
    assert read_past(path).published == 1


def test_what_could_not_be_copied_is_copied_later(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    failures = [3]
    create = store.create

    def creating(key: str, data: Any) -> None:
        if failures[0]:
            failures[0] -= 1
            raise StoreError("no contact")
        create(key, data)

    store.create = creating  # type: ignore[method-assign]
    path = write(tmp_path, *(stable(step) for step in range(5)))
    copying = JournalCopy(path, store, RUN, 1, period_s=SOON_S)
    while failures[0]:
        threading.Event().wait(SOON_S)
    copying.close()
    fetch_journal(tmp_path / "there", store, RUN)
    assert (tmp_path / "there").read_bytes() == path.read_bytes()


def test_a_segment_whose_answer_was_lost_is_not_written_again(tmp_path: Path) -> None:
    """It is there; the next try has more lines, and goes on behind it."""
    store = DirectoryStore(tmp_path / "store")
    create, lost = store.create, [False]

    def creating(key: str, data: Any) -> None:
        create(key, data)
        if not lost[0]:
            lost[0] = True
            journal.write([line_of("event", 1.0, stable(1))])
            raise StoreError("no answer")

    store.create = creating  # type: ignore[method-assign]
    journal = Journal(tmp_path)
    journal.write([line_of("event", 1.0, stable(0))])
    copying = JournalCopy(journal.path, store, RUN, 1, period_s=SOON_S)
    while not lost[0]:
        threading.Event().wait(SOON_S)
    copying.close()
    journal.close()
    fetch_journal(tmp_path / "there", store, RUN)
    assert (tmp_path / "there").read_bytes() == journal.path.read_bytes()


def test_the_past_is_that_of_the_last_line_of_history(tmp_path: Path) -> None:
    assert read_past(tmp_path / "none") == Past()
    lines = [form(-1), *(stable(step) for step in range(6))]
    begun = Remembered(forks=frozenset({Fork(incarnation=1, generation=2, step=-1)}))
    assert read_past(write(tmp_path / "a", *lines)) == Past(published=5, left=Bequest(furthest=5), kept=begun)
    path = write(tmp_path / "b", *lines, form(2, restored=True), stable(3))
    assert read_past(path) == Past(published=3, left=Bequest(furthest=3), kept=begun)
    path = write(tmp_path / "c", *lines, form(-1), stable(0), stable(2))
    assert read_past(path) == Past(published=0, ahead=(2,), left=Bequest(furthest=2), kept=begun)
    started = StartWorker(worker="w11", gang=4, reason="of a test")
    past = read_past(write(tmp_path / "d", started, form(-1)))
    assert (past.next_worker, past.next_gang, past.published) == (12, 5, -1)


def test_so_is_what_a_vote_has_verified(tmp_path: Path) -> None:
    lines = [form(-1), stable(0, voted=True), *(stable(step, voted=step == 4) for step in range(1, 6))]
    assert read_past(write(tmp_path / "a", *lines)).verified == 3
    assert read_past(write(tmp_path / "b", *lines, form(2, restored=True), stable(3))).verified == 2
    assert read_past(write(tmp_path / "c", *lines, form(-1), stable(0, voted=True))).verified == -1


def test_what_a_driver_leaves_is_the_last_it_has_told(tmp_path: Path) -> None:
    """On this machine, and on another one."""
    store, first = DirectoryStore(tmp_path / "store"), Bequest(quarantine={"a": 5.0, "b": None}, restarts=1, furthest=9)
    path = write(tmp_path, stable(4), first)
    assert read_past(path).left == first
    last = Bequest(quarantine={"b": None}, recovery_s={"swap in a spare": (1.0, 2.0)}, paused="by hand", paused_s=7.0)
    path = write(tmp_path, last, stable(5))
    copy(path, store)
    fetch_journal(tmp_path / "there", store, RUN)
    assert read_past(tmp_path / "there").left == read_past(path).left == replace(last, furthest=5)


def test_runs_of_other_names_in_the_same_directory_keep_journals_of_their_own(tmp_path: Path) -> None:
    """Each finds its own in its next life."""
    lives = [(RUN, Bequest(quarantine={"a": None})), ("another", Bequest(paused="by hand")), (RUN, Bequest(restarts=2))]
    found = []
    for run, left in lives:
        make_way(tmp_path / JOURNAL, run)
        found.append(read_past(tmp_path / JOURNAL).left)
        journal = Journal(tmp_path)
        journal.settings(1.0, run, 1, ())
        journal.write([line_of("life", 1.0, left)])
        journal.close()
    assert found == [Bequest(), Bequest(), lives[0][1]]
    assert read_past(tmp_path / JOURNAL).left == lives[2][1]
    assert {path.name for path in tmp_path.iterdir()} == {JOURNAL, "journal-another.jsonl"}


def test_the_journal_of_a_run_that_trains_stays_where_it_is(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.settings(1.0, "another", 1, ())
    with pytest.raises(SettingError, match=r"the run another writes to .*journal.jsonl now: give another fit\(run_dir"):
        make_way(tmp_path / JOURNAL, RUN)
    make_way(tmp_path / JOURNAL, "another")  # a driver that takes it over
    journal.close()
    make_way(tmp_path / JOURNAL, RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["journal-another.jsonl"]


def test_a_file_system_without_locks_has_a_journal_for_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", nowhere)
    journal = Journal(tmp_path)
    journal.settings(1.0, "another", 1, ())
    journal.close()
    make_way(tmp_path / JOURNAL, "another")
    with pytest.raises(SettingError, match=r"no locks \(Function not implemented\): give another fit\(run_dir"):
        make_way(tmp_path / JOURNAL, RUN)


def test_a_step_is_written_once() -> None:
    written = Written(published=3, ahead={5})
    assert [written.is_new(stable(step)) for step in (2, 3, 4, 4, 5, 6)] == [False, False, True, False, False, True]
    assert written.is_new(ev.Tick())


def test_after_a_rewind_steps_are_written_again() -> None:
    written, state = Written(), RunState(settings=RunSettings(run=RUN))
    for step in range(5):
        assert written.is_new(stable(step))
    written.follow(replace(state, published=4))
    assert not written.is_new(stable(4))
    written.follow(replace(state, published=2, forks=(Fork(incarnation=1, generation=2, step=2),)))
    assert written.is_new(stable(3)) and not written.is_new(stable(2))


def test_a_step_that_was_left_behind_is_not_written_whoever_tells_of_it() -> None:
    """Who takes over would take its number for one that every live worker must have reached."""
    forks = (Fork(incarnation=1, generation=2, step=2),)
    skipped = replace(stable(9), report=replace(stable(9).report, skipped="its loss was not finite"))
    assert [Written().is_new(told, forks) for told in (stable(9), skipped, stable(2))] == [False, False, True]
    new = replace(stable(9), report=replace(stable(9).report, commit=CommitId(1, 2, 1, 9, "s9")))
    assert Written().is_new(new, forks)


def test_each_line_is_json(tmp_path: Path) -> None:
    path = write(tmp_path, form(-1), stable(0))
    assert [set(json.loads(line)) & {"event", "command"} for line in path.read_text().splitlines()] == [
        {"command"},
        {"event"},
    ]
