"""What others answer is waited for within a deadline, and the command says whom it waited for."""

import contextlib
import threading

import pytest
from click.testing import CliRunner

from elastic.actors import cluster, draining
from elastic.cli import cli
from elastic.commands.patience import answer
from elastic.errors import ElasticError


def test_an_answer_is_what_the_call_returns_or_raises():
    assert answer(lambda: 7, 10.0, "late") == 7
    with pytest.raises(KeyError, match="x"):
        answer(lambda: {}["x"], 10.0, "late")


def test_who_drains_a_node_is_told_that_the_head_is_silent(monkeypatch):
    is_over = threading.Event()
    monkeypatch.setattr(cluster, "connected", lambda address: contextlib.nullcontext())
    monkeypatch.setattr(draining, "drain_node", lambda *asked: is_over.wait(60.0))
    try:
        done = CliRunner().invoke(cli, ["drain", "abc", "--timeout", "0.2"], standalone_mode=False)
    finally:
        is_over.set()
    assert isinstance(done.exception, ElasticError)
    assert "Ray's head has not answered within --timeout 0.2 s, so abc may not be drained" in str(done.exception)
