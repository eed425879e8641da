"""Effect. On which of Ray's nodes somebody has processors, which is asked before a pod of a shared cluster goes."""

import time
from typing import Any

from elastic.actors.taken import others_nodes, taken_nodes


def test_a_node_is_taken_while_somebody_has_a_part_of_a_processor_there(hosts: Any) -> None:
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    here = {"bundle_label_selector": [{"pool": "b"}], "name": "elastic-a run@3-gang0x1"}
    place = placement_group([{"CPU": 0.1}], **here)
    ray.get(place.ready(), timeout=30)
    node = hosts.nodes["b"].node_id
    until(lambda: node in taken_nodes(), "a place that is kept for somebody is taken")
    assert others_nodes("another") == {node} and others_nodes("a run") == frozenset()
    remove_placement_group(place)
    until(lambda: node not in taken_nodes(), "it is free again")
    until(lambda: others_nodes("another") == frozenset(), "nor has anybody a slot there")


def until(condition: Any, why: str) -> None:
    """What is taken is told by each node, within a second or so."""
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s, why
        time.sleep(0.1)
