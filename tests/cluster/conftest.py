"""Effect. One small Ray cluster for all cluster tests: a head without slots and three nodes on this machine."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import training
from tests.effects.gcs_server import GcsServer

SLOTS = 3
STORE_BYTES = 80 << 20


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsServer]:
    """What gs:// leads to, for this process and for all processes of the cluster."""
    with GcsServer(page=1000) as server:
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        yield server
        del os.environ["STORAGE_EMULATOR_HOST"]


@pytest.fixture(scope="session")
def hosts(gcs: GcsServer) -> Iterator[Any]:
    """The cluster; `hosts.nodes` maps names to Ray's node ids. Node "gpu" pretends to have two GPUs."""
    directory = tempfile.mkdtemp(prefix="et", dir="/tmp")
    os.environ |= {"RAY_TMPDIR": directory, "RAY_AUTH_MODE": "disabled"}
    os.environ.pop("RAY_ADDRESS", None)
    import ray
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    cloudpickle.register_pickle_by_value(training)
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, object_store_memory=STORE_BYTES)
        cluster.nodes = {
            "a": cluster.add_node(num_cpus=SLOTS, object_store_memory=STORE_BYTES),
            "b": cluster.add_node(num_cpus=SLOTS, object_store_memory=STORE_BYTES, labels={"pool": "b"}),
            "gpu": cluster.add_node(num_cpus=1, num_gpus=2, object_store_memory=STORE_BYTES),
        }
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(directory, ignore_errors=True)
