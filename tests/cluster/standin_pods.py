"""Pure. What KubeRay's operator makes of a worker group, and the scheduler and the kubelet of the pods that come of it.

After `controllers/ray/common/pod.go` of KubeRay: what a container is limited to, and labels and `rayStartParams` of its
group, become options of `ray start`; the container is told where the head is, and who it is itself.
"""

import copy
import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

# Other fields change what the operator does, so that here they would be ignored in silence.
_PLAYED = {"groupName", "replicas", "minReplicas", "maxReplicas", "labels", "rayStartParams", "template"}
_PLAYED |= {"numOfHosts", "priority", "scaleStrategy"}
_DEFAULTS = {"metrics-export-port": "8080", "dashboard-agent-listen-port": "52365", "block": "true"}


def pod_of(cluster: str, group: Object, name: str, head: str) -> Object:
    """A pod of a group.

    Args:
        head: address of Ray's head.
    """
    assert set(group) <= _PLAYED and group.get("numOfHosts", 1) == 1, f"the stand-in does not play {sorted(group)}"
    template = copy.deepcopy(group["template"])
    ours = {"ray.io/cluster": cluster, "ray.io/group": group["groupName"], "ray.io/node-type": "worker"}
    labels = template["metadata"].get("labels", {}) | group.get("labels", {}) | ours
    container = ray_container(template["spec"])
    started = shlex.join(["ray", "start", *options_of(group, container, head)])
    container |= {"command": ["/bin/bash", "-c", "--"], "args": [f"ulimit -n 65536; {started}"]}
    given = {"RAY_ADDRESS": head, "RAY_NODE_TYPE_NAME": group["groupName"], "RAY_CLOUD_INSTANCE_ID": name}
    given["RAY_CLUSTER_NAME"] = cluster
    known = {one["name"] for one in container.get("env", ())}
    more = [{"name": key, "value": value} for key, value in given.items() if key not in known]
    container["env"] = [*container.get("env", ()), *more]
    metadata = template["metadata"] | {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def options_of(group: Object, container: Object, head: str) -> list[str]:
    """Of `ray start`; what `rayStartParams` says goes before what follows from the rest."""
    from kubernetes.utils.quantity import parse_quantity

    limits = container.get("resources", {}).get("limits", {})
    found = {"address": head, **_DEFAULTS}
    of_ray = {"cpu": "num-cpus", "memory": "memory", "nvidia.com/gpu": "num-gpus"}
    found |= {of_ray[name]: str(math.ceil(parse_quantity(one))) for name, one in limits.items() if name in of_ray}
    if labels := group.get("labels"):
        found["labels"] = ",".join(f"{name}={value}" for name, value in labels.items())
    found |= group["rayStartParams"]
    return [f"--{name}" if value == "true" else f"--{name}={value}" for name, value in found.items()]


def started_with(pod: Object) -> dict[str, str]:
    """The options of `ray start` that a pod's command has, by name; of those without a value it is empty."""
    (line,) = ray_container(pod["spec"])["args"]
    options = [word.removeprefix("--").partition("=") for word in shlex.split(line) if word.startswith("--")]
    return {name: value for name, _, value in options}


def ray_container(spec: Object) -> Object:
    """The first one, as the operator has it."""
    found: Object = spec["containers"][0]
    return found


def environment_of(pod: Object, address: str) -> dict[str, str]:
    """What the kubelet makes of a container's `env`; `address`: of the pod."""
    fields = {"status.podIP": address, "metadata.name": pod["metadata"]["name"]}
    return {
        one["name"]: one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
        for one in ray_container(pod["spec"]).get("env", ())
    }


def hook_of(pod: Object) -> list[str]:
    """The command before its end; empty without one."""
    lifecycle = ray_container(pod["spec"]).get("lifecycle", {})
    return list(lifecycle.get("preStop", {}).get("exec", {}).get("command", ()))


def fits(pod: Object, machine: Object) -> bool:
    """Whether the scheduler would put a pod there, if there is room."""
    spec, labels = pod["spec"], machine["metadata"].get("labels") or {}
    taints = [one for one in machine["spec"].get("taints") or () if one["effect"] != "PreferNoSchedule"]
    is_kept_away = machine["spec"].get("unschedulable") or not all(_tolerates(spec, taint) for taint in taints)
    wanted = spec.get("nodeSelector", {}).items() <= labels.items()
    return not is_kept_away and wanted and not any(_is_met(rule, labels) for rule in _never(spec))


def _tolerates(spec: Object, taint: Mapping[str, str]) -> bool:
    return any(
        one.get("key") == taint["key"]
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        and one.get("effect", taint["effect"]) == taint["effect"]
        for one in spec.get("tolerations", ())
    )


def _never(spec: Object) -> list[Object]:
    """What the machine of a pod must not be."""
    place = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    rules = [rule for term in place.get("nodeSelectorTerms", ()) for rule in term["matchExpressions"]]
    played = {"DoesNotExist", "NotIn"}
    assert {rule["operator"] for rule in rules} <= played, f"the stand-in does not play {json.dumps(rules)}"
    return rules


def _is_met(rule: Object, labels: Mapping[str, str]) -> bool:
    found = labels.get(rule["key"])
    return found is not None and found in rule.get("values", [found])
