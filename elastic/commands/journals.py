"""Effect. Where commands find the journal of a run: a directory, the persistent tier, or a run that trains."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elastic.actors.journal import JOURNAL
from elastic.errors import ElasticError, RefusedError, SettingError

if TYPE_CHECKING:
    from elastic.actors.stored_journal import StoredJournal

RUNS = Path("runs")  # where `fit` puts them, unless it is told otherwise
FETCH_S = 5.0  # between two looks for what was copied to a persistent tier
_END_S = 2.0


def journal_lines(run: str, address: str | None = None) -> Iterator[str]:
    """The lines of a run's journal, as far as they are written.

    Args:
        run: a run directory, a file of lines, `URL/NAME` of a persistent tier and a run in it, or the name of a run:
            one in ./runs, or one that trains.
        address: of the cluster on which it trains; default: RAY_ADDRESS, or the one on this machine.

    Raises:
        RefusedError: there is no journal; says where was looked. StoreError: the persistent tier cannot be read.
        UsageError: what is neither there nor could be the name of a run.
    """
    place = _place(run, address)
    if isinstance(place, Path):
        return _read(place)
    return _lines_of(place)


@contextmanager
def journal_file(run: str, address: str | None = None, *, is_followed: bool = False) -> Iterator[Path]:
    """The path of a run's journal for as long as the block lasts; it grows where the run trains on this machine.

    Arguments and errors are those of `journal_lines`.

    Args:
        is_followed: it grows with its copy in a persistent tier, too.
    """
    place = _place(run, address)
    if isinstance(place, Path):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="elastic-") as folder, _stored(place) as (stored, parts):
        path = Path(folder) / JOURNAL
        with path.open("w") as file:
            file.writelines(parts)
        with _growing(path, stored) if is_followed else contextlib.nullcontext():
            yield path


@contextmanager
def _growing(path: Path, stored: "StoredJournal") -> Iterator[None]:
    """What comes to the persistent tier meanwhile is appended."""
    ended = threading.Event()

    def fetch() -> None:
        while not ended.wait(FETCH_S):
            with contextlib.suppress(ElasticError, OSError):  # the next try may find more
                for text in stored.parts():
                    if ended.is_set():
                        return
                    with path.open("a") as file:
                        file.write(text)

    thread = threading.Thread(target=fetch, name="elastic-follow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_END_S)


def _place(run: str, address: str | None) -> Path | str:
    """The file, or URL/NAME in a persistent tier."""
    path = Path(run)
    if "://" in run:
        return run
    if path.is_file():
        return path
    for directory in (path, RUNS / run):
        if (directory / JOURNAL).is_file():
            return directory / JOURNAL
    if (path / "journal").is_dir():
        return str(path.resolve())
    if path.is_dir():
        raise RefusedError(f"{run} holds no {JOURNAL}: name the directory that fit(run_dir=...) wrote to")
    return _of_a_driver(run, address)


def _of_a_driver(run: str, address: str | None) -> Path:
    """The journal of a run that trains; a name that none can have is a path that was mistyped, and nobody is asked."""
    from elastic.actors.asking import run_dir
    from elastic.checkpoint.manifest import checked_name

    here = f"there is neither a directory {run} nor {RUNS / run}"
    try:
        checked_name(run, "RUN")
    except SettingError as error:
        raise click.UsageError(f"{here} here, and no run can have that name.") from error
    try:
        directory = run_dir(run, address=address)
    except ElasticError as error:
        raise RefusedError(f"{here} with a {JOURNAL} here, and {error}") from error
    if not (directory / JOURNAL).is_file():
        raise RefusedError(
            f"the journal of {run} is in {directory} on the machine of its driver: ask there, or name it in its "
            "persistent tier as URL/NAME"
        )
    return directory / JOURNAL


def _read(path: Path) -> Iterator[str]:
    with path.open(errors="replace") as lines:
        yield from lines


def _lines_of(url: str) -> Iterator[str]:
    with _stored(url) as (_, parts):
        for part in parts:
            yield from part.splitlines(keepends=True)


@contextmanager
def _stored(url: str) -> Iterator[tuple["StoredJournal", Iterator[str]]]:
    """The copy in a persistent tier, and what it has by now, which is something."""
    from elastic.actors.stored_journal import StoredJournal
    from elastic.checkpoint.stores import open_store

    prefix, _, name = url.rstrip("/").rpartition("/")
    if prefix.endswith(":/"):
        raise click.UsageError(f"{url} names no run: name it as URL/NAME, as in {url.rstrip('/')}/night.")
    with contextlib.closing(open_store(prefix, knob="RUN")) as store:
        stored = StoredJournal(store, name)
        parts = stored.parts()
        first = next(parts, "")
        if not first:
            raise RefusedError(
                f"{prefix} holds no journal of a run {name}: name it as URL/NAME, as in gs://bucket/runs/{name}"
            )
        yield stored, chain([first], parts)
