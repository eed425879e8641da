"""Effect. The actor of a worker: a process that becomes a worker once it is told which one.

Light, so that what takes seconds to import, torch above all, is imported where nobody waits for it: a *stand-in* does
so in time that nobody else on its node wants, and stands by on its node until a worker is wanted there.
"""

import logging
import math
import os
import re
import threading
import time
from collections.abc import Mapping
from typing import Any, cast

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util import (
    get_current_placement_group,
    list_named_actors,
    placement_group_table,
    remove_placement_group,
)
from ray.util.placement_group import PlacementGroup

from elastic.actors.priority import catch_up, come_forward, hang_back, take_usual_priority
from elastic.train.sigterm import heed_sigterm

log = logging.getLogger("elastic")

# `events` waits for news in its own group, so that a freeze is never queued behind it.
_GROUPS = {"control": 4, "events": 1}
_IMPORT_S = 600.0  # on a machine whose cores are all busy
_PATIENCE_S = 20.0  # for which it imports in idle time alone: mostly there is enough
_HURRY_S = 60.0  # in which a new process would have done it, too
_BEGIN_S = 60.0
_ANSWER_S = 10.0
_WATCH_S = 1.0
_LOOK_S = 60.0
_LOOKS = 3  # in a row: who is at work may be too busy to answer one of them
_ASKED_AT_ONCE = 16  # mostly one of them is at work; those that wait for a slot never answer
_AT_ONCE = ("introduce",)  # asked by a new driver, who has no use for one that has yet to begin
_STAND_IN = "standin"
_HOLDER = "slot-"
_NAME = re.compile(rf"elastic-.+@(\d+)-(w\d+|{_STAND_IN}\d+|{_HOLDER}w\d+)")


