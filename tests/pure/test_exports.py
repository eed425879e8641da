"""What users import: a frozen list; adding to it, or taking away, is a decision."""

import importlib

import pytest

import elastic
from elastic import errors

FROZEN = [
    "Chaos",
    "Checkpoint",
    "FixedMicroBatches",
    "FollowReplicas",
    "Health",
    "Interval",
    "Keep",
    "Limits",
    "Logs",
    "Page",
    "Result",
    "Scaling",
    "Session",
    "callbacks",
    "config",
    "errors",
    "fit",
    "get_session",
    "policies",
    "settings",
    "sinks",
    "tune",
]
HEAVY = ("Session", "fit", "get_session", "tune")  # these need torch and ray
PURE = [name for name in FROZEN if name not in HEAVY]
ERRORS = {
    "ConservationError",
    "CorruptError",
    "DatasetTooSmallError",
    "DivergenceError",
    "ElasticError",
    "ExitedError",
    "NoClusterError",
    "NoProgressError",
    "NoRoomError",
    "NonFiniteLossError",
    "NotEnoughSlotsError",
    "NotStatefulError",
    "OutsideWorkerError",
    "RefusedError",
    "ReplicasLostError",
    "SettingError",
    "StateError",
    "StepMisuseError",
    "SupersededError",
    "TrainFnError",
}
SIGNALS = {"AttemptBroken", "Dismissed"}
POLICIES = [
    "ClusterView",
    "CostAware",
    "ExitOnNotice",
    "Guess",
    "HotSwapFirst",
    "Incident",
    "IncidentClass",
    "Kind",
    "Ladder",
    "Policy",
    "Remediation",
    "Severity",
    "ShrinkFirst",
    "policy_of",
]


def test_the_list_is_frozen():
    assert elastic.__all__ == FROZEN
    assert dir(elastic) == FROZEN


@pytest.mark.parametrize("name", PURE)
def test_a_name_can_be_imported(name):
    assert getattr(elastic, name) is not None


@pytest.mark.parametrize("name", ["Scaling", "Limits"])
def test_a_name_leads_to_the_thing_itself(name):
    assert getattr(elastic, name) is getattr(importlib.import_module("elastic.settings"), name)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = elastic.Trainer


def test_the_policies_are_frozen():
    policies = importlib.import_module("elastic.policies")
    assert policies.__all__ == POLICIES
    assert all(hasattr(policies, name) for name in policies.__all__)


def test_the_errors_are_frozen():
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and kind.__module__ == errors.__name__
    }
    assert set(classes) == ERRORS | SIGNALS
    assert {name for name, kind in classes.items() if issubclass(kind, errors.ElasticError)} == ERRORS
    assert not any(issubclass(classes[name], Exception) for name in SIGNALS), "except Exception must not swallow them"


def test_every_error_is_in_the_tree_of_the_docstring():
    assert {name for name in ERRORS if name not in (errors.__doc__ or "")} == set()
