"""A run whose policy wants one kind of remediation, and what happens to it."""

from collections.abc import Callable

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.values import Incident
from tests.pure.bare_controller import BareController


def wants(kind: Kind, **more: object) -> Callable[[Incident, ClusterView], Remediation]:
    return lambda incident, view: Remediation(kind=kind, reason="by choice", **more)


def running(kind: Kind, replicas=(1, 3), spares: int = 0, checkpoint=None, **more: object) -> BareController:
    """Three replicas train and have published steps 0 to 3; the policy wants one kind."""
    ws = BareController(replicas, spares, policy=wants(kind, **more), checkpoint=checkpoint)
    ws.start()
    if checkpoint is not None:
        ws.feed(ev.RestoreFound(commit=None))
    names = list(ws.state.workers)
    ws.place(*names)
    told = {"host": "h", "port": 1, "pid": 1, "layout": "l"}
    ws.feed(*(ev.WorkerParked(worker=name, gpus=(name[1:],), **told) for name in names))
    ws.form()
    for number in range(4):
        ws.stable(number)
    return ws


def lose(ws: BareController, worker: str = "w1", number: int = 4) -> tuple[cmd.Command, ...]:
    """It dies, and the others answer."""
    ws.die(worker)
    return stop(ws, worker, number=number)


def stop(ws: BareController, *but: str, number: int = 4) -> tuple[cmd.Command, ...]:
    """Those who are left have stopped after this step."""
    given: tuple[cmd.Command, ...] = ()
    for name in list(ws.members):
        if name not in but:
            given += ws.answer(name, number)
    ws.commands = given
    return given


def go_on(ws: BareController, number: int = 5) -> tuple[cmd.Command, ...]:
    """The next generation has formed and made its first step."""
    ws.form()
    return ws.stable(number)


def starts(ws: BareController) -> list[tuple[frozenset[str], str]]:
    return [(one.avoid, one.node) for one in ws.given(cmd.StartWorker)]
