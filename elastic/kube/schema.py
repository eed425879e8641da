"""Pure. Whether an object is what a structural schema says, as strictly as an API server that is asked to be strict.

Source: Kubernetes' documentation of custom resources (structural schemas, defaulting, validation rules) and of
`fieldValidation=Strict`. Unknown fields are errors unless a schema preserves them; defaults are filled in first. Rules
in CEL are judged by who can, see `Rule`.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (Mapping,),
    "array": (list,),
}
_BOUNDS = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "minLength": lambda value, limit: len(value) >= limit,
    "maxLength": lambda value, limit: len(value) <= limit,
    "minItems": lambda value, limit: len(value) >= limit,
    "maxItems": lambda value, limit: len(value) <= limit,
    "minProperties": lambda value, limit: len(value) >= limit,
    "maxProperties": lambda value, limit: len(value) <= limit,
}
_RANGES = {"int32": 2**31, "int64": 2**63}
_TEXT: Schema = {"type": "string", "nullable": True}
_WORDS: Schema = {"type": "object", "nullable": True, "additionalProperties": {"type": "string"}}
_WHATEVER: Schema = {"nullable": True, "x-kubernetes-preserve-unknown-fields": True}
_NUMBER: Schema = {"type": "integer", "nullable": True, "format": "int64"}
# What every object of Kubernetes says of itself, which definitions leave out; times are YAML's own, or texts.
_METADATA: Schema = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("name", "generateName", "namespace", "uid", "resourceVersion", "selfLink"), _TEXT),
        **dict.fromkeys(("labels", "annotations"), _WORDS),
        **dict.fromkeys(("creationTimestamp", "deletionTimestamp"), _WHATEVER),
        **dict.fromkeys(("generation", "deletionGracePeriodSeconds"), _NUMBER),
        "managedFields": {"type": "array", "nullable": True, "items": _WHATEVER},
        "finalizers": {"type": "array", "nullable": True, "items": {"type": "string"}},
        "ownerReferences": {
            "type": "array",
            "nullable": True,
            "items": {
                "type": "object",
                "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {
                    **dict.fromkeys(("apiVersion", "kind", "name", "uid"), {"type": "string"}),
                    **dict.fromkeys(("controller", "blockOwnerDeletion"), {"type": "boolean", "nullable": True}),
                },
            },
        },
    },
}
_ROOT = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": _METADATA}
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{,61}[a-z0-9])?")
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{,251}}[a-z0-9])?/)?{_PART}")  # a domain may be in front
_VALUE = re.compile(rf"({_PART})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong, and where: a path such as `spec.workerGroupSpecs[0].minReplicas`."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" if self.path else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A validation rule in CEL, and the value that it is about.

    Attributes:
        rule: in CEL, over `self`; `message`: what it means. is_about_change: it compares with the old value, so that a
            file alone can not break it.
    """

    path: str
    rule: str
    message: str
    value: Any

    @property
    def is_about_change(self) -> bool:
        return "oldSelf" in self.rule


def schema_of(crd: Mapping[str, Any], api: str) -> tuple[str, Schema]:
    """The kind of a CustomResourceDefinition, and its schema at an apiVersion, e.g. `ray.io/v1`.

    Raises:
        LookupError: it has no such version.
    """
    spec = crd["spec"]
    for version in spec["versions"]:
        if f"{spec['group']}/{version['name']}" == api and version.get("served", True):
            schema = dict(version["schema"]["openAPIV3Schema"])
            schema["properties"] = {**schema.get("properties", {}), **_ROOT}
            return str(spec["names"]["kind"]), schema
    raise LookupError(f"{spec['group']} has no {spec['names']['kind']} of {api}")


def with_defaults(schema: Schema, value: Any) -> Any:
    """A copy with the schema's defaults where nothing is given."""
    if isinstance(value, Mapping):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        filled = {
            key: with_defaults(properties.get(key) or (rest if isinstance(rest, Mapping) else {}), one)
            for key, one in value.items()
        }
        for key, part in properties.items():
            if key not in filled and "default" in part:
                filled[key] = with_defaults(part, deepcopy(part["default"]))
        return filled
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), one) for one in value]
    return value


def problems(schema: Schema, value: Any, path: str = "") -> Iterator[Problem]:
    """Everything about a value, defaults filled in, that the schema does not allow."""
    if value is None and schema.get("nullable"):
        return
    if not _is_kind(schema, value):
        wanted = "integer or string" if schema.get("x-kubernetes-int-or-string") else schema.get("type")
        yield Problem(path=path, what=f"{value!r} must be {_article(str(wanted))}")
        return
    yield from _limits(schema, value, path)
    yield from _combined(schema, value, path)
    if isinstance(value, Mapping):
        yield from _fields(schema, value, path)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from problems(schema.get("items", {}), one, f"{path}[{number}]")
        yield from _twice(schema, value, path)


