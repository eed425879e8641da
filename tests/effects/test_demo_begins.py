"""Effect. What the demo may replace, and what it leaves when it does not come to begin."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.journal import JOURNAL
from elastic.demo import hosts, run
from elastic.errors import SettingError


class BegunError(Exception):
    """The demo was about to start its nodes."""


@pytest.fixture
def no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(nodes: int) -> None:
        raise BegunError

    monkeypatch.setattr(run, "Hosts", begin)


def demo(out: Path) -> None:
    run.demo(out, steps=1, seed=0, with_faults=True, float64=False)


def test_an_earlier_demo_is_replaced(no_nodes: None, tmp_path: Path) -> None:
    for name in ("clean", "faulty"):
        (tmp_path / name).mkdir()
        (tmp_path / name / JOURNAL).touch()
    with pytest.raises(BegunError):
        demo(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folders_of_somebody_else_are_not(no_nodes: None, tmp_path: Path) -> None:
    mine = tmp_path / "clean" / "mine.txt"
    mine.parent.mkdir()
    mine.touch()
    (tmp_path / "faulty").mkdir()
    (tmp_path / "faulty" / JOURNAL).touch()
    with pytest.raises(SettingError, match=f"{tmp_path}/clean is not of an earlier demo.*name another --out"):
        demo(tmp_path)
    assert mine.exists() and (tmp_path / "faulty" / JOURNAL).exists()


def test_ctrl_c_while_nodes_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import ray.cluster_utils

    made: list[str] = []

    def folder(*_: Any, **__: Any) -> str:
        made.append(str(tmp_path / f"session{len(made)}"))
        Path(made[-1]).mkdir()
        return made[-1]

    def interrupted(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray.cluster_utils.Cluster, "__init__", interrupted)
    monkeypatch.setattr(tempfile, "mkdtemp", folder)
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # what the demo sets goes with the test
    for name in ("RAY_AUTH_MODE", "RAY_USAGE_STATS_ENABLED", "RAY_DEDUP_LOGS_SKIP_REGEX", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(KeyboardInterrupt), hosts.Hosts(1):
        pass
    assert made and not Path(made[0]).exists()
