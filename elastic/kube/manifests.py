"""Pure. From the settings of a run to the objects that it consists of on Kubernetes."""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

import yaml

from elastic.errors import SettingError
from elastic.knobs import RunConfig, Tree, optional_sections, plain_names
from elastic.kube.pods import Object, cluster_spec, labels_of, of_cluster, priority_class, pull_secrets
from elastic.kube.schema import is_label
from elastic.kube.shape import SUPERVISOR, TRAINER, Shape, adapted, on_mount, shape
from elastic.settings import KubeRay
from elastic.settings.kuberay import taint_of

IMAGE = "ray-elastic"
# RayJobs add eleven characters for their cluster, services some more; the operator allows 47.
LONGEST_NAME = 47
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORDS = re.compile(r"[\w@%+=:,./ -]*", re.ASCII)  # that mean the same to whichever shell
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_A_LABEL = "letters, digits, dash, dot and underscore, 63 of them at most, as labels of Kubernetes are"
_A_VARIABLE = "letters, digits, underscore, dash and dot, and no digit in front, as a variable is"
_AN_OBJECT = "lower case letters, digits, dash and dot, as names of objects are"
# Of all objects that a run may have.
_ALWAYS = ("config", "head-account", "worker-account", "role", "role-binding", "head-budget", "supervisor-budget")
_SOMETIMES = ("priority", "node-role", "node-role-binding", "disruption-budget", "rayjob", "raycluster")
FILES = frozenset(_ALWAYS + _SOMETIMES)
# Where a bucket or a project is named. Neither has capitals.
_PLACEHOLDER = re.compile(r"(?:gs://|bucketName: |@)([A-Z][A-Z_]*)(?=[/.\s'\"]|$)", re.MULTILINE)
_API = "rbac.authorization.k8s.io"


def render(config: RunConfig, version: str) -> dict[str, Object]:
    """All objects of a run, by the name of the file that each belongs into.

    Args:
        version: of this package, for the image where none is given.

    Raises:
        SettingError: a setting is missing, is no word of Kubernetes, or cannot work on such machines.
    """
    kuberay = config.kuberay
    if kuberay is None:
        raise SettingError("there is no section `kuberay`: give it, with an entrypoint or `interactive: true`")
    run = config.name or ""
    if not _NAME.fullmatch(run) or len(run) > LONGEST_NAME:
        raise SettingError(
            f"name={run!r} must be lower case letters, digits and dashes, begin with a letter, and have at most "
            f"{LONGEST_NAME} of them: objects on Kubernetes are named after it"
        )
    if not kuberay.entrypoint.strip() and not kuberay.interactive:
        raise SettingError("KubeRay.entrypoint is empty: give the command to run, or `interactive: true`")
    for knob, word, what in _strange(kuberay):
        raise SettingError(f"KubeRay.{knob}={word!r} must be {what}")
    plan = shape(config, kuberay)
    inside = adapted(config, kuberay, plan)
    # Jobs on one cluster are runs of their own: one name for all would have each go on with what another has left.
    said = replace(inside, name=None) if kuberay.interactive else inside
    # Volumes are described by where the bucket is; what runs inside is told where it is mounted.
    image = kuberay.image or f"{IMAGE}:{version}"
    spec = cluster_spec(replace(inside, checkpoint=config.checkpoint), kuberay, plan, image)
    objects = {
        "config": _object("v1", "ConfigMap", f"{run}-config", config, data={"run.yaml": written(said)}),
        **_accounts(config, kuberay),
        **_rights(config, kuberay),
        **_priority(config, kuberay),
        **_budgets(config, plan),
    }
    name = "raycluster" if kuberay.interactive else "rayjob"
    return objects | {name: _cluster(config, spec) if kuberay.interactive else _job(config, kuberay, spec, image)}


def _strange(kuberay: KubeRay) -> Iterator[tuple[str, str, str]]:
    """Knobs, and words there that no pod may have: a RayJob may hold them, and no pod of it would ever be made."""
    yield from ((knob, word, _A_LABEL) for knob, word, key, value in _labels(kuberay) if not is_label(key, value))
    yield from (("env", name, _A_VARIABLE) for name in kuberay.env or {} if not _VARIABLE.fullmatch(name))
    names = [(knob, one) for knob in ("env_from_secrets", "image_pull_secrets") for one in getattr(kuberay, knob)]
    names += [("claim", kuberay.claim)] if kuberay.claim else []
    yield from ((knob, name, _AN_OBJECT) for knob, name in names if not _OBJECT.fullmatch(name) or len(name) > 253)


