"""The protocol campaign: worlds of 3 to 21 workers with a hostile network, and histories of those that went wrong."""

import json
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.sim import campaign
from elastic.sim.brain import Brain
from elastic.sim.campaign import FAULTS, Case, Played, case_of, from_plain, play, replay_command, shrink, to_plain
from elastic.sim.chance import Chance
from elastic.sim.laws import Law, Violation, must
from elastic.sim.succession import DriverDepotWorld, DriverGangDepotWorld
from tests.pure.batches import batches
from tests.pure.pinned import FILE, digests, played

HISTORIES = sorted((Path(__file__).parents[1] / "histories").glob("*.json"))
BITS = [2952933339660019970, 411157230271384812, 6761915407762915612]


@batches(600, 12, quick=12)
def test_no_world_breaks_a_law(seeds):
    for seed in seeds:
        one = played(seed)
        assert one.is_sound, f"{one.law}: {one.what}\n{replay_command(one.case)}"


@pytest.mark.slow
def test_the_worlds_hold_what_they_are_meant_to():
    worlds = [played(seed) for seed in range(150)]
    struck = Counter(fault for one in worlds for fault in one.faults)
    assert set(FAULTS) | {"driver", "outage", "node_loss", "rack_loss"} <= set(struck), struck
    assert sum(one.ending == "succeeded" for one in worlds) > 100
    assert max(one.generations for one in worlds) >= 6


UNSEEN_EVENTS = {
    "ExitAsked": "ends the run at once: tests/pure/test_pausing.py",
    "StopAsked": "ends the run at once: tests/pure/test_controller_end.py",
    "FaultAsked": "faults strike a world by themselves: tests/pure/test_injecting.py",
    "FaultInjected": "as FaultAsked",
    "FaultRefused": "as FaultAsked",
    "RungReached": "depots keep checkpoints without a controller that waits for one to be durable",
    "ShardStaged": "changes nothing but what is told: workers of depots stage without saying so",
    "TierDegraded": "as ShardStaged",
    "IntervalChosen": "as ShardStaged",
    "Logged": "as ShardStaged",
    "Noted": "as ShardStaged",
}
UNSEEN_COMMANDS = {
    "InjectFault": "as FaultAsked, which it answers",
    "DropFault": "as InjectFault",
}


RICH = (66, 127, 148, 12, 95, 31, 6, 26, 7, 460)


def names_of(module, base, unseen) -> set[str]:
    """Of the kinds of events, or of commands, that some world has to play."""
    kinds = {one.__name__ for one in vars(module).values() if isinstance(one, type) and issubclass(one, base)}
    assert set(unseen) <= kinds
    return kinds - {"Event", "WorkerEvent", "Command"} - set(unseen)


def test_every_event_and_command_comes_in_some_world_or_has_a_reason_not_to():
    """Worlds that have them all between them; else, after a change, those in which much happens that is rare."""
    events, commands = names_of(ev, ev.Event, UNSEEN_EVENTS), names_of(cmd, cmd.Command, UNSEEN_COMMANDS)
    rare = attrgetter("raise_", "corrupt", "xid", "depart")
    for seed in (*RICH, *sorted(range(200), key=lambda seed: -sum(map(bool, rare(case_of(seed).plan))))):
        one = played(seed)
        events -= set(one.kinds)
        commands -= set(one.given)
        if not events and not commands:
            return
    raise AssertionError(f"in none of these worlds: {events | commands}")


def test_one_seed_is_one_history():
    one, two = (play(case_of(7, 30)) for _ in range(2))
    assert one == two and one.digest == two.digest
    world = campaign.world_of(one.case).play()
    told = world.ws.history.hexdigest()
    assert told == one.digest
    world.ws.history.update(b"one more event")
    assert world.ws.history.hexdigest() != told
    assert one.digest != play(replace(one.case, seed=8)).digest


@pytest.mark.parametrize("seed", [42, 46, 72])
def test_a_run_of_one_step_is_a_world_too(seed):
    """An earlier life has saved no later ones, and a clock does not jump all the time."""
    one = play(case_of(seed, 1))
    assert one.is_sound, f"{one.law}: {one.what}"


def test_histories_are_what_they_were_elsewhere():
    """Whoever has changed the control plane writes them anew: python -m tests.pure.pinned"""
    assert digests() == json.loads(FILE.read_text())


@pytest.mark.parametrize("file", HISTORIES, ids=lambda file: file.stem)
def test_what_once_went_wrong_goes_well_now(file):
    one = play(from_plain(json.loads(file.read_text())["case"]))
    assert one.is_sound, f"{one.law}: {one.what}"


def test_a_scenario_is_told_in_a_line():
    case = replace(case_of(3), tiers={"peers": 1, "outage": 0.0}, deaths_s=(2.5,))
    told = campaign.scenario_of(case)
    assert "replicas=(" in told and "steps=200" in told and "deaths_s=(2.5)" in told and "tiers=(peers=1)" in told
    assert "lease_s" not in told and "\n" not in told


