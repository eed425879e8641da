"""Effect. C15, C16: a persistent store that takes connections and says nothing is named, in time, by who needs it."""

import contextlib
import functools
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elastic.checkpoint import stores
from elastic.checkpoint.arena import Arena
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault, open_vault
from elastic.checkpoint.vault_cleaning import collected, swept
from elastic.control.state import RunState
from elastic.control.values import NOTHING_COMMITTED, View
from elastic.interchange.safetensors import Named, write_header, write_tensor
from elastic.settings import Keep, RunSettings
from tests.effects.gcs_server import Fault, GcsServer
from tests.effects.helpers import LONG_S, Running, eventually
from tests.effects.shelves import numbers
from tests.effects.test_arena import stage
from tests.effects.test_checkpoint_commands import Called
from tests.effects.test_failing_states import RUN, Life
from tests.effects.vault_parts import commit_id, made_durable, uploaded

DEADLINE_S = 1.0
URL = "gs://bucket/root"
MANY = 10_000
NOT_ANSWERED = f"{URL}: cannot .*: retried in vain, last [A-Za-z]*(Timeout|ConnectionError); look at the network"


class Silent:
    """A server that accepts every connection, reads nothing and sends nothing. Attribute `taken`: connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(LONG_S)
        for one in (self._listener, *self.taken):
            one.close()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.taken.append(self._listener.accept()[0])


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores have a second where they usually have minutes."""
    opened = functools.partial(open_store, deadline_s=DEADLINE_S)
    monkeypatch.setattr("elastic.checkpoint.vault.open_store", opened)
    monkeypatch.setattr(stores, "open_store", opened)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    """Where gs:// leads to; the test must have come there."""
    with closing(Silent()) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server
        assert server.taken, "nobody has asked it"
        still = [thread.name for thread in threading.enumerate() if "_fetch_background" in thread.name]
        assert not still, "the library asks on for what nobody needs"


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda store: store.create("run/a", b"x"), id="create"),
        pytest.param(lambda store: store.create("run/a", bytes(7 << 20)), id="create more than a socket takes"),
        pytest.param(lambda store: store.create("run/a", bytes(9 << 20)), id="create in parts"),
        pytest.param(lambda store: store.put("run/a", b"x"), id="put"),
        pytest.param(lambda store: store.advance("run/a", b"x", lambda was: True), id="advance"),
        pytest.param(lambda store: store.read("run/a"), id="read"),
        pytest.param(lambda store: store.read("run/a", 3, 9), id="read a part"),
        pytest.param(lambda store: list(store.list("run/a")), id="list"),
        pytest.param(lambda store: store.delete("run/a"), id="delete"),
    ],
)
def test_c15_c16_no_call_waits_for_ever(silent: Silent, call: Callable[[Any], Any]) -> None:
    with closing(stores.open_store(URL)) as store:
        error = Running(lambda: call(store)).error()
    assert isinstance(error, StoreError)
    assert is_named(error) and "run/a" in str(error)


def is_named(said: object) -> bool:
    """Whether this says which store did not answer."""
    return re.search(NOT_ANSWERED, str(said)) is not None


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda vault: vault.register("test"), id="register"),
        pytest.param(lambda vault: uploaded(vault, commit_id(10)), id="upload"),
        pytest.param(lambda vault: vault.commit(commit_id(10), ["0" * 64]), id="commit"),
        pytest.param(lambda vault: collected(vault, Keep()), id="collect"),
        pytest.param(swept, id="sweep"),
    ],
)
def test_c15_c16_what_is_done_to_a_run_ends_with_its_name(silent: Silent, act: Callable[[Any], Any]) -> None:
    with closing(open_vault(URL, RUN)) as vault:
        error = Running(lambda: act(vault)).error()
    assert isinstance(error, StoreError) and is_named(error)


