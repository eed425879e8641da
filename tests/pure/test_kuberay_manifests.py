"""From a run's settings to manifests: sizes, places, rights; and the same settings come out again inside."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from elastic.config import from_environment
from elastic.errors import SettingError
from elastic.knobs import Given, RunConfig, configured
from elastic.kube.kustomize import base, json_patch, overlay
from elastic.kube.manifests import FILES, NODE_RULES, documents, is_ours, placeholders, render, text, variables, written
from elastic.kube.shape import most_nodes, nodes_for, shape, slots_per_node
from elastic.policies.sizing import sizing, slots_for
from elastic.settings import Chaos, Checkpoint, Interval, Keep, KubeRay, Limits, Scaling

SCALING = Scaling(num_dp_replicas=(4, 8), spares=1, workers_per_replica=8, use_gpu=True)
KUBERAY = KubeRay(entrypoint="python train.py")
CONFIG = RunConfig(name="llama", scaling=SCALING, checkpoint=Checkpoint(persistent="gs://b/runs"), kuberay=KUBERAY)


def with_kuberay(**changes: Any) -> RunConfig:
    return replace(CONFIG, kuberay=replace(KUBERAY, **changes))


def cluster(config: RunConfig) -> dict[str, Any]:
    objects = render(config, "1.2.3")
    return objects["rayjob"]["spec"]["rayClusterSpec"] if "rayjob" in objects else objects["raycluster"]["spec"]


def trainer(config: RunConfig) -> dict[str, Any]:
    return cluster(config)["workerGroupSpecs"][1]["template"]["spec"]


def inside(config: RunConfig) -> RunConfig:
    """What `fit` reads in the cluster."""
    return configured(tree(yaml.safe_load(render(config, "1")["config"]["data"]["run.yaml"])))


def tree(section: dict[str, Any]) -> dict[str, Any]:
    return {key: tree(one) if isinstance(one, dict) else Given(one, "x") for key, one in section.items()}


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scaling", "replicas", "slots", "nodes"),
    [
        (Scaling(), 5, 8, 1),
        (Scaling(), 9, 8, 2),
        (Scaling(workers_per_replica=3), 4, 8, 2),  # two replicas fit a node, not two and two thirds
        (Scaling(workers_per_replica=8), 4, 8, 4),
        (Scaling(workers_per_replica=4, num_nodes_per_dp=4), 2, 1, 8),
        (Scaling(workers_per_replica=4, num_nodes_per_dp=2), 3, 2, 6),
        (Scaling(workers_per_replica=4, num_nodes_per_dp=2), 3, 5, 3),  # two halves on a node, one slot idle
        (Scaling(workers_per_replica=4, num_nodes_per_dp=4), 2, 8, 4),  # each worker on another node, two to a node
    ],
)
def test_nodes_follow_from_replicas(scaling, replicas, slots, nodes):
    assert nodes_for(scaling, replicas, slots) == nodes


def test_the_group_has_the_bounds_of_the_run_and_room_for_spares():
    group = cluster(CONFIG)["workerGroupSpecs"][1]
    assert (group["minReplicas"], group["maxReplicas"]) == (4, 9)
    assert group["replicas"] == 4, "the program starts once the minimum is there"


def test_workers_that_get_gpus_because_machines_have_some_are_counted_by_them():
    asked = replace(CONFIG, scaling=replace(SCALING, use_gpu=False))
    group = cluster(asked)["workerGroupSpecs"][1]
    assert inside(asked).scaling.use_gpu and (group["minReplicas"], group["maxReplicas"]) == (4, 9)


def test_a_replica_that_fits_no_node_is_refused():
    config = replace(CONFIG, scaling=replace(SCALING, workers_per_replica=16))
    with pytest.raises(SettingError, match="16 workers of .* need one node, and KubeRay.gpus_per_node=8"):
        render(config, "1")


def test_slots_are_what_every_resource_allows():
    scaling = Scaling(resources_per_worker={"CPU": 24, "GPU": 1, "special": 3})
    assert slots_per_node(scaling, KUBERAY) == 4


@pytest.mark.parametrize(("share", "slots"), [(0.1, 80), (0.2, 40), (0.3, 26), (0.7, 11), (2.0, 4), (1e-9, 80_000)])
def test_shares_of_a_gpu_fill_it_as_ray_counts_them(share, slots):
    assert slots_per_node(Scaling(resources_per_worker={"GPU": share}), KUBERAY) == slots


def test_the_ramdisk_holds_the_snapshots_of_all_workers_of_a_node():
    config = with_kuberay(params=7e9)
    of_one = sizing(7e9, 8, copies=slots_for(1)).ramdisk_bytes
    gib = -(-8 * of_one // 2**30)
    assert shape(config, config.kuberay).ramdisk_gib == gib
    volumes = {one["name"]: one for one in trainer(config)["volumes"]}
    assert volumes["ramdisk"]["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{gib}Gi"}
    assert inside(config).checkpoint.memory == "/ramdisk" == inside(config).health.ramdisk


@pytest.mark.parametrize("memory_gib", [200, 360, 600, 890])
def test_volumes_that_leave_no_memory_for_processes_are_refused(memory_gib):
    """A pod that exceeds its memory is killed, volumes in memory included."""
    with pytest.raises(SettingError, match=f"has no .* GiB for processes beside {int(memory_gib * 0.4)} GiB of shared"):
        render(with_kuberay(params=7e9, memory_gib_per_node=memory_gib), "1")
    render(with_kuberay(params=7e9, memory_gib_per_node=900), "1")


def test_each_worker_has_a_gibibyte_of_its_own_at_least():
    scaling = Scaling(num_dp_replicas=8, resources_per_worker={"CPU": 1})
    small = {"gpus_per_node": 0, "cpus_per_node": 8, "memory_gib_per_node": 12}
    with pytest.raises(SettingError, match="has no 8 GiB for processes beside 4 GiB of shared memory"):
        render(replace(with_kuberay(**small | {"memory_gib_per_node": 11}), scaling=scaling), "1")
    render(replace(with_kuberay(**small), scaling=scaling), "1")


def test_without_a_model_size_snapshots_stay_in_shared_memory():
    assert "ramdisk" not in {one["name"] for one in trainer(CONFIG)["volumes"]}
    assert inside(CONFIG).checkpoint.memory == "/dev/shm"


def test_a_tier_in_memory_that_no_pod_mounts_is_refused():
    config = replace(CONFIG, checkpoint=Checkpoint(memory="/local"))
    with pytest.raises(SettingError, match=r"Checkpoint.memory='/local' is mounted in no pod: .* KubeRay.params"):
        render(config, "1")
    assert inside(replace(config, kuberay=replace(KUBERAY, params=7e9))).checkpoint.memory == "/ramdisk"


def test_multi_tier_checkpointing_brings_its_own_ramdisk():
    volumes = {one["name"]: one for one in trainer(with_kuberay(params=7e9, multi_tier=True))["volumes"]}
    assert volumes["ramdisk"]["csi"]["driver"] == "multitier-checkpoint.csi.storage.gke.io"
    small = with_kuberay(params=7e9, multi_tier=True, memory_gib_per_node=200)
    assert shape(small, small.kuberay).ramdisk_gib == 360, "it is not in the memory of the pod"


# --- places and ends --------------------------------------------------------------------------------------------------


def test_spot_machines_are_for_workers_only():
    spec = cluster(with_kuberay(spot=True, cpu_pool="cpu"))
    head, workers = spec["headGroupSpec"]["template"]["spec"], trainer(with_kuberay(spot=True))
    supervisor = spec["workerGroupSpecs"][0]["template"]["spec"]
    assert workers["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert {"cloud.google.com/gke-spot", "nvidia.com/gpu"} == {one["key"] for one in workers["tolerations"]}
    for pod in (head, supervisor):
        terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms[0]["matchExpressions"] == [{"key": "cloud.google.com/gke-spot", "operator": "DoesNotExist"}]
        assert pod["nodeSelector"] == {"cloud.google.com/gke-nodepool": "cpu"} and "tolerations" not in pod


def test_workers_that_are_on_demand_are_on_no_spot_machine():
    def rules(**changes: Any) -> list[Any]:
        place = trainer(with_kuberay(accelerator="nvidia-h100-80gb", **changes)).get("affinity", {}).get("nodeAffinity")
        return place["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] if place else []

    never = {"key": "cloud.google.com/gke-spot", "operator": "DoesNotExist"}
    nor = {"key": "cloud.google.com/gke-nodepool", "operator": "NotIn", "values": ["reserve"]}
    assert rules() == [{"matchExpressions": [never]}]
    assert rules(spare_pool="reserve") == [{"matchExpressions": [never, nor]}], "in one term: both hold"
    assert rules(spot=True) == rules(node_selector={"cloud.google.com/gke-spot": "true"}) == []


def test_spares_with_a_pool_have_a_group_of_their_own_that_the_program_does_not_wait_for():
    spec = cluster(with_kuberay(spot=True, spare_pool="reserve", accelerator="nvidia-h100-80gb"))
    _, workers, spares = spec["workerGroupSpecs"]
    names = ("groupName", "replicas", "minReplicas", "maxReplicas")
    assert [workers[name] for name in names] == ["workers", 4, 4, 8], "spares are not among them"
    assert [spares[name] for name in names] == ["spares", 0, 0, 1]
    assert spares["labels"] == workers["labels"] == inside(CONFIG).scaling.label_selector
    pods = [group["template"]["spec"] for group in (workers, spares)]
    place = ("nodeSelector", "tolerations", "affinity")
    assert [{key: value for key, value in pod.items() if key not in place} for pod in pods][0] == {
        key: value for key, value in pods[1].items() if key not in place
    }, "whatever a worker finds in one it finds in the other"
    gpu = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert pods[0]["nodeSelector"] == gpu | {"cloud.google.com/gke-spot": "true"}
    assert pods[1]["nodeSelector"] == gpu | {"cloud.google.com/gke-nodepool": "reserve"}
    assert pods[0]["tolerations"] == pods[1]["tolerations"], "the pool is on demand, or not"
    terms = pods[0]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    never = {"key": "cloud.google.com/gke-nodepool", "operator": "NotIn", "values": ["reserve"]}
    assert terms == [{"matchExpressions": [never]}] and "affinity" not in pods[1]


def test_without_a_pool_for_them_spares_are_more_machines_of_the_workers():
    assert [group["groupName"] for group in cluster(CONFIG)["workerGroupSpecs"]] == ["supervisor", "workers"]
    assert "gke-nodepool" not in str(trainer(CONFIG))


def test_a_pool_for_spares_that_nobody_asks_for_is_refused():
    config = replace(with_kuberay(spare_pool="reserve"), scaling=replace(SCALING, spares=0))
    with pytest.raises(SettingError, match="KubeRay.spare_pool='reserve' is for spares, and Scaling.spares=0 asks for"):
        render(config, "1")


@pytest.mark.parametrize(
    ("spares", "pool", "nodes"),
    [(0, "", (3, 0)), (2, "", (4, 0)), (2, "p", (3, 1)), (3, "p", (3, 2)), (0, "p", (3, 0))],
)
def test_the_machines_that_the_run_asks_for_are_those_of_both_groups(spares, pool, nodes):
    """Jobs on one cluster may ask for no spares where it has some."""
    scaling = Scaling(num_dp_replicas=(1, 5), spares=spares, workers_per_replica=4, use_gpu=True)
    assert most_nodes(scaling, replace(KUBERAY, spare_pool=pool)) == nodes


@pytest.mark.parametrize("grace_s", [12, 15, 60])
def test_hook_drain_and_end_fit_into_the_grace_time(grace_s):
    pod = trainer(with_kuberay(grace_s=grace_s))
    container = pod["containers"][0]
    env = {one["name"]: one.get("value") for one in container["env"]}
    drain_s = int(env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert pod["terminationGracePeriodSeconds"] == grace_s and 0 < drain_s <= grace_s - 10
    hook = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert f"--deadline {grace_s - 5} " in hook and hook.endswith("|| true")
    bound = re.match(r"timeout -k (\d+) (\d+) elastic drain ", hook)
    assert bound is not None, "a head that answers nothing must not take all of the grace"
    hook_s = sum(map(int, bound.groups()))
    assert hook_s >= 6 and hook_s + drain_s < grace_s


@pytest.mark.parametrize("grace_s", [12, 15, 60])
def test_no_raylet_drains_longer_than_its_pod_lives(grace_s):
    """Ray's own default is 30 s."""
    spec = cluster(with_kuberay(grace_s=grace_s))
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        assert int(env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) + 5 <= pod["terminationGracePeriodSeconds"]
    assert spec["headGroupSpec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 60, "it is on no spot machine"


def test_a_priority_that_only_the_system_may_have_is_refused():
    with pytest.raises(SettingError, match="KubeRay.priority=1000000001 must be at most 1000000000"):
        KubeRay(priority=10**9 + 1)


def test_too_short_a_grace_time_is_refused():
    with pytest.raises(SettingError, match="KubeRay.grace_s=5 must be at least 12"):
        KubeRay(grace_s=5)


def test_workers_and_supervisor_find_their_group_by_label():
    config = inside(CONFIG)
    groups = {group["groupName"]: group["labels"] for group in cluster(CONFIG)["workerGroupSpecs"]}
    assert config.scaling.label_selector == groups["workers"]
    assert config.scaling.supervisor_labels == groups["supervisor"]


def test_labels_that_the_user_gives_stay():
    config = replace(CONFIG, scaling=replace(SCALING, label_selector={"a": "b"}, supervisor_resource="cpu"))
    assert inside(config).scaling.label_selector == {"a": "b"}
    assert inside(config).scaling.supervisor_labels is None


@pytest.mark.parametrize(
    ("given", "inner"),
    [
        (None, "/var/lib/elastic/runs/llama"),
        ("mine/night", "/var/lib/elastic/mine/night"),
        ("/gcs/night", "/gcs/night"),
    ],
)
def test_a_run_writes_its_journal_where_the_heads_container_may_write(given, inner):
    assert inside(replace(CONFIG, run_dir=given)).run_dir == inner
    interactive = replace(with_kuberay(interactive=True, entrypoint=""), run_dir=given)
    assert inside(interactive).run_dir == given, "each job has its own"


def test_a_mounted_bucket_is_a_directory_inside():
    config = with_kuberay(gcsfuse=True)
    assert inside(config).checkpoint.persistent == "/gcs/runs"
    volumes = {one["name"]: one for one in trainer(config)["volumes"]}
    assert volumes["bucket"]["csi"]["volumeAttributes"]["bucketName"] == "b"
    head = cluster(config)["headGroupSpec"]["template"]
    assert head["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    assert {"name": "bucket", "mountPath": "/gcs"} in head["spec"]["containers"][0]["volumeMounts"]
    assert "gke-gcsfuse" not in str(cluster(config)["workerGroupSpecs"][0]["template"]["metadata"]), "it needs none"


def test_the_bucket_is_spoken_to_directly_otherwise():
    assert inside(CONFIG).checkpoint.persistent == "gs://b/runs"
    assert "bucket" not in {one["name"] for one in trainer(CONFIG)["volumes"]}


def test_the_head_keeps_its_state_on_a_volume_if_it_has_one():
    assert cluster(CONFIG)["gcsFaultToleranceOptions"]["backend"] == "rocksdb"
    assert "gcsFaultToleranceOptions" not in cluster(with_kuberay(head_storage_gib=0))


def test_jobs_on_an_interactive_cluster_have_names_of_their_own_and_its_mounted_bucket():
    """What is submitted along must not undo what the head's configuration says of the cluster."""
    config = with_kuberay(interactive=True, entrypoint="", gcsfuse=True)
    assert inside(config).name is None and inside(config).checkpoint.persistent == "/gcs/runs"
    assert inside(CONFIG).name == "llama"
    where = "ELASTIC_CHECKPOINT__PERSISTENT"
    assert variables(config)[where] == '"/gcs/runs"' and variables(CONFIG)[where] == '"gs://b/runs"'
    assert variables(replace(config, checkpoint=Checkpoint(persistent="/nfs/runs")))[where] == '"/nfs/runs"'
    assert where not in variables(replace(config, checkpoint=None))


def test_what_is_given_is_a_variable_even_where_it_is_the_default():
    given = {
        "limits": {"lease_s": Given(Limits().lease_s, "x")},
        "scaling": {"label_selector": {"a": Given("b", "x")}},
        "checkpoint": Given(None, "x"),
        "kuberay": Given(None, "x"),
        "seed": Given(0, "x"),
    }
    assert variables(configured(given), given) == {
        "ELASTIC_LIMITS__LEASE_S": json.dumps(Limits().lease_s),
        "ELASTIC_SCALING__LABEL_SELECTOR": '{"a": "b"}',
        "ELASTIC_SEED": "0",
        "ELASTIC_CHECKPOINT": "null",
    }
    assert variables(configured(given)) == {"ELASTIC_SCALING__LABEL_SELECTOR": '{"a": "b"}'}


def test_machines_stay_for_what_they_still_upload_after_a_job():
    assert render(CONFIG, "1")["rayjob"]["spec"]["ttlSecondsAfterFinished"] == 600
    assert render(with_kuberay(linger_s=7200), "1")["rayjob"]["spec"]["ttlSecondsAfterFinished"] == 7200
    with pytest.raises(SettingError, match="KubeRay.linger_s=-1 must not be negative"):
        KubeRay(linger_s=-1)


def test_how_long_a_job_may_wait_for_what_it_runs_on_is_a_knob():
    assert render(CONFIG, "1")["rayjob"]["spec"]["preRunningDeadlineSeconds"] == 1800
    assert render(with_kuberay(start_within_s=86400), "1")["rayjob"]["spec"]["preRunningDeadlineSeconds"] == 86400
    with pytest.raises(SettingError, match="KubeRay.start_within_s=0 must be positive"):
        KubeRay(start_within_s=0)


@pytest.mark.parametrize("persistent", ["/nfs/runs", "file:///nfs/runs"])
def test_a_folder_for_the_persistent_tier_is_a_claim_that_all_who_write_mount(persistent):
    config = replace(with_kuberay(claim="store"), checkpoint=Checkpoint(persistent=persistent))
    spec = cluster(config)
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    mounted = {}
    for name, group in zip(("head", "supervisor", "workers"), groups, strict=True):
        pod = group["template"]["spec"]
        claims = [one["persistentVolumeClaim"] for one in pod["volumes"] if one["name"] == "store"]
        where = [one["mountPath"] for one in pod["containers"][0]["volumeMounts"] if one["name"] == "store"]
        mounted[name] = (claims, where)
    has = ([{"claimName": "store"}], ["/nfs/runs"])
    assert mounted == {"head": has, "supervisor": ([], []), "workers": has}
    assert inside(config).checkpoint.persistent == persistent


@pytest.mark.parametrize(
    ("persistent", "kuberay", "said"),
    [
        (
            "/nfs/runs",
            {},
            "Checkpoint.persistent='/nfs/runs' is mounted in no pod: give gs://bucket/folder, or KubeRay.c",
        ),
        ("file:///x", {}, "Checkpoint.persistent='file:///x' is mounted in no pod"),
        (
            "/nfs/runs",
            {"gcsfuse": True},
            "KubeRay.gcsfuse=True mounts a bucket, and Checkpoint.persistent='/nfs/runs' is",
        ),
        ("gs://", {"gcsfuse": True}, "KubeRay.gcsfuse=True mounts a bucket"),
        (None, {"gcsfuse": True}, "KubeRay.gcsfuse=True mounts a bucket"),
        (
            "gs://b/runs",
            {"claim": "c"},
            "KubeRay.claim='c' is mounted where a folder is, and Checkpoint.persistent='gs",
        ),
        ("runs", {"claim": "c"}, "KubeRay.claim='c' is mounted where a folder is, and Checkpoint.persistent='runs'"),
        ("gs://b/runs", {"claim": "c", "gcsfuse": True}, "KubeRay.claim='c' is mounted where a folder is"),
        (None, {"claim": "c"}, "KubeRay.claim='c' is mounted where a folder is"),
    ],
)
def test_a_persistent_tier_that_no_pod_reaches_is_refused(persistent, kuberay, said):
    config = replace(with_kuberay(**kuberay), checkpoint=Checkpoint(persistent=persistent))
    with pytest.raises(SettingError, match=re.escape(said)):
        render(config, "1")


@pytest.mark.parametrize("persistent", ["s3://key:secret@b/runs", "https://host/runs?sig=secret"])
@pytest.mark.parametrize("kuberay", [{}, {"gcsfuse": True}])
def test_a_url_with_a_secret_is_written_into_no_manifest(persistent, kuberay):
    config = replace(with_kuberay(**kuberay), checkpoint=Checkpoint(persistent=persistent))
    with pytest.raises(SettingError, match=r"KubeRay\.env_from_secrets") as caught:
        render(config, "1")
    assert "secret@" not in str(caught.value) and "=secret" not in str(caught.value)


@pytest.mark.parametrize("checkpoint", [None, Checkpoint(), Checkpoint(persistent="s3://b/runs")])
def test_a_persistent_tier_that_needs_no_volume_gets_none(checkpoint):
    volumes = {one["name"] for one in trainer(replace(CONFIG, checkpoint=checkpoint))["volumes"]}
    assert volumes == {"shm"}


def test_interactive_work_gets_a_cluster():
    config = with_kuberay(interactive=True, entrypoint="")
    assert {*render(config, "1"), *render(CONFIG, "1")} == FILES
    assert "rayjob" not in render(config, "1") and render(config, "1")["raycluster"]["kind"] == "RayCluster"


@pytest.mark.parametrize(
    ("sizes", "held"),
    [((4, 8), 4), ((1, 8), 1), ((8, 8), 8), ((1, 1), 1), ((2, 3), 2)],
)
@pytest.mark.parametrize(("spares", "pool"), [(0, ""), (1, ""), (1, "reserve")])
def test_a_machine_may_be_drained_however_many_there_are(sizes, spares, pool, held):
    """A budget that holds every pod has `kubectl drain` wait for ever; checkpoints are for the one that goes."""
    config = replace(with_kuberay(spare_pool=pool), scaling=replace(SCALING, num_dp_replicas=sizes, spares=spares))
    objects = render(config, "1")
    most = sizes[1] + spares
    kept = objects["disruption-budget"]["spec"]["minAvailable"] if "disruption-budget" in objects else 0
    assert kept == min(held, most - 1) < most


def test_head_and_supervisor_are_never_evicted_to_save_a_machine():
    spec, objects = cluster(CONFIG), render(CONFIG, "1")
    head, supervisor, workers = (one["template"] for one in (spec["headGroupSpec"], *spec["workerGroupSpecs"]))
    for name, pod in (("head", head), ("supervisor", supervisor)):
        budget = objects[f"{name}-budget"]["spec"]
        assert budget["minAvailable"] == 1, "a share would have the server ask for a scale that there is not"
        assert budget["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["annotations"] == {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    selectors = [one["spec"]["selector"]["matchLabels"] for name, one in objects.items() if name.endswith("-budget")]
    for pod in (head, supervisor, workers):
        labels = pod["metadata"]["labels"].items()
        assert sum(one.items() <= labels for one in selectors) == 1, "a pod of two budgets can not be evicted at all"
    assert "annotations" not in workers["metadata"], "they may go"


# --- what a cluster of one's own wants --------------------------------------------------------------------------------


def pods(config: RunConfig) -> list[dict[str, Any]]:
    """Of head, supervisor, workers and spares."""
    spec = cluster(config)
    return [one["template"] for one in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_variables_of_the_user_take_the_place_of_ours_and_come_from_secrets_too():
    ours = "RAY_health_check_period_ms"
    given = with_kuberay(env={"WANDB_PROJECT": "p", ours: "900"}, env_from_secrets=("tokens", "more"), spare_pool="r")
    for before, after in zip(pods(with_kuberay(spare_pool="r")), pods(given), strict=True):
        container = after["spec"]["containers"][0]
        env = [one["name"] for one in container["env"]]
        assert len(env) == len(set(env)) and {"name": "WANDB_PROJECT", "value": "p"} in container["env"]
        assert {"name": ours, "value": "900"} in container["env"]
        assert {one["name"] for one in before["spec"]["containers"][0]["env"]} <= set(env)
        assert container["envFrom"] == [{"secretRef": {"name": "tokens"}}, {"secretRef": {"name": "more"}}]
    assert all("envFrom" not in one["spec"]["containers"][0] for one in pods(CONFIG))


def test_an_image_that_needs_a_secret_is_fetched_with_it_by_the_submitter_too():
    given = with_kuberay(image_pull_secrets=("registry",), image="r/i:1")
    assert all(one["spec"]["imagePullSecrets"] == [{"name": "registry"}] for one in pods(given))
    submitter = render(given, "1")["rayjob"]["spec"]["submitterPodTemplate"]["spec"]
    assert submitter["imagePullSecrets"] == [{"name": "registry"}] and submitter["restartPolicy"] == "Never"
    assert submitter["containers"][0]["image"] == "r/i:1" and "command" not in submitter["containers"][0]
    assert (
        "imagePullSecrets" not in str(pods(CONFIG))
        and "submitterPodTemplate" not in render(CONFIG, "1")["rayjob"]["spec"]
    )


def test_machines_of_workers_are_told_by_what_the_cluster_calls_them():
    taints = ("team=ml:NoSchedule", "dedicated:NoExecute", "mine", "empty=")
    given = with_kuberay(node_selector={"pool": "gpus"}, tolerations=taints, spare_pool="reserve")
    head, supervisor, workers, spares = (one["spec"] for one in pods(given))
    assert workers["nodeSelector"] == {"pool": "gpus"}
    assert spares["nodeSelector"] == {"pool": "gpus", "cloud.google.com/gke-nodepool": "reserve"}
    for pod in (workers, spares):
        assert pod["tolerations"][-4:] == [
            {"key": "team", "value": "ml", "effect": "NoSchedule", "operator": "Equal"},
            {"key": "dedicated", "effect": "NoExecute", "operator": "Exists"},
            {"key": "mine", "operator": "Exists"},
            {"key": "empty", "value": "", "operator": "Equal"},
        ]
    assert all("nodeSelector" not in pod and "tolerations" not in pod for pod in (head, supervisor))


def test_spares_are_in_their_own_pool_wherever_the_workers_are():
    pool, spot = "cloud.google.com/gke-nodepool", "cloud.google.com/gke-spot"
    given = with_kuberay(node_selector={pool: "spot", spot: "true", "team": "ml"}, spare_pool="reserve")
    _, _, workers, spares = (one["spec"] for one in pods(given))
    assert workers["nodeSelector"] == {pool: "spot", spot: "true", "team": "ml"}
    assert spares["nodeSelector"] == {pool: "reserve", "team": "ml"}


@pytest.mark.parametrize("taint", ["", "a b", "team=ml:Never", "a:", "=b:NoSchedule"])
def test_what_is_no_taint_is_refused(taint):
    with pytest.raises(SettingError, match=r"KubeRay.tolerations=.* must be a taint: key=value:NoSchedule"):
        KubeRay(tolerations=(taint,))


def test_labels_and_annotations_of_the_user_stand_beside_ours():
    given = with_kuberay(pod_labels={"team": "ml"}, pod_annotations={"team/contact": "m"}, gcsfuse=True)
    for before, after in zip(pods(with_kuberay(gcsfuse=True)), pods(given), strict=True):
        ours, all_of_them = before["metadata"], after["metadata"]
        assert all_of_them["labels"] == ours["labels"] | {"team": "ml"}
        assert all_of_them["annotations"] == ours.get("annotations", {}) | {"team/contact": "m"}
    with pytest.raises(SettingError, match="KubeRay.pod_labels='ray.io/group' is a label by which pods are found"):
        KubeRay(pod_labels={"ray.io/group": "mine"})


def test_system_calls_that_no_container_needs_are_refused():
    assert all(one["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"} for one in pods(CONFIG))


# --- rights -----------------------------------------------------------------------------------------------------------


def test_rights_on_nodes_are_left_out_on_request():
    assert render(CONFIG, "1")["node-role"]["rules"] == NODE_RULES
    assert not any("node-role" in name for name in render(with_kuberay(node_rights=False), "1"))


def test_what_belongs_to_the_whole_cluster_is_in_no_namespace():
    objects = render(with_kuberay(namespace="ml"), "1")
    without = {one["kind"] for one in objects.values() if "namespace" not in one["metadata"]}
    assert without == {"ClusterRole", "ClusterRoleBinding", "PriorityClass"}
    assert {one["metadata"].get("namespace", "ml") for one in objects.values()} == {"ml"}


def names_of_all(**changes: Any) -> set[str]:
    """Of objects that share one space of names on a cluster."""
    name = changes.pop("name", "llama")
    objects = render(replace(with_kuberay(**changes), name=name), "1").values()
    return {one["metadata"]["name"] for one in objects if "namespace" not in one["metadata"]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"namespace": "a"}, {"namespace": "b"}),
        ({"namespace": "a-b", "name": "c"}, {"namespace": "a", "name": "b-c"}),
        ({"namespace": "a", "name": "b"}, {"namespace": "a", "name": "b-nodes"}),
    ],
)
def test_runs_share_no_object_of_the_whole_cluster(one, other):
    assert not names_of_all(**one) & names_of_all(**other)


def test_no_class_has_a_name_that_is_kept_for_the_system():
    objects = render(with_kuberay(namespace="system-ml"), "1")
    assert objects["priority"]["metadata"]["name"] == "elastic.system-ml.llama.1000"
    assert trainer(with_kuberay(namespace="system-ml"))["priorityClassName"] == "elastic.system-ml.llama.1000"


def test_another_priority_is_another_class_since_none_can_be_changed():
    before, after = (render(with_kuberay(priority=value), "1") for value in (1000, -5))
    names = [objects["priority"]["metadata"]["name"] for objects in (before, after)]
    assert names == ["default.llama.1000", "default.llama.n5"]
    assert cluster(with_kuberay(priority=-5))["headGroupSpec"]["template"]["spec"]["priorityClassName"] == names[1]


def test_who_has_a_namespace_only_needs_nothing_outside_of_it():
    objects = render(with_kuberay(node_rights=False), "1")
    assert all(one["metadata"]["namespace"] == "default" for one in objects.values())
    assert "priorityClassName" not in str(objects), "a class that is not there has every pod refused"


@pytest.mark.parametrize(
    ("node_rights", "priority", "value"),
    [(True, None, 1000), (False, None, 0), (True, 0, 0), (False, 7, 7), (True, -5, -5)],
)
def test_pods_name_a_class_where_there_is_one(node_rights, priority, value):
    config = with_kuberay(node_rights=node_rights, priority=priority)
    objects, spec = render(config, "1"), cluster(config)
    pods = [one["template"]["spec"] for one in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    assert objects.get("priority", {"value": 0})["value"] == value
    named = {pod.get("priorityClassName") for pod in pods}
    assert named == ({objects["priority"]["metadata"]["name"]} if value else {None})


def test_workers_get_no_token_and_no_pod_runs_as_root():
    spec = cluster(CONFIG)
    pods = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    assert [one["template"]["spec"].get("automountServiceAccountToken", True) for one in pods] == [True, False, False]
    assert all(one["template"]["spec"]["securityContext"]["runAsNonRoot"] for one in pods)
    assert spec["authOptions"] == {"mode": "token"}


def test_a_google_account_is_named_on_both_service_accounts():
    objects = render(with_kuberay(service_account="t@p.iam"), "1")
    for who in ("head-account", "worker-account"):
        assert objects[who]["metadata"]["annotations"] == {"iam.gke.io/gcp-service-account": "t@p.iam"}


def test_machines_with_gpus_are_asked_for_by_name_and_those_without_by_nothing():
    gpus = trainer(with_kuberay(accelerator="nvidia-h100-80gb"))
    assert gpus["nodeSelector"]["cloud.google.com/gke-accelerator"] == "nvidia-h100-80gb"
    assert any(one["key"] == "nvidia.com/gpu" for one in gpus["tolerations"])
    scaling = replace(SCALING, use_gpu=False, workers_per_replica=1)
    plain = trainer(replace(with_kuberay(gpus_per_node=0), scaling=scaling, checkpoint=None))
    assert "nvidia.com/gpu" not in str(plain)


def test_workers_have_gpus_where_machines_do_and_only_tiers_that_were_asked_for_are_mounted():
    scaling = replace(SCALING, use_gpu=False)
    assert inside(replace(CONFIG, scaling=scaling)).scaling.use_gpu
    assert inside(replace(CONFIG, checkpoint=None)).checkpoint is None


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"namespace": "ml\n"}, {"tolerations": ("team=ml:NoSchedule\n",)}])
def test_a_name_ends_where_its_line_does(changes):
    with pytest.raises(SettingError, match=r"\\n"):
        KubeRay(**changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": None}, "name='' must be lower case"),
        ({"name": "Llama"}, "name='Llama' must be lower case"),
        ({"name": "a" * 48}, "at most 47"),
        ({"name": "llama\n"}, r"name='llama\\n' must be lower case"),
        ({"kuberay": None}, "there is no section `kuberay`"),
        ({"kuberay": KubeRay()}, "KubeRay.entrypoint is empty"),
        ({"kuberay": KubeRay(entrypoint=" \n")}, "KubeRay.entrypoint is empty"),
    ],
)
def test_what_cannot_be_rendered_is_refused(changes, said):
    with pytest.raises(SettingError, match=said):
        render(replace(CONFIG, **changes), "1")


