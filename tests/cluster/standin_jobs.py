"""Effect. Plays what KubeRay's operator does with a RayJob: a cluster for it, its program, its states, and its end.

After `controllers/ray/rayjob_controller.go` of KubeRay, of which it keeps what a run meets. It does not play: retries
(`backoffLimit`; a job that fails must ask for none), deadlines, suspension, `deletionStrategy`, `clusterSelector`,
modes of submission (it submits by itself, in place of a Job with a pod), conditions, and judging what is applied. There
is no garbage collector: what goes with its owner is deleted here, one by one. The head is no pod: whoever is told of
the new RayCluster starts one.
"""

import calendar
import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.standin_operator import EVERY_S, MERGE, PODS, Operator
from tests.cluster.standin_pods import Object
from tests.effects.kube_parts import create

_JOBS, _CLUSTERS = (f"/apis/ray.io/v1/namespaces/default/{kind}" for kind in ("rayjobs", "rayclusters"))
_ANSWER_S = 30.0
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_ENDED = {"SUCCEEDED": "Complete", "STOPPED": "Complete", "FAILED": "Failed"}


@dataclass(frozen=True, slots=True)
class Head:
    """A Ray head, and who plays its RayCluster's groups. `end` takes it away with all that runs on its cluster."""

    operator: Operator
    dashboard: str
    end: Callable[[], None]


class JobOperator:
    """Takes one RayJob from state to state, one at each call; where it stands is in the API server alone.

    Args:
        kube: the API server. head: starts the head of a RayCluster that was created.

    Attributes:
        head: of the RayCluster, while there is one.
    """

    def __init__(self, kube: Any, name: str, head: Callable[[Object], Head]) -> None:
        self._kube, self._name, self._start_head = kube, name, head
        self.head: Head | None = None
        self._due_s = 0.0

    def now_and_then(self) -> None:
        if time.monotonic() >= self._due_s:
            self.reconcile()
            self._due_s = time.monotonic() + EVERY_S

    def reconcile(self) -> None:
        job = self._ask("GET", f"{_JOBS}/{self._name}")
        spec, status = job["spec"], job.get("status") or {}
        if self.head is not None:
            self.head.operator.reconcile()
        match status.get("jobDeploymentStatus", ""):
            case "":
                self._begin(job)
            case "Initializing":
                self._submit(spec["entrypoint"], status["jobId"])
            case "Running":
                self._mirror(status, spec.get("backoffLimit", 0))
            case "Complete" | "Failed" if spec.get("shutdownAfterJobFinishes"):
                self._clean_up(status, spec.get("ttlSecondsAfterFinished", 0))

    def _begin(self, job: Object) -> None:
        name = f"{self._name}-x7k2p"  # the operator draws five characters
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "controller": True, "blockOwnerDeletion": True}
        owner |= {"name": self._name, "uid": job["metadata"]["uid"]}
        labels = {"ray.io/originated-from-crd": "RayJob", "ray.io/originated-from-cr-name": self._name}
        metadata = {"name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner]}
        one = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata}
        status, answer = create(self._kube, one | {"spec": job["spec"]["rayClusterSpec"]})
        assert status == 201, answer
        self.head = self._start_head(answer)
        self._tell(jobDeploymentStatus="Initializing", rayClusterName=name, jobId=f"{self._name}-b4x9q")

    def _submit(self, entrypoint: str, job: str) -> None:
        """The program begins once all pods run that the groups begin with."""
        assert self.head is not None
        if self.head.operator.is_ready():
            self._of_ray("", {"entrypoint": entrypoint, "submission_id": job})
            self._tell(jobDeploymentStatus="Running", jobStatus="PENDING", dashboardURL=self.head.dashboard)

    def _mirror(self, status: Object, retries: int) -> None:
        found = self._of_ray(status["jobId"])
        assert found["status"] != "FAILED" or not retries, f"the stand-in does not play retries: {found}"
        if found["status"] in _ENDED:
            deployed, end = _ENDED[found["status"]], time.strftime(_TIME, time.gmtime())
            self._tell(jobStatus=found["status"], jobDeploymentStatus=deployed, message=found["message"], endTime=end)
        elif found["status"] != status["jobStatus"]:
            self._tell(jobStatus=found["status"])

    def _clean_up(self, status: Object, linger_s: int) -> None:
        ended_s = calendar.timegm(time.strptime(status["endTime"], _TIME))
        if self.head is None or time.time() < ended_s + linger_s:
            return
        self._ask("DELETE", f"{_CLUSTERS}/{status['rayClusterName']}")
        for pod in self.head.operator.pods():
            self._ask("DELETE", f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        self.close()

    def close(self) -> None:
        """Take the head away, if it is there."""
        if self.head is not None:
            self.head.operator.close()
            self.head.end()
            self.head = None

    def _of_ray(self, job: str, body: Object | None = None) -> Any:
        """Ray's API for jobs, as its head's dashboard has it."""
        assert self.head is not None
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.head.dashboard}/api/jobs/{job}", data=data)
        request.add_header("Content-Type", "application/json")
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=_ANSWER_S) as answer:
            return json.load(answer)

    def _tell(self, **status: Any) -> None:
        self._ask("PATCH", f"{_JOBS}/{self._name}/status", {"status": status})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        kind = MERGE if method == "PATCH" else "application/json"
        status, answer = self._kube.request(method, path, body, content_type=kind)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer
