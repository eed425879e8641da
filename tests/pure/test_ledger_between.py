"""The ledger asked for a part of a run: borders, moments outside of it, several lives."""

from itertools import pairwise
from math import inf

import pytest

from elastic.ledger.ledger import Ledger
from elastic.ledger.model import Account
from elastic.ledger.telling import lines
from tests.pure.test_ledger import STEP_S, C, Journal, near, only, started

BEGAN_S, GONE_S = 100.0, 6.0  # of `two_lives`: its beginning, and for how long it has no driver


def two_lives() -> Journal:
    """A failure in flight, steps that are lost again, an end; then another life of the driver."""
    journal = started().steps(5).sleep(0.3)
    journal.incident("worker_lost")
    journal.phase("freezing").sleep(0.7).form(2, took_s=0.5).steps(6)
    journal.incident("silent_corruption", number=1)
    journal.phase("waiting", waits_for="restore").sleep(1.0).form(2, took_s=0.0, back_to=24).steps(4)
    journal.sleep(GONE_S).begin().sleep(2.0)
    return journal.form(2, took_s=0.5).steps(9)


def lives() -> tuple[Account, float]:
    """The whole, and when the second life has begun."""
    account = two_lives().account()
    lost = only(account, "driver lost")
    return account, lost.opened_s + GONE_S


@pytest.mark.parametrize("length_s", [0.1, STEP_S, 0.7, 3.3, 1e3])
def test_parts_add_up_to_the_whole(length_s):
    ledger = two_lives().ledger
    whole = ledger.account()
    borders = [whole.begin_s]
    while borders[-1] < whole.end_s:
        borders.append(borders[-1] + length_s)
    parts = [ledger.account(between=cut) for cut in pairwise(borders)]
    for category in C:
        for view in ("wall_seconds", "worker_seconds"):
            together = sum(getattr(part, view).get(category, 0.0) for part in parts)
            assert together == near(getattr(whole, view).get(category, 0.0)), (category, view)
    assert sum(part.workers_s for part in parts) == near(whole.workers_s)
    for what in ("kept", "redone", "broken"):
        assert sum(getattr(part.steps, what) for part in parts) == getattr(whole.steps, what) > 0, what
    assert parts[-1].steps.last == whole.steps.last
    assert all(sum(part.wall_seconds.values()) == near(part.wall_s) for part in parts)


def test_a_step_belongs_to_the_part_in_which_it_was_committed():
    ledger = started().ledger
    first_s = ledger.account().end_s - 20 * STEP_S
    for count in (0, 1, 7, 20):
        until_s = first_s + count * STEP_S
        steps = ledger.account(between=(0.0, until_s)).steps
        assert (steps.kept, steps.last) == (count, count - 1), "its commit is the border"
        steps = ledger.account(between=(0.0, until_s + 0.9 * STEP_S)).steps
        assert (steps.kept, steps.last) == (count, count - 1), "the next one was in flight"
        rest = ledger.account(between=(until_s, inf)).steps
        assert (rest.kept, rest.last) == (20 - count, 19 if count < 20 else -1)


def test_lives_and_incidents_are_those_of_the_part():
    whole, second_s = lives()
    assert whole.incarnations == 2 and not whole.is_part
    ledger = two_lives().ledger
    first, gone, second = (
        ledger.account(between=cut)
        for cut in (
            (BEGAN_S, second_s - GONE_S - 1.0),
            (second_s - GONE_S + 1.0, second_s - 1.0),
            (second_s + 1.0, inf),
        )
    )
    assert (first.incarnations, gone.incarnations, second.incarnations) == (1, 0, 1)
    assert gone.wall_seconds == {C.BETWEEN_INCARNATIONS: near(GONE_S - 2.0)} and gone.goodput == 0.0
    assert [one.kind for one in gone.incidents] == ["driver lost"], "it began before, and costs this part something"
    assert [one.kind for one in second.incidents] == ["driver lost"]
    assert C.BETWEEN_INCARNATIONS not in second.wall_seconds and second.steps.kept == 9
    assert [one.kind for one in first.incidents] == ["run start", "worker lost", "silent corruption"]
    across = ledger.account(between=(second_s - 1.0, second_s + 1.0))
    assert across.incarnations == 1 and across.wall_seconds[C.BETWEEN_INCARNATIONS] == near(1.0)
    assert all(one.is_part and (one.run_begin_s, one.run_end_s) == (BEGAN_S, whole.end_s) for one in (first, across))


@pytest.mark.parametrize("cut", [(0.0, 50.0), (50.0, BEGAN_S), (1e6, 2e6), (1e6, inf), (110.0, 105.0), (-inf, 1.0)])
def test_outside_of_the_run_there_is_nothing(cut):
    account = two_lives().ledger.account(between=cut)
    assert account.wall_s == account.workers_s == account.goodput == 0.0
    assert account.run_begin_s <= account.begin_s == account.end_s <= account.run_end_s
    assert account.steps.kept == 0 and account.definitions[0].value is None
    assert all(seconds == 0.0 for seconds in account.wall_seconds.values())


def test_what_sticks_out_of_the_run_is_cut_off():
    ledger = two_lives().ledger
    whole = ledger.account()
    assert ledger.account(between=(-inf, inf)) == ledger.account(between=(0.0, 1e9)) == whole
    assert ledger.account(between=(0.0, BEGAN_S + 5.0)) == ledger.account(between=(BEGAN_S, BEGAN_S + 5.0))


def test_a_part_is_told_by_the_clock_of_the_run():
    whole, second_s = lives()
    account = two_lives().ledger.account(between=(second_s + 1.0, inf))
    head, *text = lines(account)
    begin_s, end_s = second_s + 1.0 - BEGAN_S, whole.end_s - BEGAN_S
    assert f"of it, from {begin_s:.1f} s to {end_s:.1f} s, 1 life of" in head and "so far" not in head
    (told,) = [line for line in text if "driver lost" in line]
    (also,) = [line for line in lines(whole) if "driver lost" in line]
    assert ", 2 lives of the driver" in next(lines(whole))
    assert told.partition("cost")[0] == also.partition("cost")[0], "at the same moment, whatever is asked for"


def test_a_run_of_one_moment_lies_there():
    ledger = Ledger()
    assert ledger.feed({"t": 5.0, "event": "RunStarted"})
    account = ledger.account()
    assert (account.begin_s, account.end_s, account.run_begin_s, account.incarnations) == (5.0, 5.0, 5.0, 1)
    assert ledger.account(between=(0.0, 9.0)) == account
