"""Cloud Storage, against the strict server: what is retried, what an answer that got lost means, and how it ends."""

import time

import pytest

from elastic.checkpoint.store import MissingError, StoreError, TakenError
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault
from tests.effects.gcs_server import GcsServer
from tests.effects.store_parts import gcs_store
from tests.effects.vault_parts import made_durable, what_is_read

BIG = bytes(range(256)) * (36 << 10)  # 9 MiB: resumable
PART_BYTES = 1 << 20


@pytest.fixture
def server():
    with GcsServer(page=1000) as running:
        yield running


@pytest.fixture
def store(server, monkeypatch):
    opened = gcs_store(server, monkeypatch)
    yield opened
    opened.close()


def stored(server: GcsServer, key: str) -> bytes:
    return server.buckets["bucket"].objects[f"root/{key}"].data


def test_the_objects_lie_below_the_prefix(server, store):
    store.create("run/a", b"x")
    assert list(server.buckets["bucket"].objects) == ["root/run/a"]
    assert store.url == "gs://bucket/root"


def test_a_big_object_goes_in_parts(server, monkeypatch):
    store = gcs_store(server, monkeypatch, part_bytes=PART_BYTES)
    store.create("run/big", BIG)
    assert stored(server, "run/big") == BIG
    assert sum(line.startswith("PUT") for line in server.requests) == 9
    store.close()


@pytest.mark.parametrize(
    ("size", "method", "kind"),
    [
        *(("small", "POST", kind) for kind in ("status", "reset", "lost", "cut", "damaged")),
        *(("big", "POST", kind) for kind in ("status", "reset", "lost", "cut")),
        *(("big", "PUT", kind) for kind in ("status", "reset", "lost", "cut", "damaged")),
    ],
)
def test_c13_an_upload_survives(server, monkeypatch, size, method, kind):
    data = BIG if size == "big" else b"small"
    store = gcs_store(server, monkeypatch, part_bytes=PART_BYTES)
    fault = server.fail(kind, method=method, path="upload")
    store.create("run/a", data)
    assert fault.struck == 1
    assert stored(server, "run/a") == data
    store.create("run/a", data)
    with pytest.raises(TakenError):
        store.create("run/a", data[:-1] + b"?")
    store.close()


def test_c13_an_upload_that_is_cut_goes_on_where_it_was(server, monkeypatch):
    store = gcs_store(server, monkeypatch, part_bytes=4 * PART_BYTES)
    fault = server.fail("cut", method="PUT", times=3)
    store.create("run/big", BIG)
    assert fault.struck == 3
    assert stored(server, "run/big") == BIG
    store.close()


def test_c13_a_session_that_is_forgotten_is_begun_anew(server, monkeypatch):
    store = gcs_store(server, monkeypatch, part_bytes=PART_BYTES)
    fault = server.fail("forgotten", method="PUT")
    store.create("run/big", BIG)
    assert fault.struck == 1
    assert stored(server, "run/big") == BIG
    store.close()


def test_c13_the_answer_to_our_own_write_got_lost(server, store):
    """The retry meets what it wrote itself: 412, which is success."""
    fault = server.fail("lost", method="POST")
    store.create("run/COMMIT", b"mine")
    assert fault.struck == 1
    assert sum("POST" in line for line in server.requests) == 2
    assert stored(server, "run/COMMIT") == b"mine"


def test_c13_somebody_else_was_first(server, store):
    store.create("run/COMMIT", b"his!")
    with pytest.raises(TakenError, match="run/COMMIT is there, with other bytes"):
        store.create("run/COMMIT", b"mine")
    assert stored(server, "run/COMMIT") == b"his!"


@pytest.mark.parametrize("kind", ["status", "reset", "short", "slow"])
def test_a_read_survives(server, store, kind):
    store.create("run/a", b"0123456789" * 10)
    for begin, end, path in ((0, None, "alt=media"), (10, 20, "alt=media")):
        fault = server.fail(kind, method="GET", path=path, seconds=0.2)
        assert store.read("run/a", begin, end) == (b"0123456789" * 10)[begin:end]
        assert fault.struck == 1


def test_c04_a_flipped_bit_in_a_whole_read_is_read_again(server, store):
    store.create("run/a", b"0123456789")
    fault = server.fail("flipped", method="GET", path="alt=media")
    assert store.read("run/a") == b"0123456789"
    assert fault.struck == 1


def test_c04_a_flipped_bit_in_a_range_is_the_readers_to_find(server, store):
    vault = Vault(store, "night-1")
    vault.register("test")
    made_durable(vault, 10)
    fault = server.fail("flipped", method="GET", path=r"chunk.*alt=media")
    assert what_is_read(vault) == {10: "CorruptError"}
    assert fault.struck == 1
    assert what_is_read(vault) == {10: "whole"}


