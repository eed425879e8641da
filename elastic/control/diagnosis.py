"""Pure. What breaks runs in practice: from facts about machines and a cluster to findings, each with its fix."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

RAY_AT_LEAST = (2, 60)
STORE_SHARE = 0.7  # of an object store; Ray spills at 0.8
FILES = 8192  # a worker of a large run has a socket to each of its peers, and Ray its own
PROCESSES = 4096  # threads count: of Ray some dozens a worker, of torch one a core, and more
NETWORK_BYTES_PER_S = 100e6
_OF_STORE = "/dev/shm"  # noqa: S108 - where Ray's object store lies, if it fits


class Verdict(Enum):
    """How bad a finding is."""

    FINE = "fine"
    UNKNOWN = "unknown"  # it can not be seen from here
    COSTS = "costs"  # runs survive it, slower or less safe
    BREAKS = "breaks"  # runs fail by it


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. fix: what to do about it, empty if nothing is to be done."""

    subject: str
    verdict: Verdict
    where: str
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was seen of one machine.

    Attributes:
        name: node, or "this machine". versions: by package, "python" among them; empty: it is not installed.
        memory_bytes: of the host, or the container if that is less.
        ramdisk: directory of the node tier; ramdisk_bytes, ramdisk_free_bytes: of its file system, None: it is not
            there. is_in_memory: that is one. is_ramdisk_writable: by this user.
        files, processes: this user's limits, None: without.
        clock_offset_s: as the kernel has it, None: nothing disciplines the clock.
        gpus: names that the driver gives. gpu_trouble: why they can not be used, sentences.
        has_cuda: torch sees a GPU. nccl: version that torch brings, empty: none.
        niceness: that processes of a run have there, once they have asked for the usual one.
        has_room: the node has what a worker is placed by; a head need not, nor where the supervisor runs.
    """

    name: str
    versions: dict[str, str]
    memory_bytes: int | None
    ramdisk: str
    ramdisk_bytes: int | None
    ramdisk_free_bytes: int | None
    is_in_memory: bool
    is_ramdisk_writable: bool
    files: int | None
    processes: int | None
    clock_offset_s: float | None
    gpus: tuple[str, ...] = ()
    gpu_trouble: tuple[str, ...] = ()
    has_cuda: bool = False
    nccl: str = ""
    niceness: int = 0
    has_room: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What was seen of a Ray cluster.

    Attributes:
        address: as asked for. trouble: why it was not reached, empty if it was. is_there: it answers all the same.
        has_token: Ray's token authentication is on here. machines: its live nodes. silent: nodes that gave no answer.
        store_bytes: object store by node. bytes_per_s: between two nodes, by "a > b". clocks_s: how far each node's
            clock is from this one's, as far as the time of the answer lets one tell. tiers: what keeps each node from
            using the persistent tier, empty: nothing; none where none was tried.
    """

    address: str
    trouble: str = ""
    is_there: bool = False
    has_token: bool = False
    machines: tuple[Machine, ...] = ()
    silent: tuple[str, ...] = ()
    store_bytes: tuple[tuple[str, int], ...] = ()
    bytes_per_s: tuple[tuple[str, float], ...] = ()
    clocks_s: tuple[tuple[str, float], ...] = ()
    tiers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """What came of trying a persistent tier.

    Attributes:
        url: without secrets. trouble: of opening, writing or reading it. is_atomic: it says that no two can create
            one key; is_refusing: it refused a second writer when it was tried. seconds: of one small write.
    """

    url: str
    trouble: str = ""
    is_atomic: bool = True
    is_refusing: bool = True
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a run will need.

    Attributes:
        arena_bytes: of its ramdisk on each host, `shard_bytes`: of one copy there; 0: not known.
        needs_gpu: its workers are given one. clock_offset_s: as `Health` has it.
    """

    arena_bytes: int = 0
    shard_bytes: int = 0
    needs_gpu: bool = False
    clock_offset_s: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that was looked at."""

    here: Machine
    cluster: Cluster | None = None
    bucket: Bucket | None = None


def diagnose(facts: Facts, wanted: Wanted) -> list[Finding]:
    """All findings, the worst first."""
    cluster = facts.cluster
    machines = cluster.machines if cluster is not None and cluster.machines else (facts.here,)
    found = [finding for machine in machines for finding in _of_machine(machine, wanted)]
    found += _alike(facts.here, machines)
    if cluster is not None:
        found += _of_cluster(cluster, wanted)
    if facts.bucket is not None:
        found += _of_bucket(facts.bucket)
    order = list(Verdict)
    return sorted(found, key=lambda one: -order.index(one.verdict))


def breaks(found: Sequence[Finding]) -> bool:
    """Whether a run would fail."""
    return any(one.verdict is Verdict.BREAKS for one in found)


