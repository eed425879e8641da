"""Pure. Where and on what a run lives on Kubernetes: what `elastic kuberay render` writes manifests from."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from elastic.errors import SettingError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# As `kubectl taint` writes them: key=value:effect.
_TAINT = re.compile(r"(?P<key>[^=:\s]+)(=(?P<value>[^=:\s]*))?(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?")
_OURS = ("app.kubernetes.io/", "ray.io/")  # labels by which pods are found
# What the provider leaves must hold the start of the hook (an interpreter that imports Ray) and the end of the raylet.
SHORTEST_GRACE_S = 12
HIGHEST_PRIORITY = 10**9
_PRIORITY = 1000
_LEAST = dict.fromkeys(("retries", "linger_s", "gpus_per_node", "head_storage_gib"), 0) | dict.fromkeys(
    ("cpus_per_node", "memory_gib_per_node", "head_cpus", "head_memory_gib", "start_within_s"), 1
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeRay:
    """Where and on what a run lives on Kubernetes; how many nodes it needs follows from `Scaling`.

    Attributes:
        namespace: of all objects. (text; default default: every cluster has it)
        image: of head and workers. (text; default none: ray-elastic at the version of this package)
        entrypoint: the command of the job, run on the head; empty with `interactive`. (text; default none: nobody can
            guess it)
        interactive: a RayCluster to work on, instead of a RayJob. (yes or no; default no: a job frees what it used)
        ray_version: of the image. (text; default 2.60.0: the one that this package is tested with)
        retries: how often a RayJob that failed is started again, each time on a new cluster; the old one is deleted.
            (retries; default 3: the run goes on from its persistent tier)
        linger_s: how long the machines of a RayJob that has ended stay, for what they still upload. (s; default 600:
            idle machines cost as much as others)
        start_within_s: a RayJob that does not run by then, for want of machines, images or volumes, has failed. (s;
            default 1800: who waits in a queue for scarce machines gives more)
        gpus_per_node: of a machine of the pool; 0: workers are placed by CPUs. (GPUs; default 8: of an A3)
        cpus_per_node: that a worker's pod asks for. (CPUs; default 96: what an A3's pods may ask for, rounded down)
        memory_gib_per_node: that a worker's pod asks for, volumes in memory included. (GiB; default 1500: the same)
        accelerator: GPU model of the pool, as GKE names it, e.g. nvidia-h100-mega-80gb. (text; default none: any)
        spot: workers on spot machines. (yes or no; default no: they may be taken away)
        grace_s: that the provider leaves a worker's pod between word and end; spot machines of GKE 15 of their 30 s,
            unless the pool says more. (s; default 60: of machines that are drained)
        head_cpus: that the head asks for; the supervisor asks for half. (CPUs; default 4: driver, dashboard, Ray's own)
        head_memory_gib: the same, of memory. (GiB; default 16: an actor table of thousands of workers)
        cpu_pool: node pool of head and supervisor, on demand. (text; default none: any node will do)
        spare_pool: node pool of a worker group of their own for `scaling.spares`, such as one on demand where workers
            are on spot machines; no other pod of workers goes there. (text; default none: spares are more machines of
            the workers' group)
        autoscale: Ray's autoscaler asks for nodes and gives idle ones back; else elastic sets the size of the group.
            (yes or no; default yes: nobody pays for nodes that wait)
        node_rights: the head may read nodes, cordon and taint them. (yes or no; default yes: bad machines are kept out,
            and what the cloud says of machines is heard)
        service_account: Google service account that all pods act as (workload identity). (text; default none: the
            cluster's own)
        gcsfuse: mount the bucket of `checkpoint.persistent` with the Cloud Storage FUSE driver; else it is spoken to
            directly, which alone can compare before it commits. (yes or no; default no: the direct way promises more)
        claim: PersistentVolumeClaim that head and workers mount where `checkpoint.persistent` is, a folder then; many
            machines write to it. (text; default none: a bucket needs no volume)
        params: of the model, from which the ramdisk is sized. (parameters; default none: snapshots go to /dev/shm)
        multi_tier: the ramdisk is the one of GKE's multi-tier checkpointing, which outlives pods; else a volume in the
            memory of the pod. (yes or no; default no: clusters must be set up for it)
        head_storage_gib: of the volume on which Ray's head keeps its state; 0: it dies with its pod. (GiB; default 10:
            far more than it takes)
        priority: of the pods among others on the cluster, by a class of their own, which is in no namespace; 0: no
            class. (number; default none: 1000 with `node_rights`, before those that ask for nothing; 0 without, for
            who has a namespace only)
        env: variables of all containers, in place of ours of the same name; no secrets, since whoever may read the run
            can read them. (names; default none: a program says in its settings what it wants)
        env_from_secrets: secrets of the namespace whose entries are variables, too, such as tokens for data or for
            tracking. (names; default none: a bucket needs none, see `service_account`)
        image_pull_secrets: secrets of the namespace with which the image is fetched, the submitter's too. (names;
            default none: machines may read a registry of their own cloud)
        node_selector: labels of the machines for workers and spares, beside those that follow from the other knobs.
            (names; default none: GKE's own labels follow)
        tolerations: taints that their machines may have, as `kubectl taint` writes them, e.g. team=ml:NoSchedule;
            without a value: any. (taints; default none: those of GPUs and spot machines follow)
        pod_labels: of all pods, beside ours. (names; default none: ours say whose a pod is)
        pod_annotations: of all pods, beside ours. (names; default none: nobody here reads any)
    """

    namespace: str = "default"
    image: str = ""
    entrypoint: str = ""
    interactive: bool = False
    ray_version: str = "2.60.0"
    retries: int = 3
    linger_s: int = 600
    start_within_s: int = 1800
    gpus_per_node: int = 8
    cpus_per_node: int = 96
    memory_gib_per_node: int = 1500
    accelerator: str = ""
    spot: bool = False
    grace_s: int = 60
    head_cpus: int = 4
    head_memory_gib: int = 16
    cpu_pool: str = ""
    spare_pool: str = ""
    autoscale: bool = True
    node_rights: bool = True
    service_account: str = ""
    gcsfuse: bool = False
    claim: str = ""
    params: float | None = None
    multi_tier: bool = False
    head_storage_gib: int = 10
    priority: int | None = None
    env: Mapping[str, str] | None = None
    env_from_secrets: tuple[str, ...] = ()
    image_pull_secrets: tuple[str, ...] = ()
    node_selector: Mapping[str, str] | None = None
    tolerations: tuple[str, ...] = ()
    pod_labels: Mapping[str, str] | None = None
    pod_annotations: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.namespace) or len(self.namespace) > 63:
            raise SettingError(f"KubeRay.namespace={self.namespace!r} must be a name of lower case letters and digits")
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                said = "be positive" if least else "not be negative"
                raise SettingError(f"KubeRay.{name}={getattr(self, name)} must {said}")
        if self.grace_s < SHORTEST_GRACE_S:
            raise SettingError(
                f"KubeRay.grace_s={self.grace_s} must be at least {SHORTEST_GRACE_S}: the hook that drains a node "
                "takes seconds to start"
            )
        if self.priority is not None and self.priority > HIGHEST_PRIORITY:
            raise SettingError(
                f"KubeRay.priority={self.priority} must be at most {HIGHEST_PRIORITY}: more is for Kubernetes itself"
            )
        if self.params is not None and not self.params > 0:
            raise SettingError(f"KubeRay.params={self.params} must be positive")
        if self.multi_tier and self.params is None:
            raise SettingError("KubeRay.multi_tier=True needs KubeRay.params, from which the ramdisk is sized")
        if self.interactive and self.entrypoint:
            raise SettingError(
                "KubeRay.interactive=True takes no KubeRay.entrypoint: jobs are submitted to the cluster"
            )

        self._check_pods()

    def _check_pods(self) -> None:
        for one in self.tolerations:
            taint_of(one)
        for name in self.pod_labels or {}:
            if name.startswith(_OURS):
                raise SettingError(f"KubeRay.pod_labels={name!r} is a label by which pods are found: give another one")

    @property
    def class_value(self) -> int:
        """Of the class that pods name; 0: they name none."""
        return self.priority if self.priority is not None else _PRIORITY * self.node_rights


def taint_of(text: str) -> dict[str, str]:
    """Key, value and effect of a taint, those that are given. Raises: SettingError: it is none."""
    match = _TAINT.fullmatch(text)
    if match is None:
        raise SettingError(f"KubeRay.tolerations={text!r} must be a taint: key=value:NoSchedule, or key:NoSchedule")
    return {name: one for name, one in match.groupdict().items() if one is not None}
