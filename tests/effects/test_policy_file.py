"""Effect. Policies from files: found, refused with the reason, and at home in a process that has no such file."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from ray import cloudpickle

from elastic.actors.policy_file import load_policy
from elastic.control.values import IncidentClass
from elastic.errors import SettingError
from elastic.policies import Kind, policy_of
from elastic.policies.table import incident_of, view_of

SOURCE = """
from elastic.policies import Kind, Remediation

LIMIT = 3

def patient(incident, view):
    return Remediation(kind=Kind.WAIT, reason=f"{view.survivors} of {LIMIT}")

class Patient:
    def event_policy(self, incident, view):
        return patient(incident, view)
"""
ROOT = Path(__file__).parent.parent.parent
LOST, VIEW = incident_of(IncidentClass.WORKER_LOST), view_of(3, 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", ["patient", "Patient"])
def test_a_function_or_a_class_is_found_in_a_file(file, name):
    assert policy_of(load_policy(f"{file}:{name}"))(LOST, VIEW).reason == "3 of 3"


def test_a_module_will_do_too():
    assert policy_of(load_policy("elastic.policies:HotSwapFirst"))(LOST, VIEW).kind is Kind.SWAP


ELSEWHERE = """
import pickle, sys
from elastic.control.values import IncidentClass
from elastic.policies.table import incident_of, view_of
policy = pickle.load(sys.stdin.buffer)
print(policy(incident_of(IncidentClass.WORKER_LOST), view_of(3, 1)).reason)
"""


def test_what_lies_beside_the_file_travels_with_it(tmp_path, monkeypatch):
    """As a driver's `python train.py` finds it, and no worker would."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "nets_beside").mkdir()
    (tmp_path / "nets_beside" / "__init__.py").write_text("from nets_beside.words import WORD\n")
    (tmp_path / "nets_beside" / "words.py").write_text("WORD = 'beside'\ndef said():\n    return WORD\n")
    path = tmp_path / "mine.py"
    path.write_text(
        "import nets_beside\nfrom nets_beside.words import said\nfrom elastic.policies import Kind, Remediation\n"
        "def policy(incident, view):\n"
        "    return Remediation(kind=Kind.WAIT, reason=f'{said()} {nets_beside.WORD}')\n"
    )
    sent = cloudpickle.dumps(policy_of(load_policy(f"{path}:policy")))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=sent,
        capture_output=True,
        timeout=60,
        check=False,
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": path},
    )
    for name in [name for name in sys.modules if name.startswith("nets_beside")]:
        cloudpickle.unregister_pickle_by_value(sys.modules.pop(name))
    assert done.stdout == b"beside beside\n", done.stderr.decode()


@pytest.mark.parametrize("name", ["patient", "Patient"])
def test_it_travels_to_a_process_that_does_not_have_the_file(file, name):
    sent = cloudpickle.dumps(policy_of(load_policy(f"{file}:{name}")))
    file.unlink()
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=sent, capture_output=True, timeout=60, check=False)
    assert done.stdout.decode().strip() == "3 of 3", done.stderr.decode()
    assert pickle.loads(sent)(LOST, VIEW).kind is Kind.WAIT


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("patient", "must be file.py:function"),
        ("mine.py:", "must be file.py:function"),
        ("mine.py:a b", "must be file.py:function"),
        ("nowhere.py:patient", "there is no such file"),
        ("no.such.module:patient", "cannot be imported: ModuleNotFoundError: No module named"),
    ],
)
def test_a_place_that_holds_no_policy_is_refused(place, why):
    with pytest.raises(SettingError, match=why):
        load_policy(place)


def test_a_file_without_that_name_is_refused(file):
    with pytest.raises(SettingError, match="has no impatient"):
        load_policy(f"{file}:impatient")


@pytest.mark.parametrize(("text", "error"), [("1 / 0", "ZeroDivisionError"), ("raise SystemExit(0)", "SystemExit")])
def test_a_file_that_fails_is_refused_with_its_error(tmp_path, monkeypatch, text, error):
    """Also one that ends its process, as a script without a guard does at its end."""
    (tmp_path / "bad_one.py").write_text(text)
    with pytest.raises(SettingError, match=f"cannot be imported: {error}"):
        load_policy(f"{tmp_path / 'bad_one.py'}:patient")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError, match=f"cannot be imported: {error}"):
        load_policy("bad_one:patient")
