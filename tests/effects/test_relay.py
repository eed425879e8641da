"""Effect. A relay tells whose news is whose, and each monitor is believed about its own node alone."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from elastic.actors.host_monitors import HostMonitors
from elastic.actors.relay import Heard, Relay
from elastic.actors.relays import Relays
from elastic.control import events as ev
from elastic.control.flight import STOPPED, Flying, Reading
from elastic.settings import Limits, RunSettings

ON_A = ev.NodeNotice(node="a", reason="preempted")
ON_B = ev.NodeNotice(node="b", reason="preempted")


class Monitor:
    """A host monitor as a relay calls it: answers what it was given, then nothing."""

    def __init__(self, *answers: Any) -> None:
        self.beat, self._answers = self, list(answers)

    def options(self, **options: Any) -> "Monitor":
        return self

    async def remote(self, period_s: float) -> Any:
        if not self._answers:
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Actor:
    """A relay as the driver calls it; each call is its name."""

    add = SimpleNamespace(remote=lambda node, monitor: "add")
    beat = SimpleNamespace(remote=lambda period_s: "beat")


def reading(worker: str) -> Reading:
    moves = {"step": 5, "phase": Flying.COMPUTING, "micro_batch": 0, "commits": 5, "still_s": 0.01, "state": "R"}
    return Reading(worker=worker, generation=1, **moves)


def test_a_relay_tells_news_with_the_node_that_tells_it() -> None:
    async def listen() -> list[Heard]:
        relay = Relay(0.01, hang_floor_s=0.5, stopped_timeout_s=0.2)
        await relay.add("a", Monitor(([ON_A], (reading("w0"),)), ([], (reading("w0"),)), ([ON_B], ())))
        await relay.add("b", Monitor(RayActorError()))
        return [await relay.beat(0.1) for _ in range(3)]

    heard = asyncio.run(listen())
    assert [news for one in heard for news in one.events] == [("a", ON_A), ("a", ON_B)]
    assert [node for one in heard for node in one.lost] == ["b"]
    assert {node for one in heard for node in one.beat.nodes} == {"a"}
    assert [one.worker for told in heard for one in told.beat.readings] == ["w0"], "one that moves is told once"


def test_a_process_that_is_stopped_is_told_of_at_once() -> None:
    async def listen() -> Heard:
        relay = Relay(0.01, hang_floor_s=0.5, stopped_timeout_s=0.2)
        await relay.add("a", Monitor(([], (replace(reading("w0"), still_s=0.5, state=STOPPED),))))
        return await asyncio.wait_for(relay.beat(600.0), 20.0)

    assert [one.still_s for one in asyncio.run(listen()).beat.readings] == [0.5]


def test_what_a_relay_passes_on_is_believed_as_if_the_monitor_had_told_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[tuple[Any, Any]] = []
    monkeypatch.setattr(Relays, "_start", lambda self, node: Actor())
    told: list[ev.Event] = []
    limits = Limits(relay_above_hosts=1)
    monitors = HostMonitors(
        told.append,
        lambda call, done, failed: called.append((call, done)),
        lambda node: None,
        RunSettings(run="r", limits=limits),
    )
    monitors._monitors = {"a": Monitor(), "b": Monitor()}
    monitors._listen("a")
    assert [call for call, _ in called] == ["add", "beat"]
    beat = ev.HostsHeard(nodes=("a",))
    _, heard = called[-1]
    heard(Heard(events=[("a", ON_B), ("a", ON_A)], beat=beat, lost=["a"]))
    assert told == [ON_A, beat, ev.MonitorLost(node="a")]
    assert "the monitor of a speaks for b" in caplog.text
    assert called[-1][0] == "beat" and len(called) == 3, "it is asked again"
