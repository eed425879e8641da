"""Effect. Where the supervisor's actor is placed: beside the driver, or on a node that is named for it."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from elastic.actors.asking import supervisor_name
from elastic.actors.guard import Guard
from elastic.actors.peer_source import namespace
from elastic.actors.token import Token
from elastic.control.remediation import Policy
from elastic.control.state import RunState
from elastic.settings import Scaling

log = logging.getLogger("elastic")


def start_supervisor(token: Token, state: RunState, policy: Policy, beside_driver: bool) -> tuple[Any, bool]:
    """A new supervisor, and whether it is on the driver's node.

    Raises:
        ValueError: the run has one.
    """
    run, scaling = state.settings.run, state.settings.scaling
    here = ray.get_runtime_context().get_node_id()
    node = here if beside_driver else (_wanted_node(scaling) or here)
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "lifetime": "detached"}
    options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
    options |= {"name": supervisor_name(run), "namespace": namespace(run)}
    return ray.remote(**options)(Guard).remote(token, state, policy, (here, os.getpid())), node == here


def _wanted_node(scaling: Scaling) -> str | None:
    """A live node as `Scaling` describes it; None where nothing is asked for, or there is none."""
    if not scaling.supervisor_labels and not scaling.supervisor_resource:
        return None
    found = sorted(one["NodeID"] for one in ray.nodes() if one["Alive"] and _fits(one, scaling))
    if not found:
        log.warning("no node is as Scaling.supervisor_labels or supervisor_resource say: the supervisor stays here")
    return found[0] if found else None


def _fits(node: Mapping[str, Any], scaling: Scaling) -> bool:
    labels, resource = node.get("Labels", {}), scaling.supervisor_resource
    is_labelled = all(labels.get(key) == value for key, value in (scaling.supervisor_labels or {}).items())
    return is_labelled and (not resource or node["Resources"].get(resource, 0) > 0)
