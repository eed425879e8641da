"""Settings that cannot work are refused by name, and errors arrive whole in another process."""

import pickle
from dataclasses import fields

import pytest

from elastic import errors
from elastic.control.outcome import Ending
from elastic.settings import Limits, RunSettings, Scaling


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"replicas": 0}, "Scaling.num_dp_replicas=0"),
        ({"replicas": -1}, "Scaling.num_dp_replicas=-1"),
        ({"replicas": (0, 2)}, r"Scaling.num_dp_replicas=\(0, 2\)"),
        ({"replicas": (3, 2)}, r"Scaling.num_dp_replicas=\(3, 2\)"),
        ({"spares": -1}, "Scaling.spares=-1"),
        ({"workers_per_replica": 0}, "Scaling.workers_per_replica=0"),
        ({"workers_per_replica": 4, "num_nodes_per_dp": 2}, "Scaling.num_nodes_per_dp=2"),
        ({"num_nodes_per_dp": 0}, "Scaling.num_nodes_per_dp=0"),
        ({"threads_per_worker": 0}, "Scaling.threads_per_worker=0"),
        ({"resources_per_worker": {"CPU": 0.0}}, "Scaling.resources_per_worker="),
        ({"resources_per_worker": {"CPU": 1.0, "TPU": -1.0}}, "Scaling.resources_per_worker="),
    ],
    ids=str,
)
def test_a_scaling_that_cannot_work_names_its_field(setting, named):
    with pytest.raises(errors.SettingError, match=f"^{named}"):
        Scaling(**setting)


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1])
def test_a_limit_that_cannot_work_names_its_field(name, value):
    with pytest.raises(errors.SettingError, match=f"^Limits.{name}={value} must be positive"):
        Limits(**{name: value})


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


def test_every_setting_is_documented():
    for kind in (Scaling, Limits):
        text = kind.__doc__ or ""
        assert [field.name for field in fields(kind) if f"{field.name}:" not in text] == []


def test_settings_are_values():
    assert RunSettings(run="r") == RunSettings(run="r")
    assert pickle.loads(pickle.dumps(RunSettings(run="r", scaling=Scaling(num_dp_replicas=(1, 3))))).scaling.bounds == (1, 3)


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


@pytest.mark.parametrize("ending", [e for e in Ending if e not in (Ending.SUCCEEDED, Ending.STOPPED)])
def test_every_ending_names_an_error_that_exists(ending):
    assert issubclass(getattr(errors, ending.value), errors.ElasticError)
