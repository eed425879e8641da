"""Effect. The flight page: written with plain memory stores, read by others, and never the cause of a failure."""

import contextlib
import fcntl
import time
import uuid

import pytest

from elastic.control.flight import Flying
from elastic.train.flight import PAGES, FlightPage, page_path, read_page, sweep_pages
from tests.effects.helpers import LONG_S, child, hear


@pytest.fixture
def page(tmp_path):
    return FlightPage(tmp_path / "page")


def test_a_page_says_where_its_worker_is(page):
    before_s = time.time()
    page.place(generation=3, step=17, attempt=2)
    page.note(Flying.COMPUTING, micro_batch=5)
    flight = read_page(page.path)
    assert (flight.generation, flight.step, flight.attempt) == (3, 17, 2)
    assert (flight.phase, flight.micro_batch) == (Flying.COMPUTING, 5)
    assert before_s <= flight.at_s <= time.time()
    assert flight.started_at_s <= flight.at_s


def test_a_new_page_says_that_its_worker_is_loading(page):
    flight = read_page(page.path)
    assert (flight.phase, flight.generation, flight.step, flight.micro_batch) == (Flying.LOADING, 0, -1, -1)


def test_every_note_is_told_from_the_one_before(page):
    """A reader that sees the same version twice knows that the worker did not move on."""
    versions = [read_page(page.path).version]
    for phase in Flying:
        page.note(phase)
        flight = read_page(page.path)
        versions.append(flight.version)
        assert flight.phase is phase and flight.micro_batch == -1
    assert versions == sorted(set(versions))


def test_commits_count_from_the_next_note_on(page):
    page.committed()
    page.committed()
    page.note(Flying.IN_BODY)
    assert read_page(page.path).commits == 2


def test_a_phase_within_another_ends_where_it_began(page):
    page.note(Flying.COMPUTING, micro_batch=3)
    with pytest.raises(ValueError), page.during(Flying.REDUCING):
        assert (read_page(page.path).phase, read_page(page.path).micro_batch) == (Flying.REDUCING, 3)
        raise ValueError
    assert (read_page(page.path).phase, read_page(page.path).micro_batch) == (Flying.COMPUTING, 3)


@pytest.mark.parametrize(
    ("text", "read"), [("exporting", "exporting"), ("", ""), ("é" * 200, "é" * 64)], ids=["words", "none", "too many"]
)
def test_a_remark_is_read_with_the_page(page, text, read):
    page.remark("an older and longer remark")
    page.remark(text)
    assert read_page(page.path).remark == read


def test_a_place_counts_from_the_next_note_on(page):
    """So that place and phase change together."""
    page.place(1, 2, 3)
    assert read_page(page.path).step == -1
    page.note(Flying.IN_BODY)
    assert read_page(page.path).step == 2


def test_a_page_outlives_its_writer(page):
    """It is read once more after the worker's death."""
    page.place(1, 8, 1)
    page.note(Flying.REDUCING)
    path = page.path
    del page
    assert read_page(path).step == 8


def test_a_removed_page_is_gone_and_may_still_be_written(page):
    """The training thread may note once more after the page was taken away."""
    page.remove()
    assert read_page(page.path) is None
    page.note(Flying.OUTSIDE)
    page.remove()
    assert not page.path.exists()


def test_a_page_starts_afresh_over_an_old_one(page):
    """A worker that was killed leaves its page; its successor of the same name is not taken for it."""
    page.place(5, 55, 5)
    page.note(Flying.APPLYING)
    assert read_page(FlightPage(page.path).path).step == -1


def fly(pipe, path) -> None:
    page = FlightPage(path)
    pipe.send("flying")
    pipe.poll(LONG_S)
    page.remove()


def test_a_sweep_takes_the_pages_of_the_dead_and_leaves_those_of_the_living():
    """Of this run alone: others have workers on the node, too."""
    run, other = (f"sweep-{uuid.uuid4().hex}" for _ in range(2))
    dead, living, foreign = page_path(run, "w0", 1), page_path(run, "w1", 2), page_path(other, "w0", 1)
    foreign.touch()
    page = FlightPage(living)
    try:
        with child(fly, dead) as (process, pipe):
            hear(pipe)
            sweep_pages(run)
            assert dead.exists() and living.exists(), "a living worker lost its page"
            process.kill()
            process.join(LONG_S)
            assert dead.exists(), "it took its page along"
            sweep_pages(run)
        assert not dead.exists() and living.exists() and foreign.exists()
    finally:
        page.remove()
        foreign.unlink()


def test_a_page_that_is_swept_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    """Else its worker would write where nobody can look."""
    path, lock, locks = tmp_path / "page", fcntl.flock, []

    def swept_first(fd, operation):
        locks.append(operation)
        if len(locks) == 1:
            path.unlink()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", swept_first)
    page = FlightPage(path)
    page.note(Flying.REDUCING)
    assert len(locks) == 2 and read_page(path).phase is Flying.REDUCING


def test_a_page_that_is_not_there_is_no_error(tmp_path):
    assert read_page(tmp_path / "none") is None


@pytest.mark.parametrize("size", [0, 1, 63, 199])
def test_a_page_that_was_cut_short_is_no_reading(page, size):
    """Between its making and its first note, or on a full ramdisk."""
    page.path.write_bytes(page.path.read_bytes()[:size])
    assert read_page(page.path) is None


def test_a_page_of_garbage_is_no_reading(page):
    """The monitor reads whatever lies there, and must not fall over it."""
    page.path.write_bytes(b"\xff" * 4096)
    assert read_page(page.path) is None


def test_pages_of_runs_incarnations_and_workers_are_apart():
    paths = {page_path(run, worker, life) for run in ("a", "b") for worker in ("w0", "w1") for life in (1, 2)}
    assert len(paths) == 8
    assert all(path.parent == PAGES and path.name.startswith("elastic-") for path in paths)


def test_what_is_done_inside_something_else_goes_back_to_it(page):
    page.note(Flying.COMPUTING, 3)
    with contextlib.suppress(ValueError), page.during(Flying.SLOW):
        inside = read_page(page.path)
        raise ValueError
    after = read_page(page.path)
    assert [(one.phase, one.micro_batch) for one in (inside, after)] == [(Flying.SLOW, 3), (Flying.COMPUTING, 3)]


def test_a_page_counts_the_seconds_of_computing_and_of_waiting(page):
    for phase, pause_s in (
        (Flying.FETCHING, 0.03),
        (Flying.COMPUTING, 0.02),
        (Flying.REDUCING, 0.06),
        (Flying.TALKING, 0.04),
        (Flying.AT_DOOR, 0.2),
        (Flying.IN_BODY, 0),
    ):
        page.note(phase)
        time.sleep(pause_s)
    first = read_page(page.path)
    assert first.computing_s >= 0.05 and first.waiting_s >= 0.1
    assert first.computing_s == page.computing_s
    page.note(Flying.COMPUTING)
    page.note(Flying.COMPUTING)
    page.note(Flying.OUTSIDE)
    second = read_page(page.path)
    assert second.computing_s > first.computing_s and second.waiting_s == first.waiting_s
