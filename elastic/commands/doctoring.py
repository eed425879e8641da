"""Effect. `elastic doctor`: looks for what breaks runs, and prints the fix for each."""

import os
import sys
import time
import uuid
from dataclasses import asdict, replace
from typing import Any

import click

from elastic.commands.style import UNSOUND, address_option, json_option, tell
from elastic.control.diagnosis import Bucket, Facts, Finding, Verdict, Wanted, breaks, counted, diagnose
from elastic.errors import ElasticError

_MARKS = {Verdict.FINE: "ok   ", Verdict.UNKNOWN: "?    ", Verdict.COSTS: "warn ", Verdict.BREAKS: "FAIL "}
_RUN = "elastic-doctor"  # objects of this name are ours


@click.command()
@click.option("--params", type=float, help="Parameters of the model, e.g. 70e9: is there room for its snapshots?")
@click.option("--hosts", type=click.IntRange(min=1), default=1, show_default=True, help="That share one copy of it.")
@click.option("--bytes-per-param", type=float, default=12, show_default=True, help="Of the state, optimizer included.")
@click.option("--gpu", is_flag=True, help="Workers will be given a GPU each (Scaling.use_gpu).")
@click.option("--memory", metavar="PATH", help="The node's ramdisk (Checkpoint.memory); default: as configured.")
@click.option("--persistent", metavar="URL", help="The persistent tier, tried with one small object, by each node too.")
@click.option(
    "--cluster/--no-cluster", "with_cluster", default=None, help="Look at a Ray cluster; default: if one runs."
)
@address_option
@json_option
def doctor(as_json: bool, **options: Any) -> None:
    """Look for what breaks runs in practice, and print the fix for each. Exit code 3: something would.

    Ray's version and authentication, memory and object stores against the state, ramdisk, limits, clocks, GPUs and
    NCCL, the persistent tier, the network between nodes.
    """
    facts, wanted = _look(**options)
    found = diagnose(facts, wanted)
    lines = [line for one in found for line in _lines(one)]
    counts = counted(found)
    lines.append(", ".join(f"{count} {name}" for name, count in counts.items() if count))
    rows = [{**asdict(one), "verdict": one.verdict.value} for one in found]
    tell({"breaks": breaks(found), "counts": counts, "findings": rows}, as_json, *lines)
    if breaks(found):
        sys.exit(UNSOUND)


def _look(
    params: float | None,
    hosts: int,
    bytes_per_param: float,
    gpu: bool,
    memory: str | None,
    persistent: str | None,
    with_cluster: bool | None,
    address: str | None,
) -> tuple[Facts, Wanted]:
    from elastic.config import load
    from elastic.hosts.survey import survey

    config, _ = load()
    checkpoint = config.checkpoint
    persistent = persistent or (checkpoint.persistent if checkpoint is not None else None)
    arena_bytes, shard_bytes, ramdisk = _sizes(params, hosts, bytes_per_param, checkpoint)
    scaling = replace(config.scaling, use_gpu=gpu or config.scaling.use_gpu)
    wanted = Wanted(
        arena_bytes=arena_bytes,
        shard_bytes=shard_bytes,
        needs_gpu=scaling.use_gpu,
        clock_offset_s=config.health.clock_offset_s,
    )
    ramdisk = memory or ramdisk
    facts = Facts(
        here=survey("this machine", ramdisk),
        cluster=_cluster(address or config.address, ramdisk, scaling, persistent, with_cluster),
        bucket=None if persistent is None else try_store(persistent),
    )
    return facts, wanted


def _sizes(params: float | None, hosts: int, bytes_per_param: float, given: Any) -> tuple[int, int, str]:
    """Bytes of a host's arena and of one shard, and the ramdisk that is to hold them."""
    from elastic.policies.sizing import sizing, slots_for
    from elastic.settings import Checkpoint

    checkpoint = given or Checkpoint()
    if params is None:
        return 0, 0, checkpoint.memory
    found = sizing(params, hosts, copies=slots_for(checkpoint.peers), bytes_per_param=bytes_per_param)
    return found.ramdisk_bytes, found.shard_bytes, checkpoint.memory


def _cluster(address: str | None, ramdisk: str, scaling: Any, persistent: str | None, is_wanted: bool | None) -> Any:
    """Its facts; None where nobody asked for one, and none runs."""
    if is_wanted is False:
        return None
    from elastic.actors.surveying import survey_cluster

    found = survey_cluster(address, ramdisk, scaling, persistent)
    is_asked = is_wanted or address is not None or "RAY_ADDRESS" in os.environ
    return None if found.trouble and not found.is_there and not is_asked else found


def try_store(url: str) -> Bucket:
    """Write one small object, see that nobody else can write it, read it, delete it."""
    from elastic.checkpoint.store import TakenError
    from elastic.checkpoint.stores import open_store
    from elastic.knobs import redacted

    shown, key = redacted(url), f"{_RUN}/{uuid.uuid4().hex}"
    try:
        store = open_store(url, deadline_s=30.0)
    except ElasticError as error:
        return Bucket(url=shown, trouble=str(error))
    try:
        since_s = time.monotonic()
        store.create(key, b"first")
        seconds, is_refusing = time.monotonic() - since_s, False
        try:
            store.create(key, b"second")
        except TakenError:
            is_refusing = True
        got = store.read(key)
        store.delete(key)
        trouble = "" if got == b"first" or not is_refusing else "what was read is not what was written"
        return Bucket(url=shown, trouble=trouble, is_atomic=store.is_atomic, is_refusing=is_refusing, seconds=seconds)
    except ElasticError as error:
        return Bucket(url=shown, trouble=str(error))
    finally:
        store.close()


def _lines(one: Finding) -> list[str]:
    told = [f"{_MARKS[one.verdict]} {one.subject:<16} {one.where}: {one.what}"]
    return told + ([f"      -> {one.fix}"] if one.fix else [])
