"""Effect. What commands on checkpoints tell: facts for JSON, and lines for people."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from elastic.checkpoint.boxes import Want, plan, whole_shape
from elastic.checkpoint.catalog import Candidate
from elastic.checkpoint.disks import surplus
from elastic.checkpoint.memory import reclaim, scan
from elastic.checkpoint.reader import Effort, ShardReport, check, read
from elastic.commands.places import Held
from elastic.errors import RefusedError
from elastic.settings import Keep

Told = tuple[dict[str, Any], list[str]]


def listing(held: Held) -> Told:
    """The steps that places hold."""
    steps = [_described(one) for one in held.candidates]
    lacking = _lacking(held)
    facts = {
        "run": held.run,
        "steps": steps,
        "not_whole": lacking,
        "quarantined": [
            {"step": one.step, "lineage": one.lineage, "reason": why} for one, why in held.quarantined.items()
        ],
        "silent": list(held.silent),
    }
    lines = [
        f"step {one['step']:>8}  {one['shards']} shards  {one['bytes']:>12} bytes  {', '.join(one['tiers'])}"
        for one in steps
    ]
    lines += [f"step {one['step']:>8}  lacks shards {one['lacks']} of {one['shards']}" for one in lacking]
    lines += [f"step {one.step:>8}  in quarantine: {why}" for one, why in held.quarantined.items()]
    lines += [f"no answer: {trouble}" for trouble in held.silent]
    return facts, lines or [f"no checkpoint of run {held.run} is here"]


def verification(held: Held, step: int | None, is_deep: bool, timeout_s: float) -> Told:
    """Every copy of every whole step, looked at."""
    chosen = [held.at(step)] if step is not None else list(held.candidates)
    steps = [_verified(one, is_deep, Effort(timeout_s=timeout_s, knob="--timeout")) for one in chosen]
    is_sound = bool(steps) and not held.silent and all(one["is_sound"] for one in steps)
    facts = {"run": held.run, "deep": is_deep, "is_sound": is_sound, "steps": steps, "silent": list(held.silent)}
    lines = [f"step {one['step']:>8}  {'sound' if one['is_sound'] else 'NOT SOUND'}" for one in steps]
    lines += [f"  {copy['where']}: {bad}" for one in steps for copy in one["copies"] for bad in copy["bad"]]
    lines += [f"no answer: {trouble}" for trouble in held.silent]
    return facts, lines or [f"no step of run {held.run} is whole"]


def rehearsal(held: Held, timeout_s: float) -> Told:
    """The restore that a run would make now, without anybody who takes the state."""
    refused: list[dict[str, Any]] = []
    for one in held.candidates:
        begun_s = time.monotonic()
        try:
            reports = [_read_shard(one, shard, timeout_s) for shard in range(len(one.shards))]
        except RefusedError as error:
            refused.append({"step": one.commit.step, "reason": str(error)})
            continue
        seconds = time.monotonic() - begun_s
        told = [{**asdict(report), "places": [asdict(place) for place in report.places]} for report in reports]
        facts = {**_described(one), "run": held.run, "read": told, "seconds": seconds, "refused": refused}
        lines = [f"step {one.commit.step}: {sum(r.nbytes for r in reports)} bytes in {seconds:.2f} s"]
        lines += [_line(report) for report in reports]
        break
    else:
        facts, lines = {"run": held.run, "step": None, "refused": refused}, ["no step can be restored"]
    lines += [f"passed over: {row['reason']}" for row in refused] + [f"no answer: {one}" for one in held.silent]
    return {**facts, "silent": list(held.silent)}, lines


def collection(vault: Any, keep: Keep, is_dry: bool) -> Told:
    """What retention decides about durable steps, and what was left behind; carried out unless it is a dry run."""
    from elastic.checkpoint.vault_cleaning import collected, swept

    try:
        verdicts = collected(vault, keep, is_dry=is_dry)
    finally:  # what cannot be deleted holds up nothing else
        left = swept(vault, is_dry=is_dry)
    steps: list[dict[str, Any]] = [
        {"step": one.record.commit.step, "bytes": one.record.nbytes, "is_kept": one.is_kept, "reason": one.reason}
        for one in verdicts
    ]
    freed = sum(one["bytes"] for one in steps if not one["is_kept"])
    facts = {"run": vault.run, "dry_run": is_dry, "freed_bytes": freed, "steps": steps, "left_behind": asdict(left)}
    deleted = "would be deleted" if is_dry else "deleted"
    lines = [f"step {one['step']:>8}  {'kept' if one['is_kept'] else deleted}: {one['reason']}" for one in steps]
    lines += [f"{name}  {deleted}: it has no COMMIT, and nobody uploads it" for name in left.steps]
    counts = {"marks of collectors": left.marks, "leases": left.leases, "torn files": left.files}
    lines += [f"{count} {what} left behind  {deleted}" for what, count in counts.items() if count]
    return facts, lines or [f"no durable step of run {vault.run}"]


def disk_collection(disk: Any, keep_last: int, is_dry: bool) -> Told:
    """Of each shard on a node's disk all but the newest steps, removed unless it is a dry run."""
    held = list(disk.manifests())
    doomed = surplus([one.key for one in held], keep_last)
    for key in () if is_dry else doomed:
        disk.erase(key)
    torn = disk.sweep(is_dry=is_dry)
    steps = [
        {"step": one.commit.step, "shard": one.shard, "bytes": one.nbytes, "is_kept": one.key not in doomed}
        for one in held
    ]
    freed = sum(one["bytes"] for one in steps if not one["is_kept"])
    deleted = "would be deleted" if is_dry else "deleted"
    lines = [f"step {one['step']:>8}  shard {one['shard']} {'kept' if one['is_kept'] else deleted}" for one in steps]
    lines += [f"{torn} torn files left behind  {deleted}"] if torn else []
    facts = {"dry_run": is_dry, "freed_bytes": freed, "steps": steps, "torn_files": torn, "where": disk.where}
    return facts, lines or [f"nothing of this run is on the {disk.where}"]


