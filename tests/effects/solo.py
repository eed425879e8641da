"""Effect. A run of one worker in the test's process: the real session, link and group, and a driver of a few lines."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from elastic.control import events as ev
from elastic.control.tuning import NOT_TUNED
from elastic.control.values import NOTHING_COMMITTED, CommitId, Member, StepReport, View
from elastic.settings import Checkpoint, Limits
from elastic.train.flight import FlightPage
from elastic.train.link import Link
from elastic.train.runner import run_train_fn
from elastic.train.session import Session, Surroundings
from tests.effects.helpers import HOST, LONG_S, Running

SEED = 11
ENDINGS = (ev.TrainFnReturned, ev.TrainFnRaised, ev.WorkerDeparted)


@dataclass
class Ended:
    """What became of a run."""

    value: Any = None
    events: list[ev.Event] = field(default_factory=list)

    @property
    def reports(self) -> list[StepReport]:
        return [event.report for event in self.events if isinstance(event, ev.StepStable)]

    @property
    def steps(self) -> list[int]:
        """Steps that became stable, in the order in which the driver was told."""
        return [report.commit.step for report in self.reports]

    @property
    def last(self) -> ev.Event:
        return self.events[-1]

    def has(self, kind: type[ev.Event]) -> bool:
        return any(isinstance(event, kind) for event in self.events)


class Solo:
    """One worker and its driver.

    Args:
        directory: where the flight page lies.
        seed: of the run. checkpoint: of the run.
        tuning, replaced, failures, left_out: of the generations that are formed from now on; may be set.
        limits: fields of `Limits`.
    """

    def __init__(
        self, directory: Path, seed: int = SEED, checkpoint: Checkpoint | None = None, **limits: float
    ) -> None:
        self.seed, self.checkpoint = seed, checkpoint
        self.limits = Limits(**limits)
        self.link = Link("w0", self.limits.lease_s)
        self.page = FlightPage(directory / "page")
        self.tuning, self.replaced, self.failures, self.left_out = NOT_TUNED, (), 0, ()
        self._port = 0

    def run(self, train_fn: Callable[[Session], Any]) -> Ended:
        """Runs train_fn to its end; generations follow each other as they break."""
        ended = Ended()
        around = Surroundings(
            run="solo",
            worker="w0",
            host=HOST,
            device=torch.device("cpu"),
            seed=self.seed,
            limits=self.limits,
            link=self.link,
            page=self.page,
            checkpoint=self.checkpoint,
        )
        training = Running(lambda: run_train_fn(train_fn, around, lambda value: setattr(ended, "value", value)))
        driver = Running(lambda: self._drive(ended.events))
        driver.result()
        training.result()
        return ended

    def break_generation(self) -> None:
        """What a driver does when another member dies: freeze, and form the next generation with who is left."""
        answer = self.link.freeze(self.link.state.generation)
        if answer is not None:
            self._form(answer.commit)

    def break_soon(self, delay_s: float) -> None:
        """The same, from another thread, a moment later."""
        timer = threading.Timer(delay_s, self.break_generation)
        timer.daemon = True
        timer.start()

    def _drive(self, told: list[ev.Event]) -> None:
        while not (told and isinstance(told[-1], ENDINGS)):
            self.link.touch()
            news = self.link.take_events(LONG_S)
            assert news, f"the worker says nothing; it is {self.link.state.stage.value}"
            for event in news:
                told.append(event)
                self._answer(event)

    def _answer(self, event: ev.Event) -> None:
        if isinstance(event, ev.WorkerParked):
            self._port = event.port
            self._form(NOTHING_COMMITTED)
        elif isinstance(event, ev.Formed):
            self.link.go(event.generation)
        elif isinstance(event, ev.FreezeAnswered):
            self._form(event.commit)
        elif isinstance(event, ev.CollectiveBroken):
            self.break_generation()

    def _form(self, resume: CommitId, behind: tuple[int, ...] = ()) -> None:
        self.link.form(
            View(
                run="solo",
                incarnation=1,
                generation=self.link.state.generation + 1,
                members=(Member("w0", HOST, self._port),),
                resume=resume,
                donors=(0,),
                behind=behind,
                bootstrap=resume == NOTHING_COMMITTED,
                tuning=self.tuning,
                replaced=self.replaced,
                failures=self.failures,
                left_out=self.left_out,
            )
        )
