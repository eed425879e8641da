"""Effect. Where commands find the journal of a run: a directory, a name, a persistent tier."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from elastic.actors.journal import JOURNAL
from elastic.errors import ElasticError

_RUNS = Path("runs")


@contextmanager
def journal_of(run: str, address: str | None = None) -> Iterator[Path]:
    """The path of its journal for as long as the block lasts.

    Args:
        run: a run directory, or a journal; URL#NAME of a persistent tier; the name of a run under `runs/` or, else, of
            one that trains on the cluster and whose directory is on this machine.
        address: of the cluster.

    Raises:
        ElasticError: there is none; says where it was looked for.
    """
    path = Path(run)
    if path.is_file():
        yield path
    elif "://" in run:
        yield from _fetched(run)
    elif path.is_dir():
        yield _there(path)
    elif (_RUNS / run / JOURNAL).exists():
        yield _RUNS / run / JOURNAL
    else:
        yield _there(_of_live_run(run, address))


def _there(folder: Path) -> Path:
    if not (folder / JOURNAL).exists():
        raise ElasticError(f"{folder} holds no {JOURNAL}: give the directory of a run, fit(run_dir=...)")
    return folder / JOURNAL


def _fetched(place: str) -> Iterator[Path]:
    from elastic.actors.journal_copy import fetch_journal
    from elastic.checkpoint.vault import open_vault

    url, _, name = place.partition("#")
    if not name:
        raise ElasticError(f"{place}: which run? Give {url}#NAME, with the name that fit() was given")
    with tempfile.TemporaryDirectory() as folder, closing(open_vault(url, name)) as vault:
        path = Path(folder) / JOURNAL
        if not fetch_journal(path, vault.store, name):
            raise ElasticError(f"{url} holds no journal of a run {name!r}: Checkpoint.persistent says where it goes")
        yield path


def _of_live_run(run: str, address: str | None) -> Path:
    from elastic.actors.asking import run_dir

    host, folder = run_dir(run, address=address)
    if not (folder / JOURNAL).exists():
        raise ElasticError(f"the run {run} keeps its journal in {folder} on {host}, which is not here: ask there")
    return folder
