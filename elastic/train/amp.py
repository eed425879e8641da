"""Effect. Gradient scalers: a retry finds one as it was, and the workers of a replica drop an update together.

This is the one module that touches GradScaler's private `_per_optimizer_states`: `state_dict` leaves out that an
optimizer was already unscaled, and a retry that calls `unscale_` again would be refused; and what was found in the
gradients stands nowhere else.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.amp.grad_scaler import OptState


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


def agree_on_infinities(scaler: Any, optimizers: Sequence[Any], any_inside: Callable[[bool], bool]) -> None:
    """Unscale what is not yet, and have an infinity in one worker's part of the gradients be found by all.

    Args:
        any_inside: whether one of the replica's workers says so; all of them ask.
    """
    if not scaler.is_enabled():
        return
    for optimizer in optimizers:
        state = scaler._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.READY:
            scaler.unscale_(optimizer)
        found = state["found_inf_per_device"].values()
        if any_inside(any(bool(one) for one in found)):
            for one in found:
                one.fill_(1.0)
