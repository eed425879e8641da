"""Pure. What is read from Kubernetes: RayJobs, groups of RayClusters, pods, machines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class JobState(Enum):
    """Where a RayJob stands."""

    WAITING = "not running yet"
    RUNNING = "running"
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"
    INVALID = "refused by the operator"
    UNKNOWN = "over, and nobody says how"

    @property
    def is_over(self) -> bool:
        return self in (*_BY_JOB.values(), JobState.INVALID, JobState.UNKNOWN)


# `Retrying` follows a failure that is not the end, so only `Complete`, `Failed` and `ValidationFailed` are.
_BY_DEPLOYMENT = {
    "Running": JobState.RUNNING,
    "Failed": JobState.FAILED,
    "ValidationFailed": JobState.INVALID,
    "Suspending": JobState.SUSPENDED,
    "Suspended": JobState.SUSPENDED,
}
_BY_JOB = {"SUCCEEDED": JobState.SUCCEEDED, "STOPPED": JobState.STOPPED, "FAILED": JobState.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What the operator says of a RayJob.

    Attributes:
        cluster: RayCluster that it runs on, empty before. reason, message: the operator's own words.
    """

    state: JobState
    cluster: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A worker group of a RayCluster."""

    name: str
    replicas: int
    low: int
    high: int
    leaving: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a cluster: `address` is its node's in Ray, `node` the machine's in Kubernetes."""

    name: str
    group: str
    address: str
    node: str
    is_running: bool
    is_leaving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A mark that keeps pods away from a node; without `effect`, of whatever effect."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node of Kubernetes."""

    name: str
    is_cordoned: bool
    taints: tuple[Taint, ...]
    labels: Mapping[str, str] = field(default_factory=dict)


def job_status(one: Mapping[str, Any]) -> JobStatus:
    """Read a RayJob."""
    status = one.get("status") or {}
    deployed, job = str(status.get("jobDeploymentStatus", "")), str(status.get("jobStatus", ""))
    state = _BY_DEPLOYMENT.get(deployed, JobState.WAITING)
    if deployed == "Complete":
        state = _BY_JOB.get(job, JobState.UNKNOWN)
    return JobStatus(
        state=state,
        cluster=str(status.get("rayClusterName", "")),
        reason=str(status.get("reason", "")),
        message=str(status.get("message", "")),
    )


def group_states(one: Mapping[str, Any]) -> dict[str, GroupState]:
    """The worker groups of a RayCluster by name, in its order."""
    found = {}
    for spec in one["spec"].get("workerGroupSpecs") or []:
        name = str(spec["groupName"])
        found[name] = GroupState(
            name=name,
            replicas=int(spec.get("replicas") or 0),
            low=int(spec.get("minReplicas") or 0),
            high=int(spec.get("maxReplicas", 2**31 - 1)),
            leaving=tuple((spec.get("scaleStrategy") or {}).get("workersToDelete") or ()),
        )
    return found


def pod_of(one: Mapping[str, Any]) -> Pod:
    """Read a pod."""
    metadata, status = one["metadata"], one.get("status") or {}
    return Pod(
        name=str(metadata["name"]),
        group=str((metadata.get("labels") or {}).get("ray.io/group", "")),
        address=str(status.get("podIP") or ""),
        node=str(one["spec"].get("nodeName") or ""),
        is_running=status.get("phase") == "Running",
        is_leaving=bool(metadata.get("deletionTimestamp")),
    )


def machine_of(node: Mapping[str, Any]) -> Machine:
    """Read a node."""
    return Machine(
        name=str(node["metadata"]["name"]),
        is_cordoned=bool(node["spec"].get("unschedulable")),
        taints=tuple(
            Taint(key=one["key"], value=one.get("value") or "", effect=one.get("effect") or "")
            for one in taints_of(node)
        ),
        labels=dict(node["metadata"].get("labels") or {}),
    )


def taints_of(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The taints of a node, as Kubernetes writes them."""
    return list(node["spec"].get("taints") or [])
