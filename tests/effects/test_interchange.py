"""Effect. P9: an export loads without this package, with the same bits, and can start a run; C19: no code runs."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

from elastic.checkpoint.boxes import whole_shape
from elastic.checkpoint.vault import open_vault
from elastic.cli import cli
from elastic.errors import CorruptError, SettingError, StateError
from elastic.interchange import exporting
from elastic.interchange.exporting import Format, export
from elastic.interchange.importing import import_checkpoint
from elastic.interchange.safetensors import Named, read_file, write_header
from elastic.train.restore import restore
from tests.effects.helpers import LONG_S
from tests.effects.shelves import RUN, Shelf, numbers, of, shard_of
from tests.effects.test_restore import cut_shelf, state_of, tracked, trained, worker
from tests.effects.test_tracked import Objects

FORMATS = list(Format)
# What somebody runs who has torch and has never heard of this package.
PLAIN = """
import sys, torch
sys.modules["elastic"] = None
kind, folder, wanted = sys.argv[1:]
wanted = torch.load(wanted)
if kind == "dcp":
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    dcp_to_torch_save(folder, folder + ".pt")
    found = torch.load(folder + ".pt", weights_only=False)
    model, moments = found["model"], found["optimizer"]["state"]["0"]["exp_avg"]
elif kind == "dcp in place":
    import torch.distributed.checkpoint as dcp
    model = {name: torch.zeros_like(value) for name, value in wanted["model"].items()}
    dcp.load({"model": model}, checkpoint_id=folder, no_dist=True)
    moments = wanted["moments"]
else:
    from safetensors.torch import load_file
    model = load_file(folder + "/model.safetensors")
    moments = load_file(folder + "/optimizer.safetensors")["state.0.exp_avg"]
assert model.keys() == wanted["model"].keys(), model.keys()
for name, value in wanted["model"].items():
    assert model[name].dtype == value.dtype and torch.equal(model[name], value), name
assert torch.equal(moments, wanted["moments"])
print("loaded")
"""


@pytest.mark.parametrize("kind", ["dcp", "dcp in place", "safetensors"])
def test_p9_an_export_loads_without_this_package(tmp_path, kind):
    if kind == "safetensors":
        pytest.importorskip("safetensors", reason="the reference implementation is not installed")
    objects = Objects(1, 3)
    form = Format.SAFETENSORS if kind == "safetensors" else Format.DCP
    export(of(Shelf([shard_of(state_of(objects.tracked))]))[0], tmp_path / "out", form)
    moments = objects.optimizer.state_dict()["state"][0]["exp_avg"]
    torch.save({"model": dict(objects.model.state_dict()), "moments": moments}, tmp_path / "wanted.pt")
    command = [sys.executable, "-c", PLAIN, kind, str(tmp_path / "out"), str(tmp_path / "wanted.pt")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=4 * LONG_S, cwd=tmp_path, check=False)
    assert answer.stdout.strip() == "loaded", answer.stderr


# The same somebody, with another number of processes than the checkpoint was saved by.
PLAIN_PROCESSES = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
sys.modules["elastic"] = None
folder, wanted, store, rank, world = sys.argv[1:]
dist.init_process_group("gloo", rank=int(rank), world_size=int(world), init_method="file://" + store)
mesh, wanted = init_device_mesh("cpu", (int(world),)), torch.load(wanted)
cut = {"rows": Shard(0), "columns": Shard(1)}

def empty(name, value):
    return distribute_tensor(torch.full_like(value, -1.0), mesh, [cut.get(name, Replicate())])

model = {name: empty(name, value) for name, value in wanted["model"].items()}
moments = {n: {"exp_avg": empty(*one)} for n, one in enumerate(wanted["moments"].items())}
dcp.load({"model": model, "optimizer": {"state": moments}}, checkpoint_id=folder)
found = {"model": model, "moments": {name: moments[n]["exp_avg"] for n, name in enumerate(wanted["moments"])}}
for kind, tensors in wanted.items():
    for name, value in tensors.items():
        whole = found[kind][name].full_tensor()
        assert whole.dtype == value.dtype and torch.equal(whole, value), (kind, name)
assert model["rows"].to_local().shape[0] < wanted["model"]["rows"].shape[0], "nothing is cut here"
dist.destroy_process_group()
print("loaded")
"""


