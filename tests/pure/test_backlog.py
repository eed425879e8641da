"""What is taken first: a loss told after thousands of answers waits for none of them."""

from hypothesis import given
from hypothesis import strategies as st

from elastic.control import events as ev
from elastic.control.backlog import Backlog
from tests.pure.bare_controller import commit


def answer(number: int) -> ev.FreezeAnswered:
    return ev.FreezeAnswered(worker=f"w{number}", generation=1, commit=commit(3), healed=True)


def backlog(*events: ev.Event) -> Backlog:
    made = Backlog()
    for event in events:
        made.add(event)
    return made


def test_a_loss_comes_before_beats_and_these_before_answers():
    beat, lost = ev.HostsHeard(nodes=("n1",)), ev.WorkerLost(worker="w1", evidence="its pipe closed")
    waiting = backlog(answer(0), answer(1), beat, answer(2), lost)
    assert waiting.take(3) == [lost, beat, answer(0)]
    assert waiting.take(3) == [answer(1), answer(2)]
    assert waiting.take(3) == [] and not waiting


def test_a_worker_that_is_placed_and_lost_is_so_in_this_order():
    placed, lost = ev.WorkerPlaced(worker="w1", node="n1"), ev.MonitorLost(node="n1")
    assert backlog(placed, lost).take(2) == [placed, lost]


EVENTS = st.lists(
    st.builds(answer, st.integers(0, 9))
    | st.builds(ev.WorkerLost, worker=st.sampled_from(("w1", "w2")), evidence=st.just("gone"))
    | st.builds(ev.HostsHeard, nodes=st.tuples(st.sampled_from("ab")))
)


@given(EVENTS, st.integers(1, 4))
def test_nothing_is_lost_or_told_twice_and_each_kind_keeps_its_order(events, most):
    waiting, taken = backlog(*events), []
    assert len(waiting) == len(events)
    while waiting:
        some = waiting.take(most)
        assert 0 < len(some) <= most
        taken += some
    for kind in (ev.FreezeAnswered, ev.WorkerLost, ev.HostsHeard):
        assert [one for one in taken if type(one) is kind] == [one for one in events if type(one) is kind]