class WorkerActor:
    """Methods are called through `do`, once `begin` has made it a worker.

    Args:
        stands_by_s: it is a stand-in, and ends when nobody has asked for it for so long; 0: it is begun at once.
        train_fn: pickled; what it imports, a stand-in has imported, too.
        has_no_gpu_yet: it is to see none of its node's GPUs before it has a slot.
        waits_s: it is in a slot, and begins to look whether that is anybody's when it was not begun for so long. (s)
    """

    def __init__(
        self,
        stands_by_s: float = 0.0,
        train_fn: bytes = b"",
        has_no_gpu_yet: bool = False,
        waits_s: float = _IMPORT_S,
    ) -> None:
        self._worker, self._host = "", cast(Any, None)
        self._is_called, self._has_begun = threading.Event(), threading.Event()
        self._importing: threading.Thread | None = None
        self._hangs_back = threading.Event()
        self._asked_s = time.monotonic()
        self._error: Exception | None = None
        heed_sigterm(self._notice)  # in the main thread, which has no other chance
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML counts them
        if has_no_gpu_yet:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides them from nobody
        if stands_by_s:
            import numpy  # noqa: F401  # its threads, made here, keep their priority

            self._importing = threading.Thread(
                target=self._import, args=(train_fn,), name="elastic-importing", daemon=True
            )
            self._importing.start()
            watch = threading.Thread(target=self._watch, args=(stands_by_s,), name="elastic-standing-by", daemon=True)
            watch.start()
        else:
            take_usual_priority()  # before `begin`, whose arguments Ray unpickles: that imports what train_fn does
            watch = threading.Thread(target=self._watch_slot, args=(waits_s,), name="elastic-waiting", daemon=True)
            watch.start()

    def stand_by(self) -> int:
        """The pid, once it could begin at once; asked again now and then, it goes on standing by.

        Raises:
            TimeoutError: its imports take too long. Exception: they have failed so.
        """
        self._asked_s = time.monotonic()
        self._wait_for_imports(_IMPORT_S)
        return os.getpid()

    def hurry(self) -> None:
        """Somebody waits for what it still imports: do that with the usual priority, until it could begin.

        Asked before `begin`, whose arguments Ray unpickles: that waits for what is being imported, however slowly.

        Raises:
            RuntimeError: this process may not raise a priority. TimeoutError, Exception: as `stand_by`.
        """
        assert self._importing is not None, "only a stand-in imports before it is begun"
        take_usual_priority()
        if self._hangs_back.wait(_ANSWER_S) and self._importing.is_alive() and not catch_up(self._importing):
            raise RuntimeError("its imports hang back, and may not be hurried")
        self._wait_for_imports(_HURRY_S)

    def _wait_for_imports(self, within_s: float) -> None:
        """Raises: as `stand_by`."""
        assert self._importing is not None, "only a stand-in imports before it is begun"
        self._importing.join(within_s)
        if self._importing.is_alive():
            raise TimeoutError(f"importing took more than {within_s:g} s")
        if self._error is not None:
            raise self._error

    def surroundings(self) -> dict[str, str]:
        """What Ray tells this process of the accelerators of its slot."""
        return {name: value for name, value in os.environ.items() if name.endswith("_VISIBLE_DEVICES")}

    def begin(self, surroundings: Mapping[str, str], worker: str, *arguments: Any) -> int:
        """Be this worker from now on; see `RayWorkerHost`. Returns the pid.

        Args:
            surroundings: of the actor in whose slot a stand-in works.

        Raises:
            RuntimeError: it does not see the GPUs that they name.
        """
        self._is_called.set()
        from elastic.actors.worker import RayWorkerHost
        from elastic.train.rehearsal import check_sight

        take_usual_priority()
        os.environ.update(surroundings)
        check_sight(surroundings.get("CUDA_VISIBLE_DEVICES", ""))
        self._worker = worker
        self._host = RayWorkerHost(worker, *arguments)
        self._has_begun.set()
        return self._host.ready()

    def stands_for(self) -> str:
        """The worker that it is, or is to be; empty: none."""
        return self._worker

    def do(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker.

        Raises:
            RuntimeError: it is none.
        """
        if not self._has_begun.wait(0.0 if method in _AT_ONCE else _BEGIN_S):
            raise RuntimeError(f"{method} was asked of a process that is no worker")
        return getattr(self._host, method)(*arguments)

    def _notice(self, reason: str) -> None:
        if not self._has_begun.is_set():
            os._exit(0)
        self.do("notice", reason)

    def _watch(self, stands_by_s: float) -> None:
        """Its driver is gone, and no other one has a use for it: it ends. Its node has no idle time: it takes some."""
        assert self._importing is not None, "only a stand-in is watched"
        forward_s = time.monotonic() + _PATIENCE_S
        while not self._worker:
            if self._importing.is_alive() and time.monotonic() > forward_s:
                forward_s = math.inf
                come_forward(self._importing)
            within_s = stands_by_s + _IMPORT_S * self._importing.is_alive()
            if time.monotonic() - self._asked_s > within_s:
                os._exit(0)
            self._has_begun.wait(_WATCH_S)

    def _watch_slot(self, waits_s: float) -> None:
        """Its driver died before it had begun it, and no other one goes on with who is nobody: it gives up its slot.

        Not while somebody of the run is at work, who has a driver, or waits for one. So whoever holds a slot for a
        stand-in, and is never begun, stays as long as that one works.
        """
        in_vain = 0
        while not self._is_called.wait(waits_s):
            waits_s, name = min(waits_s, _LOOK_S), ray.get_runtime_context().get_actor_name() or ""
            try:
                in_vain = 0 if _is_anybody_at_work(name) else in_vain + 1
                if in_vain < _LOOKS or self._is_called.is_set():
                    continue
                _give_up_slot(name)
            except Exception as error:  # Ray's head may be away: it looks again
                log.warning("whether a slot is anybody's is not known: %s", type(error).__name__)
            else:
                os._exit(0)

    def _import(self, train_fn: bytes) -> None:
        try:
            hang_back()
            self._hangs_back.set()
            _import_all(train_fn)
        except Exception as error:  # whatever the user's modules raise: who asks for it is told
            self._error = error
        finally:
            self._asked_s = time.monotonic()  # whoever has asked meanwhile has waited for this


def _import_all(train_fn: bytes) -> None:
    import elastic.actors.worker  # noqa: F401
    from elastic.train.heap import set_aside
    from elastic.train.rehearsal import rehearse

    rehearse()
    if train_fn:
        cloudpickle.loads(train_fn)
    set_aside()


def start_worker_actor(
    *,
    name: str,
    namespace: str,
    strategy: Any,
    resources: Mapping[str, float],
    as_stand_in: tuple[float, bytes, bool] = (0.0, b"", False),
    waits_s: float = _IMPORT_S,
) -> Any:
    """A handle to a new, detached actor; it waits for its slot by itself.

    Args:
        resources: of Ray, by name. as_stand_in, waits_s: see `WorkerActor`.
    """
    options: dict[str, Any] = {"concurrency_groups": _GROUPS, "max_restarts": 0}
    others = {key: amount for key, amount in resources.items() if key not in ("CPU", "GPU", "memory")}
    return (
        ray.remote(**options)(WorkerActor)
        .options(
            name=name,
            namespace=namespace,
            lifetime="detached",
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            memory=resources.get("memory"),
            resources=others,
            scheduling_strategy=strategy,
        )
        .remote(*as_stand_in, waits_s)
    )


def begin(actor: Any, surroundings: Mapping[str, str], worker: str, *arguments: Any) -> Any:
    """Have it be this worker; returns the reference, to its pid. See `WorkerActor.begin`."""
    return actor.begin.options(concurrency_group="control").remote(surroundings, worker, *arguments)


def call(actor: Any, method: str, *arguments: Any, group: str = "control") -> Any:
    """Start a call of a worker's method; returns the reference."""
    return actor.do.options(concurrency_group=group).remote(method, *arguments)


def actor_name(run: str, incarnation: int, role: str) -> str:
    """Of the actor that is started as this worker, or in another role."""
    return f"elastic-{run}@{incarnation}-{role}"


def stand_in_name(run: str, incarnation: int, number: int) -> str:
    """Of a stand-in, also when it has become a worker."""
    return actor_name(run, incarnation, f"{_STAND_IN}{number}")


def holder_name(run: str, incarnation: int, worker: str) -> str:
    """Of the actor that holds the accelerators of a stand-in's slot."""
    return actor_name(run, incarnation, f"{_HOLDER}{worker}")


def born_of(name: str) -> int:
    """The incarnation that has started the actor of this name."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    return int(match[1])


def worker_names(namespace: str) -> dict[str, str]:
    """Actors of a run that are workers, or may become them, by name: for which worker each stands, empty: for none.

    Of those that were stand-ins this is asked; who does not answer is left out.
    """
    roles = _roles(namespace)
    asked = {name: _ask_for_whom(name, namespace) for name, role in roles.items() if role.startswith(_STAND_IN)}
    workers = {name: role for name, role in roles.items() if not role.startswith((_STAND_IN, _HOLDER))}
    return workers | _answers({name: call for name, call in asked.items() if call is not None})


def _is_anybody_at_work(mate: str) -> bool:
    """Whether an actor of the run of this one says that it has become a worker.

    Raises:
        StopIteration: Ray has no actor of that name.
    """
    namespace = next(one["namespace"] for one in list_named_actors(all_namespaces=True) if one["name"] == mate)
    names = [name for name, role in _roles(namespace).items() if not role.startswith(_HOLDER)]
    for at in range(0, len(names), _ASKED_AT_ONCE):
        asked = {name: _ask_for_whom(name, namespace) for name in names[at : at + _ASKED_AT_ONCE]}
        if any(_answers({name: call for name, call in asked.items() if call is not None}).values()):
            return True
    return False


def _give_up_slot(name: str) -> None:
    """The one in which the actor of this name is; before it those that wait for one, and would take it for nobody."""
    life = name[: name.index("-", name.index("@"))]
    for number, one in placement_group_table().items():
        if one["name"].startswith(f"{life}-gang") and one["state"] == "PENDING":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number))))
    group = get_current_placement_group()
    assert group is not None, f"{name} is in no slot"
    remove_placement_group(group)


def holders(namespace: str) -> dict[str, Any]:
    """Actors that hold accelerators for stand-ins, by the worker."""
    names = {role.removeprefix(_HOLDER): name for name, role in _roles(namespace).items() if role.startswith(_HOLDER)}
    actors = {worker: _find(name, namespace) for worker, name in names.items()}
    return {worker: actor for worker, actor in actors.items() if actor is not None}


def _roles(namespace: str) -> dict[str, str]:
    named = [str(one["name"]) for one in list_named_actors(all_namespaces=True) if one["namespace"] == namespace]
    return {name: match[2] for name in named if (match := _NAME.fullmatch(name)) is not None}


def _find(name: str, namespace: str) -> Any:
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None  # it has ended meanwhile


def _ask_for_whom(name: str, namespace: str) -> Any:
    actor = _find(name, namespace)
    return None if actor is None else actor.stands_for.options(concurrency_group="control").remote()


def _answers(calls: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    if calls:
        ray.wait(list(calls.values()), num_returns=len(calls), timeout=_ANSWER_S)
    for name, asked in calls.items():
        try:
            found[name] = ray.get(asked, timeout=0)
        except RayError as error:
            log.debug("%s does not say for whom it stands: %s", name, type(error).__name__)
    return found
