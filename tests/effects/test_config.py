"""Effect. Configuration from files, the environment and the command line, as people write it and as they mistype it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from elastic.cli import cli
from elastic.config import assigned, from_environment, load, read
from elastic.errors import SettingError
from elastic.knobs import Given, configured, effective, merged
from elastic.settings import Limits

RUN = """\
# a comment
name: llama
seed: 7
scaling:
  num_dp_replicas: [2, 8]
  resources_per_worker: {CPU: 2, slot: 1}
limits:
  heartbeat_polling_period_s: 15
  heartbeat_timeout_s: 30
checkpoint:
  persistent: gs://bucket/run
  keep:
    last: 5
"""
FAULTS = "chaos:\n  enable_fault_injection: true\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def sources(file: Path, **environment: str) -> dict[str, tuple[object, str]]:
    config, tree = load(file, environment=environment)
    return {knob.path: (knob.value, knob.source) for knob in effective(config, tree)}


def test_a_file_gives_the_arguments_of_fit_and_each_value_knows_its_line(file: Path) -> None:
    config, _ = load(file, environment={})
    assert (config.name, config.seed, config.scaling.bounds) == ("llama", 7, (2, 8))
    assert config.scaling.resources == {"CPU": 2.0, "slot": 1.0}
    assert config.limits == Limits(heartbeat_polling_period_s=15.0, heartbeat_timeout_s=30.0)
    assert config.checkpoint is not None and config.checkpoint.keep.last == 5
    found = sources(file)
    assert found["name"] == ("llama", f"{file}:2")
    assert found["scaling.num_dp_replicas"] == ([2, 8], f"{file}:5")
    assert found["scaling.resources_per_worker"] == ({"CPU": 2.0, "slot": 1.0}, f"{file}:6")
    assert found["checkpoint.keep.last"] == (5, f"{file}:13")
    assert found["limits.lease_s"] == (120.0, "default")


def test_variables_win_over_the_file_and_arguments_over_both(file: Path) -> None:
    environment = {"ELASTIC_SEED": "8", "ELASTIC_LIMITS__HEARTBEAT_TIMEOUT_S": "40", "ELASTIC_CHECKPOINT__PEERS": "0"}
    found = sources(file, **environment)
    assert found["seed"] == (8, "ELASTIC_SEED")
    assert found["limits.heartbeat_timeout_s"] == (40.0, "ELASTIC_LIMITS__HEARTBEAT_TIMEOUT_S")
    assert found["limits.heartbeat_polling_period_s"] == (15.0, f"{file}:8")
    assert found["checkpoint.peers"] == (0, "ELASTIC_CHECKPOINT__PEERS")
    config, _ = load(file, {"seed": Given(9, "fit(seed=...)")}, environment)
    assert config.seed == 9


def test_a_variable_names_the_file_and_an_argument_another(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("name: other\n")
    assert load(environment={"ELASTIC_CONFIG": str(file)})[0].name == "llama"
    assert load(other, environment={"ELASTIC_CONFIG": str(file)})[0].name == "other"
    assert load(environment={})[0].name is None


def test_variables_of_somebody_else_do_not_count() -> None:
    assert from_environment({"ELASTIC_TEST_RUN": "x", "TORCHELASTIC_RESTART_COUNT": "1", "ELASTIC_CONFIG": "f"}) == {}
    assert from_environment({"ELASTIC_CHECKPOINT": "", "ELASTIC_CHAOS": "%x"}) == {}, "what nobody has set is no null"
    assert configured(from_environment({"ELASTIC_CHECKPOINT": "null"})).checkpoint is None
    off = merged({"checkpoint": {"peers": Given(2, "run.yaml:3")}}, from_environment({"ELASTIC_CHECKPOINT": "null"}))
    assert configured(off).checkpoint is None


def test_a_variable_of_an_unknown_knob_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^ELASTIC_LIMITS__LEASE: there is no knob limits.lease; did you mean"):
        load(environment={"ELASTIC_LIMITS__LEASE": "5"})


@pytest.mark.parametrize("text", ["[secret", "2026-02-30", "!!int secret", "!!bool secret", "!!timestamp secret"])
def test_a_variable_that_is_no_yaml_is_refused_without_its_value(text: str) -> None:
    with pytest.raises(SettingError, match=r"^ELASTIC_NAME: its value is no YAML$"):
        load(environment={"ELASTIC_NAME": text})
    with pytest.raises(SettingError, match=r"^--set name: its value is no YAML$"):
        assigned(f"name={text}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seed: 1\nseed: 2\n", "run.yaml:1: seed is given twice in this section"),
        ("limits:\n  lease_s: 1\n  lease_s: 2\n", "run.yaml:2: lease_s is given twice in this section"),
        ("- seed\n", "run.yaml:1: there must be names with values here"),
        ("seed: [1\n", "run.yaml:2: no YAML: "),
        ("a: 1\n---\nb: 2\n", "no YAML: but found another document"),
        ("seed: !!python/object/apply:os.getpid []\n", "run.yaml:1: no YAML: could not determine a constructor"),
        ("a: &a\n  a: *a\n", "sections are nested more than 8 deep"),
        ("seed: \x01\n", "no YAML"),
        ("seed: 1\nname: 2026-02-30\n", "run.yaml:2: no YAML: day is out of range for month"),
        ("kuberay:\n  env: {A: !!timestamp x}\n", "run.yaml:2: no YAML: "),
        ("!!int x: 1\n", "run.yaml:1: no YAML: invalid literal"),
        ("limits:\n  lease: 3\n", r"run.yaml:2: there is no knob limits.lease; did you mean limits.lease_s\?"),
        ("limits:\n  lease_s: -3\n", "run.yaml:2: Limits.lease_s=-3.0 must be positive"),
        (FAULTS + "  schedule: gibberish\n", "run.yaml:3: Chaos.schedule: 'gibberish' is no entry of a schedule"),
        (FAULTS + "  sim_fault_desc: bogus,120\n", "run.yaml:3: Chaos.sim_fault_desc: there is no fault 'bogus'"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(SettingError, match=complaint):
        load(path, environment={})


def test_sections_may_share_what_they_have_in_common(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("checkpoint:\n  local_interval: &often\n    steps: 5\n  persistent_interval:\n    <<: *often\n")
    config = configured(read(path))
    assert config.checkpoint is not None
    assert config.checkpoint.local_interval == config.checkpoint.persistent_interval
    assert config.checkpoint.local_interval.steps == 5


def test_an_empty_file_gives_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("# nothing\n")
    assert read(path) == {}


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00name"], ids=["missing", "no text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "gone.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingError, match=r"the configuration .*gone.yaml cannot be read \("):
        load(path, environment={})


@pytest.mark.parametrize("text", ["limits.lease_s", "=5", ""])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="must be knob=value"):
        assigned(text)


def test_faults_that_nobody_can_draw_are_refused_wherever_they_were_given() -> None:
    with pytest.raises(SettingError, match=r"^ELASTIC_CHAOS__SCHEDULE: Chaos.schedule: 'soon' is no entry"):
        load(environment={"ELASTIC_CHAOS__ENABLE_FAULT_INJECTION": "true", "ELASTIC_CHAOS__SCHEDULE": "soon"})


# --- the command ------------------------------------------------------------------------------------------------------


def command(*arguments: str, **environment: str) -> str:
    result = CliRunner().invoke(cli, ["config", *arguments], env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_every_value_and_where_it_came_from(file: Path) -> None:
    lines = command(str(file), "--set", "limits.lease_s=60", ELASTIC_SCALING__SPARES="3").splitlines()
    found = {line.split()[0]: line.split()[1:] for line in lines}
    assert found["limits.lease_s"] == ["60.0", "--set", "limits.lease_s"]
    assert found["scaling.spares"] == ["3", "ELASTIC_SCALING__SPARES"]
    assert found["limits.heartbeat_timeout_s"] == ["30.0", f"{file}:9"]
    assert found["checkpoint.persistent"] == ["gs://bucket/run", f"{file}:11"]
    assert found["chaos"] == ["null", "default"]


def test_the_command_refuses_faults_that_fit_would_refuse(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(FAULTS + "  schedule: gibberish\n")
    result = CliRunner().invoke(cli, ["config", str(path)])
    assert result.exit_code == 1 and str(result.exception).startswith(f"{path}:3: Chaos.schedule: 'gibberish' ")
    path.write_text("enable_fault_injection: true\nsim_fault_desc: bogus,120\n")
    result = CliRunner().invoke(cli, ["config", "--from-google", str(path)])
    assert result.exit_code == 1 and "Chaos.sim_fault_desc: there is no fault 'bogus'" in str(result.exception)


def test_the_command_tells_a_program(file: Path) -> None:
    found = json.loads(command("--json", ELASTIC_CONFIG=str(file)))
    assert found["name"] == {"value": "llama", "source": f"{file}:2"}
    assert found["scaling.num_dp_replicas"] == {"value": [2, 8], "source": f"{file}:5"}


def test_the_command_hides_secrets_and_explains() -> None:
    told = command("--set", "checkpoint.persistent=s3://key:secret@bucket/run")
    assert "s3://***@bucket/run" in told and "secret" not in told
    assert "| `heartbeat_timeout_s` | s | 1.25 |" in command("--explain")
    (found,) = [
        one for one in json.loads(command("--explain", "--json"))["limits"] if one["name"] == "heartbeat_timeout_s"
    ]
    assert (found["unit"], found["default"]) == ("s", "1.25") and found["meaning"] and found["reason"]
