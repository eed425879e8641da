"""Effect. What a worker's process gives to its session."""

from dataclasses import dataclass

import torch

from elastic.settings import Limits
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
        shard, width: this worker's place among the workers of its replica, and how many they are.
    """

    run: str
    worker: str
    host: str
    device: torch.device
    seed: int
    limits: Limits
    link: Link
    page: FlightPage
    shard: int = 0
    width: int = 1
