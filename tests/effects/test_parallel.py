"""Many transfers at once: order of results, the first error, the deadline, the cap."""

import threading

import pytest

from elastic.checkpoint.parallel import Throttle, in_parallel
from elastic.checkpoint.store import StoreError


def run(work, items, threads=4, stall_s=20.0):
    return in_parallel(work, items, threads=threads, stall_s=stall_s, what="the test")


def test_results_come_in_the_items_order():
    assert run(lambda item: item * item, range(50)) == [item * item for item in range(50)]
    assert run(lambda item: item, []) == []


def test_items_are_worked_on_at_the_same_time():
    barrier = threading.Barrier(4)
    assert run(lambda item: barrier.wait(10) >= 0, range(4)) == [True] * 4


def test_the_first_error_ends_it():
    begun = []

    def work(item):
        begun.append(item)
        if item == 3:
            raise StoreError("item 3")

    with pytest.raises(StoreError, match="item 3"):
        run(work, range(1000), threads=1)
    assert begun == [0, 1, 2, 3]


def test_c16_what_does_not_move_is_named():
    never = threading.Event()
    with pytest.raises(StoreError, match=r"the test: nothing moved for 0 s, waiting for 7"):
        run(lambda item: item != 7 or never.wait(20), range(10), stall_s=0.2)
    never.set()


def test_what_moves_slowly_is_waited_for():
    """For longer than nothing may move, all in all."""
    ticks = threading.Event()
    assert run(lambda item: ticks.wait(0.8), range(5), threads=1, stall_s=3.0) == [False] * 5


def test_threads_share_one_cap():
    now, slept = [0.0], []
    throttle = Throttle(100.0, clock=lambda: now[0], sleep=slept.append)
    for _ in range(3):
        throttle.take(50)
    now[0] = 10.0
    throttle.take(50)
    assert slept == [0.5, 1.0, 1.5, 0.5]  # the first one waits, too: a shard may be no more than that
    assert throttle.duration_s(200) == 2.0


def test_no_cap_never_waits():
    throttle = Throttle(None, sleep=lambda _: pytest.fail("it slept"))
    throttle.take(1 << 40)
    throttle.take(1)
