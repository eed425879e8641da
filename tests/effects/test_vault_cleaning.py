"""What is deleted from the persistent tier, what is not, and what a collector that was killed leaves behind."""

import pytest

from elastic.checkpoint.leases import SKEW_S, BusyError, Use
from elastic.checkpoint.manifest import Fork
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import FencedError, Vault
from elastic.checkpoint.vault_cleaning import Janitor, Swept, collected, swept
from elastic.checkpoint.vault_source import VaultSource
from elastic.settings import Keep
from tests.effects.tmpfs import mounted
from tests.effects.vault_parts import commit_id, made_durable, succeeded, uploaded, what_is_read


class Clock:
    """The wall clock of a vault. It runs ahead of the store's, so that what was just written can be old."""

    ahead_s = 0.0

    def __call__(self) -> float:
        import time

        return time.time() + self.ahead_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def vault(tmp_path, clock):
    opened = Vault(open_store(str(tmp_path / "store")), "night-1", now_s=clock)
    opened.register("test")
    return opened


def reader_of(vault: Vault, clock: Clock) -> Vault:
    return Vault(vault.store, "night-1", now_s=clock)


def keys(vault: Vault, kind: str) -> list[str]:
    return [item.key for item in vault.store.list(vault.keys.folder(kind))]


def test_what_nobody_wants_goes_entirely(vault):
    for step in (10, 20, 30, 40):
        made_durable(vault, step)
    verdicts = collected(vault, Keep(last=2), is_dry=True)
    assert [(v.record.commit.step, v.is_kept) for v in verdicts] == [(40, True), (30, True), (20, False), (10, False)]
    assert len(what_is_read(vault)) == 4
    assert collected(vault, Keep(last=2)) == verdicts
    assert what_is_read(vault) == {40: "whole", 30: "whole"}
    names = [v.record.name for v in verdicts if not v.is_kept]
    assert not [item.key for item in vault.store.list("") if any(name in item.key for name in names)]
    assert keys(vault, "clearing") == []


def test_what_a_run_goes_back_to_while_older_steps_are_deleted_stays(vault, monkeypatch):
    """The verdict on it was of before: everything newer is void now."""
    records = {step: made_durable(vault, step) for step in (10, 20, 30)}
    delete = vault.store.delete

    def deleted(key: str) -> None:
        delete(key)
        if key == vault.keys.commit(records[20].name) and not vault.forks():
            lease = vault.lease_to_read(records[10].name)
            vault.fork(Fork(incarnation=vault.incarnation, generation=0, step=10))
            lease.release()

    monkeypatch.setattr(vault.store, "delete", deleted)
    collected(vault, Keep(last=1))
    assert vault.forks() and what_is_read(vault)[10] == "whole"
    assert keys(vault, "clearing") == []


def test_a_partial_step_is_not_taken_for_a_durable_one_whose_name_begins_like_its_own(vault, clock):
    """Generations 1 and 12 of the same update and lineage."""
    uploaded(vault, commit_id(10, generation=1))
    vault.commit(commit_id(10, generation=12), uploaded(vault, commit_id(10, generation=12)))
    clock.ahead_s = vault.leases.lease_s + 2 * SKEW_S
    (gone,) = swept(vault).steps
    assert not [item.key for item in vault.store.list(vault.keys.step(gone))]
    assert what_is_read(vault) == {10: "whole"}


def test_c07_what_is_being_read_stays_until_the_reader_is_done(vault, clock):
    for step in (10, 20):
        made_durable(vault, step)
    source = VaultSource(reader_of(vault, clock))
    manifest = source.manifests()[-1]
    assert manifest.commit.step == 10
    source.read(manifest.key, 0, 1)
    collected(vault, Keep(last=1))
    assert source.read(manifest.key, 0, 1024)
    source.close()
    collected(vault, Keep(last=1))
    assert what_is_read(vault) == {20: "whole"}


