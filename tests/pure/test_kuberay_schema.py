"""Manifests against a schema, as strictly as the API server; and what only the operator knows."""

from copy import deepcopy
from typing import Any

import pytest

from elastic.kube import operator_rules
from elastic.kube.manifests import render
from elastic.kube.schema import problems, rules, schema_of, with_defaults, words
from tests.pure.test_kuberay_manifests import CONFIG, with_kuberay

PARTS = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "n": {"type": "number", "default": 1}},
    "x-kubernetes-validations": [{"rule": "self == oldSelf"}],
}
FIELDS = {
    "size": {"type": "integer", "minimum": 1, "maximum": 9},
    "ttl": {"type": "integer", "format": "int32"},
    "long": {"type": "integer", "format": "int64"},
    "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
    "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 4},
    "on": {"type": "boolean", "nullable": True},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "parts": {
        "type": "array",
        "maxItems": 3,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["id"],
        "items": PARTS,
    },
    "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    "list": {"type": "array", "items": {"type": "boolean"}},
    "even": {"type": "integer", "allOf": [{"maximum": 8}, {"not": {"enum": [1, 3, 5, 7]}}]},
    "few": {"anyOf": [{"enum": [1]}, {"enum": [2]}]},
    "some": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "either": {"oneOf": [{"type": "string"}, {"type": "integer"}], "not": {"enum": [7]}},
}
SPEC = {
    "type": "object",
    "required": ["size"],
    "x-kubernetes-validations": [{"rule": "self.size > 1", "message": "too small"}],
    "properties": FIELDS,
}
VERSION = {"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC}}}}
CRD = {"spec": {"group": "x.io", "names": {"kind": "Thing"}, "versions": [VERSION]}}
KIND, SCHEMA = schema_of(CRD, "x.io/v1")


def thing(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "x.io/v1", "kind": KIND, "metadata": {"name": "t", "labels": {}}, "spec": {"size": 2} | spec}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"port": 80},
        {"port": "http"},
        {"on": None},
        {"ttl": 2**31 - 1, "long": 10**11},
        {"labels": {"a": "b"}},
        {"free": {"any": [1, {"thing": None}]}},
        {"parts": [{"id": "a"}, {"id": "b", "n": 0.5}]},
        {"either": 3},
        {"tags": ["a", "b"], "list": [True, True], "even": 4, "few": 2},
    ],
)
def test_what_is_allowed(spec):
    assert not list(problems(SCHEMA, with_defaults(SCHEMA, thing(**spec))))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"sise": 1}, "spec.sise: there is no such field"),
        ({"size": "2"}, "spec.size: '2' must be an integer"),
        ({"size": True}, "spec.size: True must be an integer"),
        ({"size": 0}, "spec.size: 0 breaks minimum 1"),
        ({"size": 10}, "spec.size: 10 breaks maximum 9"),
        ({"port": True}, "spec.port: True must be an integer or string"),
        ({"some": 1}, "spec.some: 1 must be exactly one of what it may be, and is 2"),
        ({"port": 1.5}, "spec.port: 1.5 must be an integer or string"),
        ({"mode": "c"}, "spec.mode: 'c' must be one of 'a', 'b'"),
        ({"name": "A"}, "spec.name: 'A' must match ^[a-z]+$"),
        ({"name": "abcde"}, "spec.name: 'abcde' breaks maxLength 4"),
        ({"mode": None}, "spec.mode: None must be a string"),
        ({"labels": {"a": 1}}, "spec.labels.a: 1 must be a string"),
        ({"parts": {}}, "spec.parts: {} must be an array"),
        ({"parts": [{"id": "a", "x": 1}]}, "spec.parts[0].x: there is no such field"),
        ({"parts": [{"id": "a"}, {"id": "a"}]}, "spec.parts[1]: is there twice: ['a']"),
        ({"either": 1.5}, "spec.either: 1.5 must be exactly one of what it may be, and is 0"),
        ({"tags": ["a", "b", "a"]}, "spec.tags[2]: is there twice: 'a'"),
        ({"list": [True, 1]}, "spec.list[1]: 1 must be a boolean"),
        ({"on": 1}, "spec.on: 1 must be a boolean"),
        ({"even": 10}, "spec.even: 10 breaks maximum 8"),
        ({"few": 3}, "spec.few: 3 is none of what it may be"),
        ({"either": 7}, "spec.either: 7 is what it must not be"),
        ({"ttl": 10**11}, "spec.ttl: 100000000000 is no int32"),
        ({"ttl": -(2**31) - 1}, "spec.ttl: -2147483649 is no int32"),
        ({"long": 2**63}, "spec.long: 9223372036854775808 is no int64"),
    ],
)
def test_what_is_not(spec, said):
    assert [str(one) for one in problems(SCHEMA, with_defaults(SCHEMA, thing(**spec)))] == [said]


