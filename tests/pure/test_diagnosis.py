"""Pure. What `elastic doctor` makes of facts: the verdict, and a fix wherever there is something to mend."""

from dataclasses import replace

import pytest

from elastic.control.diagnosis import (
    Bucket,
    Cluster,
    Facts,
    Finding,
    Machine,
    Verdict,
    Wanted,
    breaks,
    counted,
    diagnose,
)

GIB = 1 << 30
VERSIONS = {"python": "3.11.2", "ray": "2.60.0", "torch": "2.13.0", "elastic": "0.1.0"}
SOUND = Machine(
    name="this machine",
    versions=VERSIONS,
    memory_bytes=64 * GIB,
    ramdisk="/dev/shm",
    ramdisk_bytes=32 * GIB,
    ramdisk_free_bytes=30 * GIB,
    is_in_memory=True,
    is_ramdisk_writable=True,
    files=1 << 20,
    processes=None,
    clock_offset_s=0.0001,
)
NODE = replace(SOUND, name="node a")
HEAD = replace(SOUND, name="head", ramdisk_bytes=None, has_room=False)
CLUSTER = Cluster(
    address="auto",
    has_token=True,
    machines=(NODE,),
    store_bytes=(("node a", 8 * GIB),),
    clocks_s=(("node a", 0.0),),
    bytes_per_s=(("node a > node b", 1e9),),
    tiers=(("node a", ""),),
)
BUCKET = Bucket(url="gs://bucket/runs", seconds=0.1)
CUDA = {"has_cuda": True, "nccl": "2.27"}
ONE, EIGHT = ("H100",), ("H100",) * 8
ROOM = Wanted(arena_bytes=20 * GIB, shard_bytes=5 * GIB)


def worst(found: list[Finding], subject: str) -> Finding:
    """Findings come worst first."""
    return next(one for one in found if one.subject == subject)


def of(wanted: Wanted, **changes: object) -> list[Finding]:
    return diagnose(Facts(here=replace(SOUND, **changes)), wanted)


def test_where_all_is_well_nothing_is_to_be_mended():
    found = diagnose(Facts(here=SOUND, cluster=CLUSTER, bucket=BUCKET), Wanted())
    assert {one.verdict for one in found} == {Verdict.FINE} and not any(one.fix for one in found)
    assert not breaks(found)
    assert {one.subject for one in found} >= {
        "ray",
        "ramdisk",
        "files",
        "processes",
        "clock",
        "network",
        "persistent tier",
    }


@pytest.mark.parametrize(
    ("changes", "wanted", "subject", "verdict", "told"),
    [
        ({"versions": {"python": "3.11.2"}}, Wanted(), "ray", Verdict.BREAKS, "not installed"),
        ({"versions": VERSIONS | {"ray": "2.9.3"}}, Wanted(), "ray", Verdict.BREAKS, "2.9.3 is too old"),
        ({"ramdisk_bytes": None}, Wanted(), "ramdisk", Verdict.BREAKS, "is not there"),
        ({"is_ramdisk_writable": False}, Wanted(), "ramdisk", Verdict.BREAKS, "can not be written"),
        ({"is_in_memory": False}, Wanted(), "ramdisk", Verdict.COSTS, "not in memory"),
        ({"ramdisk_free_bytes": GIB}, ROOM, "ramdisk", Verdict.BREAKS, "snapshots take 20.00 GiB"),
        ({"memory_bytes": 32 * GIB}, ROOM, "ramdisk", Verdict.COSTS, "of 32.00 GiB memory"),
        ({}, ROOM, "ramdisk", Verdict.FINE, "snapshots take 20.00 GiB"),
        ({"files": 256}, Wanted(), "files", Verdict.BREAKS, "256 files"),
        ({"files": 4096}, Wanted(), "files", Verdict.COSTS, "4096 files"),
        ({"processes": 256}, Wanted(), "processes", Verdict.BREAKS, "256 processes"),
        ({"processes": 4000}, Wanted(), "processes", Verdict.COSTS, "4000 processes"),
        ({"processes": 1 << 16}, Wanted(), "processes", Verdict.FINE, "65536 processes"),
        ({"files": None}, Wanted(), "files", Verdict.FINE, "any number of"),
        ({"niceness": 15}, Wanted(), "priority", Verdict.COSTS, "a niceness of 15"),
        ({"clock_offset_s": None}, Wanted(), "clock", Verdict.UNKNOWN, "nothing tells"),
        ({"clock_offset_s": -3.0}, Wanted(), "clock", Verdict.COSTS, "-3.000 s off"),
        ({}, Wanted(needs_gpu=True), "gpu", Verdict.BREAKS, "no GPU is seen"),
        ({"gpus": EIGHT}, Wanted(), "gpu", Verdict.BREAKS, "torch sees none"),
        ({"gpus": EIGHT} | CUDA, Wanted(), "gpu", Verdict.FINE, "8 x H100; NCCL 2.27 sums gradients on them"),
        ({"gpus": EIGHT, "has_cuda": True}, Wanted(), "gpu", Verdict.COSTS, "8 x H100, and torch has no NCCL"),
        ({"gpus": ONE, **CUDA, "gpu_trouble": ("it needs a reset",)}, Wanted(), "gpu", Verdict.BREAKS, "reset"),
    ],
)  # fmt: skip
def test_a_machine_is_judged(changes, wanted, subject, verdict, told):
    found = worst(of(wanted, **changes), subject)
    assert found.verdict is verdict and told in found.what
    assert bool(found.fix) == (verdict is not Verdict.FINE)