def memory_collection(directory: Path, run: str, keep_last: int, is_dry: bool) -> Told:
    """What workers that are gone have left in a node's memory; all but the newest steps go unless it is a dry run."""
    held = scan(directory, run)
    doomed = set(reclaim(directory, run, keep_last, is_dry=is_dry))
    steps = [
        {
            "step": one.manifest.commit.step,
            "shard": one.manifest.shard,
            "bytes": one.manifest.nbytes,
            "is_kept": one.path not in doomed,
            "where": str(one.path),
        }
        for one in held
    ]
    unsealed = len(doomed - {one.path for one in held})
    freed = sum(one.manifest.nbytes for one in held if one.path in doomed)
    deleted = "would be deleted" if is_dry else "deleted"
    lines = [f"step {one['step']:>8}  shard {one['shard']} {'kept' if one['is_kept'] else deleted}" for one in steps]
    lines += [f"{unsealed} slots that were never sealed  {deleted}"] if unsealed else []
    facts = {"run": run, "dry_run": is_dry, "freed_bytes": freed, "steps": steps, "unsealed": unsealed}
    return facts, lines or [f"no checkpoint of run {run} is in {directory}"]


def copies_that_may_go(held: Held, keep_last: int) -> Told:
    """Which steps the driver of a run has nodes drop, by what they hold now: enough newer ones are kept as well."""
    copies = [min(len(holders) for holders in one.shards) for one in held.candidates]
    steps = []
    for number, (one, count) in enumerate(zip(held.candidates, copies, strict=True)):
        newer = sum(other >= count for other in copies[:number])
        facts = _described(one)
        steps.append({"step": facts["step"], "bytes": facts["bytes"], "copies": count, "is_kept": newer < keep_last})
    told = {True: "kept", False: "would be dropped"}
    lines = [f"step {one['step']:>8}  on {one['copies']} nodes  {told[one['is_kept']]}" for one in steps]
    lines += [f"no answer: {trouble}" for trouble in held.silent]
    facts = {"run": held.run, "dry_run": True, "steps": steps, "silent": list(held.silent)}
    return facts, lines or [f"no node holds a whole step of run {held.run}"]


def _described(one: Candidate) -> dict[str, Any]:
    commit, first = one.commit, one.manifests[0]
    return {
        "step": commit.step,
        "lineage": commit.lineage,
        "incarnation": commit.incarnation,
        "generation": commit.generation,
        "shards": len(one.shards),
        "replicas": first.replicas,
        "bytes": sum(manifest.nbytes for manifest in one.manifests),
        "taken_at_s": first.taken_at_s,
        "tiers": sorted({holder.source.tier.name.lower() for held in one.shards for holder in held}),
        "outvoted": [f"{holder.source.where}: shard {holder.manifest.shard}" for holder in one.outvoted],
    }


def _lacking(held: Held) -> list[dict[str, Any]]:
    """Steps of which some shards are here, and not all."""
    whole = {(one.commit.step, one.commit.lineage, len(one.shards)) for one in held.candidates}
    there: dict[tuple[int, str, int], set[int]] = {}
    for holder in held.holders:
        commit, key = holder.manifest.commit, holder.manifest
        there.setdefault((commit.step, commit.lineage, key.shards), set()).add(key.shard)
    return [
        {"step": step, "lineage": lineage, "shards": shards, "lacks": sorted(set(range(shards)) - have)}
        for (step, lineage, shards), have in sorted(there.items(), reverse=True)
        if (step, lineage, shards) not in whole and len(have) < shards
    ]


def _verified(one: Candidate, is_deep: bool, effort: Effort) -> dict[str, Any]:
    copies = [
        {
            "shard": shard,
            "tier": holder.source.tier.name.lower(),
            "where": holder.source.where,
            "chunks": len(holder.manifest.chunks),
            "bad": check(holder, is_deep, effort),
        }
        for shard, held in enumerate(one.shards)
        for holder in held
    ]
    copies += [
        {
            "shard": holder.manifest.shard,
            "tier": holder.source.tier.name.lower(),
            "where": holder.source.where,
            "chunks": len(holder.manifest.chunks),
            "bad": ["its sums are not those of the other copies"],
        }
        for holder in one.outvoted
    ]
    is_sound = not any(copy["bad"] for copy in copies)
    return {"step": one.commit.step, "lineage": one.commit.lineage, "is_sound": is_sound, "copies": copies}


def _read_shard(one: Candidate, shard: int, timeout_s: float) -> ShardReport:
    entries = one.manifests[shard].entries
    wants = [Want(path=e.path, dtype=e.dtype, whole=whole_shape(e), box=e.box) for e in entries]
    into = [np.empty(entry.nbytes, dtype=np.uint8) for entry in entries]
    reports = read(one, plan(wants, one.manifests, own=shard), into, Effort(timeout_s=timeout_s, knob="--timeout"))
    mine = [report for report in reports if report.shard == shard]
    return (
        mine[0] if mine else ShardReport(step=one.commit.step, shard=shard, places=(), nbytes=0, seconds=0, retries=0)
    )


def _line(report: ShardReport) -> str:
    places = ", ".join(f"{place.nbytes} bytes from {place.tier} {place.where}" for place in report.places)
    return f"  shard {report.shard}: {places or 'nothing to read'} in {report.seconds:.2f} s, {report.retries} retries"
