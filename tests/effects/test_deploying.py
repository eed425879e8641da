"""The deploy guide's commands can be parsed, those of `elastic` exist; the image installs what the tests pin."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from ray.scripts.scripts import cli as ray_cli

from elastic.cli import cli
from elastic.errors import SettingError
from elastic.kube import validate as judge
from elastic.kube.manifests import render
from tests.effects.kube_parts import ROOT, api_server, crds, definitions
from tests.pure.test_kuberay_manifests import CONFIG

GUIDE = (ROOT / "docs" / "deploying.md").read_text()
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
IMAGE_FOLDER, LOCK = "/opt/elastic", "requirements/test.lock"
RUN = "training"
INSTALL_S, TOOL_S = 1500.0, 120.0
# Of programs that are not to be had where tests run, as their manuals have them.
OPTIONS = {
    "docker build": {"--build-arg", "--target", "-t"},
    "docker push": set(),
    "helm install": {"--create-namespace", "--namespace", "--set"},
    "pip install": set(),
}


def commands() -> Iterator[str]:
    """Each by itself: lines that go on are joined, loops and assignments taken apart."""
    for block in BLOCKS:
        for line in block.replace("\\\n", " ").splitlines():
            yield from re.findall(r"\$\((\w(?:[^|()]|\([^()]*\))*)", line)
            if not line.startswith(("export ", "for ", "done")):
                outside, _, inside = line.strip().removesuffix("&").strip().partition(" -- ")
                is_exec = outside.startswith("kubectl exec ")
                yield from (outside, inside) if is_exec else (line.strip().removesuffix("&").strip(),)


COMMANDS = [line for line in commands() if line]


def of(*programs: str) -> list[str]:
    return [line for line in COMMANDS if line.split()[0] in programs]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n", 1)[0][:40])
def test_a_block_is_what_a_shell_can_read(block):
    subprocess.run(["bash", "-n"], input=block, text=True, check=True, timeout=30)


def options(words: list[str]) -> set[str]:
    ours = words[: words.index("--")] if "--" in words else words
    return {word.partition("=")[0] for word in ours if word.startswith("-")}


@pytest.mark.parametrize("line", of("elastic", "ray"))
def test_a_command_of_elastic_and_of_ray_has_these_options(line):
    program, *words = shlex.split(line)
    command: click.Command = cli if program == "elastic" else ray_cli
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}
    assert options(words) <= known


@pytest.mark.parametrize("line", of("docker", "helm", "pip"))
def test_a_command_of_another_program_has_options_that_its_manual_has(line):
    words = shlex.split(line)
    assert options(words) <= OPTIONS[" ".join(words[:2])]


@pytest.mark.parametrize("line", of("kubectl"))
def test_a_command_of_kubectl_is_one_that_it_knows(line):
    """With --help it says how a command is used, but not before it has read all of it."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not there")
    done = subprocess.run([*shlex.split(line), "--help"], capture_output=True, text=True, timeout=TOOL_S, check=False)
    assert done.returncode == 0 and "Usage:\n  kubectl " + line.split()[1] in done.stdout, done.stderr


@pytest.mark.parametrize("line", of("kubectl"))
def test_pods_of_other_runs_are_left_alone(line):
    """All runs of a namespace have the operator's labels."""
    is_of_all = " pod " in line and re.search(r" (-l|--selector)[ =]", line) is not None
    assert not is_of_all or f"app.kubernetes.io/name={RUN}" in line
    assert " --all" not in line


def test_kubectl_would_say_so():
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not there")
    wrong = subprocess.run(["kubectl", "get", "nodes", "--frobnicate", "--help"], capture_output=True, timeout=TOOL_S)
    assert wrong.returncode != 0 and b"frobnicate" in wrong.stderr


