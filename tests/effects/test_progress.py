"""The progress line: rewritten on a terminal, plain lines elsewhere."""

import errno
import io
import sys

import pytest

from elastic.control.state import RunState
from elastic.control.values import CommitId, StepReport
from elastic.progress import Progress
from elastic.settings import RunSettings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(number: int, **metrics: float) -> StepReport:
    commit = CommitId(incarnation=1, generation=3, attempt=1, step=number, lineage="x")
    numbers = {"replicas": 2, "samples": 8, "started_at_s": 0.0, "committed_at_s": 1.0}
    return StepReport(commit=commit, metrics=metrics or {"loss": 0.5}, **numbers)


STATE = RunState(settings=RunSettings(run="r"))


def test_elsewhere_lines_are_plain_and_few() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    for number in range(100):
        progress.on_step(step(number), STATE, 0.5)
    progress.on_end()
    text = stream.getvalue()
    assert text == "step      0  loss 0.5000  replicas 2 (+0 spare)  generation 3  goodput 50.0%\n"


def test_on_a_terminal_one_line_is_rewritten_and_left_at_the_end() -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress.on_step(step(1), STATE, 0.5)
    progress.say("incident 0")
    progress.on_end()
    progress.on_end()
    first, *rest = stream.getvalue().split("\r\x1b[K")[1:]
    assert first.startswith("step      1") and "\n" not in first
    assert rest == ["incident 0\n"], "a line that stays ends by itself"
    progress = Progress(stream := Terminal())
    progress.on_step(step(2), STATE, 0.5)
    progress.on_end()
    assert stream.getvalue().endswith("50.0%\n"), "what comes next begins a line"


class Gone(io.StringIO):
    """Its terminal was closed, its pipe's other end is gone, or its disk is full."""

    tries = 0

    def write(self, text: str) -> int:
        self.tries += 1
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_is_gone_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, closed = Gone(), io.StringIO()
    progress, other = Progress(gone), Progress(closed)
    closed.close()
    for one in (progress, other):
        one.on_step(step(1), STATE, 0.5)
        one.say("incident 0")
        one.on_end()
    assert gone.tries == 2
    monkeypatch.setattr(sys, "stderr", None)
    Progress().say("to nobody")


def test_a_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    progress = Progress(stream := Terminal())
    progress.on_step(step(1, **{f"metric{n}": float(n) for n in range(20)}), STATE, 0.5)
    assert len(stream.getvalue().removeprefix("\r\x1b[K")) < 40
