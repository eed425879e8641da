"""`elastic report`, `top` and `status`: their forms for people and programs, and their wrong uses."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from elastic.actors.journal_copy import JournalCopy
from elastic.checkpoint.stores.directory import DirectoryStore
from elastic.cli import cli
from elastic.commands import journals
from elastic.errors import ElasticError, RefusedError
from elastic.ledger.ledger import Ledger
from elastic.report.content.compose import report
from elastic.report.content.fold import Fold
from elastic.report.content.model import Report, Spent, Waterfall
from elastic.report.follower import Follower
from elastic.report.terminal import screen
from elastic.report.window import window
from elastic.settings import Page
from tests.effects.gcs_server import GcsServer
from tests.effects.interruptible import MAIN
from tests.effects.store_parts import gcs_store
from tests.pure.report_lines import Scribe, a_night, written

SERVED_AND_KILLED = """
import os, signal, sys
from pathlib import Path
from elastic.report.window import window
from elastic.settings import Page

run = Path(sys.argv[1])
with window(Page(), run, run / "journal.jsonl", "night"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
HEADLINE = {"run", "phase", "ending", "step", "replicas", "goodput", "wall_s", "incidents", "open_incidents"}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(a_night().lines, tmp_path / "runs" / "night")


def elastic(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(one) for one in arguments], catch_exceptions=False)


