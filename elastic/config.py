"""Effect. What `fit` is told beside its arguments: by a YAML file, and by the environment.

Later ones win: defaults, the file, the environment, arguments (of `fit`, or `--set` of a command).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from elastic.control.schedules import schedule_of
from elastic.errors import SettingError
from elastic.knobs import (
    Given,
    RunConfig,
    Tree,
    at_path,
    configured,
    effective,
    merged,
    optional_sections,
    plain_names,
)
from elastic.yamls import NO_YAML

FILE_VARIABLE = "ELASTIC_CONFIG"
_PREFIX = "ELASTIC_"
_OFF = ("null", "~")  # not empty: what nobody has set is empty in many files
_DEPTH = 8


def load(
    file: str | os.PathLike[str] | None = None,
    arguments: Tree | None = None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[RunConfig, Tree]:
    """What is in effect, and the tree that says where it came from; see `elastic.knobs.effective`.

    Args:
        file: YAML; default: the one that ELASTIC_CONFIG names, if it does.
        arguments: what overrides everything else.
        environment: variables `ELASTIC_<SECTION>__<KNOB>`, values as in YAML; without a section: `ELASTIC_<KNOB>`;
            `ELASTIC_<SECTION>=null` switches one off that may be.

    Raises:
        SettingError: the file cannot be read, a name is unknown, or a value cannot work; says where.
    """
    path = file if file is not None else environment.get(FILE_VARIABLE)
    written = read(Path(path)) if path else {}
    tree = merged(written, from_environment(environment), arguments or {})
    return checked(tree), tree


def checked(tree: Tree) -> RunConfig:
    """The arguments that a tree gives, with faults that can be drawn.

    Raises:
        SettingError: see `elastic.knobs.configured`; or a fault cannot be understood; says where it was given.
    """
    config = configured(tree)
    try:
        schedule_of(config.chaos)
    except SettingError as error:
        field = str(error).partition(":")[0].lower()  # Chaos.schedule
        (source,) = [knob.source for knob in effective(config, tree) if knob.path == field]
        raise SettingError(f"{source}: {error}") from error
    return config


def read(path: Path) -> Tree:
    """The tree in a YAML file; each value knows its line.

    Raises:
        SettingError: it cannot be read, is no YAML, or gives a name twice.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingError(f"the configuration {path} cannot be read ({why}): give the path of a YAML file") from error
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        return {} if node is None else _tree(loader, node, str(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise SettingError(f"{path}{line}: no YAML: {getattr(error, 'problem', None) or error}") from error


def from_environment(environment: Mapping[str, str]) -> Tree:
    """The tree that variables give. Raises: SettingError: a value is no YAML."""
    trees = []
    for variable in sorted(environment):
        name = variable.removeprefix(_PREFIX).lower()
        if not variable.startswith(_PREFIX) or ("__" not in name and name not in plain_names() | optional_sections()):
            continue
        if name in optional_sections() and environment[variable].strip() not in _OFF:
            continue  # it is no knob, and may be somebody else's
        value = _scalar(environment[variable], variable)
        trees.append(at_path(name.replace("__", "."), Given(value, variable)))
    return merged(*trees)


def assigned(text: str) -> Tree:
    """The tree of `limits.lease_s=60`. Raises: SettingError: it is no assignment."""
    path, equals, value = text.partition("=")
    if not (path and equals):
        raise SettingError(f"--set {text}: must be knob=value, e.g. limits.lease_s=60")
    return at_path(path, Given(_scalar(value, f"--set {path}"), f"--set {path}"))


def _scalar(text: str, source: str) -> Any:
    try:
        return yaml.safe_load(text)
    except NO_YAML as error:
        raise SettingError(f"{source}: its value is no YAML") from error


def _tree(loader: Any, node: Any, file: str, depth: int = 0) -> Tree:
    where = f"{file}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        raise SettingError(f"{where}: there must be names with values here, e.g. `scaling:` and below it `spares: 1`")
    if depth > _DEPTH:
        raise SettingError(f"{where}: sections are nested more than {_DEPTH} deep")
    names = [_plain(loader, name, file) for name, _ in node.value if not name.tag.endswith(":merge")]
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise SettingError(f"{where}: {twice[0]} is given twice in this section")
    loader.flatten_mapping(node)
    tree: dict[str, Any] = {}
    for name_node, value in node.value:
        name = str(_plain(loader, name_node, file))
        if isinstance(value, yaml.MappingNode):
            tree[name] = _tree(loader, value, file, depth + 1)
        else:
            tree[name] = Given(_plain(loader, value, file), f"{file}:{name_node.start_mark.line + 1}")
    return tree


def _plain(loader: Any, node: Any, file: str) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except yaml.YAMLError:
        raise  # it says where
    except NO_YAML as error:
        raise SettingError(f"{file}:{node.start_mark.line + 1}: no YAML: {error}") from error
