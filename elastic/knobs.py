"""Pure. Knobs by name: from values that were given in several places to settings, and where each of them came from.

What is given is a tree of names; its leaves carry their source (`run.yaml:3`, a variable, an argument). Trees are laid
over each other, the later one wins; a value is turned into what the settings' annotations ask for, or refused by name.
"""

import difflib
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit, urlunsplit

from elastic.errors import SettingError
from elastic.settings import Chaos, Checkpoint, Health, KubeRay, Limits, Logs, Page, Scaling

DEFAULT = "default"
_SOURCES = 3  # are named of a section whose values do not go together
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The arguments of `fit` that can be written down.

    Attributes:
        name: of the run. (text; default none: made up from time and chance)
        seed: base of all random state and of the data order. (number; default 0: any will do)
        run_dir: where the journal goes. (path; default none: runs/<name>)
        address: of a Ray cluster. (text; default none: RAY_ADDRESS, else a running one, else a local one for the call)
        scaling: how many replicas, on what. (see Scaling; default one on one CPU: see there)
        limits: how long waits may last. (see Limits; default as there: see there)
        checkpoint: how safe each step is made. (see Checkpoint; default none: it costs memory and storage)
        chaos: faults that the run does to itself. (see Chaos; default none: nobody asked for any)
        health: what is sensed of the hardware, and checked. (see Health; default as there: see there)
        logs: what is kept, and shown, of what its processes log. (see Logs; default as there: see there)
        page: the live page of the run. (see Page; default as there: see there)
        policy: "file.py:function" that decides what is done about an incident. (text; default none: the ladder of
            elastic.policies)
        kuberay: the cluster on Kubernetes that the run has for itself. (see KubeRay; default none: clusters are made in
            many ways)
        train_fn: "file.py:function" that `elastic run` trains; `fit` is handed it. (text; default none: the command
            names it)
    """

    name: str | None = None
    seed: int = 0
    run_dir: str | None = None
    address: str | None = None
    scaling: Scaling = field(default_factory=Scaling)
    limits: Limits = field(default_factory=Limits)
    checkpoint: Checkpoint | None = None
    chaos: Chaos | None = None
    health: Health = field(default_factory=Health)
    logs: Logs = field(default_factory=Logs)
    page: Page = field(default_factory=Page)
    policy: str | None = None
    kuberay: KubeRay | None = None
    train_fn: str | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """A value, and where it was given."""

    value: Any
    source: str


Tree = Mapping[str, Any]  # name -> Given, or a Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One value that is in effect.

    Attributes:
        path: its name with those of the sections around it, e.g. "checkpoint.keep.last". source: where it came from.
    """

    path: str
    value: Any
    source: str


def merged(*trees: Tree) -> Tree:
    """All of them; where two give the same value, the later one does. A whole section replaces what came before."""
    result: dict[str, Any] = {}
    for tree in trees:
        for name, item in tree.items():
            before = result.get(name)
            if isinstance(before, Mapping) and isinstance(item, Mapping):
                result[name] = merged(before, item)
            else:
                result[name] = item
    return result


def configured(tree: Tree) -> RunConfig:
    """The arguments that this tree gives.

    Raises:
        SettingError: a name is unknown, a value is of the wrong kind or cannot work; names it, and where it was given.
    """
    config: RunConfig = _build(RunConfig, tree, "")
    return config


def effective(config: RunConfig, tree: Tree) -> list[Knob]:
    """Every knob with its value and where it came from; secrets in URLs are hidden. A section that is off is one."""
    return _list(config, tree, "")


def at_path(path: str, given: Given) -> Tree:
    """A tree of one leaf, e.g. of `limits.lease_s`."""
    tree: Any = given
    for name in reversed(path.split(".")):
        tree = {name: tree}
    result: Tree = tree
    return result


def plain_names() -> frozenset[str]:
    """Knobs that stand in no section."""
    hints = get_type_hints(RunConfig)
    return frozenset(name for name in hints if not any(is_dataclass(one) for one in _options(hints[name])))


def optional_sections() -> frozenset[str]:
    """Sections that may be off: null."""
    hints = get_type_hints(RunConfig)
    return frozenset(name for name in hints if type(None) in _options(hints[name])) - plain_names()


def redacted(text: str) -> str:
    """A URL without what may be secret in it: user, password, query."""
    if "://" not in text:
        return text
    try:
        parts = urlsplit(text)
    except ValueError:  # half an IPv6 address: nobody can say which part of it is secret
        return f"{text.partition('://')[0]}://***"
    place = f"***@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    return urlunsplit(parts._replace(netloc=place, query="***" if parts.query else "", fragment=""))


def redacted_in(text: str) -> str:
    """A sentence, whose URLs are `redacted`."""
    return _URL.sub(lambda url: redacted(url[0]), text)


