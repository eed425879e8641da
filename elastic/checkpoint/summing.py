"""Effect. crc32c of payload, without the GIL: the training thread goes on while another one sums.

google_crc32c lets go of the GIL for `bytes` of 1 MiB and more, and for nothing else; payload is arrays. The C function
below it is called here by `ctypes`, which always lets go. Where the extension is pure Python, or hides that function,
payload is summed by google_crc32c in pieces, and the GIL is held for no longer than one takes.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np

PIECE_BYTES = 1 << 20  # of less, a sum takes no longer than it can take to get the GIL back

Extend = Callable[[int, int, int], int]


def native() -> Extend | None:
    """`crc32c_extend(crc, address, nbytes)`, or None where it is not to be had."""
    try:
        from google_crc32c import _crc32c

        found = ctypes.CDLL(_crc32c.__file__).crc32c_extend
    except (ImportError, OSError, AttributeError):
        return None
    found.argtypes, found.restype = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint32
    return found  # type: ignore[no-any-return]


_NATIVE = native()


def extend(crc: int, data: Any, call: Extend | None = _NATIVE) -> int:
    """crc32c of what `crc` is the sum of, followed by data: `bytes`, a memoryview or an array, contiguous uint8."""
    array = np.frombuffer(data, dtype=np.uint8)
    if call is not None and array.size >= PIECE_BYTES:
        return call(crc, array.ctypes.data, array.size)
    for at in range(0, array.size, PIECE_BYTES):
        crc = google_crc32c.extend(crc, array[at : at + PIECE_BYTES])
    return crc


def value(data: Any) -> int:
    """crc32c of data, see `extend`."""
    return extend(0, data)
