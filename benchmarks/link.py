"""How fast bytes get from one host to another: one TCP connection, buffers that are touched before."""

import subprocess
import sys

from benchmarks.hosts import Hosts

_TIMEOUT_S = 60.0
_CHUNK = 4 << 20
_RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
buffer, left, began_s = bytearray(int(sys.argv[3])), int(sys.argv[2]), time.monotonic()
while left:
    left -= connection.recv_into(buffer, min(len(buffer), left))
print(time.monotonic() - began_s)
"""
_SEND = """
import socket, sys
chunk, left = bytearray(int(sys.argv[4])), int(sys.argv[3])
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=30) as connection:
    while left:
        left -= connection.send(chunk[:min(len(chunk), left)])
"""


def bytes_per_s(hosts: Hosts, size_bytes: int) -> float:
    """Send so many bytes from the first host to the second."""
    sender, receiver = list(hosts.hosts.values())[:2]
    command = _on(receiver.name, _RECEIVE, receiver.address, size_bytes, _CHUNK)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiving:
        assert receiving.stdout is not None
        port = receiving.stdout.readline().strip()
        sending = _on(sender.name, _SEND, receiver.address, port, size_bytes, _CHUNK)
        subprocess.run(sending, check=True, timeout=_TIMEOUT_S)
        return size_bytes / float(receiving.stdout.readline())


def _on(host: str, code: str, *arguments: object) -> list[str]:
    return ["ip", "netns", "exec", host, sys.executable, "-c", code, *map(str, arguments)]