def test_c07_two_readers_in_one_process_hold_a_step_each_for_itself(vault, clock):
    for step in (10, 20):
        made_durable(vault, step)
    opened = reader_of(vault, clock)
    first, second = VaultSource(opened), VaultSource(opened)
    key = first.manifests()[-1].key
    for source in (first, second):
        source.read(key, 0, 1)
    first.close()
    collected(vault, Keep(last=1))
    assert second.read(key, 0, 1024)
    second.close()
    collected(vault, Keep(last=1))
    assert what_is_read(vault) == {20: "whole"}


def test_c07_a_collector_that_was_stopped_until_others_took_it_for_dead_deletes_nothing_more(vault, clock, monkeypatch):
    """Between its look at the leases and its first deletion; meanwhile its mark is swept, and a reader comes."""
    for step in (10, 20):
        made_durable(vault, step)
    opened = reader_of(vault, clock)
    source, is_taken = VaultSource(opened), vault.leases.is_taken
    key = source.manifests()[-1].key

    def stopped(name: str, *, is_durable: bool) -> bool:
        answer = is_taken(name, is_durable=is_durable)
        if keys(vault, "clearing"):
            clock.ahead_s += vault.leases.lease_s + SKEW_S + 5
            assert swept(opened).marks == 1
            source.read(key, 0, 1)
        return answer

    monkeypatch.setattr(vault.leases, "is_taken", stopped)
    collected(vault, Keep(last=1))
    monkeypatch.undo()
    assert clock.ahead_s > vault.leases.lease_s, "it was not stopped"
    assert what_is_read(vault) == {20: "whole", 10: "whole"}


def test_a_reader_that_died_holds_nothing_for_ever(vault, clock):
    for step in (10, 20):
        made_durable(vault, step)
    reader = VaultSource(reader_of(vault, clock))
    reader.read(reader.manifests()[-1].key, 0, 1)
    clock.ahead_s = vault.leases.lease_s + SKEW_S + 5
    collected(vault, Keep(last=1))
    assert what_is_read(vault) == {20: "whole"}


def test_c07_a_reader_and_a_collector_that_meet_cannot_both_go_on(vault, clock, monkeypatch):
    """The reader takes its lease between the collector's mark and its look at the leases, and the other way round."""
    for step in (10, 20):
        made_durable(vault, step)
    source = VaultSource(reader_of(vault, clock))
    key = source.manifests()[-1].key
    is_taken, outcomes = vault.leases.is_taken, []

    def reader_comes_in(name: str, *, is_durable: bool) -> bool:
        if keys(vault, "clearing") and not outcomes:
            with pytest.raises(BusyError):
                source.read(key, 0, 1)
            outcomes.append("the reader stood back")
        return is_taken(name, is_durable=is_durable)

    monkeypatch.setattr(vault.leases, "is_taken", reader_comes_in)
    collected(vault, Keep(last=1))
    assert outcomes == ["the reader stood back"]
    assert what_is_read(vault) == {20: "whole"}
    with pytest.raises(StoreError):
        source.read(key, 0, 1)


@pytest.mark.parametrize("incomplete", [1, 2])
def test_incomplete_steps_make_no_other_go(vault, incomplete):
    """However many there are, the newest that can be restored stays."""
    for step in (10, 20, 30):
        made_durable(vault, step)
    for bad in vault.commits()[:incomplete]:
        vault.store.delete(next(key for key in keys(vault, "steps") if bad.name in key and "chunk-000002" in key))
    collected(vault, Keep(last=1))
    assert [v.commit.step for v in vault.commits()] == [30 - 10 * incomplete]


def test_quarantine_and_forks_count(vault):
    for step in (10, 20, 30):
        made_durable(vault, step)
    vault.quarantine(vault.commits()[0].commit, "nan")
    collected(vault, Keep(last=2))
    assert what_is_read(vault) == {20: "whole", 10: "whole"}
    vault.fork(Fork(incarnation=1, generation=9, step=10))
    collected(vault, Keep(last=2))
    assert [each.commit.step for each in vault.commits(also_void=True)] == [10]


