"""What every store promises, on all that there are. `ELASTIC_TEST_STORE_URL` adds one more, e.g. gs://bucket/tests."""

import threading

import pytest

from elastic.checkpoint.store import Item, MissingError, StoreError, TakenError
from elastic.checkpoint.stores.url import UrlStore
from elastic.errors import SettingError
from tests.effects.store_parts import FAKE, STORES, opened_store

BIG = bytes(range(256)) * (36 << 10)  # 9 MiB: above what one request carries


@pytest.fixture(params=STORES)
def store(request, tmp_path, monkeypatch):
    with opened_store(request.param, tmp_path, monkeypatch) as opened:
        yield opened


def keys(store, prefix=""):
    return [item.key for item in store.list(prefix)]


def test_what_was_created_is_read(store):
    store.create("run/a", b"hello")
    store.create("run/empty", b"")
    assert store.read("run/a") == b"hello"
    assert store.read("run/a", 1, 3) == b"el"
    assert store.read("run/a", 3) == b"lo"
    assert store.read("run/a", 5, 5) == b""
    assert store.read("run/empty") == b""


def test_a_big_object_in_any_kind_of_bytes(store):
    store.create("run/big", memoryview(BIG))
    assert store.read("run/big") == BIG
    assert store.read("run/big", len(BIG) - 3) == BIG[-3:]


def test_a_big_object_is_created_once(store, request):
    if FAKE in request.node.name:
        pytest.skip(f"{FAKE} took no notice of preconditions of resumable uploads before July 2026 (its issue 1967)")
    for _ in range(2):
        store.create("run/big", BIG)
    with pytest.raises(TakenError):
        store.create("run/big", BIG[:-1] + b"x")
    assert store.read("run/big", len(BIG) - 1, len(BIG)) == BIG[-1:]


def test_the_first_creator_wins(store):
    store.create("run/a", b"mine")
    store.create("run/a", b"mine")
    for other in (b"his", b"nine", b"mine!", b""):
        if other == b"mine!" and not store.is_atomic:
            continue  # there, the beginning of an object counts as left by a writer that was killed
        with pytest.raises(TakenError, match="run/a"):
            store.create("run/a", other)
    assert store.read("run/a") == b"mine"


def test_of_racing_creators_one_wins(store):
    if not store.is_atomic:
        pytest.skip("this store does not promise it")
    barrier, won = threading.Barrier(8), []

    def race(number: int) -> None:
        barrier.wait(10)
        try:
            store.create("run/lock", b"%d" % number)
        except TakenError:
            return
        won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(won) == 1
    assert store.read("run/lock") == b"%d" % won[0]


def test_what_is_not_there_is_missing(store):
    for key in ("nothing", "run/nothing", "run"):
        with pytest.raises(MissingError, match=key):
            store.read(key)
    store.delete("run/nothing")
    assert keys(store) == []
    assert keys(store, "run/x/") == []


def test_fewer_bytes_than_asked_for_is_an_error(store):
    store.create("run/a", b"hello")
    for begin, end in ((0, 6), (4, 7), (6, 8), (9, None)):
        with pytest.raises(StoreError):
            store.read("run/a", begin, end)


def test_a_hint_is_replaced(store):
    store.put("run/LATEST", b"1")
    store.put("run/LATEST", b"22")
    assert store.read("run/LATEST") == b"22"


def test_a_hint_only_advances(store):
    def is_older(than):
        return lambda was: int(was) < than

    store.advance("run/LATEST", b"5", is_older(5))
    store.advance("run/LATEST", b"3", is_older(3))
    assert store.read("run/LATEST") == b"5"
    store.advance("run/LATEST", b"12", is_older(12))
    assert store.read("run/LATEST") == b"12"


def test_listings_are_whole_and_in_order(store):
    names = [f"run/steps/{number:02d}" for number in range(8)] + ["run/stepson", "run2/x", "run/a.b-c_d/e"]
    for name in reversed(names):
        store.create(name, name.encode())
    assert keys(store, "run/steps/") == sorted(names[:8])
    assert keys(store, "run/steps") == sorted(names[:9])
    assert keys(store, "run/steps/03") == ["run/steps/03"]
    assert keys(store) == sorted(names)
    item = next(iter(store.list("run/stepson")))
    assert isinstance(item, Item)
    assert item.nbytes == len("run/stepson")
    assert item.modified_at_s > 1.6e9


def test_what_is_deleted_is_gone_and_may_come_back(store):
    store.create("run/a/b", b"1")
    store.create("run/a/c", b"1")
    store.delete("run/a/b")
    assert keys(store) == ["run/a/c"]
    store.delete("run/a/c")
    store.create("run/a/b", b"2")
    assert store.read("run/a/b") == b"2"


def test_c20_keys_that_lead_out_of_the_store_are_refused(store):
    def advance(key):
        store.advance(key, b"x", lambda was: True)

    calls = (lambda key: store.create(key, b"x"), lambda key: store.put(key, b"x"), advance, store.read, store.delete)
    for key in ("../x", "run/../x", "/x", "run//x", "", ".hidden", "run/a b", "run/\n", "run/"):
        for call in calls:
            with pytest.raises(SettingError):
                call(key)


def test_nothing_is_left_over_to_sweep(store):
    store.create("run/a", b"1")
    assert store.sweep("run/", 4e9) == 0
    assert keys(store) == ["run/a"]


class ClientError(Exception):
    """As botocore's: it is no OSError, nor any other error that Python has a name for."""


@pytest.mark.parametrize(
    ("method", "act"),
    [
        ("exists", lambda store: store.create("run/a", b"x")),
        ("pipe_file", lambda store: store.put("run/a", b"x")),
        ("cat_file", lambda store: store.read("run/a")),
        ("find", lambda store: list(store.list("run/"))),
        ("rm_file", lambda store: store.delete("run/a")),
    ],
)
def test_c15_whatever_a_client_of_fsspec_raises_is_an_error_of_the_store(tmp_path, monkeypatch, method, act):
    def fails(*args, **more):
        raise ClientError("SlowDown")

    store = UrlStore(f"memory://{tmp_path.name}/root")
    store.put("run/a", b"y")
    monkeypatch.setattr(store._fs, method, fails)
    with pytest.raises(StoreError, match="memory://.*: ClientError") as raised:
        act(store)
    assert isinstance(raised.value.__cause__, ClientError)
