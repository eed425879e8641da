"""Effect. `elastic chaos` without a cluster: its plan, what it refuses, and what it tells of a run that answers."""

import json
import time

import pytest
from click.testing import CliRunner

from elastic.actors import asking, cluster
from elastic.cli import cli
from elastic.control import events as ev
from elastic.control.faults import FaultKind
from elastic.errors import SettingError


def chaos(*arguments: str):
    return CliRunner().invoke(cli, ["chaos", "night", *arguments])


def planned(*arguments: str) -> list[str]:
    done = chaos(*arguments, "--dry-run")
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_a_plan_is_printed_and_a_seed_makes_it_the_same():
    poisson = ("--schedule", "poisson mtbf=10m kill", "--for", "3600", "--nodes", "a,b")
    assert planned(*poisson) == planned(*poisson, "--seed", "0") != planned(*poisson, "--seed", "1")
    assert all(line.endswith(("kill node:a", "kill node:b")) for line in planned(*poisson))
    assert planned("--fault", "slow", "--target", "rank:1", "--with", "3", "--duration", "5") == [
        "      0.00 s  slow rank:1 for=5 with=3"
    ]
    (line,) = planned("--schedule", "12 kill leader", "--json")
    assert json.loads(line) == {"fault": "kill leader", "name": "0", "planned_at_s": 12.0}


def test_a_schedule_may_come_from_a_file(tmp_path):
    (tmp_path / "faults.yaml").write_text("- 1 kill rank:0\n- 2 stop rank:1 for=3\n")
    told = planned("--schedule", f"@{tmp_path / 'faults.yaml'}")
    assert told == ["      1.00 s  kill rank:0", "      2.00 s  stop rank:1 for=3"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give either --fault, for one fault now, or --schedule"),
        (("--fault", "kill", "--schedule", "1 kill"), "give either --fault"),
        (("--fault", "boom"), "there is no fault 'boom'"),
        (("--fault", "kill", "--target", "everybody"), "any, leader, rank:N"),
        (("--fault", "xid"), "xid with=''"),
        (("--schedule", "every 30 kill"), "say with --for how many seconds"),
        (("--schedule", "soon kill"), "'soon kill' is no entry of a schedule"),
        (("--schedule", "1 kill", "--target", "rank:1"), "--target: each fault of --schedule names its own"),
        (("--schedule", "1 stop", "--duration", "5"), "--duration: each fault of --schedule says how long"),
        (("--schedule", "1 slow", "--with", "3"), "--with: each fault of --schedule says what it takes"),
        (("--fault", "stop", "--for", "10"), "--for: one fault is undone after --duration"),
        (("--schedule", "poisson mtbf=2h node_down", "--for", "9", "--nodes", "a"), "--nodes: names nodes of a plan"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_broken(arguments, told):
    done = chaos(*arguments)
    assert done.exit_code == 1 and told in str(done.exception)


def test_a_schedule_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "faults").write_bytes(b"\xff\xfe1 kill")
    done = chaos("--schedule", f"@{tmp_path / 'faults'}")
    assert done.exit_code == 1 and isinstance(done.exception, SettingError) and "it is not UTF-8" in str(done.exception)


@pytest.mark.parametrize("option", ["--duration", "--for"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_what_is_no_length_of_time_is_refused(option, number):
    done = chaos("--fault", "stop", option, number, "--dry-run")
    assert done.exit_code == 2 and f"Invalid value for '{option}': {number} is not finite." in done.output


class Answering:
    """A run, as `asking` finds it: refuses what `refused` says, and tells of all else at the next question."""

    def __init__(self, refused: dict[FaultKind, str]) -> None:
        self.refused, self.told, self.asked_s = refused, [], []

    def ask_fault(self, run, fault, is_forced):
        self.asked_s.append(time.monotonic())
        if fault.kind in self.refused:
            return self.refused[fault.kind]
        came = ev.FaultInjected(fault=fault, target="w1", at_s=5.0, proof="it is gone")
        if fault.kind is FaultKind.XID:
            came = ev.FaultRefused(fault=fault, reason="it takes root")
        self.told.append(came)
        return ""

    def faults_told(self, run):
        return self.told

    def nodes_now(self, run):
        return ("a",)


@pytest.fixture
def run(monkeypatch):
    answering = Answering({FaultKind.STOP: "night is not to be stopped"})
    for name in ("ask_fault", "faults_told", "nodes_now"):
        monkeypatch.setattr(asking, name, getattr(answering, name))
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: True)
    return answering


def test_what_struck_is_told_with_its_proof(run):
    done = chaos("--fault", "kill", "--target", "rank:1")
    assert (done.exit_code, done.output) == (0, "kill rank:1: struck w1: it is gone\n")


@pytest.mark.parametrize(
    ("fault", "reason"), [(("stop",), "night is not to be stopped"), (("xid", "--with", "79"), "it takes root")]
)
def test_one_fault_that_does_not_strike_is_an_error(run, fault, reason):
    done = chaos("--fault", *fault)
    assert done.exit_code == 1 and done.output == ""
    assert str(done.exception).endswith(f"did not strike: {reason}")


def test_a_schedule_goes_on_when_one_of_its_faults_is_refused(run):
    done = chaos("--schedule", "0 stop; 0.3 kill; 0.3 xid with=79", "--json")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.output.splitlines()]
    assert [line["fault"] for line in lines] == ["stop any", "kill any", "xid any with=79"]
    assert ["refused" in line for line in lines] == [True, False, True]
    assert run.asked_s[1] - run.asked_s[0] >= 0.25
    assert len({line["name"] for line in lines}) == 3


def test_a_schedule_of_which_nothing_strikes_has_failed(run):
    """Whoever tests a run so has tested nothing."""
    done = chaos("--schedule", "0 stop; 0.1 stop rank:1", "--json")
    assert len(done.output.splitlines()) == 2 and done.exit_code == 1
    assert str(done.exception) == "none of 2 faults struck; of the last one: night is not to be stopped"


def test_it_is_said_that_no_fault_was_due(run):
    done = chaos("--schedule", "5 kill", "--for", "0.2")
    assert (done.exit_code, done.stdout) == (0, "") and done.stderr == "no fault was due within --for 0.2 s\n"


def test_faults_of_nodes_follow_the_nodes_that_are_there(run):
    done = chaos("--schedule", "poisson mtbf=1 kill", "--for", "2", "--json")
    assert done.exit_code == 0, done.output
    assert {json.loads(line)["fault"] for line in done.output.splitlines()} == {"kill node:a"}
