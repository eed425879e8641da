"""Effect. The cloud's notice, from a metadata server as Compute Engine has it."""

import os
import socket
import subprocess
import sys

import pytest

from elastic.actors import preemption
from elastic.actors.monitor import HostMonitor
from elastic.actors.preemption import PreemptionWatch, pending_loss
from elastic.control import events as ev
from elastic.control.hardware import FindingKind
from elastic.control.xid import Severity
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
        ({"preempted": "<html>", "maintenance-event": "<html>"}, ""),
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
    watch = PreemptionWatch(told.append, pytest.fail, poll_s=0.01)
    server.says["preempted"] = "TRUE"
    eventually(lambda: watch.is_over, "the watch has told")
    assert told == ["the cloud takes the machine away (preempted: TRUE)"]


def test_a_server_that_was_there_may_be_away_for_a_while(server):
    told = []
    watch = PreemptionWatch(told.append, pytest.fail, poll_s=0.01)
    eventually(lambda: server.asked > 2, "it was there")
    says, server.says = server.says, None
    missed = server.asked
    eventually(lambda: server.asked > missed + 5, "it goes on asking")
    server.says = says | {"preempted": "TRUE"}
    eventually(lambda: watch.is_over, "it heard")
    assert told


def test_an_answer_that_is_cut_off_is_none_and_the_next_one_is_heard(server):
    told = []
    watch = PreemptionWatch(told.append, pytest.fail, poll_s=0.01)
    eventually(lambda: server.asked > 2, "it was there")
    server.lacks_bytes = 9
    missed = server.asked
    eventually(lambda: server.asked > missed + 5, "it goes on asking")
    server.says["preempted"] = "TRUE"
    server.lacks_bytes = 0
    eventually(lambda: watch.is_over, "it heard")
    assert told == ["the cloud takes the machine away (preempted: TRUE)"]


def test_what_answers_without_googles_header_is_no_metadata_server(server):
    server.is_googles = False
    server.says["preempted"] = "TRUE"
    gave_up = []
    watch = PreemptionWatch(pytest.fail, gave_up.append, poll_s=0.01)
    eventually(lambda: watch.is_over, "the watch gave up")
    assert gave_up == [f"no metadata server answers at {server.host}: what answers there is another kind of server"]
    server.says.clear()
    with pytest.raises(OSError, match="another kind of server"):
        pending_loss(server.host)


def test_a_server_that_sends_elsewhere_is_not_followed(server):
    with metadata_server() as other:
        other.says["preempted"] = "TRUE"
        server.elsewhere = f"http://{other.host}/computeMetadata/v1/instance/preempted"
        with pytest.raises(OSError, match="another kind of server"):
            pending_loss(server.host)
        assert not other.asked


def test_no_proxy_is_asked_in_its_place(server):
    """In a process that has had one from its beginning."""
    server.says["preempted"] = "TRUE"
    code = f"from elastic.actors.preemption import pending_loss; print(pending_loss({server.host!r}))"
    with metadata_server() as proxy:
        environment = {**os.environ, "http_proxy": f"http://{proxy.host}", "no_proxy": ""}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG_S)
        assert done.stdout.strip() == "the cloud takes the machine away (preempted: TRUE)", done.stderr
        assert not proxy.asked


@pytest.fixture
def nobody(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("GCE_METADATA_HOST", host)
    return host


def test_a_server_that_comes_some_seconds_after_the_machine_is_heard(monkeypatch):
    """As that of GKE, after a Pod's start."""
    says = iter([*[OSError("refused")] * 10, "", "taken away"])  # each a second after the one before

    def answer(_host):
        if isinstance(said := next(says), OSError):
            raise said
        return said

    monkeypatch.setattr(preemption, "pending_loss", answer)
    told = []
    watch = PreemptionWatch(told.append, pytest.fail, poll_s=0.01)
    eventually(lambda: watch.is_over, "the notice has come")
    assert told == ["taken away"]


def test_where_there_is_no_server_nobody_is_asked_for_long(nobody):
    gave_up = []
    watch = PreemptionWatch(pytest.fail, gave_up.append, poll_s=0.01)
    eventually(lambda: watch.is_over, "the watch gave up")
    assert len(gave_up) == 1 and gave_up[0].startswith(f"no metadata server answers at {nobody}: ")


def test_the_host_monitor_says_that_it_hears_no_cloud(nobody, monkeypatch):
    monkeypatch.setattr(preemption, "_TRIES", 2)
    monitor = HostMonitor("node-1", heeds_cloud=True)
    (blind,) = monitor.events(LONG_S)
    assert (blind.kind, blind.severity) == (FindingKind.BLIND, Severity.INFORMATIONAL)
    assert blind.detail.startswith("not seen on this node: notices of the cloud (no metadata server answers at 127.")
    monitor.close()


def test_the_host_monitor_passes_it_on(server):
    server.says["preempted"] = "TRUE"
    monitor = HostMonitor("node-1", heeds_cloud=True)
    assert monitor.events(LONG_S) == [
        ev.NodeNotice(node="node-1", reason="the cloud takes the machine away (preempted: TRUE)")
    ]
    monitor.close()