def test_c14_partial_uploads_of_this_run_are_swept_once_they_are_old(vault, clock, tmp_path):
    made_durable(vault, 10)
    uploaded(vault, commit_id(20))
    stranger = Vault(vault.store, "day-1", now_s=clock)
    stranger.register("test")
    uploaded(stranger, commit_id(20), run="day-1")
    (tmp_path / "store" / "night-1" / "steps" / ".x.0.tmp").write_text("torn")
    foreign = [item.key for item in vault.store.list("day-1/")]
    assert swept(vault) == Swept()
    clock.ahead_s = vault.leases.lease_s / 2
    assert swept(vault) == Swept()
    clock.ahead_s = vault.leases.lease_s + SKEW_S + 5
    before = [item.key for item in vault.store.list("")]
    found = swept(vault, is_dry=True)
    assert [name[:10] for name in found.steps] == ["0000000020"]
    assert (found.marks, found.leases > 0, found.files) == (0, True, 1)
    assert [item.key for item in vault.store.list("")] == before and list(tmp_path.rglob("*.tmp")), "it only looked"
    assert swept(vault) == found
    assert not any("0000000020" in key for key in keys(vault, "steps") + keys(vault, "leases"))
    assert what_is_read(vault) == {10: "whole"}
    assert [item.key for item in vault.store.list("day-1/")] == foreign
    assert not list(tmp_path.rglob("*.tmp"))
    assert swept(vault).steps == ()


def test_c14_what_is_new_is_not_swept_even_without_a_lease(vault):
    uploaded(vault, commit_id(20))
    for key in keys(vault, "leases"):
        vault.store.delete(key)
    before = keys(vault, "steps")
    assert swept(vault).steps == ()
    assert keys(vault, "steps") == before


def test_c14_an_upload_that_is_taken_up_again_is_not_swept(vault, clock):
    digests = uploaded(vault, commit_id(20))
    clock.ahead_s = vault.leases.lease_s + SKEW_S + 5
    again = reader_of(vault, clock)
    assert uploaded(again, commit_id(20)) == digests
    assert swept(vault).steps == ()
    vault.commit(commit_id(20), digests)
    assert swept(vault).steps == ()
    assert what_is_read(vault) == {20: "whole"}


def test_c14_committing_what_was_swept_is_refused(vault, clock):
    digests = uploaded(vault, commit_id(20))
    clock.ahead_s = vault.leases.lease_s + SKEW_S + 5
    assert len(swept(vault).steps) == 1
    with pytest.raises(StoreError):
        vault.commit(commit_id(20), digests)
    assert uploaded(vault, commit_id(20)) == digests
    vault.commit(commit_id(20), digests)
    assert what_is_read(vault) == {20: "whole"}


def test_c14_a_dry_run_tells_a_mark_of_the_dead_from_one_of_the_living(vault, clock):
    uploaded(vault, commit_id(20))
    name = next(key.split("/")[2] for key in keys(vault, "steps"))
    vault.store.create(vault.keys.clearing(name) + "x-0", b"of somebody who died")
    clock.ahead_s = vault.leases.lease_s + SKEW_S + 5
    assert swept(vault, is_dry=True) == Swept(steps=(name,), marks=1, leases=2)
    assert keys(vault, "clearing"), "it only looked"
    assert swept(vault) == Swept(steps=(name,), marks=1, leases=2)
    assert keys(vault, "clearing") == keys(vault, "steps") == keys(vault, "leases") == []


def test_c14_what_somebody_clears_just_now_is_left_to_them(vault, clock, monkeypatch):
    uploaded(vault, commit_id(20))
    name = next(key.split("/")[2] for key in keys(vault, "steps"))
    listed = vault.store.list
    monkeypatch.setattr(
        vault.store, "list", lambda prefix: iter([] if prefix == "night-1/clearing/" else listed(prefix))
    )
    vault.store.create(vault.keys.clearing(name) + "x-0", b"of somebody who came after the look")
    clock.ahead_s = vault.leases.lease_s + SKEW_S + 5
    assert swept(vault, is_dry=True).steps == swept(vault).steps == ()


