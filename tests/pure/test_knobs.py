"""Knobs by name: what is given becomes settings or is refused by name, and everybody can see what came from where."""

import dataclasses
import json
from pathlib import Path
from types import MappingProxyType

import pytest

from elastic.errors import SettingError
from elastic.knob_docs import documented, sections, table
from elastic.knobs import (
    Given,
    RunConfig,
    at_path,
    configured,
    effective,
    merged,
    optional_sections,
    plain_names,
    redacted,
)
from elastic.settings import Chaos, Checkpoint, Interval, Keep, Limits, Scaling

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

# The knobs of the seeds, with a value of theirs and where they stand here.
SEEDS = {
    "heartbeat_polling_period_s": ("limits", 15),
    "heartbeat_timeout_s": ("limits", 30),
    "num_dp_replicas": ("scaling", 4),
    "num_nodes_per_dp": ("scaling", 1),
    "max_in_job_restarts": ("limits", 0),
    "max_workload_restarts": ("limits", 20),
    "pod_termination_threshold_s": ("limits", 60),
    "jobset_downtime_threshold_s": ("limits", 180),
    "enable_fault_injection": ("chaos", True),
    "fault_injection_period_s": ("chaos", 9600),
    "sim_fault_desc": ("chaos", "random,120"),
}


def tree(**leaves):
    """A tree of dotted names with `__` for the dots, as if written in f.yaml."""
    given = {name: value if isinstance(value, Given) else Given(value, "f.yaml:1") for name, value in leaves.items()}
    return merged(*[at_path(name.replace("__", "."), value) for name, value in given.items()])


def test_nothing_given_is_all_defaults():
    config = configured({})
    assert config == RunConfig()
    assert {knob.source for knob in effective(config, {})} == {"default"}


def test_every_knob_of_the_seeds_has_its_name_here():
    given = tree(**{f"{section}__{name}": value for name, (section, value) in SEEDS.items()})
    config = configured(given)
    assert {name: getattr(getattr(config, section), name) for name, (section, _) in SEEDS.items()} == {
        name: value for name, (_, value) in SEEDS.items()
    }


@pytest.mark.parametrize("name", SEEDS)
def test_a_knob_in_the_wrong_place_is_refused_with_the_right_one(name):
    section, value = SEEDS[name]
    with pytest.raises(SettingError, match=rf"f.yaml:1: there is no knob {name}; did you mean {section}.{name}\?"):
        configured(tree(**{name: value}))


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("limits__heartbeat_timeout", "limits.heartbeat_timeout_s"),
        ("limits__leese_s", "limits.lease_s"),
        ("scaling__replicas", "scaling.num_dp_replicas"),
        ("checkpoint__keep__lats", "checkpoint.keep.last"),
        ("limit__lease_s", "limits"),
        ("checkpoint__spares", "scaling.spares"),
    ],
)
def test_an_unknown_knob_is_refused_with_the_nearest(path, meant):
    with pytest.raises(SettingError, match=rf"there is no knob {path.split('__')[0]}.*; did you mean {meant}\?"):
        configured(tree(**{path: 1}))


def test_what_is_like_nothing_is_refused_with_what_there_is():
    with pytest.raises(SettingError, match=r"no knob chaos.qqq; known here: enable_fault_injection, fault_injection"):
        configured(tree(chaos__qqq=1))


