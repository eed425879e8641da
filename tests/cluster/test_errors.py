"""Effect. What users get wrong: one sentence with the cause and the knob, once, and a clean end."""

from pathlib import Path
from typing import Any

import pytest

import elastic
from elastic import errors
from tests.cluster import training

pytestmark = pytest.mark.timeout(120)

PATIENT = elastic.Limits(start_timeout_s=100, blame_grace_s=0.2)
FAST = elastic.Limits(start_timeout_s=5)


def fit(train_fn: Any, tmp_path: Path, limits: elastic.Limits = PATIENT, **settings: Any) -> Any:
    return elastic.fit(train_fn, run_dir=tmp_path / "run", limits=limits, **settings)


def test_too_few_slots_names_both_numbers_and_the_setting(hosts: Any, tmp_path: Path) -> None:
    scaling = elastic.Scaling(num_dp_replicas=2, resources_per_worker={"CPU": 3, "here": 5})
    with pytest.raises(errors.NotEnoughSlotsError, match=r"at least 2 workers.*could place 0.*Scaling.num_dp_replicas"):
        fit(training.regression(tmp_path), tmp_path, FAST, scaling=scaling)


def test_an_exception_in_train_fn_is_raised_once_with_rank_and_traceback(hosts: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.TrainFnError) as caught:
        fit(training.raising(at_step=3, rank=1), tmp_path, scaling=elastic.Scaling(num_dp_replicas=2))
    assert "ZeroDivisionError" in str(caught.value)
    assert caught.value.rank == 1
    assert "in train_fn" in caught.value.traceback
    assert str(caught.value).count("Traceback") == 1


def test_an_exception_before_the_first_step_ends_the_run(hosts: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.TrainFnError, match="before its first step"):
        fit(training.raising(at_step=-1, rank=0), tmp_path)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("small dataset", "DatasetTooSmallError: the dataset holds 3 samples.*lower batch_size"),
        ("not stateful", r"NotStatefulError: session.track\(thing=object"),
        ("no steps", "train_fn returned without iterating over session.steps"),
        ("no model", r"no model: call session.prepare\(model\)"),
        ("continue", "step 0 was left without step.apply at .*training.py.*step.skip"),
    ],
)
def test_mistakes_in_train_fn_name_the_remedy(hosts: Any, tmp_path: Path, mistake: str, sentence: str) -> None:
    with pytest.raises(errors.TrainFnError, match=sentence):
        fit(training.mistaken(mistake), tmp_path)


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    """In a process of its own, since this one is connected to a cluster."""
    code = "import elastic; elastic.fit(lambda session: None, address='127.0.0.1:1')"
    done = training.python(code, tmp_path, timeout_s=100)
    assert done.returncode == 1
    assert "NoClusterError: no Ray cluster answers at 127.0.0.1:1" in done.stderr


def test_a_cluster_of_another_version_is_not_joined_and_none_is_started_beside_it(hosts: Any, tmp_path: Path) -> None:
    """Told by whoever asks for it by its address, and by whoever asks for none."""
    code = """
import ray
ray.__version__ = "2.0.7"
import elastic
from elastic.actors.surveying import survey_cluster
for address in ("{address}", None):
    try:
        elastic.fit(lambda session: None, address=address)
    except elastic.errors.NoClusterError as error:
        print(error.is_there, error)
print(survey_cluster("{address}", "/dev/shm", elastic.Scaling()).is_there)
"""
    done = training.python(code.format(address=hosts.address), tmp_path, timeout_s=100)
    *refused, surveyed = done.stdout.splitlines()
    assert len(refused) == 2, done.stderr
    for line in refused:
        assert line.startswith("True the Ray cluster at ") and "has other versions" in line and "Ray: 2.0.7" in line
    assert surveyed == "True"


def test_a_session_exists_only_in_a_worker() -> None:
    with pytest.raises(errors.OutsideWorkerError, match="only inside a train_fn"):
        elastic.get_session()
