"""The deploy guide's commands can be parsed, those of `elastic` exist; the image installs what the tests pin."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from elastic.cli import cli
from tests.effects.kube_parts import ROOT

GUIDE = (ROOT / "docs" / "deploying.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines() if line.strip()]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTALL_S = 1500.0


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n", 1)[0][:40])
def test_a_block_is_what_a_shell_can_read(block):
    subprocess.run(["bash", "-n"], input=block, text=True, check=True, timeout=30)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("elastic ")])
def test_a_command_of_elastic_has_these_options(line):
    words = shlex.split(line)[1:]
    command: click.Command = cli
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}
    ours = words[: words.index("--")] if "--" in words else words
    assert {word.partition("=")[0] for word in ours if word.startswith("--")} <= known


def test_programs_are_those_that_the_guide_is_about():
    first = {shlex.split(line)[0] for line in COMMANDS if not line.startswith((" ", "export", "for", "done"))}
    assert first == {"docker", "elastic", "gcloud", "helm", "kubectl", "pip", "ray"}


@pytest.mark.parametrize("path", re.findall(r"`(tests/[\w/]+\.py|kuberay/[\w/-]+)`", GUIDE))
def test_what_is_named_is_there(path):
    assert (ROOT / path).exists()


# --- the image --------------------------------------------------------------------------------------------------------


def stages() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in DOCKERFILE.replace("\\\n", " ").splitlines():
        if line.startswith("FROM "):
            lines = found[line.rpartition(" AS ")[2]] = [line]
        elif line and not line.startswith("#") and found:
            lines.append(line)
    return found


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_the_image_runs_as_the_user_of_the_manifests(target):
    assert stages()[target][-1] == "USER 1000"
    assert f"COPY --from=build-{target} /opt/elastic /opt/elastic" in stages()[target]
    assert any("docker/install.sh /opt/elastic" in line for line in stages()[f"build-{target}"])


def test_the_base_is_an_argument_and_pinned():
    base = re.search(r"^ARG BASE=(\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert base is not None and re.search(r":\d+\.\d+\.\d+", base[1])
    assert all(line[0].startswith(("FROM ${BASE} ", "FROM source ", "FROM runtime ")) for line in stages().values())


def test_what_is_copied_is_let_into_the_context():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [words for line in DOCKERFILE.splitlines() if line.startswith("COPY ") for words in [line.split()[1:-1]]]
    names = {name for words in copied for name in words if not name.startswith("-") and not name.startswith("/")}
    assert {f"!{name}" for name in names} == {line for line in ignored if line.startswith("!")}


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S)
def test_the_install_steps_work_in_a_clean_environment(tmp_path: Path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("requirements", "docker", "examples", "elastic"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:{environment['PATH']}"
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    done = subprocess.run(
        ["sh", "docker/install.sh", str(tmp_path / "env")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "version" in done.stdout.splitlines()[-1]
