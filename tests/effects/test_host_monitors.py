"""Effect. The driver's side of the host monitors, without Ray: what it believes, resets, and has checked.

The monitors are the real ones, in this process; a stand-in for Ray carries the calls, in threads.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayError

from elastic.actors import host_monitors, relays
from elastic.actors.answers import Answers
from elastic.actors.host_monitors import HostMonitors
from elastic.actors.monitor import HostMonitor
from elastic.actors.relays import Relays
from elastic.control import events as ev
from elastic.control.envelopes import Heard
from elastic.control.flight import Flying, Reading
from elastic.control.hardware import FindingKind
from elastic.control.xid import Severity
from elastic.hosts import peers
from elastic.settings import Health, Limits, RunSettings, Scaling
from tests.effects.helpers import LONG_S, eventually
from tests.effects.nvml_standin import compiled, install, install_smi

SENSELESS = Health(sensing=False)


class Reference:
    """Looks like one of Ray."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


class Handle:
    """An actor: its methods run in threads, and answer with a reference."""

    def __init__(self, actor: Any, threads: ThreadPoolExecutor) -> None:
        self.actor, self._threads = actor, threads

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> Any:
            future = self._threads.submit(getattr(self.actor, method), *arguments)
            return Reference(future)

        call = SimpleNamespace(remote=remote)
        call.options = lambda **options: call
        return call


class Stopped:
    """A relay whose calls are noted, and never answered."""

    def __init__(self) -> None:
        self.add = SimpleNamespace(remote=lambda node, monitor, had: f"add {node}")
        self.beat = SimpleNamespace(remote=lambda period_s: "beat")


