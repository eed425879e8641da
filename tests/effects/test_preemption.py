"""Effect. The cloud's notice, from a metadata server as Compute Engine has it."""

import socket

import pytest

from elastic.actors.monitor import HostMonitor
from elastic.actors.preemption import PreemptionWatch, pending_loss
from elastic.control import events as ev
from tests.effects.helpers import LONG_S, eventually
from tests.effects.metadata import metadata_server

pytestmark = pytest.mark.host


@pytest.fixture
def server(monkeypatch):
    with metadata_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.host)
        yield server


@pytest.fixture
def host(server):
    return server.host


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ({}, ""),
        ({"maintenance-event": "MIGRATE_ON_HOST_MAINTENANCE"}, ""),
        ({"preempted": "TRUE"}, "the cloud takes the machine away (preempted: TRUE)"),
        (
            {"maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"},
            "the cloud takes the machine away (maintenance-event: TERMINATE_ON_HOST_MAINTENANCE)",
        ),
    ],
)
def test_what_the_server_says(server, host, says, reason):
    server.says |= says
    assert pending_loss(host) == reason


def test_an_entry_that_the_server_does_not_know_is_no_notice(server, host):
    server.says.clear()
    assert pending_loss(host) == ""


def test_a_notice_is_told_once(server):
    told = []
    watch = PreemptionWatch(told.append, poll_s=0.01)
    server.says["preempted"] = "TRUE"
    eventually(lambda: watch.is_over, "the watch has told")
    assert told == ["the cloud takes the machine away (preempted: TRUE)"]


def test_a_server_that_was_there_may_be_away_for_a_while(server):
    told = []
    watch = PreemptionWatch(told.append, poll_s=0.01)
    eventually(lambda: server.asked > 2, "it was there")
    says, server.says = server.says, None
    missed = server.asked
    eventually(lambda: server.asked > missed + 5, "it goes on asking")
    server.says = says | {"preempted": "TRUE"}
    eventually(lambda: watch.is_over, "it heard")
    assert told


def test_where_there_is_no_server_nobody_is_asked_for_long(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{free.getsockname()[1]}")
    watch = PreemptionWatch(lambda reason: pytest.fail(reason), poll_s=0.01)
    eventually(lambda: watch.is_over, "the watch gave up")


def test_the_host_monitor_passes_it_on(server):
    server.says["preempted"] = "TRUE"
    monitor = HostMonitor("node-1", heeds_cloud=True)
    assert monitor.events(LONG_S) == [
        ev.NodeNotice(node="node-1", reason="the cloud takes the machine away (preempted: TRUE)")
    ]
    monitor.close()
