"""Effect. What an attempt may touch in a GradScaler, kept so that a retry starts as if nothing had happened.

This is the one module that touches GradScaler's private `_per_optimizer_states`: `state_dict` leaves out that an
optimizer was already unscaled, and a retry that calls `unscale_` again would be refused.
"""

import copy
from typing import Any

import torch


class ScalerState:
    """A copy of a gradient scaler's state at the door of a step.

    Args:
        device: of the gradients. A scaler is set up there by the first loss that it scales; a replica that is dealt
            no micro-batch scales none, and must step like the others.
    """

    def __init__(self, scaler: Any, device: torch.device) -> None:
        scaler.scale(torch.zeros((), device=device))
        self._scaler = scaler
        self._state = copy.deepcopy(scaler.state_dict())

    def restore(self) -> None:
        if self._state:  # else it is disabled, and has nothing to restore
            self._scaler.load_state_dict(copy.deepcopy(self._state))
            self._scaler._per_optimizer_states.clear()
