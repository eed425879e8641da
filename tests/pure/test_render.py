"""Pure. Result files become tables and the README's section: what was measured, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import goals, recovery_tables, render, tables
from benchmarks.checkpoint_systems import WAYS, left_out, order

ROOT = Path(__file__).resolve().parents[2]
PROVENANCE = {
    "date": "2026-01-02T03:04:05+00:00",
    "command": "python -m benchmarks.recovery",
    "commit": "0123456789",
    "dirty": False,
    "versions": {"python": "3.11.7", "elastic": "0.1.0", "ray": "2.60.0", "torch": "2.13.0"},
    "machine": {"processor": "AMD EPYC", "cores": 2, "memory_bytes": 1, "platform": "Linux", "load_average_1min": 0.5},
}

Row = dict[str, Any]


def run(
    system: str, number: int = 0, scenario: str = "kill", settings: str = "default", **figures: Any
) -> dict[str, Any]:
    named = {"scenario": scenario, "system": system, "settings": settings, "repetition": number, "note": ""}
    return named | dict.fromkeys(("t_resume_s", "t_full_s", "steps")) | figures


def result(*rows: dict[str, Any], benchmark: str = "recovery", **more: Any) -> dict[str, Any]:
    return {"benchmark": benchmark, "rows": list(rows), "provenance": PROVENANCE} | more


def cells(table: tables.Table) -> dict[str, dict[str, str]]:
    """Row -> column -> cell."""
    return {row[0]: dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}


def resumed(*rows: dict[str, Any]) -> dict[str, dict[str, str]]:
    table = recovery_tables.matrix(recovery_tables.counting([result(*rows)]), "t_resume_s", "resumed", "default")
    assert table is not None
    return {row: {name: cell for name, cell in of.items() if name != "runs each"} for row, of in cells(table).items()}


# --- what is in the repository ---


def test_the_readme_says_what_the_results_say() -> None:
    found = render.load(render.RESULTS.glob("*.json"))
    readme = (ROOT / "README.md").read_text()
    assert render.replaced(readme, render.section(found)) == readme, "run make bench-tables"


def test_so_do_the_tables() -> None:
    found = render.load(render.RESULTS.glob("*.json"))
    assert render.TABLES.read_text() == render.report(found), "run make bench-tables"


def test_every_plot_that_the_results_give_is_there() -> None:
    for name in render.plots(render.load(render.RESULTS.glob("*.json"))):
        assert render.ALT[name]
        for theme in ("light", "dark"):
            for suffix in ("png", "svg"):
                assert (render.PLOTS / f"{name}-{theme}.{suffix}").stat().st_size > 0, name


def test_every_goal_has_a_reason_to_tell_where_it_is_missed() -> None:
    assert {goal.title for goal in goals.GOALS} == goals.WHY_MISSED.keys()
    assert all(goals.why_missed(goal.title, system) for goal in goals.GOALS for system in goal.at_least)


# --- goals ---


def test_a_factor_stands_beside_its_goal() -> None:
    rows = [
        run(name, scenario="stop", settings="tuned", t_resume_s=s) for name, s in (("elastic", 0.5), ("torchft", 1.0))
    ]
    table = goals.held_to([result(*rows)])
    assert table is not None and cells(table) == {
        "hang: the survivors' next commit (1 run each)": {
            "torchft": "2, goal 3 (missed)", "ray-train": "", "torchrun": "", "ddp": "", "nvrx-inprocess": "",
        }
    }  # fmt: skip
    assert table.notes[0].startswith("Missed: hang: the survivors' next commit (torchft): who is stopped")
    assert goals.missed([result(*rows)]) == [("hang: the survivors' next commit", "torchft")]


def test_more_steps_in_a_storm_are_better() -> None:
    rows = [
        run(name, scenario="storm", settings="tuned", steps_in_storm=count)
        for name, count in (("elastic", 300), ("ray-train", 100))
    ]
    table = goals.held_to([result(*rows)])
    assert table is not None and cells(table)["storm: steps committed (1 run each)"]["ray-train"] == "3, goal 2"
    assert goals.missed([result(*rows)]) == []


def test_how_far_a_goal_of_a_storm_is_within_anybodys_reach_is_told() -> None:
    rows = [run("ddp", scenario="clean", settings="tuned", mean_step_s=0.1)]
    rows += [
        run(name, scenario="storm", settings="tuned", steps_in_storm=count, storm_length_s=120.0)
        for name, count in (("elastic", 900), ("torchft", 1000), ("ray-train", 400), ("torchrun", 600))
    ]
    table = goals.held_to([result(*rows)])
    assert table is not None and table.notes[-1] == (
        "In the time of a storm, plain DDP that no fault befalls would make 1200 steps (by its step in the clean run); "
        "that is, times the steps of each: elastic 1.33, torchft 1.2, ray-train 3, torchrun 2."
    )
    skipping, others, *_ = table.notes
    assert "(torchft): it skips samples" in skipping and "(torchrun): twice its steps are nearly all" in others


def test_who_never_came_to_it_is_told_and_no_factor() -> None:
    rows = [
        run("elastic", settings="tuned", t_resume_s=0.2, t_full_s=3.0),
        run("torchrun", settings="tuned", t_resume_s=8.0),
    ]
    table = goals.held_to([result(*rows)])
    assert table is not None and cells(table)["kill: full size again (1 run each)"]["torchrun"] == "never, goal 4"
    assert goals.held_to([result(run("elastic"))]) is None


# --- recovery ---


def test_the_best_cell_is_bold_whoever_it_is() -> None:
    told = resumed(run("elastic", t_resume_s=2.0), run("peer", t_resume_s=0.125))
    assert told["`kill`"] == {"elastic": "2", "peer": "**0.125**"}


def test_medians_come_with_their_range() -> None:
    rows = [run("elastic", number, t_resume_s=value) for number, value in enumerate((0.3, 0.1, 0.2))]
    assert resumed(*rows)["`kill`"]["elastic"] == "0.2 [0.1, 0.3]"


def test_a_run_that_did_not_come_to_it_counts_and_one_that_never_took_place_is_empty() -> None:
    told = resumed(
        run("elastic", t_resume_s=0.5),
        run("slow", 0, t_resume_s=5.0),
        run("slow", 1, timed_out=True),
        run("never", timed_out=True),
        run("absent", unavailable=".bench/absent is missing"),
    )
    assert told["`kill`"] == {"elastic": "**0.5**", "slow": "5, 1 of 2", "never": "none of 1"}


def test_why_a_cell_is_empty_is_said() -> None:
    rows = [run("torchrun", scenario=name, unavailable="one host only") for name in ("node", "partition")]
    assert recovery_tables.reasons([result(run("elastic", t_resume_s=1.0), *rows)]) == (
        "Empty: node, partition of torchrun: one host only.",
    )


def test_runs_whose_fault_did_not_fire_are_counted_and_not_measured() -> None:
    rows = [run("elastic", 0, t_resume_s=0.5), run("elastic", 1, t_resume_s=0.001, discarded="nobody died")]
    assert resumed(*rows)["`kill`"]["elastic"] == "0.5"
    beside = result(rows[0], discarded=[rows[1], rows[1]])
    assert recovery_tables.reasons([beside]) == ("2 runs were discarded, since their fault did not fire.",)


def test_settings_are_not_mixed() -> None:
    rows = recovery_tables.counting(
        [result(run("peer", t_resume_s=9.0), run("peer", settings="tuned", t_resume_s=1.0))]
    )
    for settings, cell in (("default", "9"), ("tuned", "1")):
        table = recovery_tables.matrix(rows, "t_resume_s", "resumed", settings)
        assert table is not None and cells(table)["`kill`"] == {"runs each": "1", "peer": cell}


def test_of_what_was_not_measured_in_turns_only_the_newer_counts() -> None:
    old, new = (
        result(run("elastic", t_resume_s=1.0), run("elastic", scenario="stop")),
        result(run("peer", t_resume_s=2.0)),
    )
    new["provenance"] = PROVENANCE | {"date": "2026-01-03T00:00:00+00:00"}
    for results in ([old, new], [new, old]):
        rows = {(row["system"], row["scenario"]) for row in recovery_tables.counting(results)}
        assert rows == {("peer", "kill"), ("elastic", "stop")}
        assert recovery_tables.standing(results) == results
    assert recovery_tables.standing([result(run("elastic")), new]) == [new]


def test_a_newer_run_of_one_system_alone_does_not_hide_a_comparison() -> None:
    old, new = result(run("elastic", t_resume_s=1.0), run("peer", t_resume_s=9.0)), result(run("elastic"))
    new["provenance"] = PROVENANCE | {"date": "2026-01-03T00:00:00+00:00"}
    assert recovery_tables.standing([old, new]) == [old] == recovery_tables.standing([new, old])


def test_a_newer_run_does_not_hide_the_median_of_several() -> None:
    old = result(*(run("elastic", repetition, t_resume_s=1.0) for repetition in range(2)))
    new = result(run("elastic", t_resume_s=0.5))
    new["provenance"] = PROVENANCE | {"date": "2026-01-03T00:00:00+00:00"}
    assert recovery_tables.standing([old, new]) == [old] == recovery_tables.standing([new, old])


def test_what_had_no_turn_does_not_take_the_place_of_what_had() -> None:
    old, new = result(run("elastic", t_resume_s=1.0)), result(run("elastic", unavailable="the time was over"))
    new["provenance"] = PROVENANCE | {"date": "2026-01-03T00:00:00+00:00"}
    assert recovery_tables.standing([old, new]) == [old]
    assert recovery_tables.standing([new]) == [new]


def test_figures_of_two_machines_are_never_mixed() -> None:
    other = PROVENANCE["machine"] | {"processor": "Xeon"}
    there = result(run("elastic", t_resume_s=9.0), run("peer", t_resume_s=8.0), run("elastic", scenario="stop"))
    there["provenance"] = PROVENANCE | {"machine": other}
    here = result(run("elastic", t_resume_s=1.0), run("peer", t_resume_s=2.0))
    here["provenance"] = PROVENANCE | {"date": "2026-01-03T00:00:00+00:00"}
    alone = result(run("elastic", t_resume_s=7.0))
    alone["provenance"] = PROVENANCE | {"machine": other, "date": "2026-01-04T00:00:00+00:00"}
    results = [there, here, alone]
    assert recovery_tables.shown(results) == [here], "of the newest comparison"
    page = render.report({"recovery": results})
    first, second = page.index("## Recovery on 2 cores of AMD EPYC"), page.index("## Recovery on 2 cores of Xeon")
    assert "**1**" in page[first:second] and "**8**" in page[second:] and "**8**" not in page[first:second]
    assert "**1**" in render.section({"recovery": results}) and "**8**" not in render.section({"recovery": results})


def test_nor_are_those_of_two_models() -> None:
    old = result(run("elastic", t_resume_s=9.0), run("peer", t_resume_s=8.0))
    new = result(run("elastic", t_resume_s=1.0), run("peer", t_resume_s=2.0)) | {"model": "a GPT"}
    new["provenance"] = PROVENANCE | {"date": "2026-01-03T00:00:00+00:00"}
    assert [*recovery_tables.by_bench([old, new])] == [
        "2 cores of AMD EPYC, with a GPT",
        "2 cores of AMD EPYC, with a perceptron of 161 parameters",
    ]
    assert recovery_tables.shown([old, new]) == [new]


def test_a_goal_is_of_the_commit_whose_rows_count() -> None:
    old = result(*(run(name, settings="tuned", t_resume_s=1.0) for name in ("elastic", "torchft")))
    new = result(*(run(name, settings="tuned", t_resume_s=1.0) for name in ("elastic", "torchft")))
    new["rows"] += [run(name, 0, "stop", "tuned", t_resume_s=1.0) for name in ("elastic", "torchft")]
    new["provenance"] = PROVENANCE | {"commit": "abcdefghi", "date": "2026-01-03T00:00:00+00:00"}
    table = goals.held_to([old, new])
    assert table is not None and "0123456" not in "".join(table.notes), "nothing of the old one counts"


def test_losses_are_those_of_the_worst_run() -> None:
    lost = {"steps": 9, "samples_repeated": 0, "samples_skipped": 0, "survivors": 3, "survivors_kept": 0}
    rows = [run("peer", 0, steps_lost=2, **lost), run("peer", 1, steps_lost=15, **(lost | {"samples_skipped": 4}))]
    table = recovery_tables.losses(rows, "default")
    assert table is not None and table.rows == (("peer", "2", "2", "15", "0", "4", "0 of 6", ""),)


def test_a_run_that_died_is_among_those_that_lost_something() -> None:
    table = recovery_tables.losses(
        [run("peer", t_resume_s=1.0, steps=9), run("peer", 1), run("peer", 2, unavailable="no")], "default"
    )
    assert table is not None and table.rows[0][:3] == ("peer", "2", "1")


def test_a_loss_is_compared_where_both_runs_have_come() -> None:
    rows = [
        run("peer", 0, losses=[8.0, 4.0, 3.0]),
        run("peer", 0, "clean", losses=[8.0, 2.0]),
        run("peer", 1, losses=[8.0]),
    ]
    table = recovery_tables.losses(rows, "default")
    assert table is not None and table.rows[0][-1] == "2"


def test_how_many_runs_a_median_is_of_is_told() -> None:
    rows = [run("elastic", 0, t_resume_s=1.0), run("elastic", 1, t_resume_s=2.0), run("peer", t_resume_s=3.0)]
    table = recovery_tables.matrix(rows, "t_resume_s", "resumed", "default")
    assert table is not None and table.rows == (("`kill`", "1–2", "**1.5 [1, 2]**", "3"),)


def test_the_more_of_its_time_a_run_keeps_the_better() -> None:
    rows = [run("elastic", goodput=0.9), run("peer", goodput=0.5)]
    table = recovery_tables.matrix(rows, "goodput", "kept", "default")
    assert table is not None and table.rows == (("`kill`", "1", "**0.9**", "0.5"),)


def test_a_bound_is_nobodys_best() -> None:
    rows = [run("elastic", t_detect_s=0.2), run("peer", t_detect_s=0.001)]
    table = recovery_tables.matrix(rows, "t_detect_s", "detected", "default")
    assert table is not None and table.rows == (("`kill`", "1", "0.2", "0.001"),)


def test_storms_and_clean_runs_have_tables_of_their_own() -> None:
    rows = [
        run(
            "elastic",
            scenario="storm",
            steps=950,
            steps_in_storm=900,
            samples_in_storm=21_000,
            share=0.88,
            faults=[{"at_s": float(second), "t_resume_s": 1.2} for second in range(40)],
            steps_lost=0,
            t_resume_s=1.2,
            misfires=1,
            strikes_skipped=[{}] * 2,
            storm_length_s=120.0,
            storm_seconds_played=45.0,
        ),
        run("elastic", scenario="clean", step_s=0.05, mean_step_s=0.0625, steps=9),
        run("peer", scenario="clean", step_s=0.04, mean_step_s=0.05, steps=9),
        run("ddp", scenario="clean", step_s=0.05, mean_step_s=0.05, steps=9),
    ]
    assert recovery_tables.matrix(rows, "t_resume_s", "resumed", "default") is None
    storms, clean = recovery_tables.storms(rows, "default"), recovery_tables.clean(rows, "default")
    assert storms is not None and storms.rows == (
        ("elastic", "40", "2", "1", "900 (over after 45 of 120 s)", "21000", "0.88", "0", "1.2"),
    )
    older = recovery_tables.storms([run("elastic", scenario="storm", steps_in_storm=900)], "default")
    assert older is not None and older.rows[0][4:6] == ("900", ""), "nobody counted samples then"
    assert storms.title == "A storm of faults of 120 s, 1 run each (default)"
    assert recovery_tables.storm_times(rows, "default") is None
    shares = {"outage_share": 0.02, "below_full_size_share": 0.01, "start_up_share": 0.09}
    times = recovery_tables.storm_times([rows[0] | shares], "default")
    assert times is not None and times.rows == (("elastic", "0.88", "0.02", "0.01", "0.09"),)
    assert clean is not None and ", 1 run each (default)" in clean.title
    assert clean.rows == (
        ("elastic", "0.8", "1", "0.0625"),
        ("peer", "**1**", "**1.25**", "0.05"),
    )
    assert clean.notes == ("A step of plain DDP takes 0.05 s. Nobody keeps checkpoints here.",)


def test_where_our_time_goes_is_told_of_those_who_have_a_journal() -> None:
    parts = dict.fromkeys(recovery_tables.PHASES, 0.125)
    rows = [run("elastic", phases_s=parts), run("elastic", 1, phases_s=parts), run("torchft")]
    table = recovery_tables.phases(rows, "default")
    assert table is not None
    assert table.rows == (("`kill`", "2", *("0.125",) * len(parts)),)
    assert recovery_tables.phases(rows, "tuned") is None
    assert recovery_tables.phases([run("torchft"), run("elastic", phases_s={})], "default") is None


def test_who_never_went_on_has_no_longest_gap() -> None:
    """Older results have the longest that did end, which makes the worst the best."""
    rows = [run("elastic", t_resume_s=0.2, longest_gap_s=0.3), run("peer", longest_gap_s=0.1)]
    rows += [run("other", t_resume_s=0.4, longest_gap_s=0.5), run("peer", scenario="coordinator", longest_gap_s=0.1)]
    table = recovery_tables.matrix(rows, "longest_gap_s", "gaps", "default")
    assert table is not None
    found = cells(table)
    assert found["`kill`"] == {"runs each": "1", "elastic": "**0.3**", "peer": "none of 1", "other": "0.5"}
    assert found["`coordinator`"]["peer"] == "0.1"


def test_false_alarms_are_told_by_system_and_settings_with_what_was_set() -> None:
    def busy(settings: str, timeout_s: float, lost: int) -> Row:
        knobs = {"collective_timeout_s": timeout_s, "checkpoint_steps": 1}
        figures = {"lasted_s": 600.0 if not lost else 42.0, "steps": 100, "attempts_lost": lost}
        return run("torchft", scenario="busy", settings=settings, knobs=knobs, **figures)

    none = run("ddp", scenario="busy", settings="tuned", unavailable="plain DDP survives nothing")
    table = recovery_tables.alarms([busy("shorter", 0.25, 3), busy("tuned", 0.5, 0), none, run("torchft")])
    assert table is not None
    assert table.rows == (
        ("torchft", "tuned", "600", "100", "0", "collective_timeout_s 0.5"),
        ("torchft", "shorter", "42", "100", "3", "collective_timeout_s 0.25"),
    )
    assert recovery_tables.alarms([none, run("torchft")]) is None


def test_a_plot_has_every_sample_once() -> None:
    rows = [run("elastic", number, t_resume_s=float(number)) for number in (1, 2)]
    rows += [run("elastic", scenario="clean", t_resume_s=7.0), run("peer", settings="tuned", t_resume_s=8.0)]
    (sample,) = recovery_tables.recovery_samples([result(*rows)], "t_resume_s", "default")
    assert (sample.group, sample.name, sample.values) == ("kill", "elastic", (1.0, 2.0))
    assert render.plots({"recovery": [result(*rows)]}) == ["recovery-default", "recovery-tuned"]


# --- the others ---


def test_ways_of_keeping_that_lack_a_figure_have_an_empty_cell() -> None:
    figures = dict.fromkeys(tables.KEPT)
    rows = [
        {"system": "elastic", "repetition": 1, "note": ""} | figures | {"stall_s": 0.02, "process_s": 0.1},
        {"system": "dcp-async", "repetition": 1, "note": ""} | figures | {"stall_s": 0.01},
        {"system": "dcp-async", "repetition": 2, "note": "disk full"} | figures,
        {"system": "nvrx-local", "repetition": 0, "note": "no environment"} | figures,
    ]
    titles = {"elastic": "elastic", "nvrx-local": "NVRx", "dcp-async": "`DCP`"}
    kept = result(*rows, benchmark="checkpoint_systems", titles=titles, settings={"nbytes": 1 << 20})
    table = tables.checkpoint_systems(kept)
    stall, survives, outage, *rest = tables.KEPT.values()
    told = cells(table)
    assert outage not in table.columns, "none was measured"
    assert told["elastic"] == {stall: "0.02", survives: "0.1"} | dict.fromkeys(rest, "")
    assert told["`DCP`"] == {stall: "**0.01**", survives: ""} | dict.fromkeys(rest, "")
    failed = "Failed in 1 of 2 repetitions: `DCP`: disk full."
    assert table.notes == ("Not measured: NVRx: no environment.", failed)
    assert list(told) == list(titles.values()), "in the order of the titles, whoever had the first turn"
    assert {(sample.group, sample.name) for sample in tables.checkpoint_samples(kept)} == {
        (stall, "elastic"),
        (survives, "elastic"),
        (stall, "DCP"),
    }


def test_a_log_that_is_replayed_is_counted_as_its_calculator_does_too() -> None:
    rows = [
        {
            "name": f"896-GPU log: {name}",
            "goodput": goodput,
            "shares": {"productive": goodput, **missing},
            "incidents": 20.0,
            "lost_s": 871.2,
            "assumptions": "counts and medians",
        }
        for name, goodput, missing in (("recipe", 0.5, {"reduced_capacity": 0.02}), ("elastic", 0.9, {}))
    ]
    table = tables.log_replayed({"log_896": rows})
    steps = {name: row["steps, whatever the number of machines"] for name, row in cells(table).items()}
    assert steps == {"recipe": "52.0 %", "elastic": "90.0 %"}
    (note,) = table.notes
    assert "43.4 %" in note and "52.0 %" in note


def test_gains_beside_published_ones_are_told_to_be_no_validation() -> None:
    found = render.load(render.RESULTS.glob("*.json"))
    assert "no validation" in render.section(found)
    assert render.section(found).count(tables.LOG_PUBLISHED) == render.report(found).count(tables.LOG_PUBLISHED) == 1


def test_a_gpu_that_was_not_there_leaves_its_rows_empty() -> None:
    rows = [
        {"what": "a step", "value": 0.5, "unit": "s", "note": ""},
        {"what": "abort", "value": None, "unit": "s", "note": "needs 2 GPUs"},
    ]
    table = tables.gpu(result(*rows, benchmark="gpu"))
    assert table.rows == (("a step", "0.5", "s", ""), ("abort", "", "s", "needs 2 GPUs"))


def alone(gap_s: float, count: int = 5, **more: Any) -> dict[str, Any]:
    figures = {"longest_gap_s": gap_s, "copy_s": 0.2, "step_s": 0.1}
    return result(*(run("elastic", number, "join", **figures) for number in range(count)), **more)


def test_a_goal_of_our_own_that_is_missed_has_its_reason() -> None:
    table = goals.alone([alone(0.8)])
    assert table is not None
    ((title, median, runs, asked, commit),) = table.rows
    assert "400 MB" in title and (median, runs, asked, commit) == ("3", "5", "<= 1.5 (missed)", "`0123456`, AMD EPYC")
    assert table.notes[0].startswith(f"Missed: {title}: beside the copy, state is read")
    kept = goals.alone([alone(0.4)])
    assert kept is not None and kept.rows[0][3] == "<= 1.5" and not kept.notes


def test_of_comparisons_that_with_most_runs_of_each_system_counts() -> None:
    """One that came to fewer runs of the peers, as the time was over, does not hide a whole one."""
    pairs = [("elastic", 0), ("elastic", 1), ("peer", 0), ("peer", 1)]
    whole = result(*(run(name, number, t_resume_s=1.0) for name, number in pairs))
    newer = result(*(run(name, number, t_resume_s=2.0) for name, number in pairs[:3]))
    newer["provenance"] = PROVENANCE | {"date": "2027"}
    assert {row["t_resume_s"] for row in recovery_tables.counting([whole, newer])} == {1.0}


def test_the_newest_result_with_enough_runs_counts_alone() -> None:
    later = {"provenance": PROVENANCE | {"date": "2026-02-02", "commit": "abcdefghi"}}
    table = goals.alone(
        [alone(0.8), alone(0.4) | later, alone(0.3, count=4) | {"provenance": PROVENANCE | {"date": "2027"}}]
    )
    assert table is not None and table.rows[0][4] == "`abcdefg`, AMD EPYC"
    assert goals.alone([alone(0.8, count=4), result(run("torchft", scenario="join"))]) is None
    unfinished = alone(0.8)
    unfinished["rows"][0]["longest_gap_s"] = None
    for before in ([], [alone(0.4) | {"provenance": PROVENANCE | {"date": "2025"}}]):
        table = goals.alone([*before, unfinished])
        assert table is not None and table.rows[0][1:4] == ("3, 4 of 5", "5", "<= 1.5 (missed)")


def test_a_storm_alone_counts_once_and_only_if_it_is_long() -> None:
    def storm(length_s: float) -> dict[str, Any]:
        return result(run("elastic", 0, "storm", share=0.9), settings={"storm_s": length_s})

    table = goals.alone([storm(600.0)])
    assert table is not None
    ((_, share, runs, asked, _),) = table.rows
    assert (share, runs, asked) == ("0.9", "1", ">= 0.92 (missed)") and "imports torch" in table.notes[0]
    assert goals.alone([storm(120.0)]) is None


def test_an_alarm_that_ended_a_load_is_counted() -> None:
    alarmed = result(run("elastic", 0, "busy", attempts_lost=1, lasted_s=236.0), settings={"storm_s": 600.0})
    table = goals.alone([alarmed])
    assert table is not None and table.rows[0][1:4] == ("1", "1", "<= 0 (missed)")
    for lasted_s, told in ((600.0, ("0", "1", "<= 0")), (30.0, ("none of 1", "1", "<= 0 (missed)"))):
        ended = result(run("elastic", 0, "busy", attempts_lost=0, lasted_s=lasted_s), settings={"storm_s": 600.0})
        table = goals.alone([ended])
        assert table is not None and table.rows[0][1:4] == told


def test_goals_of_several_commits_say_which_is_of_which() -> None:
    rows = [run(system, settings="tuned", t_resume_s=1.0) for system in ("elastic", "torchft")]
    others = [run(system, 0, "stop", "tuned", t_resume_s=1.0) for system in ("elastic", "torchft")]
    other = result(*others) | {"provenance": PROVENANCE | {"commit": "abcdefghi"}}
    told = [
        table.notes[-1] for table in (goals.held_to([result(*rows), other]), goals.held_to([result(*rows)])) if table
    ]
    assert "`0123456`: kill" in told[0] and "`abcdefg`: hang" in told[0]
    assert "commits" not in told[1]


def test_a_snapshot_s_goals_are_shown_though_no_quartiles_are_known() -> None:
    figures = {
        "stall": 1.0,
        "restart_s": 0.4,
        "quartiles": {"stall": [0.9, 1.0, 1.1]},
        "goals": {"restart_s": ["<=", 1.0]},
    }
    assert tables.snapshots(figures).rows == (("`stall`", "1", "0.9 to 1.1", ""), ("`restart_s`", "0.4", "", "<= 1.0"))


def test_an_origin_says_what_was_measured_on_what() -> None:
    (told,) = tables.origins([{"provenance": PROVENANCE | {"dirty": True, "peers": {"torchft": "0.2"}}}])
    for part in (
        "2026-01-02",
        "`0123456`",
        "uncommitted changes",
        "2 cores of AMD EPYC",
        "torch 2.13.0",
        "torchft 0.2",
        "load 0.5",
    ):
        assert part in told or part.strip("`") in told, part


def test_parts_of_one_run_share_their_origin_and_tell_how_the_load_went() -> None:
    def part(load: float, **more: object) -> dict[str, object]:
        return {"provenance": PROVENANCE | {"machine": PROVENANCE["machine"] | {"load_average_1min": load}} | more}

    one, other = tables.origins([part(3.9), part(0.4), part(1.0, command="another")])
    assert "load 0.4 to 3.9 at the start" in one
    assert "load 1.0 at the start" in other and "another" in other


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (0.1551, "0.155"), (17.52, "17.5"), (122.4, "122"), (2048.0, "2048")]
)
def test_three_digits_count(value: float, text: str) -> None:
    assert tables.number(value) == text


def test_a_file_must_say_which_benchmark_made_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(ValueError, match="no key `benchmark`"):
        render.load([tmp_path / "a.json"])


def test_a_page_keeps_what_is_outside_of_its_markers() -> None:
    page = f"before\n{render.BEGIN}\nold\n{render.END}\nafter\n"
    assert render.replaced(page, "new") == f"before\n{render.BEGIN}\n\nnew\n{render.END}\nafter\n"
    with pytest.raises(ValueError, match="needs one line"):
        render.replaced("no markers", "new")


def test_a_whole_report_and_section() -> None:
    found = {
        "recovery": [
            result(run("elastic", t_resume_s=0.2, t_full_s=3.0, steps=5), run("peer", t_resume_s=5.0, steps=5))
        ],
        "corruption": [{"corruption": {"tried": 9, "silent": 0, "refused": 9}, "provenance": PROVENANCE}],
    }
    assert "**0.2**" in render.report(found) and "## Damaged checkpoints" in render.report(found)
    assert "recovery-default-dark.svg" in render.section(found)
    assert render.section({}).strip() == render.MORE


def test_settings_that_were_not_the_same_everywhere_are_told_of_each_scenario() -> None:
    kinds = {"kill": 1.0, "stop": 1.0, "everyone": 0.5}
    rows = [
        run("torchft", scenario=kind, settings="tuned", knobs={"timeout_s": value}) for kind, value in kinds.items()
    ]
    assert render._knobs([result(*rows)]).splitlines() == [
        "- torchft, tuned (`kill`, `stop`): `timeout_s` 1.0",
        "- torchft, tuned (`everyone`): `timeout_s` 0.5",
    ]
    assert render._knobs([result(*rows[:2])]) == "- torchft, tuned: `timeout_s` 1.0\n"


def test_the_readme_shows_tuned_settings_whatever_shorter_ones_were_tried() -> None:
    figures = {"t_resume_s": 0.2, "t_full_s": 3.0}
    kills = [
        result(*(run(name, settings=settings, **figures) for name in ("elastic", "peer")))
        for settings in ("default", "tuned")
    ]
    alarms = [run("peer", scenario="busy", settings=settings, knobs={}) for settings in ("tuned", "shorter")]
    shown = render.section({"recovery": [*kills, result(*alarms)]})
    assert "recovery-tuned-dark.svg" in shown and "(tuned)" in shown
    assert shown.count("Measured 2026") == render.section({"recovery": kills}).count("Measured 2026")


def test_the_ways_take_turns_and_another_one_begins_each_time() -> None:
    orders = ["".join(order("abc", number)) for number in range(3)]
    assert orders == ["abc", "bca", "cab"]


def test_a_peer_without_its_environment_says_what_makes_it() -> None:
    for way in WAYS.values():
        reason = way.why_not()
        assert way.python.exists() or ("make bench-env" in reason and way.environment in reason)


def test_a_way_that_was_left_out_has_a_row_that_says_so() -> None:
    rows = left_out(list(WAYS)[1:])
    assert [(row["system"], row["note"]) for row in rows] == [(next(iter(WAYS)), "left out of this run")]
    assert all(row[figure] is None for row in rows for figure in tables.KEPT)


def test_what_telling_of_a_run_costs_is_shown_beside_its_controls() -> None:
    cost = {"mean": 0.001, "low": -0.0005, "high": 0.002, "quadruples": 14}
    told = {"observability": cost, "null": cost, "positive": None}
    found = result(
        benchmark="observability",
        costs=told,
        processor_costs=told,
        verdict="not resolved",
        processor_verdict="met",
        cpu_s_per_step={"driver": {"seen": 0.0012, "bare": 0.001}},
        settings={"spin_s": 250e-6, "step_s": 0.05, "workers": 4, "limit": 0.005},
    )
    table = tables.observability(found)
    shown = cells(table)
    assert [row["below 0.5 %"] for row in shown.values()] == ["not resolved", "met"]
    assert [row["which is"] for row in shown.values()] == ["0.500 %", "0.125 %"]
    first = shown["time of a step"]
    assert first["telling of the run"] == "+0.100 % [-0.050, +0.200]" and first["control: a known cost"] == ""
    assert table.notes[0].endswith("driver 1.20 (1.00).")
    assert "## Telling of a run" in render.report({"observability": [found]})
