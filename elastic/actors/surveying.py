"""Effect. A look at all nodes of a Ray cluster for `elastic doctor`: an actor on each, for a moment."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.cluster import connected
from elastic.actors.priority import take_usual_priority
from elastic.checkpoint.store import MissingError
from elastic.checkpoint.stores import open_store
from elastic.control.diagnosis import Cluster, Machine
from elastic.control.standing_by import room_of
from elastic.errors import ElasticError, NoClusterError
from elastic.hosts.peers import bytes_per_s, lend
from elastic.hosts.survey import survey
from elastic.settings import Scaling

ANSWER_S = 60.0  # a node may have to start a process, and import
_SPEED_S = 10.0
_TIER_S = 30.0
_LINKS = 16  # neighbours whose network is measured, one after the other


class Surveyor:
    """On a node: what `survey` sees there."""

    def machine(self, name: str, ramdisk: str) -> Machine:
        take_usual_priority()  # as workers do
        return replace(survey(name, ramdisk), niceness=os.getpriority(os.PRIO_PROCESS, 0))

    def clock_s(self) -> float:
        return time.time()

    def tier(self, url: str, key: str) -> str:
        return tier_trouble(url, key)

    def lend(self) -> tuple[str, int]:
        """Send bytes to whoever connects first; where."""
        host = str(ray.util.get_node_ip_address())
        return host, lend(host)

    def bytes_per_s(self, host: str, port: int) -> float:
        """How fast they come; 0: not at all."""
        try:
            return bytes_per_s(host, port, _SPEED_S)
        except OSError:
            return 0.0


def survey_cluster(address: str | None, ramdisk: str, scaling: Scaling, persistent: str | None = None) -> Cluster:
    """All live nodes of the cluster at an address, or that on this machine.

    Args:
        scaling: by which workers are placed. persistent: URL of a persistent tier that nodes are to try; None: none.
    """
    shown = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        with connected(address):
            return _surveyed(shown, ramdisk, scaling, persistent)
    except NoClusterError as error:
        return Cluster(address=shown, trouble=str(error), is_there=error.is_there)


def _surveyed(address: str, ramdisk: str, scaling: Scaling, persistent: str | None) -> Cluster:
    nodes = {str(one["NodeID"]): one for one in ray.nodes() if one["Alive"]}
    room = room_of({node: (one["Resources"], one["Labels"]) for node, one in nodes.items()}, scaling, ())
    names = {node: f"node {node[:8]} ({one['NodeManagerAddress']})" for node, one in nodes.items()}
    actor_class: Any = ray.remote(num_cpus=0)(Surveyor)
    actors: dict[str, Any] = {
        node: actor_class.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in nodes
    }
    try:
        asked = {node: actor.machine.remote(names[node], ramdisk) for node, actor in actors.items()}
        deadline_s = time.monotonic() + ANSWER_S
        found = {node: _answer(answer, deadline_s - time.monotonic()) for node, answer in asked.items()}
        heard = [node for node, machine in found.items() if machine is not None]
        return Cluster(
            address=address,
            has_token=os.environ.get("RAY_AUTH_MODE") == "token",
            machines=tuple(replace(found[node], has_room=node in room) for node in heard),
            silent=tuple(names[node] for node in nodes if node not in heard),
            store_bytes=tuple(
                (names[node], int(nodes[node]["Resources"].get("object_store_memory", 0))) for node in heard
            ),
            clocks_s=tuple((names[node], _clock_offset_s(actors[node])) for node in heard),
            bytes_per_s=tuple(_speeds(names, [(node, actors[node]) for node in heard])),
            tiers=tuple(_tiers(persistent, names, [(node, actors[node]) for node in heard])),
        )
    finally:
        for actor in actors.values():
            ray.kill(actor)


def tier_trouble(url: str, key: str) -> str:
    """What keeps this node from reading an object of a persistent tier and writing one beside it; empty: nothing."""
    try:
        with closing(open_store(url, deadline_s=_TIER_S)) as store:
            store.read(key)
            beside = f"{key}-{uuid.uuid4().hex}"
            store.create(beside, b"there")
            store.delete(beside)
    except MissingError:
        return "what the machine that asks has written there is not there"
    except ElasticError as error:
        return str(error)
    return ""


def _tiers(url: str | None, names: dict[str, str], actors: list[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    """What keeps each node from using a persistent tier; nobody is asked where this machine itself can not."""
    if url is None:
        return
    key = f"elastic-doctor/{uuid.uuid4().hex}"
    try:
        with closing(open_store(url, deadline_s=_TIER_S)) as store:
            store.create(key, b"here")
            asked = [(names[node], actor.tier.remote(url, key)) for node, actor in actors]
            deadline_s = time.monotonic() + ANSWER_S
            try:
                told = [(name, _answer(answer, deadline_s - time.monotonic())) for name, answer in asked]
            finally:
                store.delete(key)
    except ElasticError:  # the look from here tells of it
        return
    yield from ((name, "no answer" if trouble is None else trouble) for name, trouble in told)


def _answer(reference: Any, timeout_s: float) -> Any:
    """None if there is none in time, or the node can not run us."""
    try:
        return ray.get(reference, timeout=max(0.0, timeout_s))
    except (RayError, GetTimeoutError):
        return None


def _clock_offset_s(actor: Any) -> float:
    """How far its clock is from ours at least; the way of question and answer is no offset."""
    before_s = time.time()
    there_s = _answer(actor.clock_s.remote(), ANSWER_S)
    after_s = time.time()
    if there_s is None:
        return 0.0
    return float(min(0.0, there_s - before_s) or max(0.0, there_s - after_s))


def _speeds(names: dict[str, str], actors: list[tuple[str, Any]]) -> list[tuple[str, float]]:
    """From each node to the next one, in a ring."""
    found = []
    ring = list(zip(actors, actors[1:] + actors[:1], strict=True)) if len(actors) > 1 else []
    for (giver, lender), (taker, reader) in ring[:_LINKS]:
        place = _answer(lender.lend.remote(), ANSWER_S)
        speed = None if place is None else _answer(reader.bytes_per_s.remote(*place), ANSWER_S)
        found.append((f"{names[giver]} > {names[taker]}", float(speed or 0.0)))
    return found
