"""Effect. Which Ray cluster is asked for, without one."""

from typing import Any

import pytest

from elastic.actors import cluster
from elastic.settings import Scaling


def test_a_cluster_of_ones_own_is_none_of_which_a_killed_head_has_left_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray takes that one where it is given no address, and refuses whatever is said of a new one."""
    asked: list[str | None] = []

    def init(address: str | None = None, **_: Any) -> None:
        asked.append(address)
        if address == "auto":
            raise ConnectionError("the default cluster does not answer")

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setattr(cluster.ray, "shutdown", lambda: None)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    with cluster.cluster(None, Scaling()) as is_local:
        assert is_local
    assert asked == ["auto", "local"]
