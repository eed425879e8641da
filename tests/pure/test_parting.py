"""Networks that part between workers which the driver reaches all: who goes on."""

from itertools import combinations

import pytest

from elastic.control import commands as cmd
from elastic.control.parting import together
from elastic.control.state import Phase, Standing, WorkerRecord
from elastic.sim.chance import Chance
from tests.pure.bare_controller import BareController, commit

FORMING_S = 30.0
NODES = {"w0": "a", "w1": "b", "w2": "c", "w3": "d"}
HALVES = {"w0": ("w2", "w3"), "w1": ("w2", "w3"), "w2": ("w0",), "w3": ("w0",)}  # w0 leads: the others wait for it


def gangs(**steps: int):
    """A replica of one worker each, which holds this step."""
    return tuple(
        (WorkerRecord(name=name, standing=Standing.MEMBER, answer=commit(step), healed=True),)
        for name, step in steps.items()
    )


def names(found) -> list[str]:
    return [worker.name for gang in found for worker in gang]


@pytest.mark.parametrize(
    ("missed", "staying"),
    [
        ({}, ["w0", "w1", "w2", "w3"]),
        (HALVES, ["w0", "w1"]),
        ({"w0": ("w1", "w2", "w3"), "w1": ("w0",)}, ["w1", "w2", "w3"]),
        ({"w3": ("w0",)}, ["w0", "w1", "w2"]),
        ({"w0": ("w1",), "w2": ("w3",)}, ["w0", "w2"]),
    ],
)
def test_the_most_who_reach_each_other_stay_together(missed, staying):
    assert names(together(gangs(w0=4, w1=4, w2=4, w3=4), missed)) == staying


def test_of_two_halves_the_one_with_the_newest_step_goes_on():
    assert names(together(gangs(w0=4, w1=4, w2=5, w3=5), HALVES)) == ["w2", "w3"]


def test_where_links_have_broken_here_and_there_no_others_are_more():
    """Two who each do not reach two others: both leave, whoever is ranked first; and one in the middle of a chain."""
    six = gangs(**{f"w{place}": 4 for place in range(6)})
    assert names(together(six, {"w0": ("w1", "w2"), "w3": ("w4", "w5")})) == ["w1", "w2", "w4", "w5"]
    assert names(together(six, {"w1": ("w2",), "w3": ("w2",)})) == ["w0", "w1", "w3", "w4", "w5"]
    rng = Chance("broken links")
    for _ in range(100):
        missed: dict[str, list[str]] = {}
        for place in range(1, 6):  # at most one link to those before: no circle
            missed |= {f"w{place}": [f"w{rng.randint(0, place - 1)}"]} if rng.random() < 0.7 else {}
        assert len(together(six, missed)) == most_in_touch(names(six), missed), missed


def most_in_touch(workers: list[str], missed) -> int:
    """Of all there are to choose from."""
    links = {(one, other) for one, others in missed.items() for other in others}
    return max(
        size
        for size in range(1, len(workers) + 1)
        for chosen in combinations(workers, size)
        if not any({one, other} <= set(chosen) for one, other in links)
    )


def test_of_two_who_do_not_reach_each_other_the_one_with_the_newest_step_goes_on():
    assert names(together(gangs(w0=4, w1=4, w2=5), {"w0": ("w2",)})) == ["w1", "w2"]


def test_thousands_of_replicas_part_at_once():
    """The controller decides nothing else meanwhile: it may not take the better part of a day."""
    many = gangs(**{f"w{place}": 4 for place in range(3000)})
    assert len(together(many, {"w0": ("w7",)})) == 2999
    near, far = names(many)[:1400], names(many)[1400:]
    missed = dict.fromkeys(near, tuple(far)) | dict.fromkeys(far, ("w0",))
    assert names(together(many, missed)) == far


def test_a_replica_is_apart_as_a_whole():
    first, second, third = (gangs(**{f"w{one}": 4, f"w{one + 1}": 4}) for one in (0, 2, 4))
    pairs = tuple(tuple(worker for gang in pair for worker in gang) for pair in (first, second, third))
    assert names(together(pairs, {"w3": ("w5",)})) == ["w0", "w1", "w2", "w3"]


def test_a_replica_whose_own_workers_do_not_reach_each_other_leaves():
    """One that waits for a mate which another replica holds up is no such one."""
    first, second, third = (tuple(w for gang in gangs(**{f"w{n}": 4, f"w{n + 1}": 4}) for w in gang) for n in (0, 2, 4))
    every = (first, second, third)
    assert names(together(every, {"w2": ("w3",), "w3": ("w2",)})) == ["w0", "w1", "w4", "w5"]
    assert names(together(every, {"w2": ("w3",), "w3": ("w5",)})) == ["w0", "w1", "w2", "w3"]
    assert together((second,), {"w2": ("w3",), "w3": ("w2",)}) == ()


def forming(replicas=(2, 4), nodes=NODES, **limits) -> BareController:
    """A generation that all have come to form, after its predecessor broke."""
    ws = BareController(replicas, forming_timeout_s=FORMING_S, **limits)
    ws.start()
    for worker, node in nodes.items():
        ws.place(worker, node=node)
    ws.park(*nodes)
    ws.form()
    ws.break_("w0")
    for worker in nodes:
        ws.answer(worker, 4)
    ws.arrive(*nodes)
    return ws


