"""Effect. Foreign weights become a run's start; what the run has made of them leaves it again, for plain torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner

from elastic.cli import cli
from elastic.control.outcome import Ending
from elastic.interchange.exporting import alone
from elastic.settings import Checkpoint, Interval
from tests.chaos.group import Story, Training, name_of, run
from tests.chaos.saboteur import BATCH, Samples

pytestmark = pytest.mark.timeout(120)

STEPS = 6
WORLD = 3
# What a user has who left this package behind: three processes, FSDP2, and the exported directory.
PLAIN = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
folder, rank, world, store = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", rank=rank, world_size=world, init_method=f"file://{store}")
torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 6)).double()
fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (world,)))
state = {"model": model.state_dict()}
dcp.load(state, checkpoint_id=folder)
model.load_state_dict(state["model"])
whole = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
if rank == 0:
    torch.save(whole, store + ".pt")
dist.destroy_process_group()
assert "elastic" not in sys.modules
"""


def make_model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 6)).double()


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return ((model(x) - x) ** 2).mean()


def train(session: Any, *, folder: Path, plan: Any, steps: int, micro_batch: int, pause_s: float) -> None:
    """Log which samples each step has, and the weights at the end."""
    model = session.prepare(make_model(seed=1))
    optimizer = make_optimizer(model)
    session.track(model=model, optimizer=optimizer)
    batches = session.batches(Samples(), batch_size=BATCH, micro_batch_size=micro_batch)
    with (folder / f"{session.worker}.jsonl").open("a", buffering=1) as log:
        for step in session.steps(batches, max_steps=steps):
            with step:
                for index, x in step:
                    line = {"event": "consumed", "t": 0.0, "step": step.index, "ids": index.tolist()}
                    log.write(json.dumps(line) + "\n")
                    step.backward(loss_of(model, x))
                step.apply(optimizer)
    if session.is_leader:
        torch.save(model.state_dict(), folder / "final.pt")


def command(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def played(folder: Path, source: Path, steps: int = STEPS) -> Story:
    """Import, then train with two workers; what they have staged stays in `folder/memory`."""
    (folder / "memory").mkdir(parents=True)
    url = str(folder / "store")
    command("import", str(source), "--run", name_of(folder), "--persistent", url)
    checkpoint = Checkpoint(local_interval=Interval(steps=1), memory=str(folder / "memory"), persistent=url)
    training = Training(function=train, checkpoint=checkpoint, at_end=lambda run: None)
    story = run(folder, replicas=(2, 2), slots=2, steps=steps, training=training)
    assert story.finished.outcome.ending is Ending.SUCCEEDED, story.finished.outcome
    return story


def expected(weights: dict[str, torch.Tensor], story: Story) -> dict[str, torch.Tensor]:
    """A plain loop over the same samples, from these weights, with a new optimizer."""
    model = make_model(seed=2)
    model.load_state_dict(weights)
    optimizer, samples = make_optimizer(model), Samples()
    for step in sorted({line["step"] for line in story.of("consumed")}):
        ids = sorted(index for line in story.of("consumed") if line["step"] == step for index in line["ids"])
        assert len(ids) == BATCH
        optimizer.zero_grad()
        loss_of(model, torch.stack([samples[index][1] for index in ids])).backward()
        optimizer.step()
    return model.state_dict()


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], rtol: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=rtol, atol=rtol, msg=name)


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return make_model(seed=77).state_dict()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, torch.Tensor]) -> Story:
    folder = tmp_path_factory.mktemp("first")
    with alone():
        dcp.save({"model": weights}, checkpoint_id=folder / "foreign", no_dist=True)
    return played(folder, folder / "foreign")


def exported(story: Story, to: Path, form: str) -> Path:
    memory = story.folder / "memory"
    told = command("export", name_of(story.folder), "--to", str(to), "--format", form, "--memory", str(memory))
    assert told["step"] == STEPS - 1
    return to


def test_a_run_trains_on_from_imported_weights(first: Story, weights: dict[str, torch.Tensor]) -> None:
    """With the optimizer as built, and from the first batch on: an import has no cursor."""
    (restored, *others) = [line for line in first.journal if line.get("event") == "Restored"]
    assert len(others) == 1 and restored["commit"]["step"] == 0 and restored["commit"]["incarnation"] == 0
    assert [report.commit.step for report in first.reports] == [*range(1, STEPS)]
    assert_equal(torch.load(first.folder / "final.pt"), expected(weights, first), rtol=1e-12)


def test_what_was_trained_is_exported_imported_and_exported_again(first: Story, tmp_path: Path) -> None:
    """With the optimizer, and through a run that restores it and makes no step: not a bit has changed."""
    out = exported(first, tmp_path / "out", "safetensors")
    second = played(tmp_path / "second", out, steps=1)
    assert second.reports == []
    assert_equal(torch.load(tmp_path / "second" / "final.pt"), torch.load(first.folder / "final.pt"))
    arguments = ["--persistent", str(tmp_path / "second" / "store"), "--format", "safetensors"]
    command("export", name_of(tmp_path / "second"), "--to", str(tmp_path / "again"), *arguments)
    files = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    assert {"model.safetensors", "optimizer.safetensors"} <= files.keys()
    for name, data in files.items():
        assert payload_of((tmp_path / "again" / name).read_bytes()) == payload_of(data), name


def payload_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A safetensors file without what it tells of its origin."""
    header_bytes = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    return header, data[8 + header_bytes :]


@pytest.mark.slow
def test_plain_torch_loads_an_export_at_another_world_size(first: Story, tmp_path: Path) -> None:
    out, store = exported(first, tmp_path / "out", "dcp"), tmp_path / "rendezvous"
    ranks = [
        subprocess.Popen([sys.executable, "-c", PLAIN, str(out), str(rank), str(WORLD), str(store)], cwd=tmp_path)
        for rank in range(WORLD)
    ]
    assert [process.wait(60) for process in ranks] == [0] * WORLD
    assert_equal(torch.load(f"{store}.pt"), torch.load(first.folder / "final.pt"))
