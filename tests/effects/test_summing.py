"""crc32c of payload: the values of google_crc32c, and no GIL held."""

import threading
import time
from collections.abc import Callable

import google_crc32c
import numpy as np
import pytest

from elastic.checkpoint import summing
from elastic.checkpoint.summing import PIECE_BYTES, extend, native, value

MIB = 1 << 20
SIZES = (0, 1, 7, 8, 4095, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5)


@pytest.mark.parametrize("call", [native(), None], ids=["native", "pieces"])
@pytest.mark.parametrize("offset", [0, 1, 3, 64])
def test_the_values_are_those_of_google_crc32c(call, offset):
    payload = np.random.default_rng(7).integers(0, 256, SIZES[-1] + offset, dtype=np.uint8)
    for size in SIZES:
        data = payload[offset : offset + size]
        expected = google_crc32c.value(data.tobytes())
        assert extend(0, data, call) == extend(0, memoryview(data), call) == extend(0, data.tobytes(), call) == expected
        for cut in (0, 1, size // 3, size):
            assert extend(extend(0, data[:cut], call), data[cut:], call) == expected


def test_the_c_function_is_found_where_the_extension_is_c():
    assert google_crc32c.implementation == "c"
    assert native() is not None


def test_without_the_c_function_sums_are_taken_all_the_same(monkeypatch):
    monkeypatch.setattr("google_crc32c._crc32c.__file__", "/nowhere.so")
    assert summing.native() is None


def turns_in_the_midst(work: Callable[[np.ndarray], int]) -> int:
    """How often another thread has a turn in the second quarter of the time for which 256 MiB are summed.

    Just before and just after a call threads may take turns in any case.
    """
    payload = np.zeros(256 * MIB, dtype=np.uint8)
    turns_s: list[float] = []
    begun, is_over = threading.Event(), threading.Event()

    def turn() -> None:
        while not is_over.is_set():
            turns_s.append(time.perf_counter())
            begun.set()

    other = threading.Thread(target=turn)
    other.start()
    try:
        assert begun.wait(10.0)
        begin_s = time.perf_counter()
        work(payload)
        quarter_s = (time.perf_counter() - begin_s) / 4
    finally:
        is_over.set()
        other.join(10.0)
    return sum(begin_s + quarter_s < at_s < begin_s + 2 * quarter_s for at_s in turns_s)


def test_another_thread_runs_while_payload_is_summed():
    """At least once: other processes may take all cores for a while, and who holds the GIL lets nobody run at all."""
    assert any(turns_in_the_midst(value) > 100 for _ in range(30))


def test_the_library_itself_lets_nobody_run():
    """If this fails, `elastic.checkpoint.summing` is not needed any more."""
    assert min(turns_in_the_midst(google_crc32c.value) for _ in range(10)) == 0
