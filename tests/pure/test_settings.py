"""Settings that cannot work are refused by name, and errors arrive whole in another process."""

import pickle
from dataclasses import fields

import pytest

from elastic import errors
from elastic.control.outcome import Ending
from elastic.settings import Chaos, Checkpoint, Health, Interval, KubeRay, Limits, Page, RunSettings, Scaling


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"num_dp_replicas": 0}, "Scaling.num_dp_replicas=0"),
        ({"num_dp_replicas": -1}, "Scaling.num_dp_replicas=-1"),
        ({"num_dp_replicas": (0, 2)}, r"Scaling.num_dp_replicas=\(0, 2\)"),
        ({"num_dp_replicas": (3, 2)}, r"Scaling.num_dp_replicas=\(3, 2\)"),
        ({"spares": -1}, "Scaling.spares=-1"),
        ({"spares": "2"}, "Scaling.spares='2' must be a whole number"),
        ({"threads_per_worker": 1.5}, "Scaling.threads_per_worker=1.5 must be a whole number"),
        ({"workers_per_replica": 0}, "Scaling.workers_per_replica=0"),
        ({"workers_per_replica": 4, "num_nodes_per_dp": 3}, "Scaling.num_nodes_per_dp=3"),
        ({"num_nodes_per_dp": 0}, "Scaling.num_nodes_per_dp=0"),
        ({"threads_per_worker": 0}, "Scaling.threads_per_worker=0"),
        ({"gpu_collectives": "mpi"}, "Scaling.gpu_collectives='mpi' must be one of nccl, gloo"),
        ({"num_dp_replicas": (1, 2, 3)}, r"Scaling.num_dp_replicas=\(1, 2, 3\) must be an integer or"),
        ({"resources_per_worker": {}}, "Scaling.resources_per_worker={} must name what a worker is placed by"),
        ({"resources_per_worker": {"CPU": 0.0}}, "Scaling.resources_per_worker="),
        ({"resources_per_worker": {"CPU": 1.0, "TPU": -1.0}}, "Scaling.resources_per_worker="),
        (
            {"resources_per_worker": {"CPU": 1.0, "object_store_memory": 1e9}},
            ".*no worker can have object_store_memory",
        ),
    ],
    ids=str,
)
def test_a_scaling_that_cannot_work_names_its_field(setting, named):
    with pytest.raises(errors.SettingError, match=f"^{named}"):
        Scaling(**setting)


@pytest.mark.parametrize(
    ("scaling", "has_nccl"),
    [
        (Scaling(use_gpu=True), True),
        (Scaling(), True),  # and a train_fn that uses a GPU all the same
        (Scaling(use_gpu=True, gpu_collectives="gloo"), False),
        (Scaling(use_gpu=True, resources_per_worker={"GPU": 0.5}), False),
    ],
)
def test_workers_that_share_a_gpu_have_gloo(scaling, has_nccl):
    assert scaling.has_nccl is has_nccl


MAY_BE_ZERO = ("max_in_job_restarts", "max_workload_restarts", "connect_ahead_s")


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e12])
def test_a_limit_that_cannot_work_names_its_field(name, value):
    if value == 0 and name in MAY_BE_ZERO:
        assert getattr(Limits(**{name: 0}), name) == 0
        return
    why = "be at most 1e" if value > 1 else "not be negative" if name in MAY_BE_ZERO else "be positive"
    with pytest.raises(errors.SettingError, match=f"^Limits.{name}={value} must {why}"):
        Limits(**{name: value})


@pytest.mark.parametrize("value", ["5", None, True, (1, 2)], ids=repr)
def test_a_limit_is_a_number(value):
    with pytest.raises(errors.SettingError, match=r"^Limits.lease_s=.* must be a number"):
        Limits(lease_s=value)


def test_silence_is_longer_than_the_time_between_two_beats():
    with pytest.raises(errors.SettingError, match=r"Limits.heartbeat_timeout_s=1.25 .* heartbeat_polling_period_s=15"):
        Limits(heartbeat_polling_period_s=15)
    assert Limits(heartbeat_polling_period_s=15, heartbeat_timeout_s=30).heartbeat_timeout_s == 30


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"fault_injection_period_s": -1}, "Chaos.fault_injection_period_s=-1 must be seconds"),
        ({"fault_injection_period_s": float("nan")}, "Chaos.fault_injection_period_s=nan must be seconds"),
        ({"fault_injection_period_s": "often"}, "Chaos.fault_injection_period_s='often' must be seconds"),
        ({"sim_fault_desc": "random"}, "Chaos.sim_fault_desc='random' must be kind,seconds"),
        ({"sim_fault_desc": "random,soon"}, "Chaos.sim_fault_desc='random,soon' must be kind,seconds"),
        ({"sim_fault_desc": ",120"}, "Chaos.sim_fault_desc=',120' must be kind,seconds"),
        ({"sim_fault_desc": "random,-3"}, "Chaos.sim_fault_desc='random,-3' must be kind,seconds"),
        ({"sim_fault_desc": "random,0.0s"}, "Chaos.sim_fault_desc='random,0.0s' must be kind,seconds"),
        ({"sim_fault_desc": "random,2 weeks"}, "Chaos.sim_fault_desc='random,2 weeks' must be kind,seconds"),
    ],
    ids=str,
)
def test_chaos_that_cannot_work_names_its_field(setting, named):
    with pytest.raises(errors.SettingError, match=f"^{named}"):
        Chaos(enable_fault_injection=True, **setting)


