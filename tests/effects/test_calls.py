"""Calls to actors whose answers come in time, late, or never."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from elastic.actors.calls import Calls


class Reference:
    """What a call to an actor gives: a future of its answer."""

    def __init__(self) -> None:
        self.answer: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.answer


def at_once(act: Callable[[], None]) -> None:
    act()


def test_an_answer_is_gone_on_with_once() -> None:
    calls, reference, told = Calls(at_once), Reference(), list[str]()
    calls.then(lambda: reference, 60, told.append, told.append, late=told.append)
    reference.answer.set_result("here")
    calls.expire(time.monotonic() + 61)
    assert told == ["here"]


def test_an_error_is_told_in_one_line() -> None:
    calls, reference, told = Calls(at_once), Reference(), list[str]()
    calls.then(lambda: reference, 60, told.append, told.append, late=told.append)
    reference.answer.set_exception(OSError("gone\nfor good"))
    assert told == ["OSError: gone"]


def test_a_call_that_cannot_be_made_has_failed() -> None:
    """Ray's store is full, say; whoever made it goes on with what else it has to do."""
    waiting, told = list[Callable[[], None]](), list[str]()

    def ask() -> Any:
        raise OSError("no room\nat all")

    Calls(waiting.append).then(ask, 60, told.append, told.append)
    assert told == []
    waiting.pop()()
    assert told == ["OSError: no room"]


def test_who_answers_late_was_given_up_and_what_came_with_the_answer_is_not_lost() -> None:
    calls, reference = Calls(at_once), Reference()
    told, failed, late = list[str](), list[str](), list[str]()
    calls.then(lambda: reference, 60, told.append, failed.append, late=late.append)
    calls.expire(time.monotonic() + 61)
    assert failed == ["it did not answer in time"]
    reference.answer.set_result("lines of its log")
    assert (told, failed, late) == ([], ["it did not answer in time"], ["lines of its log"])


def test_an_error_that_comes_late_says_nothing_new() -> None:
    calls, reference, told = Calls(at_once), Reference(), list[str]()
    calls.then(lambda: reference, 60, told.append, told.append, late=told.append)
    calls.expire(time.monotonic() + 61)
    reference.answer.set_exception(OSError("gone"))
    assert told == ["it did not answer in time"]
