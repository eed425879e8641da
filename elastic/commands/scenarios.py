"""Effect. Scenarios as files: those that come with the package, and a user's own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import elastic.sim
from elastic.errors import SettingError
from elastic.sim.calibration import fitted, lines_of
from elastic.sim.scenario import Scenario, parse, spot_rows

PRESETS = Path(elastic.sim.__file__).parent / "scenarios"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a scenario file.

    Attributes:
        published: range of the goodput that it is said to add to the row before, None if nobody says.
        is_first: of its file, so that there is nothing to compare it with.
    """

    name: str
    scenario: Scenario
    assumptions: str = ""
    published: tuple[float, float] | None = None
    is_first: bool = False


def load(place: str, run: Path | None = None) -> list[Entry]:
    """The rows of a file, or of a preset by its name; each is laid over the one before.

    Args:
        run: the folder of a run, or its journal: what that shows of times comes instead of what the file says, where
            the way is "live"; what a row says for itself stays.

    Raises:
        SettingError: there is no such file, or it holds something else than a scenario; or the run says nothing of it.
    """
    path = Path(place)
    if not path.is_file():
        path = PRESETS / f"{place.replace('-', '_')}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in PRESETS.glob("*.yaml")))
        raise SettingError(f"{place!r} is no file, and no scenario that comes with the package: {known}")
    try:
        plain = yaml.safe_load(_text_in(path))
    except yaml.YAMLError as error:
        raise SettingError(f"{path} is no YAML: {error}") from None
    if not isinstance(plain, dict):
        raise SettingError(f"{path} must hold the sections of a scenario: cluster, job, failures, times")
    shown = _shown_by(run) if run is not None else {}
    try:
        found = _rows(plain, path.parent, shown)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None
    if run is not None and not any(entry.scenario.way == "live" for entry in found):
        raise SettingError(f"--calibrate: all rows of {place} restart, as the run did not: write way: live")
    return found


def _text_in(path: Path) -> str:
    """
    Raises:
        SettingError: it is no text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")  # a table may begin with the mark of its encoding
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} is no text in UTF-8: {error}") from None


def _shown_by(run: Path) -> dict[str, Any]:
    """
    Raises:
        SettingError: there is no journal, or nothing in it.
    """
    path = run if run.is_file() else run / "journal.jsonl"
    if not path.is_file():
        raise SettingError(f"--calibrate {run}: there is no journal.jsonl")
    with path.open(errors="replace") as file:
        found = fitted(lines_of(file))
    if not any(found.values()):
        raise SettingError(f"--calibrate {run}: {path} shows no times of a run")
    return found


def _rows(plain: dict[str, Any], folder: Path, shown: dict[str, Any]) -> list[Entry]:
    """
    Args:
        folder: in which its traces lie.
        shown: by a run; laid over the base of those rows whose way is "live".

    Raises:
        SettingError: a value makes no sense; names it, and the row that it is in.
    """
    scenario = parse(_with_trace({key: value for key, value in plain.items() if key != "rows"}, folder))
    live = parse(shown, scenario)
    if not plain.get("rows"):
        return [_entry(plain, live if live.way == "live" else scenario, is_first=True)]
    for name in plain.keys() & {"published", "assumptions"}:
        raise SettingError(f"{name} belongs to a row, where there are rows")
    if not isinstance(plain["rows"], list) or not all(isinstance(row, dict) for row in plain["rows"]):
        raise SettingError("rows must be a list of mappings, one for each row: - {name: ..., cluster: {...}}")
    found: list[Entry] = []
    for number, row in enumerate(plain["rows"], start=1):
        try:
            there = _with_trace(row, folder)
            scenario, live = parse(there, scenario), parse(there, live)
            found.append(_entry(row, live if live.way == "live" else scenario, is_first=not found))
        except SettingError as error:
            raise SettingError(f"row {number}, {row.get('name', 'without a name')}: {error}") from None
    return found


def _entry(plain: dict[str, Any], scenario: Scenario, is_first: bool) -> Entry:
    said = plain.get("published")
    is_pair = isinstance(said, list) and len(said) == 2 and all(type(one) in (int, float) for one in said)
    if said is not None and not (is_pair and -1 <= said[0] <= said[1] <= 1):
        raise SettingError(f"published={said!r} must be the lowest and the highest gain, as in [0.01, 0.02]")
    published = (float(said[0]), float(said[1])) if said is not None else None
    assumed = str(plain.get("assumptions", "")).strip()
    return Entry(name=scenario.name, scenario=scenario, assumptions=assumed, published=published, is_first=is_first)


def _with_trace(plain: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A capacity trace that is named by its file is read: `failures.spot: trace.csv`, with its source or without."""
    failures = plain.get("failures")
    if not isinstance(failures, dict):
        return plain
    spot: Any = failures.get("spot")
    said = {"value": spot} if isinstance(spot, str) else spot
    if not isinstance(said, dict) or not isinstance(said.get("value"), str):
        return plain
    path = folder / said["value"]
    if not path.is_file():
        raise SettingError(f"failures.spot={said['value']!r}: there is no file {path}")
    rows = spot_rows(_text_in(path))
    return {**plain, "failures": {**failures, "spot": {**said, "value": rows} if said is spot else rows}}
