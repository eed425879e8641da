"""Effect. Segments of a journal in the persistent tier become few, whoever reads meanwhile, and whoever is killed."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elastic.actors import journal_copy
from elastic.actors.journal_copy import JournalCopy, fetch_journal
from elastic.actors.journal_merging import merge
from elastic.actors.stored_journal import Segment, StoredJournal, decoded, encoded, end_of, objects
from elastic.checkpoint import merging
from elastic.checkpoint.merging import Span
from elastic.checkpoint.records import Keys, sealed
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.stores.directory import DirectoryStore
from elastic.checkpoint.vault import open_vault
from elastic.commands import rewinding
from elastic.commands.rewinding import send_back_next_life
from elastic.control.values import AS_BEFORE
from elastic.errors import CorruptError, ElasticError
from tests.effects.store_parts import opened_store
from tests.effects.vault_parts import made_durable

RUN, DEADLINE_S, MOST_LINES = "night", 60.0, 3000


@pytest.fixture(params=["directory", "memory", "gcs"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with opened_store(request.param, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few segments are enough to be merged, and go at once."""
    monkeypatch.setattr(merging, "MOST", 4)
    monkeypatch.setattr(merging, "KEPT_S", 0.0)
    monkeypatch.setattr(merging, "_WHOLE_S", 0.0)


def lines(count: int, first: int = 0) -> list[str]:
    return [f'{{"t": {number}.0, "word": "schön {number}"}}\n' for number in range(first, first + count)]


def written(store: Any, incarnation: int, texts: list[str], begin: int = 0) -> int:
    """Each line a segment; returns where the next one begins."""
    for number, text in enumerate(texts):
        segment = Segment(begin, text)
        store.create(Keys(RUN).journal(incarnation, number), encoded([segment]))
        begin = segment.end
    return begin


def all_of(journal: StoredJournal) -> str:
    return "".join(journal.parts())


def merged_out(store: Any, incarnation: int) -> None:
    """As often as there is something to be done."""
    before: Any = None
    while before != (now := set(objects(store, RUN))):
        before = now
        merge(store, RUN, incarnation)


def test_a_long_journal_is_in_few_objects_and_whole(store: Any, tmp_path: Path) -> None:
    texts = lines(22)
    end = written(store, 1, texts[:13])
    written(store, 2, texts[13:], end)
    assert len(objects(store, RUN)) == 22
    merged_out(store, 2)
    assert sorted(objects(store, RUN)) == [
        *(Span(1, first, first + 3) for first in (0, 4, 8)),
        Span(1, 12, 12),
        *(Span(2, first, first + 3) for first in (0, 4)),
        Span(2, 8, 8),
    ]
    assert all_of(StoredJournal(store, RUN)) == "".join(texts)
    assert end_of(store, RUN) == len("".join(texts).encode())
    assert fetch_journal(tmp_path / "there", store, RUN)
    assert (tmp_path / "there").read_text() == "".join(texts)


class Deadly:
    """A store whose user is killed at its n-th change."""

    def __init__(self, store: Any, changes: int) -> None:
        self._store, self._left, self._lock = store, changes, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _changed(self, act: Callable[[], None]) -> None:
        with self._lock:
            if not self._left:
                raise StoreError("killed")
            self._left -= 1
        act()

    def create(self, key: str, data: bytes) -> None:
        self._changed(lambda: self._store.create(key, data))

    def delete(self, key: str) -> None:
        self._changed(lambda: self._store.delete(key))


def test_a_long_journal_is_told_a_part_at_a_time_and_never_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, texts, reads = DirectoryStore(tmp_path), lines(40), list[str]()
    written(store, 1, texts)
    read_one = store.read
    monkeypatch.setattr(store, "read", lambda key: (reads.append(key), read_one(key))[1])
    parts = StoredJournal(store, RUN).parts()
    first = next(parts)
    assert 0 < len(reads) < 20 and "".join(texts).startswith(first)
    assert first + "".join(parts) == "".join(texts) and len(reads) == len(set(reads))