def rules(schema: Schema, value: Any, path: str = "") -> Iterator[Rule]:
    """The rules in CEL that are about a value, defaults filled in, and about its parts."""
    for one in schema.get("x-kubernetes-validations", ()):
        yield Rule(path=path, rule=one["rule"], message=one.get("message", one["rule"]), value=value)
    if isinstance(value, Mapping):
        rest = schema.get("additionalProperties")
        for key, one in value.items():
            part = schema.get("properties", {}).get(key) or (rest if isinstance(rest, Mapping) else {})
            yield from rules(part, one, _join(path, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from rules(schema.get("items", {}), one, f"{path}[{number}]")


def words(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the words in the metadata of an object of any kind; shapes are told of by `problems`."""
    namespace, labels, annotations = (metadata.get(name) for name in ("namespace", "labels", "annotations"))
    if isinstance(namespace, str) and not _NAMESPACE.fullmatch(namespace):
        what = f"{namespace!r} must be lower case letters, digits and dashes, 63 of them at most"
        yield Problem(path="metadata.namespace", what=what)
    for key, value in labels.items() if isinstance(labels, Mapping) else ():
        if isinstance(value, str) and not is_label(key, value):
            yield Problem(path=f"metadata.labels.{key}", what=f"{value!r} is no label of Kubernetes")
    for key in annotations if isinstance(annotations, Mapping) else ():
        if not is_label(str(key).lower(), ""):
            yield Problem(path=f"metadata.annotations.{key}", what="is no name of an annotation")


def is_label(key: Any, value: Any) -> bool:
    """Whether these are Kubernetes' words for one: letters, digits, dash, dot, underscore."""
    return bool(_KEY.fullmatch(str(key)) and _VALUE.fullmatch(str(value)))


def _is_kind(schema: Schema, value: Any) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, int | str) and not isinstance(value, bool)
    kind = schema.get("type")
    if kind not in _KINDS:
        return True
    if kind == "boolean":
        return isinstance(value, bool)
    return isinstance(value, _KINDS[kind]) and not isinstance(value, bool)


def _limits(schema: Schema, value: Any, path: str) -> Iterator[Problem]:
    if "enum" in schema and value not in schema["enum"]:
        yield Problem(path=path, what=f"{value!r} must be one of {', '.join(map(repr, schema['enum']))}")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield Problem(path=path, what=f"{value!r} must match {schema['pattern']}")
    most = _RANGES.get(str(schema.get("format")))
    if most is not None and isinstance(value, int) and not -most <= value < most:
        yield Problem(path=path, what=f"{value!r} is no {schema['format']}")
    for name, holds in _BOUNDS.items():
        if name in schema and not holds(value, schema[name]):
            yield Problem(path=path, what=f"{value!r} breaks {name} {schema[name]}")


def _combined(schema: Schema, value: Any, path: str) -> Iterator[Problem]:
    """allOf, anyOf, oneOf, not: of a structural schema these add conditions, and no fields."""
    for one in schema.get("allOf", ()):
        yield from _conditions(one, value, path)
    fits = [not list(_conditions(one, value, path)) for one in schema.get("anyOf", ())]
    if fits and not any(fits):
        yield Problem(path=path, what=f"{value!r} is none of what it may be")
    fits = [not list(_conditions(one, value, path)) for one in schema.get("oneOf", ())]
    if fits and sum(fits) != 1:
        yield Problem(path=path, what=f"{value!r} must be exactly one of what it may be, and is {sum(fits)}")
    if "not" in schema and not list(_conditions(schema["not"], value, path)):
        yield Problem(path=path, what=f"{value!r} is what it must not be")


def _conditions(schema: Schema, value: Any, path: str) -> Iterator[Problem]:
    """A part of a combination: it says nothing of fields that it does not name."""
    return problems({**schema, "x-kubernetes-preserve-unknown-fields": True}, value, path)


def _fields(schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[Problem]:
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem(path=_join(path, name), what="is missing")
    for name, one in value.items():
        if name in properties:
            yield from problems(properties[name], one, _join(path, name))
        elif isinstance(rest, Mapping):
            yield from problems(rest, one, _join(path, name))
        elif not rest and not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield Problem(path=_join(path, name), what="there is no such field")


def _twice(schema: Schema, value: list[Any], path: str) -> Iterator[Problem]:
    """Lists that are maps, or sets, hold nothing twice."""
    kind = schema.get("x-kubernetes-list-type")
    if kind == "set":
        marks = [repr(one) for one in value]
    elif kind == "map":
        keys = schema.get("x-kubernetes-list-map-keys", ())
        marks = [repr([one.get(key) for key in keys]) for one in value if isinstance(one, Mapping)]
    else:
        return
    for number, mark in enumerate(marks):
        if mark in marks[:number]:
            yield Problem(path=f"{path}[{number}]", what=f"is there twice: {mark}")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"
