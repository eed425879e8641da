"""Pure. What KubeRay's operator refuses although the schema allows it.

Source: `ray-operator/controllers/ray/utils/validation.go` of KubeRay 1.7. The operator marks such an object as invalid
once it is there; `kubectl apply` takes it without a word.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from elastic.kube.schema import Problem

LONGEST = {"RayJob": 47, "RayCluster": 63}
_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")  # RFC 1035
# Kubernetes' own words for labels; a key may have a domain in front.
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{,251}}[a-z0-9])?/)?{_PART}")
_VALUE = re.compile(rf"({_PART})?")
_AUTH_SINCE, _K8S_AUTH_SINCE = (2, 52), (2, 55)
_ORDER = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")  # what goes first, since the next takes it along
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
    selector = spec.get("clusterSelector") or {}
    found = {
        "suspend": spec.get("suspend") and not shuts_down and "suspend needs shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished": spec.get("ttlSecondsAfterFinished")
        and not shuts_down
        and "a ttl needs shutdownAfterJobFinishes",
        "deletionStrategy": shuts_down
        and strategy.get("deletionRules")
        and "shutdownAfterJobFinishes and deletionRules say the same: give one",
        "backoffLimit": _backoff(spec.get("backoffLimit") or 0, mode),
        "clusterSelector": selector and _selector(spec, selector),
        "rayClusterSpec": not selector and "rayClusterSpec" not in spec and "is missing, as is clusterSelector",
        "entrypoint": not spec.get("entrypoint") and mode != "InteractiveMode" and "is empty",
        "activeDeadlineSeconds": (spec.get("activeDeadlineSeconds", 1) or 0) <= 0 and "must be positive",
        "runtimeEnvYAML": not _is_mapping(spec.get("runtimeEnvYAML")) and "must be YAML with names and values",
    }
    if (spec.get("ttlSecondsAfterFinished") or 0) < 0:
        yield Problem(path="spec.ttlSecondsAfterFinished", what="must not be negative")
    for name, what in found.items():
        if what:
            yield Problem(path=f"spec.{name}", what=str(what))
    if mode == "SidecarMode":
        yield from _sidecar(spec)
    yield from _deletion(strategy, bool((spec.get("rayClusterSpec") or {}).get("enableInTreeAutoscaling")))


def _backoff(limit: int, mode: str) -> str:
    if limit < 0:
        return "must not be negative"
    return "a job that is submitted by hand can not be retried" if limit and mode == "InteractiveMode" else ""


def _selector(spec: Spec, selector: Mapping[str, Any]) -> str:
    if spec.get("suspend") or spec.get("backoffLimit"):
        return "a job on a cluster that is there already can neither be suspended nor retried on a new one"
    return "" if selector.get("ray.io/cluster") else "names no cluster: give ray.io/cluster"


def _is_mapping(text: Any) -> bool:
    try:
        return not text or isinstance(yaml.safe_load(str(text)), Mapping)
    except yaml.YAMLError:
        return False


def _deletion(strategy: Spec, autoscales: bool) -> Iterator[Problem]:
    where, rules = "spec.deletionStrategy", strategy.get("deletionRules") or []
    policies = [(f"{where}.{name}", (strategy.get(name) or {}).get("policy")) for name in ("onSuccess", "onFailure")]
    policies += [(f"{where}.deletionRules[{number}]", rule.get("policy")) for number, rule in enumerate(rules)]
    for path, policy in policies:
        if policy == "DeleteWorkers" and autoscales:
            yield Problem(path=f"{path}.policy", what="workers can not be deleted beside an autoscaler")
    seen: dict[tuple[str, Any], int] = {}
    for number, rule in enumerate(rules):
        condition, policy = rule.get("condition") or {}, str(rule.get("policy"))
        state = condition.get("jobStatus") or condition.get("jobDeploymentStatus")
        if (policy, state) in seen:
            yield Problem(path=f"{where}.deletionRules[{number}]", what=f"{policy} of {state} is there twice")
        seen[policy, state] = number
    for (policy, state), number in seen.items():
        later = _ORDER[_ORDER.index(policy) + 1 :] if policy in _ORDER else ()
        ttl_s = _ttl_s(rules[number])
        if any((one, state) in seen and _ttl_s(rules[seen[one, state]]) < ttl_s for one in later):
            path = f"{where}.deletionRules[{number}].condition.ttlSeconds"
            yield Problem(path=path, what=f"{ttl_s} s is later than what takes it along")


def _ttl_s(rule: Spec) -> int:
    return int((rule.get("condition") or {}).get("ttlSeconds") or 0)


def _sidecar(spec: Spec) -> Iterator[Problem]:
    for name in ("submitterPodTemplate", "submitterConfig", "clusterSelector"):
        if spec.get(name):
            yield Problem(path=f"spec.{name}", what="is not for SidecarMode")
    head = ((spec.get("rayClusterSpec") or {}).get("headGroupSpec") or {}).get("template") or {}
    if (head.get("spec") or {}).get("restartPolicy") not in (None, "", "Never"):
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
    labels = group.get("labels") or {}
    if not all(_KEY.fullmatch(str(key)) and _VALUE.fullmatch(str(value)) for key, value in labels.items()):
        yield Problem(path=f"{path}.labels", what="are no labels of Kubernetes: letters, digits, dash, dot, underscore")
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
    env = _environment(groups[0][1])
    if not spec.get("enableInTreeAutoscaling"):
        if str(env.get(_V2_VARIABLE)).lower() in ("1", "true"):
            yield Problem(path=f"{path}.enableInTreeAutoscaling", what=f"{_V2_VARIABLE} of the head needs it")
        return
    version = (spec.get("autoscalerOptions") or {}).get("version")
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
    options = spec.get("authOptions") or {}
    wanted = {"mode token": options.get("mode") == "token" and _AUTH_SINCE}
    wanted["enableK8sTokenAuth"] = options.get("enableK8sTokenAuth") and _K8S_AUTH_SINCE
    found = re.match(r"(\d+)\.(\d+)", str(spec.get("rayVersion", "")))
    for name, since in wanted.items():
        if since and (found is None or tuple(map(int, found.groups())) < since):
            what = f"authOptions.{name} needs {'.'.join(map(str, since))} or later"
            yield Problem(path=f"{path}.rayVersion", what=what)


def _head_state(spec: Spec, path: str) -> Iterator[Problem]:
    if "gcsFaultToleranceOptions" not in spec:
        return
    options, where = spec["gcsFaultToleranceOptions"] or {}, f"{path}.gcsFaultToleranceOptions"
    if options.get("backend") != "rocksdb":
        if options.get("storage"):
            yield Problem(path=f"{where}.storage", what="is for the backend rocksdb")
        if not options.get("redisAddress"):
            yield Problem(path=f"{where}.redisAddress", what="is missing, which the backend redis needs")
        return
    for name in ("redisAddress", "redisPassword", "redisUsername", "externalStorageNamespace"):
        if options.get(name):
            yield Problem(path=f"{where}.{name}", what="is not for the backend rocksdb")
    storage = options.get("storage") or {}
    if storage.get("claimName") and storage.get("size"):
        yield Problem(path=f"{where}.storage.claimName", what="a claim that is there has its size: give one")
    ours = sorted(name for name in _environment(spec.get("headGroupSpec") or {}) if name.startswith("RAY_gcs_storage"))
    for name in ours:
        yield Problem(path=f"{path}.headGroupSpec", what=f"{name} is set by the backend rocksdb: leave it out")


def _environment(group: Spec) -> dict[str, Any]:
    """Variables of the containers of a group."""
    containers = ((group.get("template") or {}).get("spec") or {}).get("containers") or []
    return {str(one.get("name")): one.get("value") for container in containers for one in container.get("env") or []}
