"""Effect. Runs train_fn in the training thread and turns each way it can end into one event."""

import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from elastic.callbacks.worker import WorkerCallback
from elastic.control import events as ev
from elastic.errors import Dismissed
from elastic.train import rng
from elastic.train.session import Session, Surroundings, set_session
from elastic.train.world import close_world

TrainFn = Callable[[Session], Any]

_SUMMARY_CHARS, _TRACEBACK_CHARS = 2_000, 60_000  # of what is journalled, and shown to people


def with_callbacks(train_fn: TrainFn, callbacks: Sequence[WorkerCallback]) -> TrainFn:
    """A train_fn whose steps tell these callbacks; it is sent to workers like any other."""
    return partial(_train_with, train_fn, tuple(callbacks)) if callbacks else train_fn


def _train_with(train_fn: TrainFn, callbacks: Sequence[WorkerCallback], session: Session) -> Any:
    session.use(callbacks)
    return train_fn(session)


def run_train_fn(train_fn: TrainFn, around: Surroundings, keep: Callable[[Any], None]) -> None:
    """Run train_fn to its end; `keep` takes its value before anybody is told.

    KeyboardInterrupt and SystemExit become a departure: the worker leaves, the others go on.
    """
    link, worker = around.link, around.worker
    event: ev.Event | None = None
    session: Session | None = None
    try:
        torch.set_num_threads(around.threads)  # here: OpenMP, and MKL with it, counts them for each thread anew
        session = Session(around)
        set_session(session)
        rng.seed_all(around.seed, rng.BODY, rng.BODY)  # replicas that build their model at random build the same one
        value = train_fn(session)
        session.close()
        keep(value)
        event = ev.TrainFnReturned(worker=worker)
    except Dismissed:
        event = ev.TrainFnReturned(worker=worker, dismissed=True)
    except (KeyboardInterrupt, SystemExit) as error:
        event = ev.WorkerDeparted(worker=worker, reason=f"{type(error).__name__}({error})")
    except BaseException as error:
        event = ev.TrainFnRaised(
            worker=worker,
            summary=_cut(_said(error), _SUMMARY_CHARS),
            traceback=_cut("".join(traceback.format_exception(error)), _TRACEBACK_CHARS),
        )
    finally:
        set_session(None)
        close_world()
        around.page.remove()
        if event is not None and not isinstance(event, ev.TrainFnReturned):
            link.cut()  # the others wait for this replica
        if event is not None:
            link.leave(event)
        if session is not None:
            session.leave()


def _said(error: BaseException) -> str:
    """Kind and message; what a user's exception says of itself may fail, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failed:
        return f"{type(error).__name__} (its message cannot be shown: {type(failed).__name__})"


def _cut(text: str, most_chars: int) -> str:
    """Its beginning and its end: a message may hold a whole tensor, or a page of HTML."""
    if len(text) <= most_chars:
        return text
    half = most_chars // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters are left out here]\n{text[-half:]}"
