"""`elastic kuberay`, `elastic config --from-google`, from the command line to what it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from elastic.cli import cli
from elastic.errors import ElasticError, SettingError
from elastic.kube import validate
from tests.effects.kube_parts import ROOT, crds, definitions

RUN = """
name: llama
scaling: {num_dp_replicas: [2, 4], workers_per_replica: 8}
checkpoint: {persistent: gs://bucket/llama}
kuberay: {entrypoint: python train.py, spot: true, grace_s: 15}
"""


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path / "run.yaml"


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the definitions, which are large."""
    folder = crds()
    monkeypatch.setattr(validate, "from_directory", lambda _: definitions())
    return folder


def elastic(*arguments: object) -> str:
    found = CliRunner().invoke(cli, [str(one) for one in arguments], catch_exceptions=False, standalone_mode=False)
    return found.output


def test_what_is_rendered_is_valid(run_yaml, tmp_path):
    """The newcomer's path: render, validate."""
    pytest.importorskip("kubernetes")
    told = elastic("kuberay", "render", "--config", run_yaml, "--out", tmp_path / "k8s")
    assert "rayjob.yaml" in told
    assert "12 objects are valid" in elastic("kuberay", "validate", tmp_path / "k8s", "--crds", crds())


def test_what_is_rendered_no_more_is_there_no_more(run_yaml, tmp_path):
    """Rights that were taken away would be applied with the folder; what else lies there is somebody's own."""
    out = tmp_path / "k8s"
    elastic("kuberay", "render", "--config", run_yaml, "--out", out)
    (out / "mine.yaml").write_text("kind: Secret")
    (out / "rayjob-notes.txt").write_text("x")
    run_yaml.write_text(RUN.replace("entrypoint: python train.py", "interactive: true, node_rights: false"))
    (out / "disruption-budget.yaml").write_text("kind: PodDisruptionBudget")
    told = elastic("kuberay", "render", "--config", run_yaml, "--out", out, "--set", "scaling.num_dp_replicas=1")
    gone = {"node-role.yaml", "node-role-binding.yaml", "rayjob.yaml"}
    there = {path.name for path in out.iterdir()}
    assert not gone & there and {"raycluster.yaml", "role.yaml", "mine.yaml", "rayjob-notes.txt"} <= there
    assert "disruption-budget.yaml" in there, "it is not one that was rendered"
    assert all(f"{out / name} (deleted: not rendered any more)" in told for name in gone)


def test_what_somebody_else_has_put_there_stays_whatever_it_is(run_yaml, tmp_path):
    out = tmp_path / "k8s"
    out.mkdir()
    theirs = {"priority.yaml": b"\xff\xfe", "raycluster.yaml": b"kind: RayCluster\n"}
    for name, content in theirs.items():
        (out / name).write_bytes(content)
    elastic("kuberay", "render", "--config", run_yaml, "--set", "kuberay.node_rights=false", "--out", out)
    assert {name: (out / name).read_bytes() for name in theirs} == theirs


def test_without_a_folder_all_is_printed(run_yaml):
    objects = list(yaml.safe_load_all(elastic("kuberay", "render", "--config", run_yaml)))
    assert [one["kind"] for one in objects][-1] == "RayJob"
    changed = elastic("kuberay", "render", "--config", run_yaml, "--set", "kuberay.spot=false")
    assert "gke-spot" in str(objects[-1]["spec"]["rayClusterSpec"]["workerGroupSpecs"][1])
    job = list(yaml.safe_load_all(changed))[-1]
    assert (
        "tolerations" in str(job)
        and "nodeSelector" not in job["spec"]["rayClusterSpec"]["workerGroupSpecs"][1]["template"]["spec"]
    )


def test_problems_are_told_and_end_in_an_error(run_yaml, tmp_path, read_once):
    pytest.importorskip("kubernetes")
    elastic("kuberay", "render", "--config", run_yaml, "--out", tmp_path / "k8s")
    job = tmp_path / "k8s" / "rayjob.yaml"
    job.write_text(job.read_text().replace("backoffLimit: 3", "backofLimit: 3", 1))
    validating = ["kuberay", "validate", str(tmp_path / "k8s"), "--crds", str(read_once)]
    done = CliRunner().invoke(cli, validating)
    assert done.exit_code == 3 and done.stderr.splitlines()[-1] == "1 problems in 12 objects"
    told = CliRunner().invoke(cli, [*validating, "--json"])
    facts = json.loads(told.stdout)
    assert told.exit_code == 3 and facts["objects"] == 12 and len(facts["problems"]) == 1
    assert "backofLimit" in facts["problems"][0]


def test_placeholders_are_warned_of(run_yaml, tmp_path, read_once):
    """A cluster takes them; the run would find no bucket."""
    pytest.importorskip("kubernetes")
    run_yaml.write_text(RUN.replace("gs://bucket/", "gs://BUCKET/"))
    rendering = ["kuberay", "render", "--config", str(run_yaml), "--out", str(tmp_path / "k8s")]
    validating = ["kuberay", "validate", str(tmp_path / "k8s"), "--crds", str(read_once)]
    for command in (rendering, validating):
        done = CliRunner().invoke(cli, command)
        assert done.exit_code == 0 and done.stderr == "warning: BUCKET stands for a name of your own: give it\n"
    assert json.loads(CliRunner().invoke(cli, [*validating, "--json"]).stdout)["placeholders"] == ["BUCKET"]
    named = CliRunner().invoke(cli, [*rendering, "--set", "checkpoint.persistent=gs://b/llama"])
    assert named.exit_code == 0 and named.stderr == ""


@pytest.mark.parametrize("text", ["a: [", "- op: add"])
def test_what_is_no_manifest_is_refused(tmp_path, read_once, text):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ElasticError, match="no object was found|cannot be read as YAML"):
        elastic("kuberay", "validate", tmp_path / "x.yaml", "--crds", read_once)


