"""Effect. A relay tells whose news is whose, and each monitor is believed about its own node alone."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from elastic.actors.host_monitors import HostMonitors
from elastic.actors.monitor import HostMonitor
from elastic.actors.relay import Relay
from elastic.actors.relays import Relays
from elastic.control import events as ev
from elastic.control.envelopes import Heard
from elastic.control.flight import STOPPED, Flying, Reading
from elastic.settings import Limits, RunSettings

pytestmark = pytest.mark.host

ON_A = ev.NodeNotice(node="a", reason="preempted")
ON_B = ev.NodeNotice(node="b", reason="preempted")


class Monitor:
    """A host monitor as a relay calls it: answers what it was given, then nothing; a text is garbage."""

    def __init__(self, *answers: Any) -> None:
        self.tell, self._answers, self._number = self, list(answers), 0
        self.asked: list[tuple[int, int]] = []

    def options(self, **options: Any) -> "Monitor":
        return self

    async def remote(self, period_s: float, had: int, passed: int) -> Any:
        self.asked.append((had, passed))
        if not self._answers:
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return answer
        news, readings = answer
        self._number += len(news)
        return self._number, news, readings


class RealMonitor:
    """A real host monitor, asked in threads as Ray asks an actor."""

    def __init__(self, monitor: HostMonitor) -> None:
        self.tell, self._monitor = self, monitor

    def options(self, **options: Any) -> "RealMonitor":
        return self

    async def remote(self, period_s: float, had: int, passed: int) -> Any:
        return await asyncio.to_thread(self._monitor.tell, period_s, had, passed)


class Actor:
    """A relay as the driver calls it; each call is its name, and what of its arguments is compared."""

    def __init__(self) -> None:
        self.add = SimpleNamespace(remote=lambda node, monitor, had: f"add {node} from {had}")
        self.beat = SimpleNamespace(remote=lambda period_s: "beat")


@pytest.fixture
def monitor() -> Iterator[HostMonitor]:
    monitor = HostMonitor("a")
    yield monitor
    monitor.close()


def reading(worker: str) -> Reading:
    moves = {"step": 5, "phase": Flying.COMPUTING, "micro_batch": 0, "commits": 5, "still_s": 0.01, "state": "R"}
    return Reading(worker=worker, generation=1, **moves)


def test_a_relay_tells_news_with_the_node_that_tells_it() -> None:
    async def listen() -> list[Heard]:
        relay = Relay(0.01, hang_floor_s=0.5, stopped_timeout_s=0.2)
        await relay.add("a", Monitor(([ON_A], (reading("w0"),)), ([], (reading("w0"),)), ([ON_B], ())), 0)
        await relay.add("b", Monitor(RayActorError()), 0)
        return [await relay.beat(0.1) for _ in range(3)]

    heard = asyncio.run(listen())
    assert [news for one in heard for news in one.events] == [("a", ON_A), ("a", ON_B)]
    assert [node for one in heard for node in one.lost] == ["b"]
    assert {node for one in heard for node in one.beat.nodes} == {"a"}
    assert [one.worker for told in heard for one in told.beat.readings] == ["w0"], "one that moves is told once"


def test_a_process_that_is_stopped_is_told_of_at_once() -> None:
    async def listen() -> Heard:
        relay = Relay(0.01, hang_floor_s=0.5, stopped_timeout_s=0.2)
        await relay.add("a", Monitor(([], (replace(reading("w0"), still_s=0.5, state=STOPPED),))), 0)
        return await asyncio.wait_for(relay.beat(600.0), 20.0)

    assert [one.still_s for one in asyncio.run(listen()).beat.readings] == [0.5]


def test_what_dies_with_a_relay_the_next_one_is_told_again_and_nothing_twice(monitor: HostMonitor) -> None:
    async def heard(relay: Relay) -> Heard:
        while not (told := await asyncio.wait_for(relay.beat(0.05), 20.0)).events:
            pass
        return told

    async def started(had: int) -> Relay:
        relay = Relay(0.05, hang_floor_s=0.5, stopped_timeout_s=0.2)
        await relay.add("a", RealMonitor(monitor), had)
        return relay

    async def live_and_die() -> list[Heard]:
        monitor._notice("preempted")
        dying = await started(0)
        lost = await heard(dying)  # and the driver never gets that answer
        monitor._notice("again")
        while len(dying._told.events) < 1:  # it has taken this one too
            await asyncio.sleep(0.01)
        second = await started(0)
        passed = await heard(second)
        third = await started(passed.numbers["a"])  # the driver had the second one's answer
        monitor._notice("at last")
        return [lost, passed, await heard(third)]

    lost, passed, later = asyncio.run(live_and_die())
    assert [event.reason for _, event in lost.events] == ["preempted"]
    assert [event.reason for _, event in passed.events] == ["preempted", "again"]
    assert [event.reason for _, event in later.events] == ["at last"]


def test_news_are_forgotten_once_the_driver_asks_for_more(monitor: HostMonitor) -> None:
    async def listen() -> int:
        relay = Relay(0.05, hang_floor_s=0.5, stopped_timeout_s=0.2)
        await relay.add("a", RealMonitor(monitor), 0)
        monitor._notice("preempted")
        while not (told := await asyncio.wait_for(relay.beat(0.05), 20.0)).events:
            pass
        held = len(monitor._news)
        await relay.beat(0.05)
        while monitor._news:
            await asyncio.sleep(0.01)
        assert told.numbers == {"a": 1}
        return held

    assert asyncio.run(listen()) == 1, "it may still be lost on its way"


def test_a_new_monitor_of_a_node_counts_anew() -> None:
    new = Monitor(([ON_A], ()))

    async def listen() -> list[Heard]:
        relay = Relay(0.01, hang_floor_s=0.5, stopped_timeout_s=0.2)
        await relay.add("a", Monitor(([ON_A] * 5, ()), RayActorError()), 0)
        first = await relay.beat(1.0)
        await relay.add("a", new, 0)
        return [first, await relay.beat(1.0)]

    first, second = asyncio.run(listen())
    assert (first.numbers, first.lost) == ({"a": 5}, ["a"])
    assert (second.events, second.numbers) == ([("a", ON_A)], {"a": 1})
    assert new.asked[0] == (0, 0), "or it would forget news that nobody has"


def test_what_a_relay_passes_on_is_believed_as_if_the_monitor_had_told_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[tuple[Any, Any, Any]] = []
    monkeypatch.setattr(Relays, "_start", lambda self, node: Actor())
    told: list[ev.Event] = []
    limits = Limits(relay_above_hosts=1)
    monitors = HostMonitors(
        told.append,
        lambda *call: called.append(call),
        lambda node: None,
        RunSettings(run="r", limits=limits),
    )
    monitors._monitors = {"a": Monitor(), "b": Monitor()}
    monitors._listen("a")
    assert [call for call, *_ in called] == ["add a from 0", "beat"]
    beat = ev.HostsHeard(nodes=("a",))
    _, heard, _ = called[-1]
    heard(Heard(events=[("a", ON_B), ("a", ON_A)], beat=beat, lost=["a"], numbers={"a": 2}))
    assert told == [ON_A, beat, ev.MonitorLost(node="a")]
    assert "the monitor of a speaks for b" in caplog.text
    assert called[-1][0] == "beat" and len(called) == 3, "it is asked again"


def test_a_monitor_that_answers_with_garbage_is_as_one_that_is_silent_and_is_asked_again() -> None:
    monitor = Monitor("garbage", "garbage")

    async def listen() -> Heard:
        relay = Relay(0.01, hang_floor_s=0.5, stopped_timeout_s=0.2)
        await relay.add("a", monitor, 0)
        while len(monitor.asked) < 3:
            await asyncio.sleep(0.01)
        return await relay.beat(0.01)

    heard = asyncio.run(listen())
    assert heard == Heard(refused={"a": "the monitor of a answers with tuple(str), which is no beat"})
    assert monitor.asked == [(0, 0)] * 3


def test_a_reading_of_garbage_costs_neither_news_nor_other_readings() -> None:
    async def listen() -> Heard:
        relay = Relay(0.01, hang_floor_s=0.5, stopped_timeout_s=0.2)
        await relay.add("a", Monitor("garbage", ([ON_A], ("garbage", reading("w0")))), 0)
        return await asyncio.wait_for(relay.beat(600.0), 20.0)

    heard = asyncio.run(listen())
    assert (heard.events, heard.numbers, heard.beat.nodes) == ([("a", ON_A)], {"a": 1}, ("a",))
    assert [one.worker for one in heard.beat.readings] == ["w0"]
    assert heard.refused == {"a": "1 of 2 readings of the monitor of a are none"}


class Driven:
    """Relays as the driver has them, of one host each; what they are called with, and what has come of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called: list[tuple[Any, Any, Any]] = []
        self.told: list[Any] = []
        self.killed: list[Any] = []
        self.hung: list[str] = []
        monkeypatch.setattr(Relays, "_start", lambda self, node: Actor())
        monkeypatch.setattr("elastic.actors.relays.ray", SimpleNamespace(kill=self.killed.append))
        self.relays = Relays(
            lambda node, event: self.told.append(event),
            self.told.append,
            lambda *call: self.called.append(call),
            self.told.append,
            self.hung.append,
            Limits(hosts_per_relay=1),
        )
        for node in ("a", "b"):
            self.relays.add(node, object())
        self.hear_a, self.hear_b = (heard for call, heard, _ in self.called if call == "beat")

    @property
    def calls(self) -> list[Any]:
        return [call for call, *_ in self.called]


