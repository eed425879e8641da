"""`elastic submit` without a cluster: what is sent, what is shown, and what the command returns."""

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from ray.exceptions import AuthenticationError, RpcError
from ray.job_submission import JobStatus

from elastic.cli import cli
from elastic.commands import submit
from elastic.config import from_environment, load
from elastic.errors import ElasticError, NoClusterError, SettingError
from elastic.knobs import configured
from elastic.settings import Limits


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
    monkeypatch.setattr(submit, "_client", lambda *_: dashboard)
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


def test_a_variable_for_the_job_counts_over_the_file_and_what_is_set_over_both(monkeypatch, tmp_path):
    (tmp_path / "run.yaml").write_text("limits: {lease_s: 60}\n")
    for more, lease_s in ([], 30.0), (["--set", "limits.lease_s=20"], 20.0):
        dashboard = Dashboard()
        options = ["--config", str(tmp_path / "run.yaml"), "--env", "ELASTIC_LIMITS__LEASE_S=30", *more]
        assert run(monkeypatch, dashboard, *options, "--", "x").exit_code == 0
        sent = configured(from_environment(dashboard.job["runtime_env"]["env_vars"]))
        assert sent.limits.lease_s == lease_s


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], None),
        (["--name", "llama"], "llama"),
        (["--set", "name=b"], "b"),
        (["--env", "ELASTIC_NAME=c"], "c"),
    ],
)
def test_a_job_on_a_cluster_for_many_is_not_named_after_the_cluster(monkeypatch, tmp_path, options, name):
    """Each would go on with what the last one has left."""
    (tmp_path / "run.yaml").write_text("name: training\nkuberay: {interactive: true}\nlimits: {lease_s: 60}\n")
    dashboard = Dashboard()
    assert run(monkeypatch, dashboard, "--config", str(tmp_path / "run.yaml"), *options, "--", "x").exit_code == 0
    sent = configured(from_environment(dashboard.job["runtime_env"]["env_vars"]))
    assert (sent.name, sent.limits.lease_s) == (name, 60.0)


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


def test_who_interrupts_the_log_is_told_that_the_job_goes_on(monkeypatch):
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("elastic.commands.submit._follow", interrupted)
    done = run(monkeypatch, Dashboard(), "--", "x")
    assert done.exit_code != 0 and "job-1 goes on: `ray job logs -f job-1` shows its log" in done.stderr


def test_a_job_that_is_refused_is_one_sentence(monkeypatch):
    done = run(monkeypatch, Dashboard(refuses="no agent"), "--", "x")
    assert str(done.exception) == "the job was not taken (no agent): check --working-dir, --pip and --env"


def test_a_mistyped_option_is_no_entrypoint(monkeypatch):
    assert isinstance(run(monkeypatch, Dashboard(), "--nmae", "x", "--", "y").exception, click.NoSuchOption)


FAILURES = [
    AuthenticationError("the token\nis old"),
    RpcError("late"),
    KeyError("status"),
    ValueError(""),
    OSError("x"),
]


@pytest.mark.parametrize("method", ["submit_job", "get_job_status"])
@pytest.mark.parametrize("failure", FAILURES, ids=repr)
def test_whatever_the_dashboard_does_is_one_sentence(monkeypatch, method, failure):
    def failing(*_: Any, **__: Any) -> None:
        raise failure

    dashboard = Dashboard()
    setattr(dashboard, method, failing)
    done = run(monkeypatch, dashboard, "--", "x")
    assert isinstance(done.exception, NoClusterError) and "\n" not in str(done.exception)
    knob = "RAY_AUTH_TOKEN" if isinstance(failure, AuthenticationError) else "check --pip|ray job status job-1"
    assert any(one in str(done.exception).replace("--working-dir, ", "") for one in knob.split("|"))