def _labels(kuberay: KubeRay) -> Iterator[tuple[str, str, str, str]]:
    """Knob, what is given there, and the key and the value that it is, or could be."""
    for knob in ("pod_labels", "node_selector"):
        yield from ((knob, f"{key}={value}", key, value) for key, value in (getattr(kuberay, knob) or {}).items())
    for knob in ("accelerator", "cpu_pool", "spare_pool"):
        yield knob, getattr(kuberay, knob), knob, getattr(kuberay, knob)
    for text in kuberay.tolerations:
        taint = taint_of(text)
        yield "tolerations", text, taint["key"], taint.get("value", "")
    yield from (("pod_annotations", key, key.lower(), "") for key in kuberay.pod_annotations or {})


def documents(objects: Mapping[str, Object]) -> str:
    """As YAML, one document for each."""
    return "---\n".join(text(one) for one in objects.values())


def text(one: Object) -> str:
    """One object as YAML."""
    return str(yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=120))


def is_ours(written: str) -> bool:
    """Whether a file holds what was rendered."""
    return "app.kubernetes.io/managed-by: elastic\n" in written


def placeholders(objects: Iterable[Object]) -> list[str]:
    """What still stands for a name of the user's own, such as BUCKET: a cluster takes it, and the run finds nothing."""
    return sorted({name for one in objects for name in _PLACEHOLDER.findall(text(one))})


class _Dumper(yaml.SafeDumper):
    """Files inside of an object are written as they are."""


def _lines(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _lines)


def written(config: RunConfig) -> str:
    """The settings that differ from their defaults, as a file that `fit(config=...)` reads."""
    return str(yaml.safe_dump(_plain(config), sort_keys=False, width=120))


def variables(config: RunConfig, given: Tree = MappingProxyType({})) -> dict[str, str]:
    """The same as variables of the environment, ELASTIC_<SECTION>__<KNOB>, for a job on the cluster of these settings.

    What was `given` goes along even where it is the default: on the cluster there may be another value. The section
    `kuberay` is left out; a bucket that pods mount is named where they have it.
    """
    checkpoint = config.checkpoint
    if checkpoint is not None and config.kuberay is not None:
        checkpoint = on_mount(checkpoint, config.kuberay)
    return dict(_variables(replace(config, checkpoint=checkpoint, kuberay=None), "ELASTIC_", given))


def _variables(section: Any, prefix: str, given: Any) -> Iterator[tuple[str, str]]:
    default = type(section)()
    for one in fields(section):
        value, where = getattr(section, one.name), f"{prefix}{one.name.upper()}"
        item = given.get(one.name)
        if is_dataclass(value):
            inner = list(_variables(value, f"{where}__", item if isinstance(item, Mapping) else {}))
            if not inner and getattr(default, one.name) is None:  # on, although all in it is as by default
                first = fields(value)[0].name
                inner = [(f"{where}__{first.upper()}", _in_a_variable(getattr(value, first)))]
            yield from inner
        elif value != getattr(default, one.name) or (item is not None and _is_knob(section, one.name)):
            yield where, _in_a_variable(dict(value) if isinstance(value, Mapping) else value)


def _in_a_variable(value: Any) -> str:
    """On one line, as YAML reads it: characters that JSON writes as two halves would be two there, and none at all."""
    text = json.dumps(value)
    return (
        text if "\\ud" not in text else str(yaml.safe_dump(value, default_flow_style=True, width=sys.maxsize)).strip()
    )


def _is_knob(section: Any, name: str) -> bool:
    """Whole sections have no variable, but one that says that they are off; not what the cluster itself is made by."""
    return not isinstance(section, RunConfig) or name in (plain_names() | optional_sections()) - {"kuberay"}


def _plain(section: Any) -> dict[str, Any]:
    default = type(section)()
    found: dict[str, Any] = {}
    for one in fields(section):
        value = getattr(section, one.name)
        if value == getattr(default, one.name):
            continue
        if is_dataclass(value):
            found[one.name] = _plain(value)
        elif isinstance(value, Mapping):
            found[one.name] = dict(value)
        else:
            found[one.name] = list(value) if isinstance(value, tuple) else value
    return found


def _object(api: str, kind: str, name: str, config: RunConfig, **rest: Any) -> Object:
    metadata: Object = {"name": name}
    if kind not in ("ClusterRole", "ClusterRoleBinding", "PriorityClass") and config.kuberay is not None:
        metadata["namespace"] = config.kuberay.namespace
    return {"apiVersion": api, "kind": kind, "metadata": metadata | {"labels": labels_of(str(config.name))}, **rest}