def test_whoever_is_killed_in_the_middle_leaves_every_line_and_the_next_one_goes_on(tmp_path: Path) -> None:
    texts = lines(10)
    for changes in itertools.count():
        store = DirectoryStore(tmp_path / f"store-{changes}")
        written(store, 1, texts)
        follower = StoredJournal(store, RUN)
        assert all_of(follower) == "".join(texts)
        is_killed, deadly = False, Deadly(store, changes)
        for _ in range(3):
            try:
                merge(deadly, RUN, 1)  # type: ignore[arg-type]
            except StoreError:
                is_killed = True
                break
        assert all_of(StoredJournal(store, RUN)) == "".join(texts), changes
        merged_out(store, 1)
        assert sorted(objects(store, RUN)) == [Span(1, 0, 3), Span(1, 4, 7), *(Span(1, one, one) for one in (8, 9))]
        assert all_of(StoredJournal(store, RUN)) == "".join(texts) and all_of(follower) == ""
        if not is_killed:
            break
    assert changes == 2 + 8, "each merged object that is made, and each segment that goes"


def test_who_has_listed_what_goes_meanwhile_lists_again(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = lines(9)
    written(store, 1, texts)
    merge(store, RUN, 1)
    follower, listing, listed = StoredJournal(store, RUN), store.list, []

    def goes(prefix: str) -> Any:
        found = list(listing(prefix))
        found = [item for item in found if item.key.count("-") == 1] if not listed else found  # before it was merged
        listed.append(len(found))
        if len(listed) == 1:
            monkeypatch.setattr(store, "list", listing)
            merge(store, RUN, 1)
            monkeypatch.setattr(store, "list", goes)
        return iter(found)

    monkeypatch.setattr(store, "list", goes)
    assert all_of(follower) == "".join(texts)
    assert listed == [9, 3], "nine segments, eight of which were gone; two merged ones and the last"


def test_who_follows_a_journal_that_is_merged_meanwhile_is_told_each_line_once(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_copy, "_MERGED_EVERY", 3)
    path, texts = tmp_path / "journal.jsonl", list[str]()
    path.write_text("")
    follower, told, is_over = StoredJournal(store, RUN), list[str](), threading.Event()

    def follow() -> None:
        while not is_over.is_set():
            told.append(all_of(follower))

    reading = threading.Thread(target=follow)
    reading.start()
    try:
        with closing(JournalCopy(path, store, RUN, 1, period_s=0.005)), path.open("a", buffering=1) as file:
            while len(texts) < MOST_LINES and not has_gone(store):
                texts.append(lines(1, len(texts))[0])
                file.write(texts[-1])
                threading.Event().wait(0.01)
    finally:
        is_over.set()
        reading.join(DEADLINE_S)
    told.append(all_of(follower))
    assert "".join(told) == "".join(texts) == all_of(StoredJournal(store, RUN))
    assert has_gone(store), "nothing was merged"


def has_gone(store: Any) -> bool:
    there = objects(store, RUN)
    return bool(there) and Span(1, 0, 0) not in there


def test_a_merged_object_that_is_damaged_is_made_anew_while_its_segments_are_there(store: Any) -> None:
    texts = lines(5)
    written(store, 1, texts)
    merge(store, RUN, 1)
    key = Keys(RUN).journal(1, 0, 3)
    store.put(key, store.read(key)[:-3])
    merge(store, RUN, 1)
    merged_out(store, 1)
    assert sorted(objects(store, RUN)) == [Span(1, 0, 3), Span(1, 4, 4)]
    assert all_of(StoredJournal(store, RUN)) == "".join(texts)


def test_of_a_merged_object_that_is_damaged_no_more_segments_go(store: Any) -> None:
    written(store, 1, lines(5))
    merge(store, RUN, 1)
    key = Keys(RUN).journal(1, 0, 3)
    store.put(key, store.read(key)[:-3])
    store.delete(Keys(RUN).journal(1, 2))
    merge(store, RUN, 1)
    assert sorted(objects(store, RUN)) == [Span(1, 0, 0), Span(1, 0, 3), *(Span(1, one, one) for one in (1, 3, 4))]
    with pytest.raises(CorruptError):
        all_of(StoredJournal(store, RUN))


def test_a_segment_that_is_damaged_stays_as_it_is(store: Any) -> None:
    written(store, 1, lines(5))
    store.put(Keys(RUN).journal(1, 2), b"not what was written")
    with pytest.raises(CorruptError):
        merge(store, RUN, 1)
    assert len(objects(store, RUN)) == 5


@pytest.mark.parametrize(
    "body",
    [
        {"begin": 0, "text": "a\nb\n", "segments": [[0, 2]]},
        {"begin": 0, "text": "a\nb\n", "segments": [[0, 2], [2, 1]]},
        {"begin": 0, "text": "a\nb\n", "segments": [[0, 2], None]},
        {"begin": 0, "text": "a\nb\n"},
    ],
)
def test_what_contradicts_its_key_is_refused(body: dict[str, Any]) -> None:
    right = encoded([Segment(0, "a\n"), Segment(2, "b\n")])
    assert decoded(right, Span(1, 5, 6)) == {(1, 5): Segment(0, "a\n"), (1, 6): Segment(2, "b\n")}
    with pytest.raises(CorruptError):
        decoded(sealed("journal", body), Span(1, 5, 6))


def test_what_is_merged_of_an_ended_life_does_not_hide_a_new_one(tmp_path: Path) -> None:
    """A new life merges what is there when it begins, and may then be silent for long."""
    with closing(open_vault(str(tmp_path), "night-1")) as vault:
        vault.register("a driver")
        made_durable(vault, 10)
        for incarnation, text in ((2, '{"life": "Begun"}\n'), (1, '{"event": "StepStable"}\n{"command": "EndRun"}\n')):
            vault.store.create(Keys("night-1").journal(incarnation, 0, None), encoded([Segment(0, text)]))
        with pytest.raises(ElasticError, match="and trains"):
            send_back_next_life("night-1", str(tmp_path), 10, AS_BEFORE)


def test_a_run_is_sent_back_to_a_step_that_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is newer is void once that is recorded, and nobody could take it back."""
    with closing(open_vault(str(tmp_path), "night-1")) as vault:
        vault.register("a driver")
        for number in (10, 20, 30):
            made_durable(vault, number)
        newest, middle, oldest = (one.commit for one in vault.commits())
        vault.quarantine(newest, "bad bytes")
        chunk = next(item.key for item in vault.store.list("night-1/steps/0000000020") if "manifest" not in item.key)
        vault.store.delete(chunk)
        assert send_back_next_life("night-1", str(tmp_path), 30, AS_BEFORE) == oldest.step == 10
        assert "step 20 is left out" in capsys.readouterr().err and middle.step == 20
        assert [fork.step for fork in vault.forks()] == [10]
    with closing(open_vault(str(tmp_path / "other"), "night-1")) as vault:
        vault.register("a driver")
        made_durable(vault, 10)
        vault.quarantine(vault.commits()[0].commit, "bad bytes")
        with pytest.raises(ElasticError, match="at or before 30; those are damaged, or in quarantine; there are: 10"):
            send_back_next_life("night-1", str(tmp_path / "other"), 30, AS_BEFORE)
        assert vault.forks() == []


@pytest.mark.parametrize(
    ("texts", "is_refused"),
    [
        (['{"event": "StepStable"}\n'], True),
        (['{"event": "WorkerParked"}\n'], True),
        (['{"event": "StepStable"}\n', '{"command": "EndRun"}\n', '{"event": "WorkerLost"}\n'], False),
    ],
    ids=["it trains", "it begins", "it has ended"],
)
def test_a_run_that_trains_is_not_sent_back_behind_its_back(
    texts: list[str], is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who registers in its store after it would cut it off from it."""
    with closing(open_vault(str(tmp_path), "night-1")) as vault:
        incarnation = vault.register("a driver")
        made_durable(vault, 10)
        for number, text in enumerate(texts):
            vault.store.create(Keys("night-1").journal(incarnation, number, None), encoded([Segment(0, text)]))
        if is_refused:
            with pytest.raises(
                ElasticError, match=r"night-1 has written its journal \d+ s ago, and trains: leave --persist"
            ):
                send_back_next_life("night-1", str(tmp_path), 10, AS_BEFORE)
            monkeypatch.setattr(rewinding, "_SILENT_S", 0.0)
            with pytest.raises(ElasticError, match=r"tells of no end, and has been silent for \d+ s: .*say --killed"):
                send_back_next_life("night-1", str(tmp_path), 10, AS_BEFORE)
            assert vault.forks() == []
        assert send_back_next_life("night-1", str(tmp_path), 10, AS_BEFORE, is_killed=is_refused) == 10
        assert [fork.step for fork in vault.forks()] == [10]
