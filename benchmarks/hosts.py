"""Hosts on one machine: network namespaces on a bridge, each with an address and a raylet of its own.

    python -m benchmarks.hosts --clean

A host's traffic can be cut, thinned out or delayed inside its own namespace, and the host can be lost as in a power
cut. Only root can make one. All that is made carries the pid of its maker: namespaces, bridge, folders, and a mark in
the environment of each process. So everything is found again and removed at the end, however the end comes; after a
SIGKILL, `--clean` removes what makers that are gone have left.
"""

import argparse
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.remains import MARK, PREFIX, HostsError, clean, kill_all, leftovers, pids_of, pids_on, run
from elastic.chaos import network

NEEDED_TO_IMPAIR = "tc"
_START_S = 90.0
_END_S = 20.0
_ANSWER_S = 0.25  # of a kernel, over a cable of this machine
_NOBODYS_PORT = 1
_OBJECT_STORE_BYTES = 80 << 20
_NO_LOG_MONITOR = "--include-log-monitor=false"  # each would follow the logs of all: Ray wants one on a machine
_ROOT = Path(__file__).resolve().parent.parent
_NOBODY = "02:00:00:00:00:00"  # a link-layer address that no cable has: what is sent there gets lost
# `ip netns exec` has unshared the mounts already, so this is the host's alone, and goes with its last process.
_OWN_MEMORY = ("sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
HEAD = ""  # stands for the root namespace among the names of hosts


def why_not(*commands: str) -> str:
    """Why hosts cannot be made here; empty if they can.

    Args:
        commands: needed besides `ip`: NEEDED_TO_IMPAIR.
    """
    if os.geteuid() != 0:
        return "hosts on one machine are network namespaces, which only root can make: run it as root"
    return network.why_not("ip", *commands)


@dataclass(frozen=True, slots=True)
class Host:
    """One host: the name of its namespace, and its address on the bridge."""

    name: str
    address: str


class Network:
    """A bridge and the namespaces on it; a context manager that leaves nothing behind.

    Attributes:
        name: carries the pid of this process. address: of the bridge, in the root namespace.
        hosts: by name.

    Raises:
        HostsError: not root, or `ip` is missing.
    """

    def __init__(self) -> None:
        self.name = f"{PREFIX}{os.getpid()}"
        self.hosts: dict[str, Host] = {}
        self._made = 0
        self._impaired: dict[str, bool] = {}  # whether the port of the bridge is, too
        self._silenced: list[tuple[str, str]] = []  # who sends, and who does not hear it
        self._subnet = ""

    @property
    def address(self) -> str:
        return f"{self._subnet}.1"

    def __enter__(self) -> Self:
        if reason := why_not():
            raise HostsError(reason)
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        clean(self.name)
        self.hosts.clear()

    def add_host(self) -> Host:
        """A namespace with a cable to the bridge."""
        self._made += 1
        host = Host(f"{self.name}-{self._made}", f"{self._subnet}.{self._made + 1}")
        cable = f"{self.name}v{self._made}"
        self.hosts[host.name] = host
        run("ip", "netns", "add", host.name)
        run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        run("ip", "link", "set", cable, "master", f"{self.name}br", "up")
        inside = ("ip", "-n", host.name)
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        return host

    def crash(self, name: str) -> list[int]:
        """Kill every process on a host at once; its address still answers, with refusals. Returns their pids."""
        return kill_all(lambda: pids_on(name), name)

    def remove_host(self, name: str) -> list[int]:
        """Kill every process on a host at once, and take it away with its address; returns their pids."""
        killed = self.crash(name)
        run("ip", "netns", "del", name)
        del self.hosts[name]
        return killed

    def cut(self, name: str) -> None:
        """Drop every packet from and to a host, as if its cable were pulled at the switch; nobody is told."""
        self._do(network.cutting(self._cable(name)))

    def silence(self, senders: Collection[str], receivers: Collection[str]) -> None:
        """Lose every packet from some hosts to others, this way only, and tell nobody; HEAD is the root namespace."""
        for sender, receiver in itertools.product(senders, receivers):
            self._neighbour(sender, "replace", receiver, "lladdr", _NOBODY, "nud", "permanent")
            self._silenced.append((sender, receiver))

    def unite(self) -> None:
        """Undo each `silence`."""
        while self._silenced:
            sender, receiver = self._silenced.pop()
            self._neighbour(sender, "del", receiver)

    def answering(self) -> list[str]:
        """Hosts of which the root namespace hears something when it knocks at them, be it a refusal."""
        return [name for name, host in self.hosts.items() if answers(host.address)]

    def drop(self, name: str, share: float) -> None:
        """Drop this share of the packets, each way."""
        self._impair(name, 0.0, share)

    def delay(self, name: str, delay_s: float) -> None:
        """Have each packet that leaves a host wait."""
        self._impair(name, delay_s, 0.0)

    def restore(self, name: str) -> None:
        """Let packets pass again, all and at once."""
        self._do(network.joining(self._cable(name)))
        if name in self._impaired:
            self._do(network.sparing(self._cable(name), has_port=self._impaired.pop(name)))

    def _neighbour(self, sender: str, verb: str, receiver: str, *how: str) -> None:
        """Change what a host believes to be another one's link-layer address."""
        address = self.hosts[receiver].address if receiver else self.address
        inside, device = (("-n", sender), "eth0") if sender else ((), f"{self.name}br")
        run("ip", *inside, "neigh", verb, address, *how, "dev", device)

    def _impair(self, name: str, delay_s: float, loss: float) -> None:
        if reason := why_not(NEEDED_TO_IMPAIR):
            raise HostsError(reason)
        try:
            self._do(network.impairing(self._cable(name), delay_s, loss))
        except HostsError as error:
            raise HostsError(f"packets cannot be delayed or lost: {network.why_failed(error)}") from error
        self._impaired[name] = loss > 0

    def _cable(self, name: str) -> network.Cable:
        return network.Cable(device="eth0", netns=name, port=f"{self.name}v{name.rpartition('-')[2]}")

    def _do(self, commands: list[network.Command]) -> None:
        for command in commands:
            run(*command)

    def _open(self) -> None:
        used = run("ip", "-4", "-o", "addr")
        numbers = ((os.getpid() + turn) % 256 for turn in range(256))
        free = (f"10.213.{number}" for number in numbers if f" 10.213.{number}." not in used)
        self._subnet = next(free)
        bridge = f"{self.name}br"
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.address}/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")