def durable(folder: Path, shelf: Shelf) -> str:
    """A persistent tier with this step in it."""
    vault = open_vault(str(folder), RUN)
    vault.register("test")
    digests = [vault.upload(one, lambda begin, end, data=data: data[begin:end]) for one, data in shelf.shards]
    vault.commit(shelf.shards[0][0].commit, digests)
    return str(folder)


@pytest.mark.slow
def test_p9_what_three_workers_made_durable_is_loaded_by_two_plain_processes(tmp_path):
    """Rows, columns and moments that were cut in three are cut in two, unevenly."""
    store, out = durable(tmp_path / "store", cut_shelf(3)), tmp_path / "out"
    words = ["export", RUN, "--persistent", store, "--to", str(out), "--format", "dcp"]
    told = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert told.exit_code == 0, told.output
    with worker(0, 1) as mesh:
        model, optimizer, _ = trained(mesh, 10.0)
        moments = {name: optimizer.state[param]["exp_avg"] for name, param in model.named_parameters()}
        wanted = {"model": whole(model.state_dict()), "moments": whole(moments)}
    torch.save(wanted, tmp_path / "wanted.pt")
    files = [str(out), str(tmp_path / "wanted.pt"), str(tmp_path / "rendezvous")]
    commands = [[sys.executable, "-c", PLAIN_PROCESSES, *files, str(rank), "2"] for rank in range(2)]
    ranks = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True, cwd=tmp_path) for one in commands]
    try:
        assert [one.communicate(timeout=4 * LONG_S)[0].strip() for one in ranks] == ["loaded"] * 2
    finally:
        for one in ranks:
            one.kill()
            one.communicate()


def whole(tensors: dict) -> dict:
    """Plain tensors, on a mesh of one."""
    return {name: one.to_local() if hasattr(one, "to_local") else one for name, one in tensors.items()}