@pytest.mark.slow
def test_the_commands_of_gcloud_are_some_that_it_knows(tmp_path):
    """It compares commands with the tree of those it has, and calls nobody."""
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not there")
    lines = [*of("gcloud"), "gcloud container clusters create x --frobnicate"]
    (tmp_path / "commands.json").write_text(json.dumps([{"command_string": plain(line)} for line in lines]))
    done = subprocess.run(
        ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={tmp_path / 'commands.json'}"],
        env=os.environ | {"CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
        capture_output=True,
        text=True,
        timeout=TOOL_S,
        check=False,
    )
    found = {one["command_string"]: one for one in json.loads(done.stdout)}
    assert len(found) == len(lines), done.stderr
    assert [one for line, one in found.items() if not one["success"] and "frobnicate" not in line] == []
    assert not found[lines[-1]]["success"]


def plain(line: str) -> str:
    """With values in place of variables."""
    return " ".join(shlex.split(re.sub(r"\$(\w+|\{[^}]*\})", "x", line)))


def test_programs_are_those_that_the_guide_is_about():
    first = {shlex.split(line)[0] for line in COMMANDS}
    assert first == {
        "cp",
        "docker",
        "elastic",
        "gcloud",
        "helm",
        "kubectl",
        "pip",
        "make",
        "python",
        "ray",
        "sed",
        "tail",
    }


def test_a_variable_is_set_before_it_is_used():
    known: set[str] = set()
    for line in "\n".join(BLOCKS).replace("\\\n", " ").splitlines():
        if line.startswith("export "):
            known |= set(re.findall(r"(?:^export| )\s*(\w+)=", re.sub(r"\"\$\(.*?\)\"", "x", line)))
        known |= set(re.findall(r"^for (\w+) in ", line))
        used = set(re.findall(r"\$\{?([A-Za-z_]\w*)", line))
        assert used <= known, line


# --- from the first page to manifests ---------------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of somebody who has just made one, and has no cluster."""
    pytest.importorskip("kubernetes")
    shutil.copytree(ROOT / "kuberay", tmp_path / "kuberay")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path


def first_page() -> tuple[str, str]:
    """Its commands; the one before them installs, which another test does."""
    (block,) = re.findall(r"^```\n([^`]*elastic kuberay validate[^`]*)^```", README, flags=re.MULTILINE)
    install, render, validate = block.splitlines()
    assert install == "pip install '.[kubernetes]'"
    return render, validate


def run(line: str, *more: str) -> str:
    program, *words = shlex.split(line)
    assert program == "elastic"
    return CliRunner().invoke(cli, [*words, *more], catch_exceptions=False, standalone_mode=False).output


def test_three_commands_lead_to_a_valid_job(clone, monkeypatch):
    render, validate = first_page()
    assert "k8s/rayjob.yaml" in run(render)
    with pytest.raises(SettingError, match=r"--crds: ray-operator/config/crd/bases"):
        run(validate)
    assert "`--crds FOLDER`" in README and "`ray-operator/config/crd/bases`" in README
    folder = crds()
    monkeypatch.setattr(judge, "from_directory", lambda _: definitions())  # which are large, and read once
    assert "9 objects are valid" in run(validate, "--crds", str(folder))


def test_overlays_are_written_for_ones_own_bucket_and_project(clone):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not there")
    (block,) = [one for one in BLOCKS if "apply -k" in one]
    shutil.copytree(ROOT / "tools", clone / "tools")
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-ec", block.replace("kubectl apply -k", "kubectl kustomize")],
        env=os.environ | environment | {"BUCKET": "b7", "PROJECT": "p7", "NAMESPACE": "n7", "REGISTRY": "r7"},
        capture_output=True,
        text=True,
        timeout=TOOL_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bucketName: b7" in done.stdout and "training@p7.iam.gserviceaccount.com" in done.stdout
    assert "BUCKET" not in done.stdout and "PROJECT" not in done.stdout
    namespaces = {one["metadata"].get("namespace") for one in yaml.safe_load_all(done.stdout)}
    assert namespaces == {"n7"} and "image: r7/training:0.1.0" in done.stdout


def rendered(clone: Path, *start: str) -> dict[str, Any]:
    """What the commands of a block, but those that speak to a cluster, leave in `k8s`; it begins so."""
    (block,) = [one for one in BLOCKS if one.startswith(start)]
    ours = [
        line
        for line in block.replace("\\\n", " ").splitlines()
        if not line.startswith(("kubectl ", "elastic kuberay v"))
    ]
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    given = {"BUCKET": "b7", "PROJECT": "p7", "NAMESPACE": "n7", "REGISTRY": "r7"}
    subprocess.run(["bash", "-ec", "\n".join(ours)], env=os.environ | environment | given, timeout=TOOL_S, check=True)
    return {path.stem: yaml.safe_load(path.read_text()) for path in (clone / "k8s").glob("*.yaml")}


def test_a_cluster_to_work_on_has_the_image_of_the_guide_and_the_file_that_jobs_are_submitted_with(clone):
    (block,) = [one for one in BLOCKS if "elastic submit" in one]
    ours = [line for line in block.replace("\\\n", " ").splitlines() if line.startswith(("sed ", "elastic kuberay "))]
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    given = {"BUCKET": "b7", "NAMESPACE": "n7", "REGISTRY": "r7", "ACCOUNT": "a7"}
    subprocess.run(["bash", "-ec", "\n".join(ours)], env=os.environ | environment | given, timeout=TOOL_S, check=True)
    objects = {path.stem: yaml.safe_load(path.read_text()) for path in (clone / "cluster").glob("*.yaml")}
    made = objects["raycluster"]
    pods = [made["spec"]["headGroupSpec"], *made["spec"]["workerGroupSpecs"]]
    images = {one["image"] for pod in pods for one in pod["template"]["spec"]["containers"]}
    assert "r7/training:0.1.0" in images and made["metadata"]["namespace"] == "n7"
    assert "--config cluster.yaml" in block
    name = made["metadata"]["name"]
    assert f"service/{name}-head-svc" in block and f"get secret {name} " in block
    assert not any(one["metadata"]["name"].startswith(RUN) for one in objects.values()), "they are the job's"
    accounts = [objects[one]["metadata"] for one in ("head-account", "worker-account")]
    assert {one["annotations"]["iam.gke.io/gcp-service-account"] for one in accounts} == {"a7"}
    assert {one["name"] for one in accounts} < accounts_of_the_bucket()


def accounts_of_the_bucket() -> set[str]:
    """In the cluster, those that may act as the account that got it."""
    (loop,) = re.findall(r"for account in (.*?); do", GUIDE)
    assert "[$NAMESPACE/$account]" in GUIDE
    return set(loop.split())


def test_what_the_guide_renders_acts_as_its_service_account_and_hears_of_machines(clone):
    objects = rendered(clone, "cp ")
    account = {"iam.gke.io/gcp-service-account": "training@p7.iam.gserviceaccount.com"}
    names = {objects[one]["metadata"]["name"] for one in ("head-account", "worker-account")}
    for one in ("head-account", "worker-account"):
        assert objects[one]["metadata"]["annotations"] == account
    assert names < accounts_of_the_bucket()
    assert "node-role" in objects and not re.search("BUCKET|PROJECT", str(objects))
    assert {one["metadata"].get("namespace", "n7") for one in objects.values()} == {"n7"}
    assert objects["rayjob"]["metadata"]["name"] == RUN


def test_an_upgrade_changes_the_image_and_nothing_else(clone):
    before, after = rendered(clone, "cp "), rendered(clone, "elastic kuberay render --config run.yaml")
    assert str(before).replace("r7/training:0.1.0", "r7/training:0.1.1") == str(after) != str(before)


@pytest.fixture
def server() -> Any:
    """An API server that is not started yet; it lies in the home of who tests, which `clone` takes another for."""
    module = api_server("full")
    return module.KubeApi(module.default_dest(), crds=sorted(crds().glob("*.yaml")))


@pytest.mark.slow
def test_three_commands_lead_to_a_valid_job_by_a_clusters_own_definitions(server, clone):
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with server as kube:
        done = subprocess.run(
            ["bash", "-ec", "\n".join(first_page())],
            env=os.environ | environment | {"KUBECONFIG": kube.kubeconfig},
            capture_output=True,
            text=True,
            timeout=TOOL_S,
            check=False,
        )
    assert done.returncode == 0 and "9 objects are valid" in done.stdout, done.stdout + done.stderr


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


def environment_of(target: str) -> dict[str, str]:
    """What the lines ENV of a stage, and of the one that it is made from, leave; without those of the base."""
    found: dict[str, str] = {"PATH": "/usr/bin"}
    for line in [*stages()["runtime"], *stages()[target]]:
        for name, value in (one.split("=", 1) for one in line.split()[1:] if line.startswith("ENV ")):
            found[name] = value.replace("${PATH}", found["PATH"])
    return found


def test_the_driver_that_gke_mounts_is_found_and_hides_no_program_of_the_image():
    gpu, cpu = environment_of("gpu"), environment_of("cpu")
    assert gpu["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64" and "LD_LIBRARY_PATH" not in cpu
    assert gpu["PATH"] == f"{cpu['PATH']}:/usr/local/nvidia/bin" and cpu["PATH"] == f"{IMAGE_FOLDER}/bin:/usr/bin"


def test_the_base_is_an_argument_and_pinned():
    base = re.search(r"^ARG BASE=(\S+)$", DOCKERFILE, flags=re.MULTILINE)
    assert base is not None and re.search(r":\d+\.\d+\.\d+", base[1])
    assert all(line[0].startswith(("FROM ${BASE} ", "FROM source ", "FROM runtime ")) for line in stages().values())


def test_what_is_copied_is_let_into_the_context():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [words for line in DOCKERFILE.splitlines() if line.startswith("COPY ") for words in [line.split()[1:-1]]]
    names = {name for words in copied for name in words if not name.startswith("-") and not name.startswith("/")}
    assert {f"!{name}" for name in names} == {line for line in ignored if line.startswith("!")}


def folders() -> dict[str, str]:
    """What the image's context has, and where it lies in the folder that is built in."""
    lines = [line.split()[1:] for line in stages()["source"] if line.startswith("COPY ")]
    return {name: target.removeprefix("./") or name for *names, target in lines for name in names}


def build_line(target: str, folder: Path) -> str:
    """The one RUN line of a build, installing into a folder of ours; a shell reads its arguments as variables."""
    (line,) = [line.removeprefix("RUN ") for line in stages()[f"build-{target}"] if line.startswith("RUN ")]
    assert line.count(IMAGE_FOLDER) == 1
    assert f'ARG {target.upper()}_INDEX=""' in stages()[f"build-{target}"]
    return line.replace(IMAGE_FOLDER, str(folder))


# Pretends to be python3, pip and what pip installs; notes how each was called.
STANDIN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/pip" && cp "$0" "$3/bin/elastic" ;;
  *"$FAILS"*) exit 3 ;;
esac
"""


def install(tmp_path: Path, target: str, index: str = "", fails: str = "nothing") -> tuple[int, list[str], str]:
    """Exit status of an install line, what it called, with a stand-in for all that takes minutes, and what it said."""
    line = build_line(target, tmp_path / "env")
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / "python3").write_text(STANDIN)
    (tmp_path / "bin" / "python3").chmod(0o755)
    calls = tmp_path / "calls"
    calls.write_text("")
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "CALLS": str(calls), "FAILS": fails}
    environment |= {f"{target.upper()}_INDEX": index}
    done = subprocess.run(
        ["sh", "-c", line], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TOOL_S, check=False
    )
    return done.returncode, calls.read_text().splitlines(), done.stderr


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_a_build_calls_pip_with_the_lock_and_takes_torch_from_its_own_index(target, tmp_path):
    env = tmp_path / "env"
    venv, ours, last = f"python3 -m venv {env}", f"pip install --no-cache-dir --constraint {LOCK} .[kubernetes]", []
    torch = f"pip install --no-cache-dir --no-deps --index-url https://x --constraint {LOCK} torch"
    assert install(tmp_path, target, "https://x") == (0, [venv, torch, ours, "elastic --version"], "")
    for fails, last in [("torch", torch), ("kubernetes", ours), ("--version", "elastic --version")]:
        status, calls, _ = install(tmp_path, target, "https://x", fails)
        assert status == 3 and calls[-1] == last, "the build ends where a step fails"


def test_an_image_without_an_index_is_for_gpus(tmp_path):
    """pip's own index has torch for CUDA, which an image for CPUs must not get unasked."""
    venv, ours = f"python3 -m venv {tmp_path / 'env'}", f"pip install --no-cache-dir --constraint {LOCK} .[kubernetes]"
    assert install(tmp_path, "gpu") == (0, [venv, ours, "elastic --version"], "")
    status, calls, said = install(tmp_path, "cpu")
    assert status != 0 and calls == [] and "give --build-arg CPU_INDEX=<index of the CPU wheels" in said


def test_what_the_image_names_is_there():
    assert (ROOT / LOCK).is_file() and folders()["docker"] == "docker" and folders()["requirements"] == "requirements"
    assert all((ROOT / name).exists() for name in folders())
    assert environment_of("gpu")["PATH"].startswith(f"{IMAGE_FOLDER}/bin:"), "what is installed is found"
    assert PROJECT["project"]["scripts"]["elastic"] == "elastic.cli:main"
    (user,) = re.findall(r"useradd --uid (\d+) ", DOCKERFILE)
    pods = [render(CONFIG, "1")["rayjob"]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]]
    assert {str(pod["securityContext"]["runAsUser"]) for pod in pods} == {user}
    assert "USER " + user in stages()["gpu"]
    entrypoints = [path.read_text() for path in (ROOT / "kuberay").rglob("run.yaml")]
    programs = {one for text in entrypoints for one in re.findall(r"entrypoint: python /app/(examples/\S+)", text)}
    assert programs and all((ROOT / one).is_file() for one in programs)
    assert "COPY examples /app/examples" in stages()["runtime"]


