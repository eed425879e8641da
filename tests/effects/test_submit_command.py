"""`elastic submit` without a cluster: what is sent, what is shown, and what the command returns."""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from ray.job_submission import JobStatus

from elastic.cli import cli
from elastic.commands import submit
from elastic.config import from_environment
from elastic.errors import ElasticError, NoClusterError
from elastic.knobs import configured


class Dashboard:
    """Takes jobs, tells two lines of log, and how the job ended."""

    def __init__(self, ends: JobStatus = JobStatus.SUCCEEDED, breaks: bool = False, refuses: str = "") -> None:
        self.ends, self.breaks, self.refuses = ends, breaks, refuses
        self.job: dict[str, Any] = {}
        self.asked = 0

    def submit_job(self, **job: Any) -> str:
        if self.refuses:
            raise RuntimeError(f"{self.refuses}\nand a page of advice")
        self.job = job
        return "job-1"

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield "step 1\n"
        if self.breaks:
            raise RuntimeError("the connection closed")
        yield "step 2\n"

    def get_job_status(self, job: str) -> JobStatus:
        self.asked += 1
        return JobStatus.RUNNING if self.asked == 1 else self.ends


def run(monkeypatch: pytest.MonkeyPatch, dashboard: Dashboard, *arguments: str) -> Result:
    monkeypatch.setattr(submit, "_client", lambda address: dashboard)
    return CliRunner().invoke(cli, ["submit", *arguments], standalone_mode=False)


def test_the_job_gets_its_settings_as_variables(monkeypatch, tmp_path):
    (tmp_path / "run.yaml").write_text("limits: {lease_s: 60}\nscaling: {num_dp_replicas: [1, 3]}\n")
    dashboard = Dashboard()
    options = ["--config", str(tmp_path / "run.yaml"), "--set", "checkpoint.keep.last=5", "--name", "llama"]
    done = run(
        monkeypatch, dashboard, *options, "--env", "A=b=c", "--pip", "x==1", "--", "python", "my train.py", "--lr", "1"
    )
    assert done.exit_code == 0 and "step 1\nstep 2\n" in done.output
    assert dashboard.job["entrypoint"] == "python 'my train.py' --lr 1"
    sent = dashboard.job["runtime_env"]
    assert sent["env_vars"].pop("A") == "b=c" and sent["pip"] == ["x==1"] and "working_dir" not in sent
    config = configured(from_environment(sent["env_vars"]))
    assert (config.name, config.limits.lease_s, config.scaling.bounds) == ("llama", 60.0, (1, 3))
    assert config.checkpoint is not None and config.checkpoint.keep.last == 5
    assert dashboard.asked == 2, "the status may come a moment after the last line"


@pytest.mark.parametrize(
    ("ends", "code"), [(JobStatus.SUCCEEDED, 0), (JobStatus.FAILED, 3), (JobStatus.STOPPED, 3)], ids=str
)
def test_the_command_returns_how_the_job_ended(monkeypatch, ends, code):
    assert run(monkeypatch, Dashboard(ends), "--", "x").exit_code == code


def test_who_does_not_wait_gets_the_id(monkeypatch):
    done = run(monkeypatch, Dashboard(), "--no-wait", "--", "x")
    assert done.stdout == "job-1\n" and "step" not in done.output


@pytest.mark.parametrize(
    ("options", "ends", "status", "code"),
    [
        ([], JobStatus.SUCCEEDED, "succeeded", 0),
        ([], JobStatus.FAILED, "failed", 3),
        ([], JobStatus.STOPPED, "stopped", 3),
        (["--no-wait"], JobStatus.FAILED, "submitted", 0),
    ],
)
def test_a_program_is_told_the_id_and_how_it_ended(monkeypatch, options, ends, status, code):
    done = run(monkeypatch, Dashboard(ends), "--json", *options, "--", "x")
    assert json.loads(done.stdout) == {"job": "job-1", "status": status} and done.exit_code == code
    assert ("step 2" in done.stderr) == (not options), "the log is not in a program's way"


def test_a_log_that_breaks_off_says_how_to_see_the_rest(monkeypatch):
    done = run(monkeypatch, Dashboard(breaks=True), "--", "x")
    assert isinstance(done.exception, ElasticError) and "ray job logs -f job-1" in str(done.exception)


def test_a_job_that_is_refused_is_one_sentence(monkeypatch):
    done = run(monkeypatch, Dashboard(refuses="no agent"), "--", "x")
    assert str(done.exception) == "the job was not taken: no agent"


def test_a_mistyped_option_is_no_entrypoint(monkeypatch):
    assert isinstance(run(monkeypatch, Dashboard(), "--nmae", "x", "--", "y").exception, click.NoSuchOption)


def test_where_nobody_listens_that_is_told():
    with pytest.raises(NoClusterError, match="no dashboard takes jobs"):
        submit._client("http://127.0.0.1:1")


@pytest.fixture
def silent() -> Iterator[str]:
    """Somebody who accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_dashboard_that_never_answers_is_named(silent):
    done = CliRunner().invoke(
        cli, ["submit", "--address", silent, "--timeout", "0.5", "--", "x"], standalone_mode=False
    )
    assert isinstance(done.exception, ElasticError)
    assert "the dashboard has not answered within --timeout 0.5 s" in str(done.exception)


def test_a_dashboard_that_goes_away_before_the_end_says_how_to_learn_it(monkeypatch):
    dashboard = Dashboard()

    def gone(job: str) -> JobStatus:
        raise ConnectionError("refused")

    dashboard.get_job_status = gone
    done = run(monkeypatch, dashboard, "--", "x")
    assert str(done.exception) == "how job-1 ended is not known (refused): ray job status job-1"
