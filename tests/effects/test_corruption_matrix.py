"""Effect. Every place of every tier is damaged, and read, in every way: nothing wrong is taken for right."""

import logging
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.corruption import TRIALS, Matrix, Moment, Outcome, Result, table, trials
from benchmarks.damage import NEW, RUN, Damage, PeerNode, Region, World, damaged, shard_of
from elastic.checkpoint.memory import MemorySource
from elastic.checkpoint.node import Node
from elastic.checkpoint.source import Tier
from elastic.checkpoint.store import Store, StoreError
from elastic.checkpoint.stores import open_store
from tests.effects.gcs_server import GcsServer
from tests.effects.store_parts import gcs_store

FAST = 264
IN_STORE = [region for region in Region if region.tier is Tier.PERSISTENT]
# What every reader needs, so that no damage to it can be of no account.
VITAL = (
    Region.HEADER,
    Region.SLOT_PAYLOAD,
    Region.SLOT_REPLY,
    Region.DISK_PAYLOAD,
    Region.DISK_REPLY,
    Region.COPY_PAYLOAD,
    Region.COPY_REPLY,
    Region.CHUNK_PAYLOAD,
    Region.CHUNK_REPLY,
)
# Whoever has read them goes on with what was right.
MANIFESTS = (Region.SLOT_MANIFEST, Region.DISK_MANIFEST, Region.COPY_MANIFEST, Region.MANIFEST)

PULLED = (Region.COPY_PAYLOAD, Region.COPY_PADDING, Region.COPY_MANIFEST)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="corruption-", dir="/dev/shm") as name:
        (Path(name) / "slots").mkdir()
        yield Path(name)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="elastic")


def played(folder: Path, store: Store, count: int, regions: list[Region]) -> list[Result]:
    matrix = Matrix(World(folder / "slots", store), folder)
    return [matrix.play(trial) for trial in trials(count, regions=regions)]


def assert_nothing_is_silent(results: list[Result]) -> None:
    silent = [one for one in results if one.outcome is Outcome.SILENT]
    assert not silent, silent[:3]
    for one in results:
        is_harmless = one.outcome is Outcome.HARMLESS
        assert not (is_harmless and one.trial.region in VITAL), one
        is_seen = one.trial.moment is Moment.BEFORE and one.trial.region in MANIFESTS
        assert not (is_harmless and is_seen), one
    counts = Counter(one.outcome for one in results)
    assert counts[Outcome.REFUSED] > len(results) / 8 and counts[Outcome.HEALED] > len(results) / 16, table(results)


def test_c04_c05_no_damage_is_taken_for_right(folder: Path) -> None:
    store = open_store(str(folder / "store"))
    assert_nothing_is_silent(played(folder, store, FAST, list(Region)))


@pytest.mark.parametrize("damage", Damage, ids=lambda one: one.value)
@pytest.mark.parametrize("region", PULLED, ids=lambda one: one.value[1])
def test_c04_nor_is_a_damaged_copy_or_manifest_pulled(region: Region, damage: Damage, folder: Path) -> None:
    """A node that is served wrong bytes, or the wrong manifest, takes none of it, and asks the next one."""
    world = World(folder / "slots", open_store(str(folder / "store")))
    spoilt = world.sources()[Tier.PEER]
    for spot in world.spots[region]:
        before = world.get(spot.blob)
        world.set(spot.blob, damaged(world, spot, damage, random.Random(0)))
        taker = Node("c", MemorySource(folder / "none", RUN), 1 << 20, lambda array: (None, np.array(array)))
        manifest = world.manifests[RUN, NEW, spot.shard]
        with pytest.raises(StoreError, match=f"could not pull shard {spot.shard} .* step {NEW}: .*{spoilt.where}"):
            taker.pull(manifest.key, [spoilt])
        assert not taker.holding().copies and not taker.holding().nbytes
        sound = Node("a", MemorySource(folder / "slots", RUN), 0, lambda array: (None, array))
        assert taker.pull(manifest.key, [spoilt, PeerNode(sound)]).retries == 1
        world.set(spot.blob, before)
        truth = shard_of(RUN, NEW, spot.shard)[1]
        assert np.array_equal(taker.read(manifest.key, 0, manifest.nbytes), truth)


def test_c04_nor_is_damage_in_cloud_storage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GcsServer() as server:
        store = gcs_store(server, monkeypatch)
        assert_nothing_is_silent(played(folder, store, 24, IN_STORE))
        store.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_c04_a_thousand_damages(folder: Path) -> None:
    store = open_store(str(folder / "store"))
    results = played(folder, store, TRIALS, list(Region))
    print(table(results))
    assert_nothing_is_silent(results)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_c04_two_hundred_damages_in_cloud_storage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GcsServer() as server:
        store = gcs_store(server, monkeypatch)
        assert_nothing_is_silent(played(folder, store, 200, IN_STORE))
        store.close()