@pytest.mark.parametrize(
    ("path", "value", "became"),
    [
        ("scaling__num_dp_replicas", 3, 3),
        ("scaling__num_dp_replicas", [2, 8], (2, 8)),
        ("scaling__resources_per_worker", {"CPU": 2}, {"CPU": 2.0}),
        ("scaling__label_selector", {"pool": "b"}, {"pool": "b"}),
        ("scaling__label_selector", None, None),
        ("limits__lease_s", 5, 5.0),
        ("limits__hang_floor_s", "1e9", 1e9),
        ("limits__joiner_tries", 3, 3),
        ("scaling__use_gpu", True, True),
        ("checkpoint__persistent", "gs://b/p", "gs://b/p"),
        ("checkpoint__peer_bytes", None, None),
        ("checkpoint__keep__metric", "accuracy", "accuracy"),
        ("checkpoint__local_interval__seconds", 2, 2.0),
    ],
)
def test_a_value_becomes_what_the_setting_asks_for(path, value, became):
    found = configured(tree(**{path: value}))
    for name in path.split("__"):
        found = getattr(found, name)
    assert found == became and type(found) is type(became)


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        ("scaling__num_dp_replicas", "many", r"a whole number or \[minimum, maximum\]"),
        ("scaling__num_dp_replicas", [1, 2, 3], r"a whole number or \[minimum, maximum\]"),
        ("scaling__num_dp_replicas", [1.5, 2], r"a whole number or \[minimum, maximum\]"),
        ("scaling__spares", True, "a whole number"),
        ("scaling__spares", 1.5, "a whole number"),
        ("scaling__use_gpu", 1, "true or false"),
        ("scaling__resources_per_worker", {"CPU": "two"}, "names with values or null"),
        ("limits__lease_s", "soon", "a number"),
        ("limits__lease_s", True, "a number"),
        ("limits__lease_s", None, "a number"),
        ("limits__lease_s", float("nan"), "a number"),
        ("name", 7, "text or null"),
        ("limits", 3, f"a section of {len(dataclasses.fields(Limits))} knobs"),
        ("checkpoint", [1], f"a section of {len(dataclasses.fields(Checkpoint))} knobs or null"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name_and_place(path, value, wanted):
    with pytest.raises(SettingError, match=rf"^f.yaml:1: {path.replace('__', '.')}=.* must be {wanted}$"):
        configured(tree(**{path: value}))


def test_a_value_that_cannot_work_is_refused_by_name_and_place():
    given = merged(tree(limits__start_tries=2), tree(limits__lease_s=Given(-1, "run.yaml:7")))
    with pytest.raises(SettingError, match=r"^run.yaml:7: Limits.lease_s=-1.0 must be positive$"):
        configured(given)


def test_values_that_cannot_work_together_are_refused_by_section():
    with pytest.raises(SettingError, match=r"^f.yaml:1: limits: Limits.heartbeat_timeout_s=1.25 must be longer than"):
        configured(tree(limits__heartbeat_polling_period_s=15))
    with pytest.raises(SettingError, match=r"^f.yaml:1: chaos: Chaos.sim_fault_desc needs Chaos.enable_fault"):
        configured(tree(chaos__sim_fault_desc="random,120"))
    names = ("lease_s", "start_timeout_s", "freeze_timeout_s", "door_timeout_s")
    harmless = {f"limits__{one}": Given(getattr(Limits(), one), f"f.yaml:{at}") for at, one in enumerate(names, 2)}
    several = merged(tree(limits__heartbeat_polling_period_s=15), tree(**harmless))
    with pytest.raises(SettingError, match=r"^f.yaml:1, f.yaml:2, f.yaml:3, \.\.\.: limits: Limits.heartbeat_timeout"):
        configured(several)


def test_later_trees_win_value_by_value_and_whole_sections_replace():
    low = tree(limits__lease_s=Given(1, "file"), limits__orphan_lease_s=Given(2, "file"), seed=Given(3, "file"))
    high = tree(limits__lease_s=Given(4, "variable"))
    both = configured(merged(low, high))
    assert (both.limits.lease_s, both.limits.orphan_lease_s, both.seed) == (4.0, 2.0, 3)
    whole = configured(merged(low, high, {"limits": Given(Limits(slow_steps=5), "fit(limits=...)")}))
    assert whole.limits == Limits(slow_steps=5) and whole.seed == 3


def test_an_empty_section_is_its_defaults_and_an_empty_optional_one_is_off():
    config = configured(tree(limits=None, checkpoint=None))
    assert (config.limits, config.checkpoint) == (Limits(), None)
    assert configured({"checkpoint": {}}).checkpoint == Checkpoint()


def test_everybody_can_see_what_came_from_where():
    given = merged(
        tree(scaling__num_dp_replicas=Given([2, 8], "run.yaml:3"), checkpoint__keep__last=Given(5, "run.yaml:9")),
        tree(limits__lease_s=Given(9, "ELASTIC_LIMITS__LEASE_S")),
        {"chaos": Given(Chaos(enable_fault_injection=True), "fit(chaos=...)")},
    )
    knobs = {knob.path: (knob.value, knob.source) for knob in effective(configured(given), given)}
    assert knobs["scaling.num_dp_replicas"] == ([2, 8], "run.yaml:3")
    assert knobs["scaling.spares"] == (0, "default")
    assert knobs["limits.lease_s"] == (9.0, "ELASTIC_LIMITS__LEASE_S")
    assert knobs["checkpoint.keep.last"] == (5, "run.yaml:9")
    assert knobs["checkpoint.keep.every"] == (0, "default")
    assert knobs["chaos.enable_fault_injection"] == (True, "fit(chaos=...)")
    assert knobs["chaos.schedule"] == ("", "fit(chaos=...)")
    assert "checkpoint" not in knobs


def test_a_mapping_is_one_knob_and_takes_nothing_else():
    given = tree(scaling__label_selector={"pool": "b"})
    knobs = {knob.path: knob.value for knob in effective(configured(given), given)}
    assert knobs["scaling.label_selector"] == {"pool": "b"}
    own = {"scaling": Given(Scaling(resources_per_worker=MappingProxyType({"CPU": 2.0})), "fit(scaling=...)")}
    knobs = {knob.path: knob.value for knob in effective(configured(own), own)}
    assert json.dumps(knobs["scaling.resources_per_worker"]) == '{"CPU": 2.0}', "of whatever kind it is"
    with pytest.raises(SettingError, match="scaling.label_selector='pool' must be"):
        configured(tree(scaling__label_selector="pool"))


def test_a_list_has_any_length_and_one_kind():
    given = tree(kuberay__tolerations=["a:NoSchedule", "b"])
    config = configured(given)
    assert config.kuberay.tolerations == ("a:NoSchedule", "b")
    assert {knob.path: knob.value for knob in effective(config, given)}["kuberay.tolerations"] == ["a:NoSchedule", "b"]
    for wrong in ("a:NoSchedule", [1], {"a": "b"}):
        with pytest.raises(SettingError, match=r"kuberay.tolerations=.* must be a list"):
            configured({"kuberay": {"tolerations": Given(wrong, "x")}})


def test_a_number_that_no_float_holds_is_refused():
    with pytest.raises(SettingError, match=r"^x: limits.lease_s=1000.* must be a number"):
        configured({"limits": {"lease_s": Given(10**400, "x")}})


def test_a_section_that_is_off_is_one_line():
    knobs = {knob.path: knob.value for knob in effective(RunConfig(), {})}
    assert knobs["checkpoint"] is None and "checkpoint.peers" not in knobs


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("gs://bucket/run", "gs://bucket/run"),
        ("s3://key:secret@bucket/run", "s3://***@bucket/run"),
        ("https://host/run?sig=secret#secret", "https://host/run?***"),
        ("/mnt/run", "/mnt/run"),
    ],
)
def test_secrets_in_a_url_are_not_shown(url, shown):
    assert redacted(url) == shown

    config = RunConfig(checkpoint=Checkpoint(persistent=url))
    assert shown in {knob.value for knob in effective(config, {})}


