"""Effect. Who waits in a slot for a driver that died before it said a word gives the slot up, on a real cluster."""

import time
from typing import Any

import pytest
import ray
from ray.util import placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from elastic.actors.peer_source import namespace
from elastic.actors.slots import is_reserved
from elastic.actors.worker_actor import actor_name, holder_name, start_worker_actor, worker_names
from tests.cluster.test_taking_over import until

pytestmark = pytest.mark.timeout(180)

RUN = "unbegun"
LOOK_S = 0.5


class AtWork:
    """Stands for an actor that has become a worker of the run."""

    def stands_for(self) -> str:
        return "w1"


def in_slot(name: str) -> PlacementGroup:
    """The slot of an actor that nobody ever begins."""
    group = placement_group([{"CPU": 1}], name=f"{name}-slot", lifetime="detached")
    strategy = PlacementGroupSchedulingStrategy(group, 0)
    options: dict[str, Any] = {"namespace": namespace(RUN), "resources": {"CPU": 1.0}, "waits_s": LOOK_S}
    actor = start_worker_actor(name=name, strategy=strategy, **options)
    assert ray.get(actor.stands_for.options(concurrency_group="control").remote(), timeout=60) == ""
    return group


def test_a_slot_in_which_nobody_was_begun_is_given_up_once_nobody_of_the_run_is_at_work(hosts: Any) -> None:
    at_work = ray.remote(num_cpus=0, concurrency_groups={"control": 1})(AtWork)
    working = at_work.options(name=actor_name(RUN, 1, "w1"), namespace=namespace(RUN)).remote()
    ray.get(working.stands_for.remote(), timeout=60)
    groups = [in_slot(actor_name(RUN, 1, "w0")), in_slot(holder_name(RUN, 1, "w1"))]
    groups.append(placement_group([{"CPU": 100}], name=f"elastic-{RUN}@1-gang7x1", lifetime="detached"))  # waits
    time.sleep(6 * LOOK_S)
    assert all(map(is_reserved, groups)), "whoever works has a driver, who may begin it yet"
    ray.kill(working)
    until(lambda: not any(map(is_reserved, groups)), "a slot is nobody's, and not free")
    until(lambda: not worker_names(namespace(RUN)), "a process is left that was never begun")
