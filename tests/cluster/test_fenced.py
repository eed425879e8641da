"""Effect. A worker that was fenced while the monitor of its node is out of reach: its driver leaves its lease alone."""

import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group

import elastic
from elastic.actors.former import Heirloom
from elastic.actors.ray_fleet import RayFleet
from elastic.control import events as ev
from elastic.control.adoption import Adopted
from elastic.control.worker_protocol import Stage, WorkerState
from elastic.settings import RunSettings
from tests.cluster.ray_processes import found

pytestmark = pytest.mark.timeout(400)
WITHIN_S = 100.0
LIMITS = elastic.Limits(lease_s=2.0, freeze_timeout_s=1.0)


class Asked:
    """Says nothing, and counts how often it was asked for news."""

    def __init__(self) -> None:
        self._times = 0

    def do(self, method: str, incarnation: int, seen: int, wait_s: float, told: Any) -> tuple[int, list[ev.Event]]:
        assert method == "news"
        self._times += 1
        time.sleep(wait_s)
        return seen, []

    def times(self) -> int:
        return self._times


def nothing(session: Any) -> None:
    """Never called: no worker is started."""


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"{what}: never"
        time.sleep(0.05)


def test_it_is_asked_for_nothing_any_more_which_would_renew_its_lease(hosts: Any) -> None:
    group = placement_group([{"CPU": 1}], name="elastic-fenced@1-gang0x1")
    options: dict[str, Any] = {"concurrency_groups": {"events": 1, "control": 1}}
    actor: Any = ray.remote(**options)(Asked).remote()
    events: list[ev.Event] = []
    crashes: list[Exception] = []
    others = set(found("host_monitor"))

    def asked() -> int:
        return int(ray.get(actor.times.options(concurrency_group="control").remote(), timeout=WITHIN_S))

    with socket.create_server(("127.0.0.1", 0)) as door:  # whoever knocks is let in, so nothing proves that it ended
        host, port = door.getsockname()
        left = Adopted(
            worker="w0",
            gang=0,
            shard=0,
            pid=0,
            was=Stage.PARKED,
            state=WorkerState(),
            node=hosts.nodes["a"].node_id,
            host=host,
            port=port,
        )
        fleet = RayFleet(RunSettings(run="fenced", limits=LIMITS), nothing, 0, events.append, crashes.append)
        monitor = 0
        try:
            fleet.adopt(Heirloom((left,), {"w0": actor}, {"w0": 1}, {}, {0: group}, {}))
            wait_for("a second question for news", lambda: asked() >= 2)
            wait_for("a beat of the monitor", lambda: any(isinstance(one, ev.HostBeat) for one in events))
            [monitor] = set(found("host_monitor")) - others
            os.kill(monitor, signal.SIGSTOP)
            fleet.fence("w0")
            before = asked()
            time.sleep(2 * LIMITS.lease_s)
            assert asked() <= before + 1, "the question that was under way, and no other"
            assert not [one for one in events if isinstance(one, ev.WorkerDead)]
        finally:
            if monitor:
                os.kill(monitor, signal.SIGCONT)
            fleet.shutdown()
    assert not crashes
