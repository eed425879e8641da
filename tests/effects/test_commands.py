"""Effect. The command line as a whole: walks all commands there are, so that none falls out of the one style."""

import ast
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from ray.exceptions import RayActorError, RaySystemError, RpcError

from elastic.actors import asking, cluster, draining
from elastic.cli import cli, main
from elastic.commands.reference import exit_codes, leaves, render, takes_json
from elastic.commands.style import CODES, UNSOUND, Finite, json_option, tell
from elastic.control.values import NONE_LEFT_OUT
from elastic.errors import SettingError
from tests.pure.report_lines import a_night, written

ROOT = Path(__file__).parents[2]
COMMANDS = {" ".join(path): command for path, command in leaves(cli)}
BEGIN, END = "<!-- commands:begin -->\n", "<!-- commands:end -->"


def elastic(*arguments: str):
    return CliRunner().invoke(cli, arguments)


def called(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """As from a shell: code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["elastic", *arguments])
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    said = capsys.readouterr()
    return code, said.out, said.err


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_is_not_there_is_wrong_use(name):
    done = elastic(*name.split(), "--no-such-option")
    assert done.exit_code == 2 and "No such option" in done.stderr and done.stdout == ""


@pytest.mark.parametrize("name", [name for name, one in COMMANDS.items() if any(p.required for p in one.params)])
def test_what_is_needed_and_missing_is_wrong_use(name):
    done = elastic(*name.split())
    assert done.exit_code == 2 and "Missing" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_says_what_it_is(name):
    command = COMMANDS[name]
    assert command.help and command.help.strip().endswith((".", ":", "`"))
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.name == "metric" or param.help or param.type.name == "choice", param.opts
    assert all(code in CODES for code in exit_codes(command))


def test_those_without_a_json_form_have_another_product():
    """A script for the shell, manifests in YAML, a screen."""
    without = {name for name, one in COMMANDS.items() if not takes_json(one)}
    assert without == {"completion", "kuberay render", "top"}


# Of each command that answers a program, the test that reads the answer.
READ = {
    "chaos": "effects/test_chaos_command.py::test_a_schedule_goes_on_when_one_of_its_faults_is_refused",
    "config": "effects/test_config.py::test_the_command_tells_a_program",
    "demo": "chaos/test_demo.py::test_three_faults_cost_no_step_no_sample_and_no_survivor",
    "doctor": "effects/test_doctor.py::test_findings_are_told_to_a_program",
    "drain": "effects/test_commands.py::test_what_came_of_it_is_told_to_people_and_to_programs",
    "export": "effects/test_checkpoint_commands.py::test_export",
    "gc": "effects/test_checkpoint_commands.py::test_gc",
    "goodput": "effects/test_goodput_command.py::test_json_holds_all_that_is_known_and_adds_up",
    "import": "effects/test_checkpoint_commands.py::test_import",
    "kuberay validate": "effects/test_kuberay_commands.py::test_problems_are_told_and_end_in_an_error",
    "ls": "effects/test_checkpoint_commands.py::test_ls",
    "pause": "effects/test_commands.py::test_what_came_of_it_is_told_to_people_and_to_programs",
    "plan": "effects/test_simulate_command.py::test_a_plan_says_what_each_choice_is_worth",
    "report": "effects/test_report_commands.py::test_a_report_is_one_file",
    "restore-report": "effects/test_checkpoint_commands.py::test_c26_restore_report",
    "resume": "effects/test_commands.py::test_what_came_of_it_is_told_to_people_and_to_programs",
    "rewind": "effects/test_commands.py::test_what_came_of_it_is_told_to_people_and_to_programs",
    "run": "effects/test_commands.py::test_a_file_is_trained_with_what_else_is_said",
    "simulate campaign": "effects/test_simulate_command.py::test_a_campaign_without_violations_says_so",
    "simulate case-study": "effects/test_simulate_command.py::test_the_case_study_is_told_to_a_program",
    "size": "effects/test_commands.py::test_a_size_is_told_to_a_program",
    "status": "effects/test_report_commands.py::test_status_for_programs_and_for_people",
    "submit": "effects/test_submit_command.py::test_a_program_is_told_the_id_and_how_it_ended",
    "tune": "effects/test_commands.py::test_what_came_of_it_is_told_to_people_and_to_programs",
    "verify": "effects/test_checkpoint_commands.py::test_verify",
}
# Of each command one wrong use, the code that it ends with, and what it is told.
WRONG = {
    "chaos": (["night"], 2, "give either --fault"),
    "completion": (["csh"], 2, "'csh' is not one of"),
    "config": (["--set", "scaling.spare=2"], 2, "did you mean scaling.spares?"),
    "demo": (["--steps", "few"], 2, "'few' is not a valid integer"),
    "doctor": (["--params", "-1"], 2, "must be a positive number"),
    "drain": (["ab", "--deadline", "soon"], 2, "'soon' is not a valid float"),
    "export": (["night", "--to", "x", "--format", "onnx"], 2, "'onnx' is not one of"),
    "gc": (["night", "--keep-last", "none"], 2, "'none' is not a valid integer"),
    "goodput": (["night", "--between", "0", "noon"], 2, "noon"),
    "import": (["nowhere.pt", "--run", "night"], 2, "'nowhere.pt' does not exist"),
    "kuberay render": (["run.yaml"], 2, "unexpected extra argument"),
    "kuberay validate": (["nowhere.yaml", "--crds", "nowhere"], 2, "nowhere"),
    "ls": (["night", "--persistent", "s3://bucket"], 2, "the scheme 's3' cannot be opened"),
    "pause": ([], 2, "Missing argument 'RUN'"),
    "plan": (["--mtbf", "never"], 2, "must be a positive number of seconds"),
    "report": (["night", "--no-such-form"], 2, "No such option"),
    "restore-report": (["night", "--persistent", "s3://bucket"], 2, "the scheme 's3' cannot be opened"),
    "resume": ([], 2, "Missing argument 'RUN'"),
    "rewind": (["night", "--to-step", "9", "--skip-batches", "7:3"], 2, "two step numbers with A < B"),
    "run": (["nowhere.py"], 2, "there is no such file"),
    "simulate campaign": (["--seeds", "many"], 2, "'many' is not a valid integer"),
    "simulate case-study": (["--seeds", "many"], 2, "'many' is not a valid integer"),
    "size": (["--params", "lots", "--hosts", "1"], 2, "'lots' is not a valid float"),
    "status": ([], 2, "Missing argument 'RUN'"),
    "submit": (["--address", "http://127.0.0.1:1", "--", "x"], 1, "no dashboard takes jobs"),
    "top": (["night", "--interval", "often"], 2, "'often' is not a valid float"),
    "tune": (["night", "--lr-factor", "lots"], 2, "'lots' is not a valid float"),
    "verify": (["night", "--persistent", "s3://bucket"], 2, "the scheme 's3' cannot be opened"),
}


def test_every_command_is_in_both_lists():
    assert set(READ) == {name for name, one in COMMANDS.items() if takes_json(one)}
    assert set(WRONG) == set(COMMANDS)


@pytest.mark.parametrize("name", READ)
def test_the_json_form_has_one_name_and_a_test(name):
    option = next(param for param in COMMANDS[name].params if "--json" in param.opts)
    assert option.is_flag and option.name == "as_json"
    path, _, test = READ[name].partition("::")
    text = (ROOT / "tests" / path).read_text()
    functions = {one.name for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)}
    assert test in functions, READ[name]
    assert re.search(rf"""["']{re.escape(name.split()[-1])}["']""", text) and '"--json"' in text, READ[name]


@click.command()
@json_option
def talking(as_json: bool) -> None:
    print("a line of mine")
    beside = threading.Thread(target=print, args=("a line of Ray's",))
    beside.start()
    beside.join(10)
    tell({"all": "well"}, as_json, "all is well")


def test_who_asks_for_json_has_stdout_for_the_object_alone():
    done = CliRunner().invoke(talking, ["--json"])
    assert json.loads(done.stdout) == {"all": "well"}
    assert done.stderr == "a line of mine\na line of Ray's\n"
    assert CliRunner().invoke(talking).stdout == "a line of mine\na line of Ray's\nall is well\n"


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_use_is_told_in_one_sentence(monkeypatch, capsys, name):
    arguments, code, told = WRONG[name]
    ended, out, err = called(monkeypatch, capsys, *name.split(), *arguments)
    assert (ended, out) == (code, "") and told in err
    assert (code == 2 and err.startswith("Usage: ")) or (err.startswith("error: ") and err.count("\n") == 1)


def test_the_page_is_what_the_commands_say():
    text = (ROOT / "docs" / "commands.md").read_text()
    shown = text.partition(BEGIN)[2].partition(END)[0]
    assert shown == f"\n{render(cli)}\n", "run `python tools/commands.py --write docs/commands.md`"


# Of each command that may end with a code of its own, the test that has it do so.
ENDS = {
    "doctor": "effects/test_doctor.py::test_what_breaks_runs_is_the_exit_code_and_has_a_fix",
    "kuberay validate": "effects/test_kuberay_commands.py::test_problems_are_told_and_end_in_an_error",
    "restore-report": "effects/test_checkpoint_commands.py::test_c26_restore_report",
    "simulate campaign": "effects/test_simulate_command.py::test_a_violation_is_told_kept_and_played_again",
    "simulate scenario": "effects/test_simulate_command.py::test_a_policy_that_fails_is_told_and_is_no_success",
    "submit": "effects/test_submit_command.py::test_the_command_returns_how_the_job_ended",
    "verify": "effects/test_checkpoint_commands.py::test_verify",
}


def test_codes_of_their_own_are_documented_and_tested():
    commands = dict(COMMANDS) | {"simulate scenario": cli.commands["simulate"].commands["scenario"]}
    assert {name for name, one in commands.items() if set(exit_codes(one)) == {UNSOUND}} == set(ENDS)
    for where in ENDS.values():
        path, _, test = where.partition("::")
        assert f"def {test}(" in (ROOT / "tests" / path).read_text(), where


def test_who_looks_for_settings_where_a_run_is_tuned_is_shown_the_planner():
    assert "elastic plan" in elastic("tune", "--help").output


def test_no_command_ends_with_a_code_that_its_help_does_not_tell():
    for path in [*(ROOT / "elastic" / "commands").glob("*.py"), ROOT / "elastic" / "cli.py"]:
        ends = re.findall(r"\b(?:sys|ctx)\.exit\((.*)\)", path.read_text())
        own = [said for said in ends if path.name != "style.py"]
        assert all(said == "UNSOUND" for said in own), path
        assert path.read_text().count(f"Exit code {UNSOUND}:") >= len(own), path


# --- as from a shell --------------------------------------------------------------------------------------------------


def test_an_error_is_one_sentence_on_stderr(monkeypatch, capsys):
    code, out, err = called(monkeypatch, capsys, "size", "--params", "-1", "--hosts", "1")
    assert (code, out) == (2, "") and err == "error: --params=-1.0 must be a positive number\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", "--hosts", "0"],
        ["gc", "night"],
        ["chaos", "night", "--fault", "meteor"],
        ["chaos", "night", "--schedule", "every 60 kill"],
        ["config", "--set", "a.b=1"],
        ["config", "nowhere.yaml"],
        ["config", "--from-google", "values.yaml", "--set", "name=night"],
        ["config", "--explain", "run.yaml"],
        ["ls", "night", "--address", "head:6379"],
        ["gc", "night", "--memory", "/dev/shm", "--address", "head:6379"],
        ["rewind", "night", "--to-step", "3", "--persistent", "/nowhere", "--address", "head:6379"],
        ["rewind", "night", "--to-step", "3", "--persistent", "/nowhere", "--timeout", "3"],
        ["goodput", "runs/nigth"],
        ["run", "train.yaml", "--config", "other.yaml"],
        ["simulate", "case-study", "nowhere"],
        ["tune", "night"],
        ["chaos", "night", "--schedule", "@nowhere"],
        ["status", "gs://bucket"],
        ["top", "gs://bucket/", "--once"],
        ["goodput", "s3://bucket/runs/night"],
        ["demo", "--out", "nowhere", "--policy", "nowhere.py:decide"],
    ],
    ids=" ".join,
)
def test_what_is_asked_for_in_the_wrong_way_is_wrong_use(monkeypatch, capsys, arguments):
    """Whether click finds it or a setting does."""
    code, out, err = called(monkeypatch, capsys, *arguments)
    assert (code, out) == (2, "") and "error: " in err.lower()