class Driven:
    """The monitors of a run, on nodes that have an address on the loopback, and what they have told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, health: Health = SENSELESS, **scaling: Any) -> None:
        self.told: list[ev.Event] = []
        self._threads = ThreadPoolExecutor(16)
        self.actors: list[Any] = []
        self._answers = Answers(lambda error: self.told.append(error))  # type: ignore[arg-type]
        nodes = [{"NodeID": name, "NodeManagerAddress": "127.0.0.1", "Alive": True} for name in ("a", "b")]
        nodes.append({"NodeID": "gone", "NodeManagerAddress": "127.0.0.1", "Alive": False})
        fake = SimpleNamespace(remote=lambda **options: self._made, nodes=lambda: nodes)
        monkeypatch.setattr(host_monitors, "ray", fake)
        monkeypatch.setattr(host_monitors, "NodeAffinitySchedulingStrategy", lambda node, soft: node)
        limits = Limits(heartbeat_polling_period_s=0.02)
        settings = RunSettings(run="r", scaling=Scaling(**scaling), limits=limits, health=health)
        self.monitors = HostMonitors(self.told.append, self._answers.then, lambda node: None, settings)

    def of(self, kind: type[ev.Event]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    def first(self, kind: type[ev.Event]) -> Any:
        return eventually(lambda: next(iter(self.of(kind)), None), kind.__name__)

    def lies(self, node: str, *news: ev.Event) -> None:
        """The monitor of a node tells of this, and is heard out."""
        for event in news:
            self.monitors.actor(node).actor._tell(event)
        heard = len(self.of(ev.HostBeat))
        eventually(lambda: len(self.of(ev.HostBeat)) > heard + 4, "it was heard since")

    def close(self) -> None:
        self._answers.close(LONG_S)
        for actor in self.actors:
            actor.close()
        self._threads.shutdown()

    def _made(self, actor_class: type[Any]) -> Any:
        def remote(node: str, heeds_cloud: bool, *arguments: Any) -> Handle:
            self.actors.append(actor_class(node, False, *arguments))
            return Handle(self.actors[-1], self._threads)

        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=remote))


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    driven = Driven(monkeypatch)
    yield driven
    driven.close()


def test_a_monitor_that_says_nothing_any_more_is_ended_and_one_that_begins_late_is_not(
    driven: Driven, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(host_monitors.ray, "kill", ended.append, raising=False)
    monkeypatch.setattr(host_monitors, "_HUNG_S", 0.5)
    is_stopped = {"a": False, "b": True}
    beat = HostMonitor.beat

    def silent(self: HostMonitor, timeout_s: float) -> Any:
        while is_stopped[self._node]:
            time.sleep(0.01)
        return beat(self, timeout_s)

    monkeypatch.setattr(HostMonitor, "beat", silent)
    driven.monitors.need("a")
    driven.monitors.need("b")

    def looks() -> list[Any]:
        driven.monitors.replace(lambda node: True)
        return ended

    try:
        driven.first(ev.HostBeat)
        is_stopped["a"] = True
        eventually(looks, "the monitor of node a is ended")
        assert ended == [driven.monitors.actor("a")], "nobody has heard b yet, which may take long to start"
        assert "of node a has said nothing" in caplog.text
    finally:
        is_stopped.update(a=False, b=False)


@pytest.mark.parametrize(("most", "asked"), [(2, ["a", "b"]), (1, [])], ids=["directly", "through relays"])
def test_all_that_no_relay_hears_are_asked_for_a_look(most: int, asked: list[str]) -> None:
    """Relays tell of their hosts when they are to."""

    def monitor(node: str) -> Any:
        look = SimpleNamespace(remote=lambda: node)
        return SimpleNamespace(look=SimpleNamespace(options=lambda concurrency_group: look))

    called: list[Any] = []
    settings = RunSettings(run="r", limits=Limits(relay_above_hosts=most))
    monitors = HostMonitors(print, lambda call, *_: called.append(call), print, settings)
    monitors._monitors = {node: monitor(node) for node in ("a", "b")}
    monitors.look()
    assert called == asked


def lost(node: str, *workers: str) -> ev.HardwareFinding:
    what = {"device": "GPU-1", "kind": FindingKind.GPU_LOST, "severity": Severity.NODE_MUST_GO, "detail": "is lost"}
    return ev.HardwareFinding(node=node, workers=workers, **what)


def test_a_monitor_that_lies_about_another_node_is_refused_once_and_heard_about_its_own(driven, tmp_path, caplog):
    for node in ("a", "b"):
        driven.monitors.need(node)
    driven.monitors.watch("b", "w1", 2**22 + 1, tmp_path / "page")
    own = lost("a")
    with caplog.at_level(logging.WARNING, logger="elastic"):
        driven.lies("a", lost("b"), lost("a", "w1"), ev.NodeNotice(node="b", reason="."), ev.StopAsked(reason="."), own)
        driven.lies("a", lost("b"))
    findings = [event for event in driven.of(ev.HardwareFinding) if event.kind is FindingKind.GPU_LOST]
    assert findings == [own]
    assert not driven.of(ev.NodeNotice) and not driven.of(ev.StopAsked) and not driven.of(Exception)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "refused: the monitor of a speaks for b",
        "refused: the monitor of a speaks for b",  # a notice, this time: once for each kind
        "refused: the monitor of a tells of StopAsked, which is not its to tell",
    ]
    assert {event.node for event in driven.of(ev.HostBeat)} == {"a", "b"}


def test_a_relay_that_is_stopped_is_ended_and_none_of_the_monitors_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep news that come once, and the next relay asks for them."""
    ended: list[Any] = []
    for module in (host_monitors, relays):
        monkeypatch.setattr(module, "_HUNG_S", 0.3)
        monkeypatch.setattr(module, "ray", SimpleNamespace(kill=ended.append))
    called: list[tuple[Any, Any, Any]] = []
    monkeypatch.setattr(Relays, "_start", lambda self, node: Stopped())
    settings = RunSettings(run="r", limits=Limits(relay_above_hosts=1))
    monitors = HostMonitors(lambda event: None, lambda *call: called.append(call), lambda node: None, settings)
    monitors._monitors = {"a": object(), "b": object()}
    for node in ("a", "b"):
        monitors._listen(node)

    def looks() -> list[Any]:
        monitors.replace(lambda node: True)
        return ended

    asked = next(heard for call, heard, _ in called if call == "beat")
    asked(Heard(beat=ev.HostsHeard(nodes=("a", "b"))))  # and this is the last that is heard
    eventually(lambda: len(looks()) >= 2, "the relay is ended, and the next one, which is stopped as well")
    assert all(isinstance(one, Stopped) for one in ended)
    assert [call for call, *_ in called].count("add a") == 1 + len(ended)


