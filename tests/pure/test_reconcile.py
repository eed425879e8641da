"""Machines on Kubernetes: from what is wanted and what is there to what is done."""

from dataclasses import replace
from math import inf

import pytest

from elastic.kube.marks import is_uncordoned_after, mark, mark_on, marked_until_s
from elastic.kube.objects import (
    GroupState,
    JobState,
    Machine,
    Pod,
    Taint,
    group_states,
    job_status,
    machine_of,
    pod_of,
    taints_of,
)
from elastic.kube.reconcile import (
    Cordon,
    Memory,
    Missing,
    Release,
    Replace,
    Scale,
    Seen,
    Warn,
    Wish,
    given_back,
    reconcile,
)

NOW_S = 1000.0
PODS = tuple(
    Pod(name=f"p{i}", group="workers", address=f"10.0.0.{i}", node=f"m{i}", is_running=True, is_leaving=False)
    for i in range(3)
)
MACHINES = {f"m{i}": Machine(name=f"m{i}", is_cordoned=False, taints=()) for i in range(4)}
GROUP = GroupState(name="workers", replicas=3, low=1, high=4, leaving=())
SEEN = Seen(group=GROUP, pods=PODS, machines=MACHINES)
ADDRESSES = {f"n{i}": f"10.0.0.{i}" for i in range(3)}
CALM = Wish(addresses=ADDRESSES, busy=frozenset(ADDRESSES))


def orders(wish=CALM, seen=SEEN, memory=Memory(), now_s=NOW_S):  # noqa: B008 - frozen
    return reconcile("llama", wish, seen, memory, now_s, 60.0)[0]


def marked(name: str, until_s: float, run: str = "llama") -> Machine:
    return Machine(name=name, is_cordoned=True, taints=(mark(run, until_s),))


def with_machine(machine: Machine) -> Seen:
    return replace(SEEN, machines={**MACHINES, machine.name: machine})


def test_all_is_well():
    assert orders() == ()


# --- quarantine -------------------------------------------------------------------------------------------------------


def test_a_node_in_quarantine_is_cordoned_and_keeps_its_pod():
    wish = replace(CALM, quarantine={"n1": NOW_S + 300}, busy=frozenset({"n0", "n2"}))
    assert orders(wish) == (Cordon(machine="m1", until_s=NOW_S + 300),)


def test_a_node_that_is_cordoned_already_is_left_alone():
    wish = replace(CALM, quarantine={"n1": NOW_S + 300})
    assert orders(wish, with_machine(marked("m1", NOW_S + 300))) == ()


def test_a_longer_quarantine_is_written_down():
    wish = replace(CALM, quarantine={"n1": NOW_S + 900})
    assert orders(wish, with_machine(marked("m1", NOW_S + 300))) == (Cordon(machine="m1", until_s=NOW_S + 900),)


def test_a_longer_one_that_is_written_down_stays():
    wish = replace(CALM, quarantine={"n1": NOW_S + 300})
    assert orders(wish, with_machine(marked("m1", NOW_S + 900))) == ()


def test_a_quarantine_that_is_over_begins_no_more():
    assert orders(replace(CALM, quarantine={"n1": NOW_S - 1})) == ()


def test_one_that_begins_anew_is_not_ended_for_the_old_ones_sake():
    wish = replace(CALM, quarantine={"n1": NOW_S + 300})
    anew = Cordon(machine="m1", until_s=NOW_S + 300)
    assert orders(wish, with_machine(marked("m1", NOW_S - 5))) == (anew,)


def test_a_node_that_is_given_back_is_free_again():
    seen = with_machine(marked("m1", NOW_S + 300))
    assert orders(CALM, seen) == (Release(machine="m1"),)


def test_a_quarantine_that_is_over_ends_whoever_drives():
    """The pod may be gone, and the driver a new one that knows nothing."""
    seen = with_machine(marked("m3", NOW_S - 5))
    assert orders(CALM, seen) == (Release(machine="m3"),)


