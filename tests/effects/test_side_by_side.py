"""Tests that must not be played at once are not: pytest-xdist has to heed the groups that tests/conftest.py makes."""

import pytest


def test_a_worker_has_the_tests_of_its_groups_alone(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput") or not request.config.getoption("loadgroup"):
        pytest.skip("tests come one after the other, or in no groups")
    assert request.node.nodeid.endswith("@" + request.path.stem), "this pytest-xdist reads no groups with this pytest"
