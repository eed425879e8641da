"""Pure. What ends each command: the events that answer it, and what follows when none comes.

A command is a wish, not a fact: it may be lost, and so may its answer. So each has a deadline, after which it is given
again, or the next harder one is given, or the run goes on without it. Giving the order may hang, too: at its deadline
the controller is told what it would be told if the order had failed. Tests hold this table against the code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """How a command ends.

    Attributes:
        by: events that answer it.
        within: fields of `Limits` that say when it is overdue; empty: somebody else's clock, see `then`.
        answer_s: seconds after which the answer is not waited for any more, where it belongs to no phase and nobody
            need turn it; 0: the fields above say.
        then: what follows when it is.
        sent_within: the field of `Limits` that says how long giving the order may take, whatever comes of it.
        unsent: (command, worker, why) -> what stands for the answer to an order that was not given by then; None: the
            deadlines above are enough.
    """

    by: tuple[type[ev.Event], ...]
    within: tuple[str, ...]
    then: str
    answer_s: float = 0.0
    sent_within: str = "freeze_timeout_s"
    unsent: Callable[[Any, str, str], ev.Event] | None = None


_STACK_S = 15.0  # a look at stacks ends within 5 s; its host may be short of processors, or of network
_STRIKE_S = 30.0  # a fault strikes at once, but for what waits for a step, a snapshot or a store

_LEFT = (ev.TrainFnReturned, ev.WorkerDead, ev.WorkerDeparted)

COMPLETIONS: dict[type[cmd.Command], Completion] = {
    cmd.StartWorker: Completion(
        by=(ev.WorkerPlaced, ev.WorkerParked, ev.WorkerDead),
        within=("start_timeout_s", "jobset_downtime_threshold_s", "place_timeout_s", "load_timeout_s"),
        then="placed and not at its first step: killed, another one started; without a slot: it waits as long as the "
        "run has its minimum; on one certain node: started anywhere",
        sent_within="place_timeout_s",
        unsent=lambda command, worker, why: ev.WorkerDead(worker=worker, proof=f"it was not started: {why}"),
    ),
    cmd.Freeze: Completion(
        by=(ev.FreezeAnswered, ev.WorkerDead),
        within=("doubt_after_s", "exile_after_s", "freeze_timeout_s", "lease_s"),
        then="probed, left behind if out of reach, fenced, and after its lease taken for dead",
    ),
    cmd.Connect: Completion(
        by=(ev.Connected,),
        within=("connect_ahead_s",),
        then="all stop at the end of the next step all the same, and connect after it",
    ),
    cmd.Pause: Completion(
        by=(ev.FreezeAnswered,),
        within=("pause_timeout_s",),
        then="said again every few seconds; once some have stopped, the others are frozen where they are",
    ),
    cmd.Form: Completion(
        by=(ev.AtDoor, ev.Formed, ev.FormingFailed),
        within=("door_timeout_s", "forming_timeout_s", "heal_timeout_s"),
        then="said again when a worker asks; then the next generation is formed without joiners",
    ),
    cmd.Go: Completion(
        by=(ev.StepStable, ev.CollectiveBroken, ev.LoopEnded),
        within=("hang_floor_s", "first_steps_timeout_s"),  # or sooner, if its process is stopped
        then="said again when a worker asks; who stands still is killed",
    ),
    cmd.Finish: Completion(
        by=_LEFT,
        within=("finish_timeout_s",),
        then="said again when a worker asks, or contact with it was lost; then killed",
    ),
    cmd.Dismiss: Completion(by=_LEFT, within=("pod_termination_threshold_s",), then="killed"),
    cmd.ProveDead: Completion(
        by=(ev.WorkerDead, ev.FreezeAnswered, ev.AtDoor),
        within=("freeze_timeout_s", "lease_s", "door_timeout_s"),
        then="see Freeze and Form",
    ),
    cmd.Knock: Completion(
        by=(ev.Knocked,), within=("heartbeat_timeout_s",), then="out of reach once it was silent for that long"
    ),
    cmd.Inspect: Completion(
        by=(ev.StackDumped,),
        within=(),
        answer_s=_STACK_S,
        then="the incident tells that it has no stack",
        unsent=lambda command, worker, why: ev.StackDumped(worker=worker, stack=why),
    ),
    cmd.Fence: Completion(
        by=(ev.WorkerDead,), within=("exile_after_s", "lease_s"), then="left behind, or taken for dead after its lease"
    ),
    cmd.ResetGpu: Completion(
        by=(ev.GpuReset,),
        within=("gpu_reset_timeout_s",),
        then="its node stays in quarantine for quarantine_s",
        sent_within="gpu_reset_timeout_s",
        unsent=lambda command, worker, why: ev.GpuReset(node=command.node, gpus=command.gpus, error=why),
    ),
    cmd.InjectFault: Completion(
        by=(ev.FaultInjected, ev.FaultRefused),
        within=(),
        answer_s=_STRIKE_S,
        then="who has asked is told that no word of it came, and that it may yet strike",
        unsent=lambda command, worker, why: ev.FaultRefused(fault=command.fault, reason=why),
    ),
    cmd.DropFault: Completion(by=(ev.FaultRefused,), within=(), then="the driver's own: it answers at once"),
    cmd.FindRestore: Completion(
        by=(ev.RestoreFound,),
        within=("restore_timeout_s",),
        then="the run ends",
        sent_within="restore_timeout_s",
        unsent=lambda command, worker, why: ev.RestoreFound(commit=None, error=why, number=command.number),
    ),
    cmd.Restore: Completion(
        by=(ev.Restored, ev.RestoreRefused, ev.WorkerDead),
        within=("restore_timeout_s",),
        then="said again when a worker asks; then it is killed, and an older step is tried",
        sent_within="restore_timeout_s",
        unsent=lambda command, worker, why: ev.RestoreRefused(worker=worker, commit=command.commit, reason=why),
    ),
    cmd.Save: Completion(
        by=(ev.ShardStaged, ev.TierDegraded, ev.WorkerDead),
        within=("jobset_downtime_threshold_s",),
        then="said again when a worker asks; nothing waits for it, and what was sealed before is what can be restored",
    ),
    cmd.EndRun: Completion(by=(), within=(), then="the driver's own: it removes what is left and ends"),
}
