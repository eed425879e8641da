"""Effect. Storage that fails: a switch on this node that the stores of a breakable run look at."""

import time

from elastic.chaos.aftermath import Aftermath, CannotStrikeError
from elastic.checkpoint.stores.faulty import is_on, struck_file, turn_off, turn_on
from elastic.train.flight import storage_switch

_POLL_S = 0.02


def fail(run: str, aftermath: Aftermath, share: float, lasts_s: float, draw: int) -> str:
    """Have calls fail for so long; returns the first that did.

    Raises:
        CannotStrikeError: nobody calls the store, or they fail already.
    """
    switch, ends_s = storage_switch(run), time.monotonic() + lasts_s
    if is_on(switch):  # the end of that one would be the end of this one, too
        raise CannotStrikeError("calls to the store fail on this node already, by another fault that was injected")
    turn_on(switch, share, lasts_s, draw)
    try:
        while not aftermath.is_closed(_POLL_S):
            if struck_file(switch).exists() and (struck := struck_file(switch).read_text()):
                aftermath.after(ends_s - time.monotonic(), lambda: turn_off(switch))
                return struck
            if time.monotonic() > ends_s:
                raise CannotStrikeError(f"nobody on this node called the store within {lasts_s:g} s")
        raise CannotStrikeError("the host monitor ended before anybody called the store")
    except CannotStrikeError:
        turn_off(switch)
        raise