def test_the_whole_folder_of_manifests_is_judged_and_kinds_of_others_are_named(read_once):
    """It holds a file that is no object, and objects of the Prometheus operator."""
    pytest.importorskip("kubernetes")
    validating = ["kuberay", "validate", str(ROOT / "kuberay"), "--crds", str(read_once)]
    told = CliRunner().invoke(cli, validating)
    assert told.exit_code == 0 and "objects are valid" in told.stdout, told.output
    assert "monitoring.coreos.com/v1 PodMonitor" in told.stderr and "PrometheusRule" in told.stderr
    facts = json.loads(CliRunner().invoke(cli, [*validating, "--json"]).stdout)
    assert facts["undefined"] == ["monitoring.coreos.com/v1 PodMonitor", "monitoring.coreos.com/v1 PrometheusRule"]
    assert facts["problems"] == [] and f"{facts['objects']} objects are valid" in told.stdout


def test_no_manifest_of_a_folder_is_passed_over(tmp_path, read_once):
    """Which kubectl would apply with the others; what is for Kustomize is none, by either name."""
    pytest.importorskip("kubernetes")
    (tmp_path / "a.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")
    (tmp_path / "b.yml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: b}, dat: {}}")
    for name in ("kustomization.yml", "b-patch.yml", "b.yaml.bak"):
        (tmp_path / name).write_text("{a: 1}")
    done = CliRunner().invoke(cli, ["kuberay", "validate", str(tmp_path), "--crds", str(read_once)])
    assert done.exit_code == 3 and "ConfigMap b: dat: there is no such field" in done.stderr
    assert done.stderr.endswith("1 problems in 2 objects\n")


@pytest.mark.parametrize("kind", ["ray.io/v2 RayJob", "v1 RayJob", "scheduling.k8s.io/v1 PriorityClasses"])
def test_a_kind_that_should_be_defined_is_a_problem(tmp_path, read_once, kind):
    pytest.importorskip("kubernetes")
    api, name = kind.split()
    (tmp_path / "x.yaml").write_text(f"{{apiVersion: {api}, kind: {name}, metadata: {{name: x}}}}")
    done = CliRunner().invoke(cli, ["kuberay", "validate", str(tmp_path / "x.yaml"), "--crds", str(read_once)])
    assert done.exit_code == 3 and done.stderr.endswith("1 problems in 1 objects\n")


