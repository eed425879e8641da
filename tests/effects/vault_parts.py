"""Small commits for tests of the persistent tier."""

from collections.abc import Callable

import google_crc32c

from elastic.checkpoint.manifest import Entry, Fork, Manifest, laid_out
from elastic.checkpoint.records import Committed
from elastic.checkpoint.vault import Vault
from elastic.control.values import CommitId

CHUNK_BYTES = 256


def commit_id(step: int, *, incarnation: int = 1, generation: int = 1, lineage: str = "") -> CommitId:
    return CommitId(
        incarnation=incarnation, generation=generation, attempt=0, step=step, lineage=lineage or f"{step:04x}ab"
    )


def payload_of(step: int, shard: int, nbytes: int = 1024) -> bytes:
    """Bytes that tell steps, shards and places apart."""
    return b"".join(f"{step:07d}/{shard:02d}/{at:05d}".encode() for at in range(nbytes // 16))[:nbytes]


def manifest_of(commit: CommitId, shard: int, shards: int, payload: bytes, **more) -> Manifest:
    entries, _ = laid_out(
        [Entry(path="/model/weight", dtype="uint8", shape=(len(payload),), begin=0, nbytes=len(payload))]
    )
    cuts = range(0, len(payload), CHUNK_BYTES)
    settings = {"run": "night-1", "layout": "f00d", "skeleton": '{"dict":[]}', "chunk_bytes": CHUNK_BYTES, **more}
    return Manifest(
        commit=commit,
        shard=shard,
        shards=shards,
        entries=entries,
        nbytes=len(payload),
        chunks=tuple(google_crc32c.value(payload[at : at + CHUNK_BYTES]) for at in cuts),
        **settings,
    )


def reader_of(payload: bytes) -> Callable[[int, int], bytes]:
    return lambda begin, end: payload[begin:end]


def uploaded(vault: Vault, commit: CommitId, shards: int = 2, **more) -> list[str]:
    digests = []
    for shard in range(shards):
        payload = payload_of(commit.step, shard)
        digests.append(vault.upload(manifest_of(commit, shard, shards, payload, **more), reader_of(payload)))
    return digests


def made_durable(vault: Vault, step: int, metrics: dict[str, float] | None = None, **which) -> Committed:
    commit = commit_id(step, incarnation=vault.incarnation, **which)
    return vault.commit(commit, uploaded(vault, commit), metrics)


def succeeded(vault: Vault, successor: Vault, step: int) -> None:
    """A second life of the driver begins, from a step."""
    successor.register("test")
    successor.fork(Fork(incarnation=successor.incarnation, generation=1, step=step))


def what_is_read(vault: Vault) -> dict[int, str]:
    """Every durable step as a reader gets it: "whole" or, by chunk, the first thing that is wrong.

    Everything is verified, and compared with what was written under that step.
    """
    from elastic.checkpoint.vault_source import VaultSource
    from elastic.errors import CorruptError, ElasticError

    source, found = VaultSource(vault), {}
    shards: dict[int, set[int]] = {}
    for manifest in source.manifests():
        step = manifest.commit.step
        shards.setdefault(step, set()).add(manifest.shard)
        try:
            for number in range(len(manifest.chunks)):
                begin, end = manifest.chunk(number)
                data = source.read(manifest.key, begin, end)
                manifest.verify(number, data)
                assert data == payload_of(step, manifest.shard)[begin:end], "a wrong byte went unnoticed"
        except (CorruptError, ElasticError) as error:
            found[step] = type(error).__name__
        found.setdefault(step, "whole")
    for record in vault.commits():
        if shards.get(record.commit.step, set()) != set(range(record.shards)):
            found[record.commit.step] = "a shard has no manifest"
    source.close()
    return found
