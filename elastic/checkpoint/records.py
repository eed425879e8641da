"""Pure. The small objects of the persistent tier, their keys, and what their names alone say.

    <run>/incarnations/<incarnation>                    created once: this life of the driver has begun
    <run>/forks/<incarnation>-<generation>-<step>[-skip]  created once: steps from <step> on that are older are void
    <run>/steps/<name>/shard-<i>-of-<n>/chunk-<k>-<crc32c>, manifest-<sha256>
    <run>/commits/<name>                                created last: the step is DURABLE; names each shard's manifest
    <run>/leases/<name>/<holder>                        until when somebody needs the step's objects
    <run>/clearing/<name>-<holder>-<number>             somebody is deleting the step's objects
    <run>/quarantine/<name>                             not to be restored
    <run>/failures/<name>/<incarnation>                 created once: training failed soon after this life's start there
    <run>/journal/<incarnation>-<number>                created once: lines of the driver's journal, in order
    <run>/journal/<incarnation>-<first>-<last>          created once: the same as those of these numbers, which go then
    <run>/logs/<incarnation>-<worker>-<number>          created once: lines of a log file, in order
    <run>/LATEST                                        a hint for people

A <name> is <step>-<lineage>-<incarnation>-<generation>. Chunks and manifests carry their sums in their keys, so writers
of different bytes never meet on one key, and an object in the wrong place does not match its name.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from elastic.checkpoint import seal
from elastic.checkpoint.manifest import Manifest, checked_name
from elastic.control.values import AS_BEFORE, CommitId, Fork
from elastic.errors import CorruptError

VERSION = 1
VERIFIED = "elastic.verified"  # beside a step's metrics: the last step of which a vote had shown that all held the same
_NAME = re.compile(r"(\d{10})-([A-Za-z0-9._]*)-(\d+)-(\d+)")
_FORK = re.compile(r"(\d{10})-(\d{10})-(\d{10})(?:-(\d+)-(\d+))?")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def name_of(commit: CommitId) -> str:
    """The name of a commit's objects; `parse_name` reads it."""
    return checked_name(
        f"{commit.step:010d}-{commit.lineage}-{commit.incarnation}-{commit.generation}", "the name of a commit"
    )


def parse_name(name: str) -> CommitId | None:
    """The commit of a name, its attempt left at 0; None for a name that `name_of` does not give."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    step, lineage, incarnation, generation = match.groups()
    return CommitId(
        incarnation=int(incarnation), generation=int(generation), attempt=0, step=int(step), lineage=lineage
    )


def digest_of(data: bytes) -> str:
    """What a COMMIT calls an encoded manifest: its SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sealed(kind: str, body: Mapping[str, Any]) -> bytes:
    """A record of one kind, as a line of JSON with its sum."""
    return seal.sealed({"kind": kind, **body}, VERSION)


def opened(kind: str, data: bytes) -> dict[str, Any]:
    """Read `sealed`'s line.

    Raises:
        CorruptError: it is not what was written, of another kind, or of a version that this code cannot read.
    """
    body = seal.opened(data, VERSION, f"a record of kind {kind}")
    found = body.pop("kind", None)
    if found != kind:
        raise CorruptError(f"a record of kind {kind} says that it is of kind {found!r}")
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A step that is DURABLE.

    Attributes:
        run, commit: which one. manifests: digest of each shard's manifest, by shard.
        nbytes: of all payloads. metrics: of the step, by name, for `Keep.best`; and `VERIFIED`, if there was a vote.
        committed_at_s: wall clock.
    """

    run: str
    commit: CommitId
    manifests: tuple[str, ...]
    nbytes: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    committed_at_s: float = 0.0

    @property
    def shards(self) -> int:
        return len(self.manifests)

    @property
    def name(self) -> str:
        return name_of(self.commit)

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts commits from old to new."""
        return self.commit.step, self.commit.incarnation, self.commit.generation

    def encode(self) -> bytes:
        return sealed("commit", asdict(self))

    @staticmethod
    def decode(data: bytes) -> "Committed":
        """Read `encode`'s line.

        Raises:
            CorruptError: it is not what was written.
        """
        body = opened("commit", data)
        try:
            record = Committed(
                **{**body, "commit": CommitId(**body["commit"]), "manifests": tuple(map(str, body["manifests"]))}
            )
            checked_name(record.run, "the run of a commit")
            is_sound = bool(record.manifests) and all(_DIGEST.fullmatch(digest) for digest in record.manifests)
            name_of(record.commit)
        except (TypeError, KeyError, ValueError) as error:
            raise CorruptError(f"a commit cannot be read: {type(error).__name__}: {error}") from error
        if not is_sound:
            raise CorruptError("a commit contradicts itself")
        return record


@dataclass(frozen=True, slots=True)
class Keys:
    """Where the objects of a run are."""

    run: str

    def folder(self, kind: str) -> str:
        return f"{self.run}/{kind}/"

    def incarnation(self, number: int) -> str:
        return f"{self.run}/incarnations/{number:010d}"

    def fork(self, fork: Fork) -> str:
        skip = f"-{fork.skip[0]}-{fork.skip[1]}" if fork.skip != AS_BEFORE else ""
        return f"{self.run}/forks/{fork.incarnation:010d}-{fork.generation:010d}-{fork.step + 1:010d}{skip}"

    def commit(self, name: str) -> str:
        return f"{self.run}/commits/{name}"

    def step(self, name: str) -> str:
        return f"{self.run}/steps/{name}/"

    def shard(self, name: str, shard: int, shards: int) -> str:
        return f"{self.run}/steps/{name}/shard-{shard:05d}-of-{shards:05d}/"

    def manifest(self, name: str, shard: int, shards: int, digest: str) -> str:
        return f"{self.shard(name, shard, shards)}manifest-{digest}"

    def chunk(self, manifest: Manifest, number: int) -> str:
        folder = self.shard(name_of(manifest.commit), manifest.shard, manifest.shards)
        return f"{folder}chunk-{number:06d}-{manifest.chunks[number]:08x}"

    def leases(self, name: str) -> str:
        return f"{self.run}/leases/{name}/"

    def clearing(self, name: str) -> str:
        """What the marks of all who delete a step begin with."""
        return f"{self.run}/clearing/{name}-"

    def quarantine(self, name: str) -> str:
        return f"{self.run}/quarantine/{name}"

    def failure(self, name: str, incarnation: int) -> str:
        return f"{self.run}/failures/{name}/{incarnation:010d}"

    def journal(self, incarnation: int, first: int, last: int | None = None) -> str:
        """Of one segment, or of the merged one that holds those from first to last."""
        merged = "" if last is None else f"-{last:010d}"
        return f"{self.run}/journal/{incarnation:010d}-{first:010d}{merged}"

    def log(self, incarnation: int, name: str, number: int) -> str:
        return f"{self.run}/logs/{incarnation:010d}-{name}-{number:010d}"

    @property
    def latest(self) -> str:
        return f"{self.run}/LATEST"


def parse_fork(key: str) -> Fork | None:
    """The fork that a key of `Keys.fork` tells of; the object's bytes are for people only."""
    match = _FORK.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    incarnation, generation, first_void, *skip = (int(part or 0) for part in match.groups())
    return Fork(incarnation=incarnation, generation=generation, step=first_void - 1, skip=(skip[0], skip[1]))
