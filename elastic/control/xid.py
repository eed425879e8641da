"""Pure. What the GPU driver's error codes (XIDs) mean for a run: five classes, from NVIDIA's own catalog.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (https://docs.nvidia.com/deploy/xid-errors/), whose column
"Resolution Bucket (Immediate Action)" is kept as `action`. Where the catalog gives a workflow or no action, `note` says
how the class was chosen. A code that is not in the table is told, and nothing follows from it: if the GPU can not be
used, its recovery action (XID 154, and a field of NVML) or its workers say so.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"


class Severity(Enum):
    """What follows from a finding on a host; later ones are more severe."""

    INFORMATIONAL = "informational"
    USER_ERROR = "user error"
    RESTARTABLE = "restartable"
    RESET_NEEDED = "reset needed"
    NODE_MUST_GO = "node must go"


_ORDER = {severity: number for number, severity in enumerate(Severity)}


def is_worse(severity: Severity, other: Severity) -> bool:
    """Whether the first asks for more than the second."""
    return _ORDER[severity] > _ORDER[other]


def worst(*severities: Severity | None) -> Severity | None:
    """The most severe of those that are known; None of nothing."""
    known = [severity for severity in severities if severity is not None]
    return max(known, key=lambda severity: _ORDER[severity]) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One code.

    Attributes:
        name: mnemonic of the driver. sentence: what has happened.
        action: the catalog's immediate action. note: why the class is not simply that of the action, empty if it is.
    """

    code: int
    name: str
    sentence: str
    action: str
    severity: Severity
    note: str = ""


_CLASS_OF_ACTION = {
    "IGNORE": Severity.INFORMATIONAL,
    "RESTART_APP": Severity.RESTARTABLE,
    "RESET_GPU": Severity.RESET_NEEDED,
    "RESTART_VM": Severity.NODE_MUST_GO,
    "RESTART_BM": Severity.NODE_MUST_GO,
    "CHECK_MECHANICALS": Severity.NODE_MUST_GO,
}