def test_a_relay_that_speaks_for_hosts_of_another_is_refused_once_and_nothing_of_theirs_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driven = Driven(monkeypatch)
    both = ev.HostsHeard(nodes=("a", "b"))
    lie = Heard(events=[("b", ON_B), ("a", ON_A)], beat=both, lost=["b"], numbers={"a": 1, "b": 5})
    driven.hear_a(lie)
    assert driven.told == [ON_A, ev.HostsHeard(nodes=("a",))], "b is neither heard nor lost"
    driven.called[-1][1](Heard(beat=both, lost=["b"]))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4 and all(one.startswith("refused: a relay tells ") and "'b'" in one for one in said)
    driven.told.clear()
    driven.hear_b(Heard(events=[("b", ON_B)], beat=ev.HostsHeard(nodes=("b",)), numbers={"b": 1}))
    assert driven.told == [ON_B, ev.HostsHeard(nodes=("b",))]
    driven.called[-1][2](RayActorError())
    assert driven.calls[-2:] == ["add b from 1", "beat"], "the next one asks for what has not come yet"


def test_a_relay_that_nobody_understands_is_refused_once_and_another_one_is_told_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driven, begun_s = Driven(monkeypatch), time.monotonic()
    driven.hear_b(Heard(events=[("b", ON_B)], numbers={"b": 1}))
    told, asked = list(driven.told), len(driven.called)
    driven.called[-1][1](("garbage", None))
    assert (driven.told, len(driven.called)) == (told, asked), "it is neither heard nor asked"
    assert caplog.messages == ["refused: a relay answers with tuple(str, NoneType), which is not what relays tell"]
    driven.hear_a(Heard())  # the other one goes on
    looked_s = begun_s
    while len(driven.killed) < 2 and looked_s < begun_s + 70.0:
        looked_s += 1.0
        driven.relays.replace_hung(looked_s)
    assert "add b from 1" in driven.calls[-4:]
    driven.told.clear()
    driven.called[driven.calls.index("add b from 1") + 1][1](Heard(events=[("b", ON_A)], numbers={"b": 2}))
    assert driven.told == [ON_A]


