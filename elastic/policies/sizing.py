"""Pure. How much memory the snapshots of a model need on each host."""

import math
from dataclasses import dataclass

from elastic.errors import SettingError

BYTES_PER_PARAM = 12  # weight, and two moments of Adam, in float32
SLOTS = 3  # one being written, the newest sealed one, and one that a slow reader may hold
MARGIN = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Bytes, by host, of a state that is spread evenly over the hosts.

    Attributes:
        state_bytes: of the whole model, with its optimizer. shard_bytes: what one host holds of it.
        arena_bytes: what the snapshots of a host take. ramdisk_bytes: what its memory tier should hold.
    """

    state_bytes: int
    shard_bytes: int
    arena_bytes: int
    ramdisk_bytes: int


def slots_for(peers: int | None) -> int:
    """Snapshots that a worker has room for: nodes that take copies may hold two of them at a time, not just one."""
    return SLOTS + (peers != 0)


def sizing(params: float, hosts: int, *, copies: int, bytes_per_param: float = BYTES_PER_PARAM) -> Sizing:
    """12 bytes a parameter, so many copies of the shard, 15 % on top (Google's multi-tier checkpointing takes 2).

    Args:
        params: of the model. hosts: that share one copy of the state; where each holds a whole copy, 1.
        bytes_per_param: of the state, with the optimizer's.
        copies: snapshots that a host keeps at once, see `slots_for`.

    Raises:
        SettingError: a number is not positive.
    """
    for name, value in (("params", params), ("hosts", hosts), ("bytes-per-param", bytes_per_param), ("copies", copies)):
        if not (math.isfinite(value) and value > 0):
            raise SettingError(f"--{name}={value} must be a positive number")
    if not math.isfinite(params * bytes_per_param * copies * MARGIN):
        raise SettingError(f"--params={params} is more than any number of bytes")
    state_bytes = math.ceil(params * bytes_per_param)
    shard_bytes = -(-state_bytes // hosts)
    arena_bytes = copies * shard_bytes
    return Sizing(
        state_bytes=state_bytes,
        shard_bytes=shard_bytes,
        arena_bytes=arena_bytes,
        ramdisk_bytes=math.ceil(arena_bytes * MARGIN),
    )
