"""Pure. The pods of a run: Ray's head, the supervisor's, and the workers'."""

from dataclasses import replace
from typing import Any

from elastic.knobs import RunConfig
from elastic.kube.shape import BUCKET, RAMDISK, ROLE, STATE, SUPERVISOR, TRAINER, Shape, bucket_of, folder_of
from elastic.settings import KubeRay
from elastic.settings.kuberay import taint_of

Object = dict[str, Any]

CONFIG_PATH = "/etc/elastic/run.yaml"
GROUP, SPARES = "workers", "spares"  # groups whose nodes take workers; the second one only where spares have a pool
_USER = 1000  # of the image
_HOOK_S, _LONGEST_HOOK_S = 5, 15  # the preStop hook: an interpreter that imports Ray; between, a quarter of the grace
_END_S = 5  # of a raylet, once its node is drained
_ON_DEMAND_GRACE_S = 60  # of pods that are on no spot machine
_IDLE_DRAIN_S = 5  # of raylets that no worker is on
# Ray's own is 15: whatever else runs on a node would go before training; and a pod has no right to change it later.
_NICENESS = "RAY_worker_niceness"
_DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"  # how long a raylet that is told to end leaves those that it runs
_SPOT, _POOL = "cloud.google.com/gke-spot", "cloud.google.com/gke-nodepool"
# A node that is gone is found out about in 3 s, not in a minute (docs/faults.md).
_HEALTH_CHECKS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}
# GKE's sidecar for mounted buckets: without limits of its own, it takes what uploads need.
_BUCKET_SIDECAR = {
    "gke-gcsfuse/volumes": "true",
    "gke-gcsfuse/cpu-limit": "0",
    "gke-gcsfuse/memory-limit": "0",
    "gke-gcsfuse/ephemeral-storage-limit": "0",
}

# Of pods of which there is one: the cluster's autoscaler would move them to save a machine.
_STAYS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


def cluster_spec(config: RunConfig, kuberay: KubeRay, plan: Shape, image: str) -> Object:
    """`spec` of a RayCluster, `rayClusterSpec` of a RayJob.

    Args:
        config: settings as they hold on the cluster. plan: see `shape`.
    """
    spec: Object = {
        "rayVersion": kuberay.ray_version,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": kuberay.autoscale,
    }
    if kuberay.autoscale:
        spec["autoscalerOptions"] = {"version": "v2", "upscalingMode": "Default", "idleTimeoutSeconds": 300}
    if kuberay.head_storage_gib:
        volume = {"size": f"{kuberay.head_storage_gib}Gi", "deletionPolicy": "DeleteWithCluster"}
        spec["gcsFaultToleranceOptions"] = {"backend": "rocksdb", "storage": volume}
    spec["headGroupSpec"] = {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
        "template": _head(config, kuberay, image),
    }
    spec["workerGroupSpecs"] = [
        _group("supervisor", SUPERVISOR, 1, 1, _supervisor(config, kuberay, image)),
        _group(GROUP, TRAINER, plan.low, plan.high, _trainer(config, kuberay, plan, image, _of_workers(kuberay))),
    ]
    if plan.spares:
        pod = _trainer(config, kuberay, plan, image, _of_spares(kuberay))
        spec["workerGroupSpecs"].append(_group(SPARES, TRAINER, 0, plan.spares, pod))
    return spec


def labels_of(run: str, component: str = "") -> dict[str, str]:
    """What all objects of a run carry."""
    labels = {"app.kubernetes.io/name": run, "app.kubernetes.io/managed-by": "elastic"}
    return labels | ({"app.kubernetes.io/component": component} if component else {})


def of_cluster(config: RunConfig, kuberay: KubeRay, what: str) -> str:
    """Name of an object in no namespace; no dot is in a namespace or in a run, so that none has two meanings."""
    return f"{kuberay.namespace}.{config.name}.{what}"


def priority_class(config: RunConfig, kuberay: KubeRay) -> str:
    """Named after its value, too: none can be changed. Names that begin with `system-` are for Kubernetes itself."""
    name = of_cluster(config, kuberay, str(kuberay.class_value).replace("-", "n"))
    return f"elastic.{name}" if name.startswith("system-") else name


def _group(name: str, role: str, low: int, high: int, template: Object) -> Object:
    return {
        "groupName": name,
        # A RayJob starts its program once all of these run; the rest is asked for by the run, or by Ray's autoscaler.
        "replicas": low,
        "minReplicas": low,
        "maxReplicas": high,
        "labels": {ROLE: role},
        "rayStartParams": {},
        "template": template,
    }


