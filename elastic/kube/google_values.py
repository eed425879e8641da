"""Pure. From the values of Google's resiliency supervisor and recipes to this project's configuration.

Sources: the chart's `values-supervisor.yaml` and the launcher's flags (package 1.0.5 and gpu-recipes), the goodput
guide's tables of flags. Keys are known by their last part, wherever in the file they are.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic.errors import SettingError

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Where a key's value goes.

    Attributes:
        to: knob here, with its section. note: what is different about it. convert: the value.
    """

    to: str
    note: str = "the same"
    convert: Callable[[Any], Any] = str


@dataclass(slots=True)
class Translation:
    """What became of a file of values.

    Attributes:
        config: a tree as in `run.yaml`. dropped: key -> why there is nothing to set. unknown: keys that nobody knows.
    """

    config: Tree = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def _amount(value: Any) -> float:
    """A number, which charts like to quote. Raises: ValueError, TypeError: it is none."""
    if isinstance(value, bool):
        raise ValueError(f"{value} is no number")
    number = float(value)
    return int(number) if number.is_integer() else number


def _switch(value: Any) -> bool:
    """Raises: ValueError: it is neither yes nor no."""
    text = str(value).lower()
    if text not in _YES and text not in _NO:
        raise ValueError(f"{value} is neither yes nor no")
    return text in _YES


_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def _number(value: Any) -> int:
    """Raises: ValueError, TypeError: it is no whole number."""
    if isinstance(value, bool | float) and (isinstance(value, bool) or not value.is_integer()):
        raise ValueError(f"{value} is no whole number")
    return int(value)


def _keep(value: Any) -> dict[str, int]:
    """-1 keeps every checkpoint."""
    return {"every": 1} if int(value) < 0 else {"last": max(1, int(value))}


