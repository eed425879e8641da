"""Pure. The same objects as a Kustomize base and overlays: an overlay is the difference from the base.

Patches are JSON patches (RFC 6902): strategic merging is not defined for custom kinds, whose lists would be replaced.
"""

from collections.abc import Mapping
from typing import Any

from elastic.kube.manifests import text
from elastic.kube.pods import Object

_HEADER = "# Written by `python tools/kuberay.py --write kuberay` from run.yaml; do not edit by hand.\n"


def base(objects: Mapping[str, Object]) -> dict[str, str]:
    """Files of a base, by name."""
    files = {f"{name}.yaml": _HEADER + text(one) for name, one in objects.items()}
    return files | {"kustomization.yaml": _kustomization(resources=list(files))}


def overlay(objects: Mapping[str, Object], on: Mapping[str, Object], path: str) -> dict[str, str]:
    """Files of an overlay that makes these objects of those `on` which it is laid.

    Args:
        path: of the base, from the overlay.

    Raises:
        ValueError: an object of the base has another name here: patches find their target by it.
    """
    files: dict[str, str] = {}
    patches: list[Object] = []
    for name, one in on.items():
        target = {"kind": one["kind"], "name": one["metadata"]["name"]}
        if name not in objects:
            patches.append({"target": target, "patch": text({"$patch": "delete", **_head(one)})})
            continue
        if _head(objects[name]) != _head(one):
            raise ValueError(f"{name} of the overlay is {_head(objects[name])}, of the base {_head(one)}")
        steps = json_patch(one, objects[name])
        if steps:
            files[f"{name}-patch.yaml"] = _HEADER + text(steps)  # type: ignore[arg-type]
            patches.append({"target": target, "path": f"{name}-patch.yaml"})
    added = {f"{name}.yaml": _HEADER + text(one) for name, one in objects.items() if name not in on}
    kustomization = _kustomization(resources=[path, *added], patches=patches)
    return files | added | {"kustomization.yaml": kustomization}


def json_patch(old: Any, new: Any, path: str = "") -> list[Object]:
    """Operations of RFC 6902 that make `new` of `old`."""
    if old == new and type(old) is type(new):
        return []
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        steps: list[Object] = [{"op": "remove", "path": f"{path}/{_escaped(key)}"} for key in old if key not in new]
        for key, value in new.items():
            where = f"{path}/{_escaped(key)}"
            steps += json_patch(old[key], value, where) if key in old else [_set("add", where, value)]
        return steps
    if isinstance(old, list) and isinstance(new, list) and 0 < len(old) <= len(new):
        pairs = enumerate(zip(old, new, strict=False))
        steps = [step for number, (one, other) in pairs for step in json_patch(one, other, f"{path}/{number}")]
        return steps + [_set("add", f"{path}/-", value) for value in new[len(old) :]]
    return [_set("replace", path, new)]


def _set(verb: str, path: str, value: Any) -> Object:
    return {"op": verb, "path": path, "value": value}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _head(one: Object) -> Object:
    """What an object is known by."""
    metadata = {key: one["metadata"][key] for key in ("name", "namespace") if key in one["metadata"]}
    return {"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": metadata}


def _kustomization(**parts: Any) -> str:
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return _HEADER + text(head | {name: value for name, value in parts.items() if value})