def _priority(config: RunConfig, kuberay: KubeRay) -> dict[str, Object]:
    if not kuberay.class_value:
        return {}
    what = {"value": kuberay.class_value, "description": f"Pods of the training run {config.name}"}
    name = priority_class(config, kuberay)
    return {"priority": _object("scheduling.k8s.io/v1", "PriorityClass", name, config, **what)}


def _budgets(config: RunConfig, plan: Shape) -> dict[str, Object]:
    """Evictions leave the minimum of workers, but may always take one machine: else a drain would wait for ever.

    They never take the head, whose end costs a restart, nor the supervisor: both are one pod, moved when it suits.
    """
    found = {f"{one}-budget": _budget(config, one, one, 1) for one in ("head", SUPERVISOR)}
    low = min(plan.low, plan.high + plan.spares - 1)
    return found | ({"disruption-budget": _budget(config, "workers", TRAINER, low)} if low else {})


def _budget(config: RunConfig, name: str, component: str, least: int) -> Object:
    # A whole number of pods: for pods of a custom kind nothing else is allowed.
    spec = {"minAvailable": least, "selector": {"matchLabels": labels_of(str(config.name), component)}}
    return _object("policy/v1", "PodDisruptionBudget", f"{config.name}-{name}", config, spec=spec)


def _job(config: RunConfig, kuberay: KubeRay, spec: Object, image: str) -> Object:
    return _object(
        "ray.io/v1",
        "RayJob",
        str(config.name),
        config,
        spec={
            "entrypoint": _command(kuberay.entrypoint.strip()),
            "submissionMode": "K8sJobMode",
            "submitterConfig": {"backoffLimit": 3},
            **_submitter(kuberay, image),
            "backoffLimit": kuberay.retries,
            "preRunningDeadlineSeconds": kuberay.start_within_s,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": kuberay.linger_s,
            "rayClusterSpec": spec,
        },
    )


def _command(entrypoint: str) -> str:
    """What the head's shell is to read: the operator puts it into a line of the submitter's, which reads it before."""
    return entrypoint if _WORDS.fullmatch(entrypoint) else f"sh -c {shlex.quote(entrypoint)}"


def _submitter(kuberay: KubeRay, image: str) -> Object:
    """The operator's own pod, which it makes where none is given, knows no secrets; its command it adds."""
    if not kuberay.image_pull_secrets:
        return {}
    amounts = {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    container = {"name": "ray-job-submitter", "image": image, "resources": amounts}
    return {
        "submitterPodTemplate": {
            "spec": {"restartPolicy": "Never", "containers": [container], **pull_secrets(kuberay)},
        }
    }


def _cluster(config: RunConfig, spec: Object) -> Object:
    return _object("ray.io/v1", "RayCluster", str(config.name), config, spec=spec)


# --- who may do what --------------------------------------------------------------------------------------------------


def _accounts(config: RunConfig, kuberay: KubeRay) -> dict[str, Object]:
    found = {}
    for who in ("head", "worker"):
        account = _object("v1", "ServiceAccount", f"{config.name}-{who}", config)
        if kuberay.service_account:
            account["metadata"]["annotations"] = {"iam.gke.io/gcp-service-account": kuberay.service_account}
        found[f"{who}-account"] = account
    return found


def _rights(config: RunConfig, kuberay: KubeRay) -> dict[str, Object]:
    """What the head needs for remediation; pods of workers need nothing."""
    run, subject = (
        str(config.name),
        {"kind": "ServiceAccount", "name": f"{config.name}-head", "namespace": kuberay.namespace},
    )
    objects = {
        "role": _object(f"{_API}/v1", "Role", f"{run}-head", config, rules=POD_RULES),
        "role-binding": _object(
            f"{_API}/v1",
            "RoleBinding",
            f"{run}-head",
            config,
            roleRef={"apiGroup": _API, "kind": "Role", "name": f"{run}-head"},
            subjects=[subject],
        ),
    }
    if kuberay.node_rights:
        name = of_cluster(config, kuberay, "nodes")
        objects["node-role"] = _object(f"{_API}/v1", "ClusterRole", name, config, rules=NODE_RULES)
        objects["node-role-binding"] = _object(
            f"{_API}/v1",
            "ClusterRoleBinding",
            name,
            config,
            roleRef={"apiGroup": _API, "kind": "ClusterRole", "name": name},
            subjects=[subject],
        )
    return objects


# What `elastic.actors.machines` calls, and no more; the operator gives Ray's autoscaler a role of its own.
POD_RULES: list[Object] = [
    {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
]
NODE_RULES: list[Object] = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]}]