def _head(config: RunConfig, kuberay: KubeRay, image: str) -> Object:
    env = [{"name": name, "value": value} for name, value in _HEALTH_CHECKS.items()]
    env += [{"name": "ELASTIC_CONFIG", "value": CONFIG_PATH}, {"name": _DRAIN, "value": str(_IDLE_DRAIN_S)}]
    container: Object = {
        "name": "ray-head",
        "image": image,
        "env": env,
        "ports": [
            {"containerPort": 6379, "name": "gcs-server"},
            {"containerPort": 8265, "name": "dashboard"},
            {"containerPort": 10001, "name": "client"},
            {"containerPort": 8080, "name": "metrics"},
        ],
        "resources": _amounts({"cpu": str(kuberay.head_cpus), "memory": f"{kuberay.head_memory_gib}Gi"}),
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_PATH.rpartition("/")[0], "readOnly": True},
            {"name": "state", "mountPath": STATE},
        ],
    }
    if kuberay.interactive:
        container["workingDir"] = STATE  # of jobs that bring none
    volumes: list[Object] = [
        {"name": "config", "configMap": {"name": f"{config.name}-config"}},
        {"name": "state", "emptyDir": {}},  # the run directory
    ]
    return _pod(config, kuberay, "head", container, volumes, _on_demand(kuberay))


def _supervisor(config: RunConfig, kuberay: KubeRay, image: str) -> Object:
    container = {
        "name": "ray-worker",
        "image": image,
        "env": [{"name": _DRAIN, "value": str(_IDLE_DRAIN_S)}, {"name": _NICENESS, "value": "0"}],
        "resources": _amounts({"cpu": f"{kuberay.head_cpus * 500}m", "memory": f"{kuberay.head_memory_gib * 512}Mi"}),
        "volumeMounts": [],
    }
    return _pod(config, kuberay, SUPERVISOR, container, [], _on_demand(kuberay))


def _trainer(config: RunConfig, kuberay: KubeRay, plan: Shape, image: str, place: Object) -> Object:
    resources = {"cpu": str(kuberay.cpus_per_node), "memory": f"{kuberay.memory_gib_per_node}Gi"}
    if kuberay.gpus_per_node:
        resources["nvidia.com/gpu"] = str(kuberay.gpus_per_node)
    volumes: list[Object] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{plan.shm_gib}Gi"}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - where Linux keeps shared memory
    if plan.ramdisk_gib is not None:
        volumes.append({"name": "ramdisk", **_ramdisk(kuberay, plan.ramdisk_gib)})
        mounts.append({"name": "ramdisk", "mountPath": RAMDISK})
    drain_s = kuberay.grace_s - _hook_s(kuberay) - _END_S
    container: Object = {
        "name": "ray-worker",
        "image": image,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": _DRAIN, "value": str(drain_s)},
            {"name": _NICENESS, "value": "0"},
        ],
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", _hook(kuberay)]}}},
        "ports": [{"containerPort": 8080, "name": "metrics"}],
        "resources": _amounts(resources),
        "volumeMounts": mounts,
    }
    return _pod(config, kuberay, TRAINER, container, volumes, place)


def _hook(kuberay: KubeRay) -> str:
    """Tell the run, through Ray, that the node leaves; whatever comes of it, the pod ends when it must.

    A head that accepts and answers nothing must not take what the raylet needs after the hook.
    """
    said = f'--deadline {kuberay.grace_s - _END_S} --reason "its pod is deleted"'
    return f'timeout -k 1 {_hook_s(kuberay)} elastic drain "$POD_IP" {said} || true'


