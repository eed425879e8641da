"""Effect. A second life restores on two nodes: what it needs leaves the store once, and is there before the workers."""

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic.actors.peer_source import peer_sources
from elastic.checkpoint.store import StoreError
from elastic.checkpoint.vault import open_vault
from tests.cluster.test_checkpoint import CLI, checkpoint
from tests.cluster.training import At, regression
from tests.lines import whole_lines

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

RUN, HALF, STEPS = "ahead", 10, 20
ON_TWO_NODES = elastic.Scaling(num_dp_replicas=2, resources_per_worker={"CPU": 2})
_IN_OPEN = 0x20


@contextmanager
def opened(folder: Path) -> Iterator[Counter[str]]:
    """How often each file below was opened, by whatever process of this machine; counted when the context ends."""
    libc, counts = ctypes.CDLL(None, use_errno=True), Counter[str]()
    fd = libc.inotify_init1(os.O_NONBLOCK)
    assert fd >= 0
    try:
        for path in (folder, *(one for one in folder.rglob("*") if one.is_dir())):
            assert libc.inotify_add_watch(fd, str(path).encode(), _IN_OPEN) >= 0
        yield counts
        data = b""
        while True:
            try:
                data += os.read(fd, 1 << 16)
            except BlockingIOError:
                break
        while data:
            _, _, _, length = struct.unpack_from("iIII", data)
            counts[data[16 : 16 + length].rstrip(b"\0").decode()] += 1
            data = data[16 + length :]
    finally:
        os.close(fd)


def lines(folder: Path) -> list[dict[str, Any]]:
    journal = folder / "run" / "journal.jsonl"
    return whole_lines(journal)


def after(ready: Path, train_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, once `ready` is there: workers that take their time to start."""

    def waits(session: Any) -> Any:
        deadline_s = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return train_fn(session)

    return waits


def holders(step: int) -> set[str]:
    """Nodes whose actor has something of this step."""
    found = set()
    for source in peer_sources(RUN, ""):
        with contextlib.suppress(StoreError):  # it is just starting
            found |= {source.node for one in source.manifests(step) if len(source.read(one.key, 0, one.nbytes))}
    return found


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def fit(folder: Path, train_fn: Callable[[Any], Any], *callbacks: Any, **kept: Any) -> Any:
    limits = elastic.Limits(start_timeout_s=120, hang_floor_s=30)
    settings = {"scaling": ON_TWO_NODES, "limits": limits, "name": RUN, "checkpoint": checkpoint(folder, **kept)}
    return elastic.fit(train_fn, run_dir=folder / "run", callbacks=callbacks, **settings)


def test_a_chunk_leaves_the_store_once_and_is_there_before_the_workers(hosts: Any, tmp_path: Path) -> None:
    fit(tmp_path, regression(tmp_path, steps=HALF))
    before, ready, saw = len(lines(tmp_path)), tmp_path / "ready", list[set[str]]()

    def look() -> None:
        wait_until(lambda: len(holders(HALF - 1)) == 2, "it did not come to both nodes")
        saw.append(holders(HALF - 1))
        ready.touch()

    looking = threading.Thread(target=look)
    looking.start()
    gone = At(HALF + 2, lambda state: wait_until(lambda: not holders(HALF - 1), "the copies did not go"))
    with opened(tmp_path / "store" / RUN / "steps") as counts:
        result = fit(tmp_path, after(ready, regression(tmp_path, steps=STEPS)), gone)
    looking.join()
    nodes = {hosts.nodes[name].node_id for name in "ab"}
    assert result.steps == STEPS and saw == [nodes] and gone.fired_s is not None
    assert [count for name, count in counts.items() if name.startswith("chunk-")] == [1], counts
    told = lines(tmp_path)[before:]
    sent = {line["node"]: line["sources"] for line in told if line.get("checkpoint") == "Prefetch"}
    first = next(node for node, sources in sent.items() if sources == [[]])
    assert set(sent) == nodes and [sources for sources in sent.values() if sources != [[]]] == [[[first]]]
    restored = [line for line in told if line.get("event") == "Restored"]
    assert len(restored) == 2 and all(line["commit"]["step"] == HALF - 1 for line in restored)
    assert all(place.startswith("memory node ") for line in restored for place in line["places"]), restored


def test_live_workers_that_are_sent_back_wait_for_what_comes(hosts: Any, tmp_path: Path) -> None:
    """All ask for the step as soon as they stand at the door; it leaves the store once for them, too."""
    store = open_vault(str(tmp_path / "store"), RUN)
    told: list[tuple[int, subprocess.CompletedProcess[str], Counter[str]]] = []

    def send_back() -> None:
        wait_until(lambda: len(store.commits()) > 8, "nothing became durable")
        oldest = store.commits()[-1]  # in no slot any more
        command = [sys.executable, "-c", CLI, "rewind", RUN, "--to-step", str(oldest.commit.step)]
        with opened(tmp_path / "store" / RUN / "steps" / oldest.name) as counts:
            asked = subprocess.run([*command, "--address", hosts.address], capture_output=True, text=True, timeout=120)
        told.append((oldest.commit.step, asked, counts))

    sending = threading.Thread(target=send_back)
    begin = At(10, lambda state: sending.start())
    fit(tmp_path, regression(tmp_path, steps=800), begin, keep=elastic.Keep(last=1000), peers=0)
    sending.join()
    ((step, asked, counts),) = told
    assert asked.returncode == 0, asked.stderr
    restored = [line for line in lines(tmp_path) if line.get("event") == "Restored"]
    assert len(restored) == 2 and {line["commit"]["step"] for line in restored} == {step}
    assert [count for name, count in counts.items() if name.startswith("chunk-")] == [1], counts
    assert all(place.startswith("memory node ") for line in restored for place in line["places"]), restored
