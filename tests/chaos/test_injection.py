"""Effect. A run that breaks itself on schedule: each fault is in its journal, with proof, and no promise is broken."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from elastic.actors.process_fleet import ProcessFleet
from elastic.callbacks import Profile
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.schedules import parse, schedule_of
from elastic.settings import Chaos
from tests.chaos.group import CHAOS_SEED, Story, Training, assert_promises, run

pytestmark = pytest.mark.timeout(120)

STEPS = 60
PAUSE_S = 0.02  # so that the last fault strikes long before the last step
# Who is killed may take a second to be gone, in which "any" could still be it.
SCHEDULE = """
    0.1 slow leader for=0.5 with=3
    0.3 kill rank:1
    0.5 stop worker:w2 for=0.2
    0.6 xid leader with=79,kmsg={folder}/kmsg
    0.7 kill_supervisor
    0.8 kill rank:9
"""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return run(tmp_path_factory.mktemp("clean") / "run", steps=STEPS)


def breaking(folder: Path, schedule: str, **limits: float) -> tuple[Story, Chaos]:
    folder.mkdir(exist_ok=True)
    (folder / "kmsg").touch()
    chaos = Chaos(enable_fault_injection=True, schedule=schedule.format(folder=folder))
    story = run(folder, steps=STEPS, pause_s=PAUSE_S, slots=6, training=Training(chaos=chaos), **limits)
    return story, chaos


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"fault_injection_period_s": 2.5},
        {"sim_fault_desc": "rank_killed,0.3"},
        {"schedule": "every 0.4 stop,slow for=0.1"},
        {"schedule": "poisson mtbf=2 stop,slow for=0.1"},
    ],
    ids=["a period", "in NVRx's form", "every", "by each node's own chance"],
)
def test_every_form_of_schedule_strikes_as_it_was_planned(asked: dict[str, Any], clean: Story, tmp_path: Path) -> None:
    chaos = Chaos(enable_fault_injection=True, **asked)
    training = Training(chaos=chaos)
    story = run(
        tmp_path / "run",
        steps=STEPS,
        pause_s=PAUSE_S,
        slots=6,
        training=training,
        hang_floor_s=1.0,
        stopped_timeout_s=1.0,
    )
    names = [line["fault"]["name"] for line in told(story, "FaultAsked")]
    nodes = {line["node"] for line in told(story, "WorkerPlaced")}
    plan = [fault.name for fault in schedule_of(chaos).plan(CHAOS_SEED, 60.0, nodes)]
    assert names and [name for name in plan if name in names] == names, (
        "what was asked for is what was planned, in order"
    )
    struck = [line for line in told(story, "FaultInjected") if line["proof"] and line["target"]]
    assert struck and {line["fault"]["name"] for line in struck} <= set(names)
    assert_promises(story, clean, steps=STEPS, killed=len(story.killed))


def told(story: Story, event: str) -> list[dict[str, Any]]:
    return [line for line in story.journal if line.get("event") == event]


def test_every_fault_of_the_schedule_is_in_the_journal_and_costs_no_step(clean: Story, tmp_path: Path) -> None:
    story, chaos = breaking(tmp_path, SCHEDULE, stopped_timeout_s=20.0)  # who is stopped for a while is not fenced
    plan = schedule_of(chaos).plan(CHAOS_SEED, 10.0)
    assert [line["fault"]["name"] for line in told(story, "FaultAsked")] == [fault.name for fault in plan]
    injected = {line["fault"]["name"]: line for line in told(story, "FaultInjected")}
    refused = {line["fault"]["name"]: line["reason"] for line in told(story, "FaultRefused")}
    assert set(injected) | set(refused) == {fault.name for fault in plan} and not set(injected) & set(refused)
    assert [fault.kind.value for fault in plan if fault.name in injected] == ["slow", "kill", "stop", "xid"]
    assert sorted(reason.partition(":")[0] for reason in refused.values()) == ["kill_supervisor", "rank"]
    assert all(line["proof"] and line["target"] for line in injected.values())
    assert "NVRM: Xid" in (tmp_path / "kmsg").read_text()
    (killed,) = [line["target"] for line in injected.values() if line["fault"]["kind"] == "kill"]
    assert_promises(story, clean, steps=STEPS, killed=1)
    assert story.killed == {killed}, "an incident can be held against what was injected"


@pytest.mark.slow
def test_a_node_that_goes_down_on_schedule_is_replaced(clean: Story, tmp_path: Path) -> None:
    story, _ = breaking(tmp_path, "0.3 node_down rank:1")
    (line,) = told(story, "FaultInjected")
    assert line["fault"]["kind"] == "node_down" and line["target"].startswith("node")
    assert_promises(story, clean, steps=STEPS, killed=1)


def test_an_error_in_train_fn_is_the_users_and_ends_the_run(tmp_path: Path) -> None:
    story, _ = breaking(tmp_path, "0.2 raise rank:1")
    outcome = story.finished.outcome
    assert outcome.ending is Ending.TRAIN_FN_RAISED
    assert "InjectedError: injected by elastic chaos: raise rank:1" in outcome.message
    (line,) = told(story, "FaultInjected")
    assert line["target"] == outcome.details["worker"]


@pytest.mark.slow
def test_a_run_that_is_not_to_be_broken_is_not(tmp_path: Path) -> None:
    """Nobody but its own settings, or a command, could ask; what is asked is dropped, and written down."""
    fault = parse("0 kill leader").plan(0, 1.0)[0]

    def ask(fleet: ProcessFleet, folder: Path) -> None:
        fleet._emit(ev.FaultAsked(fault=fault))

    story = run(tmp_path, during=ask)
    (line,) = told(story, "FaultRefused")
    assert "was not started for fault injection" in line["reason"]
    assert not told(story, "FaultInjected") and not story.killed


@pytest.mark.slow
def test_the_first_steps_after_an_incident_are_traced_under_its_number(tmp_path: Path) -> None:
    """Of whoever survives, on the same steps; the trace is kept, whatever else is traced."""
    chaos = Chaos(enable_fault_injection=True, schedule="0.3 kill rank:1")
    folder = tmp_path / "traces"
    profile = Profile(folder, ranks=range(3), after_incident=2, steps=[range(40, 41), range(50, 51)], keep=1)
    story = run(tmp_path / "run", steps=STEPS, pause_s=PAUSE_S, training=Training(chaos=chaos, callbacks=(profile,)))
    (killed,) = [line["target"] for line in told(story, "FaultInjected")]
    (incident,) = story.finished.state.incidents
    notes = [line for line in told(story, "Noted") if "incident" in line["detail"]]
    assert {line["worker"] for line in notes} == {"w0", "w1", "w2"} - {killed}
    assert {line["step"] for line in notes} == {incident.step + 1}, "two steps, the first of which ends the incident"
    for line in notes:
        path = Path(line["detail"])
        name = f"{line['worker']}-incident-{incident.number}-g{incident.generation}-step{incident.step}.json.gz"
        assert path.name == name and json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    others = [path for path in folder.rglob("*.json.gz") if "incident" not in path.name]
    assert len(others) == 2 and all("step50" in path.name for path in others)