# --- one machine ------------------------------------------------------------------------------------------------------


def _of_machine(machine: Machine, wanted: Wanted) -> Iterator[Finding]:
    yield _ray(machine)
    if machine.has_room:
        yield _ramdisk(machine, wanted)
    yield _files(machine)
    yield _processes(machine)
    if machine.niceness:
        yield _niceness(machine)
    yield _clock(machine, wanted)
    yield from _gpus(machine, wanted)


def _ray(machine: Machine) -> Finding:
    version = machine.versions.get("ray", "")
    least = ".".join(map(str, RAY_AT_LEAST))
    if not version:
        return _bad("ray", machine.name, "Ray is not installed", f"pip install 'ray[default,train]>={least}'")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < RAY_AT_LEAST:
        return _bad("ray", machine.name, f"Ray {version} is too old", f"pip install 'ray[default,train]>={least}'")
    return _fine("ray", machine.name, f"Ray {version}")


def _ramdisk(machine: Machine, wanted: Wanted) -> Finding:
    def told(verdict: Verdict, what: str, fix: str = "") -> Finding:
        return Finding(subject="ramdisk", verdict=verdict, where=machine.name, what=what, fix=fix)

    path, size, free = machine.ramdisk, machine.ramdisk_bytes, machine.ramdisk_free_bytes
    if size is None or free is None:
        fix = "mount a tmpfs there (mount -t tmpfs), or set Checkpoint.memory to a directory in memory"
        return told(Verdict.BREAKS, f"{path} is not there", fix)
    if not machine.is_ramdisk_writable:
        return told(
            Verdict.BREAKS, f"{path} can not be written by this user", "chmod 1777 it, or set Checkpoint.memory"
        )
    if not machine.is_in_memory:
        fix = "mount a tmpfs there (mount -t tmpfs), or set Checkpoint.memory to a directory in memory"
        return told(Verdict.COSTS, f"{path} is not in memory: snapshots are written to a disk", fix)
    room = f"{path} has {_gib(free)} free of {_gib(size)}"
    if not wanted.arena_bytes:
        return told(Verdict.FINE, f"{room}; with --params its size is compared with the state")
    if free < wanted.arena_bytes:
        fix = (
            f"give it {_gib(wanted.arena_bytes)}: mount -o remount,size=..., docker run --shm-size, or an emptyDir of "
            "medium Memory with that sizeLimit; or spread the state over more hosts"
        )
        return told(Verdict.BREAKS, f"{room}, and snapshots take {_gib(wanted.arena_bytes)}", fix)
    if machine.memory_bytes is not None and wanted.arena_bytes > machine.memory_bytes / 2:
        what = f"snapshots take {_gib(wanted.arena_bytes)} of {_gib(machine.memory_bytes)} memory"
        return told(Verdict.COSTS, what, "Ray kills workers at 95 % of memory: use more hosts, or more memory on each")
    return told(Verdict.FINE, f"{room}, and snapshots take {_gib(wanted.arena_bytes)}")


def _files(machine: Machine) -> Finding:
    has = f"a process may open {_many(machine.files)} files and sockets"
    fix = f"ulimit -n {FILES * 8} before `ray start` (LimitNOFILE= in a unit, --ulimit nofile= of docker)"
    return _limit("files", machine, (machine.files, FILES), has, fix)


def _processes(machine: Machine) -> Finding:
    has = f"this user may have {_many(machine.processes)} processes and threads"
    fix = f"ulimit -u {PROCESSES * 8} before `ray start` (LimitNPROC= in a unit, --ulimit nproc= of docker)"
    return _limit("processes", machine, (machine.processes, PROCESSES), has, fix)


def _niceness(machine: Machine) -> Finding:
    what = f"workers run with a niceness of {machine.niceness}: whatever else wants a processor there goes first"
    fix = "start Ray with RAY_worker_niceness=0 in its environment, or give it CAP_SYS_NICE"
    return Finding(subject="priority", verdict=Verdict.COSTS, where=machine.name, what=what, fix=fix)


def _many(limit: int | None) -> str:
    return "any number of" if limit is None else str(limit)


def _limit(subject: str, machine: Machine, limits: tuple[int | None, int], has: str, fix: str) -> Finding:
    """limits: what there is, None: without; and what large runs need."""
    limit, least = limits
    if limit is None or limit >= least:
        return _fine(subject, machine.name, has)
    verdict = Verdict.BREAKS if limit < least // 8 else Verdict.COSTS
    return Finding(
        subject=subject, verdict=verdict, where=machine.name, what=f"{has}, large runs need {least}", fix=fix
    )