def test_drivers_die_beside_all_other_faults():
    cases = [case for case in map(case_of, range(400)) if case.deaths_s]
    for fault in FAULTS:
        assert any(getattr(case.plan, fault) for case in cases), fault
    for name in ("bad", "refuse"):
        assert any((case.tiers or {}).get(name) for case in cases), name


def test_a_case_goes_through_json_unchanged():
    for seed in range(6):
        case = case_of(seed)
        assert from_plain(json.loads(json.dumps(to_plain(case)))) == case
    assert "--case here.json" in replay_command(case_of(1), "here.json")


def test_a_violation_has_its_story_and_shrinks(monkeypatch):
    """Somebody counts generations by two, now and then."""

    def take(self, *events):
        commands = _TAKE(self, *events)
        must(self.state.generation < 2, Law.ONE_GENERATION, lambda: "a second generation")
        return commands

    monkeypatch.setattr(Brain, "take", take)
    bad = next(one for one in (play(case_of(seed, 20)) for seed in range(30)) if one.law)
    assert bad.law == Law.ONE_GENERATION.value and bad.what == "a second generation"
    assert any("FreezeAnswered" in line or "Dead" in line for line in bad.story)
    small = shrink(bad.case, bad.law, tries=12)
    assert play(small).law == bad.law
    faults = [sum(bool(getattr(case.plan, fault)) for fault in FAULTS) for case in (small, bad.case)]
    assert faults[0] <= faults[1] and small.plan.steps <= bad.case.plan.steps


def test_what_shrinks_is_left_out_one_by_one(monkeypatch):
    case = next(one for one in map(case_of, range(2, 200, 4)) if one.tiers["rewind"] and one.deaths_s)
    tried: list[Case] = []
    monkeypatch.setattr(campaign, "play", lambda case: tried.append(case) or Played(case=case))
    assert shrink(case, "a law") == case
    assert any(one.tiers["rewind"] == 0 for one in tried)
    assert any(len(one.deaths_s) < len(case.deaths_s) for one in tried)
    assert all(one.plan.policy == case.plan.policy for one in tried)


_TAKE = Brain.take


def test_an_exception_is_a_violation_too(monkeypatch):
    def fails(case):
        world = _WORLD(case)
        world.control = lambda event: 1 / 0
        return world

    monkeypatch.setattr(campaign, "world_of", fails)
    one = play(case_of(0, 20))
    assert one.law == "no exception" and "ZeroDivisionError" in one.what


_WORLD = campaign.world_of


def test_chance_is_the_same_everywhere():
    rng = Chance("a", 1)
    assert [rng.bits() for _ in range(3)] == BITS
    draws = [Chance("b").random() for _ in range(2)]
    assert draws[0] == draws[1]
    rng = Chance("c")
    numbers = [rng.randint(3, 5) for _ in range(200)]
    assert set(numbers) == {3, 4, 5}
    mean = sum(rng.exponential(10.0) for _ in range(4000)) / 4000
    assert 9.0 < mean < 11.0
    assert {rng.choice("xy") for _ in range(50)} == {"x", "y"}
    assert all(2.0 <= rng.uniform(2.0, 3.0) < 3.0 for _ in range(100))


def test_a_law_says_which_and_what():
    with pytest.raises(Violation, match="every wait ends: it hangs") as caught:
        must(False, Law.ENDS, lambda: "it hangs")
    assert caught.value.law is Law.ENDS
    must(True, Law.ENDS, lambda: str(1 / 0))


def test_each_kind_of_case_is_a_world_of_its_kind():
    wide = next(case for case in map(case_of, range(3, 400, 4)) if case.width > 1)
    assert isinstance(campaign.world_of(wide), DriverGangDepotWorld)
    assert isinstance(campaign.world_of(replace(wide, width=1)), DriverDepotWorld)
    assert "--first 5 --seeds 1 --steps 40 " in replay_command(case_of(5, 40))


def test_what_breaks_a_law_whatever_happens_shrinks_to_next_to_nothing(monkeypatch):
    monkeypatch.setattr(campaign, "play", lambda case: Played(case=case, law="a law"))
    case = next(one for one in map(case_of, range(200)) if len(one.deaths_s) > 1 and one.plan.spares)
    case = replace(case, plan=replace(case.plan, in_order=False))
    small = shrink(case, "a law", tries=500)
    assert small.deaths_s == () and not any(getattr(small.plan, fault) for fault in FAULTS)
    assert (small.plan.spares, small.plan.in_order) == (0, True)
    assert small.plan.steps <= 10 and small.plan.replicas[1] <= max(2, small.plan.replicas[0])


def test_what_does_not_go_wrong_again_is_not_tried_for_ever(monkeypatch):
    tried = []
    monkeypatch.setattr(campaign, "play", lambda case: (tried.append(case), Played(case=case))[1])
    assert shrink(case_of(7), "a law", tries=3) == case_of(7)
    assert len(tried) == 3
