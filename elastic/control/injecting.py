"""Pure. A fault that somebody asks for: refused with a sentence, or aimed at a worker, or a node, that is there now."""

from dataclasses import dataclass

from elastic.control import events as ev
from elastic.control.commands import DropFault, InjectFault
from elastic.control.faults import OF_WORKERS, Fault, FaultKind, options
from elastic.control.state import OVER, Phase, RunState, Standing, WorkerRecord
from elastic.control.turn import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Whom a fault strikes; or why nobody, empty if somebody."""

    worker: str = ""
    node: str = ""
    why_not: str = ""


def nodes_of(state: RunState) -> tuple[str, ...]:
    """The nodes that have workers."""
    return tuple(sorted({worker.node for worker in state.workers.values() if worker.node and _is_there(worker)}))


def refusal(state: RunState, asked: ev.FaultAsked) -> str:
    """Why this fault is not injected, empty if it is."""
    return _refusal(state, asked) or aim(state, asked.fault).why_not


def fault_asked(turn: Turn, event: ev.FaultAsked) -> None:
    """Have it strike where it must act; the answer is FaultInjected, or FaultRefused."""
    found = aim(turn.state, event.fault)
    if reason := _refusal(turn.state, event) or found.why_not:
        turn.do(DropFault(fault=event.fault, reason=reason))
        return
    reason = f"asked for: {event.fault}"
    turn.do(InjectFault(fault=event.fault, worker=found.worker, node=found.node, reason=reason))


def aim(state: RunState, fault: Fault) -> Aim:
    """Resolve a target as things stand now; chance decides by the draw that the fault carries."""
    if fault.kind is FaultKind.KILL_SUPERVISOR:
        return Aim()
    how, _, which = fault.target.partition(":")
    members = tuple(member for member in state.members if member.standing is Standing.MEMBER)
    if how == "node":
        return _on_node(state, members, fault, which)
    if how == "worker":
        found = [worker for worker in state.workers.values() if worker.name == which and _is_there(worker)]
    elif how == "any":
        found = [members[fault.draw % len(members)]] if members else []
    else:
        rank = 0 if how == "leader" else int(which)
        found = [member for member in state.members[rank : rank + 1] if member in members]
    if not found:
        there = ", ".join(worker.name for worker in members) or "none"
        return Aim(why_not=f"{fault.target} is nobody now: the members are {there}")
    return Aim(worker=found[0].name, node=found[0].node)


def _on_node(state: RunState, members: tuple[WorkerRecord, ...], fault: Fault, which: str) -> Aim:
    nodes = nodes_of(state)
    matching = [which] if which in nodes else [node for node in nodes if node.startswith(which)]
    if len(matching) != 1:
        there = ", ".join(node[:12] for node in nodes) or "none"
        return Aim(why_not=f"{len(matching)} nodes with workers match {fault.target}: there are {there}")
    on_it = [worker for worker in state.workers.values() if worker.node == matching[0] and _is_there(worker)]
    first = [worker for worker in on_it if worker in members] or on_it
    is_whole = fault.kind not in OF_WORKERS or fault.kind is FaultKind.NOTICE
    return Aim(worker="" if is_whole else first[fault.draw % len(first)].name, node=matching[0])


def _refusal(state: RunState, asked: ev.FaultAsked) -> str:
    """What is so whoever is struck."""
    settings, fault = state.settings, asked.fault
    if state.phase in (Phase.FINISHING, Phase.ENDED):
        return f"the run {settings.run} has taken its last step: there is nothing left to break"
    if not (settings.is_breakable or asked.is_forced):
        return (
            f"the run {settings.run} was not started for fault injection: start it with "
            "fit(chaos=Chaos(enable_fault_injection=True)), or use --force"
        )
    return _lacks(state, fault)


def _lacks(state: RunState, fault: Fault) -> str:
    """What the run was started without, and the fault needs; empty if there is nothing of that."""
    checkpoint, where = state.settings.checkpoint, options(fault.argument)[0]
    needs_store = fault.kind is FaultKind.STORAGE_ERRORS or (fault.kind is FaultKind.BIT_FLIP and where == "persistent")
    needs_memory = fault.kind in (FaultKind.BIT_FLIP, FaultKind.DISK_FULL) and not where
    if needs_store and (checkpoint is None or checkpoint.persistent is None):
        return f"{fault.kind.value} needs a persistent tier: set Checkpoint.persistent"
    if needs_memory and checkpoint is None:
        return f"{fault.kind.value} needs snapshots in memory: set fit(checkpoint=Checkpoint())"
    if fault.kind is FaultKind.STORAGE_ERRORS and not state.settings.is_breakable:
        return "storage_errors needs stores that were opened for it: set Chaos.enable_fault_injection; --force is late"
    return ""


def _is_there(worker: WorkerRecord) -> bool:
    return worker.standing not in OVER