def test_what_is_missing_is_told():
    one = thing()
    del one["spec"]["size"]
    assert [str(problem) for problem in problems(SCHEMA, one)] == ["spec.size: is missing"]


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"labels": 5}, "metadata.labels: 5 must be an object"),
        ({"labels": {"a": 5}}, "metadata.labels.a: 5 must be a string"),
        ({"annotations": {"a": 5}}, "metadata.annotations.a: 5 must be a string"),
        ({"nmae": "x"}, "metadata.nmae: there is no such field"),
        ({"name": 5}, "metadata.name: 5 must be a string"),
        ({"namespace": "UPPER"}, "metadata.namespace: 'UPPER' must be lower case letters, digits and dashes, 63 of"),
        ({"labels": {"a": "b c"}}, "metadata.labels.a: 'b c' is no label of Kubernetes"),
        ({"labels": {"UPPER.io/a": "b"}}, "metadata.labels.UPPER.io/a: 'b' is no label of Kubernetes"),
        ({"annotations": {"a b": "c"}}, "metadata.annotations.a b: is no name of an annotation"),
        ({"finalizers": [1]}, "metadata.finalizers[0]: 1 must be a string"),
        ({"ownerReferences": [{"kind": "X", "name": "x", "uid": "1"}]}, "metadata.ownerReferences[0].apiVersion: is"),
        ("x", "metadata: 'x' must be an object"),
        (None, "metadata: None must be an object"),
    ],
)
def test_what_an_object_says_of_itself_is_judged(metadata, said):
    one = {**thing(), "metadata": metadata if not isinstance(metadata, dict) else {"name": "t"} | metadata}
    found = [*problems(SCHEMA, one), *words(metadata if isinstance(metadata, dict) else {})]
    assert len(found) == 1 and str(found[0]).startswith(said), found


@pytest.mark.parametrize(
    "metadata",
    [
        {
            "namespace": "ml-1",
            "labels": {"app.kubernetes.io/name": "x", "empty": ""},
            "annotations": {"Up/b": "any: 1"},
        },
        {
            "namespace": None,
            "labels": None,
            "annotations": None,
            "creationTimestamp": None,
            "managedFields": [{"a": 1}],
        },
    ],
)
def test_what_an_object_may_say_of_itself(metadata):
    assert not [*problems(SCHEMA, {**thing(), "metadata": {"name": "t"} | metadata}), *words(metadata)]


def test_defaults_are_filled_in_and_nothing_else_is_changed():
    given = thing(parts=[{"id": "a"}])
    before = deepcopy(given)
    filled = with_defaults(SCHEMA, given)
    assert filled["spec"]["mode"] == "a" and filled["spec"]["parts"] == [{"id": "a", "n": 1}]
    assert given == before


def test_rules_are_found_with_what_they_are_about():
    found = list(rules(SCHEMA, thing(parts=[{"id": "a"}])))
    assert [(one.path, one.message, one.is_about_change) for one in found] == [
        ("spec", "too small", False),
        ("spec.parts[0]", "self == oldSelf", True),
    ]
    assert found[0].value["size"] == 2


def test_another_version_is_not_known():
    with pytest.raises(LookupError, match=r"x.io has no Thing of x.io/v2"):
        schema_of(CRD, "x.io/v2")


# --- what the operator refuses ----------------------------------------------------------------------------------------


