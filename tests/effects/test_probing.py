"""Effect. A refused connection proves a death; a host that refuses nothing is given up."""

import socket
import threading

from elastic.actors.probing import Probes
from elastic.control import events as ev
from tests.effects.helpers import LONG_S, eventually


def probing() -> int:
    return sum(thread.name == "elastic-probe" for thread in threading.enumerate())


def test_who_no_longer_listens_is_dead() -> None:
    told: list[ev.Event] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        probes = Probes(told.append, LONG_S)
        probes.begin("w0", address)
        probes.begin("w0", address)
        server.accept()[0].close()
        assert probing() == 1 and not told, "it listens"
    eventually(lambda: told, "its port is looked at")
    assert told == [ev.WorkerDead(worker="w0", proof=f"127.0.0.1:{address[1]} refuses connections")]
    eventually(lambda: not probing(), "the probe has ended")


def test_who_is_heard_of_is_looked_at_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        probes = Probes(lambda event: None, LONG_S)
        probes.begin("w0", server.getsockname())
        probes.end("w0")
        eventually(lambda: not probing(), "the probe has ended")


def test_a_host_that_refuses_nothing_is_given_up_and_may_be_looked_at_again() -> None:
    told: list[ev.Event] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        probes = Probes(told.append, 0.2)
        for _ in range(2):
            probes.begin("w0", server.getsockname())
            assert probing() == 1
            eventually(lambda: not probing(), "the probe has ended")
    assert told == []
