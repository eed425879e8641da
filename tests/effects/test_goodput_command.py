"""Effect. `elastic goodput`: from a run directory, a trainer's events, a persistent tier."""

import csv
import io
import json
import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elastic.actors.journal import Journal
from elastic.actors.journal_copy import JournalCopy
from elastic.checkpoint.stores.directory import DirectoryStore
from elastic.cli import cli
from elastic.errors import ElasticError, RefusedError
from elastic.ledger.model import Category
from elastic.sim.parts import Plan
from tests.effects.gcs_server import GcsServer
from tests.effects.store_parts import gcs_store
from tests.pure.ledger_world import JournalledWorld
from tests.pure.report_lines import Scribe, written


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    """The journal of a world with failures."""
    plan = Plan(replicas=(1, 3), spares=1, steps=8, crash=0.01)
    worlds = (JournalledWorld(seed, plan).play() for seed in range(50))
    return next(world.lines for world in worlds if world.ws.state.failures)


def run_dir(folder: Path, lines: list[dict[str, Any]]) -> Path:
    with closing(Journal(folder)) as journal:
        journal.write(lines)
    return folder


def told(*arguments: str) -> str:
    answer = CliRunner().invoke(cli, ["goodput", *arguments], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_json_holds_all_that_is_known_and_adds_up(lines, tmp_path):
    got = json.loads(told(str(run_dir(tmp_path / "run", lines)), "--json"))
    assert set(got["wall_seconds"]) == set(got["worker_seconds"]) == {category.value for category in Category}
    assert sum(got["wall_seconds"].values()) == pytest.approx(got["wall_s"], rel=1e-3)
    assert sum(got["worker_seconds"].values()) == pytest.approx(got["workers_s"], rel=1e-3)
    assert got["wall_s"] == pytest.approx(got["end_s"] - got["begin_s"])
    failures = [incident for incident in got["incidents"] if incident["kind"] == "worker lost"]
    assert failures and all(one["evidence"] and one["decision"] and one["culprits"] for one in failures)
    assert [one["name"] for one in got["definitions"]][0] == "goodput"


def test_people_and_spreadsheets_get_the_same_seconds(lines, tmp_path):
    folder = str(run_dir(tmp_path / "run", lines))
    got = json.loads(told(folder, "--json"))
    table = {row["category"]: row for row in csv.DictReader(io.StringIO(told(folder, "--csv")))}
    assert float(table["productive"]["wall_s"]) == pytest.approx(got["wall_seconds"]["productive"])
    assert float(table["all"]["worker_s"]) == pytest.approx(got["workers_s"])
    page = told(folder)
    assert f"goodput {got['goodput']:.1%}" in page and "ETTR" in page and "worker lost" in page
    (parts,) = [one["parts"] for one in got["definitions"] if one["parts"]]
    printed = {
        line.split()[0]: line.split()[1:] for line in page.splitlines() if line.startswith("  ") and line[2].isupper()
    }
    assert printed == {name: [f"{seconds:.2f}", "s"] for name, seconds in parts.items() if seconds} and printed


def test_only_a_part_of_the_run(lines, tmp_path):
    folder = str(run_dir(tmp_path / "run", lines))
    whole = json.loads(told(folder, "--json"))["wall_s"]
    early = json.loads(told(folder, "--json", "--between", "0", "3"))
    late = json.loads(told(folder, "--json", "--between", "3", "1e9"))
    assert early["wall_s"] == pytest.approx(3.0) and early["wall_s"] + late["wall_s"] == pytest.approx(whole)
    iso = ("1970-01-01T00:00:01+00:00", "1970-01-01T00:00:03+00:00")
    assert json.loads(told(folder, "--json", "--between", *iso))["wall_s"] == pytest.approx(2.0)
    assert told(folder).startswith("run ") and " s in all, " in told(folder)
    assert " s of it, from 1.0 s to 3.0 s, " in told(folder, "--between", *iso)


def test_what_sticks_out_of_the_run_is_cut_off(lines, tmp_path):
    folder = str(run_dir(tmp_path / "run", lines))
    for beyond in (("0", "inf"), ("-5", "1e9"), ("1970-01-01", "2026-11-20")):
        assert told(folder, "--csv", "--between", *beyond) == told(folder, "--csv"), beyond


@pytest.fixture
def far_away(monkeypatch):
    """A machine whose clock is not shown in UTC."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_time_without_a_zone_is_utc_as_on_the_page(lines, tmp_path, far_away):
    folder = str(run_dir(tmp_path / "run", lines))
    got = json.loads(told(folder, "--json", "--between", "1970-01-01T00:00:01", "1970-01-01T05:45:03+05:45"))
    assert (got["begin_s"], got["end_s"]) == (1.0, 3.0)


def test_a_part_of_a_run_of_two_lives(lines, tmp_path):
    """They are told apart by the part that each of them lies in."""
    later = [{**line, "t": line["t"] + 1000.0} for line in lines]
    folder = str(run_dir(tmp_path / "run", [*lines, *later]))
    whole, first, gone = (
        json.loads(told(folder, "--json", *cut)) for cut in ([], ["--between", "0", "5"], ["--between", "500", "600"])
    )
    assert (whole["incarnations"], first["incarnations"], gone["incarnations"]) == (2, 1, 0)
    assert gone["wall_seconds"]["between_incarnations"] == pytest.approx(100.0) and gone["goodput"] == 0.0
    assert [one["kind"] for one in gone["incidents"]] == ["resubmitted"]


def test_the_journal_in_the_persistent_tier(lines, tmp_path):
    path = run_dir(tmp_path / "run", lines) / "journal.jsonl"
    with closing(JournalCopy(path, DirectoryStore(tmp_path / "tier"), "night", 1)):
        pass
    for place in (f"file://{tmp_path}/tier/night", f"{tmp_path}/tier/night"):
        assert told(place, "--csv") == told(str(path.parent), "--csv")


def test_the_journal_in_a_bucket(lines, tmp_path, monkeypatch):
    path = run_dir(tmp_path / "run", lines) / "journal.jsonl"
    with GcsServer() as server:
        store = gcs_store(server, monkeypatch)
        with closing(JournalCopy(path, store, "night", 1)):
            pass
        assert told(f"{store.url}/night", "--csv") == told(str(path.parent), "--csv")
        assert json.loads(told(f"{store.url}/night", "--json"))["wall_s"] > 0


def test_the_events_of_another_trainer(tmp_path):
    events = [{"t": 0.0, "trainer": "job_started"}]
    events += [{"t": 10.0 + step, "trainer": "step_started", "step": step} for step in range(10)]
    events += [{"t": 20.0, "trainer": "job_ended"}]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"t": 2')
    got = json.loads(told(str(path), "--json"))
    assert got["goodput"] == pytest.approx(0.5) and got["steps"]["kept"] == 10


@pytest.mark.parametrize(
    ("arguments", "error", "what"),
    [
        (["{folder}"], RefusedError, "holds no journal.jsonl"),
        (["{folder}/empty.jsonl"], RefusedError, "docs/goodput.md"),
        (["{folder}/nigth"], SystemExit, "no run can have that name"),
        (["nigth", "--address", "127.0.0.1:1"], RefusedError, "nor runs/nigth with a journal.jsonl here, and no "),
        (["file://{folder}/tier/night"], RefusedError, "holds no journal of a run night"),
        (["{folder}/run", "--json", "--csv"], SystemExit, "exclude each other"),
        (["{folder}/run", "--between", "5", "1"], SystemExit, "B must come after A"),
        (["{folder}/run", "--between", "3", "3"], SystemExit, "B must come after A"),
        (["{folder}/run", "--between", "3", "1970-01-01T00:00:02Z"], SystemExit, "B must come after A"),
        (["{folder}/run", "--between", "now", "1"], SystemExit, "seconds since the run began"),
        (["{folder}/run", "--between", "1", "nan"], SystemExit, "seconds since the run began"),
        (["{folder}/run", "--between", "5"], SystemExit, "requires 2 arguments"),
        (["{folder}/run", "--between", "-9", "0"], SystemExit, "nothing of the run lies between them"),
        (["{folder}/run", "--between", "1e8", "inf"], SystemExit, "from 1970-01-01T00:00:00Z on"),
        (["{folder}/run", "--between", "2026-11-20", "2026-11-21"], SystemExit, "it has lasted"),
        (["{folder}/old.jsonl", "--between", "1e8", "inf"], SystemExit, "from 1000000000000000000 s on"),
    ],
)
def test_wrong_use_is_one_sentence(arguments, error, what, lines, tmp_path):
    run_dir(tmp_path / "run", lines)
    (tmp_path / "empty.jsonl").write_text("nothing\n")
    (tmp_path / "old.jsonl").write_text('{"t": 1e18, "trainer": "job_started"}\n')
    answer = CliRunner().invoke(cli, ["goodput", *(one.format(folder=tmp_path) for one in arguments)])
    if error is SystemExit:
        assert answer.exit_code == 2 and what in answer.output
    else:
        assert isinstance(answer.exception, error) and what in str(answer.exception)
        assert issubclass(error, ElasticError)


def test_lines_that_tell_nothing_are_told_beside_the_answer(tmp_path):
    """A misspelt event would shift seconds without a word."""
    steps = [{"t": 10.0 + step, "trainer": "step_started", "step": step} for step in range(10)]
    events = [{"t": 0.0, "trainer": "job_started"}, *steps, {"t": 20.0, "trainer": "job_ended"}]
    right, wrong = tmp_path / "right.jsonl", tmp_path / "wrong.jsonl"
    texts = [json.dumps(event) + "\n" for event in events]
    right.write_text("".join(texts))
    wrong.write_text("".join([*texts, '{"t": 21.0, "trainer": "step_begun", "step": 10}\n', "\n", "notes\n"]))
    fine, told_of = (CliRunner().invoke(cli, ["goodput", str(path), "--json"]) for path in (right, wrong))
    assert (fine.exit_code, fine.stderr) == (0, "")
    assert told_of.exit_code == 0 and json.loads(told_of.stdout)["wall_s"] == json.loads(fine.stdout)["wall_s"]
    assert told_of.stderr == (
        "warning: not counted: 2 lines that tell nothing that a ledger knows (line 13, 15); "
        "docs/goodput.md has the forms\n"
    )
    wrong.write_text("".join([*texts, *["notes\n"] * 7]))
    assert "7 lines that tell nothing that a ledger knows (line 13, 14, 15, 16, 17, ...)" in (
        CliRunner().invoke(cli, ["goodput", str(wrong)]).stderr
    )


def test_of_a_run_that_has_fallen_silent_it_is_said_for_how_long(tmp_path):
    """Its driver may be gone since an hour: nobody should take its goodput for that of now."""
    scribe = Scribe(began_s=time.time() - 3600)
    scribe.begin()
    scribe.form(["w0"])
    scribe.steps(10, replicas=1)
    folder = str(written(scribe.lines, tmp_path / "run"))
    silent = CliRunner().invoke(cli, ["goodput", folder, "--json"])
    assert re.match(r"note: nothing was told for (59|60) min \d+ s, which counts nowhere: `elastic s", silent.stderr)
    assert json.loads(silent.stdout)["is_live"] is True
    scribe.end()
    written(scribe.lines, tmp_path / "run")
    assert CliRunner().invoke(cli, ["goodput", folder, "--json"]).stderr == ""
    events = tmp_path / "events.jsonl"
    events.write_text('{"t": 0.0, "trainer": "job_started"}\n{"t": 9.0, "trainer": "step_started", "step": 0}\n')
    assert CliRunner().invoke(cli, ["goodput", str(events)]).stderr == "", "its clock may be any"