def job() -> dict[str, Any]:
    return deepcopy(render(CONFIG, "1")["rayjob"])


def said(one: dict[str, Any]) -> list[str]:
    return [problem.path for problem in operator_rules.problems(one)]


def put(one: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *way, last = path.split(".")
    at: Any = one
    for part in way:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    at[last] = value
    return one


CLUSTER = "spec.rayClusterSpec"
GROUP = f"{CLUSTER}.workerGroupSpecs.1"
FIRST = f"{CLUSTER}.workerGroupSpecs[1]"


RESTARTS = f"{CLUSTER}.headGroupSpec.template.spec.restartPolicy"
HEAD_ENV = f"{CLUSTER}.headGroupSpec.template.spec.containers.0.env"
V2 = {"name": "RAY_enable_autoscaler_v2", "value": "1"}


HEAD = f"{CLUSTER}.headGroupSpec.template.spec.containers.0"
START = f"{CLUSTER}.headGroupSpec.rayStartParams"
FIRST_AUTOSCALER = {f"{CLUSTER}.autoscalerOptions.version": "v1"}
SELECTED = {"spec.clusterSelector": {"ray.io/cluster": "ours"}, "spec.backoffLimit": 0}


def rules_of(policy: str, ttl_s: int = 0, state: str = "SUCCEEDED") -> list[dict[str, Any]]:
    return [{"policy": policy, "condition": {"jobStatus": state, "ttlSeconds": ttl_s}}]


def deleting(*rules: dict[str, Any]) -> dict[str, Any]:
    """Instead of what is rendered."""
    off = {"spec.shutdownAfterJobFinishes": False, "spec.ttlSecondsAfterFinished": 0}
    return off | {"spec.deletionStrategy": {"deletionRules": list(rules)}}


def ending(success: str, failure: str | None, *rules: dict[str, Any]) -> dict[str, Any]:
    ends = {"onSuccess": {"policy": success}, "onFailure": {"policy": failure} if failure else {}}
    return {"spec.deletionStrategy": ends | ({"deletionRules": list(rules)} if rules else {})}


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"metadata.name": "Upper"}, "metadata.name"),
        ({"metadata.name": "9lives"}, "metadata.name"),
        ({"metadata.name": "a" * 48}, "metadata.name"),
        ({"spec.entrypoint": ""}, "spec.entrypoint"),
        (
            {"spec.suspend": True, "spec.shutdownAfterJobFinishes": False, "spec.ttlSecondsAfterFinished": 0},
            "spec.suspend",
        ),
        ({"spec.shutdownAfterJobFinishes": False}, "spec.ttlSecondsAfterFinished"),
        ({"spec.deletionStrategy": {"deletionRules": [{}]}}, "spec.deletionStrategy"),
        ({"spec.backoffLimit": -1}, "spec.backoffLimit"),
        ({"spec.clusterSelector": {"a": "b"}}, "spec.clusterSelector"),
        ({"spec.activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds"),
        ({"spec.submissionMode": "SidecarMode"}, "spec.submitterConfig"),
        (
            {"spec.submissionMode": "SidecarMode", f"{CLUSTER}.headGroupSpec.template.spec.restartPolicy": "Always"},
            f"{CLUSTER}.headGroupSpec.template.spec.restartPolicy",
        ),
        ({"spec.ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished"),
        ({f"{CLUSTER}.authOptions.enableK8sTokenAuth": True}, f"{CLUSTER}.authOptions.enableK8sTokenAuth"),
        ({f"{CLUSTER}.rayVersion": "2.51.0"}, f"{CLUSTER}.rayVersion"),
        ({f"{GROUP}.template.spec.restartPolicy": "Always"}, f"{FIRST}.template.spec.restartPolicy"),
        ({f"{GROUP}.minReplicas": 99}, f"{FIRST}.minReplicas"),
        ({f"{GROUP}.replicas": 99}, f"{FIRST}.replicas"),
        ({f"{GROUP}.groupName": "supervisor"}, f"{FIRST}.groupName"),
        ({f"{GROUP}.rayStartParams.labels": "a=b"}, f"{FIRST}.rayStartParams.labels"),
        ({f"{GROUP}.template.spec.containers": []}, f"{FIRST}.template.spec.containers"),
        ({f"{GROUP}.suspend": True}, f"{FIRST}.suspend"),
        ({f"{GROUP}.resources": {"CPU": "1"}, f"{GROUP}.rayStartParams": {"num-cpus": "1"}}, f"{FIRST}.resources"),
        ({f"{CLUSTER}.gcsFaultToleranceOptions.redisAddress": "x"}, f"{CLUSTER}.gcsFaultToleranceOptions.redisAddress"),
        ({f"{CLUSTER}.gcsFaultToleranceOptions.backend": "redis"}, f"{CLUSTER}.gcsFaultToleranceOptions.storage"),
        ({"spec.submissionMode": "InteractiveMode", "spec.entrypoint": ""}, "spec.backoffLimit"),
        (
            {
                "spec.shutdownAfterJobFinishes": False,
                "spec.deletionStrategy": {"deletionRules": rules_of("DeleteSelf")},
            },
            "spec.ttlSecondsAfterFinished",
        ),
        (deleting(*rules_of("DeleteSelf"), *rules_of("DeleteSelf", 9)), "spec.deletionStrategy.deletionRules[1]"),
        (
            deleting(*rules_of("DeleteSelf", 5), *rules_of("DeleteCluster", 6)),
            "spec.deletionStrategy.deletionRules[1].condition.ttlSeconds",
        ),
        (deleting(*rules_of("DeleteWorkers")), "spec.deletionStrategy.deletionRules[0].policy"),
        (
            {
                "spec.deletionStrategy": {
                    "onSuccess": {"policy": "DeleteWorkers"},
                    "onFailure": {"policy": "DeleteNone"},
                }
            },
            "spec.deletionStrategy.onSuccess.policy",
        ),
        ({"spec.clusterSelector": {"a": "b"}, "spec.backoffLimit": 0}, "spec.clusterSelector"),
        ({f"{GROUP}.labels": {"-a": "b"}}, f"{FIRST}.labels"),
        ({f"{GROUP}.labels": {"a": "b c"}}, f"{FIRST}.labels"),
        ({f"{GROUP}.labels": {"UPPER.io/a": "b"}}, f"{FIRST}.labels"),
        ({f"{CLUSTER}.enableInTreeAutoscaling": False, HEAD_ENV: [V2]}, f"{CLUSTER}.enableInTreeAutoscaling"),
        ({"spec.runtimeEnvYAML": "pip: ["}, "spec.runtimeEnvYAML"),
        ({"spec.runtimeEnvYAML": "- pip"}, "spec.runtimeEnvYAML"),
        ({HEAD_ENV: [{"name": "RAY_gcs_storage", "value": "memory"}]}, f"{CLUSTER}.headGroupSpec"),
        ({HEAD_ENV: [{"name": "RAY_gcs_storage_path", "value": "/x"}]}, f"{CLUSTER}.headGroupSpec"),
        (
            {f"{CLUSTER}.gcsFaultToleranceOptions.storage.claimName": "mine"},
            f"{CLUSTER}.gcsFaultToleranceOptions.storage.claimName",
        ),
        (
            {f"{CLUSTER}.gcsFaultToleranceOptions.storage": {"claimName": "mine", "storageClassName": "fast"}},
            f"{CLUSTER}.gcsFaultToleranceOptions.storage.claimName",
        ),
        (
            {f"{CLUSTER}.gcsFaultToleranceOptions.storage": {"claimName": "mine", "accessModes": ["ReadWriteOnce"]}},
            f"{CLUSTER}.gcsFaultToleranceOptions.storage.claimName",
        ),
        ({f"{HEAD}.volumeMounts": [{"name": "x", "mountPath": "/data/gcs"}]}, f"{CLUSTER}.headGroupSpec"),
        ({"metadata.annotations": {"ray.io/ft-enabled": "true"}}, "metadata.annotations"),
        ({"metadata.annotations": {"ray.io/external-storage-namespace": "x"}}, "metadata.annotations"),
        ({HEAD_ENV: [{"name": "RAY_REDIS_ADDRESS", "value": "r:1"}]}, f"{CLUSTER}.headGroupSpec"),
        ({HEAD_ENV: [{"name": "REDIS_PASSWORD", "value": "x"}]}, f"{CLUSTER}.headGroupSpec"),
        ({HEAD_ENV: [{"name": "REDIS_USERNAME", "value": "x"}]}, f"{CLUSTER}.headGroupSpec"),
        ({f"{START}.redis-username": "x"}, f"{CLUSTER}.headGroupSpec"),
        ({f"{START}.redis-password": "x"}, f"{START}.redis-password"),
        (
            {f"{CLUSTER}.gcsFaultToleranceOptions": None, HEAD_ENV: [{"name": "RAY_REDIS_ADDRESS", "value": "r:1"}]},
            f"{CLUSTER}.headGroupSpec",
        ),
        ({"spec.preRunningDeadlineSeconds": 0}, "spec.preRunningDeadlineSeconds"),
        ({"spec.deletionStrategy": {}}, "spec.deletionStrategy"),
        ({"spec.deletionStrategy": {"onSuccess": {"policy": "DeleteSelf"}}}, "spec.deletionStrategy"),
        (ending("DeleteSelf", "DeleteNone"), "spec.deletionStrategy.onFailure.policy"),
        (ending("DeleteNone", "DeleteSelf"), "spec.deletionStrategy.onSuccess.policy"),
        (ending("DeleteSelf", None), "spec.deletionStrategy.onFailure.policy"),
        (
            deleting(*rules_of("DeleteSelf")) | ending("DeleteSelf", "DeleteSelf", *rules_of("DeleteSelf")),
            "spec.deletionStrategy",
        ),
        (ending("DeleteCluster", "DeleteSelf") | SELECTED, "spec.deletionStrategy.onSuccess.policy"),
        (deleting(*rules_of("DeleteWorkers")) | SELECTED, "spec.deletionStrategy.deletionRules[0].policy"),
        ({f"{GROUP}.minReplicas": -1}, f"{FIRST}.minReplicas"),
        ({f"{GROUP}.maxReplicas": -1}, f"{FIRST}.maxReplicas"),
        ({f"{GROUP}.idleTimeoutSeconds": -1}, f"{FIRST}.idleTimeoutSeconds"),
        (FIRST_AUTOSCALER | {f"{GROUP}.idleTimeoutSeconds": 0}, f"{FIRST}.idleTimeoutSeconds"),
        (FIRST_AUTOSCALER | {f"{GROUP}.priority": 1}, f"{FIRST}.priority"),
        ({f"{GROUP}.priority": 1, f"{CLUSTER}.rayVersion": "2.55.1"}, f"{CLUSTER}.rayVersion"),
        ({f"{CLUSTER}.autoscalerOptions.idleTimeoutSeconds": -1}, f"{CLUSTER}.autoscalerOptions.idleTimeoutSeconds"),
        (
            {f"{CLUSTER}.autoscalerOptions.env": [{"name": "KUBERAY_GEN_AUTOSCALER_START_CMD", "value": "x"}]},
            f"{CLUSTER}.autoscalerOptions.env",
        ),
        (
            {f"{CLUSTER}.authOptions": {"enableK8sTokenAuth": True, "mode": "token", "secretName": "x"}},
            f"{CLUSTER}.authOptions.secretName",
        ),
        ({f"{CLUSTER}.authOptions": {"enableK8sTokenAuth": True}}, f"{CLUSTER}.authOptions.mode"),
    ],
)
def test_the_operator_refuses(changes, where):
    one = job()
    for path, value in changes.items():
        put(one, path, value)
    assert where in said(one)