@pytest.mark.parametrize(
    "changes",
    [
        {"pod_labels": {"team": "a b"}},
        {"pod_labels": {"a b": "x"}},
        {"node_selector": {"pool": "a" * 64}},
        {"tolerations": ("team/ml/x=1:NoSchedule",)},
        {"pod_annotations": {"a b": "x"}},
        {"accelerator": "nvidia h100"},
        {"cpu_pool": "cpu,gpu"},
        {"spare_pool": "-reserve"},
        {"env": {"MY VARIABLE": "1"}},
        {"env": {"": "1"}},
        {"env": {"1A": "1"}},
        {"env_from_secrets": ("MY_TOKENS",)},
        {"image_pull_secrets": ("a", "b/c")},
        {"claim": "My store"},
    ],
)
def test_words_that_no_pod_may_have_are_refused(changes):
    (knob,) = changes
    with pytest.raises(SettingError, match=rf"^KubeRay\.{knob}='.*' must be "):
        render(with_kuberay(**changes), "1")


def test_words_of_kubernetes_are_taken():
    labels = {"example.com/team": "ML_1.x", "empty": ""}
    more = {"pod_labels": labels, "node_selector": labels, "tolerations": ("example.com/a=b:NoExecute", "c=")}
    more |= {"pod_annotations": {"Example.com/Note": "any thing"}, "env": {"_A.b-1": ""}, "cpu_pool": "cpu"}
    assert render(with_kuberay(**more, env_from_secrets=("a.b-1",), image_pull_secrets=("r",)), "1")


