"""Effect. The random state of DTensors on GPUs, without a word to others.

This is the one module that touches torch's private interface to it. torch makes a tracker of that state with the first
random operation on such a DTensor, and has rank 0 broadcast its state then (`torch.distributed.tensor._dispatch`). A
replacement would be alone in that collective, since its mates have their trackers; and none is needed, since shards of
a replica are seeded alike.
"""

from torch.distributed.device_mesh import DeviceMesh


def begin(mesh: DeviceMesh, seed: int) -> None:
    """Make the tracker of this process, if it has none; seeds torch's generators.

    Args:
        mesh: on GPUs; this worker belongs to it.
    """
    from torch.distributed.tensor import _random

    _random.manual_seed(seed, mesh)