_GPUS = "kuberay.gpus_per_node"
MOVED: dict[str, Moved] = {
    "heartbeat_polling_period_s": Moved(
        to="limits.heartbeat_polling_period_s", note="default here 0.25 s", convert=_amount
    ),
    "heartbeat_timeout_s": Moved(to="limits.heartbeat_timeout_s", note="default here 1.25 s", convert=_amount),
    "num_dp_replicas": Moved(to="scaling.num_dp_replicas", note="where no minimum is given, the only size"),
    "min_num_dp_replicas": Moved(to="scaling.num_dp_replicas", note="the first of the pair"),
    "max_num_dp_replicas": Moved(to="scaling.num_dp_replicas", note="the second of the pair"),
    "num_nodes_per_dp": Moved(
        to="scaling.num_nodes_per_dp",
        note="a worker for each GPU of these nodes",
        convert=_number,
    ),
    "workers_per_host": Moved(to=_GPUS, note="a worker is an actor; GPUs say how many fit a node", convert=_number),
    "gpus_per_node": Moved(to=_GPUS, convert=_number),
    "nproc_per_node": Moved(to=_GPUS, note="the launcher's name for it", convert=_number),
    "max_in_job_restarts": Moved(
        to="limits.max_in_job_restarts", note="a committed step sets the count to 0; 0 is left out", convert=_number
    ),
    "max-restarts": Moved(
        to="limits.max_in_job_restarts", note="as a flag: the launcher's name for it; 0 is left out", convert=_number
    ),
    "max_workload_restarts": Moved(
        to="limits.max_workload_restarts", note="progress sets the count to 0; 0 is left out", convert=_number
    ),
    "max_restarts": Moved(
        to="limits.max_workload_restarts", note="as a value: those of the JobSet; 0 is left out", convert=_number
    ),
    "pod_termination_threshold_s": Moved(
        to="limits.pod_termination_threshold_s", note="workers, not pods", convert=_amount
    ),
    "container_termination_threshold_s": Moved(
        to="limits.pod_termination_threshold_s", note="the launcher's name for it", convert=_amount
    ),
    "jobset_downtime_threshold_s": Moved(
        to="limits.jobset_downtime_threshold_s", note="while below the minimum", convert=_amount
    ),
    "workload_downtime_threshold_s": Moved(
        to="limits.jobset_downtime_threshold_s", note="the launcher's name for it", convert=_amount
    ),
    "enable_fault_injection": Moved(to="chaos.enable_fault_injection", convert=_switch),
    "fault_injection_period_s": Moved(
        to="chaos.fault_injection_period_s",
        note="of the run as a whole; there each node counts for itself",
        convert=_amount,
    ),
    "sim_fault_desc": Moved(to="chaos.sim_fault_desc"),
    "watchdog_cooldown_s": Moved(to="health.cooldown_s", note="per device and code", convert=_amount),
    "watchdog_notification_cooldown_s": Moved(to="health.cooldown_s", note="the chart's name for it", convert=_amount),
    "cooldown_s": Moved(to="health.cooldown_s", note="the same", convert=_amount),
    "watchdog_interval_s": Moved(to="health.period_s", note="XIDs come at once, whatever it is", convert=_amount),
    "job_name": Moved(to="name", note="lower case letters, digits, dashes"),
    "workload_name": Moved(to="name", note="lower case letters, digits, dashes"),
    "workload_namespace": Moved(to="kuberay.namespace"),
    "job_namespace": Moved(to="kuberay.namespace"),
    "local_ckpt_interval": Moved(to="checkpoint.local_interval.steps", convert=_number),
    "persistent_ckpt_dir": Moved(to="checkpoint.persistent", note="gs://, a directory, or a URL"),
    "persistent_ckpt_interval": Moved(to="checkpoint.persistent_interval.steps", convert=_number),
    "checkpoint_interval": Moved(to="checkpoint.persistent_interval.steps", convert=_number),
    "backup_interval_minutes": Moved(to="checkpoint.backup_interval_minutes", convert=_amount),
    "peers_per_node": Moved(to="checkpoint.peers", convert=_number),
    "topk_ckpt": Moved(to="checkpoint.keep", note="-1 (all) becomes `every: 1`", convert=_keep),
    "enable_gcsfuse": Moved(to="kuberay.gcsfuse", note="off: the bucket is spoken to directly", convert=_switch),
}

_NO_RESTART_IN_JOB = (
    "0 restarts the whole workload there for each failure; here survivors go on, so 0 would end the run at its first"
)
_NO_RESTART_FIRST = (
    "0 swaps faulty nodes there without a restart first, which is how it always works here; here 0 "
    "would end the run when all replicas are lost at once"
)
_ZEROS = {
    "max_in_job_restarts": _NO_RESTART_IN_JOB,
    "max-restarts": _NO_RESTART_IN_JOB,
    "max_workload_restarts": _NO_RESTART_FIRST,
    "max_restarts": _NO_RESTART_FIRST,
}
_BREAKS = "enable_fault_injection"
_NO_FAULTS = "enable_fault_injection is off, so no fault is injected"
_VARIABLE = "a variable of their scripts is no value: say what it stands for"