def _clock(machine: Machine, wanted: Wanted) -> Finding:
    offset_s = machine.clock_offset_s
    if offset_s is None:
        return Finding(
            subject="clock",
            verdict=Verdict.UNKNOWN,
            where=machine.name,
            what="nothing tells the kernel how far the clock is off",
            fix="run chrony or systemd-timesyncd; in a container this is the host's matter, and not seen",
        )
    if abs(offset_s) > wanted.clock_offset_s:
        return Finding(
            subject="clock",
            verdict=Verdict.COSTS,
            where=machine.name,
            what=f"the clock is {offset_s:+.3f} s off, more than Health.clock_offset_s={wanted.clock_offset_s:g}",
            fix="mend time synchronization (chronyc makestep): incidents are told with wrong times",
        )
    return _fine("clock", machine.name, f"the clock is {offset_s:+.3f} s off")


def _gpus(machine: Machine, wanted: Wanted) -> Iterator[Finding]:
    for trouble in machine.gpu_trouble:
        yield _bad("gpu", machine.name, trouble, "nvidia-smi -q; reset or drain the GPU, or take the node out")
    if machine.gpus and not machine.has_cuda:
        what = f"{len(machine.gpus)} GPUs, and torch sees none"
        fix = "install torch's CUDA build for this driver, and look at CUDA_VISIBLE_DEVICES"
        yield _bad("gpu", machine.name, what, fix)
    elif not machine.gpus and wanted.needs_gpu and machine.has_room:
        yield _bad("gpu", machine.name, "no GPU is seen", "give the container its GPUs, or leave Scaling.use_gpu out")
    elif machine.gpus and not machine.nccl:
        what = f"{len(machine.gpus)} x {machine.gpus[0]}, and torch has no NCCL: gloo sums gradients, in host memory"
        fix = "install torch's CUDA build with NCCL"
        yield Finding(subject="gpu", verdict=Verdict.COSTS, where=machine.name, what=what, fix=fix)
    elif machine.gpus:
        what = f"NCCL {machine.nccl} sums gradients on them, unless Scaling.gpu_collectives is gloo"
        yield _fine("gpu", machine.name, f"{len(machine.gpus)} x {machine.gpus[0]}; {what}")


def _alike(here: Machine, machines: Sequence[Machine]) -> Iterator[Finding]:
    """Workers unpickle what the driver pickled."""
    for package in ("python", "ray", "torch", "elastic"):
        wanted = here.versions.get(package, "")
        if package == "python":
            wanted = wanted.rpartition(".")[0]
        for machine in machines:
            got = machine.versions.get(package, "")
            if machine is here or got == wanted or (package == "python" and got.rpartition(".")[0] == wanted):
                continue
            what = f"{package} is {got or 'not installed'}, and {wanted or 'not installed'} on {here.name}"
            yield _bad("versions", machine.name, what, "use one image, or one lock file, for driver and nodes")


# --- the cluster ------------------------------------------------------------------------------------------------------


def _of_cluster(cluster: Cluster, wanted: Wanted) -> Iterator[Finding]:
    if cluster.trouble:
        fix = "check --address or RAY_ADDRESS; fit without either starts a cluster on this machine"
        if cluster.is_there:
            fix = "use one image, or one lock file, for driver and nodes"
        yield _bad("versions" if cluster.is_there else "cluster", cluster.address, cluster.trouble, fix)
        return
    yield _fine("cluster", cluster.address, f"{len(cluster.machines)} nodes answer")
    if cluster.machines and not any(machine.has_room for machine in cluster.machines):
        what = "no node has what a worker is placed by (Scaling.resources_per_worker, use_gpu, label_selector)"
        fix = "give the containers their GPUs, or change these; nodes that come when asked for were not looked at"
        yield _bad("cluster", cluster.address, what, fix)
    for node in cluster.silent:
        yield _bad("cluster", node, "the node is alive for Ray, and ran nothing for us", "look at its raylet's log")
    if not cluster.has_token:
        yield Finding(
            subject="authentication",
            verdict=Verdict.COSTS,
            where=cluster.address,
            what="whoever reaches this cluster's ports may run code on it",
            fix="ray start with RAY_AUTH_MODE=token on every node, and in the driver (`ray get-auth-token --generate`)",
        )
    else:
        yield _fine("authentication", cluster.address, "token authentication is on")
    for node, size in cluster.store_bytes:
        yield _store(node, size, wanted)
    yield from _shared_ramdisks(cluster, wanted)
    for node, trouble in cluster.tiers:
        yield _tier(node, trouble)
    yield from _clocks(cluster, wanted)
    for link, speed in cluster.bytes_per_s:
        if speed < NETWORK_BYTES_PER_S:
            fix = "look at the link (ethtool), and that Ray's node addresses are those of the fast network"
            yield Finding(
                subject="network",
                verdict=Verdict.BREAKS if speed <= 0 else Verdict.COSTS,
                where=link,
                what=f"{speed / 1e6:.0f} MB/s" if speed > 0 else "no connection: a firewall, or a wrong address",
                fix=fix,
            )
        else:
            yield _fine("network", link, f"{speed / 1e6:.0f} MB/s")