def test_a_report_is_one_file(run: Path, tmp_path: Path) -> None:
    result = elastic("report", run, "-o", tmp_path / "r.html")
    assert result.exit_code == 0 and "opens in any browser" in result.output
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    told = json.loads(elastic("report", run, "--json").output)
    assert elastic("report", run, "--json", "-o", tmp_path / "r.json").output == ""
    assert json.loads((tmp_path / "r.json").read_text()) == told
    assert told["headline"]["run"] == "night" and len(told["timeline"]["lanes"]) == 5


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["page", "json"])
def test_a_dash_is_standard_output(form: list[str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elastic("report", run, *form, "-o", tmp_path / "file")
    monkeypatch.chdir(tmp_path)
    result = elastic("report", run, *form, "-o", "-")
    assert result.exit_code == 0 and result.stdout.rstrip("\n") == (tmp_path / "file").read_text().rstrip("\n")
    assert not (tmp_path / "-").exists()


def test_a_step_beyond_a_million_is_told_as_it_is(tmp_path: Path) -> None:
    scribe = a_night()
    scribe.rung("local", 1234567)
    run = written(scribe.lines, tmp_path / "runs" / "night")
    assert json.loads(elastic("status", run, "--json").output)["safe_steps"]["local"] == 1234567
    assert "1234567" in elastic("status", run).output


def test_status_for_programs_and_for_people(run: Path) -> None:
    facts = json.loads(elastic("status", run, "--json").output)
    assert set(facts) >= HEADLINE
    assert (facts["phase"], facts["ending"], facts["step"]) == ("ended", "succeeded", 79)
    assert facts["safe_steps"] == {"committed": 79, "staged": 10, "local": 10, "replicated": 10, "durable": 8}
    assert facts["silent_s"] == 0.0 and facts["page"] == ""
    lines = elastic("status", run).output.splitlines()
    assert any(line.split() == ["step", "79"] for line in lines)


def test_status_of_a_run_that_goes_on_says_for_how_long_it_is_silent_and_where_its_page_is(run: Path) -> None:
    scribe = a_night()
    journal = written(scribe.lines[:-2], run) / "journal.jsonl"
    with window(Page(), run, journal, "night") as url:
        facts = json.loads(elastic("status", run, "--json").output)
    assert facts["phase"] == "running" and facts["page"] == url
    assert facts["silent_s"] == pytest.approx(max(0.0, time.time() - scribe.lines[-3]["t"]), abs=30)


def test_status_names_no_page_of_a_killed_driver(run: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", SERVED_AND_KILLED, str(run)])
    assert killed.returncode == -signal.SIGKILL and (run / "page.url").read_text().startswith("http://")
    assert json.loads(elastic("status", run, "--json").output)["page"] == ""


def test_top_once(run: Path) -> None:
    text = elastic("top", run, "--once").output
    assert "night" in text and "where the time went" in text and "productive" in text
    assert "w2" in text and "step 79" in text


def test_a_line_that_is_no_sense_at_all_is_passed_over(run: Path) -> None:
    with (run / "journal.jsonl").open("a") as journal:
        journal.write("[" * 100_000 + "\n")
    for command in ("status", "goodput"):
        assert elastic(command, run).exit_code == 0


def test_names_that_are_no_text_are_told_all_the_same(run: Path) -> None:
    """As of a file, in what an exception says."""
    text = (run / "journal.jsonl").read_text()
    assert "its process is gone" in text
    (run / "journal.jsonl").write_text(text.replace("its process is gone", "its process is gone: \\udcff"))
    command = [sys.executable, "-c", "from elastic.cli import main; main()", "top", "--once", str(run)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert b"its process is gone: \\udcff" in done.stdout


def shown(lines: list[dict], folder: Path, width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    follower = Follower(written(lines, folder) / "journal.jsonl")
    follower.read(is_whole=True)
    console.print(screen(follower.report()))
    return console.export_text()


def test_top_has_the_parts_of_the_page(tmp_path: Path) -> None:
    text = shown(a_night().lines, tmp_path / "night")
    assert "failure 0: worker lost" in text
    assert "w2 is dead: its process is gone" in text and "generation 2 trains" in text
    told = [line for line in text.splitlines() if " s  " in line and "is dead" in line]
    assert told and told[0].strip().startswith("6.05 s"), "since the run began"
    (durable,) = [line.split() for line in text.splitlines() if line.startswith("durable")]
    assert durable == ["durable", "8", "71"], "the newest step there, and how many it is behind"
    assert "every 10 s: a stall of 0.005 s" in text
    slow = text[text.index("stragglers") :].splitlines()
    assert any(line.split()[:2] == ["w2", "node-a-01234"] and "2.00" in line for line in slow)
    for part in ("sizes", "throughput", "losses", "settings"):
        assert made_of(a_night().lines).summaries[part].split(".")[0] in text


def test_what_does_not_fit_the_terminal_is_counted(tmp_path: Path) -> None:
    scribe = Scribe()
    scribe.begin()
    scribe.start(["w0", "w1"], ["node-a"])
    scribe.form(["w0", "w1"])
    scribe.steps(30, replicas=2)
    scribe.kill("w1", ["w0"])
    for number in range(20):
        scribe.now_s += 2.0
        scribe.command("StartWorker", "none came", worker=f"w{number + 2}", gang=1, shard=0)
    scribe.form(["w0"])
    scribe.steps(2, replicas=1)
    assert "and 18 more lines: `elastic report` has them" in shown(scribe.lines, tmp_path / "long"), "of 26"
    made, console = made_of(scribe.lines), Console(width=160, file=io.StringIO(), record=True)
    spent = tuple(Spent(category=f"kind {number}", wall_s=10.0 - 0.5 * number, worker_s=0.0) for number in range(12))
    console.print(screen(replace(made, waterfall=Waterfall(wall_s=87.0, worker_s=0.0, spent=spent))))
    (more,) = [line.split() for line in console.export_text().splitlines() if line.startswith("3 more")]
    assert more == ["3", "more", "15.0", "s", "17.2%"], "5.5 s, 5 s and 4.5 s"


def test_names_on_the_terminal_are_no_markup(tmp_path: Path) -> None:
    scribe = Scribe(run="[bold]night[/bold]")
    scribe.begin()
    scribe.start(["[red]w0[/red]", "w1"], ["[i]node[/i]"])
    scribe.form(["[red]w0[/red]", "w1"])
    scribe.steps(30, replicas=2, seconds=[0.03, 0.01])
    scribe.kill("[red]w0[/red]", ["w1"])
    scribe.form(["w1"])
    scribe.steps(2, replicas=1)
    text = shown(scribe.lines, tmp_path / "night")
    assert "[bold]night[/bold]" in text and "[i]node[/i]" in text
    assert text.count("[red]w0[/red]") >= 4, "as a worker, as a culprit, in the story, as a straggler"


def test_what_a_run_says_is_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    scribe = Scribe()
    scribe.begin()
    scribe.start(["w0", "w1"], ["n"])
    scribe.form(["w0", "w1"])
    scribe.steps(3, replicas=2)
    scribe.event("TrainFnRaised", worker="w0", summary="data.jsonl:100: cut \x1b[2J here", traceback="")
    scribe.kill("w0", ["w1"])
    text = shown(scribe.lines, tmp_path / "night")
    assert "data.jsonl:100: cut" in text and "\x1b[2J" not in text


def made_of(lines: list[dict]) -> Report:
    fold, ledger = Fold(), Ledger()
    for line in lines:
        fold.take(line)
        ledger.feed(line)
    return report(fold, ledger.account())


@contextmanager
def top_on_a_terminal(run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`elastic top`, once it shows that the run goes on."""
    # `exec`: a shell in between (dash) would die of the interrupt, whatever the command says to it.
    command = f"exec {sys.executable} -c '{MAIN}' top {run} --interval 0.1"
    environment = ["env", "TERM=xterm", "COLUMNS=100", "LINES=60"]
    with subprocess.Popen(
        [*environment, "script", "-qefc", command, "/dev/null"], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as watching:
        try:
            assert watching.stdout is not None
            before = b""
            while b"running" not in before and (more := os.read(watching.stdout.fileno(), 1 << 16)):
                before += more
            assert b"running" in before
            yield watching
        finally:
            watching.kill()


def test_top_follows_a_run_on_a_terminal_and_ends_with_it(run: Path) -> None:
    scribe = a_night()
    written(scribe.lines[:-2], run)
    with top_on_a_terminal(run) as watching:
        assert watching.poll() is None, "the run goes on, and so does it"
        written(scribe.lines, run)
        shown, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert b"succeeded" in shown


def test_ctrl_c_ends_top_and_leaves_the_last_picture(run: Path) -> None:
    written(a_night().lines[:-2], run)
    with top_on_a_terminal(run) as watching:
        shown, _ = watching.communicate(b"\x03", timeout=60)
    assert watching.returncode == 0
    assert b"where the time went" in shown.rpartition(b"\x1b[?1049l")[2], "after the screen is given back"
    assert b"Traceback" not in shown


def test_top_says_that_a_run_is_silent_until_it_has_ended(tmp_path: Path) -> None:
    """Its driver may be gone for good; a new one may come."""
    scribe = Scribe(began_s=time.time() - 60)
    scribe.begin()
    scribe.form(["w0"])
    scribe.steps(10, replicas=1)
    assert re.search(
        r"the run has said nothing for [56]\d\.\d s", elastic("top", written(scribe.lines, tmp_path), "--once").output
    )
    scribe.now_s = time.time()
    scribe.steps(1, replicas=1)
    assert "said nothing" not in elastic("top", written(scribe.lines, tmp_path), "--once").output
    assert "said nothing" not in elastic("top", written(a_night().lines, tmp_path), "--once").output, "it has ended"


def test_a_name_under_runs(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert json.loads(elastic("status", "night", "--json").output)["step"] == 79


def test_a_run_in_the_persistent_tier(run: Path, tmp_path: Path) -> None:
    with closing(JournalCopy(run / "journal.jsonl", DirectoryStore(tmp_path / "store"), "night", 1)):
        pass
    url = (tmp_path / "store").as_uri()
    assert json.loads(elastic("status", f"{url}/night", "--json").output)["step"] == 79
    with pytest.raises(ElasticError, match="holds no journal of a run day"):
        elastic("status", f"{url}/day")


def test_a_copy_in_the_persistent_tier_is_followed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `elastic top URL/NAME` does: a run that trains elsewhere goes on."""
    lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "there").mkdir()
    there, store = tmp_path / "there" / "journal.jsonl", DirectoryStore(tmp_path / "store")
    there.write_text("".join(lines[:20]))
    with closing(JournalCopy(there, store, "night", 1)):
        pass
    monkeypatch.setattr(journals, "FETCH_S", 0.05)
    with journals.journal_file(f"{(tmp_path / 'store').as_uri()}/night", is_followed=True) as path:
        follower = Follower(path)
        follower.read(is_whole=True)
        assert follower.lines == 20 and not follower.is_over
        with there.open("a") as file:
            file.write("".join(lines[20:]))
        with closing(JournalCopy(there, store, "night", 2)):
            pass
        deadline_s = time.monotonic() + 60
        while not follower.is_over:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
            follower.read(is_whole=True)
        assert path.read_text() == "".join(lines), "each line once"
    assert not path.exists() and all(one.name != "elastic-follow" for one in threading.enumerate())


def test_a_run_in_a_bucket(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GcsServer() as server:
        store = gcs_store(server, monkeypatch)
        with closing(JournalCopy(run / "journal.jsonl", store, "night", 1)):
            pass
        place = f"{store.url}/night"
        assert json.loads(elastic("status", place, "--json").output)["step"] == 79
        there, here = (json.loads(elastic("report", one, "--json").output) for one in (place, run))
        assert there["headline"] == here["headline"] and there["incidents"] == here["incidents"]
        with pytest.raises(ElasticError, match="holds no journal of a run day"):
            elastic("status", f"{store.url}/day")


@pytest.mark.parametrize("command", [["report", "--json"], ["top", "--once"], ["status"], ["status", "--json"]])
@pytest.mark.parametrize("text", ["", "some notes\n", '["t", 1]\n', '{"t": 1.0, "event": "Run'])
def test_what_is_no_journal_has_no_report(command: list[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text(text)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.jsonl").write_text(text)
    for place in (tmp_path / "notes", tmp_path / "run"):
        with pytest.raises(RefusedError, match=f"{place} holds no line of a journal: name the directory"):
            elastic(*command, place)


def test_wrong_uses(tmp_path: Path) -> None:
    with pytest.raises(ElasticError, match=r"holds no journal.jsonl: name the directory"):
        elastic("report", tmp_path)
    assert elastic("top", tmp_path, "--interval", "0").exit_code == 2
    assert elastic("status").exit_code == 2