_APP = "the catalog's next action is to check the application"
_DECODED = "the line in the kernel log says Fatal or Nonfatal; what must be done comes as XID 154 too"
_CRASHED = (
    (8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", "the GPU stopped processing"),
    (32, "ROBUST_CHANNEL_PBDMA_ERROR", "corrupted commands came to the GPU, mostly over a bad PCI link"),
    (60, "ROBUST_CHANNEL_SEC2_ERROR", "an exception in the security processor"),
    (68, "ROBUST_CHANNEL_NVDEC0_ERROR", "an exception in a video decoder"),
    (82, "ROBUST_CHANNEL_NVJPG0_ERROR", "an error in the JPEG engine"),
    (86, "ROBUST_CHANNEL_OFA0_ERROR", "an exception in the optical flow engine"),
    (94, "ROBUST_CHANNEL_CONTAINED_ERROR", "an uncorrectable memory error, contained to the processes that met it"),
    (139, "ROBUST_CHANNEL_OFA1_ERROR", "an error in the optical flow engine"),
)
_COPY_ENGINES = {39: 0, 40: 1, 41: 2, 70: 3, 71: 4, 72: 5, 75: 6, 76: 7, 77: 8, 85: 9} | {
    116 + engine: engine for engine in range(10, 20)
}
_DECODERS = {83: 1, 84: 2, 88: 3, 89: 4, 96: 5, 97: 6, 98: 7}
_RESET = (
    (46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", "the GPU stopped processing"),
    (62, "PMU_HALT_ERROR", "a micro-controller of the GPU halted"),
    (64, "INFOROM_DRAM_RETIREMENT_FAILURE", "a row of GPU memory could not be remapped"),
    (95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "an uncorrectable memory error that may have reached every process"),
    (109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", "a context switch timed out"),
    (110, "SEC_FAULT_ERROR", "a security fault"),
    (119, "GSP_RPC_TIMEOUT", "the GPU's system processor did not answer the driver"),
    (120, "GSP_ERROR", "an error in the GPU's system processor"),
    (136, "ALI_TRAINING_FAIL", "an NVLink could not be trained"),
    (140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "an ECC error that was not recovered"),
    (143, "GPU_INIT_ERROR", "the GPU could not be initialized"),
    (155, "NVLINK_SW_DEFINED_ERROR", "an NVLink error that software defines"),
    (156, "RESOURCE_RETIREMENT_EVENT", "a part of the GPU was retired, which takes effect with a reset"),
    (158, "GPU_FATAL_TIMEOUT", "a fatal timeout of the GPU"),
)
_HARMLESS = (
    (14, "ROBUST_CHANNEL_FAKE_ERROR", "a test message"),
    (37, "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD", "an error in the driver's firmware"),
    (38, "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT", "an error in the driver's firmware"),
    (44, "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW", "a fault during a context switch"),
    (63, "INFOROM_DRAM_RETIREMENT_EVENT", "a row of GPU memory will be remapped at the next reset"),
    (66, "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION", "an illegal access by the driver"),
    (67, "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION", "an illegal access by the driver"),
    (92, "EXCESSIVE_SBE_INTERRUPTS", "many correctable memory errors"),
    (93, "INFOROM_ERASE_LIMIT_EXCEEDED", "the board's information memory is wearing out"),
    (106, "SMBPBI_TEST_MESSAGE", "a test message"),
    (107, "SMBPBI_TEST_MESSAGE_SILENT", "a test message"),
    (108, "NVLINK_REMOTE_TRANSLATION_ERROR", "an address could not be translated at the other end of an NVLink"),
    (121, "C2C_ERROR", "an error between the GPU and the CPU's chip"),
    (137, "NVLINK_PRIV_ERR", "an access over NVLink that is not allowed, mostly the other end of another error"),
    (141, "ROBUST_CHANNEL_FAST_PATH_ERROR", "an error on CUDA's fast path"),
    (152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", "an error in the memory unit of the deep learning accelerator"),
    (153, "ROBUST_CHANNEL_DLA_TIMEOUT", "a timeout of the deep learning accelerator"),
    (157, "RESOURCE_RETIREMENT_FAILURE", "a part of the GPU could not be retired"),
    (160, "CHANNEL_RETIREMENT_EVENT", "a memory channel was retired"),
    (161, "CHANNEL_RETIREMENT_FAILURE", "a memory channel could not be retired"),
)
_NVLINK5 = {144: "SAW", 145: "RLW", 146: "TLW", 147: "TREX", 148: "NVLPW_CTRL", 149: "NETIR", 150: "MSE"}
_SINGLE = (
    Xid(
        code=45,
        name="ROBUST_CHANNEL_PREEMPTIVE_REMOVAL",
        sentence="the driver took down what a process had on the GPU",
        action="WORKFLOW_XID_45",
        severity=Severity.INFORMATIONAL,
        note="follows another XID, or the end of a process: that one decides",
    ),
    Xid(
        code=43,
        name="ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR",
        sentence="the application made an error and must end; the GPU is fine",
        action="IGNORE",
        severity=Severity.USER_ERROR,
        note="for the GPU nothing is to be done; the process that met it is over",
    ),
    Xid(
        code=48,
        name="ROBUST_CHANNEL_GPU_ECC_DBE",
        sentence="an uncorrectable memory error",
        action="WORKFLOW_XID_48",
        severity=Severity.RESET_NEEDED,
        note="the catalog's text: a reset of the GPU or of the node clears it",
    ),
    Xid(
        code=74,
        name="NVLINK_ERROR",
        sentence="an error on an NVLink",
        action="WORKFLOW_NVLINK_ERR",
        severity=Severity.RESET_NEEDED,
        note="the workflow decodes registers; most of its branches end in a reset",
    ),
    Xid(
        code=154,
        name="GPU_RECOVERY_ACTION_CHANGED",
        sentence="the driver says what the GPU needs",
        action="XID_154",
        severity=Severity.INFORMATIONAL,
        note="the line in the kernel log names the action, and a field of NVML does",
    ),
    Xid(
        code=79,
        name="ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        sentence="the GPU has fallen off the bus",
        action="RESTART_BM",
        severity=Severity.NODE_MUST_GO,
    ),
    Xid(
        code=54,
        name="SILENT_RUNNING_PWR_REDUCED_CLOCKING",
        sentence="auxiliary power is not connected to the board",
        action="CHECK_MECHANICALS",
        severity=Severity.NODE_MUST_GO,
    ),
    Xid(
        code=151,
        name="ROBUST_CHANNEL_KEY_ROTATION_ERROR",
        sentence="a key of confidential computing could not be rotated",
        action="RESTART_VM",
        severity=Severity.NODE_MUST_GO,
    ),
    Xid(
        code=169,
        name="SEC2_HALT_ERROR",
        sentence="a micro-controller of the GPU halted",
        action="",
        severity=Severity.RESET_NEEDED,
        note="no action in the catalog; as XID 62",
    ),
    Xid(
        code=167,
        name="PCIE_FATAL_TIMEOUT",
        sentence="a fatal timeout on the PCIe bus",
        action="",
        severity=Severity.RESET_NEEDED,
        note="no action in the catalog; as XID 158",
    ),
)
_USER_ERRORS = (
    (11, "ROBUST_CHANNEL_GR_ERROR_MISSING_HW", "invalid or corrupted commands were sent to the GPU"),
    (13, "ROBUST_CHANNEL_GR_EXCEPTION", "an exception in a kernel, such as an access out of bounds"),
    (25, "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY", "invalid or illegal commands were sent to the GPU"),
    (31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "an access to GPU memory that is not mapped"),
    (69, "ROBUST_CHANNEL_GR_CLASS_ERROR", "an error in the commands sent to the graphics engine"),
    (80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "corrupted data was sent to the GPU"),
)


def _all() -> Iterable[Xid]:
    yield from _SINGLE
    for code, name, sentence in _USER_ERRORS:
        yield Xid(
            code=code,
            name=name,
            sentence=sentence,
            action="RESTART_APP",
            severity=Severity.USER_ERROR,
            note=_APP,
        )
    engines = [
        (code, f"ROBUST_CHANNEL_CE{n}_ERROR", "an exception in a copy engine") for code, n in _COPY_ENGINES.items()
    ]
    decoders = [
        (code, f"ROBUST_CHANNEL_NVDEC{n}_ERROR", "an error in a video decoder") for code, n in _DECODERS.items()
    ]
    jpegs = [(98 + n, f"ROBUST_CHANNEL_NVJPG{n}_ERROR", "an error in the JPEG engine") for n in range(1, 8)]
    for action, rows in (
        ("RESTART_APP", (*_CRASHED, *engines, *decoders, *jpegs)),
        ("RESET_GPU", _RESET),
        ("IGNORE", _HARMLESS),
    ):
        for code, name, sentence in rows:
            severity = _CLASS_OF_ACTION[action]
            yield Xid(code=code, name=name, sentence=sentence, action=action, severity=severity)
    for code, part in _NVLINK5.items():
        yield Xid(
            code=code,
            name=f"NVLINK_{part}_ERROR",
            sentence="an error on an NVLink",
            action="WORKFLOW_NVLINK5_ERR",
            severity=Severity.INFORMATIONAL,
            note=_DECODED,
        )


XIDS: dict[int, Xid] = {xid.code: xid for xid in sorted(_all(), key=lambda xid: xid.code)}

# NVML's field NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, and the numbers of XID 154 in the kernel log.
RECOVERY_ACTIONS: dict[int, tuple[str, Severity]] = {
    0: ("None", Severity.INFORMATIONAL),
    1: ("GPU Reset", Severity.RESET_NEEDED),
    2: ("Node Reboot", Severity.NODE_MUST_GO),
    3: ("Drain P2P", Severity.RESTARTABLE),
    4: ("Drain and Reset", Severity.RESET_NEEDED),
    5: ("Recover IMEX Domain", Severity.RESTARTABLE),
    6: ("Bus Reset", Severity.RESET_NEEDED),
    7: ("System Reboot", Severity.NODE_MUST_GO),
}
_RECOVERY = re.compile(r" to 0x([0-9a-fA-F]+)")


def classify(code: int, text: str = "") -> tuple[Severity, str]:
    """The class of an XID and a sentence about it.

    Args:
        text: what the kernel log says after the code; NVML gives the code alone.
    """
    xid = XIDS.get(code)
    if xid is None:
        return Severity.INFORMATIONAL, f"XID {code}, which is not in the table of known codes"
    severity = xid.severity
    if code == 154:
        severity = _of_recovery(text)
    elif code in _NVLINK5 and re.search(r"(?<!non)(?<!non-)fatal", text, flags=re.IGNORECASE):
        severity = Severity.RESET_NEEDED
    return severity, f"XID {code} ({xid.name}): {xid.sentence}"


def recovery(action: int) -> tuple[Severity, str]:
    """The class of a recovery action, and its name."""
    name, severity = RECOVERY_ACTIONS.get(action, (f"action {action}", Severity.INFORMATIONAL))
    return severity, name


def _of_recovery(text: str) -> Severity:
    """From "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"; the words differ by version."""
    wanted = _RECOVERY.search(text)
    return recovery(int(wanted[1], 16))[0] if wanted is not None else Severity.INFORMATIONAL
