"""Effect. What an earlier life of a run has left on the cluster: workers that wait out their orphan lease.

They are found by name. A new driver whose code and settings are theirs goes on with them; else they are ended, and
their slots freed. Checkpoint replicas stay either way.
"""

import contextlib
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util import placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from elastic.actors.asking import supervisor_name
from elastic.actors.peer_source import namespace
from elastic.actors.slots import gang_of
from elastic.actors.worker_actor import born_of, call, holders, worker_names
from elastic.control.adoption import Adopted, who_goes_on
from elastic.errors import ElasticError, SupersededError
from elastic.settings import RunSettings

log = logging.getLogger("elastic")

DRIVER_SILENT_S = 5.0  # a driver tells its supervisor something several times a second
_LIVES_S = 10.0
_LOST_S = 90.0  # Ray takes up to a minute to notice that a node is lost
_POLL_S = 0.1
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a worker says of itself to whoever asks: whose it is, and what it was started with.

    Attributes:
        heeded: incarnation of the driver that it heeds. gang: its replica. digest: of train_fn and seed.
        node, pid: where it is.
    """

    heeded: int
    gang: int
    settings: RunSettings
    digest: str
    node: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """A worker that was found, or a stand-in, which has no name; `born`: the incarnation that has started it."""

    name: str
    born: int
    actor: Any


@dataclass(frozen=True, slots=True)
class Heirloom:
    """What a new driver goes on with.

    Attributes:
        found: what each worker says; handles: their actors, and of members that did not answer; born: see `Left`.
        silent: the gangs of those, as far as they have said it before.
        groups: the placement groups of all these, by gang. holders: of accelerators, for those that were stand-ins.
    """

    found: tuple[Adopted, ...]
    handles: dict[str, Any]
    born: dict[str, int]
    silent: dict[str, int]
    groups: dict[int, PlacementGroup]
    holders: dict[str, Any]


class Former:
    """Looks once, when it is made.

    Raises:
        ElasticError: a driver of this run lives.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._end_supervisor()
        self._left = [
            Left(worker, born_of(name), actor)
            for name, worker in worker_names(namespace(run)).items()
            if (actor := self._actor(name)) is not None
        ]
        enough = sum(workers for _, workers, is_placed in self._gangs().values() if is_placed)
        self._introduced = _ask([left for left in self._left if left.name], enough, "introduce")

    @property
    def incarnation(self) -> int:
        """The highest that one of the workers heeds, 0 if there are none."""
        return max((one.heeded for one in self._introduced.values()), default=0)

    def hand_over(self, settings: RunSettings, digest: str) -> Heirloom | None:
        """Have the workers heed this driver, if it means the same by the run; end those it cannot go on with.

        Raises:
            SupersededError: a newer driver has done so.
        """
        is_theirs = all(_is_same(one, settings, digest) for one in self._introduced.values())
        if not self._introduced or not is_theirs:
            if self._introduced:
                log.warning("the run %s goes on with other code or settings: its workers are ended", self._run)
            self._end(keep=(), gangs=())
            return None
        everybody, patience_s = len(self._introduced), settings.limits.lease_s
        answers = _ask(self._introduced, everybody, "adopt", settings.incarnation, patience_s=patience_s)
        going, _ = who_goes_on(tuple(answers.values()))
        if not going:
            self._end(keep=(), gangs=())
            return None
        members = {member.worker for one in going if one.view is not None for member in one.view.members}
        names = {one.worker for one in going}
        mute = [left for left in self._left if left.name in members and left not in answers]
        silent = {left.name: self._introduced[left].gang for left in mute if left in self._introduced}
        gangs = {one.gang for one in going} | set(silent.values())
        groups = self._end(keep=names | {left.name for left in mute}, gangs=gangs)
        left = {one.name: one for one in self._left if one.name in names}
        return Heirloom(
            found=tuple(one for one in going if one.gang in groups),
            handles={one.name: one.actor for one in (*left.values(), *mute)},
            born={one.name: one.born for one in (*left.values(), *mute)},
            silent=silent,
            groups=groups,
            holders=holders(namespace(self._run)),
        )

    def _end(self, keep: Collection[str], gangs: Collection[int]) -> dict[int, PlacementGroup]:
        """End all other workers, and free the slots of all other replicas; returns those that are kept, by gang."""
        for left in self._left:
            if left.name not in keep:
                ray.kill(left.actor)
        for worker, actor in holders(namespace(self._run)).items():
            if worker not in keep:
                ray.kill(actor)
        kept = {}
        for number, (gang, _, _) in self._gangs().items():
            group = PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number)))  # by name only its own job finds it
            if gang in gangs:
                kept[gang] = group
            else:
                remove_placement_group(group)
        return kept

    def _gangs(self) -> dict[str, tuple[int, int, bool]]:
        """By the id of a replica's placement group: its number, its workers, whether it has its slots."""
        found = {}
        for key, group in placement_group_table().items():
            gang = gang_of(group["name"], self._run)
            if gang is not None and group["state"] != "REMOVED":
                number, per_bundle = gang
                found[key] = (number, per_bundle * len(group["bundles"]), group["state"] == "CREATED")
        return found

    def _end_supervisor(self) -> None:
        """A supervisor outlives its driver, and tells for how long it has heard nothing of it.

        Raises:
            ElasticError: it hears one; or it says nothing, and Ray does not know yet that it is lost with its node.
        """
        began_s = time.monotonic()
        while (actor := self._actor(supervisor_name(self._run))) is not None:
            silent_s = None
            with contextlib.suppress(RayActorError, GetTimeoutError):
                silent_s = ray.get(actor.silent_s.remote(), timeout=_ANSWER_S)
            if silent_s is not None and silent_s > DRIVER_SILENT_S:
                ray.kill(actor)
            elif silent_s is not None and time.monotonic() - began_s > _LIVES_S:
                raise ElasticError(
                    f"a run {self._run!r} trains on this cluster already: give fit(name=...) another name"
                )
            if time.monotonic() - began_s > _LOST_S:
                raise ElasticError(
                    f"the supervisor of an earlier driver of the run {self._run!r} has not answered for {_LOST_S:g} s, "
                    "and Ray takes it for alive: if its node was lost, start the run again under this name later"
                )
            time.sleep(_POLL_S)

    def _actor(self, name: str) -> Any:
        try:
            return ray.get_actor(name, namespace=namespace(self._run))
        except ValueError:
            return None  # it has ended meanwhile