def test_a_head_without_slots_needs_nothing_that_workers_need():
    node = replace(NODE, gpus=ONE, **CUDA)
    cluster = replace(CLUSTER, machines=(HEAD, node), store_bytes=(("head", 16 * GIB), ("node a", 8 * GIB)))
    wanted = replace(ROOM, needs_gpu=True)
    found = diagnose(Facts(here=replace(HEAD, name="this machine"), cluster=cluster), wanted)
    assert not breaks(found) and [one.where for one in found if one.subject in ("ramdisk", "gpu")] == ["node a"] * 2
    found = diagnose(Facts(here=SOUND, cluster=replace(cluster, machines=(HEAD, NODE))), wanted)
    assert worst(found, "gpu").verdict is Verdict.BREAKS, "workers would come there"


@pytest.mark.parametrize(
    ("changes", "wanted", "subject", "verdict", "told"),
    [
        ({"trouble": "no Ray cluster answers"}, Wanted(), "cluster", Verdict.BREAKS, "no Ray cluster answers"),
        ({"trouble": "Ray: 2.9.0", "is_there": True}, Wanted(), "versions", Verdict.BREAKS, "Ray: 2.9.0"),
        ({"silent": ("node b",)}, Wanted(), "cluster", Verdict.BREAKS, "ran nothing for us"),
        ({"machines": (HEAD,)}, Wanted(), "cluster", Verdict.BREAKS, "no node has what a worker is placed by"),
        ({"has_token": False}, Wanted(), "authentication", Verdict.COSTS, "may run code"),
        ({"store_bytes": (("node a", 2 * GIB),)}, ROOM, "object store", Verdict.COSTS, "one shard has 5.00 GiB"),
        ({"store_bytes": (("node a", 16 * GIB),)}, ROOM, "ramdisk", Verdict.COSTS, "object store up to 16.00 GiB"),
        ({"bytes_per_s": (("a > b", 1e6),)}, Wanted(), "network", Verdict.COSTS, "1 MB/s"),
        ({"bytes_per_s": (("a > b", 0.0),)}, Wanted(), "network", Verdict.BREAKS, "no connection"),
        ({"clocks_s": (("node a", 2.0),)}, Wanted(), "clock", Verdict.COSTS, "+2.00 s from this machine's"),
        ({"tiers": (("node a", "403"), ("node b", ""))}, Wanted(), "persistent tier", Verdict.BREAKS, "403"),
        (
            {"machines": (replace(NODE, versions=VERSIONS | {"torch": "2.12.0"}),)},
            Wanted(),
            "versions",
            Verdict.BREAKS,
            "torch is 2.12.0, and 2.13.0 on this machine",
        ),
    ],
)
def test_a_cluster_is_judged(changes, wanted, subject, verdict, told):
    found = worst(diagnose(Facts(here=SOUND, cluster=replace(CLUSTER, **changes)), wanted), subject)
    assert found.verdict is verdict and told in found.what and found.fix


@pytest.mark.parametrize(
    ("ramdisk", "store_bytes", "wanted"),
    [
        ("/dev/shm", 12 * GIB, ROOM),  # both fit
        ("/dev/shm", 40 * GIB, ROOM),  # Ray puts so large a store elsewhere
        ("/dev/shm", 16 * GIB, Wanted()),
        ("/dev/shm", 16 * GIB, Wanted(arena_bytes=33 * GIB)),  # which is told without a word of the store
        ("/mnt/ram", 16 * GIB, ROOM),
        ("/dev/shm/mounted", 16 * GIB, ROOM),
    ],
)
def test_slots_and_objects_may_share_a_ramdisk_that_holds_both(ramdisk, store_bytes, wanted):
    node = replace(NODE, ramdisk=ramdisk)
    cluster = replace(CLUSTER, machines=(node,), store_bytes=(("node a", store_bytes),))
    found = diagnose(Facts(here=SOUND, cluster=cluster), wanted)
    assert not any("SIGBUS" in one.what for one in found)


def test_a_patch_version_of_python_may_differ():
    nodes = (replace(NODE, versions=VERSIONS | {"python": "3.11.9"}),)
    assert not breaks(diagnose(Facts(here=SOUND, cluster=replace(CLUSTER, machines=nodes)), Wanted()))
    nodes = (replace(NODE, versions=VERSIONS | {"python": "3.12.1"}),)
    assert breaks(diagnose(Facts(here=SOUND, cluster=replace(CLUSTER, machines=nodes)), Wanted()))


@pytest.mark.parametrize(
    ("changes", "verdict", "told"),
    [
        ({"trouble": "403"}, Verdict.BREAKS, "403"),
        ({"is_refusing": False}, Verdict.BREAKS, "two writers"),
        ({"is_refusing": False, "is_atomic": False}, Verdict.COSTS, "two writers"),
    ],
)
def test_a_persistent_tier_is_judged(changes, verdict, told):
    found = worst(diagnose(Facts(here=SOUND, bucket=replace(BUCKET, **changes)), Wanted()), "persistent tier")
    assert found.verdict is verdict and told in found.what and found.fix


def test_the_worst_comes_first_and_all_are_counted():
    found = of(Wanted(), files=256, clock_offset_s=None)
    assert [one.verdict for one in found][:2] == [Verdict.BREAKS, Verdict.UNKNOWN]
    assert counted(found) == {"fine": 3, "unknown": 1, "costs": 0, "breaks": 1}
