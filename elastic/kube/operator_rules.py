"""Pure. What KubeRay's operator refuses although the schema allows it.

Source: `ray-operator/controllers/ray/utils/validation.go` of KubeRay 1.7. The operator marks such an object as invalid
once it is there; `kubectl apply` takes it without a word.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from elastic.kube.schema import Problem, is_label

LONGEST = {"RayJob": 47, "RayCluster": 63}
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # RFC 1035
_AUTH_SINCE, _K8S_AUTH_SINCE, _PRIORITY_SINCE = (2, 52), (2, 55), (2, 56)
_ORDER = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")  # what goes first, since the next takes it along
_V2_VARIABLE = "RAY_enable_autoscaler_v2"
_AUTOSCALER_VARIABLE = "KUBERAY_GEN_AUTOSCALER_START_CMD"
_STATE_ON, _STATE_WHERE = "ray.io/ft-enabled", "ray.io/external-storage-namespace"  # annotations
_STATE_PATH = "/data/gcs"
_INSTEAD = "is not for who has gcsFaultToleranceOptions: give it there"

Spec = Mapping[str, Any]


def problems(one: Mapping[str, Any]) -> Iterator[Problem]:
    """Of a RayJob or a RayCluster; of other kinds none."""
    kind, spec, metadata = str(one.get("kind")), one.get("spec") or {}, one.get("metadata") or {}
    if kind not in LONGEST:
        return
    yield from _name(kind, str(metadata.get("name", "")))
    annotations = metadata.get("annotations") or {}
    if kind == "RayCluster":
        yield from _cluster(spec, "spec", annotations)
        return
    yield from _job(spec)
    if "rayClusterSpec" in spec:
        yield from _cluster(spec["rayClusterSpec"], "spec.rayClusterSpec", annotations)
        auth = spec["rayClusterSpec"].get("authOptions") or {}
        if auth.get("enableK8sTokenAuth"):
            where = "spec.rayClusterSpec.authOptions.enableK8sTokenAuth"
            yield Problem(path=where, what="a RayJob's own requests carry no token of Kubernetes; leave it out")


def _name(kind: str, name: str) -> Iterator[Problem]:
    if not _LABEL.fullmatch(name):
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
        "preRunningDeadlineSeconds": (spec.get("preRunningDeadlineSeconds", 1) or 0) <= 0 and "must be positive",
        "runtimeEnvYAML": not _is_mapping(spec.get("runtimeEnvYAML")) and "must be YAML with names and values",
    }
    if (spec.get("ttlSecondsAfterFinished") or 0) < 0:
        yield Problem(path="spec.ttlSecondsAfterFinished", what="must not be negative")
    for name, what in found.items():
        if what:
            yield Problem(path=f"spec.{name}", what=str(what))
    if mode == "SidecarMode":
        yield from _sidecar(spec)
    if spec.get("deletionStrategy") is not None:
        yield from _policies(spec, strategy)
        yield from _rules(strategy.get("deletionRules") or [])


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
        return not text or isinstance(yaml.compose(str(text), Loader=yaml.SafeLoader), yaml.MappingNode)
    except yaml.YAMLError:
        return False


def _policies(spec: Spec, strategy: Spec) -> Iterator[Problem]:
    """What is to be deleted, said by the state that the job ends in, or by rules."""
    where, rules = "spec.deletionStrategy", strategy.get("deletionRules") or []
    by_end = [(f"{where}.{end}", strategy[end]) for end in ("onSuccess", "onFailure") if strategy.get(end) is not None]
    if rules and by_end:
        yield Problem(path=where, what="deletionRules say what onSuccess and onFailure say: give one")
    if not rules and len(by_end) < 2:
        yield Problem(path=where, what="needs onSuccess and onFailure, or deletionRules")
    autoscales = (spec.get("rayClusterSpec") or {}).get("enableInTreeAutoscaling")
    for path, one in [*by_end, *((f"{where}.deletionRules[{number}]", rule) for number, rule in enumerate(rules))]:
        policy = one.get("policy")
        wrong = {
            "is missing": policy is None and one not in rules,
            "workers can not be deleted beside an autoscaler": policy == "DeleteWorkers" and autoscales,
            "a cluster that clusterSelector names is not the job's to delete": policy in _ORDER[:2]
            and spec.get("clusterSelector"),
            "shutdownAfterJobFinishes deletes the cluster: give one": policy == "DeleteNone"
            and one not in rules
            and spec.get("shutdownAfterJobFinishes"),
        }
        yield from (Problem(path=f"{path}.policy", what=what) for what, is_so in wrong.items() if is_so)


def _rules(rules: list[Any]) -> Iterator[Problem]:
    where = "spec.deletionStrategy"
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


def _cluster(spec: Spec, path: str, annotations: Spec) -> Iterator[Problem]:
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
    yield from _of_second(spec, path, placed)
    yield from _auth(spec, path)
    yield from _head_state(spec, path, annotations)


def _group(group: Spec, path: str) -> Iterator[Problem]:
    start = group.get("rayStartParams") or {}
    if not _containers(group):
        yield Problem(path=f"{path}.template.spec.containers", what="is empty")
    if "labels" in start:
        yield Problem(path=f"{path}.rayStartParams.labels", what="belongs into the group's own `labels`")
    labels = group.get("labels") or {}
    if not all(is_label(key, value) for key, value in labels.items()):
        yield Problem(path=f"{path}.labels", what="are no labels of Kubernetes: letters, digits, dash, dot, underscore")
    if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & set(start):
        yield Problem(path=f"{path}.resources", what="rayStartParams says resources too: give them once")


def _bounds(group: Spec, path: str, autoscales: bool) -> Iterator[Problem]:
    low, high, wanted = group.get("minReplicas"), group.get("maxReplicas"), group.get("replicas")
    if not autoscales and (low is None or high is None):
        yield Problem(path=path, what="without autoscaling, minReplicas and maxReplicas must be given")
    for name in ("minReplicas", "maxReplicas", "idleTimeoutSeconds"):
        if (group.get(name) or 0) < 0:
            yield Problem(path=f"{path}.{name}", what="must not be negative")
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


def _of_second(spec: Spec, path: str, groups: list[tuple[str, Any]]) -> Iterator[Problem]:
    """What of a group only the second autoscaler knows, and what of the autoscaler is for nobody to give."""
    options = spec.get("autoscalerOptions") or {}
    is_second = options.get("version") == "v2" or _environment(groups[0][1]).get(_V2_VARIABLE) in ("1", "true")
    for where, group in groups[1:]:
        for name in ("idleTimeoutSeconds", "priority"):
            if not is_second and (group.get(name) if name == "priority" else group.get(name) is not None):
                yield Problem(path=f"{where}.{name}", what="needs autoscalerOptions.version v2")
        if group.get("priority") and not _is_since(spec, _PRIORITY_SINCE):
            yield Problem(
                path=f"{path}.rayVersion", what=f"priority of groups needs {_version(_PRIORITY_SINCE)} or later"
            )
    where = f"{path}.autoscalerOptions"
    if (options.get("idleTimeoutSeconds") or 0) < 0:
        yield Problem(path=f"{where}.idleTimeoutSeconds", what="must not be negative")
    if any(one.get("name") == _AUTOSCALER_VARIABLE for one in options.get("env") or ()):
        yield Problem(path=f"{where}.env", what=f"{_AUTOSCALER_VARIABLE} is set by the operator: leave it out")


def _auth(spec: Spec, path: str) -> Iterator[Problem]:
    options = spec.get("authOptions") or {}
    wanted = {"mode token": options.get("mode") == "token" and _AUTH_SINCE}
    wanted["enableK8sTokenAuth"] = options.get("enableK8sTokenAuth") and _K8S_AUTH_SINCE
    for name, since in wanted.items():
        if since and not _is_since(spec, since):
            what = f"authOptions.{name} needs {_version(since)} or later"
            yield Problem(path=f"{path}.rayVersion", what=what)
    if options.get("enableK8sTokenAuth"):
        if options.get("mode") != "token":
            yield Problem(path=f"{path}.authOptions.mode", what="must be token for enableK8sTokenAuth")
        if options.get("secretName"):
            yield Problem(path=f"{path}.authOptions.secretName", what="is not for enableK8sTokenAuth: give one")


def _is_since(spec: Spec, since: tuple[int, int]) -> bool:
    found = re.match(r"v?(\d+)\.(\d+)", str(spec.get("rayVersion", "")))
    return found is not None and tuple(map(int, found.groups())) >= since


def _version(since: tuple[int, int]) -> str:
    return ".".join(map(str, since))


def _head_state(spec: Spec, path: str, annotations: Spec) -> Iterator[Problem]:
    """Where the head keeps its state: in one way, said once."""
    head, options = spec.get("headGroupSpec") or {}, spec.get("gcsFaultToleranceOptions")
    env, start, where = _environment(head), head.get("rayStartParams") or {}, f"{path}.headGroupSpec"
    if start.get("redis-username") or "REDIS_USERNAME" in env:
        yield Problem(path=where, what="the user of Redis belongs into gcsFaultToleranceOptions.redisUsername")
    if options is None:
        if "RAY_REDIS_ADDRESS" in env and str(annotations.get(_STATE_ON)).lower() != "true":
            yield Problem(path=where, what="RAY_REDIS_ADDRESS needs gcsFaultToleranceOptions")
        return
    for name in (_STATE_ON, _STATE_WHERE):
        if annotations.get(name):
            yield Problem(path="metadata.annotations", what=f"{name} {_INSTEAD}")
    if start.get("redis-password"):
        yield Problem(path=f"{where}.rayStartParams.redis-password", what=_INSTEAD)
    for name in ("REDIS_PASSWORD", "RAY_REDIS_ADDRESS"):
        if name in env:
            yield Problem(path=where, what=f"{name} {_INSTEAD}")
    yield from _backend(head, options, where, f"{path}.gcsFaultToleranceOptions")


def _backend(head: Spec, options: Spec, where: str, path: str) -> Iterator[Problem]:
    if options.get("backend") != "rocksdb":
        if options.get("storage") is not None:
            yield Problem(path=f"{path}.storage", what="is for the backend rocksdb")
        return
    for name in ("redisAddress", "redisPassword", "redisUsername", "externalStorageNamespace"):
        if options.get(name):
            yield Problem(path=f"{path}.{name}", what="is not for the backend rocksdb")
    storage = options.get("storage") or {}
    if storage.get("claimName") and any(storage.get(name) for name in ("size", "storageClassName", "accessModes")):
        what = "a claim that is there has its size, class and modes: give one"
        yield Problem(path=f"{path}.storage.claimName", what=what)
    for name in sorted({"RAY_gcs_storage", "RAY_gcs_storage_path"} & set(_environment(head))):
        yield Problem(path=where, what=f"{name} is set by the backend rocksdb: leave it out")
    mounts = [one for container in _containers(head)[:1] for one in container.get("volumeMounts") or []]
    if any(one.get("mountPath") == _STATE_PATH for one in mounts):
        yield Problem(path=where, what=f"{_STATE_PATH} is mounted by the backend rocksdb: leave it out")


def _environment(group: Spec) -> dict[str, Any]:
    """Variables of Ray's container of a group, the first."""
    return {str(one.get("name")): one.get("value") for one in (_containers(group)[:1] or [{}])[0].get("env") or []}


def _containers(group: Spec) -> list[Any]:
    return ((group.get("template") or {}).get("spec") or {}).get("containers") or []