# Options whose value a setting judges, in its own words.
JUDGED = {
    ("size", "--params"): ["--hosts", "1"],
    ("size", "--bytes-per-param"): ["--params", "1e9", "--hosts", "1"],
    ("doctor", "--params"): ["--no-cluster"],
    ("doctor", "--bytes-per-param"): ["--params", "1e9", "--no-cluster"],
    ("tune", "--lr-factor"): ["night"],
}


def test_all_other_options_refuse_what_is_no_number_by_themselves():
    """A wait that is no number of seconds would never end."""
    kinds = (type(click.FLOAT), click.FloatRange)
    loose = {
        (name, param.opts[0])
        for name, one in COMMANDS.items()
        for param in one.params
        if isinstance(param.type, kinds) and not isinstance(param.type, Finite)
    }
    assert loose == set(JUDGED)


OTHERS = [("pause", "--for"), ("pause", "--timeout"), ("top", "--interval"), ("drain", "--deadline")]


@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
@pytest.mark.parametrize(("name", "option"), [*JUDGED, *OTHERS])
def test_what_is_no_number_is_wrong_use(monkeypatch, capsys, name, option, number):
    code, out, err = called(monkeypatch, capsys, name, *JUDGED.get((name, option), ["night"]), option, number)
    assert (code, out) == (2, "") and number in err


