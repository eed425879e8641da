"""Where processes stand by for workers that may be lost, and where a replacement finds one."""

import pytest

from elastic.control.standing_by import ready_places, room_of, stand_ins_by_node
from elastic.settings import Scaling


def test_room_is_what_the_scarcest_resource_allows_on_nodes_that_may_have_workers() -> None:
    scaling = Scaling(resources_per_worker={"CPU": 0.1, "GPU": 1.0})
    nodes = {
        "gpus": ({"CPU": 64.0, "GPU": 8.0, "memory": 1e9}, {}),
        "cores": ({"CPU": 0.3, "GPU": 8.0}, {}),
        "cpu": ({"CPU": 64.0}, {}),
        "bad": ({"CPU": 64.0, "GPU": 8.0}, {}),
    }
    assert room_of(nodes, scaling, {"bad"}) == {"gpus": 8, "cores": 3}


@pytest.mark.parametrize(
    ("wanted", "fit"),
    [
        ({}, "abc"),
        ({"pool": "x"}, "a"),
        ({"pool": "!x"}, "bc"),
        ({"pool": "in(x, y)"}, "ab"),
        ({"pool": "!in(x,y)"}, "c"),
        ({"pool": "y", "zone": "1"}, "b"),
        ({"pool": "x", "zone": "1"}, ""),
    ],
)
def test_labels_are_those_of_ray(wanted: dict[str, str], fit: str) -> None:
    nodes = {
        "a": ({"CPU": 1.0}, {"pool": "x"}),
        "b": ({"CPU": 1.0}, {"pool": "y", "zone": "1"}),
        "c": ({"CPU": 1.0}, {}),
    }
    assert "".join(room_of(nodes, Scaling(label_selector=wanted), ())) == fit


def test_each_node_with_workers_has_some_and_as_many_others_as_a_replica_takes_have_what_a_node_may_lose() -> None:
    room = {"a": 4, "b": 4, "small": 1, "large": 8, "next": 4}
    assert stand_ins_by_node({"a": 4, "b": 2}, room, Scaling()) == {"large": 4, "a": 1, "b": 1}
    assert stand_ins_by_node({"a": 1}, {"a": 4, "b": 4}, Scaling(stand_ins=2)) == {"b": 1, "a": 2}
    two = Scaling(workers_per_replica=8, num_nodes_per_dp=2)
    assert stand_ins_by_node({"a": 4, "b": 4}, room, two) == {"large": 4, "next": 4, "a": 1, "b": 1}
    assert stand_ins_by_node({"a": 4, "b": 4}, {"a": 4, "b": 4, "small": 1}, Scaling())["small"] == 1


def test_none_where_none_are_wanted_or_nobody_works_yet() -> None:
    assert stand_ins_by_node({"a": 4}, {"a": 4, "b": 4}, Scaling(stand_ins=0)) == {}
    assert stand_ins_by_node({}, {"a": 4}, Scaling()) == {}


def test_a_replacement_goes_where_its_whole_replica_stands_by_and_a_slot_may_be_free() -> None:
    room = {"a": 2, "b": 2, "c": 2}
    ready = {"a": 1, "b": 1, "c": 0, "gone": 1}
    assert ready_places(ready, {"a": 2, "b": 1}, room, Scaling()) == ("b",)
    assert ready_places(ready, {}, room, Scaling()) == ("a", "b")
    pairs = Scaling(workers_per_replica=2)
    assert ready_places({"a": 1, "b": 2, "c": 2}, {"c": 1}, room, pairs) == ("b",)
    assert ready_places(ready, {}, room, Scaling(workers_per_replica=2, num_nodes_per_dp=2)) == ()
