"""Pure. Lines of logs: their one form, and what of many workers' lines is shown."""

from dataclasses import replace

import pytest

from elastic.control.logs import Echo, LogLine
from elastic.errors import SettingError
from elastic.settings import Logs

LINE = LogLine(
    at_s=5.0004, level="warning", logger="train", generation=3, step=9, rank=2, text="norm 31", kind="norm %f"
)


def shown(echo: Echo, *heard: tuple[LogLine, str, float]) -> list[tuple[str, str]]:
    return [told for line, worker, now_s in heard for told in echo.heard(line, worker, now_s)]


def test_a_line_has_one_form():
    assert LINE.facts("llama", 2, "w4", "n1") == {
        "t": 5.0,
        "level": "warning",
        "run": "llama",
        "incarnation": 2,
        "generation": 3,
        "step": 9,
        "rank": 2,
        "role": "worker",
        "worker": "w4",
        "node": "n1",
        "logger": "train",
        "text": "norm 31",
    }
    assert replace(LINE, traceback="Traceback").facts("r", 1, "w", "")["traceback"] == "Traceback"


def test_the_first_of_a_kind_is_shown_at_once_and_the_others_are_counted():
    echo = Echo("warning", window_s=60.0)
    other = replace(LINE, text="norm 12", rank=0)
    assert shown(echo, (LINE, "w4", 0.0), (other, "w0", 1.0), (other, "w0", 2.0), (LINE, "w1", 59.0)) == [
        ("warning", "w4 (rank 2, step 9): norm 31")
    ]
    assert list(echo.due(59.9)) == []
    assert list(echo.due(60.0)) == [("warning", "3 more from 2 workers: norm 31")]
    assert shown(echo, (LINE, "w1", 61.0)) == [("warning", "w1 (rank 2, step 9): norm 31")]
    assert list(echo.due(62.0, is_last=True)) == [], "it came once"


def test_what_is_no_worker_has_no_rank_and_is_counted_apart():
    echo, said = Echo("warning"), replace(LINE, generation=-1, step=-1, rank=-1)
    told = [text for name in "abc" for _, text in echo.heard(said, f"monitor-{name}", 0.0, "monitor")]
    assert told == ["monitor-a: norm 31"]
    assert shown(echo, (LINE, "w4", 1.0)) == [("warning", "w4 (rank 2, step 9): norm 31")]
    assert list(echo.due(2.0, is_last=True)) == [("warning", "2 more from 2 monitors: norm 31")]
    assert said.facts("r", 1, "monitor-a", "n1", "monitor")["role"] == "monitor"


@pytest.mark.parametrize("change", [{"level": "error"}, {"logger": "data"}, {"kind": "loss %f"}])
def test_what_differs_is_of_another_kind(change):
    assert len(shown(Echo("warning"), (LINE, "w0", 0.0), (replace(LINE, **change), "w0", 0.0))) == 2


def test_what_is_less_severe_is_not_shown():
    lines = [(replace(LINE, level=level), "w0", 0.0) for level in ("debug", "info", "warning", "error")]
    assert [level for level, _ in shown(Echo("warning"), *lines)] == ["warning", "error"]
    assert len(shown(Echo("debug"), *lines)) == 4


def test_what_is_remembered_is_bounded_and_told_before_it_is_forgotten():
    echo = Echo("warning")
    shown(echo, (LINE, "w0", 0.0), (LINE, "w1", 0.0))
    others = [(replace(LINE, kind=f"kind {number}"), "w0", 0.0) for number in range(300)]
    told = shown(echo, *others)
    assert ("warning", "1 more from 1 worker: norm 31") in told and len(told) == 301


@pytest.mark.parametrize("wrong", [{"level": "loud"}, {"show": "none"}])
def test_a_level_that_is_none_is_refused(wrong):
    with pytest.raises(SettingError, match="must be one of debug, info, warning, error"):
        Logs(**wrong)
