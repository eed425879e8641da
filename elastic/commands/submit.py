"""Effect. `elastic submit`: a job on a Ray cluster, through its dashboard, with the settings of a run."""

import contextlib
import os
import queue
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from elastic.commands.patience import answer
from elastic.commands.style import UNSOUND, json_option, tell_json, timeout_option
from elastic.errors import ElasticError, NoClusterError, SettingError

_VARIABLE = "RAY_API_SERVER_ADDRESS"
_LATE_S = 30.0
_NOT_TAKEN = "the job was not taken ({}): check --working-dir, --pip and --env"
_QUIET_S = 10.0  # a log that says nothing for so long may be one that nobody sends any more
_LINES = 1000
_SILENT = "the dashboard has not answered within --timeout {:g} s: is it alive, and is this its --address?"


@click.command()
@click.argument("entrypoint", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--config", "file", type=click.Path(path_type=Path), help="YAML that fit() is configured with.")
@click.option("--set", "assignments", multiple=True, metavar="KNOB=VALUE", help="As an argument of fit; repeatable.")
@click.option("--name", help="Of the run; a run that is submitted again under its name goes on.")
@click.option("--working-dir", type=click.Path(path_type=str), help="Or URI. Sent along; default: nothing.")
@click.option("--pip", "packages", multiple=True, metavar="PACKAGE", help="For the job's environment; repeatable.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="For the job; repeatable.")
@click.option("--address", default=None, help="Of the dashboard; default: RAY_API_SERVER_ADDRESS, or port 8265 here.")
@timeout_option(120.0, "that the dashboard may take to answer, and a working directory to be sent")
@click.option("--no-wait", is_flag=True, help="Print the job's id and leave.")
@json_option
def submit(entrypoint: tuple[str, ...], **options: Any) -> None:
    """Run ENTRYPOINT as a job on a Ray cluster, and show its log: elastic submit --name llama -- python train.py

    Where the cluster asks for a token, it is Ray's: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token. Ctrl-C ends
    the log, not the job: `ray job stop ID` does. With --json the log goes to stderr; stdout gets `job` and `status`.
    Exit code 3: the job failed, or was stopped.
    """
    name, as_json, timeout_s = options["name"], options["as_json"], options["timeout"]
    variables = dict(_pair(one) for one in options["variables"])
    settings = _settings(options["file"], options["assignments"], name, variables)
    environment: dict[str, Any] = {"env_vars": variables | settings}
    if options["working_dir"] is not None:
        environment["working_dir"] = options["working_dir"]
    if options["packages"]:
        environment["pip"] = list(options["packages"])
    job_facts: dict[str, Any] = {
        "entrypoint": shlex.join(entrypoint),
        "runtime_env": environment,
        "metadata": {"elastic-run": name} if name else None,
    }
    client = _client(options["address"], timeout_s)
    job = _asked(lambda: client.submit_job(**job_facts), timeout_s, _NOT_TAKEN)
    click.echo(f"submitted {job}", err=True)
    if options["no_wait"]:
        tell_json({"job": job, "status": "submitted"}) if as_json else click.echo(job)
        return
    try:
        status = _follow(client, job, as_json, timeout_s)
    except KeyboardInterrupt:
        click.echo(f"{job} goes on: `ray job logs -f {job}` shows its log, `ray job stop {job}` ends it", err=True)
        raise
    click.echo(f"{job} {status.value.lower()}", err=True)
    if as_json:
        tell_json({"job": job, "status": status.value.lower()})
    if status.value != "SUCCEEDED":
        sys.exit(UNSOUND)


def _asked(act: Callable[[], Any], timeout_s: float, otherwise: str) -> Any:
    """What the dashboard answers, through Ray's client, which has no errors of its own.

    Raises:
        ElasticError: it refuses, or has not answered in time; `otherwise` says what that means, with its words in it.
    """
    from ray.exceptions import AuthenticationError, RayError

    try:
        return answer(act, timeout_s, _SILENT.format(timeout_s))
    except AuthenticationError as error:
        raise NoClusterError(
            f"the dashboard does not take Ray's token ({_said(error)}): set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH"
        ) from error
    except (RayError, OSError, RuntimeError, ValueError, TypeError, LookupError, AssertionError) as error:
        raise NoClusterError(otherwise.format(_said(error))) from error


def _said(error: BaseException) -> str:
    """Its first line; Ray names the address with all that is in it."""
    from elastic.knobs import redacted_in

    return redacted_in((str(error).strip() or repr(error)).splitlines()[0].rstrip(":."))


def _client(address: str | None, timeout_s: float) -> Any:
    """Raises: NoClusterError: no dashboard answers there."""
    from ray.job_submission import JobSubmissionClient

    from elastic.knobs import redacted

    where = address or os.environ.get(_VARIABLE) or "http://127.0.0.1:8265"
    shown = redacted(where).replace("{", "{{").replace("}", "}}")
    otherwise = f"no dashboard takes jobs at {shown} ({{}}): check --address, as in http://head:8265"
    with _said_to_ray(where):
        return _asked(lambda: JobSubmissionClient(where), timeout_s, otherwise)


@contextlib.contextmanager
def _said_to_ray(where: str) -> Iterator[None]:
    """Ray's client heeds this variable, and RAY_ADDRESS where there is none, before the address that it is given."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = where
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


def _settings(
    file: Path | None, assignments: tuple[str, ...], name: str | None, more: Mapping[str, str]
) -> dict[str, str]:
    """The run's settings as variables, which `fit` reads where the job runs; what is set here is meant for there.

    Args:
        more: variables that the job will have, beside those of this process.
    """
    from elastic.config import assigned, from_environment, load
    from elastic.knobs import Given, merged
    from elastic.kube.manifests import variables

    environment = {**os.environ, **more}
    given = merged(*[assigned(one) for one in assignments], {"name": Given(name, "--name")} if name else {})
    config, tree = load(file, given, environment)
    is_named = "name" in given or "name" in from_environment(environment)
    if config.kuberay is not None and config.kuberay.interactive and not is_named:
        config = replace(config, name=None)  # the file's is the cluster's, and each job is a run of its own
        tree = {knob: item for knob, item in tree.items() if knob != "name"}
    return variables(config, tree)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise SettingError(f"--env {text}: must be NAME=VALUE")
    return name, value


def _follow(client: Any, job: str, is_beside: bool, timeout_s: float) -> Any:
    """Show the log, or that on stderr, until the job ends; returns its last status.

    While the log is quiet, the dashboard is asked: its connection may be dead and nobody has told.
    """
    lines: queue.Queue[str | BaseException | None] = queue.Queue(_LINES)
    threading.Thread(target=_listen, args=(client, job, lines), name="elastic-log", daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=_QUIET_S)
        except queue.Empty:
            if not _status(client, job, timeout_s).is_terminal():
                continue
            click.echo(f"the log of {job} may lack its end: ray job logs {job}", err=True)
            break
        if line is None:
            break
        if not isinstance(line, str):
            told = f"the log of {job} broke off ({_said(line)}); the job goes on: ray job logs -f {job}"
            raise ElasticError(told) from line
        click.echo(line, nl=False, err=is_beside)
    return _ended(client, job, timeout_s)


def _listen(client: Any, job: str, lines: queue.Queue[str | BaseException | None]) -> None:
    """Pass the log on; None at its end, what went wrong where it breaks off."""
    import asyncio

    from aiohttp import ClientError

    async def listen() -> None:
        async for line in client.tail_job_logs(job):
            lines.put(line)

    try:
        asyncio.run(listen())
    except (ClientError, OSError, RuntimeError) as error:
        lines.put(error)
    else:
        lines.put(None)


def _status(client: Any, job: str, timeout_s: float) -> Any:
    otherwise = f"how {job} ended is not known ({{}}): ray job status {job}"
    return _asked(lambda: client.get_job_status(job), timeout_s, otherwise)


def _ended(client: Any, job: str, timeout_s: float) -> Any:
    """The last status; it may come a moment after the last line. Raises: ElasticError: it does not come."""
    deadline_s = time.monotonic() + _LATE_S
    while True:
        status = _status(client, job, timeout_s)
        if status.is_terminal():
            return status
        if time.monotonic() > deadline_s:
            raise ElasticError(f"the log of {job} has ended and the job has not: ray job status {job}")
        time.sleep(0.2)
