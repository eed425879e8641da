"""Pure. What is sensed of the hardware, and what a node must show."""

from dataclasses import dataclass

from elastic.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What host monitors sense of the hardware, and what a node must show before its workers may join.

    Attributes:
        sensing: look at GPUs, kernel log, memory, space, network and clock. (yes or no; default yes: it costs below 1 %
            of a core)
        period_s: between two looks; XIDs and lines of the kernel log come at once. (s; default 5: the rest changes
            slowly)
        driver_timeout_s: a look at the GPUs that takes longer means that their driver hangs; one at the rest of the
            host is told. (s; default 60: a driver under load answers within seconds)
        cooldown_s: the same finding on the same device is told once in so long; what comes meanwhile is counted. (s;
            default 60: a broken device repeats itself many times a second)
        heat_margin_c: a GPU this close to the temperature at which it slows down is told to be hot. (degrees; default
            3: what a sensor's noise leaves)
        memory_free: least share of the host's, or container's, memory that should be free. (share; default 0.03: Ray
            kills from 0.95 in use on)
        space_free: the same for the ramdisk and for `disk`. (share; default 0.01: below it writes begin to fail)
        ramdisk: directory in shared memory. (path; default /dev/shm: where Linux keeps it)
        disk: a path on the disk that is watched. (path; default /tmp: where Ray keeps its sessions)
        clock_offset_s: how far the clock may be off, as the kernel's time discipline estimates. (s; default 0.1: leases
            and incidents are told in seconds)
        checks: check a node before its first worker may join; a node that fails is told, and left out. (yes or no;
            default yes: they take less than half a second)
        check_timeout_s: a check that takes longer has failed. (s; default 60: they take less than one)
        recheck_s: a node that failed is checked again after so long. (s; default 60: what is full may be emptied)
        memory_bytes_per_s: least speed of a copy in host memory. (bytes per s; default 2e+08: a tenth of a slow
            machine's)
        hash_bytes_per_s: least speed of one core's SHA-256; 0: any. (bytes per s; default 2e+07: the same)
        matmul: multiply matrices on each GPU (the CPU where none is wanted) and compare with the exact result; needs
            seconds, to load torch in a process of its own. (yes or no; default no: it costs more than half a second)
        peer_bytes_per_s: least speed from another node of the run; 0: not measured. (bytes per s; default 0: networks
            differ)
    """

    sensing: bool = True
    period_s: float = 5.0
    driver_timeout_s: float = 60.0
    cooldown_s: float = 60.0
    heat_margin_c: float = 3.0
    memory_free: float = 0.03
    space_free: float = 0.01
    ramdisk: str = "/dev/shm"  # noqa: S108 - where Linux keeps shared memory
    disk: str = "/tmp"  # noqa: S108 - where Ray keeps its sessions
    clock_offset_s: float = 0.1
    checks: bool = True
    check_timeout_s: float = 60.0
    recheck_s: float = 60.0
    memory_bytes_per_s: float = 2e8
    hash_bytes_per_s: float = 2e7
    matmul: bool = False
    peer_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("period_s", "driver_timeout_s", "cooldown_s", "clock_offset_s", "check_timeout_s", "recheck_s"):
            if getattr(self, name) <= 0:
                raise SettingError(f"Health.{name}={getattr(self, name)} must be positive")
        for name in ("memory_free", "space_free"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"Health.{name}={getattr(self, name)} is a share: at least 0, below 1")
        for name in ("heat_margin_c", "memory_bytes_per_s", "hash_bytes_per_s", "peer_bytes_per_s"):
            if getattr(self, name) < 0:
                raise SettingError(f"Health.{name}={getattr(self, name)} must not be negative; 0 asks for nothing")