def test_a_demo_that_can_not_decide_removes_nothing(monkeypatch, capsys, tmp_path):
    (tmp_path / "clean").mkdir()
    code, _, err = called(monkeypatch, capsys, "demo", "--out", str(tmp_path), "--policy", "nowhere.py:decide")
    assert code == 2 and "there is no such file" in err and (tmp_path / "clean").is_dir()


@pytest.mark.parametrize(
    "failure", [RaySystemError("the head is gone\nwith a story"), RpcError("late"), RayActorError()], ids=type
)
def test_what_ray_raises_is_one_sentence(monkeypatch, capsys, failure):
    def failing(*_, **__):
        raise failure

    monkeypatch.setattr(asking, "resume", failing)
    code, out, err = called(monkeypatch, capsys, "resume", "night")
    assert (code, out) == (1, "") and err.startswith(f"error: {type(failure).__name__}") and err.count("\n") == 1
    assert "elastic doctor" in err


def test_a_bug_of_ours_is_told_with_all_that_is_known_of_it(monkeypatch, capsys):
    def failing(*_, **__):
        raise AssertionError("ours")

    monkeypatch.setattr(asking, "resume", failing)
    with pytest.raises(AssertionError, match="ours"):
        called(monkeypatch, capsys, "resume", "night")


def test_wrong_use_shows_the_usage(monkeypatch, capsys):
    code, out, err = called(monkeypatch, capsys, "size")
    assert (code, out) == (2, "") and err.startswith("Usage: elastic size")


