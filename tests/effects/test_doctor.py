"""Effect. `elastic doctor` on this machine: what it sees, its --json form, its exit code."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastic.actors import surveying
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.stores.directory import DirectoryStore
from elastic.cli import cli
from elastic.commands.doctoring import try_store
from elastic.control.diagnosis import Cluster
from elastic.hosts.survey import kind_of_file_system, memory_bytes, survey
from elastic.hosts.survey import versions as seen_versions


def doctor(*arguments: str):
    return CliRunner().invoke(cli, ["doctor", "--no-cluster", *arguments])


def facts(*arguments: str, code: int = 0) -> dict:
    done = doctor(*arguments, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_this_machine_is_looked_at():
    machine = survey("here", "/dev/shm")
    assert machine.versions["ray"] and machine.versions["python"]
    assert machine.is_in_memory and machine.is_ramdisk_writable
    assert 0 < machine.ramdisk_free_bytes <= machine.ramdisk_bytes
    assert machine.memory_bytes > 1 << 28
    assert set(seen_versions()) >= {"python", "ray", "torch"}


def test_a_container_may_have_less_memory_than_its_host(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal:       1000 kB\nMemAvailable:    500 kB\n")
    assert memory_bytes(tmp_path, tmp_path) == 1000 * 1024
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    for text, wanted in (("4096\n", 4096), ("max\n", 1000 * 1024)):
        (tmp_path / "fs/cgroup/memory.max").write_text(text)
        assert memory_bytes(tmp_path, tmp_path) == wanted


def test_the_innermost_mount_counts(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(
        "disk / ext4 rw 0 0\nshm /dev/shm tmpfs rw 0 0\nd /dev/shm/a\\040b ext4 rw 0 0\n"
    )
    kinds = {path: kind_of_file_system(path, tmp_path) for path in ("/dev/shm", "/dev/shm/a b/c", "/dev/shmother")}
    assert kinds == {"/dev/shm": "tmpfs", "/dev/shm/a b/c": "ext4", "/dev/shmother": "ext4"}


def test_findings_are_told_to_a_program():
    found = facts()
    assert found["breaks"] is False and found["counts"]["breaks"] == 0
    assert {row["subject"] for row in found["findings"]} >= {"ray", "ramdisk", "files", "clock"}
    assert all(set(row) == {"subject", "verdict", "where", "what", "fix"} for row in found["findings"])


def test_what_breaks_runs_is_the_exit_code_and_has_a_fix():
    done = doctor("--params", "1e15")
    assert done.exit_code == 3
    first, fix = done.stdout.splitlines()[:2]
    assert first.startswith("FAIL  ramdisk") and "-> give it" in fix
    assert facts("--params", "1e15", code=3)["breaks"] is True
    assert facts("--params", "1e6")["breaks"] is False


def test_a_ramdisk_on_a_disk_or_nowhere_is_found(tmp_path):
    (row,) = [row for row in facts("--memory", "/nowhere", code=3)["findings"] if row["subject"] == "ramdisk"]
    assert row["what"] == "/nowhere is not there"


def test_a_directory_is_tried_as_a_persistent_tier(tmp_path):
    found = facts("--persistent", str(tmp_path))
    (row,) = [row for row in found["findings"] if row["subject"] == "persistent tier"]
    assert row["verdict"] == "fine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [], "its object was left behind"


def test_a_store_that_lets_two_create_one_object_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(DirectoryStore, "create", lambda store, key, data: store.put(key, bytes(data)))
    assert not try_store(str(tmp_path)).is_refusing


def test_a_directory_that_a_node_does_not_share_is_found_there(tmp_path):
    """As where each node has a disk of its own under the path that all are given."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    DirectoryStore(here).create("elastic-doctor/x", b"here")
    assert surveying.tier_trouble(str(here), "elastic-doctor/x") == ""
    assert [path.name for path in here.rglob("*") if path.is_file()] == ["x"], "what it wrote is gone"
    assert "is not there" in surveying.tier_trouble(str(elsewhere), "elastic-doctor/x")
    assert not elsewhere.exists(), "nothing is made where nothing is"


def test_a_node_that_may_not_write_says_why(tmp_path, monkeypatch):
    def refuse(store, key, data):
        raise StoreError(f"{store.url}: cannot write {key}: permission denied")

    DirectoryStore(tmp_path).create("elastic-doctor/x", b"here")
    monkeypatch.setattr(DirectoryStore, "create", refuse)
    assert "permission denied" in surveying.tier_trouble(str(tmp_path), "elastic-doctor/x")


def test_a_tier_that_can_not_be_written_breaks_runs(tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    found = facts("--persistent", str(place), code=3)
    assert "is a file; name a directory" in found["findings"][0]["what"]


def test_a_cluster_that_does_not_answer_counts_only_if_somebody_asked_for_it(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    gone = Cluster(address="10.0.0.9:6379", trouble="no Ray cluster answers at 10.0.0.9:6379")
    monkeypatch.setattr(surveying, "survey_cluster", lambda address, ramdisk, scaling, persistent: gone)
    unasked = CliRunner().invoke(cli, ["doctor", "--json"])
    assert unasked.exit_code == 0 and "cluster" not in unasked.stdout.replace("no-cluster", "")
    for asked in (["--address", "10.0.0.9:6379"], ["--cluster"]):
        done = CliRunner().invoke(cli, ["doctor", *asked])
        assert done.exit_code == 3 and "no Ray cluster answers" in done.stdout


@pytest.mark.parametrize("wrong", [["--hosts", "0"], ["--params", "many"]])
def test_a_wrong_use_is_refused(wrong):
    assert doctor(*wrong).exit_code == 2


def test_parameters_that_are_none_are_refused():
    done = doctor("--params", "-1")
    assert done.exit_code == 1 and "--params=-1.0 must be a positive number" in str(done.exception)


def test_the_docs_name_what_is_looked_at():
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    for subject in (
        "ray",
        "ramdisk",
        "files",
        "processes",
        "clock",
        "gpu",
        "versions",
        "cluster",
        "network",
        "persistent tier",
    ):
        assert f"| {subject} |" in page
