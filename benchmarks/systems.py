"""The systems that the recovery benchmark compares, and the settings that they run with.

`default` is what a system does if nobody sets anything; `tuned` has short timeouts (docs/benchmarks.md says how they
were found); `shorter` has those that were tried below them, and is there to be tried. Figures of two of these are never
mixed. A row of the result carries the settings that it was made with.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEFAULT, TUNED, SHORTER = "default", "tuned", "shorter"
SETTINGS = (DEFAULT, TUNED, SHORTER)
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What the benchmark knows of a system.

    Attributes:
        module: drives a Job; is run as `python -m MODULE JOB.json`.
        supervisor, monitor: titles, programs or whole arguments of its control processes: of the one that there is
            once, and of those on the hosts; empty where there is none.
        preparing: title of a process of its that is not ready yet for what it stands by for; empty: nobody stands by.
        environment: folder of the virtual environment below `.bench/`; empty: this process's own.
        on_ray: its workers belong to the Ray cluster, not to the driver.
        has_spares: it can keep workers that stand ready.
        cannot: scenarios that mean nothing to it, with the reason; "*" for all others.
        stays_small: scenarios after which it is never whole again, with the reason; "*" for all.
        default, tuned, shorter: what is set: the last two in place of what stands before them.
    """

    module: str
    supervisor: str = ""
    monitor: str = ""
    preparing: str = ""
    environment: str = ""
    on_ray: bool = False
    has_spares: bool = False
    cannot: Mapping[str, str] = field(default_factory=dict)
    stays_small: Mapping[str, str] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)
    shorter: Mapping[str, Any] = field(default_factory=dict)

    @property
    def python(self) -> str:
        """The interpreter that its driver is run with."""
        return str(_ROOT / ".bench" / self.environment / "bin" / "python") if self.environment else sys.executable

    def knobs(self, settings: str) -> dict[str, Any]:
        """What is set, by name."""
        layers = (self.default, self.tuned, self.shorter)[: 1 + SETTINGS.index(settings)]
        return {name: value for layer in layers for name, value in layer.items()}

    def why_small(self, scenario: str) -> str:
        """Why it will not be whole again after this; empty if it may be."""
        return self.stays_small.get(scenario, self.stays_small.get("*", ""))

    def why_not(self, scenario: str, settings: str = DEFAULT) -> str:
        """Why it cannot be measured here; empty if it can."""
        if settings == SHORTER and not self.shorter:
            return "it has no timeout that was tried shorter"
        if reason := self.cannot.get(scenario, self.cannot.get("*", "") if scenario not in _EVERYBODYS else ""):
            return reason
        if not Path(self.python).exists():
            return f"{self.python} is missing: run make bench-env"
        return ""


_PACKAGES = {"torchft", "nvidia_resiliency_ext"}
_EVERYBODYS = {"clean"}
_NO_SPARES = "is run without processes that stand ready"
_NO_JOINER = "a joiner restarts all the others: there is no donor"
_FIXED_SIZE = "admits nobody after its start, and is run without reserve ranks"
_NO_DRIVER = "what starts its processes is the benchmark's own"
_SLOW = "does nothing about slow workers"
_RESTARTS = {"swap": _NO_SPARES, "donor": _NO_JOINER, "straggler": _SLOW}

# On hosts where it is tuned, Ray asks its nodes more often, too, for every system that runs on it; and its workers have
# the priority of all others' processes.
RAY_TUNED = {
    "RAY_worker_niceness": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
}

