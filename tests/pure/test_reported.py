"""Pure. The metrics of a step are known until it is durable, however many steps are made meanwhile."""

from elastic.checkpoint.reported import RECENT, STAGED, Reported

LATER = RECENT + 44


def trained(reported: Reported, begin: int, end: int) -> None:
    for step in range(begin, end):
        reported.reported(step, {"loss": float(step)})


def test_what_is_staged_is_known_until_it_is_durable() -> None:
    reported = Reported()
    trained(reported, 1, 11)
    reported.staged(10, -1)
    trained(reported, 11, LATER)
    assert reported.of(10) == {"loss": 10.0}
    assert reported.of(9) == {} and reported.of(LATER - 1) == {"loss": LATER - 1.0}
    reported.staged(LATER - 1, 10)
    assert reported.of(10) == {"loss": 10.0}, "one before it may be on its way"
    trained(reported, LATER, 2 * LATER)
    reported.staged(2 * LATER - 1, LATER - 1)
    assert reported.of(10) == {} and reported.of(LATER - 1) == {"loss": LATER - 1.0}


def test_a_shard_may_be_told_of_before_its_step_is_and_the_others_long_after() -> None:
    reported = Reported()
    reported.staged(5, -1)
    assert reported.of(5) == {}
    trained(reported, 5, LATER)
    reported.staged(5, -1)
    assert reported.of(5) == {"loss": 5.0}


def test_a_store_that_stays_away_does_not_fill_the_memory() -> None:
    reported = Reported()
    for step in range(STAGED + 1):
        trained(reported, step, step + 1)
        reported.staged(step, -1)
    trained(reported, STAGED + 1, STAGED + LATER)
    assert reported.of(0) == {} and reported.of(1) == {"loss": 1.0}


def test_a_step_that_is_made_anew_is_known_by_what_is_reported_then() -> None:
    reported = Reported()
    trained(reported, 1, 11)
    for step in (4, 10):
        reported.staged(step, 4)
    reported.went_back(4)
    assert reported.of(4) == {"loss": 4.0} and reported.of(10) == {} and reported.of(5) == {}
    reported.reported(10, {"loss": 0.5})
    reported.staged(10, 4)
    assert reported.of(10) == {"loss": 0.5}
