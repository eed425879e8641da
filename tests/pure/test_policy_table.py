"""Every class of incident, every built-in policy, in three situations; docs/policies.md shows what the code does."""

from dataclasses import replace
from pathlib import Path

import pytest

from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.control.xid import Severity
from elastic.errors import SettingError
from elastic.policies import CostAware, ExitOnNotice, Guess, HotSwapFirst, Ladder, ShrinkFirst, policy_of
from elastic.policies.guarded import own_name
from elastic.policies.table import BUILT_IN, CASES, SITUATIONS, answers, incident_of, name_of, render, view_of

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "policies.md"
C, SWAP, SHRINK, WAIT = Kind.CONTINUE, Kind.SWAP, Kind.SHRINK, Kind.WAIT
RESTART, RESET, QUARANTINE, EXIT = Kind.RESTART, Kind.RESET_GPU, Kind.QUARANTINE, Kind.EXIT
REPLACE = Kind.REPLACE_NODE

ALL_GO_ON = (C, C, C)
LADDER = (SWAP, SHRINK, WAIT)
RESTARTS, RESETS, REPLACES = (RESTART,) * 3, (RESET,) * 3, (REPLACE,) * 3
SHRINKS = (SHRINK, SHRINK, WAIT)
KEEPS_OUT = (QUARANTINE, SHRINK, WAIT)
DISTRUSTS = (QUARANTINE, QUARANTINE, WAIT)
CHEAPEST = (SWAP, RESTART, WAIT)
# A spare is ready, none is, below the minimum: by class, what Ladder, HotSwapFirst, ShrinkFirst, ExitOnNotice and
# CostAware do.
EXPECTED: dict[tuple[IncidentClass, Severity | None], tuple[tuple[Kind, ...], ...]] = {
    (IncidentClass.STRAGGLER, None): (ALL_GO_ON, ALL_GO_ON, (SHRINK, SHRINK, C), ALL_GO_ON, ALL_GO_ON),
    (IncidentClass.DEPARTURE, None): (LADDER, LADDER, SHRINKS, (EXIT, EXIT, EXIT), LADDER),
    (IncidentClass.COLLECTIVE_BROKEN, None): (ALL_GO_ON,) * 5,
    (IncidentClass.WORKER_UNRESPONSIVE, None): (LADDER, LADDER, SHRINKS, LADDER, CHEAPEST),
    (IncidentClass.FORMING_FAILED, None): (ALL_GO_ON,) * 5,
    (IncidentClass.WORKER_LOST, None): (LADDER, LADDER, SHRINKS, LADDER, CHEAPEST),
    (IncidentClass.WORKER_LOST, Severity.USER_ERROR): (LADDER, LADDER, SHRINKS, LADDER, CHEAPEST),
    (IncidentClass.WORKER_HUNG, None): (LADDER, LADDER, SHRINKS, LADDER, CHEAPEST),
    (IncidentClass.GPU_FAULT, Severity.RESTARTABLE): (
        RESTARTS,
        (SWAP, RESTART, RESTART),
        (SHRINK, SHRINK, RESTART),
        RESTARTS,
        CHEAPEST,
    ),
    (IncidentClass.GPU_FAULT, Severity.RESET_NEEDED): (RESETS,) * 5,
    (IncidentClass.GPU_FAULT, Severity.NODE_MUST_GO): (REPLACES,) * 5,
    (IncidentClass.NODE_LOST, None): (LADDER, KEEPS_OUT, SHRINKS, LADDER, LADDER),
    (IncidentClass.HOST_SILENT, None): (LADDER, KEEPS_OUT, SHRINKS, LADDER, LADDER),
    (IncidentClass.SILENT_CORRUPTION, None): (DISTRUSTS,) * 5,
}


def test_the_table_names_every_class_and_policy():
    assert set(EXPECTED) == set(CASES) and {kind for kind, _ in CASES} == set(IncidentClass)
    assert all(len(row) == len(BUILT_IN) for row in EXPECTED.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: name_of(*case))
@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_done_about_each_class(name, case):
    assert answers(BUILT_IN[name], *case) == EXPECTED[case][list(BUILT_IN).index(name)]


@pytest.mark.parametrize("kind", IncidentClass, ids=lambda kind: kind.value)
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("left", SITUATIONS.values(), ids=SITUATIONS)
def test_every_policy_gives_up_without_progress_and_says_why(name, kind, left):
    view = replace(view_of(*left), incidents_without_progress=11)
    remediation = BUILT_IN[name](incident_of(kind), view)
    is_notice = name == "ExitOnNotice" and kind is IncidentClass.DEPARTURE
    assert remediation.kind is (Kind.EXIT if is_notice else Kind.GIVE_UP)
    assert remediation.reason


