"""The ledger on the journals of seeded worlds: whatever happens, each second is booked once, and to somebody.

A failure names its world and seed.
"""

import functools
import json
import random
from collections import Counter

import pytest

from elastic.ledger.ledger import Ledger
from elastic.ledger.model import Account, Category
from elastic.sim.parts import Plan
from elastic.sim.world import World
from tests.pure.batches import batches
from tests.pure.ledger_world import JournalledGangs, JournalledLives, JournalledTiers, JournalledWorld

SEEDS, BATCH, SHARED = 200, 12, 12
C = Category
# What goes on beside failures: nobody is to blame for it.
STEADY = {C.PRODUCTIVE, C.DATA_WAIT, C.CHECKPOINT_STALL, C.EVALUATION, C.FINISHING, C.UNKNOWN}


def plan_of(rng: random.Random) -> Plan:
    low = rng.randint(1, 2)
    return Plan(
        replicas=(low, rng.randint(low, 4)),
        spares=rng.randint(0, 1),
        steps=rng.randint(2, 12),
        crash=rng.choice((0.0, 0.005, 0.02)),
        hang=rng.choice((0.0, 0.0, 0.005)),
        mute=rng.choice((0.0, 0.0, 0.005)),
        break_=rng.choice((0.0, 0.01, 0.05)),
        lose_order=rng.choice((0.0, 0.05)),
        notice=rng.choice((0.0, 0.0, 0.005)),
        stall=rng.choice((0.0, 0.0, 0.1)),
    )


@functools.cache
def play(seed: int) -> World:
    """A world of one of four kinds, played to its end."""
    rng = random.Random(f"ledger {seed}")
    plan, kind = plan_of(rng), seed % 4
    if kind == 0:
        return JournalledWorld(seed, plan).play()
    if kind == 1:
        tiers = {"before": rng.choice((0, 2)), "save": 0.6, "bad": 0.1, "refuse": 0.05, "rewind": 0.2}
        return JournalledTiers(seed, plan, **tiers).play()
    if kind == 2:
        return JournalledGangs(seed, plan, 2).play()
    return JournalledLives(seed, plan, deaths_s=tuple(rng.uniform(1.0, 20.0) for _ in range(rng.randint(1, 2)))).play()


def judge(account: Account) -> None:
    """What must hold of any account."""
    assert sum(account.wall_seconds.values()) == pytest.approx(account.wall_s, rel=1e-3, abs=1e-6)
    assert sum(account.worker_seconds.values()) == pytest.approx(account.workers_s, rel=1e-3, abs=1e-6)
    assert account.wall_seconds.get(C.UNKNOWN, 0.0) <= 0.01 * account.wall_s
    assert all(one.evidence and (one.decision or one.its_number is not None) for one in account.incidents)
    for name in ("wall_seconds", "worker_seconds"):
        blamed: Counter[C] = Counter()
        for incident in account.incidents:
            assert all(seconds >= 0 for seconds in getattr(incident, name).values())
            blamed.update(getattr(incident, name))
        for category, seconds in getattr(account, name).items():
            is_open = category is C.DETECTING and account.is_live  # nobody knows yet what it will have been
            if category not in STEADY and not is_open:
                assert blamed[category] == pytest.approx(seconds, rel=1e-6, abs=1e-6), (name, category)


@batches(SEEDS, BATCH, quick=BATCH)
def test_every_second_is_booked_once_and_to_somebody(seeds):
    for seed in seeds:
        world = play(seed)
        ledger = Ledger()
        try:
            for number, line in enumerate(json.loads(json.dumps(world.lines))):
                assert ledger.feed(line)
                if number % 20 == 0:
                    judge(ledger.account())
            judge(ledger.account())
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        account = ledger.account()
        assert account.steps.kept <= world.plan.steps and account.steps.last <= world.plan.steps - 1
        assert not account.is_live


def test_asked_on_the_way_or_only_at_the_end_it_is_the_same():
    for seed in range(SHARED):
        lines = play(seed).lines
        live, after = Ledger(), Ledger()
        for line in lines:
            live.feed(line)
            live.account()
            after.feed(line)
        one, other = live.account(), after.account()
        for category in C:
            mine, theirs = one.wall_seconds.get(category, 0.0), other.wall_seconds.get(category, 0.0)
            assert mine == pytest.approx(theirs), (seed, category)
        assert sorted(i.kind for i in one.incidents) == sorted(i.kind for i in other.incidents)


def test_what_the_controller_calls_an_incident_is_one_here_too():
    """With its class, evidence, decision; and nothing of it is left out."""
    seen = 0
    for seed in range(SHARED):
        world = play(seed)
        account = Ledger()
        for line in world.lines:
            account.feed(line)
        listed = {one.its_number: one for one in account.account().incidents if one.its_number is not None}
        for incident in world.ws.state.incidents:
            if incident.number not in listed or incident.resumed_at_s is None:
                continue  # what has come since is told once it is resolved
            one = listed[incident.number]
            seen += 1
            assert (one.kind, one.culprits, one.decision) == (incident.kind.value, incident.culprits, incident.decision)
            assert one.evidence == incident.evidence
            assert one.opened_s <= incident.opened_at_s + 1e-6
            has_notice = any("will be lost" in said for said in incident.evidence)
            assert has_notice or one.opened_s == pytest.approx(incident.opened_at_s)  # else since the notice
            assert one.began_s <= one.opened_s
    assert seen > 10
