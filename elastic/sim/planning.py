"""Pure. What to set for a cluster: policy, spares, minimum, intervals; each choice tried in simulated runs.

All choices are tried on the same failures, so that what differs is the choice. What is best is what an hour of the full
group's work costs least with; where nothing costs anything, what does most work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any

from elastic.control.faults import FaultKind
from elastic.control.suspicion import hang_s
from elastic.policies.interval import optimal_interval_s
from elastic.settings import Limits
from elastic.sim.scenario import INFINITE, Cluster, Failures, Job, Scenario, Times, bounded, whole_replicas
from elastic.sim.study import Row
from elastic.sim.vocabulary import LEAST

DAY_S = 86400.0
# What was measured, and where; docs/simulator.md says how it is scaled. tests/pure/test_planning.py holds it to that.
STALL_BYTES_PER_S = 64.9e9  # checkpoint_systems.json: 256 MiB, elastic: median stall_s
DETECT_S = 0.311  # recovery_elastic.json, node: median t_resume_s, all of it
FREEZE_S = 0.112  # docs/scale.md: until the freeze is decided, at 10,000 hosts
GO_S_PER_HOST = 12.4 / 10_000  # docs/scale.md: until the go, at 10,000 hosts
HEAL_TIMES = 2.2  # recovery_elastic.json, join: median longest_gap_s over median copy_s
_CHOSEN = ("spare_nodes", "spare_replicas", "policy", "minimum_replicas")
_DERIVED = ("peers", "local_interval_s", "persistent_interval_s")  # by formulas, from what is chosen
MOST_PEERS = 3
# Of the failures that nobody announces: table 5 of "The Llama 3 Herd of Models" (arXiv:2407.21783), where 148 were
# faults of GPUs; that as many compute slowly as hang is an assumption, and so is which XIDs there are.
_KINDS = {
    FaultKind.NODE_DOWN: 176.0,
    FaultKind.XID: 148.0,
    FaultKind.KILL: 56.0,
    FaultKind.STOP: 7.0,
    FaultKind.SLOW: 7.0,
}
_XIDS = {79: 1.0, 95: 1.0}  # a machine that must go, and a GPU that must be reset
_NEVER = 1e-30
_HANGS_S = 3600.0  # what hangs, or is slow, does not pass soon
POLICIES = ("Ladder", "HotSwapFirst", "ShrinkFirst", "CostAware")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A cluster and a job.

    Attributes:
        mtbf_s: between two failures of the whole cluster. notice_share: of the failures that are announced, notice_s
            before. repair_s: until a machine is back.
        outage_mtbf_s: between two failures of all machines at once, after which only what was uploaded is left.
        state_bytes: of one copy of model and optimizer. link_bytes_per_s: between two machines.
        storage_bytes_per_s: of the persistent tier, in all. disk_bytes_per_s: of a disk that each machine has and that
            outlives an outage; 0: there is none. loading_s: from a start to the first step.
        connect_s: until a group is connected, NCCL included.
    """

    gpus: int
    mtbf_s: float
    state_bytes: float
    gpus_per_node: int = 8
    nodes_per_replica: int = 1
    notice_share: float = 0.0
    notice_s: float = 30.0
    repair_s: float = 14400.0
    outage_mtbf_s: float = 30 * DAY_S
    link_bytes_per_s: float = 25e9
    storage_bytes_per_s: float = 10e9
    disk_bytes_per_s: float = 0.0
    loading_s: float = 300.0
    connect_s: float = 10.0
    step_s: float = 10.0
    hours: float = 168.0
    price_per_gpu_hour: float = 0.0

    def __post_init__(self) -> None:
        """
        Raises:
            SettingError: the GPUs make no whole number of replicas; or a time is too short to be simulated.
        """
        times = {"--mtbf": self.mtbf_s, "--outage": self.outage_mtbf_s, "--step": self.step_s, "--hours": self.hours}
        for where, value in times.items():
            bounded(where, value, LEAST)
        whole_replicas(self.gpus, self.gpus_per_node * self.nodes_per_replica, "--gpus")

    @property
    def replicas(self) -> int:
        return self.gpus // (self.gpus_per_node * self.nodes_per_replica)

    @property
    def node_bytes(self) -> float:
        """Of the state, on one machine."""
        return self.state_bytes / self.nodes_per_replica

    @property
    def all_lost_s(self) -> float:
        """Between two times at which all replicas are lost, one after the other, each before the first is back."""
        lost = min(1.0, (self.repair_s + self.loading_s) / (self.mtbf_s * self.replicas))  # of the time, a replica is
        return self.mtbf_s / max(lost ** (self.replicas - 1), _NEVER)

    @property
    def stall_s(self) -> float:
        """For which a snapshot holds training up."""
        return self.node_bytes / self.gpus_per_node / STALL_BYTES_PER_S

    @property
    def upload_s(self) -> float:
        return self.state_bytes / self.storage_bytes_per_s

    @property
    def copy_s(self) -> float:
        """Until what one machine has of a snapshot is on another one."""
        return self.node_bytes / self.link_bytes_per_s

    def memory_lost_s(self, peers: int) -> float:
        """Between two times at which snapshots in memory are lost, copies on so many other machines included.

        All replicas are lost, and then these machines too, each before the copies of the one before are made good.
        """
        again = min(1.0, self.copy_s / (self.mtbf_s * self.replicas * self.nodes_per_replica))
        return self.all_lost_s / max(again**peers, _NEVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What can be set."""

    policy: str = "Ladder"
    spare_nodes: int = 0
    spare_replicas: int = 0
    minimum_replicas: int = 1
    local_interval_s: float = 60.0
    persistent_interval_s: float = 1800.0
    peers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The best choice.

    Attributes:
        row: what came of it. worth: by name of a setting, its other values and what comes of these; all else is as
            chosen, or follows from it.
    """

    choice: Choice
    row: Row
    worth: dict[str, tuple[tuple[str, Row], ...]] = field(default_factory=dict)


def machines_of(given: Given, choice: Choice) -> int:
    size = given.nodes_per_replica
    return given.replicas * size + max(choice.spare_nodes, choice.spare_replicas * size)


def peers_of(given: Given, machines: int) -> int:
    """As few as lose what is in memory more seldom than all machines go at once; none where no other machine is.

    One at least: where there are several replicas it takes no transfer, see docs/checkpointing.md.
    """
    most = min(MOST_PEERS, machines - 1)
    enough = (peers for peers in range(1, most) if given.memory_lost_s(peers) >= given.outage_mtbf_s)
    return next(enough, most)


def intervals_s(given: Given, peers: int) -> tuple[float, float]:
    """Between two snapshots in memory, and between two uploads: Daly's optimum, see `policies.interval`.

    Nobody needs a snapshot while another replica lives: what counts is how often all are lost. None is taken before the
    step after it, or before copies of the last one have arrived, where any are sent. Nobody needs an upload while
    memory has the snapshot. One costs no stall of its own; it is done as often as the storage takes, and a snapshot is
    made for each.
    """
    durable_only_s = 1.0 / (1.0 / given.outage_mtbf_s + 1.0 / given.memory_lost_s(peers))
    persistent_s = max(given.upload_s, given.step_s, optimal_interval_s(given.stall_s, durable_only_s))
    sent_s = given.copy_s if given.replicas <= peers else 0.0
    local_s = max(given.step_s, sent_s, optimal_interval_s(given.stall_s, given.all_lost_s))
    return min(persistent_s, local_s), persistent_s


def disk_interval_s(given: Given, choice: Choice) -> float:
    """Between two snapshots on disks, which come as fast as these are; infinite without any."""
    if not given.disk_bytes_per_s:
        return INFINITE
    return max(choice.local_interval_s, given.node_bytes / given.disk_bytes_per_s)


def disk_worth(given: Given, choice: Choice) -> float:
    """Share of the time that disks save: of the work that an outage loses, on average half the interval (Young, Daly).

    Uploads are what it is compared with.
    """
    saved_s = choice.persistent_interval_s - min(choice.persistent_interval_s, disk_interval_s(given, choice))
    return saved_s / 2 / given.outage_mtbf_s


def settings_of(given: Given, choice: Choice) -> dict[str, Any]:
    """What a run's file says, see docs/configuration.md; where uploads and disks are, only its owner knows."""
    return {
        "policy": f"elastic.policies:{choice.policy}",
        "scaling": {
            "num_dp_replicas": [choice.minimum_replicas, given.replicas],
            "spares": choice.spare_replicas,
            "workers_per_replica": given.gpus_per_node * given.nodes_per_replica,
            "num_nodes_per_dp": given.nodes_per_replica,
            "use_gpu": True,
        },
        "checkpoint": {
            "local_interval": {"seconds": round(choice.local_interval_s, 3)},
            "persistent_interval": {"seconds": round(choice.persistent_interval_s, 3)},
            "peers": choice.peers,
        },
    }


def doubts(given: Given, plan: Plan) -> list[str]:
    """Why nobody should go by this plan, in sentences."""
    found = []
    if not plan.row.goodput:
        found.append(f"whatever is set, no work is done in {given.hours:g} h: nobody comes as far as to keep a step")
    if given.upload_s > min(given.hours * 3600.0, given.outage_mtbf_s):
        found.append(f"an upload takes {given.upload_s:.0f} s, by when the job is over, or all machines have failed")
    return found


def scenario_of(given: Given, choice: Choice) -> Scenario:
    """A run on this cluster with these settings."""
    notice, total = given.notice_share, fsum(_KINDS.values())
    shard_bytes = given.node_bytes / given.gpus_per_node
    return Scenario(
        name="plan",
        cluster=Cluster(
            gpus=given.gpus,
            gpus_per_node=given.gpus_per_node,
            nodes_per_replica=given.nodes_per_replica,
            nodes_per_rack=machines_of(given, choice),
            spare_nodes=choice.spare_nodes,
            repair_s=given.repair_s,
            price_per_gpu_hour=given.price_per_gpu_hour,
        ),
        job=Job(
            hours=given.hours,
            step_s=given.step_s,
            minimum_replicas=choice.minimum_replicas,
            spare_replicas=choice.spare_replicas,
            peers=choice.peers,
        ),
        failures=Failures(
            per_day=DAY_S / given.mtbf_s,
            kinds={
                **{kind: (1.0 - notice) * weight / total for kind, weight in _KINDS.items()},
                FaultKind.NOTICE: notice,
            },
            xids=_XIDS,
            lasts_s=_HANGS_S,
            notice_s=given.notice_s,
            rack_mtbf_s=given.outage_mtbf_s,
        ),
        times=Times(
            detect_s=DETECT_S,
            detect_hang_s=hang_s(given.step_s, Limits()),
            freeze_s=FREEZE_S,
            form_s=given.connect_s,
            form_per_replica_s=GO_S_PER_HOST * given.nodes_per_replica,
            heal_s=HEAL_TIMES * shard_bytes / (given.link_bytes_per_s / given.gpus_per_node),
            loading_s=given.loading_s,
            load_s=given.upload_s,
            save_interval_s=choice.local_interval_s,
            save_stall_s=given.stall_s,
            copy_s=given.copy_s,
            upload_interval_s=choice.persistent_interval_s,
        ),
    )


Play = Callable[[str, Sequence[tuple[Scenario, str]]], Sequence[Row]]


def planned(given: Given, play: Play) -> Plan:
    """One setting after the other takes its best value; then each is varied once more around the best choice.

    Args:
        play: some runs of each of these scenarios, under the policy of this name; told before is what is tried.
    """
    best = Choice()
    known: dict[Choice, Row] = {}

    def try_out(what: str, choices: Sequence[Choice]) -> None:
        new = [choice for choice in choices if choice not in known]
        rows = play(what, [(scenario_of(given, choice), choice.policy) for choice in new]) if new else ()
        known.update(zip(new, rows, strict=True))

    for name in _CHOSEN:
        choices = [_with(given, best, name, value) for value in _values(given, best, name)]
        try_out(name, choices)
        best = min(choices, key=lambda one: _cost(known[one]))
    around = {name: _values(given, best, name) for name in (*_CHOSEN, *_DERIVED)}
    try_out(
        "what each is worth", [_with(given, best, name, value) for name, values in around.items() for value in values]
    )
    worth = {
        name: tuple((_told(value), known[_with(given, best, name, value)]) for value in values)
        for name, values in around.items()
    }
    return Plan(choice=best, row=known[best], worth=worth)


def _values(given: Given, best: Choice, name: str) -> Sequence[Any]:
    """What is tried of a setting, what is chosen among it, cheapest first."""
    size = given.nodes_per_replica
    if name == "policy":
        return POLICIES
    if name == "spare_nodes":
        return sorted({0, 1, 2, size, 2 * size})
    if name == "spare_replicas":
        return (0, 1)
    if name == "minimum_replicas":
        return sorted({1, max(1, given.replicas // 2), given.replicas})
    if name == "peers":
        return sorted({best.peers, *range(min(3, machines_of(given, best)))})
    interval_s = getattr(best, name)
    return (max(LEAST, interval_s / 4), interval_s, interval_s * 4)


def _with(given: Given, choice: Choice, name: str, value: Any) -> Choice:
    """What is derived is so anew, unless it is what is changed."""
    changed: dict[str, Any] = {name: value}
    choice = replace(choice, **changed)
    if name in _DERIVED:
        return choice
    peers = peers_of(given, machines_of(given, choice))
    local_s, persistent_s = intervals_s(given, peers)
    return replace(choice, peers=peers, local_interval_s=local_s, persistent_interval_s=persistent_s)


def _told(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cost(row: Row) -> tuple[float, float]:
    """Who does no work costs nothing an hour of it."""
    return (row.useful_cost if row.goodput else INFINITE, -row.goodput)