# Why there is nothing to set, for keys that have no equivalent.
_ADDRESS = "actors find each other by name; there are no ports or addresses to give"
_ALWAYS = "that is how it always works here"
_CODE = "of the training program, which stays the user's own"
_NO_JOBSET = "there is no JobSet"
DROPPED: dict[str, str] = {
    "port": _ADDRESS,
    "host_daemon_port": _ADDRESS,
    "sensor_address": _ADDRESS,
    "actuator_address": _ADDRESS,
    "controller_address": _ADDRESS,
    "master_addr": _ADDRESS,
    "master_port": _ADDRESS,
    "node_rank": _ADDRESS,
    "rdzv_backend": _ADDRESS,
    "rdzv_endpoint": _ADDRESS,
    "rdzv_id": _ADDRESS,
    "image": "kuberay.image is one for all pods, and holds the training program",
    "command": "what pods of the supervisor run there; the training program goes into kuberay.entrypoint",
    "namespace": "of the supervisor's pods, which is an actor here; job_namespace names the run's",
    "project": "no API of a project is called",
    "usea3high": "kuberay.accelerator chooses the machines",
    "gpu_gen": "kuberay.accelerator chooses the machines",
    "nodepool": "kuberay.accelerator chooses the machines",
    "watchdogs": "all of NVML and the kernel log is watched, and XIDs are told apart by a table",
    "enable_topology_aware_scheduling": "there it fetches ids that nothing uses; here placement follows Ray's labels",
    "enable_standalone_mode": "the supervisor is an actor of the run",
    "enable_workload_scaling": "a pair of sizes in scaling.num_dp_replicas switches it on",
    "log_to_stderr": "logs.level and logs.show; the journal keeps the decisions",
    "verbosity": "logs.level and logs.show; the journal keeps the decisions",
    "replicated_job_name": _NO_JOBSET,
    "workload_container_name": _NO_JOBSET,
    "container_name": _NO_JOBSET,
    "replicas": _NO_JOBSET,
    "job_name_include_date": "a run that is started again under its name goes on, which a date would prevent",
    "enable_async_ckpt": _ALWAYS,
    "enable_optimized_async_ckpt": _ALWAYS,
    "enable_dist_ckpt": _ALWAYS,
    "enable_in_cluster_local_ckpt": _ALWAYS,
    "enable_high_scale_ckpt": "kuberay.multi_tier mounts the same ramdisk; copies and uploads are this library's own",
    "local_ckpt_dir": "kuberay.params has pods mount a ramdisk of the size that snapshots need; else they use /dev/shm",
    "enable_ckpt_load_replication": _ALWAYS,
    "ckpt_threads_per_rank": "one thread copies while the next step computes",
    "profile_ckpt_interval": "callbacks=[elastic.callbacks.Profile(every_checkpoint=...)] in the program",
    "enable_fault_tolerance": _ALWAYS,
    "use_supervisor": _ALWAYS,
    "num_optimizer_replicas": "copies are made in host memory: checkpoint.peers",
    "gcsfuse_bucket": "checkpoint.persistent names the bucket",
    "pvc": "kuberay.claim is mounted where checkpoint.persistent is, a folder then",
    "monitor_interval": "each worker is watched by its end (a pidfd), not by looks",
    "term_timeout": "limits.freeze_timeout_s and pod_termination_threshold_s bound what is waited for",
    "initial_rank_heartbeat_timeout": "limits.first_steps_timeout_s, learnt from the steps after that",
    "rank_heartbeat_timeout": "twice limits.hang_floor_s, or four usual steps",
    "model": _CODE,
    "model_size": _CODE,
    "max_runtime": _CODE,
    "nnodes": "follows from scaling and kuberay.gpus_per_node",
    "num_nodes": "follows from scaling and kuberay.gpus_per_node",
    "num_gpus": "follows from scaling",
    "max_steps": _CODE,
    "global_bs": _CODE,
    "tokenizer_path": _CODE,
    "val_check_interval": _CODE,
    "limit_val_batches": _CODE,
    "enable_comm_overlap": "callbacks=[elastic.callbacks.OverlapCommunication()] in the program",
    "enable_gc": "callbacks=[elastic.callbacks.CollectGarbage()] in the program",
    "log_dir": "run_dir, and checkpoint.persistent for the journal's copy",
    "log_dir_prefix": "run_dir, and checkpoint.persistent for the journal's copy",
    "log_to_remote_storage": "the journal is copied to checkpoint.persistent",
    "log_level": _CODE,
    "enable_tensorboard": "callbacks=[elastic.callbacks.TensorBoardScalars(...)] in the program",
}