def test_what_another_run_or_a_person_has_cordoned_stays():
    theirs = with_machine(marked("m1", NOW_S - 5, run="other"))
    by_hand = with_machine(
        Machine(name="m1", is_cordoned=True, taints=(Taint(key="node.kubernetes.io/unschedulable"),))
    )
    assert orders(CALM, theirs) == () == orders(CALM, by_hand)


def test_a_machine_that_was_replaced_stays_out_for_good():
    assert orders(CALM, with_machine(marked("m1", inf))) == ()


def test_a_run_that_has_ended_gives_back_what_it_holds_for_a_while():
    there = [marked("m1", inf), marked("m2", NOW_S + 300), marked("m3", NOW_S, run="other"), MACHINES["m0"]]
    assert given_back("llama", there) == (Release(machine="m2"),)


# --- marks on machines ------------------------------------------------------------------------------------------------


def test_a_mark_names_its_run_and_its_end():
    assert mark("llama", 1300.0) == Taint(key="elastic.quarantine/llama", value="1301", effect="NoSchedule")
    assert mark("llama", inf, is_kept=True).value == "never.kept"
    assert [marked_until_s("llama", marked("m1", end)) for end in (1300.0, inf)] == [1301.0, inf]
    assert marked_until_s("llama", marked("m1", inf, run="other")) is None


def test_a_mark_that_nobody_can_read_is_none():
    for value in ("soon", "", "nan", "-1", "1e9"):
        taint = Taint(key="elastic.quarantine/llama", value=value, effect="NoSchedule")
        assert marked_until_s("llama", Machine(name="m1", is_cordoned=True, taints=(taint,))) is None


def test_names_that_no_key_may_hold_are_told_apart_all_the_same():
    keys = {mark(name, inf).key for name in ("a" * 63, "a" * 64, "a" * 65, "a-", "a.")}
    assert len(keys) == 5 and all(len(key.partition("/")[2]) <= 63 and key[-1].isalnum() for key in keys)


def test_a_machine_that_was_cordoned_before_stays_so():
    by_hand = Machine(name="m1", is_cordoned=True, taints=())
    ours = mark_on(by_hand, "llama", 1300.0)
    assert ours == mark("llama", 1300.0, is_kept=True)
    held = replace(by_hand, taints=(ours,))
    assert not is_uncordoned_after(held, "llama") and mark_on(held, "llama", inf).value == "never.kept"
    assert mark_on(held, "other", inf).value == "never.kept", "another run believes the first one"
    assert mark_on(replace(by_hand, is_cordoned=False), "llama", inf).value == "never"


def test_the_last_of_several_runs_lets_a_machine_go():
    both = replace(marked("m1", inf), taints=(mark("llama", inf), mark("other", 1300.0)))
    assert mark_on(marked("m1", inf), "other", 1300.0) == both.taints[1], "it is cordoned by a run"
    assert not is_uncordoned_after(both, "llama") and not is_uncordoned_after(both, "other")
    assert is_uncordoned_after(marked("m1", inf), "llama")


# --- replacement ------------------------------------------------------------------------------------------------------


def test_a_bad_node_is_replaced_once_its_workers_have_left():
    wish = replace(CALM, quarantine={"n1": inf})
    cordon = Cordon(machine="m1", until_s=inf)
    assert orders(wish) == (cordon,)
    left = replace(wish, busy=frozenset({"n0", "n2"}))
    assert orders(left) == (cordon, Replace(group="workers", pods=frozenset({"p1"})))


def test_a_pod_is_named_once():
    wish = replace(CALM, quarantine={"n1": inf}, busy=frozenset())
    seen = replace(with_machine(marked("m1", inf)), group=replace(GROUP, leaving=("p1",)))
    assert orders(wish, seen) == ()


def test_a_pod_that_is_on_its_way_out_is_not_named_again():
    wish = replace(CALM, quarantine={"n1": inf}, busy=frozenset())
    seen = with_machine(marked("m1", inf))
    leaving = replace(seen, pods=(PODS[0], replace(PODS[1], is_leaving=True), PODS[2]))
    assert orders(wish, leaving, Memory(warned=frozenset({"n1"}))) == ()


