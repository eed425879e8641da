"""Effect. Whether manifests are what a cluster takes: schemas, rules in CEL, the operator's rules, built-in kinds."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from elastic.errors import SettingError
from elastic.kube import builtin, operator_rules, schema
from elastic.kube.manifests import placeholders
from elastic.kube.schema import Problem, Schema
from elastic.yamls import NO_YAML

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TIME = "tag:yaml.org,2002:timestamp"
_RAY = "ray.io"
_NO_OBJECTS = ("kustomize.config.k8s.io",)  # what Kustomize reads itself


class _Loader(_LOADER):  # type: ignore[misc]
    """As kubectl reads YAML: what looks like a time is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - of the base, less one
        first: [one for one in resolvers if one[0] != _TIME]
        for first, resolvers in _LOADER.yaml_implicit_resolvers.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found in one file.

    Attributes:
        objects: that were judged. problems: with the object in front. unjudged: rules in CEL that nobody could judge.
        undefined: kinds of others, of which no definition is there. placeholders: see `manifests.placeholders`.
    """

    objects: int
    problems: tuple[str, ...]
    unjudged: tuple[str, ...]
    undefined: tuple[str, ...]
    placeholders: tuple[str, ...]


@dataclass(slots=True)
class Definitions:
    """CustomResourceDefinitions by (kind, apiVersion)."""

    crds: Iterable[Mapping[str, Any]]
    _schemas: dict[tuple[str, str], Schema] = field(default_factory=dict)

    def schema(self, kind: str, api: str) -> Schema | None:
        """None where none of the definitions is of this kind."""
        if (kind, api) not in self._schemas:
            for crd in self.crds:
                if crd["spec"]["names"]["kind"] == kind and crd["spec"]["group"] == api.partition("/")[0]:
                    try:
                        self._schemas[kind, api] = schema.schema_of(crd, api)[1]
                    except LookupError:
                        return None
        return self._schemas.get((kind, api))


def from_directory(folder: Path) -> Definitions:
    """The definitions in the YAML files of a folder.

    Raises:
        SettingError: there is none.
    """
    found = [one for path in sorted(folder.glob("*.yaml")) for one in _read(path)]
    crds = [one for one in found if isinstance(one, Mapping) and one.get("kind") == "CustomResourceDefinition"]
    if not crds:
        raise SettingError(f"--crds {folder}: no file there holds a CustomResourceDefinition")
    for one in crds:
        if not _is_whole(one):
            name = _metadata(one).get("name", "without a name")
            raise SettingError(f"--crds {folder}: the definition {name} has no group, kind or schema: take it out")
    return Definitions(crds)


def _is_whole(crd: Mapping[str, Any]) -> bool:
    try:
        spec = crd["spec"]
        schemas = [version["schema"]["openAPIV3Schema"] for version in spec["versions"] if version["name"]]
        texts = (spec["group"], spec["names"]["kind"])
    except (KeyError, TypeError):
        return False
    return (
        bool(schemas)
        and all(isinstance(one, Mapping) for one in schemas)
        and all(isinstance(one, str) for one in texts)
    )


def from_cluster(kubeconfig: str | None) -> Definitions:
    """The definitions of KubeRay that a cluster has.

    Raises:
        SettingError: no cluster is known here. KubeError: it refuses, or lacks them.
    """
    from elastic.kube.client import connect

    try:
        client = connect("default", kubeconfig)
    except SettingError as error:
        where = "ray-operator/config/crd/bases of its repository"
        raise SettingError(f"{error}, or name a folder of KubeRay's definitions with --crds: {where}") from error
    try:
        return Definitions([client.definition(f"{name}.ray.io") for name in ("rayjobs", "rayclusters")])
    finally:
        client.close()


def validate(path: Path, definitions: Definitions) -> Report:
    """Judge the objects of a file.

    Raises:
        SettingError: it can not be read.
    """
    problems: list[str] = []
    unjudged: list[str] = []
    undefined: list[str] = []
    objects: list[Mapping[str, Any]] = []
    for one in _read(path):
        if one is None or (isinstance(one, Mapping) and str(one.get("apiVersion")).startswith(_NO_OBJECTS)):
            continue
        if not isinstance(one, Mapping) or not one.get("apiVersion") or not one.get("kind"):
            problems.append(f"{path}: holds something without apiVersion and kind: no object of Kubernetes")
            continue
        if _is_undefined(one, definitions):
            undefined.append(f"{one['apiVersion']} {one['kind']}")
            continue
        objects.append(one)
        where = f"{path}: {one['kind']} {_metadata(one).get('name', '(without a name)')}"
        problems += [f"{where}: {problem}" for problem in judged(one, definitions, unjudged)]
    return Report(
        objects=len(objects),
        problems=tuple(problems),
        unjudged=tuple(unjudged),
        undefined=tuple(dict.fromkeys(undefined)),
        placeholders=tuple(placeholders(dict(one) for one in objects)),
    )


def _is_undefined(one: Mapping[str, Any], definitions: Definitions) -> bool:
    """A kind of somebody else's, such as of the Prometheus operator; KubeRay's and Kubernetes' own are to be known."""
    api = str(one["apiVersion"])
    group = api.rpartition("/")[0]
    is_others = "." in group and group != _RAY and not group.endswith(".k8s.io")
    return is_others and definitions.schema(str(one["kind"]), api) is None


def judged(one: Mapping[str, Any], definitions: Definitions, unjudged: list[str]) -> Iterator[Problem]:
    """What is wrong with an object; rules that nobody can judge go to `unjudged`."""
    kind, api = str(one["kind"]), str(one["apiVersion"])
    if not _metadata(one).get("name"):
        yield Problem(path="metadata.name", what="is missing")
    yield from schema.words(_metadata(one))
    found = definitions.schema(kind, api)
    if found is None:
        if not builtin.is_known(one):
            yield Problem(
                path="kind", what=f"{api} {kind} is not defined: name the folder of its definition with --crds"
            )
            return
        yield from builtin.problems(one)
        return
    filled = schema.with_defaults(found, one)
    broken = list(schema.problems(found, filled))
    yield from broken
    if not broken:  # rules would stumble over what has no shape
        yield from _by_rules(found, filled, unjudged)
        # The operator's are about what is written: the schema's defaults are no wish of the user's.
        yield from operator_rules.problems(one)


def _metadata(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """Empty where it is none: what has the wrong shape is told by the schema."""
    metadata = one.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _by_rules(found: Schema, filled: Any, unjudged: list[str]) -> Iterator[Problem]:
    for rule in schema.rules(found, filled):
        if rule.is_about_change:
            continue
        holds = _holds(rule.rule, rule.value)
        if holds is None:
            unjudged.append(f"{rule.path}: {rule.message}")
        elif not holds:
            yield Problem(path=rule.path, what=rule.message)


def _holds(rule: str, value: Any) -> bool | None:
    """None where no interpreter of CEL is installed."""
    try:
        import cel
    except ImportError:
        return None
    return bool(cel.evaluate(rule, {"self": value}))


def _read(path: Path) -> list[Any]:
    try:
        return list(yaml.load_all(path.read_text(), Loader=_Loader))  # noqa: S506 - a safe one
    except (OSError, *NO_YAML) as error:
        raise SettingError(f"{path} cannot be read as YAML: {error}") from error
