"""A fault that is asked for: who is meant, what is refused, and that nothing else follows from it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.completions import COMPLETIONS
from elastic.control.faults import Fault, kind_of
from elastic.control.injecting import aim, nodes_of, refusal
from elastic.control.state import Phase
from elastic.settings import Chaos, Checkpoint
from tests.pure.bare_controller import BareController

CHAOS = Chaos(enable_fault_injection=True)


def fault(kind="kill", target="any", **more):
    return Fault(kind=kind_of(kind), target=target, **more)


def run(checkpoint=None, chaos=CHAOS):
    """w0, w1, w2 train, each on a node of its own; w3 is a spare."""
    ws = BareController((1, 3), spares=1, checkpoint=checkpoint)
    settings = replace(ws.state.settings, chaos=chaos)
    ws.state = replace(ws.state, settings=settings)
    return ws.run() if checkpoint is None else ws


def ask(ws, fault_, is_forced=False):
    return ws.feed(ev.FaultAsked(fault=fault_, is_forced=is_forced))


@pytest.mark.parametrize(
    ("target", "worker"),
    [("leader", "w0"), ("rank:0", "w0"), ("rank:2", "w2"), ("worker:w3", "w3"), ("node:node-w1", "w1")],
)
def test_a_target_is_a_worker_and_its_node(target, worker):
    (command,) = ask(run(), fault(target=target))
    assert command == cmd.InjectFault(
        fault=fault(target=target), worker=worker, node=f"node-{worker}", reason=f"asked for: kill {target}"
    )


def test_any_is_any_member_as_chance_has_it():
    ws = run()
    struck = {ask(ws, fault(draw=draw))[0].worker for draw in range(6)}
    assert struck == {"w0", "w1", "w2"}


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("rank:3", "rank:3 is nobody now: the members are w0, w1, w2"),
        ("worker:w9", "worker:w9 is nobody now"),
        ("node:elsewhere", "0 nodes with workers match node:elsewhere: there are node-w0"),
        ("node:node-w", "4 nodes with workers match node:node-w"),
    ],
)
def test_a_target_that_is_not_there_is_dropped_with_a_sentence(target, told):
    ws = run()
    (command,) = ask(ws, fault(target=target))
    assert isinstance(command, cmd.DropFault) and command.reason.startswith(told)
    assert refusal(ws.state, ev.FaultAsked(fault=fault(target=target))) == command.reason


def test_who_is_dead_is_nobody():
    ws = run()
    ws.die("w1")
    assert aim(ws.state, fault(target="rank:1")).why_not and aim(ws.state, fault(target="worker:w1")).why_not
    assert "node-w1" not in nodes_of(ws.state)


def test_a_node_is_named_by_its_beginning_unless_that_is_a_name_itself():
    ws = run()
    ws.state = replace(ws.state, workers={**ws.state.workers, "w2": replace(ws.state.workers["w2"], node="node-w10")})
    assert aim(ws.state, fault("node_down", "node:node-w1")).node == "node-w1"
    assert aim(ws.state, fault("node_down", "node:node-w10")).node == "node-w10"


def test_before_anybody_trains_there_is_nobody():
    ws = BareController(2)
    ws.state = replace(ws.state, settings=replace(ws.state.settings, chaos=CHAOS))
    ws.start()
    (command,) = ask(ws, fault())
    assert command.reason == "any is nobody now: the members are none"


def test_a_fault_of_a_node_strikes_the_whole_node():
    """A worker may stand for its node; where the node is named, no worker is."""
    (by_rank,) = ask(run(), fault("node_down", "rank:1"))
    (by_name,) = ask(run(), fault("node_down", "node:node-w1"))
    assert (by_rank.node, by_name.node, by_name.worker) == ("node-w1", "node-w1", "")
    (notice,) = ask(run(), fault("notice", "node:node-w1"))
    assert (notice.node, notice.worker) == ("node-w1", "")


def test_the_supervisor_needs_no_target():
    (command,) = ask(run(), fault("kill_supervisor"))
    assert (command.worker, command.node) == ("", "")


def test_a_run_that_was_not_started_for_it_is_left_alone_unless_forced():
    for chaos in (None, Chaos()):
        ws = run(chaos=chaos)
        (command,) = ask(ws, fault())
        assert isinstance(command, cmd.DropFault) and "Chaos(enable_fault_injection=True)" in command.reason
        (command,) = ask(ws, fault(), is_forced=True)
        assert isinstance(command, cmd.InjectFault)


@pytest.mark.parametrize(
    ("kind", "argument", "lacks"),
    [
        ("bit_flip", "", "needs snapshots in memory"),
        ("disk_full", "", "needs snapshots in memory"),
        ("disk_full", "/mnt", ""),
        ("bit_flip", "persistent", "needs a persistent tier"),
        ("storage_errors", "", "needs a persistent tier"),
    ],
)
def test_what_the_run_was_started_without_is_named(kind, argument, lacks):
    ws = run()
    (command,) = ask(ws, fault(kind, argument=argument))
    assert lacks in command.reason
    assert isinstance(command, cmd.DropFault if lacks else cmd.InjectFault)


def test_storage_cannot_be_made_to_fail_in_a_run_that_did_not_expect_it():
    checkpoint = Checkpoint(persistent="/store")
    state = run(checkpoint, chaos=None).state
    asked = ev.FaultAsked(fault=fault("storage_errors"), is_forced=True)
    assert "--force is late" in refusal(state, asked)
    assert "--force" not in refusal(run(checkpoint).state, asked)


def test_the_last_step_is_the_end_of_it():
    ws = run()
    ws.end_loop("w0")
    assert ws.phase is Phase.FINISHING
    (command,) = ask(ws, fault())
    assert "has taken its last step" in command.reason


def test_nothing_of_the_run_changes_for_it():
    ws = run()
    before = ws.state
    ask(ws, fault())
    ws.feed(ev.FaultInjected(fault=fault(), target="w1", at_s=1.0, proof="gone"))
    ws.feed(ev.FaultRefused(fault=fault(), reason="no"))
    assert replace(ws.state, seen_s=before.seen_s) == before


# --- no word comes ----------------------------------------------------------------------------------------------------

LIMIT_S = COMPLETIONS[cmd.InjectFault].answer_s


def wait(ws, seconds):
    """By ticks, as they come: a longer silence is the controller's own, and does not count."""
    return [one for _ in range(round(seconds)) for one in ws.tick(1.0)]