def without_secrets(value: Any) -> Any:
    """Plain data whose texts are `redacted`, however deep."""
    if isinstance(value, dict):
        return {key: without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return redacted(value) if isinstance(value, str) else value


# --- from values to settings ------------------------------------------------------------------------------------------


def _build(kind: type, tree: Tree, path: str) -> Any:
    hints = get_type_hints(kind)
    for name, item in tree.items():
        if name not in hints:
            raise SettingError(f"{_source(item)}: there is no knob {_join(path, name)}; {_advice(path, name)}")
    values = {name: _value(hints[name], item, _join(path, name)) for name, item in tree.items()}
    try:
        return kind(**values)
    except SettingError as error:
        blamed = [_source(item) for name, item in tree.items() if f"{kind.__name__}.{name}=" in str(error)]
        where = [blamed[0]] if blamed else [", ".join(_sources(tree)), path] if path else []
        raise SettingError(": ".join([*filter(None, where), str(error)])) from error


def _value(hint: Any, item: Any, path: str) -> Any:
    options = _options(hint)
    if isinstance(item, Mapping):
        sections = [one for one in options if is_dataclass(one)]
        if sections:
            return _build(sections[0], item, path)  # type: ignore[arg-type]
        given = Given({name: _leaf(leaf) for name, leaf in item.items()}, _source(item))
    else:
        given = item
    if given.value is None:
        if type(None) in options:
            return None
        if is_dataclass(hint):
            return hint()  # type: ignore[operator]
    for option in options:
        try:
            return _converted(option, given.value)
        except (TypeError, ValueError, OverflowError):
            continue
    raise SettingError(f"{given.source}: {path}={given.value!r} must be {_described(hint)}")


def _converted(option: Any, value: Any) -> Any:
    """The value as this type. Raises: TypeError, ValueError: it is none."""
    origin = get_origin(option)
    if origin is tuple:
        parts = get_args(option)
        if isinstance(value, list | tuple) and parts[-1] is Ellipsis:
            return tuple(_converted(parts[0], one) for one in value)
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            raise TypeError
        return tuple(_converted(part, one) for part, one in zip(parts, value, strict=True))
    if origin is not None and issubclass(origin, Mapping):
        of_key, of_value = get_args(option)
        if not isinstance(value, Mapping):
            raise TypeError
        return {_converted(of_key, key): _converted(of_value, one) for key, one in value.items()}
    if option is float and isinstance(value, int | str) and not isinstance(value, bool):
        value = float(value)  # YAML takes 1e9 for a text
    if value != value:
        raise ValueError("not a number")
    is_right = isinstance(value, option) and (option is bool or not isinstance(value, bool))
    if not is_right:
        raise TypeError
    return value


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _described(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    found = []
    for option in _options(hint):
        if get_origin(option) is tuple:
            found.append("a list" if Ellipsis in get_args(option) else "[minimum, maximum]")
        elif is_dataclass(option):
            found.append(f"a section of {len(fields(option))} knobs")
        else:
            found.append(words.get(option, "names with values"))
    return " or ".join(found)


# --- names ------------------------------------------------------------------------------------------------------------


def _advice(path: str, name: str) -> str:
    """The nearest name: of this section, or the same or a similar one elsewhere."""
    known = _paths(RunConfig, "")
    here = [one.rpartition(".")[2] for one in known if one.rpartition(".")[0] == path]
    near = [_join(path, one) for one in difflib.get_close_matches(name, here, n=1)]
    near += [one for one in known if one.rpartition(".")[2] == name]
    leaves = {one.rpartition(".")[2]: one for one in known}
    near += [leaves[one] for one in difflib.get_close_matches(name, leaves, n=1)]
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(here)}"


def _paths(kind: Any, path: str) -> list[str]:
    found = []
    for name, hint in get_type_hints(kind).items():
        found.append(_join(path, name))
        for option in _options(hint):
            if is_dataclass(option):
                found += _paths(option, _join(path, name))
    return found


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# --- where values came from -------------------------------------------------------------------------------------------


def _leaf(item: Any) -> Any:
    return {name: _leaf(one) for name, one in item.items()} if isinstance(item, Mapping) else item.value


def _source(item: Any) -> str:
    """Of a leaf, or of the first one in a section."""
    while isinstance(item, Mapping):
        item = next(iter(item.values()), Given(None, DEFAULT))
    source: str = item.source
    return source


def _sources(tree: Tree) -> list[str]:
    """Of the leaves in a section, the first few, each once."""
    found = list(dict.fromkeys(one for item in tree.values() for one in _sources_of(item)))
    return found if len(found) <= _SOURCES else [*found[:_SOURCES], "..."]


def _sources_of(item: Any) -> list[str]:
    return _sources(item) if isinstance(item, Mapping) else [item.source]


def _list(section: Any, tree: Any, path: str) -> list[Knob]:
    found: list[Knob] = []
    for one in fields(section):
        value, where = getattr(section, one.name), _join(path, one.name)
        item = tree if isinstance(tree, Given) else tree.get(one.name, Given(None, DEFAULT))
        if is_dataclass(value):
            # A section that was not given as a whole: what is not in it is a default.
            inner = item if isinstance(item, Mapping) or item.value is not None else {}
            found += _list(value, inner, where)
        else:
            found.append(Knob(path=where, value=_shown(value), source=_source(item)))
    return found


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) else value