def test_a_relay_that_does_not_answer_is_replaced_and_what_it_says_then_is_no_news(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[tuple[Any, Any, Any]] = []
    killed: list[Any] = []
    told: list[Any] = []
    monkeypatch.setattr(Relays, "_start", lambda self, node: Actor())
    monkeypatch.setattr("elastic.actors.relays.ray", SimpleNamespace(kill=killed.append))
    relays = Relays(
        lambda node, event: told.append(event),
        told.append,
        lambda *call: called.append(call),
        told.append,
        told.append,
        Limits(),
    )
    relays.add("a", object())
    heard = called[-1][1]
    heard(Heard(events=[("a", ON_A)], numbers={"a": 1}))
    asked_s = time.monotonic()
    late = called[-1][1]
    relays.replace_hung(asked_s + 1000.0)
    assert not killed, "nobody has looked"
    for looked_s in range(1001, 1050):
        relays.replace_hung(asked_s + looked_s)
    assert not killed
    looked_s = 1050.0
    while not killed and looked_s < 1070.0:
        relays.replace_hung(asked_s + looked_s)
        looked_s += 1.0
    assert len(killed) == 1 and [call for call, *_ in called[-2:]] == ["add a from 1", "beat"]
    late(Heard(events=[("a", ON_B)], beat=ev.HostsHeard(nodes=("a",)), lost=["a"], numbers={"a": 2}))
    called[-1][1](Heard(events=[("a", ON_B)], numbers={"a": 2}))
    assert told == [ON_A, ON_B], "once"
    assert "has not answered for 60 s" in caplog.text
    assert killed[0] not in relays._silences and killed[0] not in relays._heard_by, "it is asked no more"


def test_a_monitor_that_says_nothing_to_a_relay_that_answers_is_ended_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic.actors.relays._SILENT_S", 0.05)
    driven = Driven(monkeypatch)
    driven.hear_a(Heard())
    time.sleep(0.1)
    driven.called[-1][1](Heard())
    assert not driven.hung, "nobody has heard it yet: it may take long to start"
    driven.called[-1][1](Heard(beat=ev.HostsHeard(nodes=("a",))))
    for _ in range(3):
        time.sleep(0.1)
        driven.called[-1][1](Heard())
    assert driven.hung == ["a"]


def test_the_next_relay_begins_where_the_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Any, Any, Any]] = []
    monkeypatch.setattr(Relays, "_start", lambda self, node: Actor())
    relays = Relays(
        lambda node, event: None,
        lambda beat: None,
        lambda *call: called.append(call),
        lambda node: None,
        lambda node: None,
        Limits(),
    )
    relays.add("a", object())
    relays.add("b", object())
    heard = called[1][1]
    heard(Heard(events=[("a", ON_A)] * 3, numbers={"a": 3}))
    failed = called[-1][2]
    failed(RayActorError())
    assert [call for call, *_ in called[-3:]] == ["add a from 3", "beat", "add b from 0"]
    relays.add("a", object())
    assert called[-1][0] == "add a from 0", "another monitor"