def translate(values: Mapping[str, Any]) -> Translation:
    """
    Raises:
        SettingError: two keys give one knob two values, or a value is none for it.
    """
    result = Translation()
    sizes: dict[str, int] = {}
    leaves = [(path, _key(path), value) for path, value in _leaves(values, "")]
    breaks = any(key == _BREAKS and str(value).lower() in _YES for _, key, value in leaves)
    for path, key, value in leaves:
        if value == "" and (key in MOVED or key in DROPPED):
            continue  # left empty in the chart
        if key in MOVED and "${" in str(value):
            result.dropped[path] = _VARIABLE
        elif key.endswith("num_dp_replicas"):
            sizes[key] = _converted(path, value, MOVED["num_dp_replicas"].to, _number)
        elif key in _ZEROS and str(value) == "0":
            result.dropped[path] = _ZEROS[key]
        elif key in MOVED and MOVED[key].to.startswith("chaos.") and key != _BREAKS and not breaks:
            result.dropped[path] = _NO_FAULTS  # here a period without the switch would be refused
        elif key in MOVED:
            _put(result, path, MOVED[key], value)
        elif key in DROPPED:
            result.dropped[path] = DROPPED[key]
        else:
            result.unknown.append(path)
    if sizes:
        high = sizes.get("max_num_dp_replicas", sizes.get("num_dp_replicas", 1))
        _at(result.config, "scaling")["num_dp_replicas"] = [sizes.get("min_num_dp_replicas", high), high]
    _gangs(result.config)
    return result


def _key(path: str) -> str:
    """The last part, as the tables have it; of flags that are no values' name, with dashes."""
    *before, last = path.lower().split(".")
    if last not in MOVED:
        last = re.sub(r"[^a-z0-9]+", "_", last).strip("_").removeprefix("ft_param_")
    return "image" if "images" in before else last


def _converted(path: str, value: Any, to: str, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SettingError(f"{path}={value!r} is no value for {to}") from error


def _put(result: Translation, path: str, moved: Moved, value: Any) -> None:
    new = _converted(path, value, moved.to, moved.convert)
    section, _, knob = moved.to.rpartition(".")
    there = _at(result.config, section)
    if knob in there and there[knob] != new:
        raise SettingError(f"{path}={value!r}: {moved.to} is {there[knob]!r} by another key of the file")
    there[knob] = new


def _gangs(config: Tree) -> None:
    """A replica has a worker for each GPU of its nodes."""
    scaling, nodes = config.get("scaling", {}), config.get("scaling", {}).get("num_nodes_per_dp", 1)
    gpus = config.get("kuberay", {}).get("gpus_per_node", 8)
    if scaling:
        scaling |= {"workers_per_replica": nodes * gpus, "use_gpu": True}


def _at(config: Tree, section: str) -> Tree:
    for name in section.split(".") if section else ():
        config = config.setdefault(name, {})
    return config


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Values by dotted path; flags (`--topk-ckpt=-1`), in lists or texts, and variables of a container are keys too."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves(one, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
        for one in value:
            yield from _leaves(one.get("value"), f"{path}.{one['name']}")
    elif isinstance(value, list) and any(isinstance(one, str) and one.startswith("--") for one in value):
        for one in value:
            yield from _flags(str(one), path)
    elif isinstance(value, str) and value.lstrip().startswith("--"):
        yield from _flags(value, path)
    elif value is not None:
        yield path, value


def _flags(text: str, path: str) -> Iterator[tuple[str, Any]]:
    in_one = text.replace("\\\n", "\n")  # lines of a shell that go on
    for name, value in re.findall(r"--([\w-]+)(?:[= ](?!--)(\S+))?", in_one):
        yield f"{path}.{name}", _typed(value)


def _typed(text: str) -> Any:
    if not text or text.lower() in ("true", "false"):
        return text.lower() != "false"
    return int(text) if re.fullmatch(r"-?\d+", text) else text