@pytest.mark.parametrize(
    "changes", [{}, {"spot": True}, {"autoscale": False}, {"head_storage_gib": 0}, {"params": 7e9}]
)
def test_the_operator_takes_what_is_rendered(changes):
    assert said(render(with_kuberay(**changes), "1")["rayjob"]) == []
    assert said(render(with_kuberay(interactive=True, entrypoint="", **changes), "1")["raycluster"]) == []


def test_without_autoscaling_the_bounds_must_be_given():
    one = render(with_kuberay(autoscale=False), "1")["rayjob"]
    del one["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["minReplicas"]
    assert said(one) == [f"{CLUSTER}.workerGroupSpecs[0]"]


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.submissionMode": "InteractiveMode", "spec.entrypoint": "", "spec.backoffLimit": 0},
        deleting(*rules_of("DeleteCluster", 5), *rules_of("DeleteSelf", 5), *rules_of("DeleteCluster", 9, "FAILED")),
        {
            **deleting(*rules_of("DeleteWorkers"), *rules_of("DeleteSelf", 5)),
            f"{CLUSTER}.enableInTreeAutoscaling": False,
        },
        {f"{GROUP}.labels": {"ray.io/market-type": "spot", "empty": "", "a_b.C": "x.y-Z_1"}},
        {f"{CLUSTER}.enableInTreeAutoscaling": False, HEAD_ENV: [V2 | {"value": "0"}]},
        {"spec.runtimeEnvYAML": "pip: [torch]"},
        {f"{CLUSTER}.gcsFaultToleranceOptions": {"backend": "redis", "redisAddress": "redis:6379"}},
        {f"{CLUSTER}.gcsFaultToleranceOptions": {"backend": "rocksdb", "storage": {"claimName": "mine"}}},
        {"spec.submissionMode": "SidecarMode", "spec.submitterConfig": None, RESTARTS: None},
        {f"{CLUSTER}.gcsFaultToleranceOptions": {}},
        {f"{CLUSTER}.gcsFaultToleranceOptions": {"backend": "redis"}},
        {
            f"{CLUSTER}.gcsFaultToleranceOptions": None,
            HEAD_ENV: [{"name": "RAY_REDIS_ADDRESS", "value": "r:1"}],
            "metadata.annotations": {"ray.io/ft-enabled": "true"},
        },
        ending("DeleteSelf", "DeleteSelf"),
        ending("DeleteSelf", "DeleteNone")
        | {"spec.shutdownAfterJobFinishes": False, "spec.ttlSecondsAfterFinished": 0},
        deleting(*rules_of("DeleteNone")),
        ending("DeleteSelf", "DeleteSelf") | SELECTED,
        {f"{GROUP}.idleTimeoutSeconds": 60, f"{GROUP}.priority": 10},
        FIRST_AUTOSCALER | {f"{GROUP}.priority": 0},
        {f"{CLUSTER}.autoscalerOptions": {}, HEAD_ENV: [V2], f"{GROUP}.priority": 1},
    ],
)
def test_the_operator_takes(changes):
    one = job()
    for path, value in changes.items():
        put(one, path, value)
    assert said(one) == []


