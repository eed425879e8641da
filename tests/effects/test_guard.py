"""Effect. The run's token: its file, who gets at it, and what is refused without it."""

import logging
import os
import pickle
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from elastic.actors import token
from elastic.actors.guard import Guard
from elastic.control import events as ev
from elastic.control.state import RunState
from elastic.errors import ElasticError
from elastic.policies import Ladder
from elastic.settings import RunSettings


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    return Guard(token.draw(tmp_path), RunState(settings=RunSettings(run="r")), Ladder())


def test_only_the_same_user_may_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        drawn = token.draw(tmp_path / "new")
    finally:
        os.umask(before)
    path = tmp_path / "new" / "token"
    assert (drawn.host, drawn.path) == (socket.gethostname(), str(path))
    assert path.read_text() == drawn.secret and len(drawn.secret) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert drawn.secret not in f"{drawn!r} {drawn}"


def test_each_life_has_its_own_token_and_takes_its_own_file_away(tmp_path: Path) -> None:
    first = token.draw(tmp_path)
    second = token.draw(tmp_path)
    assert first.secret != second.secret and token.find("r", second.host, second.path) == second.secret
    token.forget(first)
    assert (tmp_path / "token").exists(), "it is the second one's"
    token.forget(second)
    token.forget(second)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    token.draw(tmp_path)
    assert (tmp_path / "elsewhere").read_text() == "kept" and not (tmp_path / "token").is_symlink()


def test_a_token_that_cannot_be_read_says_where_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(ElasticError, match=r"its token, which is in .*/token on h and cannot be read here \(No such"):
        token.find("r", "h", str(tmp_path / "token"))
    monkeypatch.setenv(token.VARIABLE, "told")
    assert token.find("r", "h", str(tmp_path / "token")) == "told"


@pytest.mark.parametrize("name", ["token", "id_rsa"])
def test_what_is_no_token_is_not_handed_out(tmp_path: Path, name: str) -> None:
    """Somebody else may have taken the run's name, and name a file of the user's."""
    (tmp_path / name).write_text("a private key")
    with pytest.raises(ElasticError, match="holds no token") as caught:
        token.find("r", "h", str(tmp_path / name))
    assert "private key" not in str(caught.value)


def test_who_knows_the_token_is_heeded(guard: Guard, tmp_path: Path) -> None:
    host, path = guard.where()
    secret = token.find("r", host, path)
    assert guard.call(secret, "state").settings.run == "r"
    assert guard.call(secret, "ask", ev.RewindAsked(to_step=1)).startswith("the run r keeps no checkpoints")
    commands, state = guard.call(secret, "observe", [(0.0, ev.RunStarted())])
    assert commands and state.workers


@pytest.mark.parametrize("secret", ["", "x", "0" * 64, None, 7, b"x"], ids=repr)
@pytest.mark.parametrize("method", ["observe", "ask", "asked", "state"])
def test_who_does_not_is_refused_whatever_he_asks(guard: Guard, secret: Any, method: str) -> None:
    before = pickle.dumps(guard._supervisor.state())
    with pytest.raises(ElasticError, match=f"the run r refuses {method!r}: the token that was told is not its own"):
        guard.call(secret, method, [(0.0, ev.StopAsked(reason="because"))])
    assert pickle.dumps(guard._supervisor.state()) == before


def test_a_refusal_is_told_once_and_without_a_secret(guard: Guard, caplog: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            with pytest.raises(ElasticError):
                guard.call("guessed", "ask", ev.RewindAsked(to_step=1))
    assert caplog.text.count("without the run's token was refused") == 1
    assert "guessed" not in caplog.text and guard._token.secret not in caplog.text


@pytest.mark.parametrize("method", ["_state", "__class__", "nothing"])
def test_only_what_a_supervisor_does_can_be_called(guard: Guard, method: str) -> None:
    with pytest.raises(ElasticError, match="knows no"):
        guard.call(guard._token.secret, method)