def test_a_folder_without_definitions_is_refused(tmp_path):
    with pytest.raises(SettingError, match="no file there holds a CustomResourceDefinition"):
        elastic("kuberay", "validate", tmp_path / "x.yaml", "--crds", tmp_path)


SELECTING = "kind: RayJob, spec: {entrypoint: x, clusterSelector: {ray.io/cluster: a}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: ray.io/v1, kind: RayJob, metadata: x", "metadata: 'x' must be an object"),
        ("apiVersion: v1, kind: ConfigMap, metadata: [1]", "metadata: [1] must be an object"),
        (
            f"apiVersion: ray.io/v1, metadata: {{name: x, labels: 5}}, {SELECTING}}}",
            "metadata.labels: 5 must be an obj",
        ),
        (
            f"apiVersion: ray.io/v1, metadata: {{name: x, namespace: U}}, {SELECTING}}}",
            "metadata.namespace: 'U' must be",
        ),
        ("apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: U}", "metadata.namespace: 'U' must be"),
        (
            f"apiVersion: ray.io/v1, metadata: {{name: x}}, {SELECTING}, ttlSecondsAfterFinished: 100000000000}}",
            "spec.ttlSecondsAfterFinished: 100000000000 is no int32",
        ),
        (
            "apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: x}, value: -2147483649",
            "value: -2147483649 is no int32",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, read_once, text, said):
    pytest.importorskip("kubernetes")
    (tmp_path / "x.yaml").write_text(f"{{{text}}}")
    done = CliRunner().invoke(cli, ["kuberay", "validate", str(tmp_path / "x.yaml"), "--crds", str(read_once)])
    assert done.exit_code == 3 and said in done.stderr, done.output


def test_a_time_that_is_not_quoted_is_text_as_kubectl_takes_it(tmp_path, read_once):
    pytest.importorskip("kubernetes")
    made = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, creationTimestamp: 2026-01-01T00:00:00Z}\n"
    (tmp_path / "x.yaml").write_text(f"{made}data: {{first: 2026-01-01, none: 2026-02-30}}\n")
    assert "1 objects are valid" in elastic("kuberay", "validate", tmp_path / "x.yaml", "--crds", read_once)
    environment = "runtimeEnvYAML: 'env_vars: {A: 2026-02-30}'"
    (tmp_path / "x.yaml").write_text(f"{{apiVersion: ray.io/v1, metadata: {{name: x}}, {SELECTING}, {environment}}}}}")
    assert "1 objects are valid" in elastic("kuberay", "validate", tmp_path / "x.yaml", "--crds", read_once)


def test_that_the_package_is_missing_is_one_sentence(tmp_path, read_once, monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    (tmp_path / "x.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
    with pytest.raises(SettingError, match="the package kubernetes is missing: pip install"):
        elastic("kuberay", "validate", tmp_path / "x.yaml", "--crds", read_once)


@pytest.mark.parametrize("text", ["a: !!int x", "!!bool x", "a: !!timestamp x"])
def test_what_a_tag_does_not_fit_is_one_sentence(tmp_path, read_once, text):
    (tmp_path / "x.yaml").write_text(text)
    for command in (["kuberay", "validate", tmp_path / "x.yaml", "--crds", read_once], ["config", "--from-google"]):
        with pytest.raises(SettingError, match=r"x\.yaml cannot be read as YAML"):
            elastic(*command, *([tmp_path / "x.yaml"] if command[0] == "config" else []))


DEFINITION = "kind: CustomResourceDefinition\nmetadata: {name: things.x.io}\n"


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "spec: 5",
        "spec: {group: x.io, names: {kind: T}}",
        "spec: {group: x.io, names: {kind: T}, versions: [{name: v}]}",
    ],
)
def test_a_definition_that_defines_nothing_is_named(tmp_path, spec):
    (tmp_path / "x.yaml").write_text(DEFINITION + spec)
    with pytest.raises(SettingError, match=r"the definition things\.x\.io has no group, kind or schema"):
        elastic("kuberay", "validate", tmp_path / "x.yaml", "--crds", tmp_path)