RICH = RunConfig(
    name="rich",
    seed=3,
    scaling=Scaling(
        num_dp_replicas=(1, 3), resources_per_worker={"CPU": 2, "GPU": 0.5}, label_selector={"ray.io/x": "Y"}
    ),
    limits=Limits(lease_s=60.0),
    checkpoint=Checkpoint(keep=Keep(last=5), local_interval=Interval(steps=7), persistent="gs://b/x"),
    chaos=Chaos(enable_fault_injection=True),
)


@pytest.mark.parametrize(
    "config",
    [
        RICH,
        RunConfig(),
        RunConfig(checkpoint=Checkpoint()),
        replace(RICH, run_dir="/runs/\U0001f680 \u2028\\ud83d: 'x'"),
        replace(RICH, scaling=replace(RICH.scaling, label_selector={"\U0001f680": "a, b", "c": "1"})),
        replace(RICH, kuberay=KUBERAY),
        replace(RICH, kuberay=replace(KUBERAY, env={"A": "1"}, tolerations=("a:NoSchedule",), env_from_secrets=("s",))),
    ],
)
def test_settings_survive_being_written(config):
    assert configured(tree(yaml.safe_load(written(config)))) == config
    assert configured(from_environment(variables(config))) == replace(config, kuberay=None)


# --- Kustomize --------------------------------------------------------------------------------------------------------