def test_the_document_shows_what_the_code_does():
    text = DOCUMENT.read_text()
    shown = text.split("<!-- table:begin -->\n")[1].split("<!-- table:end -->")[0]
    assert shown == f"\n{render()}\n", "run `python tools/policy_table.py --write docs/policies.md`"


def test_the_document_names_every_kind():
    text = DOCUMENT.read_text()
    assert [kind for kind in Kind if f"`{kind.name}`" not in text] == []


# --- the rungs of the ladder ------------------------------------------------------------------------------------------

HUNG = Incident(number=0, kind=IncidentClass.COLLECTIVE_BROKEN, opened_at_s=0.0, suspects=("w1",))
SPARES = {"s0": "spare-0", "s1": "spare-1"}


def with_spares(view: ClusterView, spares: int) -> ClusterView:
    return replace(view, spares=spares, nodes={**view.nodes, **SPARES})


@pytest.mark.parametrize(
    ("suspects", "spares", "kind"),
    [(("w1",), 1, QUARANTINE), (("w1",), 0, C), (("w1", "w2"), 1, C), (("w1", "w2"), 2, QUARANTINE), ((), 2, C)],
    ids=["one spare for one", "no spare", "too few spares", "two for two", "no suspect"],
)
def test_suspects_of_an_unexplained_hang_are_evicted_where_spares_suffice(suspects, spares, kind):
    incident = replace(HUNG, suspects=suspects)
    remediation = Ladder()(incident, with_spares(view_of(4, 0), spares))
    assert remediation.kind is kind
    assert remediation.targets == (suspects if kind is QUARANTINE else ())
    assert Ladder(over_evict=False)(incident, with_spares(view_of(4, 0), spares)).kind is C


def test_a_spare_on_a_suspect_node_is_none():
    view = replace(view_of(4, 2), nodes={**view_of(4, 2).nodes, "s0": "node-1", "s1": "spare-1"})
    assert Ladder()(HUNG, view).kind is C


def test_the_last_survivors_are_never_evicted():
    assert Ladder()(HUNG, with_spares(view_of(1, 2), 2)).kind is C


def test_a_node_that_computes_wrongly_stays_where_the_others_are_not_enough():
    """All that is there would go with it, or fewer than the minimum would be left."""
    incident, view = incident_of(IncidentClass.SILENT_CORRUPTION), view_of(3, 0)
    assert Ladder()(incident, view).kind is QUARANTINE
    one_node = dict.fromkeys(view.nodes, "node-0")
    assert Ladder()(incident, replace(view, nodes=one_node)).kind is SHRINK
    assert Ladder()(incident, replace(view, nodes=one_node, spares=1)).kind is SWAP
    assert Ladder()(incident, replace(view, nodes={})).kind is SHRINK


def test_half_way_to_giving_up_the_ladder_tries_a_saved_step():
    view = replace(view_of(4, 0), tier_steps={"local": 3})
    incident = incident_of(IncidentClass.COLLECTIVE_BROKEN)
    kinds = [Ladder()(incident, replace(view, incidents_without_progress=count)).kind for count in range(1, 12)]
    assert kinds == [C] * 5 + [Kind.RESTART_FROM_TIER] + [C] * 4 + [Kind.GIVE_UP]
    assert Ladder()(incident, replace(view, incidents_without_progress=6, tier_steps={})).kind is C


@pytest.mark.parametrize(
    ("policy", "left", "kind"),
    [
        (Ladder(), (3, 0), REPLACE),
        (Ladder(), (1, 0), WAIT),
        (HotSwapFirst(), (3, 1), REPLACE),
        (ShrinkFirst(), (3, 1), REPLACE),
        (CostAware(), (3, 0), REPLACE),
    ],
    ids=["the node goes", "not below the minimum", "hot swap, for good", "shrink first", "cost-aware"],
)
def test_a_gpu_that_fails_too_often_is_not_reset_again(policy, left, kind):
    view = replace(view_of(*left), budget_left={IncidentClass.GPU_FAULT: 0.5})
    assert policy(incident_of(IncidentClass.GPU_FAULT), view).kind is kind


