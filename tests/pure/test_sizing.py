"""How much memory snapshots need, and what the command prints of it."""

import json

import pytest
from click.testing import CliRunner

from elastic.cli import cli
from elastic.errors import SettingError
from elastic.policies.sizing import sizing, slots_for


def test_twelve_bytes_a_parameter_twice_the_shard_and_fifteen_percent():
    found = sizing(70e9, 32, copies=2)
    assert (found.state_bytes, found.shard_bytes) == (840_000_000_000, 26_250_000_000)
    assert (found.arena_bytes, found.ramdisk_bytes) == (52_500_000_000, 60_375_000_000)


def test_a_worker_has_a_slot_more_where_other_nodes_pull_from_it():
    assert (slots_for(0), slots_for(1), slots_for(2)) == (3, 4, 4)


def test_what_does_not_divide_evenly_is_rounded_up():
    assert sizing(1, 5, bytes_per_param=1, copies=1).shard_bytes == 1


@pytest.mark.parametrize(
    "wrong", [{"params": 0}, {"hosts": 0}, {"bytes_per_param": -1}, {"params": float("nan")}, {"params": 1e308}]
)
def test_nonsense_is_refused_by_name(wrong):
    with pytest.raises(SettingError, match=next(iter(wrong)).replace("_", "-")):
        sizing(**{"params": 1e9, "hosts": 2, "copies": 4, **wrong})


def test_the_command_prints_gibibytes_or_json():
    arguments = ["size", "--params", "70e9", "--hosts", "32"]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 0 and "112.46 GiB" in shown.output and "97.79 GiB" in shown.output
    told = CliRunner().invoke(cli, [*arguments, "--copies", "3", "--json"])
    assert json.loads(told.output)["arena_bytes"] == 3 * 26_250_000_000