def test_the_program_that_the_guide_starts_is_in_the_image_that_it_names(clone, monkeypatch):
    """The image of this repository has none but the examples; another one, made from it, has the user's."""
    monkeypatch.setenv("REGISTRY", "r7")
    builds = [shlex.split(os.path.expandvars(line)) for line in of("docker") if line.startswith("docker build")]
    stock, ours = (line[line.index("-t") + 1] for line in builds)
    assert f"BASE={stock}" in builds[1]
    (dockerfile,) = re.findall(r"^```dockerfile\n(.*?)^```", GUIDE, flags=re.MULTILINE | re.DOTALL)
    base, made_from, copy = dockerfile.splitlines()
    assert (base, made_from) == ("ARG BASE", "FROM ${BASE}") and copy.startswith("COPY ")
    *copied, target = copy.split()[1:]
    job = rendered(clone, "cp ")["rayjob"]["spec"]
    pods = [job["rayClusterSpec"]["headGroupSpec"], *job["rayClusterSpec"]["workerGroupSpecs"]]
    assert {pod["template"]["spec"]["containers"][0]["image"] for pod in pods} == {ours}
    program = job["entrypoint"].removeprefix("python ")
    assert program in {target + name for name in copied}
    assert {f"docker push {image}" for image in (stock, ours)} <= {
        " ".join(shlex.split(os.path.expandvars(one))) for one in of("docker")
    }


