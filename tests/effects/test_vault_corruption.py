"""Objects of a durable step are damaged in every way: nothing wrong is ever taken for right."""

import random

import pytest

from elastic.checkpoint.records import name_of
from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault
from tests.effects.vault_parts import commit_id, made_durable, what_is_read

FLIPS = 10


@pytest.fixture
def vault(tmp_path):
    opened = Vault(open_store(str(tmp_path / "store")), "night-1")
    opened.register("test")
    made_durable(opened, 10)
    made_durable(opened, 20)
    return opened


def objects_of(vault: Vault, step: int) -> list[str]:
    name = name_of(commit_id(step))
    steps = [item.key for item in vault.store.list(vault.keys.step(name))]
    return [*steps, vault.keys.commit(name)]


def read_anew(vault: Vault) -> dict[int, str]:
    return what_is_read(Vault(vault.store, "night-1"))


def is_noticed(found: dict[int, str]) -> bool:
    """Step 10 is untouched; step 20 is not offered as whole."""
    return found[10] == "whole" and found.get(20) != "whole"


def test_c03_c04_flipped_bits_are_noticed(vault):
    draw = random.Random(7)
    for key in objects_of(vault, 20):
        data = vault.store.read(key)
        bits = draw.sample(range(8 * len(data)), FLIPS if "chunk" not in key else 4)
        for bit in bits:
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            vault.store.put(key, bytes(flipped))
            found = read_anew(vault)
            # A bit between the fields of a line of JSON may be of no account; then all that was written is read.
            is_blank = "chunk" not in key and found == {20: "whole", 10: "whole"} and "manifest" not in key
            assert is_noticed(found) or is_blank, (key, bit)
        vault.store.put(key, data)
    assert read_anew(vault) == {20: "whole", 10: "whole"}


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_c04_truncated_objects_are_noticed(vault, left):
    for key in objects_of(vault, 20):
        data = vault.store.read(key)
        vault.store.put(key, data[:left])
        found = read_anew(vault)
        is_newline = data[left:] == b"\n" and "commits" in key
        assert is_noticed(found) or is_newline, key
        vault.store.put(key, data)


def test_c04_zeroed_and_missing_objects_are_noticed(vault):
    for key in objects_of(vault, 20):
        data = vault.store.read(key)
        vault.store.put(key, bytes(len(data)))
        assert is_noticed(read_anew(vault)), key
        vault.store.delete(key)
        assert is_noticed(read_anew(vault)), key
        vault.store.put(key, data)


def test_c03_swapped_objects_are_noticed(vault):
    """Every object of step 20 in turn holds what another of its kind holds: of its shard, the other, or step 10."""
    old = objects_of(vault, 10)
    for key in (new := objects_of(vault, 20)):
        data = vault.store.read(key)
        kind = key.rpartition("/")[2].partition("-")[0]
        for other in [*old, *new]:
            if other != key and other.rpartition("/")[2].startswith(kind):
                vault.store.put(key, vault.store.read(other))
                assert is_noticed(read_anew(vault)), (key, other)
        vault.store.put(key, data)
    assert read_anew(vault) == {20: "whole", 10: "whole"}
