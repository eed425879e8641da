"""A run below its minimum saves what its survivors hold, by one worker for each shard and node."""

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.state import Phase
from elastic.settings import Checkpoint
from tests.pure.bare_controller import BareController, commit


def waiting(replicas: int = 3, **options: int) -> BareController:
    """All replicas train, and the last one dies; nobody else has answered yet."""
    ws = BareController(replicas, checkpoint=Checkpoint(), **options)
    ws.start()
    ws.feed(ev.RestoreFound(commit=None, reason="nothing is there"))
    names = list(ws.state.workers)
    ws.place(*names)
    ws.park(*names)
    ws.form()
    ws.stable(3)
    ws.die(names[-1])
    return ws


def test_survivors_save_the_newest_step_once_there_is_nobody_to_go_on_with():
    ws = waiting()
    ws.answer("w0", 4)
    assert not ws.given(cmd.Save)
    ws.answer("w1", 4)
    assert ws.phase is Phase.WAITING
    (save,) = ws.given(cmd.Save)
    assert (save.workers, save.commit) == (("w0", "w1"), commit(4))
    ws.die("w3")  # who was started in place of the lost one
    assert ws.phase is Phase.WAITING and not ws.given(cmd.Save), "each is asked once"


def test_who_is_behind_saves_nothing():
    ws = waiting()
    ws.answer("w0", 3)
    ws.answer("w1", 4)
    assert ws.addressees(cmd.Save) == {"w1"}


def two_on_a_node() -> BareController:
    """A third one, elsewhere, dies; nobody else has answered yet."""
    ws = BareController(3, checkpoint=Checkpoint())
    ws.start()
    ws.feed(ev.RestoreFound(commit=None))
    ws.place("w0", "w1", node="n")
    ws.place("w2")
    ws.park("w0", "w1", "w2")
    ws.form()
    ws.stable(3)
    ws.die("w2")
    return ws


def test_one_worker_of_a_node_saves_and_the_next_one_if_that_is_lost():
    ws = two_on_a_node()
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    assert ws.addressees(cmd.Save) == {"w0"}
    ws.die("w0")
    assert ws.phase is Phase.WAITING and ws.addressees(cmd.Save) == {"w1"}


def test_it_is_the_one_that_stages_whoever_answers_first():
    """The others on its node have no slots, and there may be no room for more."""
    ws = two_on_a_node()
    ws.answer("w1", 4)
    ws.answer("w0", 4)
    assert ws.addressees(cmd.Save) == {"w0"}


def gangs() -> BareController:
    """Two replicas of two workers, each on a node of its own; one of the second replica dies."""
    ws = BareController(2, width=2, checkpoint=Checkpoint())
    ws.start()
    ws.feed(ev.RestoreFound(commit=None))
    ws.place("w0", "w1", node="a")
    ws.place("w2", "w3", node="b")
    ws.park("w0", "w1", "w2", "w3")
    ws.form()
    ws.stable(3)
    ws.die("w3")
    return ws


def test_each_shard_is_saved_on_each_node():
    ws, asked = gangs(), set()
    for worker in ("w0", "w1", "w2"):
        ws.answer(worker, 4)
        asked |= ws.addressees(cmd.Save)
    assert ws.phase is Phase.WAITING and asked == {"w0", "w1", "w2"}


def test_a_worker_that_may_yet_apply_more_is_not_asked():
    ws = gangs()
    ws.answer("w0", 4, prepared=True)
    ws.answer("w1", 4)
    ws.answer("w2", 4)
    assert ws.phase is Phase.WAITING and "w0" not in ws.addressees(cmd.Save)


def test_who_is_prepared_for_more_is_left_alone():
    ws = waiting(2)
    ws.answer("w0", 4, prepared=True)
    assert ws.phase is Phase.WAITING and not ws.given(cmd.Save)


def test_without_tiers_nothing_is_saved():
    ws = BareController(2).run()
    ws.stable(3)
    ws.die("w1")
    ws.answer("w0", 4)
    assert ws.phase is Phase.WAITING and not ws.given(cmd.Save)


def test_a_run_that_has_begun_nothing_has_nothing_to_save():
    ws = waiting(2)
    ws.answer("w0", -1)
    assert not ws.given(cmd.Save)


def test_a_lost_order_is_given_again_until_the_run_goes_on():
    ws = waiting(2)
    ws.answer("w0", 4)
    ws.feed(ev.Overdue(worker="w0", generation=1))
    assert ws.addressees(cmd.Save) == {"w0"}
    ws.join("w2")
    ws.form()
    assert ws.phase is Phase.RUNNING and ws.state.saving == ()
    ws.feed(ev.Overdue(worker="w0", generation=2))
    assert not ws.given(cmd.Save)
