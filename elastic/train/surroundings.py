"""Effect. What a worker's process gives to its session."""

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from elastic.checkpoint.source import Source
from elastic.settings import Checkpoint, Limits
from elastic.train.flight import FlightPage
from elastic.train.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a session is built from.

    Attributes:
        run, worker: names.
        host: address of this node for other workers.
        device: where the model belongs.
        seed: base of all random state and of the data order.
        ray_blocks: (Ray dataset, seconds that a block may take) -> a map-style dataset; None where there is no Ray.
        dumps: a pickler for what goes to loader processes; may carry classes of the user's script, too.
        shard, width: this worker's place among the workers of its replica, and how many they are.
        threads: torch's intra-op threads.
        most_replicas: that the run may grow to.
        checkpoint: which snapshots are taken, and where; None: none.
        incarnation: life of the driver that started this worker.
        sources: where checkpoints of the run can be read from here, as things stand when it is called.
        section: a context around each step, for profilers.
        has_nccl: whether tensors on its GPU are to go through NCCL; else gloo takes them.
    """

    run: str
    worker: str
    host: str
    device: torch.device
    seed: int
    limits: Limits
    link: Link
    page: FlightPage
    dumps: Callable[[Any], bytes] = pickle.dumps
    ray_blocks: Callable[[Any, float], Any] | None = None
    shard: int = 0
    width: int = 1
    threads: int = 1
    most_replicas: int = 1
    checkpoint: Checkpoint | None = None
    incarnation: int = 1
    sources: Callable[[], Sequence[Source]] = tuple
    section: Callable[[], AbstractContextManager[None]] = nullcontext
    has_nccl: bool = True

    @property
    def gpus(self) -> tuple[str, ...]:
        """What this process was given, as indices or UUIDs of its node; nothing where it trains on a CPU."""
        if self.device.type != "cuda":
            return ()
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        if given is None:
            return tuple(map(str, range(torch.cuda.device_count())))
        return tuple(name.strip() for name in given.split(",") if name.strip())