def _ask(whom: Collection[Left], enough: int, method: str, *arguments: Any, patience_s: float = 0.0) -> dict[Left, Any]:
    """What all say that answer in time, or as soon as so many have: those who wait for a slot never do.

    Args:
        patience_s: how long the first one is waited for, if that is longer: it may be in the middle of an update.

    Raises:
        SupersededError: one of them heeds a newer driver.
    """
    calls = {left: call(left.actor, method, *arguments) for left in whom}
    if calls and enough:
        some, _ = ray.wait(list(calls.values()), num_returns=min(len(calls), enough), timeout=_ANSWER_S)
        if not some and patience_s > _ANSWER_S:
            names = ", ".join(sorted(left.name for left in whom))
            told = "%s of an earlier life have not answered in %.0f s: waiting for the first up to Limits.lease_s=%g"
            log.warning(told, names, _ANSWER_S, patience_s)
            ray.wait(list(calls.values()), timeout=patience_s - _ANSWER_S)
            ray.wait(list(calls.values()), num_returns=min(len(calls), enough), timeout=_ANSWER_S)
    answers = {}
    for left, asked in calls.items():
        try:
            answers[left] = ray.get(asked, timeout=0)
        except RayTaskError as error:
            if isinstance(error.cause, SupersededError):
                raise error.cause from None
            log.warning("%s of an earlier life can not be asked: %s", left.name, error.cause)
        except RayError as error:
            log.debug("%s of an earlier life does not answer: %s", left.name, type(error).__name__)
    return answers


def _is_same(one: Introduction, settings: RunSettings, digest: str) -> bool:
    return one.digest == digest and replace(one.settings, incarnation=settings.incarnation) == settings
