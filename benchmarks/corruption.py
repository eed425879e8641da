"""Damages checkpoints in every place and way, reads them, and counts: silent must be 0.

    python -m benchmarks.corruption --out corruption.json

A trial damages one place of the newest step in one tier, or spoils that tier's answers on their way. Then the step is
read: restored as it was cut, restored for three workers, verified, or exported.

SILENT: somebody took wrong bytes for right. HEALED: the right bytes came from another source. REFUSED: the step was not
taken, with the name of the shard, and an older one given, whole, where there was one; or `verify` told of it. HARMLESS:
nobody needed what was damaged.
"""

import argparse
import json
import logging
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.damage import NEW, OLD, RUN, SHARDS, Damage, Region, Spot, Wire, World, cut, damaged, whole_state
from benchmarks.provenance import provenance
from elastic.checkpoint.boxes import Want, extent, plan
from elastic.checkpoint.catalog import Candidate, Holder, candidates
from elastic.checkpoint.manifest import Manifest, ShardKey
from elastic.checkpoint.reader import Effort, check, read, take_inventory
from elastic.checkpoint.source import Tier
from elastic.checkpoint.stores import open_store
from elastic.errors import RefusedError
from elastic.interchange.exporting import Format, export
from elastic.interchange.safetensors import read_file

TRIALS = 1000
_EFFORT = Effort(threads=2, timeout_s=60.0)


class Read(Enum):
    """How checkpoints are read."""

    RESTORE = "restore"
    RANGED = "restore, cut anew"
    VERIFY = "verify --deep"
    EXPORT = "export"


class Outcome(Enum):
    """See the module."""

    SILENT = "silent"
    REFUSED = "refused"
    HEALED = "healed"
    HARMLESS = "harmless"


class Moment(Enum):
    """When the damage is done: before anybody looks, between two looks, or between the look and the read."""

    BEFORE = "before"
    BETWEEN = "between two looks"
    LATE = "after the look"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One damage and one read. `is_alone`: the damaged tier is the only one; else it is asked first."""

    number: int
    region: Region
    damage: Damage
    read: Read
    is_alone: bool
    moment: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a trial; `told`: what readers said of it."""

    trial: Trial
    outcome: Outcome
    told: str


def trials(count: int, seed: int = 0, regions: Iterable[Region] = Region) -> list[Trial]:
    """Every region, damage, kind of read and neighbourhood in turn, in an order that follows from the seed."""
    cells = list(product(regions, Damage, Read, (True, False)))
    random.Random(seed).shuffle(cells)
    found = []
    for number in range(count):
        region, damage, kind, is_alone = cells[number % len(cells)]
        moment = random.Random(f"{seed}-{number}").choice(list(Moment))
        found.append(Trial(number=number, region=region, damage=damage, read=kind, is_alone=is_alone, moment=moment))
    return found


class Matrix:
    """Plays trials on one world, which is as before after each.

    Args:
        folder: for exports.
    """

    def __init__(self, world: World, folder: Path, seed: int = 0) -> None:
        self._world, self._folder, self._seed = world, folder, seed
        opened = world.sources()
        self._clean = {tier: _places(take_inventory([source]).holders) for tier, source in opened.items()}

    def play(self, trial: Trial) -> Result:
        """
        Raises:
            AssertionError: a step was refused without the name of the damaged shard.
        """
        draw = random.Random(f"{self._seed}-{trial.number}")
        spot = draw.choice(self._world.spots[trial.region])
        before = self._world.get(spot.blob)
        after = damaged(self._world, spot, trial.damage, draw)
        assert after != before, f"{trial} damaged nothing"
        is_reply = trial.region.value[1] == "reply"
        opened = self._world.sources()
        sources = [
            Wire(source, Tier.PEER, _untouched)
            if tier is not trial.region.tier
            else Wire(source, Tier.MEMORY, _spoiling(spot, after) if is_reply else _untouched)
            for tier, source in opened.items()
            if tier is trial.region.tier or not trial.is_alone
        ]
        if trial.moment is not Moment.BEFORE:
            found = take_inventory(sources).holders
        try:
            if not is_reply:
                self._world.set(spot.blob, after)
            if trial.moment is not Moment.LATE:
                found = take_inventory(sources).holders
            return self._read(trial, spot, found)
        finally:
            if not is_reply:
                self._world.set(spot.blob, before)
            opened[Tier.PERSISTENT].close()

    def _read(self, trial: Trial, spot: Spot, found: Sequence[Holder]) -> Result:
        lost = self._clean[trial.region.tier] - _places(found)
        told = [f"not offered: step {step}, shard {shard}, of {where}" for step, shard, where in sorted(lost)]
        for step, shard, _ in lost:
            assert step == NEW and spot.shard in (None, shard), (trial, lost)
        forks = self._world.vault().forks()
        for one in candidates(found, RUN, forks):
            if trial.read is Read.VERIFY:
                return _verified(trial, spot, one, told)
            try:
                is_right, retries = self._is_right(trial.read, one)
            except RefusedError as error:
                assert one.commit.step == NEW and error.shard == spot.shard, (trial, error)
                told.append(str(error))
                continue
            outcome = _outcome(is_right, one.commit.step == NEW, bool(told or retries))
            return Result(trial=trial, outcome=outcome, told="; ".join(told))
        return Result(trial=trial, outcome=Outcome.REFUSED, told="; ".join([*told, "no step is whole"]))

    def _is_right(self, kind: Read, one: Candidate) -> tuple[bool, int]:
        """Whether what was read is the state of that step, and how many requests gave nothing usable."""
        truth = whole_state(RUN, one.commit.step)
        if kind is Read.EXPORT:
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                done = export(one, Path(folder) / "out", Format.SAFETENSORS, _EFFORT)
                given = read_file(Path(folder) / "out" / "model.safetensors")
            is_same = given.keys() == truth.keys() and all(bool((given[name] == truth[name]).all()) for name in truth)
            return is_same, sum(report.retries for report in done.read)
        is_right, retries = True, 0
        readers = SHARDS if kind is Read.RESTORE else SHARDS + 1
        for reader in range(readers):
            wants = list(_wants(readers, reader))
            into = [np.full(4 * int(np.prod(extent(want.box))), 0xEE, dtype=np.uint8) for want in wants]
            reports = read(one, plan(wants, one.manifests, own=reader if kind is Read.RESTORE else None), into, _EFFORT)
            retries += sum(report.retries for report in reports)
            for want, data in zip(wants, into, strict=True):
                rows = slice(want.box[0][0], want.box[1][0])
                is_right &= truth[want.path.rpartition("/")[2]][rows].numpy().tobytes() == data.tobytes()
        return is_right, retries