def test_the_lock_has_all_that_the_image_installs():
    """What is asked for is followed through the packages that are installed here, as pip would with a CPU build."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / LOCK).read_text().splitlines()]
    pins = {canonicalize_name(one.name): one for one in map(Requirement, filter(None, lines))}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [Requirement(one) for one in [*PROJECT["project"]["dependencies"], *extras["kubernetes"]]]
    seen: set[tuple[str, str]] = set()
    while wanted:
        one = wanted.pop()
        name = canonicalize_name(one.name)
        assert name in pins, f"{one} is not pinned"
        (pin,) = pins[name].specifier
        assert one.specifier.contains(pin.version, prereleases=True), f"{one}, but {pins[name]}"
        for extra in {"", *one.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            found = [Requirement(text) for text in metadata.distribution(name).requires or ()]
            wanted += [each for each in found if each.marker is None or each.marker.evaluate({"extra": extra})]
    assert {("ray", "train"), ("torch", ""), ("kubernetes", "")} <= seen


def index_of_torch_alone(folder: Path) -> str:
    """An index that has the wheel which pip would take here, and nothing that torch asks for."""
    wheels = folder / "torch"
    fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--constraint", LOCK, "--dest", str(wheels), "torch"]
    subprocess.run(fetch, cwd=ROOT, timeout=INSTALL_S, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    (wheels / "index.html").write_text(f'<a href="{quote(wheel.name)}">{wheel.name}</a>')
    return folder.as_uri()


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S)
@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_the_install_steps_work_in_a_clean_environment(tmp_path: Path, target):
    for name, place in folders().items():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path / place)
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment["PATH"] = f"{Path(sys.base_prefix) / 'bin'}:{environment['PATH']}"
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    if target == "cpu":
        environment["CPU_INDEX"] = index_of_torch_alone(tmp_path / "index")
    done = subprocess.run(
        ["sh", "-c", build_line(target, tmp_path / "env")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "version" in done.stdout.splitlines()[-1]
