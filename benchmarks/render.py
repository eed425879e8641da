"""Makes tables, plots and the README's performance section from result files.

    python -m benchmarks.render benchmarks/results/*.json     # --plots '' leaves the plots out

Nothing is measured here, and nothing is typed in: who wants another figure measures again. Tables go to
`benchmarks/results/TABLES.md`, plots to `benchmarks/results/plots` (PNG and SVG, for light and dark pages), the section
of the README between its two markers. Plots need matplotlib (`pip install 'ray-elastic[bench]'`), tables nothing.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import goals, recovery_tables, tables
from benchmarks.systems import DEFAULT, TUNED

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TABLES = RESULTS / "TABLES.md"
PLOTS = RESULTS / "plots"
BEGIN = "<!-- performance: begin; python -m benchmarks.render writes what is between these two lines -->"
END = "<!-- performance: end -->"

Found = Mapping[str, Sequence[Mapping[str, Any]]]  # by benchmark; in the order of the files' names

RECOVERY = """\
### Beside other systems

The same model ({model}), data and faults for all of them, on four workers of three hosts
(`shrink`, `donor`: two) of one machine; a step sleeps for 50 ms, and computes on busy cores. They take turns within
each repetition; an observer outside breaks things, and reads the step log that every training function writes.
Medians, [smallest, largest]; the best of a row is bold.
"""
OVERHEAD = """\
### Without faults

Four workers train the byte-level GPT, in steps that keep both cores busy; blocks of steps of both sides take turns.
"""
CHECKPOINT = """\
### Checkpoints

