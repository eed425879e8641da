"""Effect. A forward and a backward before the first step, for what they compile and allocate; their results are undone.

A joiner that compiles in its first step has all the others wait for it. Before the loop nobody waits for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from elastic.train.buffers import buffers_of


@contextmanager
def undone(model: torch.nn.Module) -> Iterator[None]:
    """What is computed within leaves no gradients; buffers of its state, and torch's random numbers, are as they were.

    Args:
        model: it is forwarded, and may be back-propagated; nobody updates it.
    """
    buffers = {name: buffer.detach().clone() for name, buffer in buffers_of(model).items()}
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        for param in model.parameters():
            param.grad = None
        live = dict(model.named_buffers())
        with torch.no_grad():
            for name, kept in buffers.items():
                live[name].copy_(kept)
