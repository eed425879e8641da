"""The manifests that are checked in: written from the settings beside them, the same by Kustomize, and valid."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from ray.scripts.scripts import cli as ray_cli

from elastic.cli import cli
from elastic.knobs import RunConfig
from elastic.kube import builtin, validate
from elastic.kube.manifests import documents, render
from elastic.settings import KubeRay
from tests.cluster.standin_pods import (
    environment_of,
    hook_of,
    pod_of,
    ray_container,
    started_with,
)
from tests.effects.kube_parts import ROOT, VARIANTS, definitions, variant_of

sys.path.insert(0, str(ROOT / "tools"))
from kuberay import folders, objects_of  # noqa: E402

KUBERAY = ROOT / "kuberay"
FOLDERS = [KUBERAY / "base", *sorted((KUBERAY / "overlays").iterdir())]
TIMEOUT_S = 60.0


def ids(folder: Path) -> str:
    return folder.name


def monitoring(name: str) -> Any:
    return yaml.safe_load((KUBERAY / "monitoring" / name).read_text())


def test_the_rules_of_the_operator_are_those_that_are_tested():
    (name, written), *others = folders(KUBERAY)[KUBERAY / "monitoring"].items()
    assert (KUBERAY / "monitoring" / name).read_text() == written, "python tools/kuberay.py --write kuberay"
    assert monitoring(name)["spec"] == monitoring("elastic-rules.yaml") and not others
    assert (monitoring(name)["apiVersion"], monitoring(name)["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
def test_the_monitor_scrapes_ports_that_pods_have(folder):
    """Ports of the supervisor's pod are the operator's own, which has the same name for it."""
    (endpoint,) = monitoring("pod-monitor.yaml")["spec"]["podMetricsEndpoints"]
    found = objects_of(folder)
    cluster = found["rayjob"]["spec"]["rayClusterSpec"] if "rayjob" in found else found["raycluster"]["spec"]
    for group in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][1]):
        ports = group["template"]["spec"]["containers"][0]["ports"]
        assert [port["containerPort"] for port in ports if port["name"] == endpoint["port"]] == [8080]
    assert monitoring("pod-monitor.yaml")["spec"]["selector"] == {"matchLabels": {"ray.io/is-ray-node": "yes"}}


def test_the_folders_are_what_they_are_called():
    assert [folder.name for folder in FOLDERS] == ["base", "gke-a3", "gke-spot", "interactive", "local"]
    kinds = {one["kind"] for folder in FOLDERS for one in objects_of(folder).values()}
    assert {"RayJob", "RayCluster"} <= kinds


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
def test_the_files_are_what_the_settings_say(folder):
    written = folders(KUBERAY)[folder]
    there = {path.name: path.read_text() for path in folder.glob("*.yaml") if path.name != "run.yaml"}
    assert there == written, "python tools/kuberay.py --write kuberay"


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
def test_kustomize_makes_what_render_prints(folder):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not there")
    made = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert made.returncode == 0, made.stderr
    assert by_name(yaml.safe_load_all(made.stdout)) == by_name(objects_of(folder).values())


def by_name(objects: Any) -> dict[tuple[str, str], Any]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
def test_all_objects_are_valid(folder, tmp_path):
    pytest.importorskip("kubernetes")
    (tmp_path / "all.yaml").write_text(documents(objects_of(folder)))
    report = validate.validate(tmp_path / "all.yaml", definitions())
    assert report.problems == () and report.objects == len(objects_of(folder))


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_what_users_may_ask_for_instead_is_valid_too(folder, variant, tmp_path):
    pytest.importorskip("kubernetes")
    made = variant_of(folder, variant)
    (tmp_path / "all.yaml").write_text(documents(made))
    report = validate.validate(tmp_path / "all.yaml", definitions())
    assert report.problems == () and report.objects == len(made)


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
def test_what_the_operator_makes_of_the_groups_is_what_ray_and_elastic_understand(folder):
    pytest.importorskip("kubernetes")
    found = objects_of(folder)
    cluster = found["rayjob"]["spec"]["rayClusterSpec"] if "rayjob" in found else found["raycluster"]["spec"]
    for group in cluster["workerGroupSpecs"]:
        pod = pod_of("c", group, "c-1", "10.0.0.1:6379")
        options = started_with(pod)
        words = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
        read = ray_cli.commands["start"].make_context("start", words).params
        limits = ray_container(pod["spec"])["resources"]["limits"]
        assert read["num_gpus"] == (int(limits["nvidia.com/gpu"]) if "nvidia.com/gpu" in limits else None)
        assert read["num_cpus"] >= 1 and read["memory"] >= 2**30 and read["block"]
        assert read["labels"] == ",".join(f"{name}={value}" for name, value in group["labels"].items())
    hook, environment = hook_of(pod), environment_of(pod, "10.0.0.2")
    assert hook[:2] == ["/bin/sh", "-c"]
    line = hook[2].removesuffix(" || true").replace("$POD_IP", environment["POD_IP"])
    bound, _, _, _, program, verb, *words = shlex.split(line)
    said = cli.commands[verb].make_context(verb, words).params
    grace_s = pod["spec"]["terminationGracePeriodSeconds"]
    assert (bound, program) == ("timeout", "elastic") and said["node"] == "10.0.0.2" and 0 < said["deadline"] < grace_s
    assert 0 < int(environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) < grace_s


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
def test_the_driver_may_write_where_it_keeps_its_journal(folder):
    """Containers run as nobody special, in a folder of the image that belongs to root."""
    found = objects_of(folder)
    cluster = found["rayjob"]["spec"]["rayClusterSpec"] if "rayjob" in found else found["raycluster"]["spec"]
    pod = cluster["headGroupSpec"]["template"]["spec"]
    inner = yaml.safe_load(found["config"]["data"]["run.yaml"])
    is_ours = {one["name"] for one in pod["volumes"] if "emptyDir" in one}
    mounts = [one["mountPath"] for one in ray_container(pod)["volumeMounts"] if one["name"] in is_ours]
    begins_in = ray_container(pod).get("workingDir", "/app")  # of a job that brings no folder of its own
    run_dir = PurePosixPath(begins_in, inner.get("run_dir", "runs/x"))
    assert ("run_dir" in inner) is ("rayjob" in found), "jobs on one cluster must not share a journal"
    assert run_dir.is_absolute() and any(run_dir.is_relative_to(mount) for mount in mounts)


def paths(section: Any) -> Iterator[str]:
    for one in section.values() if isinstance(section, dict) else section if isinstance(section, list) else ():
        yield from [one] if isinstance(one, str) and one.startswith("/") else paths(one)


@pytest.mark.parametrize("folder", FOLDERS, ids=ids)
@pytest.mark.parametrize("variant", ["", *VARIANTS])
def test_every_folder_that_the_run_is_told_of_is_mounted(folder, variant):
    found = variant_of(folder, variant) if variant else objects_of(folder)
    cluster = found["rayjob"]["spec"]["rayClusterSpec"] if "rayjob" in found else found["raycluster"]["spec"]
    pods = [one["template"]["spec"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    mounts = {mount["mountPath"] for pod in pods for mount in ray_container(pod)["volumeMounts"]} | {"/dev/shm"}  # noqa: S108
    told = list(paths(yaml.safe_load(found["config"]["data"]["run.yaml"])))
    assert [one for one in told if not any(PurePosixPath(one).is_relative_to(mount) for mount in mounts)] == []


@pytest.mark.parametrize(
    ("entrypoint", "printed"),
    [
        ("echo plain  words --lr=1e-3 a/b.py:f", "plain words --lr=1e-3 a/b.py:f"),
        ("echo 'two  words' \"it's\"", "two  words it's"),
        ("echo $WHERE", "head"),
        ("echo '$WHERE'", "$WHERE"),
        ("echo first && echo $WHERE; echo last | cat", "first\nhead\nlast"),
        ("echo one \\\n  two\necho $WHERE", "one two\nhead"),
        ("WHERE=here sh -c 'echo $WHERE'\n", "here"),
        ("echo * # which ones", "*"),
    ],
)
def test_the_entrypoint_is_read_by_the_shell_of_the_head_alone(tmp_path, entrypoint, printed):
    """The operator puts it into a line that bash reads on the submitter; Ray quotes the words that come of it."""
    config = RunConfig(name="llama", kuberay=KubeRay(entrypoint=entrypoint, gpus_per_node=0))
    job = render(config, "1")["rayjob"]["spec"]
    (tmp_path / "ray").write_text(f"#!{sys.executable}\nimport shlex, sys\nprint(shlex.join(sys.argv[4:]))\n")
    (tmp_path / "ray").chmod(0o755)
    line = f"if ! false ; then ray job submit -- {job['entrypoint'].strip()} ; fi ; true"
    empty = tmp_path / "empty"
    empty.mkdir()

    def ran(*command: str, where: str) -> str:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "WHERE": where}
        done = subprocess.run(
            command, env=environment, cwd=empty, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True
        )
        return done.stdout.decode().strip()

    submitted = ran("/bin/bash", "-ce", line, where="submitter")
    assert ran("/bin/sh", "-c", submitted, where="head") == printed, submitted


def test_a_hook_that_hangs_is_ended(tmp_path):
    """It speaks to a head that accepts and answers nothing, and does not heed SIGTERM."""
    (tmp_path / "elastic").write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n")
    (tmp_path / "elastic").chmod(0o755)
    found = objects_of(KUBERAY / "overlays" / "gke-spot")["rayjob"]["spec"]["rayClusterSpec"]["workerGroupSpecs"][1]
    shell, option, line = hook_of({"spec": found["template"]["spec"]})
    shorter = re.sub(r"^timeout -k \d+ \d+ ", "timeout -k 0.2 0.2 ", line)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "POD_IP": "10.0.0.1"}
    done = subprocess.run([shell, option, shorter], env=environment, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0 and shorter != line


def changed(tmp_path: Path, old: str, new: str) -> validate.Report:
    text = documents(objects_of(KUBERAY / "overlays" / "gke-a3"))
    assert text.count(old) >= 1, old
    (tmp_path / "x.yaml").write_text(text.replace(old, new, 1))
    return validate.validate(tmp_path / "x.yaml", definitions())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("preStop:", "preSotp:", "lifecycle.preSotp: there is no such field"),
        ("minReplicas: 6", "minReplicas: '6'", "minReplicas: '6' must be an integer"),
        ("ttlSecondsAfterFinished: 600", "managedBy: me", "managedBy field value must be"),
        ("backend: rocksdb", "backend: files", "'files' must be one of 'redis', 'rocksdb'"),
        ("containerPort: 8265", "containerPort: '8265'", "ports[1].containerPort: '8265' must be an integer"),
        ("rayVersion: 2.60.0", "rayVersion: 2.40.0", "authOptions.mode token needs 2.52 or later"),
        ("minAvailable: 6", "minAvailabel: 6", "spec.minAvailabel: there is no such field"),
        ("verbs:\n  - get\n", "verb:\n  - get\n", "rules[0].verb: there is no such field"),
        ("roleRef:", "roleReference:", "roleReference: there is no such field"),
        ("value: 1000", "value: high", "'high' must be int"),
        ("kind: PriorityClass", "kind: PriorityClasses", "scheduling.k8s.io/v1 PriorityClasses is not defined"),
    ],
)
def test_a_mistake_is_found(tmp_path, old, new, said):
    pytest.importorskip("kubernetes")
    pytest.importorskip("cel")
    assert any(said in problem for problem in changed(tmp_path, old, new).problems)


@pytest.mark.parametrize(
    ("api", "kind", "is_known"),
    [
        ("v1", "ConfigMap", True),
        ("v1", "Namespace", True),
        ("v1", "Event", True),
        ("events.k8s.io/v1", "Event", True),
        ("apps/v1", "Deployment", True),
        ("networking.k8s.io/v1", "NetworkPolicy", True),
        ("storage.k8s.io/v1", "CSIDriver", True),
        ("policy/v1", "PodDisruptionBudget", True),
        ("v1", "PodDisruptionBudget", False),
        ("v1", "ClusterRole", False),
        ("rbac.authorization.k8s.io/v1", "PriorityClass", False),
        ("bogus.io/v1", "Pod", False),
        ("apps/v1", "PodSpec", False),
        ("", "ConfigMap", False),
    ],
)
def test_a_kind_is_known_in_its_own_group_only(api, kind, is_known):
    pytest.importorskip("kubernetes")
    assert builtin.is_known({"apiVersion": api, "kind": kind}) is is_known


def test_a_priority_that_only_the_system_may_have_is_found():
    pytest.importorskip("kubernetes")
    one = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "p"}, "value": 10**9}
    assert list(builtin.problems(one)) == []
    (found,) = builtin.problems(one | {"value": 10**9 + 1})
    assert str(found) == "value: 1000000001 must be at most 1000000000"


def test_rules_in_cel_that_nobody_can_judge_are_named(tmp_path, monkeypatch):
    pytest.importorskip("kubernetes")
    monkeypatch.setitem(sys.modules, "cel", None)  # as if it were not installed
    report = changed(tmp_path, "ttlSecondsAfterFinished: 600", "managedBy: me")
    assert report.problems == () or all("managedBy" not in one for one in report.problems)
    assert any("managedBy" in rule for rule in report.unjudged)
