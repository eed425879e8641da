"""Effect. Kubernetes' own kinds, against the typed models of its Python client (the extra `kubernetes`)."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from elastic.kube.errors import packaged
from elastic.kube.schema import Problem
from elastic.settings.kuberay import HIGHEST_PRIORITY

_CONTAINER = re.compile(r"^(?P<outer>list|dict)[\[(](?:str, )?(?P<inner>.*)[\])]$", re.IGNORECASE)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")  # between two: CSIDriver is csi_driver
_SCALARS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "datetime": (str, datetime),  # YAML makes a time of one that is not quoted
    "bytearray": (str,),
}


def is_known(one: Mapping[str, Any]) -> bool:
    """Whether this is a kind that the client has a model of."""
    return _model(one) is not None


def problems(one: Mapping[str, Any]) -> Iterator[Problem]:
    """Unknown fields, values of the wrong kind, and fields that are missing."""
    model = _model(one)
    if model is None:
        yield Problem(path="kind", what=f"{one.get('apiVersion')} {one.get('kind')} is no kind that is known here")
        return
    found: list[Problem] = []
    _built(model, one, "", found)
    yield from found
    value = one.get("value")
    if one.get("kind") == "PriorityClass" and isinstance(value, int):
        if value > HIGHEST_PRIORITY:
            yield Problem(path="value", what=f"{value} must be at most {HIGHEST_PRIORITY}")
        if value < -(2**31):
            yield Problem(path="value", what=f"{value} is no int32")


def _model(one: Mapping[str, Any]) -> Any:
    """None where the group of this version has no objects of this kind."""
    with packaged():
        from kubernetes import client

    group, slash, version = str(one.get("apiVersion", "")).rpartition("/")
    kind, version = str(one.get("kind")), version.capitalize()
    prefix = "".join(part.capitalize() for part in group.removesuffix(".k8s.io").split(".")) if slash else "Core"
    api = getattr(client, f"{prefix}{version}Api", None)
    noun = _WORD.sub("_", kind).lower()
    if not any(hasattr(api, f"create_{scope}{noun}") for scope in ("", "namespaced_")):
        return None
    names = (f"{version}{kind}", f"{prefix}{version}{kind}")  # the group is in front where several have the kind
    return next((getattr(client, name) for name in names if hasattr(client, name)), None)


def _built(model: Any, value: Any, path: str, found: list[Problem]) -> Any:
    """The model of a value; what is wrong with it goes to `found`."""
    if not isinstance(value, Mapping):
        found.append(Problem(path=path, what=f"{value!r} must be an object"))
        return None
    names = {key: name for name, key in model.attribute_map.items()}
    parts: dict[str, Any] = {}
    before = len(found)
    for key, one in value.items():
        where = f"{path}.{key}" if path else key
        if key not in names:
            found.append(Problem(path=where, what="there is no such field"))
        elif one is not None:
            parts[names[key]] = _part(model.openapi_types[names[key]], one, where, found)
    if len(found) > before:
        return object()
    try:
        return model(**parts)  # refuses what lacks a field
    except ValueError as error:
        found.append(Problem(path=path, what=re.sub(r"Invalid value for `(\w+)`.*", r"\1 is missing", str(error))))
        return object()


def _part(kind: str, value: Any, path: str, found: list[Problem]) -> Any:
    container = _CONTAINER.match(kind)
    if container is not None and container["outer"].lower() == "list":
        if not isinstance(value, list):
            found.append(Problem(path=path, what=f"{value!r} must be a list"))
            return None
        return [_part(container["inner"], one, f"{path}[{number}]", found) for number, one in enumerate(value)]
    if container is not None:
        if not isinstance(value, Mapping):
            found.append(Problem(path=path, what=f"{value!r} must be names with values"))
            return None
        return {key: _part(container["inner"], one, f"{path}.{key}", found) for key, one in value.items()}
    if kind in _SCALARS:
        is_right = isinstance(value, _SCALARS[kind]) and (kind == "bool" or not isinstance(value, bool))
        if not is_right:
            found.append(Problem(path=path, what=f"{value!r} must be {kind}"))
        return value
    if kind == "object":
        return value
    from kubernetes.client import models

    return _built(getattr(models, kind), value, path, found)
