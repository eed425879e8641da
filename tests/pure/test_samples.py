"""Samples in seeded worlds: dealt by the production rules, and each of them once an epoch."""

import pytest

from elastic.control.batch_size import ConstantBatch, FollowReplicas
from elastic.control.data import BatchPlan
from elastic.sim.campaign import KINDS, case_of, world_of
from elastic.sim.laws import Law, Violation
from elastic.sim.samples import Samples, data_of

PLAN = BatchPlan(samples=10, batch_size=ConstantBatch(size=4), micro_batch_size=2)


def stepped(samples: Samples, lineage: str, parent: str, replicas: int = 2) -> None:
    for replica in range(replicas):
        samples.deal(lineage, f"w{replica}", samples.consumed[parent], replicas, replica)
    samples.sum_up(lineage, [f"w{replica}" for replica in range(replicas)], lineage, parent)


def test_epochs_end_with_a_short_step_and_a_redone_step_takes_the_same_samples():
    samples = Samples(PLAN)
    for parent, lineage in ("a", ""), ("b", "a"), ("c", "b"), ("d", "c"):
        stepped(samples, parent, lineage)
    assert [len(samples.made_of[one]) for one in "abcd"] == [4, 4, 2, 4]
    assert sorted(samples.made_of["a"] + samples.made_of["b"] + samples.made_of["c"]) == list(range(10))
    stepped(samples, "b2", "a", replicas=1)
    assert samples.made_of["b2"] == samples.made_of["b"]
    samples.follow(["a", "b"])
    samples.follow(["a", "b2"])
    stepped(samples, "c2", "b2")
    samples.follow(["a", "b2", "c2"])
    stepped(samples, "b2", "a")


def test_a_sample_that_comes_twice_breaks_a_law():
    samples = Samples(PLAN)
    stepped(samples, "a", "")
    stepped(samples, "b", "")
    samples.follow(["a"])
    with pytest.raises(Violation, match="step 1 takes samples again") as caught:
        samples.follow(["a", "b"])
    assert caught.value.law is Law.EXACTLY_ONCE


def test_who_counts_otherwise_than_the_others_is_found_out():
    samples = Samples(PLAN)
    samples.deal("a", "w0", 0, 2, 0)
    samples.deal("a", "w1", 0, 2, 0)
    with pytest.raises(Violation, match="a is made of"):
        samples.sum_up("a", ["w0", "w1"], "a", "")
    stepped(samples, "b", "")
    samples.deal("b", "w1", 4, 2, 1)
    with pytest.raises(Violation, match="elsewhere"):
        samples.sum_up("b", ["w0", "w1"], "b", "")


def test_datasets_are_of_all_kinds_and_worlds_go_through_several_epochs():
    plans = [data_of(seed) for seed in range(60)]
    assert {type(plan.batch_size) for plan in plans} >= {ConstantBatch, FollowReplicas}
    assert {plan.shuffle for plan in plans} == {True, False}
    shorter = 0
    for seed in range(len(KINDS)):
        world = world_of(case_of(seed, 40)).play()
        world.judge()
        sizes = [len(world.samples.made_of[lineage]) for lineage in world.stable]
        assert sum(sizes) > world.samples.plan.samples
        shorter += min(sizes) < max(sizes)
    assert shorter
