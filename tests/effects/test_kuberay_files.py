"""The manifests that are checked in: written from the settings beside them, the same by Kustomize, and valid."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic.kube import validate
from elastic.kube.manifests import documents
from tests.effects.kube_parts import ROOT, definitions

sys.path.insert(0, str(ROOT / "tools"))
from kuberay import folders, objects_of  # noqa: E402

KUBERAY = ROOT / "kuberay"
FOLDERS = [KUBERAY / "base", *sorted((KUBERAY / "overlays").iterdir())]
TIMEOUT_S = 60.0


def ids(folder: Path) -> str:
    return folder.name


def test_the_folders_are_what_they_are_called():
    assert [folder.name for folder in FOLDERS] == ["base", "gke-a3", "gke-spot", "local"]


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


def test_rules_in_cel_that_nobody_can_judge_are_named(tmp_path, monkeypatch):
    pytest.importorskip("kubernetes")
    monkeypatch.setitem(sys.modules, "cel", None)  # as if it were not installed
    report = changed(tmp_path, "ttlSecondsAfterFinished: 600", "managedBy: me")
    assert report.problems == () or all("managedBy" not in one for one in report.problems)
    assert any("managedBy" in rule for rule in report.unjudged)
