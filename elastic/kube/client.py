"""Effect. The few calls to Kubernetes that a run needs, typed, each with a deadline (the extra `kubernetes`).

Errors are told apart by what to do about them. A write that another writer came ahead of is read, changed and written
again; a watch that ends is resumed where it was, or begun anew where that is too long ago.
"""

import json
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

from yaml import YAMLError

from elastic.errors import SettingError
from elastic.kube.errors import KubeError, Why, packaged, told_apart, why_of
from elastic.kube.marks import is_uncordoned_after, key_of, mark_on
from elastic.kube.objects import (
    GroupState,
    JobStatus,
    Machine,
    Pod,
    group_states,
    job_status,
    machine_of,
    pod_of,
    taints_of,
)

_T = TypeVar("_T")
GROUP, VERSION = "ray.io", "v1"
_CALL_S = 10.0
_TRIES = 8
_AGAIN_S = 0.05
_PART_BYTES = 1 << 20
_MERGE = "application/merge-patch+json"
_AT_HOME = "~/.kube/config"
_MADE_BY = "ray.io/originated-from-crd"  # a label of KubeRay's operator
_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


_AWAY = (Why.BUSY, Why.UNREACHABLE)
_FOR_GOOD = (Why.MISSING, Why.FORBIDDEN, Why.INVALID)