@pytest.mark.parametrize(
    "words",
    [
        f"ls {RUN} --persistent {URL}",
        f"verify {RUN} --deep --persistent {URL}",
        f"restore-report {RUN} --persistent {URL}",
        f"export {RUN} --to out --persistent {URL}",
        f"import state.safetensors --run {RUN} --persistent {URL}",
        f"gc {RUN} --dry-run --persistent {URL}",
        f"gc {RUN} --persistent {URL}",
        f"rewind {RUN} --to-step 4 --persistent {URL}",
        f"goodput {URL}/{RUN}",
    ],
    ids=lambda words: " ".join(words.split()[:1]),
)
def test_c15_c16_a_command_ends_with_the_name_of_the_store(
    silent: Silent, words: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    with (tmp_path / "state.safetensors").open("wb") as file:
        write_header(file, [Named("w", "float32", (3,))], {})
        write_tensor(file, numbers(3))
    monkeypatch.chdir(tmp_path)
    code, said, complaint = Called(capsys, monkeypatch)(*words.split())
    assert code == 1 and not said
    assert is_named(complaint)


# --- a store that has answered before ---


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer(page=1000) as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@contextlib.contextmanager
def silence(server: GcsServer) -> Iterator[Fault]:
    """From now on it answers nothing, until the end; somebody must have asked."""
    fault = server.fail("silent", times=MANY)
    try:
        yield fault
    finally:
        struck = fault.struck
        fault.lift()
    assert struck, "nobody has asked it"


@pytest.fixture
def life(server: GcsServer, tmp_path: Path) -> Iterator[Life]:
    """Of a run whose step 10 is durable."""
    with closing(open_vault(URL, RUN)) as vault:
        vault.register("test")
        made_durable(vault, 10)
    (tmp_path / "memory").mkdir()
    one = Life(tmp_path, URL)
    yield one
    one.tiers.close(keep=True)
    one.vault.close()


def staged(life: Life, folder: Path, step: int) -> None:
    with closing(Arena(folder / "memory", RUN, life.incarnation, "w0")) as arena:
        assert stage(arena, step, incarnation=life.incarnation, run=RUN)


def test_what_is_in_memory_is_restored_while_the_persistent_tier_is_silent(
    server: GcsServer, life: Life, tmp_path: Path
) -> None:
    """What it has on record of earlier lives was read when this one began."""
    staged(life, tmp_path, 17)
    with silence(server):
        found = life.found()
    assert found.commit is not None and found.commit.step == 17, found.error


@pytest.mark.parametrize("at_most", [None, 12])
def test_c22_an_older_step_in_memory_does_not_take_the_place_of_one_that_cannot_be_read_now(
    server: GcsServer, life: Life, tmp_path: Path, at_most: int | None
) -> None:
    staged(life, tmp_path, 4)
    with silence(server):
        found = life.found(at_most=at_most)
    assert found.commit is None and is_named(found.error)
    again = life.found(at_most=at_most)
    assert again.commit is not None and again.commit.step == 10, "it has forgotten the step meanwhile"


def test_c22_a_life_that_sees_a_step_listed_and_cannot_read_it_goes_back_behind_it_no_more(
    server: GcsServer, tmp_path: Path
) -> None:
    """It has never read it; an older step that lies in memory would make it void."""
    (tmp_path / "memory").mkdir()
    with closing(Vault(stores.open_store(URL), RUN)) as vault:
        vault.register("test")
        made_durable(vault, 10)
    fault = server.fail("status", method="GET", path="alt=media", times=MANY)
    life = Life(tmp_path, URL)
    staged(life, tmp_path, 4)
    found = life.found()
    fault.lift()
    again = life.found()
    life.tiers.close(keep=True)
    life.vault.close()
    assert fault.struck and found.commit is None and "503" in found.error
    assert again.commit is not None and again.commit.step == 10


def test_a_life_does_not_begin_without_what_is_on_record_of_those_before(server: GcsServer, tmp_path: Path) -> None:
    with closing(Vault(stores.open_store(URL), RUN)) as vault:
        vault.register("test")
        made_durable(vault, 10)
    with silence(server), pytest.raises(StoreError, match=NOT_ANSWERED):
        Life(tmp_path, URL)


def test_where_history_began_anew_is_recorded_though_the_tier_was_silent_then(
    server: GcsServer, life: Life, monkeypatch: Any, caplog: Any
) -> None:
    """Before it is, nothing of this life can be committed."""
    monkeypatch.setattr("elastic.actors.tiers._AGAIN_S", 0.05)
    parts: dict[str, Any] = {"members": (), "donors": (), "behind": (), "bootstrap": True}
    view = View(run=RUN, incarnation=life.incarnation, generation=1, resume=NOTHING_COMMITTED, **parts)
    committing = Vault(life.vault.store, RUN, incarnation=life.incarnation)
    with silence(server):
        life.tiers.formed(view, RunState(settings=RunSettings(run=RUN)))
        eventually(lambda: "not recorded yet that history began anew" in caplog.text, "it was tried in vain")
    eventually(life.vault.forks, "it is recorded")
    made_durable(committing, 12)
    assert [record.commit.step for record in life.vault.commits()] == [12]