def test_without_rights_on_nodes_pods_are_replaced_all_the_same():
    wish = replace(CALM, quarantine={"n1": inf}, busy=frozenset())
    assert orders(wish, replace(SEEN, machines={})) == (Replace(group="workers", pods=frozenset({"p1"})),)


def test_a_node_that_fails_its_check_is_cordoned_for_a_while_and_replaced():
    wish = replace(CALM, quarantine={"n1": NOW_S + 300}, unhealthy=frozenset({"n1"}))
    cordon = Cordon(machine="m1", until_s=NOW_S + 300)
    assert orders(wish) == (cordon,), "a worker is there"
    assert orders(replace(wish, busy=frozenset({"n0", "n2"}))) == (
        cordon,
        Replace(group="workers", pods=frozenset({"p1"})),
    )


# --- nodes that are gone ----------------------------------------------------------------------------------------------

GONE = replace(
    CALM,
    quarantine={"n1": inf},
    busy=frozenset({"n0", "n2"}),
    addresses={node: address for node, address in ADDRESSES.items() if node != "n1"},
)
CORDON = Cordon(machine="m1", until_s=inf)


def memory_of(seen: Seen = SEEN) -> Memory:
    return reconcile("llama", CALM, seen, Memory(), NOW_S - 2, 60.0)[1]


def test_a_machine_whose_raylet_has_died_is_cordoned_and_replaced_all_the_same():
    assert orders(GONE) == (), "nobody has seen it"
    assert orders(GONE, memory=memory_of()) == (CORDON, Replace(group="workers", pods=frozenset({"p1"})))


def test_a_machine_whose_pod_is_gone_too_is_cordoned():
    """The API server was away meanwhile, and the operator has made another pod, with the same address."""
    another = replace(PODS[1], name="p9", node="m3")
    seen = replace(SEEN, pods=(PODS[0], another, PODS[2]))
    new = replace(GONE, addresses={**GONE.addresses, "n9": "10.0.0.1"})
    assert orders(new, seen, memory_of()) == (CORDON,)


@pytest.mark.parametrize("until_s", [inf, NOW_S + 300])
def test_a_machine_that_somebody_has_given_back_or_made_anew_is_not_cordoned_again(until_s):
    wish = replace(GONE, quarantine={"n1": until_s})
    bare = replace(SEEN, pods=(PODS[0], PODS[2]))
    found, memory = reconcile("llama", wish, bare, memory_of(), NOW_S, 60.0)
    assert Cordon(machine="m1", until_s=until_s) in found, "nobody has marked it yet"
    held = replace(bare, machines={**MACHINES, "m1": marked("m1", until_s)})
    memory = reconcile("llama", wish, held, memory, NOW_S, 60.0)[1]
    found, memory = reconcile("llama", wish, bare, memory, NOW_S, 60.0)
    assert not [one for one in found if isinstance(one, Cordon)]
    moved = replace(wish, quarantine={"n1": until_s + 2.9}, absent_s=2.9)
    found, memory = reconcile("llama", moved, bare, memory, NOW_S, 60.0)
    assert not [one for one in found if isinstance(one, Cordon)], "nobody has found anything since"
    longer = replace(wish, quarantine={"n1": NOW_S + 900})
    again = [one for one in reconcile("llama", longer, bare, memory, NOW_S, 60.0)[0] if isinstance(one, Cordon)]
    assert again == ([] if until_s == inf else [Cordon(machine="m1", until_s=NOW_S + 900)]), "a new finding is news"


def test_a_node_that_is_not_taken_away_after_all_gets_a_new_pod_once_its_workers_have_left():
    """The run places nobody on a node that it was warned of; a new pod is another node."""
    going = Machine(name="m2", is_cordoned=False, taints=(Taint(key="ToBeDeletedByClusterAutoscaler"),))
    found, memory = reconcile("llama", CALM, with_machine(going), Memory(), NOW_S, 60.0)
    assert [one.node for one in found if isinstance(one, Warn)] == ["n2"]
    left = replace(CALM, busy=frozenset({"n0", "n1"}))
    assert orders(left, with_machine(going), memory) == (), "it is still to go"
    assert orders(CALM, SEEN, memory) == () == orders(left, replace(SEEN, machines={}), memory)
    assert orders(left, SEEN, memory) == (Replace(group="workers", pods=frozenset({"p2"})),)


