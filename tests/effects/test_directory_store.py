"""What only a store in a directory promises: order of syncs, torn files, the errors of a mount."""

import errno
import os
import threading
import time

import pytest

from elastic.checkpoint.store import StoreError, TakenError
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.stores.bounded import BoundedStore
from elastic.checkpoint.stores.directory import DirectoryStore
from elastic.errors import SettingError
from tests.effects.store_parts import without_links


@pytest.fixture
def calls(monkeypatch):
    """Names of the calls of the operating system that make things durable, with what they were made on."""
    made, fsync, link, replace = [], os.fsync, os.link, os.replace

    def synced(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        made.append(("fsync folder" if os.path.isdir(path) else "fsync file", os.path.basename(path)))
        fsync(descriptor)

    def linked(source, target):
        made.append(("link", os.path.basename(target)))
        link(source, target)

    def replaced(source, target):
        made.append(("replace", os.path.basename(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(os, "replace", replaced)
    return made


def test_c24_bytes_then_name_then_folder_are_synced(tmp_path, calls):
    store = DirectoryStore(tmp_path / "store")
    assert store.is_atomic
    calls.clear()
    store.create("run/steps/a", b"x")
    names = [name for name, _ in calls]
    assert names == ["fsync folder", "fsync folder", "fsync file", "link", "fsync folder"]
    assert [what for _, what in calls[:2]] == ["store", "run"], "a new folder is a name in its parent"
    assert calls[-1] == ("fsync folder", "steps")
    calls.clear()
    store.put("run/steps/LATEST", b"x")
    assert [name for name, _ in calls] == ["fsync file", "replace", "fsync folder"]
    calls.clear()
    store.delete("run/steps/a")
    assert calls == [("fsync folder", "steps")]


def test_c24_without_links_file_and_folder_are_synced(tmp_path, calls, monkeypatch):
    without_links(monkeypatch)
    store = DirectoryStore(tmp_path)
    assert not store.is_atomic
    calls.clear()
    store.create("a", b"x")
    assert [name for name, _ in calls] == ["fsync file", "fsync folder"]
    calls.clear()
    store.put("LATEST", b"x")
    assert [name for name, _ in calls] == ["fsync file", "fsync folder"] and store.read("LATEST") == b"x"


def test_what_a_killed_writer_began_is_completed(tmp_path, monkeypatch):
    without_links(monkeypatch)
    store = DirectoryStore(tmp_path, silent_s=0.1)
    for torn in (b"", b"who"):
        (tmp_path / "a").write_bytes(torn)
        store.create("a", b"whole")
        assert store.read("a") == b"whole"
    with pytest.raises(TakenError):
        store.create("a", b"other")


def test_a_writer_that_is_alive_is_waited_for(tmp_path, monkeypatch):
    without_links(monkeypatch)
    store = DirectoryStore(tmp_path, silent_s=30.0, deadline_s=20.0)
    (tmp_path / "a").write_bytes(b"who")

    def finish():
        time.sleep(0.3)
        (tmp_path / "a").write_bytes(b"whose")

    thread = threading.Thread(target=finish)
    thread.start()
    with pytest.raises(TakenError):
        store.create("a", b"whole")
    thread.join()
    (tmp_path / "b").write_bytes(b"who")
    hasty = DirectoryStore(tmp_path, silent_s=30.0, deadline_s=0.2)
    with pytest.raises(StoreError, match="another writer of b"):
        hasty.create("b", b"whole")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_c15_the_errors_of_a_mount_come_out(tmp_path, monkeypatch, number):
    store = DirectoryStore(tmp_path)
    assert store.is_atomic

    def full(descriptor, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match=f"cannot write run/a: {os.strerror(number)}; look at the mount's space"):
        store.create("run/a", b"x")
    monkeypatch.undo()
    assert list(store.list("")) == []
    assert not list(tmp_path.rglob("*.tmp"))


def test_c20_links_out_of_the_store_are_not_listed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    store = DirectoryStore(tmp_path / "store")
    store.create("run/a", b"x")
    os.symlink(tmp_path / "outside", tmp_path / "store" / "run" / "link")
    assert not any("secret" in item.key for item in store.list("run/"))


def test_a_folder_that_another_made_and_removed_meanwhile_is_made_again(tmp_path, monkeypatch):
    store = DirectoryStore(tmp_path / "store")
    assert store.is_atomic
    make, raced = os.mkdir, []

    def mkdir(path, *mode):
        if not raced:
            raced.append(path)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        make(path, *mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    store.create("run/steps/x", b"1")
    assert raced == [tmp_path / "store" / "run"]
    assert store.read("run/steps/x") == b"1"


def test_a_file_where_a_folder_belongs_is_told(tmp_path):
    store = DirectoryStore(tmp_path)
    store.create("run", b"1")
    with pytest.raises(StoreError, match="cannot write run/a: Not a directory"):
        store.create("run/a", b"1")


def test_folders_that_become_empty_disappear_while_others_write(tmp_path):
    store = DirectoryStore(tmp_path / "store")
    stop = threading.Event()

    def write_and_delete():
        while not stop.is_set():
            store.create("run/steps/x/other", b"1")
            store.delete("run/steps/x/other")

    thread = threading.Thread(target=write_and_delete)
    thread.start()
    try:
        for number in range(50):
            store.create(f"run/steps/x/{number}", b"1")
            store.delete(f"run/steps/x/{number}")
    finally:
        stop.set()
        thread.join()
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("checkpoints", "must be an absolute path"),
        ("file://checkpoints/x", "must be an absolute path"),
        ("gs://", "names no bucket"),
        ("nosuch://user:secret@host/x", "scheme 'nosuch' cannot be opened"),
        ("/etc/hostname", "is a file"),
    ],
)
def test_a_url_that_cannot_work_says_why(url, why):
    with pytest.raises(SettingError, match=why) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_file_url_is_a_directory(tmp_path):
    open_store(f"file://{tmp_path}").create("run/a", b"x")
    assert (tmp_path / "run" / "a").read_bytes() == b"x"


class Hanging:
    """A store on a mount whose server is gone."""

    url = "/mnt/gone"

    def __init__(self) -> None:
        self.never = threading.Event()

    def __getattr__(self, name):
        return lambda *args, **options: self.never.wait(20)


def test_c15_c16_a_mount_that_hangs_is_an_error_in_time():
    hanging = Hanging()
    store = BoundedStore(hanging, 0.1)
    calls = {
        "write run/a": lambda: store.create("run/a", b"x"),
        "write run/b": lambda: store.put("run/b", b"x"),
        "read run/c": lambda: store.read("run/c"),
        "list run/": lambda: store.list("run/"),
        "delete run/d": lambda: store.delete("run/d"),
        "sweep run/": lambda: store.sweep("run/", 0.0),
    }
    for call, hang in calls.items():
        verb, key = call.split()
        with pytest.raises(StoreError, match=rf"/mnt/gone: cannot {verb}: nothing moved for 0 s, waiting for {key}"):
            hang()
    hanging.never.set()