@pytest.mark.parametrize("text", ["a: [", "[1]", "x", "\xff", "{current-context: a, contexts: 5}"])
def test_a_broken_configuration_of_a_cluster_is_one_sentence(tmp_path, text):
    pytest.importorskip("kubernetes")
    (tmp_path / "kubeconfig").write_text(text, encoding="latin-1")
    with pytest.raises(SettingError, match=r"set KUBECONFIG, or name a folder") as told:
        elastic("kuberay", "validate", tmp_path / "x.yaml", "--kubeconfig", tmp_path / "kubeconfig")
    assert "\n" not in str(told.value)


# --- values of Google's supervisor ------------------------------------------------------------------------------------

VALUES = """
sensor: {port: 60081}
controller: {port: 60082}
host_daemon: {port: 60010, watchdogs: [ecc, xid], watchdog_cooldown_s: 10, workers_per_host: 8}
supervisor: {heartbeat_polling_period_s: 15, heartbeat_timeout_s: 30, log_to_stderr: "1"}
workload:
  max_in_job_restarts: 0
  max_workload_restarts: 20
  min_num_dp_replicas: 2
  max_num_dp_replicas: 4
  num_nodes_per_dp: 4
  container_termination_threshold_s: 60
  workload_downtime_threshold_s: 180
  flags: ["--topk-ckpt=-1", "--checkpoint-interval=25", "--enable-async-ckpt", "--frobnicate=3"]
"""


def test_values_of_the_supervisor_are_translated(tmp_path):
    (tmp_path / "values.yaml").write_text(VALUES)
    command = [sys.executable, "-c", "from elastic.cli import main; main()", "config", "--from-google"]
    done = subprocess.run(
        [*command, str(tmp_path / "values.yaml")], capture_output=True, text=True, timeout=60, check=True
    )
    assert yaml.safe_load(done.stdout) == {
        "health": {"cooldown_s": 10.0},
        "kuberay": {"gpus_per_node": 8},
        "limits": {
            "heartbeat_polling_period_s": 15,
            "heartbeat_timeout_s": 30,
            "max_workload_restarts": 20,
            "pod_termination_threshold_s": 60,
            "jobset_downtime_threshold_s": 180,
        },
        "scaling": {
            "num_nodes_per_dp": 4,
            "num_dp_replicas": [2, 4],
            "workers_per_replica": 32,
            "use_gpu": True,
        },
        "checkpoint": {"keep": {"every": 1}, "persistent_interval": {"steps": 25}},
    }
    assert "not needed: sensor.port: actors find each other by name" in done.stderr
    assert "not needed: workload.max_in_job_restarts: 0 restarts the whole workload there" in done.stderr
    assert "not known: workload.flags.frobnicate" in done.stderr
    told = subprocess.run(
        [*command, str(tmp_path / "values.yaml"), "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    found = json.loads(told.stdout)
    assert found["config"] == yaml.safe_load(done.stdout)
    assert "sensor.port" in found["not_needed"] and "workload.flags.frobnicate" in found["not_known"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heartbeat_timeout_s: .nan", "limits.heartbeat_timeout_s=nan must be a number"),
        (f"heartbeat_timeout_s: 1{'0' * 400}", "is no value for limits.heartbeat_timeout_s"),
        ("topk_ckpt: .inf", "topk_ckpt=inf is no value for checkpoint.keep"),
    ],
)
def test_a_value_that_is_no_number_of_ours_is_refused(tmp_path, text, said):
    (tmp_path / "values.yaml").write_text(text)
    with pytest.raises(SettingError, match=said):
        elastic("config", "--from-google", tmp_path / "values.yaml")


def test_a_value_that_cannot_work_here_is_refused(tmp_path):
    (tmp_path / "values.yaml").write_text("heartbeat_timeout_s: 0.1\n")
    with pytest.raises(SettingError, match="Limits.heartbeat_timeout_s=0.1 must be longer"):
        elastic("config", "--from-google", tmp_path / "values.yaml")