def test_a_pod_is_not_replaced_while_another_raylet_in_it_has_work():
    again = replace(GONE, addresses={**GONE.addresses, "n9": "10.0.0.1"}, busy=frozenset({"n0", "n2", "n9"}))
    assert orders(again, memory=memory_of()) == (CORDON,)


def test_a_quarantine_outlives_the_raylet():
    wish, seen = replace(GONE, quarantine={"n1": NOW_S + 300}), with_machine(marked("m1", NOW_S + 300))
    again = replace(wish, addresses={**wish.addresses, "n9": "10.0.0.1"})
    assert orders(again, seen, memory_of()) == ()
    assert orders(again, seen) == (Release(machine="m1"),), "as if it were another one"


def test_of_nodes_that_are_gone_the_last_ones_are_remembered():
    memory = Memory(pods={f"old{number}": PODS[0] for number in range(2000)})
    known = reconcile("llama", CALM, SEEN, memory, NOW_S, 60.0)[1].pods
    assert len(known) == 1024 + len(ADDRESSES) and "old1999" in known and set(ADDRESSES) < set(known)


# --- spares -----------------------------------------------------------------------------------------------------------

SPARE_PODS = tuple(
    Pod(name=f"s{i}", group="spares", address=f"10.0.1.{i}", node=f"d{i}", is_running=True, is_leaving=False)
    for i in range(2)
)
SPARES = GroupState(name="spares", replicas=2, low=0, high=2, leaving=())
BOTH = Seen(
    group=GROUP,
    spares=SPARES,
    pods=PODS + SPARE_PODS,
    machines=MACHINES | {f"d{i}": Machine(name=f"d{i}", is_cordoned=False, taints=()) for i in range(2)},
)
IN_BOTH = replace(CALM, addresses=ADDRESSES | {f"x{i}": f"10.0.1.{i}" for i in range(2)})


def test_a_node_is_replaced_in_the_group_that_it_is_in():
    wish = replace(IN_BOTH, quarantine={"n1": inf, "x0": inf}, busy=frozenset({"n0", "n2", "x1"}))
    assert orders(wish, BOTH) == (
        Cordon(machine="m1", until_s=inf),
        Cordon(machine="d0", until_s=inf),
        Replace(group="workers", pods=frozenset({"p1"})),
        Replace(group="spares", pods=frozenset({"s0"})),
    )
    named = replace(BOTH, spares=replace(SPARES, leaving=("s0",)))
    assert orders(wish, named)[2:] == (Replace(group="workers", pods=frozenset({"p1"})),)
    assert orders(replace(wish, busy=wish.busy | {"x0"}), BOTH)[2:] == orders(wish, named)[2:], "a worker is there"


def test_what_is_in_neither_group_is_not_replaced():
    supervisor = replace(PODS[1], group="supervisor")
    wish = replace(CALM, quarantine={"n1": inf}, busy=frozenset({"n0", "n2"}))
    seen = replace(SEEN, pods=(PODS[0], supervisor, PODS[2]))
    assert orders(wish, seen) == (Cordon(machine="m1", until_s=inf),)


def test_the_run_grows_and_shrinks_in_the_workers_group_and_spares_keep_their_number():
    idle = replace(IN_BOTH, replicas=2, spares=2, busy=frozenset({"n0", "n2"}))
    assert orders(idle, BOTH) == (Scale(group="workers", replicas=2, of=3, leave=frozenset({"p1"})),)
    assert orders(replace(idle, replicas=4), BOTH) == (Scale(group="workers", replicas=4, of=3),)
    assert orders(replace(idle, replicas=3, spares=1), BOTH) == (), "one that is idle is what they are for"


def test_spares_are_asked_for_once_the_run_is_there():
    few = replace(BOTH, spares=replace(SPARES, replicas=0), pods=PODS)
    assert orders(replace(IN_BOTH, replicas=3, spares=1), few) == (Scale(group="spares", replicas=1, of=0),)
    assert orders(replace(IN_BOTH, replicas=3, spares=9), few) == (Scale(group="spares", replicas=2, of=0),)
    assert orders(IN_BOTH, few) == (), "the autoscaler sees to that"


