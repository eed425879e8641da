"""Effect. The command line in Markdown, from itself: `tools/commands.py` writes it into docs/commands.md."""

import re
from collections.abc import Iterator

import click

from elastic.commands.style import CODES

_EXIT = re.compile(r"Exit code (\d+): ([^.]*)\.")


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, by its words, in alphabetical order."""
    for name in sorted(group.commands):
        command = group.commands[name]
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        elif not command.hidden:
            yield (*path, name), command


def takes_json(command: click.Command) -> bool:
    """Whether it can answer a program."""
    return any("--json" in param.opts for param in command.params)


def exit_codes(command: click.Command) -> dict[int, str]:
    """What its help says of exit codes that not every command has."""
    return {int(code): _one_line(told) for code, told in _EXIT.findall(_one_line(command.help or ""))}


def render(group: click.Group) -> str:
    """All commands and all their options."""
    found = list(leaves(group))
    parts = ["| exit code | what it says |\n|---|---|"]
    parts[0] += "".join(f"\n| {code} | {told} |" for code, told in CODES.items())
    rows = [
        f"| [`{' '.join(path)}`](#{'-'.join(('elastic', *path))}) | {_cell(_first(command))} | "
        f"{'yes' if takes_json(command) else ''} | {', '.join(map(str, exit_codes(command)))} |"
        for path, command in found
    ]
    parts.append("| command | what it does | `--json` | own exit codes |\n|---|---|---|---|\n" + "\n".join(rows))
    parts += [_section(path, command) for path, command in found]
    return "\n\n".join(parts) + "\n"


def _section(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(("elastic", *path)))
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f"## elastic {' '.join(path)}",
        "",
        f"`{context.info_name} {usage}`",
        "",
        _text(f"{command.help or ''}\n\n{command.epilog or ''}").strip(),
    ]
    options = [param for param in command.params if isinstance(param, click.Option) and param.help]
    if options:
        lines += ["", "| option | what it is | default |", "|---|---|---|"]
        lines += [f"| {_names(one)} | {_cell(one.help or '')} | {_default(one)} |" for one in options]
    return "\n".join(lines)


def _names(option: click.Option) -> str:
    names = " / ".join([*option.opts, *option.secondary_opts])
    metavar = "" if option.is_flag else f" {option.metavar or option.type.name.upper()}"
    if isinstance(option.type, click.Choice):
        metavar = f" {'|'.join(map(str, option.type.choices))}"
    return f"`{_cell(names + metavar)}`"


def _default(option: click.Option) -> str:
    return "needed" if option.required else f"{option.default}" if option.show_default else ""


def _first(command: click.Command) -> str:
    return _one_line((command.help or "").partition("\n\n")[0]).partition(". ")[0].rstrip(".")


def _text(told: str) -> str:
    """Paragraphs as they are, each on one line."""
    return "\n\n".join(_one_line(part).replace("<", "\\<") for part in told.split("\n\n"))


def _one_line(told: str) -> str:
    return " ".join(told.replace("\b", "").split())


def _cell(told: str) -> str:
    return told.replace("|", "\\|")
