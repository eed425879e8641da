"""Pure. What the docstrings of settings say of each knob: its meaning, unit, default, and why it is that."""

import inspect
import re
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args, get_type_hints

from elastic.knobs import RunConfig

_ENTRY = re.compile(r"^    (\w+): (.*)$")
_FORM = re.compile(r"^(?P<meaning>.*\S)\s+\((?P<unit>[^;()]+); default (?P<default>[^:]+): (?P<reason>.+)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobDoc:
    """One attribute of a class of settings, as its docstring has it."""

    name: str
    meaning: str
    unit: str
    default: str
    reason: str


def sections() -> dict[str, type]:
    """Classes of settings by the name of their section; one that several sections share is told of once."""
    found: dict[str, type] = {}
    _collect(RunConfig, "", found)
    return found


def documented(kind: type) -> list[KnobDoc]:
    """The attributes of a class of settings, in the order of its docstring.

    Raises:
        ValueError: one is not of the form `name: meaning. (unit; default value: reason)`.
    """
    docs = []
    for name, text in _entries(kind):
        match = _FORM.match(text)
        if match is None:
            raise ValueError(f"{kind.__name__}.{name}: {text!r} must end in (unit; default value: reason)")
        docs.append(KnobDoc(name=name, **match.groupdict()))
    return docs


def table() -> str:
    """All of them, in Markdown."""
    parts = []
    for path, kind in sections().items():
        head = f"### `{path}` ({kind.__name__})" if path else "### Without a section"
        rows = [
            f"| `{one.name}` | {one.unit} | {one.default} | {_cell(one.meaning)} | {_cell(one.reason)} |"
            for one in documented(kind)
        ]
        columns = "| knob | unit | default | what it is | why that default |\n|---|---|---|---|---|"
        parts.append("\n".join([head, "", columns, *rows, ""]))
    return "\n".join(parts)


def _collect(kind: type, path: str, found: dict[str, type]) -> None:
    if kind in found.values():
        return
    found[path] = kind
    for name, hint in get_type_hints(kind).items():
        for option in (hint, *get_args(hint)):
            if is_dataclass(option) and isinstance(option, type):
                _collect(option, f"{path}.{name}" if path else name, found)


def _entries(kind: Any) -> list[tuple[str, str]]:
    entries: list[tuple[str, str]] = []
    _, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    for line in attributes.splitlines():
        match = _ENTRY.match(line)
        if match is not None:
            entries.append((match.group(1), match.group(2)))
        elif entries and line.strip():
            name, text = entries[-1]
            entries[-1] = (name, f"{text} {line.strip()}")
    return entries


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
