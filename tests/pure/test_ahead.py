"""Who will probably go on after a planned stop connects before it; a wrong guess costs nothing."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.state import Phase
from tests.pure.bare_controller import BareController, trained
from tests.pure.test_departing import WINDOW_S, stop_all, tell, without_stand_ins
from tests.pure.test_growth import one_of_three


def w1_leaves(**limits: float) -> BareController:
    """One of three will be lost; all were asked to stop."""
    ws = without_stand_ins(trained((1, 3), **limits))
    tell(ws, "w1")
    ws.tick(WINDOW_S)
    assert ws.phase is Phase.RUNNING
    return ws


def expected(ws: BareController) -> list[str]:
    (connect,) = ws.given(cmd.Connect)
    assert isinstance(connect, cmd.Connect) and connect.view.generation == ws.generation + 1
    return [member.worker for member in connect.view.members]


def connect(ws: BareController, *workers: str) -> None:
    ws.feed(*(ev.Connected(worker=worker, generation=ws.generation) for worker in workers))


def formed(ws: BareController) -> cmd.Form:
    (form,) = ws.given(cmd.Form)
    assert isinstance(form, cmd.Form)
    return form


def test_those_who_stay_connect_before_all_are_asked_to_stop():
    ws = w1_leaves()
    assert expected(ws) == ["w0", "w2"]
    (pause,) = ws.given(cmd.Pause)
    assert isinstance(pause, cmd.Pause) and pause.patience_s == ws.state.settings.limits.connect_ahead_s > 0
    connect(ws, "w0")
    assert ws.given(cmd.Pause) == []
    connect(ws, "w2")
    (pause,) = ws.given(cmd.Pause)
    assert isinstance(pause, cmd.Pause) and pause.patience_s == 0, "nothing is waited for any more"
    stop_all(ws)
    assert formed(ws).view.is_connected


def test_all_of_them_must_have():
    ws = w1_leaves()
    connect(ws, "w0", "w0")
    stop_all(ws)
    assert not formed(ws).view.is_connected


def test_what_was_said_in_another_generation_does_not_count():
    ws = w1_leaves()
    ws.feed(*(ev.Connected(worker=worker, generation=ws.generation - 1) for worker in ("w0", "w2")))
    stop_all(ws)
    assert not formed(ws).view.is_connected


@pytest.mark.parametrize(("dead", "left"), [("w2", ["w0", "w1"]), ("w1", ["w0", "w2"])])
def test_where_one_dies_first_the_others_connect_anew(dead: str, left: list[str]):
    """Though it is who was to leave: all were stopped at once, and what stops a group cuts what they have in common."""
    ws = w1_leaves()
    connect(ws, "w0", "w2")
    ws.die(dead)
    for worker in left:
        ws.answer(worker, 9)
    assert dead not in ws.members and not ws.view.is_connected
    ws.form()
    assert ws.state.ahead is None


def test_joiners_connect_with_those_whom_they_join():
    ws = one_of_three()
    ws.place("w1", "w2")
    ws.park("w1")
    ws.park("w2")
    assert expected(ws) == ["w0", "w1", "w2"]
    connect(ws, "w0", "w1", "w2")
    ws.answer("w0", 3)
    assert formed(ws).view.is_connected and formed(ws).view.behind == (1, 2)


def test_who_is_left_alone_has_nobody_to_connect_with():
    ws = without_stand_ins(trained((1, 2)))
    tell(ws, "w1")
    ws.tick(WINDOW_S)
    assert ws.given(cmd.Pause) and not ws.given(cmd.Connect)


def test_it_can_be_switched_off():
    ws = w1_leaves(connect_ahead_s=0.0)
    (pause,) = ws.given(cmd.Pause)
    assert isinstance(pause, cmd.Pause) and pause.patience_s == 0 and not ws.given(cmd.Connect)


@pytest.mark.parametrize("worker", ["w1", "w7"])
def test_the_word_of_who_was_not_asked_changes_nothing(worker: str):
    ws = w1_leaves()
    connect(ws, "w0", worker)
    stop_all(ws)
    assert not formed(ws).view.is_connected
