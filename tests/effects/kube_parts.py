"""Effect. What lies beside the checkout for tests on Kubernetes: KubeRay's definitions, and a real API server."""

import functools
import importlib.util
import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from elastic.config import load
from elastic.kube.manifests import render
from elastic.kube.validate import Definitions, from_directory

ROOT = Path(__file__).resolve().parents[2]
_BY_API = {
    "v1": "/api/v1",
    "rbac.authorization.k8s.io/v1": "/apis/rbac.authorization.k8s.io/v1",
    "scheduling.k8s.io/v1": "/apis/scheduling.k8s.io/v1",
    "ray.io/v1": "/apis/ray.io/v1",
    "policy/v1": "/apis/policy/v1beta1",  # the server of the tests is older than policy/v1
}


# What a run's settings may say of its cluster instead of what they say.
VARIANTS: dict[str, dict[str, Any]] = {
    "interactive": {"interactive": True, "entrypoint": ""},
    "mtc": {"multi_tier": True, "params": 1e8},
    "private": {
        "env": {"WANDB_PROJECT": "p"},
        "env_from_secrets": ("tokens",),
        "image_pull_secrets": ("registry",),
        "node_selector": {"pool": "gpus"},
        "tolerations": ("team=ml:NoSchedule", "dedicated"),
        "pod_labels": {"team": "ml"},
        "pod_annotations": {"team/contact": "ml"},
    },
}


def variant_of(folder: Path, variant: str) -> dict[str, dict[str, Any]]:
    """What is rendered of the settings in a folder, changed so."""
    config, _ = load(folder / "run.yaml", environment={})
    assert config.kuberay is not None
    return render(replace(config, kuberay=replace(config.kuberay, **VARIANTS[variant])), "1")


def crds() -> Path:
    """The folder with the definitions of RayJob and RayCluster, 1.7.0; skips the test where it is not there."""
    given = os.environ.get("KUBERAY_CRDS")
    found = [Path(given)] if given else sorted(ROOT.parent.glob("*/kuberay-crds"))
    if not found or not found[0].is_dir():
        pytest.skip("KubeRay's definitions are not beside the checkout, and KUBERAY_CRDS names no folder")
    return found[0]


def definitions() -> Definitions:
    """What `crds` holds, read once."""
    return _read(crds())


@functools.cache
def _read(folder: Path) -> Definitions:
    return from_directory(folder)


def api_server(kind: str) -> ModuleType:
    """The module that starts a real API server; skips the test where it, or the server, is not there."""
    given = os.environ.get("KUBE_APISERVER")
    found = [Path(given)] if given else sorted(ROOT.parent.glob("*/tools/kube-apiserver"))
    if not found or not (found[0] / "run.py").exists():
        pytest.skip("no API server is beside the checkout, and KUBE_APISERVER names none")
    spec = importlib.util.spec_from_file_location("kube_apiserver_run", found[0] / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not module.available(server=kind):
        pytest.skip(f"the API server ({kind}) is not built: run {found[0]}/build.sh --crd")
    return module


def create(kube: Any, one: dict[str, Any]) -> tuple[int, Any]:
    """Create an object, refusing what is not known of it; returns (status, answer)."""
    plural = one["kind"].lower() + ("ies" if one["kind"].endswith("y") else "es" if one["kind"].endswith("s") else "s")
    namespace = one["metadata"].get("namespace")
    where = f"/namespaces/{namespace}" if namespace else ""
    body = one | ({"apiVersion": "policy/v1beta1"} if one["apiVersion"] == "policy/v1" else {})
    return kube.request("POST", f"{_BY_API[one['apiVersion']]}{where}/{plural}?fieldValidation=Strict", body)


def apply(kube: Any, objects: Iterable[dict[str, Any]]) -> None:
    """As `kubectl apply` does with what is not there yet."""
    for one in objects:
        status, answer = create(kube, one)
        assert status == 201, answer


def account_of(run: str, who: str = "head") -> str:
    """Whom the API server takes the pods of a run for."""
    return f"system:serviceaccount:default:{run}-{who}"


def ask_as(kube: Any, user: str, method: str, path: str, body: Any) -> int:
    """The HTTP status of a request that the administrator makes in the name of another user."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    headers = {"Authorization": f"Bearer {kube.token}", "Impersonate-User": user, "Content-Type": kind}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(kube.url + path, data=data, method=method, headers=headers)
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=kube.ca_file))
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({}), https).open(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