def test_an_interruption_is_130(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(asking, "resume", interrupted)
    assert called(monkeypatch, capsys, "resume", "night")[0] == 130


@pytest.mark.parametrize(
    ("shell", "words", "wanted"),
    [
        ("bash", "elastic do", "doctor"),
        ("zsh", "elastic do", "doctor"),
        ("fish", "elastic do", "doctor"),
        ("bash", "elastic completion z", "zsh"),
        ("bash", "elastic doctor --pers", "--persistent"),
    ],
)
def test_a_shell_completes(shell, words, wanted):
    script = elastic("completion", shell)
    assert script.exit_code == 0 and "_ELASTIC_COMPLETE" in script.stdout
    environment = os.environ | {"_ELASTIC_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "PYTHONPATH": str(ROOT)}
    environment |= {"COMP_CWORD": words.split()[-1] if shell == "fish" else str(len(words.split()) - 1)}
    code = "import sys; sys.argv = ['elastic']; from elastic.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert wanted in done.stdout, done.stderr


def test_a_shell_that_is_none_is_refused():
    done = elastic("completion", "csh")
    assert done.exit_code == 2 and "'csh' is not one of" in done.stderr


# --- the --json form of those that ask a run --------------------------------------------------------------------------


@pytest.fixture
def answering(monkeypatch):
    """A run that does as it is told."""
    monkeypatch.setattr(asking, "tune", lambda run, **_: 12)
    monkeypatch.setattr(asking, "rewind", lambda run, to_step, **_: to_step - 1)
    monkeypatch.setattr(asking, "resume", lambda run, **_: None)
    monkeypatch.setattr(asking, "pause", lambda run, **_: None)
    monkeypatch.setattr(draining, "drain_node", lambda node, reason, deadline: f"{node}full")

    class Connected:
        def __init__(self, address):
            pass

        def __enter__(self):
            return None

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(cluster, "connected", Connected)


@pytest.mark.parametrize(
    ("arguments", "wanted", "line"),
    [
        (["tune", "night", "--lr-factor", "0.5"], {"run": "night", "step": 12}, "night is tuned from step 12 on"),
        (["rewind", "night", "--to-step", "9"], {"run": "night", "step": 8}, "night goes on after step 8"),
        (["resume", "night"], {"run": "night", "resumed": True}, "night goes on"),
        (["pause", "night"], {"run": "night", "paused": True}, "night is paused; `elastic resume night` has it go on"),
        (["drain", "ab", "--deadline", "5"], {"node": "abfull", "deadline_s": 5.0}, "draining abfull"),
    ],
)
def test_what_came_of_it_is_told_to_people_and_to_programs(answering, arguments, wanted, line):
    told = elastic(*arguments, "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout) == wanted
    assert elastic(*arguments).stdout == f"{line}\n"


def test_what_is_to_be_left_out_is_told_to_the_run(answering, monkeypatch):
    skips = []
    monkeypatch.setattr(asking, "rewind", lambda run, to_step, *, skip, **_: skips.append(skip) or to_step)
    for given in ([], ["--skip-batches", "12:14"], ["--skip-batches", "none"]):
        assert elastic("rewind", "night", "--to-step", "9", *given).exit_code == 0
    assert skips == [(0, 0), (12, 14), NONE_LEFT_OUT]


def test_a_size_is_told_to_a_program():
    told = elastic("size", "--params", "1e9", "--hosts", "2", "--copies", "3", "--json")
    assert json.loads(told.stdout)["shard_bytes"] == 6 * 10**9


@pytest.mark.parametrize(
    "arguments",
    [["rewind", "night", "--to-step", "9", "--skip-batches", "9:12"], ["size", "--params", "lots", "--hosts", "1"]],
)
def test_values_of_the_wrong_kind_are_wrong_use(arguments):
    assert elastic(*arguments).exit_code == 2


# --- elastic run ------------------------------------------------------------------------------------------------------

SOURCE = """
import beside

def train_fn(session):
    return beside.VALUE

def other(session):
    return "other"
"""


@pytest.fixture
def fitted(monkeypatch, tmp_path):
    """What would be trained, with which settings; nothing is."""
    from elastic import api
    from elastic.control.outcome import Result

    calls = []

    def fit_configured(train_fn, chosen, tree):
        calls.append((train_fn, chosen))
        facts = {"value": None, "world_sizes": [2], "incidents": [], "goodput": 1.0, "run_dir": "runs/night"}
        return Result(steps=3, last_report={"loss": 0.5}, **facts)

    monkeypatch.setattr(api, "fit_configured", fit_configured)
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "beside.py").write_text("VALUE = 'beside'\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield calls
    sys.modules.pop("beside", None)


def test_a_file_is_trained_with_what_else_is_said(fitted, tmp_path):
    done = elastic("run", str(tmp_path / "train.py"), "--set", "scaling.spares=2", "--name", "night", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "run_dir": "runs/night",
        "steps": 3,
        "last_report": {"loss": 0.5},
        "world_sizes": [2],
        "incidents": 0,
        "goodput": 1.0,
    }
    ((train_fn, chosen),) = fitted
    assert train_fn(None) == "beside"
    assert chosen.scaling.spares == 2 and chosen.name == "night" and chosen.chaos is None


def test_a_configuration_may_name_it(fitted, tmp_path):
    (tmp_path / "run.yaml").write_text(f"train_fn: {tmp_path}/train.py:other\nseed: 5\n")
    done = elastic("run", str(tmp_path / "run.yaml"), "--chaos", "every 60 kill")
    assert done.exit_code == 0, done.output
    assert done.stdout == "3 steps, 0 incidents, goodput 100.0%; loss 0.5\njournal in runs/night\n"
    ((train_fn, chosen),) = fitted
    assert train_fn(None) == "other" and chosen.seed == 5
    assert chosen.chaos.enable_fault_injection and chosen.chaos.schedule == "every 60 kill"


def test_what_is_set_to_nothing_is_off_and_what_a_run_lives_on_may_be_set_too(fitted, tmp_path):
    sections = "chaos: {enable_fault_injection: true, schedule: every 60 kill}\nkuberay: {autoscale: true}\n"
    (tmp_path / "run.yaml").write_text(f"train_fn: {tmp_path}/train.py\n{sections}")
    done = elastic("run", str(tmp_path / "run.yaml"), "--set", "chaos=null", "--set", "kuberay.autoscale=false")
    assert done.exit_code == 0, done.output
    ((_, chosen),) = fitted
    assert chosen.chaos is None and chosen.kuberay.autoscale is False


@pytest.mark.parametrize("how", [["train.py", "--config", "debug.yaml"], ["debug.yaml"]], ids=" ".join)
def test_what_a_configuration_leaves_out_is_in_no_other_one(fitted, tmp_path, monkeypatch, how):
    """Such as the one that a pod has in its environment, of the run that trains there."""
    (tmp_path / "production.yaml").write_text("name: production\ncheckpoint:\n  persistent: gs://bucket/runs\n")
    (tmp_path / "debug.yaml").write_text("train_fn: train.py\nseed: 5\n")
    monkeypatch.setenv("ELASTIC_CONFIG", str(tmp_path / "production.yaml"))
    monkeypatch.chdir(tmp_path)
    done = elastic("run", *how)
    assert done.exit_code == 0, done.output
    ((_, chosen),) = fitted
    assert chosen.seed == 5 and chosen.name is None and chosen.checkpoint is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{0}/gone.py"], "there is no such file"),
        (["{0}/train.py:third"], "has no third"),
        (["nonsense"], "must be file.py:function"),
        (["{0}/empty.yaml"], "names no train_fn"),
        (["{0}/empty.yaml", "--config", "{0}/empty.yaml"], "give one of them"),
        (["{0}/train.py", "--set", "limits.lease=5"], "did you mean limits.lease_s"),
    ],
)
def test_what_can_not_be_trained_is_refused(fitted, tmp_path, arguments, told):
    (tmp_path / "empty.yaml").write_text("seed: 1\n")
    done = elastic("run", *(one.format(tmp_path) for one in arguments))
    assert done.exit_code == 1 and isinstance(done.exception, SettingError) and told in str(done.exception)
    assert fitted == []


def test_a_file_that_cannot_be_written_is_one_sentence(monkeypatch, capsys, tmp_path):
    written(a_night().lines, tmp_path / "run")
    code, out, err = called(
        monkeypatch, capsys, "report", str(tmp_path / "run"), "-o", str(tmp_path / "none" / "x.html")
    )
    assert (code, out) == (1, "") and err.startswith("error: ") and err.count("\n") == 1


def test_json_has_no_word_for_what_is_no_number(capsys):
    with click.Context(talking):
        tell({"loss": float("nan")}, True)
    assert json.loads(capsys.readouterr().out) == {"loss": None}


def no_json(word):
    raise AssertionError(f"{word} is no JSON")


@pytest.mark.parametrize("knob", ["health.recheck_s", "health.cooldown_s"])
def test_a_setting_without_an_end_is_null(knob):
    told = elastic("config", "--set", f"{knob}=inf", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout, parse_constant=no_json)[knob] == {"value": None, "source": f"--set {knob}"}


def test_no_command_has_a_way_of_its_own_to_write_json():
    written_by = {
        (path.name, function.name)
        for path in (ROOT / "elastic" / "commands").glob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef)
        and any(ast.unparse(call.func) == "json.dumps" for call in ast.walk(function) if isinstance(call, ast.Call))
    }
    assert written_by == {("configuring.py", "_shown"), ("simulating.py", "_keep")}  # a value for people, a file


@pytest.mark.parametrize("address", ["10..0.1:6379", f"{'x' * 70}:6379", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_one_sentence(monkeypatch, capsys, address):
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # this process may have a cluster of other tests
    told = called(monkeypatch, capsys, "drain", "n0", "--address", address)
    assert told == (1, "", f"error: no Ray cluster answers at {address}: check --address or RAY_ADDRESS\n")