def test_spares_that_do_not_come_are_missing_too():
    pods = (PODS[0], PODS[1], replace(PODS[2], is_running=False), SPARE_PODS[0])
    found = orders(IN_BOTH, replace(BOTH, pods=pods), Memory(short_since_s=NOW_S - 61))
    assert found == (
        Missing(count=2, reason="3 of 5 machines of workers and spares have joined, for 61 s: 3 pods run"),
    )
    surplus = (*SPARE_PODS, replace(SPARE_PODS[0], name="s9"))
    many = replace(BOTH, pods=PODS[:2] + surplus)
    assert orders(IN_BOTH, many, Memory(short_since_s=NOW_S - 61))[0].count == 1, "no spare stands for a worker's"


# --- size -------------------------------------------------------------------------------------------------------------


def test_the_group_grows_to_what_is_wanted_within_its_bounds():
    assert orders(replace(CALM, replicas=4)) == (Scale(group="workers", replicas=4, of=3),)
    assert orders(replace(CALM, replicas=9)) == (Scale(group="workers", replicas=4, of=3),)
    assert orders(replace(CALM, replicas=3)) == ()


def test_the_group_shrinks_by_machines_that_no_worker_is_on_and_names_them():
    fewer = replace(CALM, replicas=2)
    assert orders(fewer) == (), "all have workers"
    idle = replace(fewer, busy=frozenset({"n0", "n2"}))
    one = Scale(group="workers", replicas=2, of=3, leave=frozenset({"p1"}))
    assert orders(idle) == (one,)
    assert orders(replace(idle, replicas=0)) == (one,), "no more than are idle"
    two = Scale(group="workers", replicas=1, of=3, leave=frozenset({"p0", "p1"}))
    assert orders(replace(idle, replicas=0, busy=frozenset())) == (two,)
    assert orders(replace(idle, is_settled=False)) == (), "a worker may be about to be placed there"


def test_a_group_that_runs_share_grows_and_never_shrinks():
    """Whose a machine without workers is, nobody knows: another run has asked for it, or has it in reserve."""
    shared = replace(CALM, busy=frozenset({"n0"}), is_shared=True)
    pending = replace(SEEN, pods=(*PODS[:2], replace(PODS[2], address="", node="", is_running=False)))
    for seen in (SEEN, pending, replace(SEEN, pods=PODS[:1])):
        found = orders(replace(shared, replicas=1), seen, Memory(told=1))
        assert not [one for one in found if isinstance(one, Scale | Replace)], "a second run beside a larger one"
    assert orders(replace(shared, replicas=4)) == (Scale(group="workers", replicas=4, of=3),)
    full = replace(shared, busy=frozenset(ADDRESSES), others=frozenset(ADDRESSES), replicas=1)
    assert orders(full) == (Scale(group="workers", replicas=4, of=3),), "all there are is another run's"
    assert orders(replace(full, replicas=3)) == (Scale(group="workers", replicas=4, of=3),), "no more than it may have"


def test_pods_that_do_not_run_are_given_up_before_machines_are():
    fewer = replace(CALM, replicas=2, busy=frozenset({"n0"}))
    pending = replace(SEEN, pods=(*PODS[:2], replace(PODS[2], address="", node="", is_running=False)))
    assert orders(fewer, pending, Memory(told=1)) == (
        Scale(group="workers", replicas=2, of=3, leave=frozenset({"p2"})),
    )
    unmade = replace(SEEN, pods=PODS[:2])
    assert orders(replace(fewer, busy=frozenset({"n0", "n1"})), unmade, Memory(told=1)) == (
        Scale(group="workers", replicas=2, of=3),
    )


def test_a_pod_that_has_been_named_counts_as_gone():
    seen = replace(SEEN, group=replace(GROUP, leaving=("p1",)))
    assert orders(replace(CALM, replicas=2, busy=frozenset({"n0", "n2"})), seen) == ()