def test_c15_a_server_that_stays_down_is_an_error_in_time(server, monkeypatch):
    store = gcs_store(server, monkeypatch, deadline_s=1.0)
    server.fail("status", times=10_000)
    calls = {
        "write": lambda: store.create("run/a", b"x"),
        "read": lambda: store.read("run/a"),
        "list": lambda: list(store.list("")),
        "delete": lambda: store.delete("run/a"),
    }
    for verb, call in calls.items():
        begun_s = time.monotonic()
        with pytest.raises(StoreError, match=rf"cannot {verb} .*, last \w+ 503; look at"):
            call()
        assert time.monotonic() - begun_s < 15
    store.close()


def test_c15_a_server_that_is_not_there_is_an_error_in_time(server, monkeypatch):
    store = gcs_store(server, monkeypatch, deadline_s=0.5)
    server.__exit__()
    try:
        with pytest.raises(StoreError, match="cannot write run/a: .*ConnectionError"):
            store.create("run/a", b"x")
    finally:
        server.__enter__()
    store.close()


def test_what_may_not_be_done_is_not_retried(server, store):
    server.fail("status", status=403, times=1)
    with pytest.raises(StoreError, match="Forbidden 403; look at the network, the permissions"):
        store.create("run/a", b"x")
    assert len(server.requests) == 1


def test_a_bucket_that_is_not_there_is_named(server, store):
    other = open_store("gs://nobody/x", deadline_s=5.0)
    for call in (lambda: other.create("a", b"x"), lambda: list(other.list("")), lambda: other.put("a", b"")):
        with pytest.raises(StoreError, match="gs://nobody/x: there is no such bucket"):
            call()
    with pytest.raises(MissingError, match="or no such bucket"):
        other.read("a")
    other.close()


def test_no_secret_is_told(server, store):
    server.fail("status", status=401, times=9)
    with pytest.raises(StoreError) as caught:
        store.create("run/a", b"x")
    assert "http" not in str(caught.value)
    assert "upload_id" not in str(caught.value)


def test_the_protocol_holds_while_the_store_stumbles(server, store):
    """Requests of every kind fail, in several ways; the steps are durable, and whole."""
    vault = Vault(store, "night-1", threads=2)
    vault.register("test")
    faults = [server.fail(kind, method="POST") for kind in ("status", "lost", "damaged")]
    faults += [server.fail("lost", method="GET", path=path) for path in ("steps", "commits", "incarn")]
    faults += [server.fail("reset", path=path) for path in ("forks", "leases", "LATEST")]
    faults += [server.fail("short", path="alt=media"), server.fail("status", method="DELETE")]
    made_durable(vault, 10)
    made_durable(vault, 20)
    assert what_is_read(vault) == {20: "whole", 10: "whole"}
    assert [fault for fault in faults if not fault.struck and fault.path != "LATEST"] == []


def test_c21_who_comes_between_look_and_write_is_not_overwritten(store):
    """A slow driver has looked at LATEST when a faster one writes a newer step."""
    store.put("run/LATEST", b"1")
    looks = []

    def is_older(was: bytes) -> bool:
        looks.append(was)
        if len(looks) == 1:
            store.put("run/LATEST", b"9")
        return int(was) < 5

    store.advance("run/LATEST", b"5", is_older)
    assert looks == [b"1", b"9"] and store.read("run/LATEST") == b"9"


def test_c21_two_that_write_a_first_hint_do_not_overwrite_each_other(store, monkeypatch):
    found, looks = store._found, []

    def too_early(key):
        blob = found(key)
        looks.append(blob)
        if len(looks) == 1:
            store.put("run/LATEST", b"9")
        return blob

    monkeypatch.setattr(store, "_found", too_early)
    store.advance("run/LATEST", b"5", lambda was: int(was) < 5)
    assert len(looks) == 2 and looks[0] is None and store.read("run/LATEST") == b"9"


def test_c13_a_hint_whose_answer_is_lost_is_written(server, store):
    store.put("run/LATEST", b"1")
    fault = server.fail("lost", method="POST", path="upload")
    store.advance("run/LATEST", b"5", lambda was: int(was) < 5)
    assert fault.struck == 1 and store.read("run/LATEST") == b"5"


def test_c21_latest_does_not_go_back(server, store, monkeypatch):
    """Two drivers commit at once; the one with the older step comes to write its hint last."""
    vault = Vault(store, "night-1")
    vault.register("test")
    made_durable(vault, 10)
    commits = vault.commits
    monkeypatch.setattr(vault, "commits", lambda **which: commits(**which)[-1:])  # as listed before the newer one came
    other = Vault(store, "night-1", incarnation=vault.incarnation)
    made_durable(other, 20)
    made_durable(vault, 15)
    assert store.read(vault.keys.latest).startswith(b"0000000020-")
