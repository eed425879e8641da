"""Effect. The demo's faults: a worker killed, a node lost, a node added; each at a step, each noted when it fired."""

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from elastic.callbacks import Callback
from elastic.control.state import RunState, Standing
from elastic.control.values import StepReport
from elastic.demo.hosts import Hosts


@dataclass(slots=True, kw_only=True)
class Fault:
    """One injected fault, as the injector knows it.

    Attributes:
        kind: kill, node-lost, node-added.
        target: worker or node.
        at_s: wall clock at the injection. stable: last stable step told before it.
        generation: at the injection. victims, survivors: pids of members.
        manned_at_s: when the first worker on an added node stood at its first step.
    """

    kind: str
    target: str
    at_s: float
    stable: int
    generation: int
    victims: list[int] = field(default_factory=list)
    survivors: list[int] = field(default_factory=list)
    manned_at_s: float | None = None


class Injector(Callback):
    """Breaks things at fixed shares of the run; whom it hits depends on the seed.

    Each fault waits until the run is whole again after the one before, since the demo measures one at a time.
    """

    def __init__(self, hosts: Hosts, steps: int, seed: int) -> None:
        self._hosts, self._random = hosts, random.Random(seed)
        self._plan = [(steps // 8, self._kill), (steps * 3 // 8, self._lose_node), (steps // 2, self._add_node)]
        self.faults: list[Fault] = []

    @property
    def left(self) -> int:
        """Faults that are still to come."""
        return len(self._plan)

    def on_step(self, report: StepReport, state: RunState, goodput: float) -> None:
        if self._plan and report.commit.step >= self._plan[0][0] and self._is_calm(report, state):
            _, inject = self._plan.pop(0)
            inject(report, state)

    def on_state(self, state: RunState) -> None:
        for fault in self.faults:
            is_manned = any(w.node == fault.target and w.pid for w in state.workers.values())
            if fault.kind == "node-added" and fault.manned_at_s is None and is_manned:
                fault.manned_at_s = time.time()

    def _is_calm(self, report: StepReport, state: RunState) -> bool:
        """No incident is open, and the spare that the kill used up is there again before the node goes."""
        is_open = any(incident.resumed_at_s is None for incident in state.incidents)
        is_current = report.commit.generation == state.generation
        needs_spare = len(self.faults) == 1
        return is_current and not is_open and (not needs_spare or bool(state.standing(Standing.PARKED)))

    def _kill(self, report: StepReport, state: RunState) -> None:
        """SIGKILL to one member."""
        victim = self._random.choice(state.members)
        fault = self._note("kill", victim.name, report, state, lost={victim.name})
        os.kill(victim.pid, signal.SIGKILL)
        self.faults.append(fault)

    def _lose_node(self, report: StepReport, state: RunState) -> None:
        """All processes of a node that holds as many members as any."""
        held = Counter(member.node for member in state.members)
        node = self._random.choice(sorted(node for node in held if held[node] == max(held.values())))
        lost = {worker.name for worker in state.workers.values() if worker.node == node}
        fault = self._note("node-lost", node, report, state, lost=lost)
        self._hosts.lose(node)
        self.faults.append(fault)

    def _add_node(self, report: StepReport, state: RunState) -> None:
        fault = self._note("node-added", "", report, state, lost=set())
        fault.target = self._hosts.add()
        self.faults.append(fault)

    def _note(self, kind: str, target: str, report: StepReport, state: RunState, lost: set[str]) -> Fault:
        return Fault(
            kind=kind,
            target=target,
            at_s=time.time(),
            stable=state.published,
            generation=report.commit.generation,
            victims=[member.pid for member in state.members if member.name in lost],
            survivors=[member.pid for member in state.members if member.name not in lost],
        )
