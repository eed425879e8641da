"""Pure. What KubeRay's operator refuses although the schema allows it.

Source: `ray-operator/controllers/ray/utils/validation.go` of KubeRay 1.7. The operator marks such an object as invalid
once it is there; `kubectl apply` takes it without a word.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from elastic.kube.schema import Problem

LONGEST = {"RayJob": 47, "RayCluster": 63}
_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")  # RFC 1035
_AUTH_SINCE = (2, 52)
_V2_VARIABLE = "RAY_enable_autoscaler_v2"

Spec = Mapping[str, Any]


def problems(one: Mapping[str, Any]) -> Iterator[Problem]:
    """Of a RayJob or a RayCluster; of other kinds none."""
    kind, spec = str(one.get("kind")), one.get("spec") or {}
    if kind not in LONGEST:
        return
    yield from _name(kind, str((one.get("metadata") or {}).get("name", "")))
    if kind == "RayCluster":
        yield from _cluster(spec, "spec")
        return
    yield from _job(spec)
    if "rayClusterSpec" in spec:
        yield from _cluster(spec["rayClusterSpec"], "spec.rayClusterSpec")
        auth = spec["rayClusterSpec"].get("authOptions") or {}
        if auth.get("enableK8sTokenAuth"):
            where = "spec.rayClusterSpec.authOptions.enableK8sTokenAuth"
            yield Problem(path=where, what="a RayJob's own requests carry no token of Kubernetes; leave it out")


def _name(kind: str, name: str) -> Iterator[Problem]:
    if not _LABEL.match(name):
        what = f"{name!r} must be lower case letters, digits and dashes, and begin with a letter"
        yield Problem(path="metadata.name", what=what)
    if len(name) > LONGEST[kind]:
        what = f"{name!r} has {len(name)} characters; a {kind} may have {LONGEST[kind]}"
        yield Problem(path="metadata.name", what=what)


def _job(spec: Spec) -> Iterator[Problem]:
    shuts_down = spec.get("shutdownAfterJobFinishes", False)
    strategy, mode = spec.get("deletionStrategy") or {}, spec.get("submissionMode", "K8sJobMode")
    has_selector = bool(spec.get("clusterSelector"))
    found = {
        "suspend": spec.get("suspend") and not shuts_down and "suspend needs shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished": spec.get("ttlSecondsAfterFinished")
        and not (shuts_down or strategy)
        and "a ttl needs shutdownAfterJobFinishes",
        "deletionStrategy": shuts_down
        and strategy.get("deletionRules")
        and "shutdownAfterJobFinishes and deletionRules say the same: give one",
        "backoffLimit": (spec.get("backoffLimit") or 0) < 0 and "must not be negative",
        "clusterSelector": has_selector
        and (spec.get("suspend") or spec.get("backoffLimit"))
        and "a job on a cluster that is there already can neither be suspended nor retried on a new one",
        "rayClusterSpec": not has_selector and "rayClusterSpec" not in spec and "is missing, as is clusterSelector",
        "entrypoint": not spec.get("entrypoint") and mode != "InteractiveMode" and "is empty",
        "activeDeadlineSeconds": (spec.get("activeDeadlineSeconds", 1) or 0) <= 0 and "must be positive",
    }
    if (spec.get("ttlSecondsAfterFinished") or 0) < 0:
        yield Problem(path="spec.ttlSecondsAfterFinished", what="must not be negative")
    for name, what in found.items():
        if what:
            yield Problem(path=f"spec.{name}", what=str(what))
    if mode == "SidecarMode":
        yield from _sidecar(spec)


def _sidecar(spec: Spec) -> Iterator[Problem]:
    for name in ("submitterPodTemplate", "submitterConfig", "clusterSelector"):
        if spec.get(name):
            yield Problem(path=f"spec.{name}", what="is not for SidecarMode")
    head = ((spec.get("rayClusterSpec") or {}).get("headGroupSpec") or {}).get("template") or {}
    if (head.get("spec") or {}).get("restartPolicy") != "Never":
        where = "spec.rayClusterSpec.headGroupSpec.template.spec.restartPolicy"
        yield Problem(path=where, what="must be Never in SidecarMode")


def _cluster(spec: Spec, path: str) -> Iterator[Problem]:
    head, groups = spec.get("headGroupSpec") or {}, spec.get("workerGroupSpecs") or []
    placed = [(f"{path}.headGroupSpec", head)]
    placed += [(f"{path}.workerGroupSpecs[{number}]", group) for number, group in enumerate(groups)]
    for where, group in placed:
        yield from _group(group, where)
    names = [group.get("groupName") for group in groups]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield Problem(path=f"{path}.workerGroupSpecs[{number}].groupName", what=f"{name!r} is there twice")
    for number, group in enumerate(groups):
        yield from _bounds(group, f"{path}.workerGroupSpecs[{number}]", bool(spec.get("enableInTreeAutoscaling")))
    yield from _autoscaler(spec, path, placed)
    yield from _auth(spec, path)
    yield from _head_state(spec, path)


def _group(group: Spec, path: str) -> Iterator[Problem]:
    start = group.get("rayStartParams") or {}
    containers = ((group.get("template") or {}).get("spec") or {}).get("containers") or []
    if not containers:
        yield Problem(path=f"{path}.template.spec.containers", what="is empty")
    if "labels" in start:
        yield Problem(path=f"{path}.rayStartParams.labels", what="belongs into the group's own `labels`")
    if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & set(start):
        yield Problem(path=f"{path}.resources", what="rayStartParams says resources too: give them once")


def _bounds(group: Spec, path: str, autoscales: bool) -> Iterator[Problem]:
    low, high, wanted = group.get("minReplicas"), group.get("maxReplicas"), group.get("replicas")
    if not autoscales and (low is None or high is None):
        yield Problem(path=path, what="without autoscaling, minReplicas and maxReplicas must be given")
    if low is not None and high is not None and low > high:
        yield Problem(path=f"{path}.minReplicas", what=f"{low} is above maxReplicas {high}")
    if wanted is not None and not (low or 0) <= wanted <= (wanted if high is None else high):
        yield Problem(path=f"{path}.replicas", what=f"{wanted} is not between minReplicas and maxReplicas")
    if group.get("suspend") and autoscales:
        yield Problem(path=f"{path}.suspend", what="groups can not be suspended with autoscaling")


def _autoscaler(spec: Spec, path: str, groups: list[tuple[str, Any]]) -> Iterator[Problem]:
    if not spec.get("enableInTreeAutoscaling"):
        return
    version = (spec.get("autoscalerOptions") or {}).get("version")
    env = [
        variable.get("name")
        for container in (((groups[0][1].get("template") or {}).get("spec") or {}).get("containers") or [])
        for variable in container.get("env") or []
    ]
    if version and _V2_VARIABLE in env:
        where = f"{path}.autoscalerOptions.version"
        yield Problem(path=where, what=f"{_V2_VARIABLE} of the head says the same: give one")
    if version != "v2" and _V2_VARIABLE not in env:
        return
    for where, group in groups:
        policy = ((group.get("template") or {}).get("spec") or {}).get("restartPolicy")
        if policy not in (None, "", "Never"):
            yield Problem(
                path=f"{where}.template.spec.restartPolicy", what=f"{policy} must be Never with autoscaler v2"
            )


def _auth(spec: Spec, path: str) -> Iterator[Problem]:
    if (spec.get("authOptions") or {}).get("mode") != "token":
        return
    found = re.match(r"(\d+)\.(\d+)", str(spec.get("rayVersion", "")))
    if found is None or tuple(map(int, found.groups())) < _AUTH_SINCE:
        since = ".".join(map(str, _AUTH_SINCE))
        yield Problem(path=f"{path}.rayVersion", what=f"authOptions.mode token needs {since} or later")


def _head_state(spec: Spec, path: str) -> Iterator[Problem]:
    options = spec.get("gcsFaultToleranceOptions") or {}
    if options.get("backend") == "rocksdb":
        for name in ("redisAddress", "redisPassword", "redisUsername", "externalStorageNamespace"):
            if options.get(name):
                yield Problem(path=f"{path}.gcsFaultToleranceOptions.{name}", what="is not for the backend rocksdb")
    elif options.get("storage"):
        yield Problem(path=f"{path}.gcsFaultToleranceOptions.storage", what="is for the backend rocksdb")
