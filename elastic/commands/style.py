"""Effect. What all commands have in common: options by one name, exit codes, what they tell."""

import io
import math
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, TypeVar

import click

from elastic.control.plain import in_json
from elastic.errors import ElasticError, SettingError

PROGRAM = "elastic"
FAILED = 1  # exit code: what was asked for could not be done; one sentence on stderr says why
WRONG_USE = 2  # click's, and ours: an option, an argument or a setting is wrong or missing
UNSOUND = 3  # it was done, and what was looked at is bad
INTERRUPTED = 130  # Ctrl-C

CODES = {
    0: "done",
    FAILED: "not done; one sentence on stderr says why, and what to turn",
    WRONG_USE: "wrong use: an option, an argument or a setting is wrong or missing; stderr says which",
    UNSOUND: "done, and what was looked at is bad (only where the command says so)",
    INTERRUPTED: "Ctrl-C",
}

Function = TypeVar("Function", bound=Callable[..., Any])


class Finite(click.FloatRange):
    """`FloatRange` takes infinity, and what is no number."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not finite.", param, ctx)
        return found


def timeout_option(default_s: float, until: str) -> Callable[[Function], Function]:
    """How long the command waits for others; every wait ends."""
    told = f"Seconds {until}."
    return click.option("--timeout", type=Finite(min=0.1), default=default_s, show_default=True, help=told)


def json_flag(told: str) -> Callable[[Function], Function]:
    """The flag `--json`. Whoever is given it has stdout for `tell_json`; what else is printed there goes to stderr:
    lines of workers, and of lost nodes, which Ray prints as it likes."""
    return click.option("--json", "as_json", is_flag=True, callback=_with_stdout_alone, help=told)


def _with_stdout_alone(context: click.Context, _: click.Parameter, as_json: bool) -> bool:
    if as_json:
        context.meta[_STDOUT] = sys.stdout
        context.with_resource(redirect_stdout(sys.stderr))
    return as_json


_STDOUT = f"{__name__}.stdout"

json_option = json_flag("One JSON object on stdout, for a program.")
address_option = click.option(
    "--address", default=None, help="Of the cluster; default: RAY_ADDRESS, or the one on this machine."
)


def tell(facts: dict[str, Any], as_json: bool, *lines: str) -> None:
    """The facts for a program, or lines for people."""
    if as_json:
        tell_json(facts, indent=1)
    else:
        click.echo("\n".join(lines))


def tell_json(facts: Any, indent: int | None = None) -> None:
    """What a program reads of a command that has `--json`."""
    tell_alone(in_json(facts, indent=indent))


def tell_alone(text: str) -> None:
    """What was asked for, on stdout, whatever else is printed."""
    click.echo(text, file=click.get_current_context().meta.get(_STDOUT))


def run_cli(group: click.Group) -> None:
    """Run a command line to its end: errors are one sentence, Ctrl-C is 130."""
    _take_any_text()
    try:
        code = group.main(prog_name=PROGRAM, standalone_mode=False)
        if isinstance(code, int) and code:  # click returns what ctx.exit was given
            sys.exit(code)
    except (KeyboardInterrupt, click.exceptions.Abort):
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:  # whoever read our lines has gone (`| head`)
        sys.stderr.close()
        sys.exit(FAILED)
    except SettingError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(WRONG_USE)
    except (ElasticError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(FAILED)
    except Exception as error:
        if not _is_of_ray(error):
            raise  # a bug of ours, with all that is known of it
        click.echo(f"error: {_last_word(error)}: does the cluster live? `elastic doctor` looks at it", err=True)
        sys.exit(FAILED)


def _take_any_text() -> None:
    """Names of files, in messages for one, may be no text; they are told all the same."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_of_ray(error: Exception) -> bool:
    return any(kind.__module__.partition(".")[0] == "ray" for kind in type(error).__mro__)


def _last_word(error: Exception) -> str:
    """Ray tells a whole story, in many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].rstrip(':.')}" if lines else type(error).__name__


def between(interval: tuple[float, float] | None, digits: int, sign: str = "") -> str:
    """An interval, in percent, behind its mean; nothing where there is none."""
    if interval is None:
        return ""
    low, high = (f"{100 * end:{sign}.{digits}f}" for end in interval)
    return f" [{low}, {high}]"


def apart(mean: float, interval: tuple[float, float] | None) -> str:
    """By how much two rows differ, in points of percent, and whether that is a tie."""
    tie = ", a tie" if interval is not None and interval[0] <= 0.0 <= interval[1] else ""
    return f"{100 * mean:+.3f}{between(interval, 3, '+')}{tie}"