def test_a_monitor_that_answers_with_garbage_is_refused_once_and_heard_when_it_says_something(
    driven: Driven, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    garbage: list[Any] = [None, "beat", ([], None), ([], (), ())]
    beat = HostMonitor.beat
    monkeypatch.setattr(HostMonitor, "beat", lambda self, wait_s: garbage.pop(0) if garbage else beat(self, wait_s))
    driven.monitors.need("a")
    driven.monitors.actor("a").actor._notice("preempted")

    def looks() -> list[ev.NodeNotice]:
        driven.monitors.replace(lambda node: True)
        return driven.of(ev.NodeNotice)

    assert eventually(looks, "its news are there") == [ev.NodeNotice(node="a", reason="preempted")]
    assert not garbage and not driven.of(Exception) and not driven.of(ev.MonitorLost)
    said = [text for text in caplog.messages if text.startswith("refused")]
    assert said == ["refused: the monitor of a answers with NoneType, which is no beat"]
    driven.lies("a")  # it is asked by one, and goes on to be


def test_a_monitor_that_answers_with_nothing_but_garbage_is_ended(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr(host_monitors.ray, "kill", ended.append, raising=False)
    monkeypatch.setattr(host_monitors, "_HUNG_S", 0.2)
    monkeypatch.setattr(HostMonitor, "beat", lambda self, wait_s: "garbage")
    driven.monitors.need("a")

    def looks() -> list[Any]:
        driven.monitors.replace(lambda node: True)
        return ended

    assert eventually(looks, "the monitor of node a is ended") == [driven.monitors.actor("a")]
    assert not driven.of(ev.HostBeat)


def test_a_reading_of_garbage_is_refused_once_and_costs_no_other(
    driven: Driven, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moves = {"step": 5, "phase": Flying.COMPUTING, "micro_batch": 0, "commits": 5, "still_s": 0.01, "state": "R"}
    right = Reading(worker="w0", generation=1, **moves)
    monkeypatch.setattr(HostMonitor, "readings", lambda self: (replace(right, phase=7), right, None))
    driven.monitors.need("a")
    own = lost("a")
    driven.lies("a", ev.HostBeat(node="a", readings=(None,)), own)  # type: ignore[arg-type]
    assert {beat.readings for beat in driven.of(ev.HostBeat)} == {(right,)}
    assert own in driven.told and not driven.of(Exception)
    said = [text for text in caplog.messages if text.startswith("refused")]
    assert said[0] == "refused: 2 of 3 readings of the monitor of a are none"
    assert len(said) == 2 and said[1].startswith("refused: HostBeat of the monitor of a: readings=(None,)")


def test_what_a_monitor_answers_to_a_command_proves_nothing_if_it_is_garbage(
    driven: Driven, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for method in ("fence", "inspect", "reset_gpus", "check_health"):
        monkeypatch.setattr(HostMonitor, method, lambda self, *asked: 7)
    driven.monitors.need("a")
    (check,) = eventually(lambda: checks(driven), "it was checked")
    why_not = "the monitor of a answers with int, which is no text"
    assert check[1] is Severity.NODE_MUST_GO and "answers with int" in check[2]
    proofs: list[str] = []
    driven.monitors.fence("a", "w0", proofs.append)
    driven.monitors.inspect("a", "w0")
    driven.monitors.reset_gpus("a", ("0",), LONG_S)
    assert driven.first(ev.StackDumped).stack == driven.first(ev.GpuReset).error == why_not
    assert eventually(lambda: proofs, "it is told that there is no proof") == [""]
    assert f"refused: {why_not}" in caplog.messages and not driven.of(Exception)


def test_a_fence_waits_for_the_stacks_that_were_asked_for_and_have_not_come(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []
    may_end = threading.Event()
    monkeypatch.setattr(HostMonitor, "fence", lambda self, worker, stack_s: asked.append((worker, stack_s)) or "proof")
    monkeypatch.setattr(HostMonitor, "inspect", lambda self, worker: str(may_end.wait(LONG_S)))
    driven.monitors.need("a")
    driven.monitors.inspect("a", "w0")
    proofs: list[str] = []
    for worker in ("w0", "w1"):
        driven.monitors.fence("a", worker, proofs.append)
    may_end.set()
    driven.first(ev.StackDumped)
    driven.monitors.fence("a", "w0", proofs.append)
    eventually(lambda: len(proofs) == 3, "all are fenced")
    assert asked == [("w0", 1.0), ("w1", 0.0), ("w0", 0.0)]


# --- health, measured between nodes -----------------------------------------------------------------------------------


def measured(monkeypatch: pytest.MonkeyPatch, bytes_per_s: float) -> Driven:
    return Driven(monkeypatch, Health(sensing=False, peer_bytes_per_s=bytes_per_s))


def checks(driven: Driven) -> list[tuple[str, Severity, str]]:
    found = driven.of(ev.HardwareFinding)
    return [(one.node, one.severity, one.detail) for one in found if one.kind is FindingKind.HEALTH]


def test_a_node_that_was_alone_is_measured_once_there_is_another_one(monkeypatch):
    driven = measured(monkeypatch, 1.0)
    lent, lend = [], peers.lend
    monkeypatch.setattr("elastic.actors.monitor.lend", lambda host: lent.append(host) or lend(host))
    try:
        driven.monitors.need("a")
        driven.first(ev.HardwareFinding)
        assert lent == [], "there is nobody yet"
        driven.monitors.need("b")
        eventually(lambda: len(checks(driven)) == 3, "b is measured, and a is made up for")
        assert [node for node, _, _ in checks(driven)] == ["a", "b", "a"]
        assert {severity for _, severity, _ in checks(driven)} == {Severity.INFORMATIONAL}
        assert lent == ["127.0.0.1"] * 2
        driven.lies("a")  # time passes, and nothing is measured again
        assert len(checks(driven)) == 3
    finally:
        driven.close()


def test_bytes_that_come_too_slowly_keep_a_node_out_and_prove_nothing_against_the_other(monkeypatch):
    driven = measured(monkeypatch, 1e15)
    try:
        driven.monitors.need("a")
        driven.first(ev.HardwareFinding)
        driven.monitors.need("b")
        eventually(lambda: len(checks(driven)) == 2, "b is measured")
        _, (node, severity, detail) = checks(driven)
        assert (node, severity) == ("b", Severity.NODE_MUST_GO)
        assert detail.startswith("what comes from 127.0.0.1: ") and "Health.peer_bytes_per_s=1e+15" in detail
        driven.lies("a")
        assert len(checks(driven)) == 2
    finally:
        driven.close()


def test_a_lender_that_is_lost_says_nothing_of_who_would_borrow(monkeypatch):
    """It is looked at without, and made up for once there is another one."""
    driven = measured(monkeypatch, 1.0)
    asked: list[str] = []

    def lost(host: str) -> int:
        asked.append(host)
        raise RayActorError

    monkeypatch.setattr("elastic.actors.monitor.lend", lost)
    try:
        driven.monitors.need("a")
        driven.first(ev.HardwareFinding)
        driven.monitors.need("b")
        eventually(lambda: len(checks(driven)) == 2, "b is looked at")
        assert [(node, severity) for node, severity, _ in checks(driven)] == [
            ("a", Severity.INFORMATIONAL),
            ("b", Severity.INFORMATIONAL),
        ]
        assert asked == ["127.0.0.1"]
    finally:
        driven.close()


def test_a_check_whose_answer_is_lost_is_made_again_by_the_same_monitor(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contact was gone for a moment: where a relay hears the monitor, nobody would ever replace it."""
    monkeypatch.setattr("elastic.actors.admission._AGAIN_S", 0.0)
    lost: list[Exception] = [ActorUnavailableError("the connection was reset", None)]

    def check(self: HostMonitor, *_: Any) -> list[str]:
        if lost:
            raise lost.pop()
        return []

    monkeypatch.setattr(HostMonitor, "check_health", check)
    driven.monitors.need("a")

    def checked() -> list[Any]:
        driven.monitors.replace(lambda node: True)
        return driven.of(ev.HardwareFinding)

    (finding,) = eventually(checked, "it is checked again")
    assert (finding.severity, lost, len(driven.actors)) == (Severity.INFORMATIONAL, [], 1)


def nodes_are_not_told(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Ray's head is away for some questions, which are those that are left."""
    away, there = [ConnectionError("the head is away"), RayError()], host_monitors.ray.nodes

    def nodes() -> Any:
        if away:
            raise away.pop()
        return there()

    monkeypatch.setattr(host_monitors.ray, "nodes", nodes)
    return away


@pytest.mark.parametrize("is_checked", [True, False], ids=["after its check", "within its check"])
def test_a_node_that_has_failed_is_checked_again_though_its_monitor_was_lost_and_it_has_no_workers(
    driven: Driven, monkeypatch: pytest.MonkeyPatch, is_checked: bool
) -> None:
    monkeypatch.setattr(host_monitors, "_REPLACE_S", 0.0)
    is_lost, beat = threading.Event(), HostMonitor.beat

    def is_first(monitor: HostMonitor) -> bool:
        return monitor is driven.actors[0]

    def until_lost(self: HostMonitor, timeout_s: float) -> Any:
        if is_first(self) and is_lost.is_set():
            raise RayActorError
        return beat(self, timeout_s)

    def check(self: HostMonitor, *_: Any) -> list[str]:
        if not is_first(self):
            return []
        if is_checked:
            return ["no memory"]
        is_lost.wait(LONG_S)
        raise RayActorError

    def looks() -> frozenset[str]:
        for event in driven.of(ev.HardwareFinding)[len(heeded) :]:
            heeded.append(event)
            driven.monitors.admission.heed(event)
        driven.monitors.replace(lambda node: False)
        return driven.monitors.admission.shunned

    heeded: list[ev.HardwareFinding] = []
    away = nodes_are_not_told(monkeypatch)
    monkeypatch.setattr(HostMonitor, "beat", until_lost)
    monkeypatch.setattr(HostMonitor, "check_health", check)
    driven.monitors.need("a")
    driven.first(ev.HostBeat)
    if is_checked:
        assert eventually(looks, "it has failed its check") == {"a"}
    is_lost.set()
    driven.first(ev.MonitorLost)
    eventually(lambda: not looks() and len(checks(driven)) > is_checked, "another monitor has found it healthy")
    assert checks(driven)[-1] == ("a", Severity.INFORMATIONAL, "healthy")
    assert len(driven.actors) == 2 and not away


def test_a_node_that_is_gone_has_no_monitor_started_to_be_checked_again(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_monitors, "_REPLACE_S", 0.0)
    monkeypatch.setattr(HostMonitor, "check_health", lambda self, *_: ["no memory"])

    def lost(self: HostMonitor, timeout_s: float) -> Any:
        eventually(lambda: checks(driven), "it has failed its check")
        raise RayActorError

    monkeypatch.setattr(HostMonitor, "beat", lost)
    driven.monitors.need("gone")
    driven.first(ev.MonitorLost)
    for _ in range(3):
        driven.monitors.replace(lambda node: False)
    assert len(driven.actors) == 1 and driven.monitors.actor("gone") is None


@pytest.mark.parametrize(
    ("script", "found"),
    [("", "healthy"), ("raise SystemExit('CUDA error')", "a matrix product failed (code 1): CUDA error")],
    ids=["right", "wrong"],
)
def test_matrices_are_multiplied_where_that_is_asked_for(monkeypatch, tmp_path, script, found):
    """With a little module in the place of the real one, which loads torch."""
    package = tmp_path / "elastic" / "hosts"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "health.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{script}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    driven = Driven(monkeypatch, Health(sensing=False, matmul=True))
    try:
        driven.monitors.need("a")
        assert driven.first(ev.HardwareFinding).detail == found
        assert (tmp_path / "ran").exists()
    finally:
        driven.close()


@pytest.mark.parametrize(
    ("scaling", "detail"),
    [
        ({}, "healthy"),
        ({"use_gpu": True}, "the driver shows 0 GPUs, and workers are given 1 on a node"),
        ({"use_gpu": True, "workers_per_replica": 8, "num_nodes_per_dp": 2}, "workers are given 4 on a node"),
        ({"resources_per_worker": {"GPU": 0.5, "CPU": 1}}, "workers are given 1 on a node"),
        ({"use_gpu": True, "resources_per_worker": {"CPU": 1}}, "healthy"),
    ],
    ids=["none wanted", "one a worker", "four a node", "half a one", "told by resources"],
)
def test_a_node_without_the_gpus_that_its_workers_are_given_fails_its_check(monkeypatch, tmp_path, scaling, detail):
    install(compiled(tmp_path), tmp_path, monkeypatch, count=0)
    driven = Driven(monkeypatch, Health(period_s=0.05), **scaling)
    try:
        driven.monitors.need("a")
        checked = lambda: next((one for one in driven.of(ev.HardwareFinding) if one.kind is FindingKind.HEALTH), None)  # noqa: E731
        finding = eventually(checked, "it was checked")
        assert detail in finding.detail
        assert finding.severity is (Severity.INFORMATIONAL if detail == "healthy" else Severity.NODE_MUST_GO)
    finally:
        driven.close()


# --- GPUs that are reset ----------------------------------------------------------------------------------------------


def test_gpus_are_reset_by_the_monitor_of_their_node_and_the_answer_comes_as_an_event(driven, monkeypatch, tmp_path):
    told = tmp_path / "arguments"
    install_smi(tmp_path, f'printf "%s\\n" "$@" > {told}')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    driven.monitors.need("a")
    driven.monitors.reset_gpus("a", ("0", "1"), LONG_S)
    assert driven.first(ev.GpuReset) == ev.GpuReset(node="a", gpus=("0", "1"))
    assert told.read_text().splitlines() == ["--gpu-reset", "-i", "0,1"]
    driven.monitors.reset_gpus("b", ("0",), LONG_S)
    assert driven.of(ev.GpuReset)[1] == ev.GpuReset(node="b", gpus=("0",), error="the node has no host monitor")
    install_smi(tmp_path, "echo in use >&2; exit 3")
    driven.monitors.reset_gpus("a", ("0",), LONG_S)
    eventually(lambda: len(driven.of(ev.GpuReset)) == 3, "it has failed")
    assert driven.of(ev.GpuReset)[2].error == "nvidia-smi ended with code 3: in use"


def test_all_nodes_together_have_one_deadline_to_end_their_workers(driven, monkeypatch, caplog):
    """Many that are gone would otherwise take the length of the deadline each."""

    def get(refs: list[Any], timeout: float) -> list[Any]:
        ready, late = wait(refs, num_returns=len(refs), timeout=timeout)
        if late:
            raise GetTimeoutError
        return [ref.future().result() for ref in ready]

    def wait(refs: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert num_returns == len(refs) > 0
        done = futures.wait([ref.future() for ref in refs], timeout).done
        return [ref for ref in refs if ref.future() in done], [ref for ref in refs if ref.future() not in done]

    class Monitor:
        def __init__(self, *alive: int) -> None:
            self._alive = alive

        def end_all(self, *_: Any) -> list[int]:
            if not self._alive:
                over.wait(LONG_S)
            return list(self._alive)

        def logged(self) -> Any:
            return None  # garbage, which must not fail a run that has ended

    over = threading.Event()
    monkeypatch.setattr(host_monitors, "ray", SimpleNamespace(get=get, wait=wait))
    monkeypatch.setattr(host_monitors, "_END_S", 3.0)
    with ThreadPoolExecutor(16) as threads, caplog.at_level(logging.WARNING, logger="elastic"):
        driven.monitors.end_all("pages")
        actors = {f"gone-{number}": Handle(Monitor(), threads) for number in range(5)}
        actors["there"] = Handle(Monitor(7), threads)
        monkeypatch.setattr(driven.monitors, "_monitors", actors)
        began_s = time.monotonic()
        driven.monitors.end_all("pages")
        took_s = time.monotonic() - began_s
        over.set()
    assert 3.0 <= took_s < 12.0, "one after the other"
    assert caplog.messages == ["processes that could not be ended: [7]"]
