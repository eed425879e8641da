"""Values of Google's supervisor and recipes, translated into settings here."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic.errors import SettingError
from elastic.knobs import Given, configured
from elastic.kube.google_values import DROPPED, MOVED, translate

ROOT = Path(__file__).resolve().parents[2]


def test_two_keys_for_one_knob_must_agree():
    with pytest.raises(SettingError, match="pod_termination_threshold_s is 60 by another key"):
        translate({"a": {"pod_termination_threshold_s": 60, "container_termination_threshold_s": 61}})
    translate({"a": {"pod_termination_threshold_s": 60, "container_termination_threshold_s": 60}})


def test_the_page_has_a_row_for_each_key():
    page = (ROOT / "docs" / "migrating.md").read_text()
    rows = {key: f"| `{key}` | `{moved.to}` | {moved.note} |" for key, moved in MOVED.items()}
    rows |= {key: f"| `{key}` | {why} |" for key, why in DROPPED.items()}
    assert [key for key, row in rows.items() if row not in page] == []


def test_a_key_is_known_wherever_it_is_and_however_it_is_written():
    found = translate({"x": [{"y": 1}], "args": "--topk-ckpt=-1 --local-ckpt-interval 25", "Job-Name": "night"})
    assert found.config == {
        "name": "night",
        "checkpoint": {"keep": {"every": 1}, "local_interval": {"steps": 25}},
    }
    assert found.unknown == ["x"] and found.dropped == {}


@pytest.mark.parametrize(("flag", "kept"), [("-1", {"every": 1}), ("0", {"last": 1}), ("3", {"last": 3})])
def test_how_many_checkpoints_are_kept(flag, kept):
    assert translate({"flags": [f"--topk-ckpt={flag}", 7]}).config == {"checkpoint": {"keep": kept}}


@pytest.mark.parametrize(
    ("values", "scaling"),
    [
        ({"num_dp_replicas": 3}, {"num_dp_replicas": [3, 3], "workers_per_replica": 8, "use_gpu": True}),
        (
            {"min_num_dp_replicas": 2, "max_num_dp_replicas": 4, "num_nodes_per_dp": 2, "workers_per_host": 4},
            {"num_dp_replicas": [2, 4], "num_nodes_per_dp": 2, "workers_per_replica": 8, "use_gpu": True},
        ),
    ],
)
def test_a_worker_here_has_one_gpu(values, scaling):
    assert translate(values).config["scaling"] == scaling


def test_what_needs_no_setting_is_told_with_its_reason_and_what_is_empty_is_nothing():
    found = translate({"sensor": {"port": 60081, "address": None}, "flags": ["--enable-gcsfuse", "--frobnicate=3"]})
    assert found.dropped == {"sensor.port": DROPPED["port"]} and found.unknown == ["flags.frobnicate"]
    assert found.config == {"kuberay": {"gcsfuse": True}}
    assert translate({"flags": "--enable-gcsfuse=false"}).config == {"kuberay": {"gcsfuse": False}}


def test_a_folder_for_snapshots_is_no_setting_here_since_nothing_would_mount_it():
    found = translate({"workload": {"local_ckpt_dir": "/local"}})
    assert found.config == {} and "kuberay.params" in found.dropped["workload.local_ckpt_dir"]


def test_a_value_of_the_wrong_kind_is_refused_by_its_key():
    with pytest.raises(SettingError, match="a.watchdog_cooldown_s='soon' is no value for health.cooldown_s"):
        translate({"a": {"watchdog_cooldown_s": "soon"}})


def test_a_recipe_that_restarts_nothing_in_the_job_does_not_end_at_its_first_incident():
    """All published recipes have a 0 there, and mean that the whole workload is restarted."""
    found = translate({"workload": {"max_in_job_restarts": 0, "max_workload_restarts": 20}})
    assert found.config == {"limits": {"max_workload_restarts": 20}}
    assert "survivors go on" in found.dropped["workload.max_in_job_restarts"]
    assert translate({"max_in_job_restarts": 4}).config == {"limits": {"max_in_job_restarts": 4}}


def test_a_recipe_that_swaps_machines_before_it_restarts_does_not_end_when_all_replicas_are_lost():
    """There, 0 says when the workload is restarted; here it would be how often."""
    found = translate({"workload": {"max_workload_restarts": "0"}, "flags": "--max-workload-restarts=0"})
    assert found.config == {} and set(found.dropped) == {
        "workload.max_workload_restarts",
        "flags.max-workload-restarts",
    }
    assert "without a restart first" in found.dropped["workload.max_workload_restarts"]
    assert translate({"max_workload_restarts": 4}).config == {"limits": {"max_workload_restarts": 4}}


@pytest.mark.parametrize("key", ["num_dp_replicas", "min_num_dp_replicas", "max_num_dp_replicas"])
@pytest.mark.parametrize("value", ["many", [1], 2.5, True])
def test_a_size_that_is_none_is_refused_by_its_key(key, value):
    with pytest.raises(SettingError, match=re.escape(f"a.{key}={value!r} is no value for scaling.num_dp_replicas")):
        translate({"a": {key: value}})


def test_what_is_left_empty_switches_nothing_on():
    found = translate(
        {"sim_fault_desc": "", "job_name": "", "num_dp_replicas": "", "persistent_ckpt_dir": "", "frobnicate": ""}
    )
    assert found.config == {} and found.unknown == ["frobnicate"]


# --- the files of a recipe, whole -------------------------------------------------------------------------------------

SUPERVISOR = """
actuator: {image: "registry/supervisor:1", port: 60080, command: run/actuator.py}
sensor: {image: "registry/supervisor:1", port: 60081, command: run/sensor.py}
controller: {image: "registry/supervisor:1", port: 60082, command: run/controller.py}
host_daemon: {image: "registry/supervisor:1", port: 60010, command: run/host_daemon.py}
project:
useA3high: "yes"
namespace: supervisor
heartbeat_polling_period_s: "15"
heartbeat_timeout_s: "30"
watchdogs: [ecc, xid]
watchdog_interval_s: "10"
watchdog_notification_cooldown_s: 12.5
enable_standalone_mode: false
enable_topology_aware_scheduling: true
job_namespace: training
workers_per_host: "8"
num_nodes_per_dp: "4"
num_dp_replicas: "4"
max_in_job_restarts: "0"
max_workload_restarts: 0
enable_workload_scaling: true
pod_termination_threshold_s: "60"
jobset_downtime_threshold_s: 180
replicated_job_name: workers
workload_container_name: trainer
enable_fault_injection: false
fault_injection_period_s: 9600
log_to_stderr: "1"
verbosity: "2"
"""
WORKLOAD = """
images: {network: "registry/net:1", trainer: "registry/nemo:2"}
infrastructure:
  gpu_gen: a3m
  num_nodes: 16
  gpus_per_node: "8"
  max_restarts: 20
  replicas: 1
  enable_gcsfuse: "true"
  pvc: checkpoints
  nodepool: gpus
  use_supervisor: true