The ways to keep a checkpoint take turns within each repetition, each with a state in host memory, in a process of its
own. torchft's transports keep nothing: they carry live state to a joiner, and sum nothing; that is how it outlives a
process there. Empty: it has no such thing, or it was not measured. What each figure and each way is:
[benchmarks](docs/benchmarks.md#checkpoints-beside-other-ways-to-keep-one).
"""
SIMULATED = """\
### At sizes that nobody can rent

What the design is worth there is simulated: `elastic simulate case-study` plays 1,024 GPUs for 40 h with five
interruptions a day. In the row `elastic` the real controller decides; those above it are a model of processes that end
and start anew. Inputs are published numbers where there are any, and readings and assumptions where there are none;
[the page](docs/simulator.md) tells them apart. The readings of the techniques were chosen so that each comes
out within its published range: the gains beside `published` show one consistent set of inputs, and are no validation.
"""
MORE = "[All tables](benchmarks/results/TABLES.md); [rules, and how to repeat](benchmarks/README.md)."
ALT = {
    "recovery-default": "Seconds from a fault to the next commit and to full size again, by system, default settings",
    "recovery-tuned": "Seconds from a fault to the next commit and to full size again, by system, tuned settings",
    "checkpoint": "Seconds of a checkpoint's stall, safety and restore, by the way it is kept",
    "goodput": "Goodput of the simulated rows, with what was published of their gains",
}


def load(paths: Iterable[Path]) -> Found:
    """Results by benchmark.

    Raises:
        ValueError: a file does not say which benchmark made it.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for path in sorted(paths):
        result = json.loads(path.read_text())
        if "benchmark" not in result:
            raise ValueError(f"{path} does not say which benchmark made it: it has no key `benchmark`")
        found.setdefault(result["benchmark"], []).append(result)
    return found


def plots(found: Found) -> list[str]:
    """Which plots these results give; their names are those of the files."""
    names = []
    results = recovery_tables.shown(found.get("recovery", ()))
    for settings in recovery_tables.settings_of(recovery_tables.counting(results)):
        if recovery_tables.recovery_samples(results, "t_resume_s", settings):
            names.append(f"recovery-{settings}")
    if found.get("checkpoint_systems"):
        names.append("checkpoint")
    if any("case_study" in result for result in found.get("simulator", ())):
        names.append("goodput")
    return names


def report(found: Found) -> str:
    """All tables."""
    parts = [
        "# Tables\n\n`python -m benchmarks.render benchmarks/results/*.json` writes this file; [how](../README.md).\n"
    ]
    for bench, results in recovery_tables.by_bench(found.get("recovery", ())).items():
        parts += [
            f"## Recovery on {bench}\n",
            *_origins(recovery_tables.standing(results)),
            *_texts(recovery_tables.recovery(results)),
            *_goals(results, results),
            _knobs(results),
        ]
    singles: dict[str, tuple[str, Callable[[Any], Sequence[tables.Table]]]] = {
        "checkpoint_systems": ("Checkpoints, beside other ways", _checkpoint_tables),
        "checkpoint": ("Snapshots", _snapshot_tables),
        "corruption": ("Damaged checkpoints", lambda result: [tables.corruption({"elastic": result["corruption"]})]),
        "overhead": ("Overhead", lambda result: [tables.overhead(result)]),
        "observability": ("Telling of a run", lambda result: [tables.observability(result)]),
        "control_plane": ("Control plane", lambda result: [tables.control_plane(result)]),
        "simulator": ("Simulated", _simulated_tables),
        "gpu": ("GPU", lambda result: [tables.gpu(result)]),
    }
    for name, (title, make) in singles.items():
        for result in found.get(name, ()):
            parts += [f"## {title}\n", *_origins([result]), *_texts(make(result))]
    return "\n".join(filter(None, parts))


def section(found: Found) -> str:
    """What the README shows."""
    parts: list[str] = []
    drawn = plots(found)
    if results := recovery_tables.shown(found.get("recovery", ())):
        compared = [one for one in recovery_tables.standing(results) if recovery_tables.has_faults(one)]
        there = [recovery_tables.settings_of(recovery_tables.counting([one])) for one in compared]
        settings = TUNED if any(TUNED in of for of in there) else DEFAULT
        those = [one for one, of in zip(compared, there, strict=True) if settings in of]
        shown = [table for table in recovery_tables.recovery(those, is_short=True) if f"({settings}" in table.title]
        parts += [
            RECOVERY.format(model=recovery_tables.model_of(results[0])),
            _picture(f"recovery-{settings}", drawn),
            *_texts(shown),
            *_goals(those, found["recovery"]),
            *_origins(those),
        ]
    for result in found.get("overhead", ()):
        parts += [OVERHEAD, *_texts([tables.overhead(result)]), *_origins([result])]
    if found.get("checkpoint_systems"):
        (result,) = found["checkpoint_systems"]
        parts += [CHECKPOINT, _picture("checkpoint", drawn), *_texts(_checkpoint_tables(result)), *_origins([result])]
    for result in found.get("simulator", ()):
        parts += [SIMULATED, _picture("goodput", drawn), *_texts(_simulated_tables(result)), *_origins([result])]
    return "\n".join(filter(None, [*parts, MORE + "\n"]))


def replaced(text: str, inside: str) -> str:
    """A page with this between its markers.

    Raises:
        ValueError: the page has no such markers.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page needs one line `{BEGIN}` and one `{END}`")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{inside}\n{END}{after}"


def _checkpoint_tables(result: Mapping[str, Any]) -> list[tables.Table]:
    return [tables.checkpoint_systems(result), *_corruption(result)]


def _snapshot_tables(result: Mapping[str, Any]) -> list[tables.Table]:
    counts = {"corruption": {"elastic": result["corruption"]}} if "corruption" in result else {}
    return [tables.snapshots(result), *_corruption(counts)]


def _simulated_tables(result: Mapping[str, Any]) -> list[tables.Table]:
    makers = {"case_study": tables.case_study, "log_896": tables.log_replayed}
    return [make(result) for name, make in makers.items() if name in result]


def _corruption(result: Mapping[str, Any]) -> list[tables.Table]:
    return [tables.corruption(result["corruption"])] if result.get("corruption") else []


def _knobs(results: Sequence[Mapping[str, Any]]) -> str:
    """What was set, by system and settings, as each row says it."""
    scenarios: dict[tuple[str, str], dict[str, None]] = {}
    for row in recovery_tables.counting(results):
        if row.get("knobs"):
            knobs = ", ".join(f"`{name}` {value}" for name, value in row["knobs"].items())
            told = f"{row['system']}, {row.get('settings', 'default')}"
            scenarios.setdefault((told, knobs), {})[row["scenario"]] = None
    times = Counter(told for told, _ in scenarios)
    where = {key: f" ({', '.join(f'`{one}`' for one in played)})" for key, played in scenarios.items()}
    return "".join(f"- {key[0]}{where[key] if times[key[0]] > 1 else ''}: {key[1]}\n" for key in scenarios)


def _texts(made: Iterable[tables.Table]) -> list[str]:
    return [table.markdown() for table in made]


def _goals(beside: Sequence[Mapping[str, Any]], alone: Sequence[Mapping[str, Any]]) -> list[str]:
    return _texts(table for table in (goals.held_to(beside), goals.alone(alone)) if table is not None)


def _origins(results: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"{told}\n" for told in tables.origins(results)]


def _picture(name: str, drawn: Sequence[str]) -> str:
    if name not in drawn:
        return ""
    folder = PLOTS.relative_to(ROOT)
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{folder}/{name}-dark.svg">'
    return f'<picture>{dark}<img alt="{ALT[name]}" src="{folder}/{name}-light.svg"></picture>\n'


def main() -> None:
    """Write the tables, the README's section and the plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("results", type=Path, nargs="*", default=sorted(RESULTS.glob("*.json")), help="JSON files")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", help="page with the two markers")
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("--plots", default=str(PLOTS), help="folder; '' for none")
    args = parser.parse_args()
    found = load(args.results)
    args.tables.write_text(report(found))
    args.readme.write_text(replaced(args.readme.read_text(), section(found)))
    written = [args.tables, args.readme]
    if args.plots:
        from benchmarks.plots import draw

        written += draw(found, plots(found), Path(args.plots))
    for path in written:
        print(path)


if __name__ == "__main__":
    main()