keys = st.sampled_from(["a", "b/c", "~1", "e"])
plain = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "b/c", "~"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b/c", "~d", "e"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def patched(value: Any, steps: list[dict[str, Any]]) -> Any:
    """What RFC 6902 says, for the operations in use."""
    root: dict[str, Any] = {"": deepcopy(value)}
    for step in steps:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")]
        at: Any = root
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if isinstance(at, list) and last == "-":
            assert step["op"] == "add"
            at.append(deepcopy(step["value"]))
            continue
        key = int(last) if isinstance(at, list) else last
        if step["op"] == "remove":
            del at[key]
        else:
            assert step["op"] == "add" or isinstance(at, list) or key in at
            at[key] = step["value"]
    return root[""]


@given(plain, plain)
@example(True, 1)
@example({"~1": 1}, {"~1": 2})
@example({"a": [1, 2]}, {"a": [1, 3, 4, 5]})
def test_a_patch_leads_from_one_to_the_other(old, new):
    assert json.dumps(patched(old, json_patch(old, new)), sort_keys=True) == json.dumps(new, sort_keys=True)


def test_an_overlay_holds_the_difference_only():
    ground = render(with_kuberay(node_rights=False), "1")
    files = overlay(render(with_kuberay(spot=True), "1"), ground, "../../base")
    assert set(files) == {
        "kustomization.yaml",
        "rayjob-patch.yaml",
        "config-patch.yaml",
        "node-role.yaml",
        "node-role-binding.yaml",
        "priority.yaml",
    }
    assert overlay(ground, ground, "../../base").keys() == {"kustomization.yaml"}
    assert len(base(ground)) == len(ground) + 1


