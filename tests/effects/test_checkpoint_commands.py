"""Effect. The commands on checkpoints: their --json forms, exit codes and wrong uses; some with a real store."""

import json
import os
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elastic import cli
from elastic.actors.stored_journal import Segment, encoded, key_of
from elastic.checkpoint.arena import Arena
from elastic.checkpoint.disk import Disk
from elastic.checkpoint.manifest import Fork
from elastic.checkpoint.merging import Span
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.vault import Vault as StoredVault
from elastic.checkpoint.vault import open_vault
from elastic.commands import places
from elastic.interchange.safetensors import Named, read_file, write_header, write_tensor
from tests.effects.shelves import RUN, Folder, flipped, numbers, shard_of
from tests.effects.test_arena import stage


class Called:
    """What a command line said, and the code it ended with."""

    def __init__(self, capsys, monkeypatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["elastic", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def facts(self, *arguments: object, code: int = 0) -> dict:
        ended, out, err = self(*arguments, "--json")
        assert ended == code, err
        return json.loads(out)


@pytest.fixture
def call(capsys, monkeypatch) -> Called:
    return Called(capsys, monkeypatch)


class Vault:
    """Stands for a vault: a folder, its forks, and what is in quarantine, by commit."""

    def __init__(self, folder: Folder) -> None:
        self.folder, self.bad = folder, {}

    def forks(self):
        return [Fork(incarnation=3, generation=1, step=8)]

    def quarantined(self):
        return self.bad

    def close(self):
        pass


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Folder:
    """Steps 5 and 8 of two shards, half of step 6, and step 9, which a fork has left behind."""
    path = tmp_path / "store"
    path.mkdir()
    made = Folder(path)
    made.troubles, made.close = ["step 4: its manifest is gone"], lambda: None
    for step in (5, 6, 8, 9):
        for shard in range(1 if step == 6 else 2):
            made.put(shard_of({"model": {"w": numbers(200, start=step)}}, step=step, shard=shard, shards=2))
    monkeypatch.setattr(places, "opened_vault", lambda url, run: Vault(made))
    monkeypatch.setattr(places, "vault_source", lambda vault: vault.folder)
    return made


def spoil(folder: Folder, step: int, shard: int = 0) -> None:
    path = folder.path / f"{step}-{shard}.payload"
    path.write_bytes(flipped(path.read_bytes(), 77).tobytes())


def test_ls(call, folder):
    facts = call.facts("ls", RUN, "--persistent", "x")
    assert [one["step"] for one in facts["steps"]] == [8, 5]
    assert {key: facts["steps"][0][key] for key in ("shards", "tiers", "bytes", "outvoted")} == {
        "shards": 2,
        "tiers": ["persistent"],
        "bytes": 2 * 832,
        "outvoted": [],
    }
    assert facts["not_whole"] == [{"step": 6, "lineage": "a", "shards": 2, "lacks": [1]}]
    assert facts["silent"] == ["step 4: its manifest is gone"]
    code, out, _ = call("ls", RUN, "--persistent", "x")
    assert code == 0 and "lacks shards [1] of 2" in out


def test_ls_without_an_answer(call, folder):
    def fail(step=None):
        raise StoreError("no credentials for x")

    folder.manifests = fail
    facts = call.facts("ls", RUN, "--persistent", "x")
    assert facts["steps"] == [] and "no credentials for x" in facts["silent"][0]


@pytest.mark.parametrize("deep", [False, True])
def test_verify(call, folder, deep):
    folder.troubles = []
    options = ["--deep"] * deep
    facts = call.facts("verify", RUN, "--persistent", "x", *options)
    assert facts["is_sound"] and [len(one["copies"]) for one in facts["steps"]] == [2, 2]
    spoil(folder, 8, shard=1)
    facts = call.facts("verify", RUN, "--persistent", "x", *options, code=3 if deep else 0)
    assert [one["is_sound"] for one in facts["steps"]] == [not deep, True], "only reading finds a flipped bit"
    (folder.path / "5-0.payload").write_bytes(b"short")
    facts = call.facts("verify", RUN, "--persistent", "x", *options, code=3)
    bad = [bad for copy in facts["steps"][1]["copies"] for bad in copy["bad"]]
    assert bad and "step 5, shard 0 of 2, of run r: chunk 0" in bad[0]
    assert call.facts("verify", RUN, "--step", 5, "--persistent", "x", *options, code=3)["steps"][0]["step"] == 5


def test_verify_of_nothing_is_not_sound(call, folder):
    assert call.facts("verify", "other", "--persistent", "x", code=3)["steps"] == []


def test_c26_restore_report(call, folder):
    """C26: which step, from where, how much; and why not a newer one."""
    spoil(folder, 8)
    facts = call.facts("restore-report", RUN, "--persistent", "x")
    assert facts["step"] == 5 and [row["step"] for row in facts["refused"]] == [8]
    assert "shard 0 of 2" in facts["refused"][0]["reason"]
    first = facts["read"][0]
    assert (first["shard"], first["retries"], first["nbytes"]) == (0, 0, 832)
    assert first["places"] == [{"tier": "persistent", "where": str(folder.path), "nbytes": 832}]
    spoil(folder, 5)
    assert call.facts("restore-report", RUN, "--persistent", "x", code=3)["step"] is None


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_export(call, folder, tmp_path, form):
    facts = call.facts("export", RUN, "--persistent", "x", "--to", tmp_path / "out", "--format", form, "--step", 5)
    assert (facts["step"], facts["format"], facts["tensors"], facts["whole"]) == (5, form, 1, True)
    assert (tmp_path / "out/state.json").is_file()
    code, _, err = call("export", RUN, "--persistent", "x", "--to", tmp_path / "out", "--format", form)
    assert code == 2 and "error: " in err and "not an empty directory" in err
    code, _, err = call("export", RUN, "--persistent", "x", "--to", tmp_path / "more", "--step", 6)
    assert code == 1 and "step 6 of run r; whole steps: 8, 5" in err


WRONG = {
    "ls": [[], ["r", "--persistent"]],
    "verify": [["r", "--step", "-1"], []],
    "restore-report": [["r", "--timeout", "0"]],
    "export": [["r"], ["r", "--to", "x", "--format", "pickle"]],
    "import": [["nowhere", "--run", "r", "--persistent", "x"], [".", "--run", "r"]],
    "gc": [["r"], ["r", "--persistent", "x", "--keep-last", "0"], ["r", "--memory", __file__]],
}


@pytest.mark.parametrize(("command", "arguments"), [(name, one) for name, many in WRONG.items() for one in many])
def test_wrong_use_is_code_2(call, command, arguments):
    code, out, err = call(command, *arguments)
    assert code == 2 and out == "" and err.startswith(("Usage: ", "Error: "))


@pytest.mark.parametrize("command", ["ls", "verify", "restore-report", "gc"])
@pytest.mark.parametrize(("option", "knob"), [("--disk", "Checkpoint.disk"), ("--persistent", "Checkpoint.persistent")])
def test_a_place_that_cannot_be_used_is_told_by_its_own_knob(call, command, option, knob, tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    code, out, err = call(command, RUN, option, file)
    assert code == 2 and out == "" and f"{knob}={str(file)!r} is a file" in err
    code, out, err = call(command, "..", option, tmp_path)
    assert code == 2 and out == "" and err.startswith("error: the run '..' must be ")


@pytest.mark.parametrize("call_that_fails", ["upload", "fork", "commit"])
def test_an_import_that_failed_can_be_done_again(call, tmp_path, monkeypatch, call_that_fails):
    """With other state, too."""

    def fail(*_):
        fired.append(call_that_fails)
        raise StoreError("the network is gone")

    fired: list[str] = []
    file, store = tmp_path / "model.safetensors", tmp_path / "store"
    arguments = ("import", file, "--run", "new", "--persistent", store)
    saved(file, 3)
    monkeypatch.setattr(f"elastic.checkpoint.vault.Vault.{call_that_fails}", fail)
    for _ in range(2):
        code, _, err = call(*arguments)
        assert code == 1 and "the network is gone" in err
    assert fired == [call_that_fails] * 2
    assert call.facts("ls", "new", "--persistent", store)["steps"] == [], "it is not there by halves"
    monkeypatch.undo()
    saved(file, 5)
    assert call.facts(*arguments)["tensors"] == 1
    assert call.facts("verify", "new", "--deep", "--persistent", store)["is_sound"]
    call.facts("export", "new", "--persistent", store, "--to", tmp_path / "out")
    assert torch.equal(read_file(tmp_path / "out/model.safetensors")["w"], numbers(5))
    code, _, err = call(*arguments)
    assert code == 2 and "holds a run already" in err and "--run" in err


@pytest.mark.parametrize("comes", ["before", "while it uploads"])
def test_an_import_takes_no_name_from_a_driver_that_has_saved_nothing_yet(call, tmp_path, monkeypatch, comes):
    file, store = tmp_path / "model.safetensors", tmp_path / "store"
    saved(file, 3)
    driver, upload = open_vault(str(store), "new"), StoredVault.upload

    def uploading(self, *arguments):
        driver.register("a host, 4711")
        return upload(self, *arguments)

    if comes == "before":
        driver.register("a host, 4711")
    else:
        monkeypatch.setattr(StoredVault, "upload", uploading)
    code, _, err = call("import", file, "--run", "new", "--persistent", store)
    assert code == 2 and "holds a run already" in err
    assert driver.incarnations() == [driver.incarnation] == [1], "it is not taken over"


def test_of_two_imports_at_one_time_one_is_told_that_it_is_not_the_run(call, tmp_path, monkeypatch):
    """The other one commits between its fork and its COMMIT."""
    file, other, store = tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "store"
    saved(file, 3)
    saved(other, 5)
    fork, begun = StoredVault.fork, []

    def forked(self, one):
        fork(self, one)
        if not begun:
            begun.append(-1)
            begun[0] = call("import", other, "--run", "new", "--persistent", store)[0]

    monkeypatch.setattr(StoredVault, "fork", forked)
    code, _, err = call("import", file, "--run", "new", "--persistent", store)
    assert begun == [0] and code != 0 and "incarnation 2 has taken over" in err
    call.facts("export", "new", "--persistent", store, "--to", tmp_path / "out")
    assert torch.equal(read_file(tmp_path / "out/model.safetensors")["w"], numbers(5))


def saved(file: Path, count: int) -> None:
    """One tensor of so many numbers, as others write it."""
    with file.open("wb") as opened:
        write_header(opened, [Named("w", "float32", (count,))], {})
        write_tensor(opened, numbers(count))


# --- with the real store ---


def stored(tmp_path: Path, call: Called, run: str = "new") -> Path:
    """A store with a run that `elastic import` has begun."""
    saved(tmp_path / "model.safetensors", 3000)
    store = tmp_path / "real"
    facts = call.facts("import", tmp_path / "model.safetensors", "--run", run, "--persistent", store)
    assert (facts["run"], facts["step"], facts["tensors"], facts["bytes"]) == (run, 0, 1, 12032)
    return store


def test_import(call, tmp_path):
    store = stored(tmp_path, call)
    facts = call.facts("ls", "new", "--persistent", store)
    assert [(one["step"], one["incarnation"]) for one in facts["steps"]] == [(0, 0)]
    assert call.facts("verify", "new", "--deep", "--persistent", store)["is_sound"]
    code, _, err = call("import", tmp_path / "model.safetensors", "--run", "new", "--persistent", store)
    assert code == 2 and "--run" in err
    call.facts("export", "new", "--persistent", store, "--to", tmp_path / "out")
    assert torch.equal(read_file(tmp_path / "out/model.safetensors")["w"], numbers(3000))


def test_damage_in_a_real_store_is_found(call, tmp_path):
    store = stored(tmp_path, call)
    (chunk,) = store.glob("new/steps/*/*/chunk-*")
    good = chunk.read_bytes()
    chunk.write_bytes(flipped(good, 100).tobytes())
    assert not call.facts("verify", "new", "--deep", "--persistent", store, code=3)["is_sound"]
    assert call.facts("restore-report", "new", "--persistent", store, code=3)["step"] is None
    chunk.write_bytes(good[:-1])
    assert not call.facts("verify", "new", "--persistent", store, code=3)["is_sound"]


def test_gc(call, tmp_path):
    store = stored(tmp_path, call)
    vault = open_vault(str(store), "new")
    vault.register("a test")
    vault.fork(Fork(incarnation=vault.incarnation, generation=1, step=0))
    for step in (1, 2):
        manifest, payload = shard_of({"model": {"w": numbers(20)}}, step=step)
        commit = replace(manifest.commit, incarnation=vault.incarnation)
        named = replace(manifest, run="new", commit=commit)
        vault.commit(named.commit, [vault.upload(named, lambda begin, end, payload=payload: payload[begin:end])])
    lost, payload = shard_of({"model": {"w": numbers(20)}}, step=9)
    vault.upload(replace(lost, run="new"), lambda begin, end: payload[begin:end])
    vault.close()
    an_hour_ago_s = time.time() - 3600
    for path in Path(store, "new").rglob("*000009*/**/*"):  # its uploader was killed
        os.utime(path, (an_hour_ago_s, an_hour_ago_s))
    for lease in Path(store, "new", "leases").glob("*000009*/*"):
        lease.unlink()
    options = ["gc", "new", "--persistent", store, "--keep-last", 1]
    dry = call.facts(*options, "--dry-run")
    assert [name[:10] for name in dry["left_behind"]["steps"]] == ["0000000009"]
    assert "0000000009" in call(*options, "--dry-run")[1], "people are told, too"
    assert any(Path(store, "new", "steps").glob("*000009*")), "it only looked"
    assert dry["dry_run"] and dry["freed_bytes"] > 0
    assert call.facts("ls", "new", "--persistent", store)["steps"][-1]["step"] == 0, "nothing was deleted"
    assert call.facts(*options)["left_behind"] == dry["left_behind"]
    assert not any(Path(store, "new", "steps").glob("*000009*"))
    assert 2 in [one["step"] for one in call.facts("ls", "new", "--persistent", store)["steps"]]


def test_gc_keeps_what_the_run_was_told_to_keep_unless_it_is_told_otherwise(call, tmp_path):
    with closing(open_vault(str(tmp_path), "r")) as vault:
        vault.register("a test")
        for step in range(1, 7):
            manifest, payload = shard_of({"model": {"w": numbers(20)}}, step=step)
            named = replace(manifest, run="r", commit=replace(manifest.commit, incarnation=vault.incarnation))
            vault.commit(named.commit, [vault.upload(named, lambda begin, end, payload=payload: payload[begin:end])])
        place = ("gc", "r", "--persistent", tmp_path, "--dry-run")
        assert kept(call, *place) == [6, 5], "no copy of its journal tells of more"
        for life, every in ((vault.incarnation - 1, 2), (vault.incarnation, 3)):
            knobs = {"checkpoint.keep.every": {"value": every, "source": "run.yaml:3"}}
            told = {"t": 1.0, "life": "Settings", "run": "r", "incarnation": life, "knobs": knobs}
            for number, text in enumerate((f"{json.dumps(told)[:-9]}\n", json.dumps(told) + "\n"), start=1):
                vault.store.create(key_of("r", Span(life, number, number)), encoded([Segment(0, text)]))
            assert kept(call, *place) == {2: [6, 5, 4, 2, 1], 3: [6, 5, 3, 1]}[every]
        after = Span(vault.incarnation + 1, 1, 1)  # a driver that was killed before its own settings were copied
        vault.store.create(key_of("r", after), encoded([Segment(0, "the last lines of the life before\n")]))
        assert kept(call, *place) == [6, 5, 3, 1]
        assert kept(call, *place, "--keep-last", 1) == [6, 3, 1]
        assert kept(call, *place, "--keep-every", 0) == [6, 5]
    assert kept(call, *place, "--keep-last", 1, "--keep-every", 2, "--keep-best", 0) == [6, 4, 2, 1]


def kept(call: Called, *arguments: object) -> list[int]:
    """The steps that it would not delete."""
    return [one["step"] for one in call.facts(*arguments)["steps"] if one["is_kept"]]


def test_the_disk_of_a_node_is_looked_at_verified_and_cleared(call, tmp_path):
    disk = Disk(tmp_path, RUN)
    for step in (1, 2, 3):
        manifest, payload = shard_of({"model": {"w": numbers(100)}}, step=step)
        disk.write(manifest, lambda begin, end, payload=payload: payload[begin:end])
    place = (RUN, "--disk", tmp_path)
    for option, value in (("--keep-best", 3), ("--keep-every", 2), ("--metric", "acc"), ("--mode", "max")):
        code, _, err = call("gc", *place, option, value)
        assert code == 2 and f"{option}: only --keep-last counts here" in err
    steps = call.facts("ls", *place)["steps"]
    assert [(one["step"], one["tiers"]) for one in steps] == [(3, ["disk"]), (2, ["disk"]), (1, ["disk"])]
    assert call.facts("verify", *place, "--deep")["is_sound"]
    assert call.facts("restore-report", *place)["read"][0]["places"][0]["tier"] == "disk"
    spared = call.facts("gc", *place, "--dry-run")
    assert [one["step"] for one in spared["steps"] if not one["is_kept"]] == [1] and spared["freed_bytes"] > 0
    assert len(call.facts("ls", *place)["steps"]) == 3
    torn = next(path for path in tmp_path.rglob("manifest-*") if "/0000000001-" in str(path))
    torn.unlink()
    for path in torn.parent.iterdir():
        os.utime(path, (time.time() - 3600.0,) * 2)
    assert call.facts("gc", *place, "--keep-last", 1)["torn_files"] > 0
    assert [one["step"] for one in call.facts("ls", *place)["steps"]] == [3]
    assert not torn.parent.exists()
    chunk = next(path for path in tmp_path.rglob("chunk-*"))
    chunk.write_bytes(flipped(chunk.read_bytes(), 9).tobytes())
    assert not call.facts("verify", *place, "--deep", code=3)["is_sound"]
    assert call("gc", RUN, "--disk", tmp_path, "--persistent", tmp_path)[0] == 2


def test_the_memory_of_a_node_is_cleared_of_what_workers_that_are_gone_have_left(call, tmp_path):
    """Which lives on in slots: those of a worker that lives stay, and so do the newest of each shard."""
    gone, living = Arena(tmp_path, RUN, 1, "w0", slots=4), Arena(tmp_path, RUN, 1, "w1", slots=3)
    for arena, steps in ((gone, (1, 2, 3)), (living, (1, 2, 3))):
        for step in steps:
            assert stage(arena, step, shard=int(arena is living), shards=2, run=RUN)
    assert gone.begin(4096) is not None
    gone.close()
    place = (RUN, "--memory", tmp_path)
    spared = call.facts("gc", *place, "--dry-run")
    doomed = [(one["step"], one["shard"]) for one in spared["steps"] if not one["is_kept"]]
    assert doomed == [(1, 0)] and spared["unsealed"] == 1 and spared["freed_bytes"] == 4096
    assert "would be deleted" in call("gc", *place, "--dry-run")[1]
    whole = [one["step"] for one in call.facts("ls", *place)["steps"]]
    assert whole == [3, 2, 1], "it only looked"
    assert call.facts("gc", *place)["steps"] == spared["steps"]
    assert [one["step"] for one in call.facts("ls", *place)["steps"]] == [3, 2]
    living.close()


def test_copies_on_nodes_that_may_go_are_said(call, monkeypatch, tmp_path):
    """The run's own driver drops them, as newer steps are kept as well: nobody else does."""
    shelves = []
    for name, steps in (("a", (1, 2, 3, 4)), ("b", (1, 2, 3))):
        (tmp_path / name).mkdir()
        shelves.append(Folder(tmp_path / name))
        for step in steps:
            shelves[-1].put(shard_of({"model": {"w": numbers(200, start=step)}}, step=step))
    monkeypatch.setattr(places, "nodes_of", lambda run, address: nullcontext(shelves))
    facts = call.facts("gc", RUN, "--peers", "--dry-run")
    assert [(one["step"], one["copies"], one["is_kept"]) for one in facts["steps"]] == [
        (4, 1, True),
        (3, 2, True),
        (2, 2, True),
        (1, 2, False),
    ], "step 4 is kept less well than step 2"
    code, _, err = call("gc", RUN, "--peers")
    assert code == 2 and "--dry-run" in err