def test_tokens_of_kubernetes_need_a_newer_ray():
    one = render(with_kuberay(interactive=True, entrypoint="", ray_version="2.54.0"), "1")["raycluster"]
    assert said(one) == []
    assert said(put(one, "spec.authOptions.enableK8sTokenAuth", True)) == ["spec.rayVersion"]
    assert said(put(one, "spec.rayVersion", "2.55.0")) == []


def test_the_head_says_which_autoscaler_once():
    one = job()
    env = one["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    env.append({"name": "RAY_enable_autoscaler_v2", "value": "1"})
    assert said(one) == [f"{CLUSTER}.autoscalerOptions.version"]


def test_a_job_may_name_a_cluster_that_is_there_instead_of_its_own():
    one = put(job(), "spec.clusterSelector", {"ray.io/cluster": "ours"})
    del one["spec"]["rayClusterSpec"], one["spec"]["backoffLimit"]
    assert said(one) == []


def test_pods_may_be_restarted_and_any_version_will_do_where_nothing_asks_otherwise():
    one = put(job(), f"{GROUP}.template.spec.restartPolicy", "Always")
    del one["spec"]["rayClusterSpec"]["autoscalerOptions"]["version"], one["spec"]["rayClusterSpec"]["authOptions"]
    assert said(put(one, f"{CLUSTER}.rayVersion", "2.10.0")) == []


def test_other_kinds_are_not_the_operators():
    assert said(render(CONFIG, "1")["role"]) == []
