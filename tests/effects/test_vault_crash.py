"""An uploader is killed at every labelled point: who reads then sees the old step or the new one, never a mix."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault
from tests.effects.vault_crash import LABELS
from tests.effects.vault_parts import commit_id, made_durable, uploaded, what_is_read

ROOT = Path(__file__).parents[2]
COMMITTED = ("after create commits", "linked commits", "before advance LATEST", "after advance LATEST")


def is_committed(label: str) -> bool:
    return label in COMMITTED


def prepared(folder: Path) -> Vault:
    vault = Vault(open_store(str(folder)), "night-1")
    vault.register("test")
    made_durable(vault, 10)
    return vault


def killed(folder: Path, label: str, number: int) -> None:
    command = [sys.executable, "-m", "tests.effects.vault_crash", str(folder), label, str(number)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == -signal.SIGKILL, f"the fault did not fire: {answer.stderr}"


@pytest.mark.parametrize("label", LABELS)
def test_c02_a_killed_uploader_leaves_the_old_step_or_the_new(tmp_path, label):
    vault = prepared(tmp_path)
    number = 2 if "chunk" in label else 1
    killed(tmp_path, label, number)
    reader = Vault(open_store(str(tmp_path)), "night-1")
    new = {20: "whole"} if is_committed(label) else {}
    assert what_is_read(reader) == {10: "whole", **new}
    vault.commit(commit_id(20), uploaded(vault, commit_id(20)))
    assert what_is_read(reader) == {10: "whole", 20: "whole"}
    assert vault.store.sweep("night-1/", 4e9) == ("written" in label or "linked" in label)


@pytest.mark.parametrize("label", ["before create chunk", "after create chunk", "before create commits"])
def test_c23_sigterm_in_the_middle_of_an_upload_ends_it_and_tears_nothing(tmp_path, label):
    """However long the store takes: the process waits for no transfer, and the next one goes on from there."""
    vault = prepared(tmp_path)
    command = [sys.executable, "-m", "tests.effects.vault_crash", str(tmp_path), label, "1", "hang"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as uploader:
        try:
            assert uploader.stdout.readline().strip() == label
            uploader.terminate()
            assert uploader.wait(30) == 128 + signal.SIGTERM
        finally:
            uploader.kill()
    reader = Vault(open_store(str(tmp_path)), "night-1")
    assert what_is_read(reader) == {10: "whole"}
    vault.commit(commit_id(20), uploaded(vault, commit_id(20)))
    assert what_is_read(reader) == {10: "whole", 20: "whole"}
