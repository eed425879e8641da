"""Pure. Live workers of an earlier life of the driver: what each says of itself, and who of them goes on."""

from collections.abc import Sequence
from dataclasses import dataclass

from elastic.control.data import Plan
from elastic.control.values import View
from elastic.control.worker_protocol import Stage, WorkerState

# Who is no member and was somewhere else than here has been left behind, and may not come back.
_AT_THE_DOOR = frozenset({Stage.LOADING, Stage.PARKED, Stage.FROZEN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A worker that heeds a new driver from now on, and no older one.

    Attributes:
        gang, shard: its place. node: of the cluster.
        host, port, layout, plan, gpus: as it told when it came to the door; empty before.
        was: its stage before it was adopted. state: after that; FROZEN wherever it could have stepped.
        view: the last one that it was to form, None if none.
        restores: the last order to load a checkpoint that it had. notice: why it will be lost soon, if it will.
        is_dismissed: it was told to leave before, and its process is still there.
    """

    worker: str
    gang: int
    shard: int
    pid: int
    was: Stage
    state: WorkerState
    node: str = ""
    host: str = ""
    port: int = 0
    layout: str = ""
    plan: Plan | None = None
    gpus: tuple[str, ...] = ()
    view: View | None = None
    restores: int = 0
    notice: str = ""
    is_dismissed: bool = False


def newest_view(found: Sequence[Adopted]) -> View | None:
    """The generation that was formed last, as far as any of them knows."""
    views = [one.view for one in found if one.view is not None]
    return max(views, key=lambda view: (view.incarnation, view.generation), default=None)


def last_generation(found: Sequence[Adopted]) -> int:
    """No worker has heard of a later one."""
    view = newest_view(found)
    return max((view.generation if view is not None else 0, *(one.state.generation for one in found)))


def who_goes_on(found: Sequence[Adopted]) -> tuple[tuple[Adopted, ...], tuple[Adopted, ...]]:
    """(those who may train on, those who are to be ended): the former are members, and who is at the door or before."""
    view = newest_view(found)
    members = {member.worker for member in view.members} if view is not None else set()
    going, ended = list[Adopted](), list[Adopted]()
    for one in found:
        is_going = not one.state.outvoted and (one.worker in members or one.was in _AT_THE_DOOR)
        (going if is_going else ended).append(one)
    return tuple(going), tuple(ended)