workload:
  job_name_include_date: true
  model_size: 70B
  master_port: 6002
  log_dir_prefix: /gcs/logs
  envs:
    - {name: FT_PARAM_INITIAL_RANK_HEARTBEAT_TIMEOUT, value: "600"}
    - {name: FT_PARAM_RANK_HEARTBEAT_TIMEOUT, value: "120"}
    - {name: NNODES, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
  flags: |
    --max-restarts=3 \\
    --nnodes=${NNODES} \\
    --job-name=${JOB_IDENTIFIER} \\
    --ft-param-rank_heartbeat_timeout=120 \\
    --enable-gc \\
    --max-runtime 86400 \\
    --topk-ckpt=-1
"""


def test_the_values_of_a_supervisor_are_translated_whole():
    found = translate(yaml.safe_load(SUPERVISOR))
    assert found.unknown == []
    assert found.config == {
        "limits": {
            "heartbeat_polling_period_s": 15,
            "heartbeat_timeout_s": 30,
            "pod_termination_threshold_s": 60,
            "jobset_downtime_threshold_s": 180,
        },
        "health": {"period_s": 10, "cooldown_s": 12.5},
        "kuberay": {"namespace": "training", "gpus_per_node": 8},
        "scaling": {"num_nodes_per_dp": 4, "num_dp_replicas": [4, 4], "workers_per_replica": 32, "use_gpu": True},
        "chaos": {"enable_fault_injection": False},
    }
    assert found.dropped["fault_injection_period_s"] == "enable_fault_injection is off, so no fault is injected"
    assert {"sensor.image", "sensor.command", "namespace", "useA3high", "max_workload_restarts"} <= set(found.dropped)
    configured(given(found.config))


def test_the_values_of_a_workload_are_translated_whole():
    found = translate(yaml.safe_load(WORKLOAD))
    assert found.unknown == []
    assert found.config == {
        "kuberay": {"gpus_per_node": 8, "gcsfuse": True},
        "limits": {"max_workload_restarts": 20, "max_in_job_restarts": 3},
        "checkpoint": {"keep": {"every": 1}},
    }, "those of a flag are the launcher's, those of a value the JobSet's"
    assert found.dropped["workload.envs.FT_PARAM_RANK_HEARTBEAT_TIMEOUT"] == DROPPED["rank_heartbeat_timeout"]
    assert found.dropped["workload.flags.job-name"].startswith("a variable of their scripts")
    assert {"images.network", "infrastructure.pvc", "workload.flags.nnodes", "workload.flags.enable-gc"} <= set(
        found.dropped
    )
    configured(given(found.config))


def given(section: dict[str, Any]) -> dict[str, Any]:
    return {key: given(one) if isinstance(one, dict) else Given(one, "values.yaml") for key, one in section.items()}


def test_faults_are_injected_where_the_switch_is_on():
    values = {"enable_fault_injection": "true", "fault_injection_period_s": "600"}
    assert translate(values).config == {"chaos": {"enable_fault_injection": True, "fault_injection_period_s": 600}}


@pytest.mark.parametrize(
    "values", [{"enable_gcsfuse": "perhaps"}, {"heartbeat_timeout_s": True}, {"workers_per_host": "8.5"}]
)
def test_what_is_neither_a_number_nor_a_switch_is_refused_by_its_key(values):
    (key,) = values
    with pytest.raises(SettingError, match=f"{key}=.* is no value for {MOVED[key].to}"):
        translate(values)
