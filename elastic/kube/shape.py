"""Pure. How many machines a run needs on Kubernetes, and how their memory is shared out."""

import math
import posixpath
from dataclasses import dataclass, replace

from elastic.errors import SettingError
from elastic.knobs import RunConfig, redacted
from elastic.policies.sizing import sizing, slots_for
from elastic.settings import Checkpoint, KubeRay, Scaling

ROLE = "elastic-role"  # label of Ray nodes: what a group is for
TRAINER, SUPERVISOR = "trainer", "supervisor"
RAMDISK, BUCKET, STATE = "/ramdisk", "/gcs", "/var/lib/elastic"  # where volumes are mounted
_GIB, _UNITS = 1 << 30, 10_000
_SHM_SHARE = 0.4  # Ray's object store takes 0.3 of the memory
_PROCESS_SHARE, _WORKER_GIB = 0.2, 1  # for the rest, at least: a pod that exceeds its memory is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Machines of the worker group, and volumes in the memory of each.

    Attributes:
        low, high: nodes of the workers' group, spares included in `high` unless they have a group of their own.
        spares: nodes of that one, 0 without it. shm_gib: /dev/shm. ramdisk_gib: None without one.
    """

    low: int
    high: int
    spares: int
    shm_gib: int
    ramdisk_gib: int | None


def shape(config: RunConfig, kuberay: KubeRay) -> Shape:
    """What follows from the settings of a run.

    Raises:
        SettingError: a replica, or its snapshots, fit on no machine of the pool, or lie where no pod has a volume.
    """
    scaling = _on_gpus(config.scaling, kuberay)
    slots = slots_per_node(scaling, kuberay)
    if kuberay.spare_pool and not scaling.spares:
        raise SettingError(
            f"KubeRay.spare_pool={kuberay.spare_pool!r} is for spares, and Scaling.spares=0 asks for none: give "
            "Scaling.spares, or leave the pool out"
        )
    high, spares = most_nodes(scaling, kuberay)
    ramdisk_gib = None
    if kuberay.params is not None and config.checkpoint is not None:
        # One worker holds one shard; those of a node keep their snapshots side by side.
        of_one = sizing(
            kuberay.params, scaling.workers_per_replica, copies=slots_for(config.checkpoint.peers)
        ).ramdisk_bytes
        ramdisk_gib = math.ceil(of_one * slots / _GIB)
    elif config.checkpoint is not None and config.checkpoint.memory != Checkpoint().memory:
        raise SettingError(
            f"Checkpoint.memory={config.checkpoint.memory!r} is mounted in no pod: leave it out, and give "
            f"KubeRay.params for a ramdisk at {RAMDISK}, of the size that snapshots need"
        )
    _reached(config, kuberay)
    memory_gib = kuberay.memory_gib_per_node
    shm_gib = max(1, int(memory_gib * _SHM_SHARE))
    inside_gib = shm_gib + (0 if kuberay.multi_tier else ramdisk_gib or 0)
    processes_gib = max(math.ceil(memory_gib * _PROCESS_SHARE), slots * _WORKER_GIB)
    if inside_gib + processes_gib > memory_gib:
        beside = f"{shm_gib} GiB of shared memory" + (f" and a ramdisk of {ramdisk_gib} GiB" if ramdisk_gib else "")
        raise SettingError(
            f"KubeRay.memory_gib_per_node={memory_gib} has no {processes_gib} GiB for processes beside {beside}: raise "
            "it, or Scaling.workers_per_replica, or lower Checkpoint.peers"
        )
    return Shape(
        low=nodes_for(scaling, scaling.bounds[0], slots),
        high=high,
        spares=spares,
        shm_gib=shm_gib,
        ramdisk_gib=ramdisk_gib,
    )


def _reached(config: RunConfig, kuberay: KubeRay) -> None:
    """Raises: SettingError: no pod has what the persistent tier lies on, or its URL holds a secret."""
    persistent = config.checkpoint.persistent if config.checkpoint is not None else None
    shown = redacted(persistent) if persistent is not None else None
    said, folder = f"Checkpoint.persistent={shown!r}", folder_of(config)
    if shown is not None and shown.count("***") > str(persistent).count("***"):
        raise SettingError(
            f"{said} holds what may be secret, and would stand in a ConfigMap: leave it out, and give what its store "
            "reads from the environment by KubeRay.env_from_secrets"
        )
    if kuberay.gcsfuse and not bucket_of(config):
        raise SettingError(f"KubeRay.gcsfuse=True mounts a bucket, and {said} is none: give gs://bucket/folder")
    if kuberay.claim and (kuberay.gcsfuse or not folder.startswith("/")):
        raise SettingError(
            f"KubeRay.claim={kuberay.claim!r} is mounted where a folder is, and {said} is none: give /store, or any "
            "other folder, or leave the claim out"
        )
    if folder and not kuberay.claim:
        raise SettingError(
            f"{said} is mounted in no pod: give gs://bucket/folder, or KubeRay.claim, the PersistentVolumeClaim that "
            "is to be mounted there"
        )


def slots_per_node(scaling: Scaling, kuberay: KubeRay) -> int:
    """Workers that a machine of the pool has room for. Raises: SettingError: none."""
    of_node = {"GPU": kuberay.gpus_per_node, "CPU": kuberay.cpus_per_node}
    # Ray counts in units of 1/10000, so that ten tenths of a GPU are one; floats say that nine fit.
    units = {name: max(1, round(amount * _UNITS)) for name, amount in scaling.resources.items() if name in of_node}
    rooms = [of_node[name] * _UNITS // amount for name, amount in units.items()]
    slots = min(rooms, default=1)
    on_one = scaling.workers_per_node
    if slots < on_one:
        raise SettingError(
            f"Scaling: {on_one} workers of {scaling.resources} need one node, and KubeRay.gpus_per_node="
            f"{kuberay.gpus_per_node}, cpus_per_node={kuberay.cpus_per_node} has room for {slots}"
        )
    return slots


def most_nodes(scaling: Scaling, kuberay: KubeRay) -> tuple[int, int]:
    """Machines of the workers' group, and of the spares' own, at the largest size. Raises: SettingError: see above."""
    slots, most, spares = slots_per_node(scaling, kuberay), scaling.bounds[1], scaling.spares
    if not kuberay.spare_pool:
        return nodes_for(scaling, most + spares, slots), 0
    return nodes_for(scaling, most, slots), nodes_for(scaling, spares, slots) if spares else 0


def nodes_for(scaling: Scaling, replicas: int, slots: int) -> int:
    """Machines for so many replicas, each with room for `slots` workers."""
    nodes = scaling.num_nodes_per_dp
    return max(nodes, math.ceil(replicas * nodes / (slots // scaling.workers_per_node)))


def adapted(config: RunConfig, kuberay: KubeRay, plan: Shape) -> RunConfig:
    """The run's settings as they hold on this cluster: where workers and supervisor are, where tiers are mounted.

    A run directory that is not absolute lies in the head's own volume: its user may not write where the image begins.
    Jobs on an interactive cluster begin in that volume instead, so that each has a directory by its own name.
    """
    scaling = _on_gpus(config.scaling, kuberay)
    if scaling.label_selector is None:
        scaling = replace(scaling, label_selector={ROLE: TRAINER})
    if scaling.supervisor_labels is None and not scaling.supervisor_resource:
        scaling = replace(scaling, supervisor_labels={ROLE: SUPERVISOR})
    checkpoint = config.checkpoint
    if checkpoint is not None:
        checkpoint = _mounted(checkpoint, kuberay, plan)
    health = config.health if plan.ramdisk_gib is None else replace(config.health, ramdisk=RAMDISK)
    run_dir = config.run_dir
    if not kuberay.interactive:
        run_dir = posixpath.join(STATE, run_dir or f"runs/{config.name}")
    return replace(config, scaling=scaling, checkpoint=checkpoint, health=health, run_dir=run_dir, address=None)


def _on_gpus(scaling: Scaling, kuberay: KubeRay) -> Scaling:
    """Where machines have GPUs and nobody says what a worker needs, it has one."""
    if scaling.resources_per_worker is None and not scaling.use_gpu and kuberay.gpus_per_node:
        return replace(scaling, use_gpu=True)
    return scaling


def bucket_of(config: RunConfig) -> str:
    """The bucket of the persistent tier, empty where it is none."""
    persistent = config.checkpoint.persistent if config.checkpoint is not None else None
    return persistent.removeprefix("gs://").partition("/")[0] if persistent and persistent.startswith("gs://") else ""


def folder_of(config: RunConfig) -> str:
    """The folder of the persistent tier, empty where it is none."""
    persistent = (config.checkpoint.persistent if config.checkpoint is not None else None) or ""
    folder = persistent.removeprefix("file://")
    return "" if "://" in folder else folder


def _mounted(checkpoint: Checkpoint, kuberay: KubeRay, plan: Shape) -> Checkpoint:
    if plan.ramdisk_gib is not None:
        checkpoint = replace(checkpoint, memory=RAMDISK)
    return on_mount(checkpoint, kuberay)


def on_mount(checkpoint: Checkpoint, kuberay: KubeRay) -> Checkpoint:
    """With the bucket where pods have it, if they mount it."""
    persistent = checkpoint.persistent
    if kuberay.gcsfuse and persistent is not None and persistent.startswith("gs://"):
        folder = persistent.removeprefix("gs://").partition("/")[2]
        checkpoint = replace(checkpoint, persistent=f"{BUCKET}/{folder}".rstrip("/"))
    return checkpoint
