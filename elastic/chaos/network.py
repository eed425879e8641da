"""Effect. Faults of the network: an interface that loses everything, or some packets, or delays them.

Kernel and iproute2 do the work, as root: `tc` (tc-netem(8), tc-tbf(8)) and, for a cable whose other end is a port of a
bridge, `bridge`. What is done is a list of commands, so that whoever makes the cables may run them in his own way.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass

from elastic.chaos.aftermath import Aftermath, CannotStrikeError
from elastic.control.faults import number_in, options

_COMMAND_S = 20.0
_LOOK_S = 0.05
_PACKAGES = {"ip": "iproute2", "tc": "iproute2", "bridge": "iproute2"}
# So `tc` says that the kernel has no discipline of a kind: newer kernels name it, older ones give a code.
_LACKS_KIND = ("Specified qdisc kind is unknown", "RTNETLINK answers: No such file or directory")
_DISABLED, _FORWARDING = "0", "3"  # states of a bridge's port: see bridge(8)

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """An interface: its device; the namespace that it is in, empty: this process's; and where its other end is here.

    Attribute `port`: the other end of a veth pair, as a bridge's port in this process's namespace; empty: unknown.
    """

    device: str
    netns: str = ""
    port: str = ""

    @property
    def tc(self) -> Command:
        return ("tc", "-n", self.netns) if self.netns else ("tc",)


def cutting(cable: Cable) -> list[Command]:
    """No packet passes and nobody is told: at the bridge both ways, else those that leave the device.

    Without a bridge a token bucket does it that is smaller than any packet, which every kernel with `tc` knows.
    """
    if cable.port:
        return [("bridge", "link", "set", "dev", cable.port, "state", _DISABLED)]
    bucket = ("tbf", "rate", "1kbit", "burst", "1", "limit", "1")
    return [(*cable.tc, "qdisc", "replace", "dev", cable.device, "root", *bucket)]


def joining(cable: Cable) -> list[Command]:
    """Undoes `cutting`."""
    if cable.port:
        return [("bridge", "link", "set", "dev", cable.port, "state", _FORWARDING)]
    return sparing(cable)


def impairing(cable: Cable, delay_s: float, loss: float) -> list[Command]:
    """Packets that leave wait so long, and this share of them is lost; of those that come in too, if the port is known.

    Needs a kernel with sch_netem.
    """
    delay: Command = ("delay", f"{delay_s * 1e6:.0f}us") if delay_s else ()
    lost: Command = ("loss", f"{loss:.4%}") if loss else ()
    at: Command = ("qdisc", "replace", "dev")
    commands: list[Command] = [(*cable.tc, *at, cable.device, "root", "netem", *delay, *lost)]
    if cable.port and loss:
        commands.append(("tc", *at, cable.port, "root", "netem", *lost))
    return commands


def sparing(cable: Cable, has_port: bool = False) -> list[Command]:
    """Undoes `impairing`; `has_port`: the port was impaired too."""
    commands: list[Command] = [(*cable.tc, "qdisc", "del", "dev", cable.device, "root")]
    return [*commands, ("tc", "qdisc", "del", "dev", cable.port, "root")] if has_port else commands


def why_not(*commands: str) -> str:
    """Why this process can not use these commands on interfaces; empty if it can."""
    if os.geteuid() != 0:
        return "only root can change network interfaces: run it as root"
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES[command] for command in missing}))
        return f"the command {missing[0]} is missing: apt-get install -y {packages}"
    return ""


def why_failed(error: Exception) -> str:
    """Why one of these commands failed, from what it said: the kernel may lack what `impairing` needs."""
    told = str(error)
    is_lacking = " netem" in told and any(said in told for said in _LACKS_KIND)
    return f"this kernel lacks sch_netem: {told}" if is_lacking else told


def cable_of(argument: str) -> Cable:
    """ "eth0" or "eth0,netns=NAME"."""
    device, named = options(argument)
    return Cable(device=device, netns=named.get("netns", ""))


def cut(argument: str, aftermath: Aftermath, lasts_s: float) -> str:
    """Cut an interface for so long; returns what the kernel says of it."""
    cable = cable_of(argument)
    return _strike(cable, cutting(cable), joining(cable), aftermath, lasts_s)


def impair(argument: str, aftermath: Aftermath, lasts_s: float) -> str:
    """Delay and lose packets of an interface for so long; returns what the kernel says of it."""
    cable, (_, named) = cable_of(argument), options(argument)
    delay_s, loss = number_in(named.get("delay", ""), 0.0), number_in(named.get("loss", ""), 0.0)
    return _strike(cable, impairing(cable, delay_s, loss), sparing(cable), aftermath, lasts_s)


def _strike(cable: Cable, do: list[Command], undo: list[Command], aftermath: Aftermath, lasts_s: float) -> str:
    """A process of its own undoes it, started before: whoever injects may be cut off, or killed, meanwhile."""
    if reason := why_not("tc"):
        raise CannotStrikeError(reason)
    _refuse_others(cable)
    undoing = "; ".join(shlex.join(command) for command in undo)
    wait = f"sleep {lasts_s:g} & waiting=$!; trap 'kill $waiting; undo; exit 0' TERM; wait $waiting; undo"
    script = f"undo() {{ {undoing}; }}; {wait}"
    helper = subprocess.Popen(
        ["/bin/sh", "-c", script], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def end() -> None:
        while helper.poll() is None:
            if aftermath.is_closed(_LOOK_S):
                helper.terminate()
                helper.wait(_COMMAND_S)
                for command in undo:  # once more: it may have been too young to heed a signal
                    with contextlib.suppress(CannotStrikeError):
                        _run(*command)

    aftermath.beside(end)
    try:
        for command in do:
            _run(*command)
    except CannotStrikeError as error:
        helper.terminate()
        raise CannotStrikeError(why_failed(error)) from error
    return _run(*cable.tc, "qdisc", "show", "dev", cable.device, "root").splitlines()[0].strip()


def _refuse_others(cable: Cable) -> None:
    """A discipline that somebody has set would be gone afterwards."""
    there = _run(*cable.tc, "qdisc", "show", "dev", cable.device)
    kinds = {line.split()[1] for line in there.splitlines() if " root" in line}
    if kinds - {"noqueue", "pfifo_fast", "fq_codel", "fq", "mq"}:
        raise CannotStrikeError(f"{cable.device} has a queueing discipline of its own ({', '.join(sorted(kinds))})")


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStrikeError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise CannotStrikeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