def test_of_what_is_no_url_nothing_is_shown():
    assert redacted("http://user:secret@[::1:8265") == "http://***"


def test_names_without_a_section():
    assert plain_names() == {"name", "seed", "run_dir", "address", "policy", "train_fn"}
    assert optional_sections() == {"checkpoint", "chaos", "kuberay"}


# --- documentation ----------------------------------------------------------------------------------------------------

KINDS = sections()


def test_all_settings_are_sections():
    assert {Scaling, Limits, Checkpoint, Keep, Interval, Chaos, RunConfig} <= set(KINDS.values())


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.__name__)
def test_every_knob_says_its_unit_its_default_and_why(kind):
    docs = documented(kind)
    assert [one.name for one in docs] == [field.name for field in dataclasses.fields(kind)]
    for one, field in zip(docs, dataclasses.fields(kind), strict=True):
        assert one.default == said(field), f"{kind.__name__}.{one.name}"


def said(field):
    """How a docstring says a default."""
    if field.default_factory is not dataclasses.MISSING:
        words = {"scaling": "one on one CPU", "limits": "as there", "keep": "the last two"}
        words |= {"health": "as there", "logs": "as there", "page": "as there"}
        return words.get(field.name, "as measured")
    words = {None: "none", (): "none", True: "yes", False: "no", "": "none"}
    if field.name in ("steps", "seconds"):
        return "none"
    is_number = isinstance(field.default, int | float) and not isinstance(field.default, bool)
    return f"{field.default:g}" if is_number else words.get(field.default, str(field.default))


def test_what_is_said_before_the_first_knob_belongs_to_none():
    @dataclasses.dataclass
    class Told:
        """Told.

        Attributes:
            All of them matter.

            knob: something
                that takes two lines. (s; default 1: as measured)
        """

        knob: float = 1

    (one,) = documented(Told)
    assert (one.name, one.default) == ("knob", "1") and "two lines" in str(one) and "All of them" not in str(one)


def test_a_knob_without_reason_is_found():
    @dataclasses.dataclass
    class Short:
        """Too short.

        Attributes:
            knob: something. (s; default 1)
        """

        knob: float = 1

    with pytest.raises(ValueError, match=r"Short.knob: .* must end in \(unit; default value: reason\)"):
        documented(Short)


def test_the_page_shows_what_the_docstrings_say():
    text = PAGE.read_text()
    assert text.partition("<!-- knobs:begin -->\n")[2].partition("<!-- knobs:end -->")[0] == table(), "make diagram"


@pytest.mark.parametrize("name", SEEDS)
def test_the_page_tells_where_each_knob_of_the_seeds_is(name):
    section, _ = SEEDS[name]
    assert f"| `{name}` | `{section}.{name}` |" in PAGE.read_text()
