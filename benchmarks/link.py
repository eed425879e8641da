"""How fast bytes get from one host to another: one TCP connection, buffers that are touched before."""

import contextlib
import select
import subprocess
import sys
import time

from benchmarks.hosts import Hosts
from benchmarks.remains import HostsError

_TIMEOUT_S = 60.0
_CHUNK = 4 << 20
_RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 0))
server.settimeout(30)
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
buffer, left, began_s = bytearray(int(sys.argv[3])), int(sys.argv[2]), time.monotonic()
connection.settimeout(30)
while left:
    got = connection.recv_into(buffer, min(len(buffer), left))
    left -= got or sys.exit("the sender has gone")
print(time.monotonic() - began_s)
"""
_SEND = """
import socket, sys
chunk, left = bytearray(int(sys.argv[4])), int(sys.argv[3])
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30) as connection:
    while left:
        left -= connection.send(chunk[:min(len(chunk), left)])
"""


def bytes_per_s(hosts: Hosts, size_bytes: int, timeout_s: float = _TIMEOUT_S) -> float:
    """Send so many bytes from the first host to the second.

    Raises:
        HostsError: it did not work, or not within `timeout_s`; nothing of it is left then.
    """
    sender, receiver = list(hosts.hosts.values())[:2]
    until_s = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        receiving = _start(stack, receiver.name, _RECEIVE, receiver.address, size_bytes, _CHUNK)
        port = _line(receiving, until_s)
        _start(stack, sender.name, _SEND, receiver.address, port, size_bytes, _CHUNK)
        return size_bytes / float(_line(receiving, until_s))


def _start(stack: contextlib.ExitStack, host: str, code: str, *arguments: object) -> subprocess.Popen[str]:
    """On a host; killed when the stack is left, so that nobody waits for it."""
    command = _on(host, code, *arguments)
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    return process


def _line(process: subprocess.Popen[str], until_s: float) -> str:
    """The next line that a process prints, before this moment of the monotonic clock."""
    assert process.stdout is not None
    poll = select.poll()  # select itself knows no descriptor above 1023
    poll.register(process.stdout, select.POLLIN)
    is_ready = poll.poll(1e3 * max(0.0, until_s - time.monotonic()))
    if not (line := process.stdout.readline().strip() if is_ready else ""):
        raise HostsError("the link between two hosts could not be measured: nothing came through in time")
    return line


def _on(host: str, code: str, *arguments: object) -> list[str]:
    return ["ip", "netns", "exec", host, sys.executable, "-c", code, *map(str, arguments)]
