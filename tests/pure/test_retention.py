"""Pure. Which durable steps are kept: by table, and by property."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elastic.checkpoint.manifest import Fork, is_visible
from elastic.checkpoint.records import VERIFIED, Committed
from elastic.checkpoint.retention import judged
from elastic.control.values import CommitId
from elastic.settings import Keep


def record(step: int, loss: float | None = None, incarnation: int = 1, generation: int = 1) -> Committed:
    commit = CommitId(incarnation=incarnation, generation=generation, attempt=0, step=step, lineage="ab")
    return Committed(
        run="night-1", commit=commit, manifests=("0" * 64,), nbytes=1, metrics={} if loss is None else {"loss": loss}
    )


def kept(records, keep, **more) -> list[int]:
    return [verdict.record.commit.step for verdict in judged(records, keep, **more) if verdict.is_kept]


TEN = [record(step, loss=abs(step - 35.0)) for step in range(10, 110, 10)]


def test_the_settings_are_followed():
    assert kept(TEN, Keep(last=2)) == [100, 90]
    assert kept(TEN, Keep(last=1, every=40)) == [100, 80, 40, 10]
    assert kept(TEN, Keep(last=1, best=2)) == [100, 40, 30]
    assert kept(TEN, Keep(last=1, best=2, mode="max")) == [100, 90]
    assert kept(TEN, Keep(last=1, best=3, metric="accuracy")) == [100]


def test_a_metric_that_is_no_number_is_never_the_best():
    assert kept([record(1, loss=float("nan")), record(2, loss=3.0), record(3)], Keep(last=1, best=1)) == [3, 2]


def test_what_replicas_may_have_to_go_back_to_stays():
    """Votes are further apart than snapshots; the last one said so of step 55."""
    newest = replace(TEN[-1], metrics={VERIFIED: 55.0})
    assert kept([*TEN[:-1], newest], Keep(last=2)) == [100, 90, 50]
    assert kept([*TEN[:-1], newest], Keep(last=2), bad=[TEN[4].name]) == [100, 90, 40]
    nothing_left = replace(TEN[-1], metrics={VERIFIED: 5.0})
    assert kept([*TEN[:-1], nothing_left], Keep(last=2)) == [100, 90]


def test_leases_hold():
    verdicts = judged(TEN, Keep(last=1), leased=[TEN[1].name])
    assert {v.record.commit.step: v.reason for v in verdicts if v.is_kept} == {
        100: "the newest good step",
        20: "it is being read or written",
    }


def test_what_is_bad_makes_no_room_for_itself():
    """The last two are in quarantine: the two before them stay."""
    bad = [each.name for each in TEN[-2:]]
    assert kept(TEN, Keep(last=2), bad=bad) == [80, 70]


def test_what_cannot_be_read_stays_also_where_it_is_void():
    unread, forks = [TEN[0].name, TEN[-1].name], [Fork(incarnation=2, generation=1, step=50)]
    verdicts = judged(TEN, Keep(last=1), forks=forks, bad=unread, unread=unread)
    assert {v.record.commit.step: v.reason for v in verdicts if v.is_kept} == {
        100: "it cannot be read: elastic verify tells why",
        50: "the newest good step",
        10: "it cannot be read: elastic verify tells why",
    }


def test_void_steps_go_and_do_not_count():
    forks = [Fork(incarnation=2, generation=1, step=50)]
    records = [*TEN, record(60, incarnation=2)]
    assert kept(records, Keep(last=2), forks=forks) == [60, 50]
    reasons = {v.record.commit.step: v.reason for v in judged(records, Keep(last=2), forks=forks)}
    assert reasons[100] == "void: history began anew before it"


def test_without_a_good_step_nothing_goes():
    assert kept(TEN, Keep(last=1), bad=[each.name for each in TEN]) == [*range(100, 0, -10)]
    assert kept(TEN, Keep(last=1), forks=[Fork(incarnation=9, generation=1, step=-1)]) == [*range(100, 0, -10)]


@given(
    st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=20).map(sorted),
    st.integers(1, 20),
    st.integers(1, 3),
)
def test_of_each_so_many_steps_the_first_stays_however_often_is_collected(steps, every, last):
    """Uploads come when they are due, at any step: few of them are divisible by anything."""
    there = []
    for step in steps:
        there = [v.record for v in judged([*there, record(step)], Keep(last=last, every=every)) if v.is_kept]
    firsts = {step // every: step for step in reversed(steps)}
    assert {each.commit.step for each in there} == {*firsts.values(), *steps[-last:]}


@given(st.data())
def test_c07_never_the_newest_good_nor_what_is_held(data):
    steps = data.draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), unique=True, max_size=12))
    losses = data.draw(st.lists(st.floats(), min_size=len(steps), max_size=len(steps)))
    records = [record(step, loss, incarnation=life) for (step, life), loss in zip(steps, losses, strict=True)]
    some = st.sets(st.sampled_from([each.name for each in records])) if records else st.just(set())
    bad, leased = data.draw(some), data.draw(some)
    forks = [
        Fork(incarnation=life, generation=1, step=step)
        for life, step in data.draw(st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 30)), max_size=3))
    ]
    keep = Keep(
        last=data.draw(st.integers(1, 4)),
        every=data.draw(st.integers(0, 5)),
        best=data.draw(st.integers(0, 3)),
        mode=data.draw(st.sampled_from(["min", "max"])),
    )
    verdicts = judged(records, keep, forks=forks, bad=bad, leased=leased)
    assert sorted(v.record.name for v in verdicts) == sorted(each.name for each in records)
    gone = {v.record.name for v in verdicts if not v.is_kept}
    good = [each for each in records if each.name not in bad and is_visible(each.commit, forks)]
    newest = sorted(good, key=lambda each: each.order)[-keep.last :]
    assert not gone & ({each.name for each in newest} | leased)
    assert not gone or good
    assert all(v.reason for v in verdicts)
    again = judged([v.record for v in verdicts if v.is_kept], keep, forks=forks, bad=bad, leased=leased)
    assert all(v.is_kept for v in again), "what is left is what the settings ask for"