def _hook_s(kuberay: KubeRay) -> int:
    return min(max(_HOOK_S, kuberay.grace_s // 4), _LONGEST_HOOK_S)


def _ramdisk(kuberay: KubeRay, gib: int) -> Object:
    if kuberay.multi_tier:
        return {"csi": {"driver": "multitier-checkpoint.csi.storage.gke.io"}}
    return {"emptyDir": {"medium": "Memory", "sizeLimit": f"{gib}Gi"}}


def _amounts(amounts: dict[str, str]) -> Object:
    """Asked for and never exceeded, so that the pod is the last to be evicted."""
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _on_demand(kuberay: KubeRay) -> Object:
    """For who must not be taken away: any machine but spot ones, of the pool that is named."""
    place = _only_where({"key": _SPOT, "operator": "DoesNotExist"})
    if kuberay.cpu_pool:
        place["nodeSelector"] = {_POOL: kuberay.cpu_pool}
    return place


def _of_workers(kuberay: KubeRay) -> Object:
    place = _with_gpus(kuberay, {_SPOT: "true"} if kuberay.spot else {}, kuberay.spot)
    rules: list[Object] = []
    if not kuberay.spot and _SPOT not in (kuberay.node_selector or {}):  # a label is all they are sure to have
        rules.append({"key": _SPOT, "operator": "DoesNotExist"})
    if kuberay.spare_pool:  # else they would take the place of spares, which have no other
        rules.append({"key": _POOL, "operator": "NotIn", "values": [kuberay.spare_pool]})
    return place | (_only_where(*rules) if rules else {})


def _of_spares(kuberay: KubeRay) -> Object:
    """On demand or not, as the pool is; what the user says of where workers are says nothing of either."""
    own = {label: value for label, value in (kuberay.node_selector or {}).items() if label not in (_POOL, _SPOT)}
    return _with_gpus(replace(kuberay, node_selector=own), {_POOL: kuberay.spare_pool}, may_be_spot=True)


def _with_gpus(kuberay: KubeRay, selector: dict[str, str], may_be_spot: bool) -> Object:
    tolerations = []
    selector = selector | dict(kuberay.node_selector or {})
    if kuberay.accelerator:
        selector = {"cloud.google.com/gke-accelerator": kuberay.accelerator} | selector
    if kuberay.gpus_per_node:
        tolerations.append({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    if may_be_spot:
        tolerations.append({"key": _SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    tolerations += [_toleration(one) for one in kuberay.tolerations]
    place: Object = {"nodeSelector": selector} if selector else {}
    return place | ({"tolerations": tolerations} if tolerations else {})


def _toleration(taint: str) -> Object:
    said = taint_of(taint)
    return said | {"operator": "Equal" if "value" in said else "Exists"}


def _only_where(*rules: Object) -> Object:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(rules)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _pod(
    config: RunConfig, kuberay: KubeRay, component: str, container: Object, volumes: list[Object], place: Object
) -> Object:
    """A pod template with what all have in common."""
    run = str(config.name)
    annotations = dict(kuberay.pod_annotations or {}) | ({} if component == TRAINER else _STAYS)
    container = container | _environment(kuberay, container["env"])
    container |= {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    if component != SUPERVISOR:
        tier, mounts = _tier(config, kuberay)
        volumes, container = [*volumes, *tier], container | {"volumeMounts": [*container["volumeMounts"], *mounts]}
        if any(one["name"] == "bucket" for one in tier):
            annotations |= _BUCKET_SIDECAR
    is_head = component == "head"
    spec: Object = {
        "serviceAccountName": f"{run}-head" if is_head else f"{run}-worker",
        "restartPolicy": "Never",  # what the second autoscaler asks for
        **({"priorityClassName": priority_class(config, kuberay)} if kuberay.class_value else {}),
        "terminationGracePeriodSeconds": kuberay.grace_s if component == TRAINER else _ON_DEMAND_GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **place,
        "containers": [container],
        "volumes": volumes,
        **pull_secrets(kuberay),
    }
    if not is_head:
        spec["automountServiceAccountToken"] = False  # nothing there speaks to Kubernetes
    metadata: Object = {"labels": dict(kuberay.pod_labels or {}) | labels_of(run, component)}
    return {"metadata": metadata | ({"annotations": annotations} if annotations else {}), "spec": spec}


def pull_secrets(kuberay: KubeRay) -> Object:
    """The part of a pod's `spec` with which its image is fetched."""
    found = [{"name": one} for one in kuberay.image_pull_secrets]
    return {"imagePullSecrets": found} if found else {}


def _environment(kuberay: KubeRay, ours: list[Object]) -> Object:
    """What a container is told: by us, instead of us, and by secrets."""
    given = kuberay.env or {}
    env = [one for one in ours if one["name"] not in given]
    secrets = [{"secretRef": {"name": one}} for one in kuberay.env_from_secrets]
    env += [{"name": name, "value": value} for name, value in given.items()]
    return {"env": env} | ({"envFrom": secrets} if secrets else {})


def _tier(config: RunConfig, kuberay: KubeRay) -> tuple[list[Object], list[Object]]:
    """The volume that the persistent tier lies on, and where it is mounted; none where it is spoken to directly."""
    if kuberay.claim:
        claim = {"claimName": kuberay.claim}
        where = [{"name": "store", "mountPath": folder_of(config)}]
        return [{"name": "store", "persistentVolumeClaim": claim}], where
    if kuberay.gcsfuse:
        attributes = {"bucketName": bucket_of(config), "mountOptions": "implicit-dirs"}
        driver = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}
        return [{"name": "bucket", "csi": driver}], [{"name": "bucket", "mountPath": BUCKET}]
    return [], []
