"""Effect. The ways to keep a checkpoint that the benchmark compares keep it; damage to torch's formats is done."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import CheckpointException

from benchmarks import checkpoint_systems, corruption_torch, tables
from benchmarks.checkpoints import serving, state
from benchmarks.checkpoints.elastic_slots import Slots, new_bench, newest
from benchmarks.checkpoints.serving import Keeper, Task, away, measured, outage_row, outlasted
from benchmarks.checkpoints.state import as_dict, new_state, tensors_of
from benchmarks.checkpoints.torch_files import keepers
from elastic.checkpoint import memory
from elastic.errors import ElasticError

NBYTES = 3 << 18
FILES = ("dcp-sync", "dcp-async", "dcp-async-default", "torch-save")


@pytest.fixture
def task(tmp_path: Path) -> Task:
    for name in ("ramdisk", "disk"):
        (tmp_path / name).mkdir()
    return Task(address="", nbytes=NBYTES, step_memcpys=1.0, ramdisk=tmp_path / "ramdisk", disk=tmp_path / "disk")


@pytest.fixture
def files(task: Task) -> Iterator[tuple[dict, dict[str, Keeper]]]:
    kept = as_dict(*new_state(NBYTES))
    with warnings.catch_warnings(action="ignore"):  # of one process without a process group
        yield kept, keepers(kept, task)


@pytest.mark.parametrize("name", FILES)
def test_a_way_gives_back_what_it_kept(name: str, files: tuple[dict, dict[str, Keeper]]) -> None:
    live, all_of = files
    keeper, tensors = all_of[name], tensors_of(live)
    kept = [torch.randn_like(tensor) for tensor in tensors]
    _fill(tensors, kept)
    keeper.begin()
    keeper.fence()
    _fill(tensors, [torch.zeros_like(tensor) for tensor in tensors])
    keeper.process()
    keeper.restore()
    assert all(torch.equal(tensor, one) for tensor, one in zip(tensors, kept, strict=True))
    keeper.clear()
    assert measured(keeper, lambda: None).keys() == set(keeper.has)


def test_so_does_this_library(task: Task) -> None:
    bench = new_bench(task)
    try:
        keeper = Slots(bench, task)
        first = measured(keeper, lambda: None)
        assert first.keys() == set(keeper.has) and all(seconds > 0 for seconds in first.values())
        before = newest(keeper.source, keeper.run).commit.step
        keeper.begin()
        keeper.fence()
        keeper.process()
        assert newest(keeper.source, keeper.run).commit.step == before + 1
        kept = [tensor.clone() for tensor in bench.tensors]
        _fill(bench.tensors, [torch.full_like(tensor, 7) for tensor in kept])
        keeper.restore()
        now = bench.tracked.flatten().tensors
        assert all(torch.equal(tensor, one) for tensor, one in zip(now, kept, strict=True))
    finally:
        memory.remove(task.ramdisk, bench.run)


def test_an_outage_of_the_storage_costs_no_checkpoint_that_lies_in_memory(task: Task) -> None:
    bench = new_bench(task)
    try:
        keeper = Slots(bench, task)
        keeper.durable()
        (vaults,) = keeper.storage
        with away(vaults), pytest.raises(ElasticError):
            keeper.durable()
        before = newest(keeper.source, keeper.run).commit.step
        assert outlasted(keeper)["outage_s"] > 0
        assert newest(keeper.source, keeper.run).commit.step == before + 1
        keeper.durable()
    finally:
        memory.remove(task.ramdisk, bench.run)


@pytest.mark.parametrize("name", FILES)
def test_it_costs_those_that_lie_in_its_files(name: str, files: tuple[dict, dict[str, Keeper]]) -> None:
    keeper = files[1][name]
    with pytest.raises((OSError, CheckpointException)):
        outlasted(keeper)
    assert measured(keeper, lambda: None).keys() == set(keeper.has), "once it is back, all is as before"


def test_a_step_between_does_not_count_as_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, done = [0.0], list[str]()

    def passes(seconds: float, what: str) -> None:
        now_s[0] += seconds
        done.append(what)

    class Clocked(Keeper):
        has = ("stall_s", "process_s", "node_s", "restore_s", "durable_s")

    takes_s = {"begin": 1, "fence": 2, "process": 4, "node": 8, "restore": 16, "durable": 32, "clear": 100}
    for name, seconds in takes_s.items():
        setattr(Clocked, name, lambda self, name=name, seconds=seconds: passes(seconds, name))
    for module in (serving, state):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now_s[0]))
    told = measured(Clocked(), lambda: passes(64, "a step"))
    assert told == {"stall_s": 3, "process_s": 7, "node_s": 15, "restore_s": 16, "durable_s": 32}
    assert done[:5] == ["begin", "a step", "fence", "process", "clear"]
    assert done[5:] == ["begin", "fence", "process", "node", "restore", "clear", "durable", "clear"]


@pytest.mark.parametrize("name", corruption_torch.FORMATS)
def test_damage_to_torchs_formats_is_done_and_seen(name: str) -> None:
    counts = corruption_torch.counts(corruption_torch.FORMATS[name], trials=36)
    assert counts["tried"] == 36 == counts["silent"] + counts["refused"] + counts["harmless"]
    assert counts["refused"] > 0, "not even a file without its end was refused"
    assert counts["silent"] > 0, "torch sums what it loads now: say so in docs/benchmarks.md"


def test_undamaged_files_are_right(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        for name, one in corruption_torch.FORMATS.items():
            one.save(corruption_torch.state_of(corruption_torch.NEW), tmp_path / name)
            assert corruption_torch._outcome(one, tmp_path / name) == "harmless"
            one.save(corruption_torch.state_of(corruption_torch.OLD), tmp_path / f"{name}-old")
            assert corruption_torch._outcome(one, tmp_path / f"{name}-old") == "silent"


def test_only_who_has_a_storage_has_lost_something_to_its_outage(
    files: tuple[dict, dict[str, Keeper]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "FileExistsError" in outage_row(files[1]["torch-save"])["lost"]
    broken = Keeper()
    monkeypatch.setattr(broken, "restore", lambda: 1 / 0)
    assert "ZeroDivisionError" in outage_row(broken)["note"]


def test_the_table_says_what_was_lost_and_counts_outages_as_no_turns() -> None:
    def row(system: str, **figures: Any) -> dict[str, Any]:
        return {"system": system, **dict.fromkeys(tables.KEPT), "note": "", "lost": "", **figures}

    rows = [row("a", process_s=2.0), row("a", outage_s=2.0), row("a", lost="OSError: [Errno 17] it is away")]
    rows += [row("b", note="it is missing"), row("b", outage_s=3.0)]
    result = {"rows": rows, "titles": {"a": "A", "b": "B"}, "settings": {"nbytes": 1 << 20}}
    table = tables.checkpoint_systems(result)
    at = table.columns.index(tables.KEPT[tables.OUTAGE])
    assert [line[at] for line in table.rows] == ["2, lost: `OSError`", "3"]
    assert table.notes == ("Not measured: B: it is missing.",)


@pytest.mark.slow
def test_outages_are_asked_of_new_processes(tmp_path: Path) -> None:
    settings = checkpoint_systems.Settings(nbytes=NBYTES, outages=2, step_memcpys=1.0)
    rows = checkpoint_systems.outages(settings, ["elastic", "torch-save"], Path("/dev/shm"), tmp_path)
    assert [(row["system"], row["repetition"]) for row in rows] == [("elastic", 1), ("elastic", 2), ("torch-save", 1)]
    assert all(row["outage_s"] > 0 and not row["lost"] for row in rows[:2])
    assert rows[2]["outage_s"] is None and "FileExistsError" in rows[2]["lost"]


@pytest.mark.slow
def test_processes_take_turns_and_what_is_not_there_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = checkpoint_systems.WAYS | {
        "torchft-pg": checkpoint_systems._way("torchft_transport", "torchft", "nobody"),
        "broken": checkpoint_systems._way("no_such_module", "broken"),
    }
    monkeypatch.setattr(checkpoint_systems, "WAYS", ways)
    settings = checkpoint_systems.Settings(nbytes=NBYTES, repeats=2, step_memcpys=1.0)
    systems = ["torchft-pg", "elastic", "torch-save", "broken", "dcp-async"]
    rows, versions = checkpoint_systems.measure(settings, systems, Path("/dev/shm"), tmp_path)
    assert versions["torch"] == torch.__version__
    told = {(row["system"], row["repetition"]): row for row in rows}
    assert told["torchft-pg", 0]["note"] == ".bench/nobody/bin/python is missing (make bench-env)"
    assert "no_such_module" in told["broken", 0]["note"]
    for name in ("elastic", "torch-save", "dcp-async"):
        for number in (1, 2):
            assert told[name, number]["process_s"] > 0, told[name, number]


def _fill(tensors: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