def test_one_rung_further_once_restarts_have_not_helped():
    view = replace(view_of(3, 0), budget_left={IncidentClass.GPU_FAULT: 0.5})
    assert Ladder()(incident_of(IncidentClass.GPU_FAULT, Severity.RESTARTABLE), view).kind is RESET


@pytest.mark.parametrize(
    "policy", [HotSwapFirst(), CostAware(), Ladder(), ShrinkFirst()], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("kind", IncidentClass, ids=lambda kind: kind.value)
def test_what_the_user_did_costs_nobody_a_gpu_or_a_node(policy, kind):
    """Whatever it looks like: a node that was lost or lied is another matter."""
    if kind in (IncidentClass.NODE_LOST, IncidentClass.HOST_SILENT, IncidentClass.SILENT_CORRUPTION):
        return
    evicts = {RESET, QUARANTINE, REPLACE}
    assert not evicts & set(answers(policy, kind, Severity.USER_ERROR))


def test_a_gpu_fault_of_unknown_class_is_mended_by_a_reset():
    fault = incident_of(IncidentClass.GPU_FAULT)
    assert fault.severity is None
    assert Ladder()(fault, view_of(3, 1)).kind is RESET


def test_a_spare_fills_the_gap_while_a_gpu_is_reset():
    """So what is waited for costs nothing, and no node is thrown away for it, whatever else has been quick."""
    fault = incident_of(IncidentClass.GPU_FAULT, Severity.RESET_NEEDED)
    costs = CostAware().costs(fault, view_of(3, 1))
    assert costs[RESET] == 1.5 and costs[REPLACE] > 10
    measured = replace(view_of(3, 1), recovery_s={RESET: 1.4, SWAP: 0.9})
    assert CostAware()(fault, measured).kind is RESET
    assert CostAware().costs(fault, view_of(3, 0))[RESET] > 10


@pytest.mark.parametrize(
    ("left", "budget", "kind"),
    [((3, 0), 1.0, RESTART), ((3, 0), 0.9, SHRINK), ((3, 1), 1.0, SWAP), ((1, 0), 1.0, WAIT)],
)
def test_a_ladder_may_restart_workers_in_their_place_while_there_is_budget(left, budget, kind):
    view = replace(view_of(*left), budget_left={IncidentClass.WORKER_LOST: budget})
    assert Ladder(restart=True)(incident_of(IncidentClass.WORKER_LOST), view).kind is kind


def test_shrinking_keeps_a_straggler_that_the_minimum_needs():
    assert ShrinkFirst()(incident_of(IncidentClass.STRAGGLER), view_of(2, 0)).kind is C


def test_notice_ends_the_run_with_its_reason():
    remediation = ExitOnNotice()(incident_of(IncidentClass.DEPARTURE), view_of(3, 1))
    assert (remediation.kind, remediation.reason) == (EXIT, "as told")


# --- what is cheapest -------------------------------------------------------------------------------------------------

LOST = incident_of(IncidentClass.WORKER_LOST)


def test_the_cost_of_each_way_out():
    """Four replicas, one lost; a node is back after 100 s, a worker loads in 40 s; a recovery takes 2 s."""
    view = replace(view_of(3, 0), node_return_s=100.0, loading_s=40.0, recovery_s={SHRINK: 2.0})
    costs = CostAware(Guess(join_s=1.0)).costs(LOST, view)
    assert costs == pytest.approx({RESTART: 2.0 + 40.0 / 4 + 1.0, SHRINK: 2.0 + 140.0 / 4 + 1.0})


def test_what_is_missing_is_counted_in_replicas_in_whichever_their_lost_workers_were():
    """Four replicas of two workers: of two that are lost with one spare there, one stays away."""
    view = replace(view_of(2, 1), width=2, node_return_s=100.0, loading_s=40.0, recovery_s={SWAP: 2.0})
    assert CostAware().costs(replace(LOST, culprits=("w1", "w2")), view)[SWAP] == pytest.approx(2.0 + 140.0 / 4)
    both = replace(view, survivors=3)
    assert CostAware().costs(replace(LOST, culprits=("w1", "w2")), both)[SWAP] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, RESTART),
        ({"node_incidents": {"node-1": 40}}, SHRINK),
        ({"quarantined": {"node-1": 10.0}}, SHRINK),
        ({"nodes": {}}, SHRINK),
        ({"spares": 1}, SWAP),
        ({"spares": 1, "recovery_s": {SWAP: 500.0, RESTART: 1.0}}, RESTART),
        ({"survivors": 1}, WAIT),
        ({"survivors": 1, "spares": 1}, SWAP),
    ],
    ids=["its node", "a bad node", "in quarantine", "nowhere", "a spare", "slow swaps", "too few", "a spare is needed"],
)
def test_the_cheapest_is_chosen(changes, kind):
    view = replace(view_of(3, 0), **changes)
    remediation = CostAware()(LOST, view)
    assert remediation.kind is kind
    assert remediation.reason.startswith("expected loss: ")