def test_where_the_autoscaler_sees_to_the_size_nobody_else_does():
    assert orders(replace(CALM, replicas=None), replace(SEEN, group=replace(GROUP, replicas=1))) == ()


# --- notices ----------------------------------------------------------------------------------------------------------


def test_a_machine_that_is_about_to_go_is_told_of_once():
    leaving = Machine(name="m2", is_cordoned=False, taints=(Taint(key="cloud.google.com/impending-node-termination"),))
    found, memory = reconcile("llama", CALM, with_machine(leaving), Memory(), NOW_S, 60.0)
    assert found == (Warn(node="n2", reason="the cloud takes the machine away"),)
    assert reconcile("llama", CALM, with_machine(leaving), memory, NOW_S, 60.0)[0] == ()


@pytest.mark.parametrize(("value", "is_told"), [("ONGOING", True), ("PENDING", False)])
def test_maintenance_that_has_begun_is_told_of_by_a_label(value, is_told):
    labels = {"cloud.google.com/active-node-maintenance": value, "pool": "a100"}
    found = orders(seen=with_machine(Machine(name="m2", is_cordoned=False, taints=(), labels=labels)))
    assert found == ((Warn(node="n2", reason="the machine is under maintenance"),) if is_told else ())


def test_a_pod_that_is_being_deleted_is_a_notice():
    pods = (PODS[0], replace(PODS[1], is_leaving=True), PODS[2])
    assert orders(seen=replace(SEEN, pods=pods)) == (Warn(node="n1", reason="its pod is deleted"),)


@pytest.mark.parametrize("is_running", [False, True])
def test_an_address_is_that_of_the_pod_that_lives(is_running):
    """A pod that has ended, or whose machine is lost, keeps its own until it is deleted."""
    old = replace(PODS[1], name="z", node="m3", is_running=is_running, is_leaving=True)
    seen = replace(SEEN, pods=(*PODS, old))
    assert orders(seen=seen) == ()
    bad = replace(CALM, quarantine={"n1": inf}, busy=frozenset(("n0", "n2")))
    assert orders(bad, seen) == (
        Cordon(machine="m1", until_s=inf),
        Replace(group="workers", pods=frozenset({"p1"})),
    )


def test_a_taint_that_is_only_a_thought_is_none():
    thought = Machine(name="m2", is_cordoned=False, taints=(Taint(key="DeletionCandidateOfClusterAutoscaler"),))
    assert orders(seen=with_machine(thought)) == ()


# --- capacity ---------------------------------------------------------------------------------------------------------


def test_machines_that_do_not_come_are_told_of_after_some_time_and_when_they_are_there():
    short = replace(SEEN, pods=(PODS[0], replace(PODS[1], is_running=False), PODS[2]))
    found, memory = reconcile("llama", CALM, short, Memory(), NOW_S, 60.0)
    assert found == () and memory.short_since_s == NOW_S
    found, memory = reconcile("llama", CALM, short, memory, NOW_S + 61, 60.0)
    assert found == (Missing(count=1, reason="2 of 3 machines of workers have joined, for 61 s: 2 pods run"),)
    assert reconcile("llama", CALM, short, memory, NOW_S + 99, 60.0)[0] == (), "it was told"
    found, memory = reconcile("llama", CALM, SEEN, memory, NOW_S + 120, 60.0)
    assert found == (Missing(count=0, reason="all machines are there"),)
    assert memory.short_since_s is None and reconcile("llama", CALM, SEEN, memory, NOW_S + 121, 60.0)[0] == ()


def test_a_pod_that_runs_and_never_joins_is_a_machine_that_does_not_come():
    wish = replace(CALM, addresses={"n0": "10.0.0.0", "n2": "10.0.0.2"}, busy=frozenset({"n0", "n2"}))
    found, memory = reconcile("llama", wish, SEEN, Memory(), NOW_S, 60.0)
    assert found == ()
    found, memory = reconcile("llama", wish, SEEN, memory, NOW_S + 61, 60.0)
    assert found == (Missing(count=1, reason="2 of 3 machines of workers have joined, for 61 s: 3 pods run"),)
    assert reconcile("llama", CALM, SEEN, memory, NOW_S + 70, 60.0)[0][0].count == 0