class KubeClient:
    """See the module.

    Args:
        api: a configured `kubernetes.client.ApiClient`; see `connect`. namespace: of all that is in one.
        call_s: deadline of a call.
    """

    def __init__(self, api: Any, namespace: str, call_s: float = _CALL_S) -> None:
        from kubernetes import client

        self.namespace, self._call_s = namespace, call_s
        self._api = api
        self._core: Any = client.CoreV1Api(api)
        self._custom: Any = client.CustomObjectsApi(api)

    def close(self) -> None:
        self._api.close()
        self._api.rest_client.pool_manager.clear()  # which that leaves open

    # --- RayJobs ---

    def create_job(self, body: Mapping[str, Any]) -> None:
        """Raises: KubeError: CONFLICT where there is one of that name, INVALID with what is wrong, FORBIDDEN."""
        with told_apart(f"create RayJob {body['metadata']['name']}"):
            create = self._custom.create_namespaced_custom_object
            self._read(create, GROUP, VERSION, self.namespace, "rayjobs", dict(body), field_validation="Strict")

    def job(self, name: str) -> JobStatus:
        """Where a RayJob stands. Raises: KubeError."""
        with told_apart(f"read RayJob {name}"):
            return job_status(self._get("rayjobs", name))

    def delete_job(self, name: str) -> None:
        """Raises: KubeError."""
        with told_apart(f"delete RayJob {name}"):
            delete = self._custom.delete_namespaced_custom_object
            self._read(delete, GROUP, VERSION, self.namespace, "rayjobs", name)

    def wait_for_job(
        self, name: str, until: Callable[[JobStatus], bool], timeout_s: float, tell: Callable[[JobStatus], None]
    ) -> JobStatus:
        """Watch a RayJob until its status is as wanted, or over.

        Args:
            tell: called with each status that is new.

        Raises:
            KubeError: it is gone, or the API server has not answered by then.
            TimeoutError: it was neither in time.
        """
        deadline_s, told = time.monotonic() + timeout_s, None
        with closing(self.watch_jobs(name, deadline_s)) as watched:
            for one in watched:
                status = job_status(one)
                if status != told:
                    tell(status)
                    told = status
                if until(status) or status.state.is_over:
                    return status
        raise TimeoutError(f"RayJob {name} is {told.state.value if told else 'silent'} after {timeout_s:g} s")

    def watch_jobs(self, name: str, deadline_s: float) -> Generator[Mapping[str, Any], None, None]:
        """The RayJob as it is, and each time that it changes, until the deadline (of `time.monotonic`).

        Raises:
            KubeError: it is gone, or the API server has not answered by then.
        """
        version = ""
        while (left_s := deadline_s - time.monotonic()) > 0:
            if not version:
                one = self._patiently(lambda: self._get("rayjobs", name), deadline_s)
                version = str(one["metadata"]["resourceVersion"])
                yield one
                continue
            try:
                with told_apart(f"watch RayJob {name}"), closing(self._changes(name, version, min(left_s, 30))) as seen:
                    for event in seen:
                        one = event["object"]
                        if event["type"] == "ERROR":
                            raise KubeError(f"watch RayJob {name}: {one}", why=why_of(one["code"]), status=one["code"])
                        version = str(one["metadata"]["resourceVersion"])
                        if event["type"] == "DELETED":
                            raise KubeError(f"RayJob {name} was deleted", why=Why.MISSING, status=404)
                        yield one
                        if time.monotonic() > deadline_s:
                            return
            except KubeError as error:
                if error.why in _FOR_GOOD:
                    raise
                version = ""  # too old, or the server was away: look again
                time.sleep(_AGAIN_S)

    def definition(self, name: str) -> dict[str, Any]:
        """A CustomResourceDefinition. Raises: KubeError."""
        from kubernetes import client

        definitions: Any = client.ApiextensionsV1Api(self._api)
        with told_apart(f"read the definition {name}"):
            found: dict[str, Any] = self._read(definitions.read_custom_resource_definition, name)
        return found

    def _changes(self, name: str, version: str, for_s: float) -> Generator[Mapping[str, Any], None, None]:
        """Events of one watch, until the server ends it or its time is over; closed with its connection.

        The package's own watch hands on whole events, so that who sends one byte at a time would hold it for ever.
        """
        deadline_s = time.monotonic() + for_s
        answer = self._custom.list_namespaced_custom_object(
            GROUP,
            VERSION,
            self.namespace,
            "rayjobs",
            field_selector=f"metadata.name={name}",
            resource_version=version,
            watch=True,
            timeout_seconds=max(1, int(for_s)),
            _preload_content=False,
            _request_timeout=(self._call_s, for_s + self._call_s),
        )
        rest = b""
        try:
            while time.monotonic() < deadline_s and (part := answer.read1(_PART_BYTES)):
                *lines, rest = (rest + part).split(b"\n")
                yield from (json.loads(line) for line in lines if line.strip())
        finally:
            answer.close()

    # --- RayClusters ---

    def is_of_a_job(self, cluster: str) -> bool:
        """Whether a RayJob has made it, and it ends with that. Raises: KubeError."""
        with told_apart(f"read RayCluster {cluster}"):
            labels = self._get("rayclusters", cluster)["metadata"].get("labels") or {}
            return bool(labels.get(_MADE_BY) == "RayJob")

    def groups(self, cluster: str) -> dict[str, GroupState]:
        """Its worker groups by name. Raises: KubeError."""
        with told_apart(f"read RayCluster {cluster}"):
            return group_states(self._get("rayclusters", cluster))

    def scale(
        self, cluster: str, group: str, replicas: int, leave: frozenset[str] = frozenset(), of: int | None = None
    ) -> GroupState:
        """Set the replicas of a group, within its bounds, and name pods that go. Raises: KubeError.

        Nothing is written where replicas are not `of` any more: somebody else has changed what this was decided on.
        """

        def change(one: dict[str, Any]) -> None:
            number, now = _group(one, group)
            if of is not None and now.replicas != of:
                return
            spec = one["spec"]["workerGroupSpecs"][number]
            spec["replicas"] = min(max(replicas, now.low), now.high)
            if leave:  # in the same write: the operator deletes any where a lower number comes alone
                spec.setdefault("scaleStrategy", {})["workersToDelete"] = sorted({*now.leaving, *leave})

        return _group(self._change_cluster(cluster, change), group)[1]

    def replace_pods(self, cluster: str, group: str, pods: frozenset[str]) -> None:
        """Have the operator delete pods, and start others: the number of replicas stays. Raises: KubeError."""

        def change(one: dict[str, Any]) -> None:
            number, now = _group(one, group)
            spec = one["spec"]["workerGroupSpecs"][number]
            # Whoever else names pods there, such as the autoscaler, keeps its own.
            spec.setdefault("scaleStrategy", {})["workersToDelete"] = sorted({*now.leaving, *pods})

        self._change_cluster(cluster, change)

    def pods(self, cluster: str) -> tuple[Pod, ...]:
        """The pods of a cluster. Raises: KubeError."""
        with told_apart(f"list the pods of {cluster}"):
            of_cluster = f"ray.io/cluster={cluster}"
            found = self._read(self._core.list_namespaced_pod, self.namespace, label_selector=of_cluster)
            return tuple(pod_of(one) for one in found["items"])

    def evict(self, pod: str) -> None:
        """Have a pod leave as disruption budgets allow. Raises: KubeError: HELD where they do not."""
        from kubernetes import client

        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=pod, namespace=self.namespace))
        with told_apart(f"evict pod {pod}"):
            self._read(self._core.create_namespaced_pod_eviction, pod, self.namespace, body)

    # --- machines ---

    def machine(self, name: str) -> Machine:
        """Raises: KubeError."""
        with told_apart(f"read node {name}"):
            return machine_of(self._node(name))

    def machines(self) -> tuple[Machine, ...]:
        """All of the cluster; of some the server may not know the latest yet. Raises: KubeError."""
        with told_apart("list the nodes"):
            # Version 0: as the server remembers them; reading all nodes anew would be work for its store.
            found = self._read(self._core.list_node, resource_version="0")
            return tuple(machine_of(one) for one in found["items"])

    def quarantine(self, name: str, run: str, until_s: float) -> None:
        """Keep new pods away from a machine, and mark it as this run's: one write, so that neither is there alone.

        Raises: KubeError.
        """

        def change(node: Mapping[str, Any]) -> dict[str, Any]:
            taint = mark_on(machine_of(node), run, until_s)
            ours = {"key": taint.key, "value": taint.value, "effect": taint.effect}
            return {"unschedulable": True, "taints": [*_others(node, taint.key), ours]}

        self._change_node(name, change)

    def release(self, name: str, run: str) -> None:
        """Take this run's mark away, and the cordon if nobody else has, or had, a reason for it. Raises: KubeError."""

        def change(node: Mapping[str, Any]) -> dict[str, Any]:
            rest = {"taints": _others(node, key_of(run))}
            if rest["taints"] == taints_of(node):  # it is gone already: the cordon is somebody else's
                return {}
            return rest | ({"unschedulable": None} if is_uncordoned_after(machine_of(node), run) else {})

        self._change_node(name, change)

    # --- how ---

    def _get(self, plural: str, name: str) -> dict[str, Any]:
        with told_apart(f"read {plural} {name}"):
            get = self._custom.get_namespaced_custom_object
            found: dict[str, Any] = self._read(get, GROUP, VERSION, self.namespace, plural, name)
            return found

    def _node(self, name: str) -> dict[str, Any]:
        with told_apart(f"read node {name}"):
            found: dict[str, Any] = self._read(self._core.read_node, name)
            return found

    def _change_cluster(self, name: str, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Read, change, write with the version that was read, unless nothing is; again if somebody came ahead."""

        def once() -> dict[str, Any]:
            with told_apart(f"change RayCluster {name}"):
                one = self._get("rayclusters", name)
                before = deepcopy(one)
                change(one)
                if one == before:
                    return one
                metadata = {"resourceVersion": one["metadata"]["resourceVersion"]}
                body = {"metadata": metadata, "spec": {"workerGroupSpecs": one["spec"]["workerGroupSpecs"]}}
                patch, where = self._custom.patch_namespaced_custom_object, (GROUP, VERSION, self.namespace)
                changed: dict[str, Any] = self._read(patch, *where, "rayclusters", name, body, _content_type=_MERGE)
                return changed

        return _again(once)

    def _change_node(self, name: str, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
        """The same for fields of a node's `spec`."""

        def once() -> None:
            with told_apart(f"change node {name}"):
                node = self._node(name)
                spec = change(node)
                if all(node["spec"].get(key) == value for key, value in spec.items()):
                    return
                body = {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"]}, "spec": spec}
                # A merge patch: a strategic one would not take taints away.
                self._read(self._core.patch_node, name, body, _content_type=_MERGE)

        _again(once)

    def _patiently(self, call: Callable[[], dict[str, Any]], deadline_s: float) -> dict[str, Any]:
        """As long as the API server does not answer, and there is time."""
        while True:
            try:
                return call()
            except KubeError as error:
                if error.why not in _AWAY or time.monotonic() > deadline_s:
                    raise
                time.sleep(_AGAIN_S * 10)

    def _read(self, call: Callable[..., Any], *names: Any, **options: Any) -> Any:
        """What a call answers, from JSON. Raises: TimeoutError: not all of it has come within the deadline."""
        deadline_s = time.monotonic() + self._call_s
        answer = call(*names, _preload_content=False, _request_timeout=self._call_s, **options)
        parts: list[bytes] = []
        try:
            while part := answer.read1(_PART_BYTES):  # the time-out of the request is that of each such part
                parts.append(part)
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"its answer takes longer than {self._call_s:g} s")
        finally:
            answer.close()
        return json.loads(b"".join(parts))


def connect(namespace: str, kubeconfig: str | None = None, call_s: float = _CALL_S) -> KubeClient:
    """A client with the rights of a kubeconfig file, of KUBECONFIG, of the pod it runs in, or of ~/.kube/config.

    Raises:
        SettingError: the package is missing, or there is neither.
    """
    with packaged():
        from kubernetes import client, config
    settings = client.Configuration()
    named = kubeconfig or os.environ.get("KUBECONFIG")  # read now: the package reads it when it is imported
    where = named or _AT_HOME  # a variable that is empty is none, as for kubectl
    try:
        if not named and _IN_CLUSTER.exists():
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(where, client_configuration=settings)
    except config.ConfigException as error:
        raise SettingError(f"no Kubernetes cluster is known here ({_said(error)}): set KUBECONFIG") from error
    except (YAMLError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:  # it checks no shapes
        raise SettingError(f"{where} is no configuration of a cluster ({_said(error)}): set KUBECONFIG") from error
    settings.retries = False  # ours are told of, and end
    return KubeClient(client.ApiClient(settings), namespace, call_s)


def _said(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]


def _others(node: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return [one for one in taints_of(node) if one["key"] != key]


def _again(once: Callable[[], _T]) -> _T:
    for number in range(_TRIES):
        try:
            return once()
        except KubeError as error:
            if error.why is not Why.CONFLICT or number == _TRIES - 1:
                raise
            time.sleep(_AGAIN_S * (number + 1))
    raise AssertionError("unreachable")


def _group(one: Mapping[str, Any], group: str) -> tuple[int, GroupState]:
    """Where a group stands in the list, and how it is."""
    found = group_states(one)
    if group not in found:
        name = one["metadata"]["name"]
        raise KubeError(f"RayCluster {name} has no worker group {group}", why=Why.MISSING, status=404)
    return list(found).index(group), found[group]