def freeze(ws: BareController, missed, **steps: int) -> None:
    for worker in sorted(ws.addressees(cmd.Freeze)):
        step = steps.get(worker, 4)
        ws.answer(worker, step, healed=step >= 0, missed=missed.get(worker, ()))


def test_those_out_of_reach_leave_and_their_nodes_are_avoided():
    ws = forming(quarantine_s=100.0)
    ws.tick(after_s=FORMING_S + 0.1)
    freeze(ws, HALVES)
    assert ws.phase is Phase.FORMING
    assert ws.members == ["w0", "w1"]
    assert [ws.standing(name) for name in ("w2", "w3")] == [Standing.GONE] * 2
    assert sorted(ws.state.care.quarantine) == ["c", "d"]
    incident = ws.state.incidents[-1]
    assert incident.culprits == ("w2", "w3")
    assert "w2 and w0, w1 did not reach each other" in "; ".join(incident.evidence)


def test_a_joiner_whom_nobody_reaches_is_sent_away_and_its_node_avoided():
    """Else it, and each one that takes its place there, would stop all the others for as long again."""
    ws = forming((2, 5), quarantine_s=100.0)
    ws.form()
    ws.stable(5)
    ws.join("w4", node="e")
    ws.tick(1.0)
    for worker in NODES:
        ws.answer(worker, 6)
    assert ws.phase is Phase.FORMING and "w4" in ws.members
    ws.arrive(*NODES, "w4")
    ws.tick(after_s=FORMING_S + 0.1)
    freeze(ws, dict.fromkeys(NODES, ("w4",)), **dict.fromkeys(NODES, 6), w4=-1)
    assert ws.phase is Phase.FORMING and ws.members == list(NODES)
    assert ws.standing("w4") is Standing.GONE and list(ws.state.care.quarantine) == ["e"]
    assert "did not reach w4, a joiner" in "; ".join(ws.state.incidents[-1].evidence)


def test_who_leaves_thousands_is_told_of_a_few_of_them():
    nodes = {f"w{number}": f"n{number}" for number in range(12)}
    ws = forming((2, 12), nodes)
    ws.tick(after_s=FORMING_S + 0.1)
    freeze(ws, {"w3": tuple(name for name in nodes if name != "w3")})
    (said,) = [line for line in ws.state.incidents[-1].evidence if "did not reach each other" in line]
    assert "w3 and w0, w1, w2, w4, w5, w6, w7, w8 and 3 more did not reach each other" in said


def test_the_half_with_the_newest_step_goes_on_and_its_step_stays():
    ws = forming()
    ws.tick(after_s=FORMING_S + 0.1)
    freeze(ws, HALVES, w2=5, w3=5)
    assert ws.members == ["w2", "w3"]
    assert ws.view.resume.step == 5


def test_a_step_that_only_a_smaller_part_has_applied_is_done_again():
    ws = forming(replicas=(1, 4))
    ws.tick(after_s=FORMING_S + 0.1)
    freeze(ws, {"w0": ("w1", "w2", "w3"), "w1": ("w0",), "w2": ("w0",), "w3": ("w0",)}, w0=5)
    assert ws.members == ["w1", "w2", "w3"]
    assert ws.view.resume.step == 4


def test_where_too_few_would_be_left_all_try_again():
    ws = forming(replicas=(3, 4))
    ws.tick(after_s=FORMING_S + 0.1)
    freeze(ws, HALVES)
    assert ws.members == ["w0", "w1", "w2", "w3"]
    assert not ws.state.care.quarantine


def test_a_node_where_others_stay_is_not_avoided():
    ws = forming(nodes={"w0": "a", "w1": "a", "w2": "a", "w3": "d"})
    ws.tick(after_s=FORMING_S + 0.1)
    freeze(ws, {"w0": ("w2", "w3"), "w1": ("w2", "w3")})
    assert ws.members == ["w0", "w1"]
    assert list(ws.state.care.quarantine) == ["d"]


def test_a_freeze_for_another_reason_says_nothing_of_the_network():
    """Whoever is not there yet may be on its way."""
    ws = forming()
    ws.fail_forming("w1")
    freeze(ws, HALVES)
    assert ws.members == ["w0", "w1", "w2", "w3"]


def test_shards_that_those_in_reach_of_each_other_do_not_have_between_them_keep_all_together():
    """(w0, w1) hold step 5, and are apart from the other two replicas, which have one shard of it and one of step 4."""
    ws = BareController((1, 3), width=2, forming_timeout_s=FORMING_S).run()
    ws.stable(3)
    ws.break_("w0")
    everybody = list(ws.members)
    for worker in everybody:
        ws.answer(worker, 4)
    ws.arrive(*everybody)
    ws.tick(after_s=FORMING_S + 0.1)
    for worker in everybody:
        missed = ("w2", "w4") if worker == "w0" else ()
        ws.answer(worker, 4 if worker in ("w2", "w4") else 5, missed=missed)
    assert ws.members == everybody and ws.view.resume.step == 5
    assert not ws.state.care.quarantine
