"""Effect. Random state by (seed, step, micro-batch): who computes a micro-batch does not change what it draws.

Seeding afresh at each place leaves no random state that depends on history, so a retry or a joiner needs no copy.
"""

import random

import torch

from elastic.control.data import seed_of

BODY = -1  # the code of a step before and after its micro-batches
DOOR = -2  # the code before the step, in the body of the loop


def seed_all(seed: int, step: int, micro_batch: int) -> None:
    """Seed Python, numpy (where it is loaded) and torch, all devices."""
    value = seed_of(seed, step, micro_batch)
    random.seed(value)
    # Not torch.manual_seed: while CUDA is not initialized, it keeps a formatted stack of every call for later.
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)
    _seed_numpy(value & 0xFFFFFFFF)


def _seed_numpy(value: int) -> None:
    import numpy as np

    np.random.seed(value)