@pytest.mark.parametrize(
    "setting", [{"fault_injection_period_s": 9600}, {"sim_fault_desc": "random,120"}, {"schedule": "every 30"}], ids=str
)
def test_a_fault_needs_to_be_allowed(setting):
    (name,) = setting
    with pytest.raises(errors.SettingError, match=f"^Chaos.{name} needs Chaos.enable_fault_injection"):
        Chaos(**setting)
    assert getattr(Chaos(enable_fault_injection=True, **setting), name) == setting[name]


@pytest.mark.parametrize(
    ("replicas", "bounds"),
    [(1, (1, 1)), (4, (4, 4)), ((2, 8), (2, 8)), ((3, 3), (3, 3))],
    ids=["one", "fixed", "a range", "a range of one"],
)
def test_the_bounds_of_replicas(replicas, bounds):
    assert Scaling(num_dp_replicas=replicas).bounds == bounds


@pytest.mark.parametrize(
    ("scaling", "resources"),
    [
        (Scaling(), {"CPU": 1.0}),
        (Scaling(use_gpu=True), {"GPU": 1.0}),
        (Scaling(resources_per_worker={"CPU": 2, "slot": 1}), {"CPU": 2, "slot": 1}),
        (Scaling(use_gpu=True, resources_per_worker={"GPU": 0.5}), {"GPU": 0.5}),
    ],
    ids=["default", "a GPU", "the user's", "the user's replace the GPU"],
)
def test_the_resources_of_a_worker(scaling, resources):
    assert scaling.resources == resources


def test_a_worker_with_more_than_cores_has_accelerators():
    assert Scaling(use_gpu=True).has_accelerators
    assert not Scaling().has_accelerators


@pytest.mark.parametrize(
    ("setting", "named"),
    [({"port": -1}, "Page.port=-1"), ({"port": 65536}, "Page.port=65536"), ({"host": ""}, "Page.host=''")],
)
def test_a_page_that_cannot_work_names_its_field(setting, named):
    with pytest.raises(errors.SettingError, match=named):
        Page(**setting)


@pytest.mark.parametrize(("host", "is_loopback"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)])
def test_a_page_for_others_is_told_from_one_for_this_machine(host, is_loopback):
    assert Page(host=host).is_loopback is is_loopback


@pytest.mark.parametrize(
    ("kind", "setting", "said"),
    [
        (Checkpoint, {"peers": -1}, "Checkpoint.peers=-1 must not be negative"),
        (Checkpoint, {"peer_bytes": 0}, "Checkpoint.peer_bytes=0 must be positive"),
        (Checkpoint, {"disk": "here"}, "Checkpoint.disk='here' must be an absolute path"),
        (
            Checkpoint,
            {"backup_interval_minutes": 5, "persistent_interval": Interval(steps=9)},
            "Checkpoint.backup_interval_minutes and persistent_interval say the same",
        ),
        (Health, {"recheck_s": 0}, "Health.recheck_s=0 must be positive"),
        (Health, {"space_free": 1.0}, "Health.space_free=1.0 is a share"),
        (Health, {"peer_bytes_per_s": -1.0}, "Health.peer_bytes_per_s=-1.0 must not be negative"),
        (KubeRay, {"namespace": "Not_this"}, "KubeRay.namespace='Not_this' must be a name"),
        (KubeRay, {"retries": -1}, "KubeRay.retries=-1 must not be negative"),
        (KubeRay, {"head_cpus": 0}, "KubeRay.head_cpus=0 must be positive"),
        (KubeRay, {"params": 0}, "KubeRay.params=0 must be positive"),
        (KubeRay, {"multi_tier": True}, "KubeRay.multi_tier=True needs KubeRay.params"),
        (
            KubeRay,
            {"interactive": True, "entrypoint": "python x.py"},
            "KubeRay.interactive=True takes no KubeRay.entry",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(kind, setting, said):
    with pytest.raises(errors.SettingError, match=f"^{said}"):
        kind(**setting)


def test_settings_are_values():
    assert RunSettings(run="r") == RunSettings(run="r")
    settings = RunSettings(run="r", scaling=Scaling(num_dp_replicas=(1, 3)))
    assert pickle.loads(pickle.dumps(settings)).scaling.bounds == (1, 3)


# --- errors -----------------------------------------------------------------------------------------------------------

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ElasticError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling_with_its_attributes(kind):
    error = pickle.loads(pickle.dumps(kind("a sentence", worker="w1", rank=2, traceback="line 1")))
    assert type(error) is kind
    assert str(error) == "a sentence"
    assert (error.worker, error.rank, error.traceback) == ("w1", 2, "line 1")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.SettingError, ValueError),
        (errors.DatasetTooSmallError, ValueError),
        (errors.NotStatefulError, TypeError),
        (errors.OutsideWorkerError, RuntimeError),
        (errors.StepMisuseError, RuntimeError),
    ],
    ids=lambda kind: kind.__name__,
)
def test_an_error_is_caught_by_its_builtin_kind_too(kind, builtin):
    assert issubclass(kind, builtin)


@pytest.mark.parametrize("signal", [errors.AttemptBroken, errors.Dismissed], ids=lambda kind: kind.__name__)
def test_a_signal_passes_through_except_exception(signal):
    with pytest.raises(signal):
        try:
            raise signal
        except Exception:
            pytest.fail("the signal was swallowed")


PYTHONS_OWN = (Ending.STOPPED, Ending.DRIVER_FAILED)


@pytest.mark.parametrize("ending", [e for e in Ending if e not in (Ending.SUCCEEDED, *PYTHONS_OWN)])
def test_every_ending_names_an_error_that_exists(ending):
    assert issubclass(getattr(errors, ending.value), errors.ElasticError)