def read_plainly(path: Path) -> dict[str, bytes]:
    """A safetensors file by the letter of its specification."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__")["format"] == "pt"
    spans = sorted(row["data_offsets"] for row in header.values())
    assert spans[0][0] == 0 and spans[-1][1] == len(data) - 8 - length and length % 8 == 0
    assert all(left[1] == right[0] for left, right in zip(spans, spans[1:], strict=False)), "no holes"
    sizes = {"F32": 4, "BF16": 2, "I64": 8}
    assert all(row["data_offsets"][0] % sizes[row["dtype"]] == 0 for row in header.values()), "each is aligned"
    body = data[8 + length :]
    return {name: body[slice(*row["data_offsets"])] for name, row in header.items()}


def test_an_empty_tensor_may_stand_behind_the_one_that_begins_where_it_does(tmp_path):
    """The order of a header means nothing."""
    rows = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    rows |= {"none": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    header = json.dumps(rows).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\x80\x3f")
    found = read_file(tmp_path / "x.safetensors")
    assert found["a"].tolist() == [1.0] and found["none"].shape == (0,)


def test_tied_weights_of_which_a_file_has_one_are_read_under_both_names(tmp_path):
    """As the library itself saves a model: a run that begins with it has a model with both."""
    safetensors = pytest.importorskip("safetensors.torch")
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embedding"].weight
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    assert len(safetensors.load_file(tmp_path / "model.safetensors")) == 1
    found = read_file(tmp_path / "model.safetensors")
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, model["head"].weight) for tensor in found.values())


def test_p9_safetensors_are_written_by_the_letter(tmp_path):
    objects = Objects(1, 3)
    export(of(Shelf([shard_of(state_of(objects.tracked))]))[0], tmp_path / "out", Format.SAFETENSORS)
    found = read_plainly(tmp_path / "out/model.safetensors")
    wanted = {
        k: v.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for k, v in objects.model.state_dict().items()
    }
    assert found == wanted
    told = json.loads((tmp_path / "out/state.json").read_text())
    assert told["run"] == RUN and told["commit"]["step"] == 7


@pytest.mark.parametrize("form", FORMATS)
def test_what_was_exported_can_be_imported_as_it_was(tmp_path, form):
    giver, taker = Objects(1, 3), Objects(2, 0)
    told = export(of(Shelf([shard_of(state_of(giver.tracked))]))[0], tmp_path / "out", form)
    assert told.whole and told.step == 7 and told.nbytes > 0 and told.read
    manifest, payload = import_checkpoint(tmp_path / "out", RUN)
    assert (manifest.commit.step, manifest.commit.incarnation) == (0, 0)
    restore(taker.tracked, *of(Shelf([(manifest, payload)])))
    assert taker.tracked.digests() == giver.tracked.digests()


def test_objects_whose_names_have_dots_keep_their_own_tensors(tmp_path):
    state = {"a": {"b.weight": numbers(3)}, "a.b": {"weight": numbers(3, start=50.0)}, "w": numbers(2)}
    shelf = Shelf([shard_of(state)])
    export(of(shelf)[0], tmp_path / "out", Format.SAFETENSORS)
    manifest, payload = import_checkpoint(tmp_path / "out", RUN)
    assert payload.tobytes() == bytes(shelf.shards[0][1]) and manifest.skeleton == shelf.shards[0][0].skeleton
    with pytest.raises(StateError, match=r"called the same .*a\.b\.weight.*--format safetensors"):
        export(of(shelf)[0], tmp_path / "dcp", Format.DCP)
    assert not (tmp_path / "dcp").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_no_tensor_is_taken_twice(tmp_path, form):
    """Of a tree that somebody has edited."""
    export(of(Shelf([shard_of({"a": {"b.w": numbers(3)}})]))[0], tmp_path / "out", form)
    told = json.loads((tmp_path / "out/state.json").read_text())
    ((_, kept),) = told["trees"][""]["dict"]
    kept["dict"].append(["b", {"dict": [["w", kept["dict"][0][1]]]}])
    (tmp_path / "out/state.json").write_text(json.dumps(told))
    with pytest.raises(CorruptError, match="no such tensor as state.json tells of at /a/b/w"):
        import_checkpoint(tmp_path / "out", RUN)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("batch_bytes", [1, 1 << 28])
def test_shards_are_put_together(tmp_path, form, batch_bytes, monkeypatch):
    monkeypatch.setattr(exporting, "_BATCH_BYTES", batch_bytes)
    told = export(of(cut_shelf(3))[0], tmp_path / "out", form)
    assert told.whole
    with worker(0, 1) as mesh:
        wanted = {
            name: p.to_local() if hasattr(p, "to_local") else p
            for name, p in trained(mesh, 10.0)[0].state_dict().items()
        }
    manifest, payload = import_checkpoint(tmp_path / "out", RUN)
    for entry in manifest.entries:
        if entry.path.startswith("/model/"):
            bytes_ = wanted[entry.path.removeprefix("/model/")].contiguous().numpy().tobytes()
            assert payload[entry.begin : entry.begin + entry.nbytes].tobytes() == bytes_, entry.path
            assert whole_shape(entry) == tuple(wanted[entry.path.removeprefix("/model/")].shape)


@pytest.mark.parametrize("form", FORMATS)
def test_shards_cut_by_hand_are_exported_apart(tmp_path, form):
    shards = [shard_of({"model": {"w": numbers(3, start=100.0 * s)}}, shard=s, shards=2) for s in range(2)]
    assert not export(of(Shelf(shards))[0], tmp_path / "out", form).whole
    if form is Format.SAFETENSORS:
        parts = [read_file(tmp_path / f"out/shard-{s}/model.safetensors")["w"] for s in range(2)]
    else:
        loaded = {f"shard-{s}": {"model": {"w": torch.zeros(3)}} for s in range(2)}
        with exporting.alone():
            dcp.load(loaded, checkpoint_id=tmp_path / "out", no_dist=True)
        parts = [loaded[f"shard-{s}"]["model"]["w"] for s in range(2)]
    assert all(torch.equal(part, numbers(3, start=100.0 * s)) for s, part in enumerate(parts))
    with pytest.raises(SettingError, match="cut by hand|holds neither"):
        import_checkpoint(tmp_path / "out", RUN)


def test_an_export_is_there_in_whole_or_not_at_all(tmp_path):
    good = shard_of({"model": {"w": numbers(300)}})

    def spoil(key, begin, end, data):
        return data[:-1]

    with pytest.raises(Exception, match="cannot be had"):
        export(of(Shelf([good], spoil=spoil))[0], tmp_path / "out", Format.SAFETENSORS)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("")
    with pytest.raises(SettingError, match="--to"):
        export(of(Shelf([good]))[0], tmp_path / "out", Format.DCP)
    assert (tmp_path / "out/mine").exists()


def test_an_export_has_its_name_only_once_its_bytes_outlast_a_power_cut(tmp_path, monkeypatch):
    made, synced, replace = list[str](), exporting.fsync, Path.replace

    def noted(path):
        made.append(str(path.relative_to(tmp_path)))
        synced(path)

    monkeypatch.setattr(exporting, "fsync", noted)
    monkeypatch.setattr(Path, "replace", lambda self, to: (made.append("named"), replace(self, to))[1])
    export(of(Shelf([shard_of({"model": {"w": numbers(300)}})]))[0], tmp_path / "out", Format.SAFETENSORS)
    before, after = made[: made.index("named")], made[made.index("named") + 1 :]
    whole = {f"out.partial/{path.relative_to(tmp_path / 'out')}" for path in (tmp_path / "out").rglob("*")}
    assert {*before} == {"out.partial", *whole} and after == ["."]


def test_an_export_goes_to_a_directory_of_its_own(tmp_path, monkeypatch):
    """`.` is one, where it is empty; a mount point is none: the export is written beside it first, and then moved."""
    good = shard_of({"model": {"w": numbers(300)}})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export(of(Shelf([good]))[0], Path("."), Format.SAFETENSORS)
    assert (tmp_path / "here/model.safetensors").exists() and [one.name for one in tmp_path.iterdir()] == ["here"]
    with pytest.raises(SettingError, match="is where a file system is mounted"):
        export(of(Shelf([good]))[0], Path("/dev/shm"), Format.SAFETENSORS)


def test_files_that_hold_the_same_names_are_not_mixed(tmp_path):
    """Weights, and their averages beside them."""
    export(of(Shelf([shard_of({"model": {"w": numbers(3)}})]))[0], tmp_path / "out", Format.SAFETENSORS)
    (both := tmp_path / "both").mkdir()
    for name in ("model", "model_ema"):
        shutil.copy(tmp_path / "out/model.safetensors", both / f"{name}.safetensors")
    with pytest.raises(SettingError, match=r"model.safetensors and model_ema.safetensors both hold w"):
        import_checkpoint(both, RUN)
    assert import_checkpoint(both / "model_ema.safetensors", RUN)


def test_what_safetensors_cannot_hold_is_refused(tmp_path):
    odd = Shelf([shard_of({"model": {"w": torch.zeros(2, dtype=torch.complex128)}})])
    with pytest.raises(StateError, match="no name for complex128.*--format dcp"):
        export(of(odd)[0], tmp_path / "out", Format.SAFETENSORS)
    clash = Shelf([shard_of({"model": {"a.b": numbers(1), "a": {"b": numbers(1)}}})])
    with pytest.raises(StateError, match="called a.b"):
        export(of(clash)[0], tmp_path / "out", Format.SAFETENSORS)


@pytest.mark.parametrize("form", FORMATS)
def test_a_name_with_a_slash_is_kept(tmp_path, form):
    """torch forbids but dots in the names of modules."""
    giver, taker = [nn.ModuleDict({"enc/0": nn.Linear(3, 2)}) for _ in range(2)]
    export(of(Shelf([shard_of({"model": giver.state_dict()})]))[0], tmp_path / "out", form)
    if form is Format.SAFETENSORS:
        assert read_file(tmp_path / "out/model.safetensors").keys() == giver.state_dict().keys()
    manifest, payload = import_checkpoint(tmp_path / "out", RUN)
    restore(tracked(model=taker), *of(Shelf([(manifest, payload)])))
    assert torch.equal(giver["enc/0"].weight, taker["enc/0"].weight)


# --- from others ---


def test_bare_tensors_are_a_models_start(tmp_path):
    """Weights from elsewhere: the optimizer stays as it was built, and the report says so."""
    giver, taker = nn.Linear(3, 2), nn.Linear(3, 2)
    export(of(Shelf([shard_of({"m": giver.state_dict()})]))[0], tmp_path / "out", Format.SAFETENSORS)
    manifest, payload = import_checkpoint(tmp_path / "out/m.safetensors", RUN)
    optimizer = torch.optim.Adam(taker.parameters())
    report = restore(tracked(model=taker, optimizer=optimizer), *of(Shelf([(manifest, payload)])))
    assert torch.equal(giver.weight, taker.weight) and report.missing == ("optimizer",)


@pytest.mark.parametrize("nested", [True, False], ids=["named objects", "a bare state_dict"])
def test_a_dcp_of_others_is_read(tmp_path, nested):
    giver, taker = Objects(1, 2), Objects(2, 0)
    plain = {"model": giver.model.state_dict(), "optimizer": giver.optimizer.state_dict()}
    with exporting.alone():
        dcp.save(plain if nested else plain["model"], checkpoint_id=tmp_path / "dcp", no_dist=True)
    manifest, payload = import_checkpoint(tmp_path / "dcp", RUN)
    report = restore(taker.tracked, *of(Shelf([(manifest, payload)])))
    names = {"model", "optimizer"} if nested else {"model"}
    assert set(report.missing) == {"model", "optimizer", "scheduler"} - names
    mine, theirs = taker.tracked.digests(), giver.tracked.digests()
    assert all(mine[name] == theirs[name] for name in names)


def plainly_trained(seed, steps):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    groups = [{"params": [*model[1].parameters()], "lr": 0.5}, {"params": [*model[0].parameters()]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for _ in range(steps):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def test_a_dcp_of_torchs_own_recipe_is_read(tmp_path):
    """It calls the optimizer's parameters by name, as those who shard them differently have to."""
    giver, taker = plainly_trained(1, 2), plainly_trained(2, 0)
    model, optimizer = get_state_dict(*giver)
    with exporting.alone():
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    manifest, payload = import_checkpoint(tmp_path / "dcp", RUN)
    mine = tracked(model=taker[0], optimizer=taker[1])
    assert restore(mine, *of(Shelf([(manifest, payload)]))).missing == ()
    assert mine.digests() == tracked(model=giver[0], optimizer=giver[1]).digests()


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