class Hosts(Network):
    """A Ray head without slots in the root namespace, and hosts with slots.

    Args:
        slots: of each host that is there from the start.
        head: options of the head's `ray start`.
        environment: more of it, for each process of the cluster.

    Attributes:
        slots: by name of the host. raylets: the same, `ray start` of each host that was added.
        ray_address: for drivers, which must run in the root namespace with `environment`.
    """

    def __init__(
        self,
        slots: tuple[int, ...],
        head: tuple[str, ...] = ("--include-dashboard=false",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._first, self._head, self._more = slots, head, dict(environment or {})
        self.slots: dict[str, int] = {}
        self.raylets: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = Path("/tmp") / self.name  # short: sockets lie below it
        self._started: list[subprocess.Popen[bytes]] = []
        self.ray_address = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """What every process of the cluster is started with."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        ours = {
            MARK: self.name,
            "PYTHONPATH": str(_ROOT),
            "RAY_TMPDIR": str(self._folder),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            **self._more,
        }
        return plain | ours

    def close(self) -> None:
        super().close()
        for raylet in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                raylet.wait(_END_S)

    def add(
        self,
        slots: int,
        *options: str,
        has_own_memory: bool = False,
        environment_at: Callable[[str], Mapping[str, str]] = lambda address: {},
        **environment: str,
    ) -> str:
        """A new host with so many slots; one at a time, since raylets that start together fight over files.

        Args:
            options: of `ray start`. has_own_memory: it has a /dev/shm of its own. environment: of its processes alone.
            environment_at: more of it, which depends on the host's address.
        """
        host = self.add_host()
        environment = {**environment_at(host.address), **environment}
        self.slots[host.name] = slots
        inside = ("ip", "netns", "exec", host.name, *(_OWN_MEMORY if has_own_memory else ()))
        joins = (f"--address={self.ray_address}", _NO_LOG_MONITOR)
        command = (*inside, *_ray_start(host.address, slots), *joins, *options)
        self.raylets[host.name] = self._start(*command, **environment)
        return host.name

    def lose(self, name: str) -> list[int]:
        """Take a host away as a power cut would; returns the pids that were killed."""
        del self.slots[name], self.raylets[name]
        return self.remove_host(name)

    def of(self, pid: int) -> str:
        """Name of the host that a process runs on."""
        return next((name for name in self.hosts if pid in pids_on(name)), "")

    def pids(self) -> set[int]:
        """Every process of the cluster."""
        return pids_of(self.name)

    def _open(self) -> None:
        super()._open()
        self._folder.mkdir()
        port = _free_port()
        self.ray_address = f"{self.address}:{port}"
        # Its own ports are drawn by chance: other clusters of this machine share the root namespace.
        ports = (f"--port={port}", f"--ray-client-server-port={_free_port()}", "--min-worker-port=0")
        head = (*_ray_start(self.address, 0), "--head", "--max-worker-port=0", *self._head)
        self._start(*head, *ports, f"--temp-dir={self._folder}")
        for slots in self._first:
            self.add(slots)

    def _start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a raylet and wait until it says that it runs."""
        said, env = self._folder / f"start-{len(self._started)}.txt", {**self.environment, **environment}
        with said.open("wb") as out:
            raylet = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, cwd=_ROOT)
        self._started.append(raylet)
        deadline_s = time.monotonic() + _START_S
        while b"Ray runtime started" not in said.read_bytes():
            if raylet.poll() is not None or time.monotonic() > deadline_s:
                raise HostsError(f"a raylet did not start within {_START_S:.0f} s: {said.read_text()[-2000:]}")
            time.sleep(0.05)
        return raylet


def answers(address: str) -> bool:
    """Whether a connection is made, or refused, at once."""
    try:
        socket.create_connection((address, _NOBODYS_PORT), timeout=_ANSWER_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def _free_port() -> int:
    """On each address: Ray listens on all of them, and others have theirs on some."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def _ray_start(address: str, slots: int) -> tuple[str, ...]:
    ray = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
    return (*ray, f"--node-ip-address={address}", f"--num-cpus={slots}", f"--object-store-memory={_OBJECT_STORE_BYTES}")


def main() -> None:
    """Remove what makers that are gone have left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--clean", action="store_true", required=True, help="remove leftovers of killed runs")
    parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"error: {reason}")
    troubles = []
    for name in leftovers():
        try:
            clean(name)
            print(f"removed what {name} had left")
        except HostsError as error:
            troubles.append(f"{name} has left what stays: {error}")
    if troubles:
        raise SystemExit("error: " + "\n".join(troubles))


if __name__ == "__main__":
    main()
