"""Effect. How many copies there are and where, who sees them, and what a notice hurries: with real nodes and actors."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elastic.checkpoint import rungs
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.rungs import Rung
from elastic.checkpoint.vault import open_vault
from elastic.cli import cli
from elastic.control import events as ev
from elastic.settings import Interval
from tests.cluster.test_checkpoint_peers import BEAT_S, Crew, crew, gathered, wait_until
from tests.cluster.test_ray_tiers import tiers_of
from tests.effects.shards import key

pytestmark = pytest.mark.timeout(180)

__all__ = ["crew"]


def holders(keeper: Any, of: ShardKey) -> set[str]:
    """Nodes that have a shard."""
    return {one.node for one in keeper.inventory("") if of.shard in {found.shard for found in one.manifests()}}


def test_with_three_nodes_there_are_two_copies_of_each_shard_on_others(crew: Crew) -> None:
    keeper = crew.keeper(peers=None, on="x")
    crew.seal(key(1), "x")
    wait_until(lambda: crew.is_replicated(1, copies=3), f"no second copy was made: {crew.told}")
    (chosen,) = [told for told in crew.told if isinstance(told, rungs.PeersChosen)]
    assert chosen.peers == 2 and "of 3 nodes" in chosen.reason
    assert len(holders(keeper, key(1))) == 3


@pytest.mark.slow
def test_without_room_for_two_copies_there_is_one_and_the_reason_is_told(crew: Crew) -> None:
    keeper = crew.keeper(peers=None, on="x", peer_bytes=20 << 20)
    crew.seal(key(1), "x", 8 << 20)
    wait_until(lambda: any(isinstance(told, rungs.PeersChosen) for told in crew.told), "nothing was chosen")
    wait_until(lambda: crew.is_replicated(1), f"no copy was made: {crew.told}")
    (chosen,) = [told for told in crew.told if isinstance(told, rungs.PeersChosen)]
    assert chosen.peers == 1 and "they take 24 of the 20 MiB" in chosen.reason
    assert len(holders(keeper, key(1))) == 2


@pytest.mark.parametrize("label", ["ray.io/availability-zone", pytest.param("rack", marks=pytest.mark.slow)])
def test_a_copy_goes_to_another_failure_domain(hosts: Any, tmp_path: Path, label: str) -> None:
    """Of p and q, one shares the zone of home, the other its rack; by their names alone both would get the same."""
    zones = {"home": ("1", "1"), "p": ("1", "2"), "q": ("2", "1")}
    with gathered(hosts, tmp_path, names="") as crew:
        for name, (zone, rack) in zones.items():
            crew.add(name, **{"ray.io/availability-zone": zone, "rack": rack})
        keeper = crew.keeper(on="", domain_label=label)
        keeper.homes({shard: {crew.id(name)} for shard, name in enumerate(zones)})
        for shard, name in enumerate(zones):
            crew.seal(key(1, shard, 3), name)
        wait_until(lambda: crew.is_replicated(1), f"not replicated: {crew.told}")
        other = "p" if label == "rack" else "q"
        assert holders(keeper, key(1, 0, 3)) == {crew.id("home"), crew.id(other)}


def test_commands_see_what_all_nodes_of_a_live_run_hold(crew: Crew, tmp_path: Path) -> None:
    crew.keeper()
    crew.seal(key(1, 0, 2), "x")
    crew.seal(key(1, 1, 2), "y")
    wait_until(lambda: crew.is_replicated(1), f"not replicated: {crew.told}")
    run = tmp_path.name

    def told(*arguments: str) -> Any:
        said = CliRunner().invoke(cli, [*arguments, run, "--peers", "--json"])
        assert said.exit_code == 0, said.output
        return json.loads(said.stdout)  # what Ray prints of nodes that earlier tests removed is on stderr

    (step,) = told("ls")["steps"]
    assert (step["step"], step["shards"], step["tiers"]) == (1, 2, ["peer"])
    (step,) = told("verify", "--deep")["steps"]
    assert len(step["copies"]) == 4 and all(not copy["bad"] for copy in step["copies"])
    (step,) = told("gc", "--dry-run")["steps"]
    assert (step["step"], step["copies"], step["is_kept"]) == (1, 2, True)


def test_a_notice_of_a_node_has_the_newest_step_uploaded_before_it_is_due(crew: Crew, tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    vault = open_vault(url, tmp_path.name)
    vault.register("test")
    keeper = crew.keeper(persistent=url, persistent_interval=Interval(steps=1000))
    for step, rung in ((1, Rung.DURABLE), (2, Rung.REPLICATED)):  # the first one is uploaded at once
        crew.seal(key(step, 0, 2), "x")
        crew.seal(key(step, 1, 2), "y")
        wait_until(lambda at=(step, rung): crew.rung(at[0]) is not None and crew.rung(at[0]).rung is at[1], "stuck")
    time.sleep(4 * BEAT_S)
    tiers, state, _ = tiers_of(tmp_path, keeper)
    tiers.heed(ev.Tick(), state)
    assert [one.commit.step for one in vault.commits()] == [1], "it is not due"
    tiers.heed(ev.NodeNotice(node=crew.id("x"), reason="spot"), state)
    wait_until(lambda: crew.rung(2).rung is Rung.DURABLE, f"it is not uploaded: {crew.told[-5:]}")
    assert vault.commits()[0].commit.step == 2