def test_c07_who_takes_its_mark_away_once_more_takes_no_other_one(vault, clock, monkeypatch):
    """The answer was lost, and the call is made again when another collector is at it."""
    name, delete, asked = made_durable(vault, 10).name, vault.store.delete, []
    lease = vault.lease_to_read(name)
    monkeypatch.setattr(vault.store, "delete", lambda key: (asked.append(key), delete(key)))
    with pytest.raises(BusyError, match="is needed by"), vault.leases.clearing(name, is_durable=True):
        pytest.fail("it is leased")
    monkeypatch.undo()
    lease.release()
    with reader_of(vault, clock).leases.clearing(name, is_durable=True):
        vault.store.delete(asked[0])
        with pytest.raises(BusyError, match="is being deleted"):
            vault.lease_to_read(name)


def test_one_that_cannot_be_deleted_holds_up_no_other_one_nor_what_was_left_behind(vault, clock, monkeypatch):
    """Somebody else's file, or a bucket's hold."""
    records = {step: made_durable(vault, step) for step in (10, 20, 30)}
    uploaded(vault, commit_id(5))
    delete = vault.store.delete

    def refuse(key):
        if key == vault.keys.commit(records[20].name):
            raise StoreError("Permission denied")
        delete(key)

    monkeypatch.setattr(vault.store, "delete", refuse)
    clock.ahead_s = vault.leases.lease_s + 2 * SKEW_S
    with pytest.raises(StoreError, match="Permission denied"):
        Janitor().clean(vault, Keep(last=1))
    assert what_is_read(vault) == {30: "whole", 20: "whole"}
    assert not any("/0000000005" in key for key in keys(vault, "steps"))


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "in part"])
def test_c18_on_a_mount_that_is_full_what_is_to_go_goes(tmp_path, clock, is_durable):
    with mounted(tmp_path, "1m") as mount:
        vault = Vault(open_store(str(mount / "store")), "night-1", now_s=clock)
        vault.register("test")
        made_durable(vault, 10) if is_durable else uploaded(vault, commit_id(10))
        made_durable(vault, 20)
        with open(mount / "ballast", "wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(512))
        clock.ahead_s = vault.leases.lease_s + 2 * SKEW_S
        collected(vault, Keep(last=1))
        swept(vault)
        assert not any("0000000010" in key for key in keys(vault, "steps") + keys(vault, "clearing"))
        assert what_is_read(vault) == {20: "whole"}


def test_what_could_not_go_is_not_told_as_gone(vault, clock):
    for step in (10, 20):
        made_durable(vault, step)
    with vault.leases.clearing(vault.commits()[-1].name, is_durable=True):
        verdicts = collected(reader_of(vault, clock), Keep(last=1))
    assert [one.is_kept for one in verdicts] == [True, True] and "by somebody else" in verdicts[1].reason


def test_c07_of_two_threads_that_clear_a_step_one_stands_back(vault):
    """Else the first to see a reader would take the mark of both away, and the other would delete under it."""
    uploaded(vault, commit_id(20))
    name = next(key.split("/")[2] for key in keys(vault, "steps"))
    with (
        vault.leases.clearing(name, is_durable=True),
        pytest.raises(BusyError, match="by somebody else"),
        vault.leases.clearing(name, is_durable=True),
    ):
        pytest.fail("both hold the mark")
    assert keys(vault, "clearing") == []


def test_c14_a_janitor_sweeps_once_in_a_lease(vault, clock):
    janitor = Janitor()
    made_durable(vault, 10)
    janitor.clean(vault, Keep(last=1))
    uploaded(vault, commit_id(15))
    clock.ahead_s = vault.leases.lease_s / 2
    made_durable(vault, 20)
    janitor.clean(vault, Keep(last=1))
    assert what_is_read(vault) == {20: "whole"} and any("0000000015" in key for key in keys(vault, "steps"))
    clock.ahead_s = vault.leases.lease_s + SKEW_S + 5
    janitor.clean(vault, Keep(last=1))
    assert not any("0000000015" in key for key in keys(vault, "steps")), "nobody has touched it for so long"
    uploaded(vault, commit_id(16))
    clock.ahead_s += vault.leases.lease_s - 5
    janitor.clean(vault, Keep(last=1))
    assert any("0000000016" in key for key in keys(vault, "steps")), "it looks but once in a lease"


@pytest.mark.parametrize("deletions", range(1, 12))
def test_a_collector_that_fails_on_the_way_leaves_old_or_new(vault, clock, monkeypatch, deletions):
    for step in (10, 20):
        made_durable(vault, step)
    delete, count = vault.store.delete, []

    def breaks(key: str) -> None:
        count.append(key)
        if len(count) >= deletions:
            raise StoreError("the network is gone")
        delete(key)

    monkeypatch.setattr(vault.store, "delete", breaks)
    with pytest.raises(StoreError, match="the network is gone"):
        collected(vault, Keep(last=1))
    monkeypatch.undo()
    reader = reader_of(vault, clock)
    found = {record.commit.step for record in reader.commits()}
    assert found == ({20, 10} if deletions == 1 else {20})
    clock.ahead_s = vault.leases.lease_s + SKEW_S + 5
    swept(vault)
    collected(vault, Keep(last=1))
    assert what_is_read(reader) == {20: "whole"}
    assert not any("0000000010" in key for key in keys(vault, "steps") + keys(vault, "clearing"))


def test_c10_a_zombie_collects_nothing(vault):
    made_durable(vault, 10)
    made_durable(vault, 20)
    succeeded(vault, Vault(vault.store, "night-1"), 20)
    for clean in (lambda: collected(vault, Keep(last=1)), lambda: swept(vault)):
        with pytest.raises(FencedError):
            clean()
    assert len(what_is_read(vault)) == 2


def test_a_lease_is_renewed_once_half_of_it_has_passed(vault, clock):
    lease = vault.leases.take("0000000010-ab-1-1", Use.READ)
    written = next(iter(vault.store.list("night-1/leases/")))
    lease.renew()
    assert next(iter(vault.store.list("night-1/leases/"))) == written
    clock.ahead_s = vault.leases.lease_s * 0.6
    lease.renew()
    clock.ahead_s = vault.leases.lease_s * 1.2
    assert vault.leases.is_taken("0000000010-ab-1-1", is_durable=True)
    vault.store.put(written.key, b"torn")
    clock.ahead_s = 0.0
    assert vault.leases.is_taken("0000000010-ab-1-1", is_durable=True)
    clock.ahead_s = vault.leases.lease_s + SKEW_S + 5
    assert not vault.leases.is_taken("0000000010-ab-1-1", is_durable=True)


def test_a_lease_that_could_not_be_renewed_is_renewed_as_soon_as_it_can_be(vault, clock, monkeypatch):
    lease, put, struck = vault.leases.take("0000000010-ab-1-1", Use.READ), vault.store.put, []

    def fails(*what):
        struck.append(what)
        raise StoreError("503")

    clock.ahead_s = vault.leases.lease_s * 0.6
    monkeypatch.setattr(vault.store, "put", fails)
    with pytest.raises(StoreError, match="503"):
        lease.renew()
    monkeypatch.setattr(vault.store, "put", put)
    lease.renew()
    clock.ahead_s = vault.leases.lease_s * 1.2
    assert struck and vault.leases.is_taken("0000000010-ab-1-1", is_durable=True)


def test_a_tier_that_takes_no_writes_is_read_without_a_lease_unless_the_step_is_being_deleted(
    vault, monkeypatch, caplog
):
    """A mount that is full, or read-only; an account that may read alone."""
    record = made_durable(vault, 10)
    refused = []

    def refuse(*what):
        refused.append(what)
        raise StoreError("Read-only file system")

    monkeypatch.setattr(vault.store, "put", refuse)
    assert what_is_read(vault) == {10: "whole"}
    assert len(refused) == 1 and caplog.text.count("is read without a lease: Read-only file system") == 1
    vault.store.create(vault.keys.clearing(record.name) + "x-0", b"somebody's")
    source = VaultSource(vault)
    with pytest.raises(BusyError, match="is being deleted"):
        source.read(source.manifests()[0].key, 0, 1)


def test_a_source_holds_no_manifests_of_steps_that_are_gone(vault):
    source = VaultSource(vault)
    for step in range(10, 60, 10):
        made_durable(vault, step)
        source.manifests()
        collected(vault, Keep(last=1))
    assert {one.commit.step for one in source.manifests()} == {50}
    assert len(source._manifests) == 2, "two shards of one step"
    assert len(vault._commits) == 1, "nor does the vault hold their records"