def test_what_the_overlay_lacks_is_deleted():
    kustomization = yaml.safe_load(
        overlay(render(with_kuberay(node_rights=False), "1"), render(CONFIG, "1"), "x")["kustomization.yaml"]
    )
    deleted = [one["target"]["kind"] for one in kustomization["patches"] if "$patch: delete" in one.get("patch", "")]
    assert deleted == ["ClusterRole", "ClusterRoleBinding", "PriorityClass"]


def test_objects_of_another_name_are_no_overlay():
    with pytest.raises(ValueError, match="of the overlay is"):
        overlay(render(CONFIG, "1"), render(replace(CONFIG, name="other"), "1"), "x")


@pytest.mark.parametrize(
    ("persistent", "changes", "found"),
    [
        ("gs://b/runs", {"service_account": "t@p-1.iam.gserviceaccount.com"}, []),
        ("gs://BUCKET/runs", {}, ["BUCKET"]),
        ("gs://MY_BUCKET", {"service_account": "t@PROJECT.iam.gserviceaccount.com"}, ["MY_BUCKET", "PROJECT"]),
        ("gs://BUCKET/runs", {"gcsfuse": True}, ["BUCKET"]),
        ("gs://b/BUCKET", {"entrypoint": "python train.py --into BUCKET"}, []),
    ],
)
def test_what_stands_for_a_name_is_told_of(persistent, changes, found):
    config = replace(with_kuberay(**changes), checkpoint=Checkpoint(persistent=persistent))
    assert placeholders(render(config, "1").values()) == found


def test_documents_are_read_back_as_they_were():
    objects = render(CONFIG, "1")
    assert list(yaml.safe_load_all(documents(objects))) == list(objects.values())
    assert all(is_ours(text(one)) for one in objects.values()) and not is_ours("kind: Role\n")