@pytest.fixture
def refusing() -> Iterator[str]:
    """Somebody who answers every request with the status that the path begins with."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(int(self.path.split("/")[1]))
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def told_of(address: str) -> str:
    """The sentence that an address is refused with."""
    done = CliRunner().invoke(cli, ["submit", "--address", address, "--", "x"], standalone_mode=False)
    assert isinstance(done.exception, NoClusterError), done.exc_info
    assert "\n" not in str(done.exception)
    return str(done.exception)


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_is_missing_or_wrong_is_one_sentence(refusing, status):
    told = told_of(f"{refusing}/{status}")
    assert told.startswith("the dashboard does not take Ray's token") and ": set RAY_AUTH_TOKEN" in told


@pytest.mark.parametrize("status", [200, 404, 500])
def test_who_is_no_dashboard_is_one_sentence(refusing, status):
    told = told_of(f"{refusing}/{status}")
    assert told.startswith("no dashboard takes jobs at http://127") and "check --address" in told


@pytest.mark.parametrize("address", ["notaurl", "http://", "ftp://x", "os://x", "http://127.0.0.1:1", "http://{a}:1"])
def test_where_nobody_listens_that_is_told(address):
    told = told_of(address)
    assert told.startswith(f"no dashboard takes jobs at {address}") and "check --address" in told


@pytest.mark.parametrize("path", ["", "/404", "/500"])
def test_who_may_ask_the_dashboard_is_not_shown(refusing, path):
    told = told_of(f"{refusing.replace('://', '://user:secret@')}{path}" if path else "http://user:secret@127.0.0.1:1")
    assert "secret" not in told and "http://***@127.0.0.1" in told


def test_nor_where_the_log_breaks_off(monkeypatch):
    class Refusing(Dashboard):
        async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
            yield "step 1\n"
            raise RuntimeError("502, message='Bad Gateway', url='http://user:secret@head/api/jobs'")

    done = run(monkeypatch, Refusing(), "--", "x")
    assert "(502, message='Bad Gateway', url='http://***@head/api/jobs')" in str(done.exception)


def test_the_address_that_is_given_is_the_one_that_is_asked(monkeypatch):
    """Ray's own client would submit the job to the cluster that a variable names."""
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:3")
    assert "address: http://127.0.0.1:1" in told_of("http://127.0.0.1:1")
    assert "RAY_API_SERVER_ADDRESS" not in os.environ
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:2")
    assert "address: http://127.0.0.1:1" in told_of("http://127.0.0.1:1")
    assert "address: http://127.0.0.1:2" in told_of("")
    assert os.environ["RAY_API_SERVER_ADDRESS"] == "http://127.0.0.1:2"


def test_half_an_address_is_told_of_too():
    assert told_of("http://[::1:8265").startswith("no dashboard takes jobs at http://*** (")


@pytest.mark.parametrize("wrong", [("--env", "X"), ("--set", "limits.leas_s=1"), ("--config", "/no/such.yaml")])
def test_options_are_judged_before_anybody_is_asked(wrong):
    done = CliRunner().invoke(cli, ["submit", *wrong, "--address", "http://127.0.0.1:1", "--", "x"])
    assert isinstance(done.exception, SettingError)


def test_what_is_given_is_sent_although_it_is_the_default(monkeypatch, tmp_path):
    dashboard, usual = Dashboard(), Limits()
    options = ["--set", f"limits.lease_s={usual.lease_s}", "--set", "seed=0", "--set", "checkpoint=null"]
    assert run(monkeypatch, dashboard, *options, "--", "x").exit_code == 0
    sent = dashboard.job["runtime_env"]["env_vars"]
    assert sent == {
        "ELASTIC_LIMITS__LEASE_S": str(usual.lease_s),
        "ELASTIC_SEED": "0",
        "ELASTIC_CHECKPOINT": "null",
    }
    (tmp_path / "cluster.yaml").write_text("checkpoint: {persistent: /store}\n")
    there, _ = load(tmp_path / "cluster.yaml", {}, sent)
    assert there.checkpoint is None


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


class Silent(Dashboard):
    """Its log says one line, and then neither goes on nor ends."""

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        yield "step 1\n"
        await asyncio.sleep(30)


@pytest.mark.timeout(20)
def test_a_log_that_goes_quiet_for_ever_does_not_keep_anybody(monkeypatch):
    monkeypatch.setattr(submit, "_QUIET_S", 0.1)
    done = run(monkeypatch, Silent(), "--", "x")
    assert done.exit_code == 0 and "step 1" in done.stdout and "may lack its end: ray job logs job-1" in done.stderr


@pytest.mark.timeout(20)
def test_a_dashboard_that_dies_under_a_quiet_log_is_named(monkeypatch):
    monkeypatch.setattr(submit, "_QUIET_S", 0.1)
    dashboard = Silent()
    dashboard.get_job_status = lambda _: time.sleep(30)
    done = run(monkeypatch, dashboard, "--timeout", "0.5", "--", "x")
    assert "the dashboard has not answered within --timeout 0.5 s" in str(done.exception)