def _tier(node: str, trouble: str) -> Finding:
    if not trouble:
        return _fine("persistent tier", node, "read and written by the node")
    fix = (
        "nodes write checkpoints themselves: give each the rights that this machine has (roles/storage.objectUser for "
        "its service account), or mount one directory under this path on all of them"
    )
    return _bad("persistent tier", node, trouble, fix)


def _store(node: str, size: int, wanted: Wanted) -> Finding:
    room = STORE_SHARE * size
    if wanted.shard_bytes and room < wanted.shard_bytes:
        fix = f"ray start --object-store-memory={int(2 * wanted.shard_bytes / STORE_SHARE)}, or Checkpoint(peers=0)"
        what = f"{_gib(STORE_SHARE * size)} for copies of other nodes, and one shard has {_gib(wanted.shard_bytes)}"
        return Finding(subject="object store", verdict=Verdict.COSTS, where=node, what=what, fix=fix)
    return _fine("object store", node, f"{_gib(size)}, of which copies of other nodes may take {_gib(room)}")


def _shared_ramdisks(cluster: Cluster, wanted: Wanted) -> Iterator[Finding]:
    """Nodes whose object store may yet want memory that snapshots have by then.

    Where it fits in when a node starts, Ray's store takes its pages as it fills, and a page that cannot
    be had ends the process that writes. Slots take theirs at once, or are refused.
    """
    stores = dict(cluster.store_bytes)
    for machine in cluster.machines:
        size, store = machine.ramdisk_bytes, stores.get(machine.name, 0)
        if not (wanted.arena_bytes and machine.has_room) or size is None or machine.ramdisk.rstrip("/") != _OF_STORE:
            continue
        if max(store, wanted.arena_bytes) <= size < store + wanted.arena_bytes:
            yield Finding(
                subject="ramdisk",
                verdict=Verdict.COSTS,
                where=machine.name,
                what=f"snapshots take {_gib(wanted.arena_bytes)}, and Ray's object store up to {_gib(store)}, of the "
                f"{_gib(size)} of {_OF_STORE}: when both fill, who writes to the store is killed (SIGBUS)",
                fix=f"a {_OF_STORE} of {_gib(store + wanted.arena_bytes)}, a smaller store (ray start "
                "--object-store-memory), or a tmpfs of its own for Checkpoint.memory",
            )


def _clocks(cluster: Cluster, wanted: Wanted) -> Iterator[Finding]:
    apart = [(node, offset_s) for node, offset_s in cluster.clocks_s if abs(offset_s) > wanted.clock_offset_s]
    for node, offset_s in apart:
        yield Finding(
            subject="clock",
            verdict=Verdict.COSTS,
            where=node,
            what=f"its clock is {offset_s:+.2f} s from this machine's",
            fix="have all nodes follow one time server",
        )
    if cluster.clocks_s and not apart:
        yield _fine("clock", cluster.address, "the nodes' clocks agree with this machine's")


# --- the persistent tier ----------------------------------------------------------------------------------------------


def _of_bucket(bucket: Bucket) -> Iterator[Finding]:
    if bucket.trouble:
        fix = (
            "log in (gcloud auth application-default login), or give the service account roles/storage.objectUser on "
            "the bucket; for a directory: the rights to write there"
        )
        yield _bad("persistent tier", bucket.url, bucket.trouble, fix)
        return
    if not bucket.is_refusing:
        what = "two writers may both create one object: two drivers could both believe that they commit a step"
        verdict = Verdict.BREAKS if bucket.is_atomic else Verdict.COSTS
        fix = "use gs:// itself, or a local or NFS directory, not a mount of a bucket or an emulator"
        yield Finding(subject="persistent tier", verdict=verdict, where=bucket.url, what=what, fix=fix)
        return
    yield _fine(
        "persistent tier",
        bucket.url,
        f"written, refused to a second writer, read, deleted; {bucket.seconds:.2f} s a write",
    )


def counted(found: Sequence[Finding]) -> dict[str, int]:
    """How many findings there are of each verdict."""
    counts = Counter(one.verdict for one in found)
    return {verdict.value: counts[verdict] for verdict in Verdict}


def _fine(subject: str, where: str, what: str) -> Finding:
    return Finding(subject=subject, verdict=Verdict.FINE, where=where, what=what)


def _bad(subject: str, where: str, what: str, fix: str) -> Finding:
    return Finding(subject=subject, verdict=Verdict.BREAKS, where=where, what=what, fix=fix)


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.2f} GiB"
