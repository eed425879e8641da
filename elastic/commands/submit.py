"""Effect. `elastic submit`: a job on a Ray cluster, through its dashboard, with the settings of a run."""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from elastic.commands.patience import answer
from elastic.commands.style import UNSOUND, json_option
from elastic.control.plain import in_json
from elastic.errors import ElasticError, NoClusterError, SettingError

_LATE_S = 30.0
_SILENT = "the dashboard has not answered within --timeout {:g} s: is it alive, and is this its --address?"


@click.command()
@click.argument("entrypoint", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--config", "file", type=click.Path(path_type=Path), help="YAML that fit() is configured with.")
@click.option("--set", "assignments", multiple=True, metavar="KNOB=VALUE", help="As an argument of fit; repeatable.")
@click.option("--name", help="Of the run; a run that is submitted again under its name goes on.")
@click.option("--working-dir", type=click.Path(path_type=Path), default=None, help="Sent along; default: nothing.")
@click.option("--pip", "packages", multiple=True, metavar="PACKAGE", help="For the job's environment; repeatable.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="For the job; repeatable.")
@click.option("--address", default=None, help="Of the dashboard; default: RAY_API_SERVER_ADDRESS, or port 8265 here.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=120.0,
    show_default=True,
    help="Seconds that the dashboard may take to answer, and a working directory to be sent.",
)
@click.option("--no-wait", is_flag=True, help="Print the job's id and leave.")
@json_option
def submit(entrypoint: tuple[str, ...], **options: Any) -> None:
    """Run ENTRYPOINT as a job on a Ray cluster, and show its log: elastic submit --name llama -- python train.py

    Where the cluster asks for a token, it is Ray's: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token. Ctrl-C ends
    the log, not the job: `ray job stop ID` does. With --json the log goes to stderr; stdout gets `job` and `status`.
    Exit code 3: the job failed, or was stopped.
    """
    name, as_json, timeout_s = options["name"], options["as_json"], options["timeout"]
    silent = _SILENT.format(timeout_s)
    client = answer(lambda: _client(options["address"]), timeout_s, silent)
    variables = dict(_pair(one) for one in options["variables"])
    environment: dict[str, Any] = {"env_vars": variables | _settings(options["file"], options["assignments"], name)}
    if options["working_dir"] is not None:
        environment["working_dir"] = str(options["working_dir"])
    if options["packages"]:
        environment["pip"] = list(options["packages"])
    job_facts: dict[str, Any] = {
        "entrypoint": shlex.join(entrypoint),
        "runtime_env": environment,
        "metadata": {"elastic-run": name} if name else None,
    }
    try:
        job = answer(lambda: client.submit_job(**job_facts), timeout_s, silent)
    except (OSError, RuntimeError, ValueError) as error:
        raise ElasticError(f"the job was not taken: {str(error).splitlines()[0]}") from error
    click.echo(f"submitted {job}", err=True)
    if options["no_wait"]:
        click.echo(in_json({"job": job, "status": "submitted"}) if as_json else job)
        return
    status = _follow(client, job, as_json, timeout_s)
    click.echo(f"{job} {status.value.lower()}", err=True)
    if as_json:
        click.echo(in_json({"job": job, "status": status.value.lower()}))
    if status.value != "SUCCEEDED":
        sys.exit(UNSOUND)


def _client(address: str | None) -> Any:
    """Raises: NoClusterError: no dashboard answers there."""
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address or os.environ.get("RAY_API_SERVER_ADDRESS") or "http://127.0.0.1:8265")
    except (OSError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        raise NoClusterError(f"no dashboard takes jobs ({said}): check --address, and Ray's token") from error


def _settings(file: Path | None, assignments: tuple[str, ...], name: str | None) -> dict[str, str]:
    """The run's settings as variables, which `fit` reads where the job runs; what is set here is meant for there."""
    from elastic.config import assigned, load
    from elastic.knobs import Given, merged
    from elastic.kube.manifests import variables

    given = {"name": Given(name, "--name")} if name else {}
    config, tree = load(file, merged(*[assigned(one) for one in assignments], given))
    return variables(config, tree)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise SettingError(f"--env {text}: must be NAME=VALUE")
    return name, value


def _follow(client: Any, job: str, is_beside: bool, timeout_s: float) -> Any:
    """Show the log, or that on stderr, until the job ends; returns its last status."""
    import asyncio

    from aiohttp import ClientError

    async def show() -> None:
        async for lines in client.tail_job_logs(job):
            click.echo(lines, nl=False, err=is_beside)

    try:
        asyncio.run(show())
    except (ClientError, RuntimeError) as error:
        raise ElasticError(f"the log of {job} broke off ({error}); the job goes on: ray job logs -f {job}") from error
    try:
        return _ended(client, job, timeout_s)
    except (OSError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        raise ElasticError(f"how {job} ended is not known ({said}): ray job status {job}") from error


def _ended(client: Any, job: str, timeout_s: float) -> Any:
    """The last status; it may come a moment after the last line. Raises: ElasticError: it does not come."""
    deadline_s = time.monotonic() + _LATE_S
    while True:
        status = answer(lambda: client.get_job_status(job), timeout_s, _SILENT.format(timeout_s))
        if status.is_terminal():
            return status
        if time.monotonic() > deadline_s:
            raise ElasticError(f"the log of {job} has ended and the job has not: ray job status {job}")
        time.sleep(0.2)
