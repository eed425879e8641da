"""Who holds which state, counted answer by answer, is what a look at all workers shows."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elastic.control.holders import Holders
from elastic.control.state import Standing, WorkerRecord, highest
from tests.pure.bare_controller import commit

WIDTH = 2
COMMITS = st.sampled_from([commit(3), commit(3), commit(3, lineage="other"), commit(4), None])
CHANGES = st.fixed_dictionaries(
    {
        "standing": st.sampled_from((Standing.MEMBER, Standing.PARKED, Standing.SUSPECT)),
        "healed": st.sampled_from((True, True, False)),
        "answer": COMMITS,
        "prepared": st.sampled_from([None, None, commit(4)]),
    }
)
STORIES = st.lists(st.tuples(st.integers(0, 3), CHANGES), max_size=20)


def by_looking(workers: list[WorkerRecord]) -> tuple[int, str] | None:
    """The highest state that these hold in every shard."""
    held = {(worker, (one.step, one.lineage)) for worker in workers for one in worker.held}
    votes = Counter(state for _, state in held)
    shards = {state: {worker.shard for worker, one in held if one == state} for state in votes}
    whole = {state: count for state, count in votes.items() if len(shards[state]) == WIDTH}
    return highest(whole) if whole else None


@given(STORIES, st.sets(st.integers(0, 3)))
def test_what_is_counted_is_what_a_look_shows(story, absent):
    workers = {f"w{n}": WorkerRecord(name=f"w{n}", gang=n // WIDTH, shard=n % WIDTH) for n in range(4)}
    holders = Holders(WIDTH)
    for number, changes in story:
        old = workers[f"w{number}"]
        new = workers[old.name] = replace(old, **changes)
        holders.note(new, new.held)
        assert holders.names.keys() == {one.name for one in workers.values() if one.held}
        assert holders.resumable() == by_looking(list(workers.values()))
    but = [workers[f"w{number}"] for number in absent]
    present = [one for one in workers.values() if one not in but]
    state = holders.resumable(but=but)
    assert state == by_looking(present)
    if state is not None:
        named = holders.named(state, present)
        assert (
            named is not None
            and named == next(one.answer for one in present if any(held.same_state(named) for held in one.held))
            or named in [one.prepared for one in present]
        )


@given(STORIES)
def test_a_fresh_count_comes_to_the_same(story):
    workers: dict[str, WorkerRecord] = {}
    holders, fresh = Holders(WIDTH), Holders(WIDTH)
    for number, changes in story:
        name = f"w{number}"
        new = WorkerRecord(name=name, gang=number // WIDTH, shard=number % WIDTH, **changes)
        holders.note(new, new.held)
        workers[name] = new
    for worker in workers.values():
        fresh.note(worker, worker.held)
    assert holders == fresh


def test_two_counts_that_differ_are_not_equal():
    one, other = Holders(1), Holders(1)
    worker = WorkerRecord(name="w0", standing=Standing.MEMBER, healed=True, answer=commit(3))
    one.note(worker, worker.held)
    assert one != other and one.commits == {(3, "s3"): {"w0": commit(3)}}
    one.note(worker, ())
    assert one == other