def test_pods_of_other_groups_stand_in_for_nobody():
    pods = (PODS[0], PODS[1], replace(PODS[2], group="supervisor"))
    assert orders(seen=replace(SEEN, pods=pods), memory=Memory(short_since_s=NOW_S - 100))[0].count == 1


def test_more_that_are_missing_are_told_of_again():
    memory = Memory(short_since_s=NOW_S - 100, told=1)
    assert orders(seen=replace(SEEN, pods=PODS[:1]), memory=memory)[0].count == 2


# --- RayJobs ----------------------------------------------------------------------------------------------------------


def test_every_state_of_a_job_is_known():
    states = {
        ("", ""): JobState.WAITING,
        ("Initializing", ""): JobState.WAITING,
        ("Running", "RUNNING"): JobState.RUNNING,
        ("Complete", "SUCCEEDED"): JobState.SUCCEEDED,
        ("Complete", "STOPPED"): JobState.STOPPED,
        ("Complete", "FAILED"): JobState.FAILED,
        ("Complete", ""): JobState.UNKNOWN,
        ("Complete", "PENDING"): JobState.UNKNOWN,
        ("Failed", "FAILED"): JobState.FAILED,
        ("Failed", ""): JobState.FAILED,
        ("ValidationFailed", ""): JobState.INVALID,
        ("Suspended", "STOPPED"): JobState.SUSPENDED,
        ("Retrying", "FAILED"): JobState.WAITING,
        ("Waiting", ""): JobState.WAITING,
    }
    for (deployed, job), state in states.items():
        found = job_status({"status": {"jobDeploymentStatus": deployed, "jobStatus": job, "rayClusterName": "c"}})
        assert (found.state, found.cluster) == (state, "c")
    assert {state for state in JobState if state.is_over} == {
        JobState.SUCCEEDED,
        JobState.STOPPED,
        JobState.FAILED,
        JobState.INVALID,
        JobState.UNKNOWN,
    }


def test_a_group_is_read_as_the_operator_writes_it():
    """What is left out has the default of Kubernetes: none of it, and no bound above."""
    workers = {
        "groupName": "workers",
        "replicas": 3,
        "minReplicas": 1,
        "maxReplicas": 4,
        "scaleStrategy": {"workersToDelete": ["p1"]},
    }
    one = {"metadata": {"name": "ours"}, "spec": {"workerGroupSpecs": [{"groupName": "supervisor"}, workers]}}
    found = group_states(one)
    assert list(found) == ["supervisor", "workers"] and found["workers"] == replace(GROUP, leaving=("p1",))
    assert found["supervisor"] == GroupState(name="supervisor", replicas=0, low=0, high=2**31 - 1, leaving=())
    assert group_states({"spec": {"workerGroupSpecs": None}}) == {}


def test_a_pod_is_read_as_kubernetes_writes_it():
    labels = {"ray.io/group": "workers"}
    one = {"metadata": {"name": "p1", "labels": labels, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    one |= {"spec": {"nodeName": "m1"}, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    assert pod_of(one) == replace(PODS[1], is_leaving=True)
    new = Pod(name="p2", group="", address="", node="", is_running=False, is_leaving=False)
    assert pod_of({"metadata": {"name": "p2"}, "spec": {}}) == new


def test_a_machine_is_read_as_kubernetes_writes_it():
    taint = {"key": "a", "effect": "NoSchedule"}
    node = {"metadata": {"name": "m1"}, "spec": {"unschedulable": True, "taints": [taint]}}
    assert machine_of(node) == Machine(
        name="m1", is_cordoned=True, taints=(Taint(key="a", value="", effect="NoSchedule"),)
    )
    assert machine_of({"metadata": {"name": "m2"}, "spec": {}}) == Machine(name="m2", is_cordoned=False, taints=())
    labelled = machine_of({"metadata": {"name": "m3", "labels": {"pool": "a100"}}, "spec": {}})
    assert labelled.labels == {"pool": "a100"}
    assert taints_of(node) == [taint] and taints_of({"spec": {"taints": None}}) == []