def test_a_fault_of_which_no_word_comes_is_answered_at_its_deadline():
    ws = run()
    ask(ws, fault("notice", "rank:1", name="one"))
    assert not [one for one in wait(ws, LIMIT_S - 1.0) if isinstance(one, cmd.DropFault)]
    (dropped,) = [one for one in wait(ws, 2.0) if isinstance(one, cmd.DropFault)]
    assert dropped.fault.name == "one" and f"within {LIMIT_S:g} s" in dropped.reason and "may yet" in dropped.reason
    assert ws.state.care.awaited == ()


@pytest.mark.parametrize("is_struck", [True, False])
def test_a_fault_that_is_answered_is_not_waited_for(is_struck):
    ws, asked = run(), fault("notice", "rank:1", name="one")
    ask(ws, asked)
    told = {"target": "w1", "at_s": 1.0, "proof": "SIGTERM"}
    ws.feed(ev.FaultInjected(fault=asked, **told) if is_struck else ev.FaultRefused(fault=asked, reason="no"))
    assert ws.state.care.awaited == ()
    assert not [one for one in wait(ws, LIMIT_S + 2.0) if isinstance(one, cmd.DropFault)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.sampled_from(["leader", "rank:1", "worker:w3"])),
            st.tuples(st.just("answer"), st.integers(0, 3)),
            st.tuples(st.just("wait"), st.integers(1, 9)),
            st.tuples(st.just("absent"), st.integers(2, 99)),
        ),
        max_size=20,
    )
)
@settings(max_examples=60, deadline=None)
def test_every_fault_is_answered_once_whatever_happens(acts):
    """By a monitor, or at the deadline; time in which the controller does not look is nobody's delay."""
    ws, asked, answered = run(), {}, set()
    heard = []
    for number, (what, which) in enumerate(acts):
        if what == "ask":
            asked[str(number)] = fault("notice", which, name=str(number))
            heard += ask(ws, asked[str(number)])
        elif what == "answer":
            for name in sorted(asked.keys() - answered)[which : which + 1]:
                heard += ws.feed(ev.FaultRefused(fault=asked[name], reason="no"))
                answered.add(name)
        elif what == "wait":
            heard += wait(ws, which)
        else:
            ws.sleep(float(which))
        answered |= {one.fault.name for one in heard if isinstance(one, cmd.DropFault)}
    heard += wait(ws, LIMIT_S + 2.0)
    dropped = [one.fault.name for one in heard if isinstance(one, cmd.DropFault)]
    assert len(dropped) == len(set(dropped)) and answered | set(dropped) == set(asked) and ws.state.care.awaited == ()