@pytest.mark.parametrize("where", ["metadata", "bytes"])
def test_c19_no_code_of_a_checkpoint_runs(tmp_path, where, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {"model": {"w": numbers(2)}, "more": {"x": Bomb() if where == "bytes" else 1}}
    with exporting.alone():
        dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    if where == "metadata":
        (tmp_path / "dcp/.metadata").write_bytes(pickle.dumps(Bomb()))
    Path("exploded").unlink(missing_ok=True)
    with pytest.raises(CorruptError, match="describes no tensor|without running code"):
        import_checkpoint(tmp_path / "dcp", RUN)
    assert not Path("exploded").exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.checkpoint.filesystem", "torch.ctypes.util.subprocess.Popen"),
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("torch.distributed.checkpoint.filesystem", "FileSystemWriter"),
        ("torch", "load"),
        ("torch", "float32.__class__"),
    ],
)
def test_c19_names_that_lead_beyond_what_describes_tensors_are_refused(tmp_path, module, name, monkeypatch):
    """From protocol 4 on a pickle may name what an allowed module has imported, by dots."""
    monkeypatch.chdir(tmp_path)
    names = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    command = [b"\x8c\x05touch", b"\x8c\x08exploded"]
    called = b"".join([b"\x80\x04", names, b"\x93", b"]", b"(", *command, b"e", b"\x85", b"R."])
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp/.metadata").write_bytes(called)
    with pytest.raises(CorruptError, match="describes no tensor"):
        import_checkpoint(tmp_path / "dcp", RUN)
    assert not Path("exploded").exists()


def safetensors_file(path: Path) -> bytes:
    with path.open("wb") as file:
        write_header(file, [Named("a", "float32", (2,)), Named("b", "uint8", (3,))], {})
        file.write(bytes(range(11)))
    return path.read_bytes()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:5],
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data.replace(b"F32", b"F99"),
        lambda data: data.replace(b"[2]", b"[3]"),
        lambda data: data.replace(b"[8,11]", b"[7,10]"),
        lambda data: data.replace(b"[2]", b'"2"'),
        lambda data: data.replace(b"{", b"[", 1),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path, spoil):
    path = tmp_path / "x.safetensors"
    data = safetensors_file(path)
    assert read_file(path)["b"].tolist() == [8, 9, 10]
    path.write_bytes(spoil(data))
    assert spoil(data) != data
    with pytest.raises(CorruptError, match=r"x\.safetensors"):
        read_file(path)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(SettingError, match="holds neither"):
        import_checkpoint(tmp_path, RUN)