def table(results: Sequence[Result]) -> str:
    """Counts by tier and part."""
    rows = [f"{'tier':12}{'part':12}{'tried':>7}" + "".join(f"{one.value:>10}" for one in Outcome)]
    counts = {region: Counter(one.outcome for one in results if one.trial.region is region) for region in Region}
    for region, count in counts.items():
        cells = "".join(f"{count[one]:10}" for one in Outcome)
        rows.append(f"{region.tier.name.lower():12}{region.value[1]:12}{count.total():7}{cells}")
    whole = Counter(one.outcome for one in results)
    rows.append(f"{'all':24}{whole.total():7}" + "".join(f"{whole[one]:10}" for one in Outcome))
    return "\n".join(rows)


def _outcome(is_right: bool, is_newest: bool, is_troubled: bool) -> Outcome:
    if not is_right:
        return Outcome.SILENT
    if not is_newest:
        return Outcome.REFUSED
    return Outcome.HEALED if is_troubled else Outcome.HARMLESS


def _verified(trial: Trial, spot: Spot, one: Candidate, told: list[str]) -> Result:
    """Each copy of the newest offered step that gives wrong bytes must be told of."""
    truth = {name: tensor.numpy() for name, tensor in whole_state(RUN, one.commit.step).items()}
    is_silent = False
    for holder in (holder for holders in one.shards for holder in holders):
        said = check(holder, True, _EFFORT)
        told += said
        is_silent |= not said and not _gives(holder, truth)
        assert not said or holder.manifest.shard == spot.shard, (trial, said)
    is_noticed = bool(told) or one.commit.step == OLD
    outcome = Outcome.SILENT if is_silent else Outcome.REFUSED if is_noticed else Outcome.HARMLESS
    return Result(trial=trial, outcome=outcome, told="; ".join(told))


def _gives(holder: Holder, truth: dict[str, Any]) -> bool:
    """Whether a copy holds the right bytes, asked for without any check."""
    manifest: Manifest = holder.manifest
    for entry in manifest.entries:
        data = np.frombuffer(holder.source.read(manifest.key, entry.begin, entry.begin + entry.nbytes), dtype=np.uint8)
        rows = slice(entry.box[0][0], entry.box[1][0])
        if truth[entry.path.rpartition("/")[2]][rows].tobytes() != data.tobytes():
            return False
    return True


def _wants(readers: int, reader: int) -> Iterator[Want]:
    for name, tensor in whole_state(RUN, NEW).items():
        shape = tuple(tensor.shape)
        first, last = cut(shape[0], readers, reader)
        box = (first, *(0 for _ in shape[1:])), (last, *shape[1:])
        yield Want(path=f"/model/{name}", dtype="float32", whole=shape, box=box)


def _places(holders: Iterable[Holder]) -> set[tuple[int, int, str]]:
    return {(one.manifest.commit.step, one.manifest.shard, one.source.where) for one in holders}


def _untouched(key: ShardKey, begin: int, data: Any) -> Any:
    return data


def _spoiling(spot: Spot, after: bytes) -> Callable[[ShardKey, int, Any], Any]:
    """Answers about one shard are cut out of what the damaged payload would be."""

    def spoil(key: ShardKey, begin: int, data: Any) -> Any:
        is_spoilt = (key.commit.step, key.shard) == (NEW, spot.shard)
        return np.frombuffer(after[begin : begin + len(data)], dtype=np.uint8) if is_spoilt else data

    return spoil


def played(count: int, seed: int = 0) -> list[Result]:
    """So many trials, on a world of their own in shared memory and in a directory."""
    logging.getLogger("elastic").setLevel(logging.ERROR)  # each damaged slot is told of
    with tempfile.TemporaryDirectory(prefix="bench-corruption-", dir="/dev/shm") as folder:
        slots = Path(folder) / "slots"
        slots.mkdir()
        matrix = Matrix(World(slots, open_store(f"{folder}/store")), Path(folder), seed)
        return [matrix.play(trial) for trial in trials(count, seed)]


def counted(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """tried, and how many of each outcome."""
    counts = Counter(outcomes)
    return {"tried": counts.total(), **{one.value: counts[one] for one in Outcome}}


def counts(count: int, seed: int = 0) -> dict[str, int]:
    """What came of so many trials."""
    return counted(one.outcome for one in played(count, seed))


def main() -> None:
    """Play all trials, print the table, write the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    origin = provenance()
    results = played(args.trials, args.seed)
    result = {
        "benchmark": "corruption",
        "corruption": counted(one.outcome for one in results),
        "silent": [str(one) for one in results if one.outcome is Outcome.SILENT],
        "seed": args.seed,
        "provenance": origin,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