SYSTEMS = {
    # Of its own nothing is tuned: it has no timeouts that a user has to find.
    "elastic": System(
        module="benchmarks.elastic_job",
        supervisor="ray::Guard",
        monitor="ray::HostMonitor",
        preparing="ray::WorkerActor.stand_by",
        on_ray=True,
        has_spares=True,
        tuned=RAY_TUNED,
    ),
    # A peer's checkpoint is taken every 10 steps, or, tuned, every step where that is what all start from again.
    "torchft": System(
        module="benchmarks.peers.torchft_job",
        environment="torchft",
        supervisor="torchft_lighthouse",
        cannot={"swap": _NO_SPARES, "straggler": _SLOW, "driver": _NO_DRIVER},
        stays_small={"stop": "nobody ends a process that is stopped"},
        default={
            "collective_timeout_s": 60.0,  # of Manager and of ProcessGroupGloo
            "quorum_timeout_s": 60.0,
            "quorum_retries": 0,
            "heartbeat_timeout_ms": 5000,
            "join_timeout_ms": 60000,
            "checkpoint_steps": 10,
        },
        tuned={
            "collective_timeout_s": 1.0,
            "heartbeat_timeout_ms": 1000,
            "quorum_retries": 60,  # or a lighthouse that is away ends its replicas
            "join_timeout_ms": 1000,
            # checkpoint_steps stays: those who are left have the state, so files of all groups make each step longer,
            # and are read after the loss of everyone alone
        },
        shorter={"collective_timeout_s": 0.5, "heartbeat_timeout_ms": 500, "join_timeout_ms": 500},
    ),
    "ray-train": System(
        module="benchmarks.peers.ray_train_job",
        supervisor="ray::TrainController",
        on_ray=True,
        cannot=_RESTARTS,
        default={"collective_timeout_s": 1800.0, "resize_s": 60.0, "checkpoint_steps": 10},
        tuned=RAY_TUNED
        | {
            "collective_timeout_s": 2.0,
            "resize_s": 1.0,
            # checkpoint_steps stays: a report waits until the controller has taken the last one (a queue of one), and
            # every 5 steps makes steps longer by more than is saved where fewer are done again
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
            "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "2",
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "10",
            "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "1",
        },
        shorter={"collective_timeout_s": 1.0, "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "1"},
    ),
    "torchrun": System(
        module="benchmarks.peers.torchrun_job",
        monitor="torch.distributed.run",
        cannot=_RESTARTS | {"driver": _NO_DRIVER},
        default={
            "collective_timeout_s": 1800.0,
            "last_call_timeout_s": 30,
            "keep_alive_interval_s": 5,
            "keep_alive_max_attempt": 3,
            "shutdown_timeout_s": 30,
            "checkpoint_steps": 10,
        },
        tuned={
            "collective_timeout_s": 5.0,
            "last_call_timeout_s": 1,
            "keep_alive_interval_s": 1,
            "shutdown_timeout_s": 1,
            "checkpoint_steps": 1,
        },
        shorter={"collective_timeout_s": 2.0},
    ),
    "nvrx-inprocess": System(
        module="benchmarks.peers.nvrx_job",
        environment="nvrx",
        cannot={
            **{"swap": _NO_SPARES, "straggler": _SLOW, "donor": _FIXED_SIZE, "join": _FIXED_SIZE},
            **{"storm": _FIXED_SIZE, "coordinator": "has no process of its own that coordinates"},
            "driver": _NO_DRIVER,
            "everyone": "restarts functions within processes, and nobody is left",
        },
        stays_small={"*": _FIXED_SIZE},
        default={
            "soft_timeout_s": 60.0,
            "hard_timeout_s": 90.0,
            "heartbeat_timeout_s": 30.0,
            "interval_s": 1.0,
            "last_call_wait_s": 1.0,
            "collective_timeout_s": 1800.0,
            "checkpoint_steps": 10,
        },
        tuned={
            "soft_timeout_s": 1.0,
            "hard_timeout_s": 2.0,
            "heartbeat_timeout_s": 1.0,
            "interval_s": 0.25,
            "last_call_wait_s": 0.25,
            "collective_timeout_s": 1.0,
            "checkpoint_steps": 1,
        },
        shorter={
            "soft_timeout_s": 0.5,
            "hard_timeout_s": 1.0,
            "heartbeat_timeout_s": 0.5,
            "collective_timeout_s": 0.5,
        },
    ),
    # What the others' steps are compared with.
    "ddp": System(
        module="benchmarks.peers.ddp_job",
        cannot={"*": "plain DDP survives nothing"},
        default={"collective_timeout_s": 1800.0, "checkpoint_steps": 0},
    ),
}


def versions() -> dict[str, str]:
    """Versions of the packages in each environment that was built, by `name` of the package, without starting it."""
    found = {}
    for system in SYSTEMS.values():
        for folder in (_ROOT / ".bench" / system.environment).glob("lib/python*/site-packages/*.dist-info"):
            name, _, version = folder.name.removesuffix(".dist-info").rpartition("-")
            if system.environment and name in _PACKAGES:
                found[name.replace("_", "-")] = version
    return found
