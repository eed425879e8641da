"""Pure. What a small seeded world is made from: the plan of what happens in it, and its workers."""

import math
from dataclasses import dataclass, field
from typing import Any

from elastic.control.flight import STOPPED, Flying, Reading
from elastic.control.remediation import Kind, Policy
from elastic.control.values import CommitId, View
from elastic.control.worker_protocol import Stage, WorkerState
from elastic.policies import Ladder
from elastic.policies.table import BUILT_IN

POLICIES: dict[str, Policy] = {**BUILT_IN, "Redealing": Ladder(straggler=Kind.REDEAL)}
FAULTS_END_S, LIMIT_S, LEASE_S = 20.0, 400.0, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens to a run.

    Attributes:
        replicas: minimum and maximum. spares: parked ones. steps: to train. per_node: workers on a node.
        in_order: messages of one sender arrive in the order in which they were sent, answers to a freeze too.
        faults_end_s: no fault strikes after it. limit_s: by then the run has ended.
        lease_s: of the run. drift: clocks of hosts run fast or slow by up to this share.
        quick: workers take hundredths of a second for a move, and messages too, but for one in twenty.
        crash, hang, notice: chances per move of a worker. mute: that its host is cut off, one way or both;
            lose_call: and that the driver's call to it then fails at once.
        break_: that it sees a collective break. corrupt: that an apply leaves other bits behind.
        lose_order, duplicate: chances per message. stall: that the controller stands still after an event, with what it
            decided made and not told. supervisor: that it dies instead, and its decision has never happened.
        monitor, lose_beat: chances per tick and node that a host monitor dies, and that its beat is lost. partition,
            jump: chances per tick that the driver is cut off from all hosts, and that the controller's clock jumps.
        announce: that a node is told that it will be taken away; run_out: that machines do not come; xid: that a GPU
            errs; slow: that one computes slowly; pause, tune: that a user asks for that; raise_: that train_fn raises;
            depart: that a worker leaves by itself; rack: that the driver is cut off from some nodes; split: that
            some hosts are cut off from the others, and none from the driver; link: that pairs of hosts are cut off
            from each other, and from nobody else. These too are chances per tick.
        says_at_door: workers say that they have come to the door, and whom they have missed there. Histories that were
            kept before they did play as they were. linger: chance per forming that user code keeps one from the door.
        policy: who decides: one of POLICIES.
    """

    replicas: tuple[int, int]
    spares: int = 0
    steps: int = 6
    per_node: int = 1
    in_order: bool = True
    faults_end_s: float = FAULTS_END_S
    limit_s: float = LIMIT_S
    quick: bool = False
    lease_s: float = LEASE_S
    drift: float = 0.0
    crash: float = 0.0
    hang: float = 0.0
    mute: float = 0.0
    lose_call: float = 0.0
    break_: float = 0.0
    lose_order: float = 0.0
    duplicate: float = 0.0
    stall: float = 0.0
    supervisor: float = 0.0
    monitor: float = 0.0
    lose_beat: float = 0.0
    partition: float = 0.0
    jump: float = 0.0
    notice: float = 0.0
    corrupt: float = 0.0
    announce: float = 0.0
    run_out: float = 0.0
    xid: float = 0.0
    slow: float = 0.0
    pause: float = 0.0
    tune: float = 0.0
    raise_: float = 0.0
    depart: float = 0.0
    rack: float = 0.0
    split: float = 0.0
    link: float = 0.0
    linger: float = 0.0
    says_at_door: bool = False
    policy: str = "Ladder"

    @property
    def gpus(self) -> tuple[str, ...]:
        """Of each worker, where GPUs err."""
        return ("0",) if self.xid else ()


@dataclass(slots=True, kw_only=True)
class SimWorker:
    """A process: the protocol's state, and what its training thread is doing.

    Attributes:
        clock_rate: seconds of its host's clock in one second.
        bits: of its state; 0 where nothing has gone wrong. is_tainted: something has, since the last vote on them.
        consumed: samples of all steps that are in it.
        turn: number of its next move; one with another number has been overtaken.
        at_door: the last generation that it has begun to form. busy_until_s: user code keeps it from the door until
            then. missing: whom it waits for, or has last waited for, to form that.
    """

    name: str
    state: WorkerState = field(default_factory=WorkerState)
    view: View | None = None
    is_alive: bool = True
    is_hung: bool = False
    is_stopped: bool = False
    moved_s: float = 0.0
    turn: int = 0
    has_last_words: bool = True
    clock_rate: float = 1.0
    muted_at_s: float = 0.0
    muted_until_s: float = -math.inf
    cut_ways: tuple[str, ...] = ()
    since_s: float = 0.0
    contributed: bool = False
    bits: int = 0
    is_tainted: bool = False
    consumed: int = 0
    at_door: int = 0
    busy_until_s: float = -math.inf
    missing: tuple[str, ...] = ()
    pause_generation: int = 0
    wants_pause: bool = False
    applying: CommitId | None = None
    pending: CommitId | None = None
    unpublished: list[CommitId] = field(default_factory=list)
    deferred: list[Any] = field(default_factory=list)


FLYING = {
    Stage.LOADING: Flying.LOADING,
    Stage.FORMING: Flying.FORMING,
    Stage.READY: Flying.FORMING,
    Stage.STEPPING: Flying.COMPUTING,
    Stage.APPLYING: Flying.APPLYING,
    Stage.FINISHED: Flying.OUTSIDE,
}


def reading_of(worker: SimWorker, now_s: float) -> Reading:
    """What a host monitor sees of a worker."""
    is_busy = now_s < worker.busy_until_s
    phase = Flying.REDUCING if worker.contributed else FLYING.get(worker.state.stage, Flying.AT_DOOR)
    return Reading(
        worker=worker.name,
        generation=worker.at_door if is_busy else worker.state.generation,
        step=worker.state.commit.step + 1,
        phase=Flying.OUTSIDE if is_busy else phase,
        micro_batch=-1,
        commits=10,
        still_s=worker.clock_rate * (now_s - worker.moved_s),
        state=STOPPED if worker.is_stopped else "S",
    )