def test_measured_times_take_the_place_of_guesses():
    """A reset that takes minutes is no way out where nodes come back at once."""
    fault = incident_of(IncidentClass.GPU_FAULT)
    quick = replace(view_of(3, 0), node_return_s=0.0, loading_s=1.0)
    assert CostAware(Guess(reset_s=600.0))(fault, quick).kind is REPLACE
    assert CostAware(Guess(reset_s=1.0))(fault, view_of(3, 0)).kind is RESET


# --- policies of users ------------------------------------------------------------------------------------------------


def shrink(incident: Incident, view: ClusterView) -> Remediation:
    return Remediation(kind=SHRINK, reason="by choice")


class WithEventPolicy:
    def event_policy(self, incident: Incident, view: ClusterView) -> Remediation:
        return shrink(incident, view)


@pytest.mark.parametrize("given", [shrink, WithEventPolicy, WithEventPolicy()], ids=["function", "class", "object"])
def test_a_policy_is_a_function_or_has_event_policy(given):
    assert policy_of(given)(LOST, view_of(3, 1)) == shrink(LOST, view_of(3, 1))


def test_a_class_that_is_called_is_made_first():
    assert policy_of(HotSwapFirst)(LOST, view_of(3, 1)).kind is SWAP
    assert policy_of(None) == Ladder()
    assert policy_of(Ladder(swap=False)) == Ladder(swap=False)


@pytest.mark.parametrize("given", [7, object(), "ladder"], ids=["a number", "an object", "a name"])
def test_what_is_no_policy_is_refused(given):
    with pytest.raises(SettingError, match="must be a function"):
        policy_of(given)


def test_a_class_that_needs_arguments_is_refused():
    class Picky:
        def __init__(self, rate: float) -> None:
            self.rate = rate

    with pytest.raises(SettingError, match="Picky must be made without arguments"):
        policy_of(Picky)


def raises(incident: Incident, view: ClusterView) -> Remediation:
    raise RuntimeError("a typo")


def exits(incident: Incident, view: ClusterView) -> Remediation:
    raise SystemExit("enough")


@pytest.mark.parametrize(
    ("given", "name"),
    [(shrink, "shrink"), (WithEventPolicy, "WithEventPolicy.event_policy"), (HotSwapFirst(), "HotSwapFirst")],
    ids=["a function", "a class", "an object that is called"],
)
def test_a_policy_is_named_as_its_author_would(given, name):
    assert own_name(policy_of(given)) == name
    assert own_name(Ladder()) == "Ladder"


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (raises, "the policy raised RuntimeError: a typo"),
        (exits, "the policy raised SystemExit: enough"),
        (lambda incident, view: "shrink", "the policy answered 'shrink', which is no Remediation"),
        (lambda incident, view: None, "the policy answered None, which is no Remediation"),
        (lambda incident, view: Remediation(kind="shrink", reason="x"), "which is no Remediation"),
        (lambda incident, view: Remediation(kind=SHRINK, reason=""), "the policy gave no reason"),
        (lambda incident, view: Remediation(kind=SHRINK, reason="x", targets="w1"), "targets 'w1' are no tuple"),
        (lambda incident, view: Remediation(kind=SHRINK, reason="x", for_s=float("nan")), "for_s=nan is no number"),
    ],
)
def test_where_a_policy_fails_the_ladder_decides_and_says_so(policy, why):
    remediation = policy_of(policy)(LOST, view_of(3, 1))
    assert remediation.kind is SWAP
    assert remediation.reason.startswith("1 lost, 1 spare ready (") and why in remediation.reason


def test_a_spare_takes_over_from_a_bad_node_and_nodes_that_fail_too_often_go_for_good():
    lost = incident_of(IncidentClass.NODE_LOST)
    assert HotSwapFirst()(lost, view_of(3, 1)).kind is QUARANTINE
    often = replace(view_of(3, 1), budget_left={IncidentClass.NODE_LOST: 0.5})
    assert HotSwapFirst()(lost, often).kind is REPLACE
