"""Effect. NVIDIA's resiliency extension, where it is installed (extra `nvidia`): its checks and its straggler sections.

It is imported only here, and only when asked for. Its checks say "healthy" where they can not look (no driver, or one
that is too old), so they are asked only where NVML was seen; its names have moved between versions 0.4 and 0.6.
"""

import contextlib
import importlib
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from elastic.control.hardware import Finding, FindingKind
from elastic.control.xid import Severity

log = logging.getLogger("elastic")

_HEALTH = "nvidia_resiliency_ext.shared_utils.health_check"
_STRAGGLER = ("nvidia_resiliency_ext.attribution.straggler", "nvidia_resiliency_ext.straggler")
_SLOW_SCORE = 0.75  # the extension's own threshold for a GPU against its best self
_REPORT_STEPS = 100
_PROFILED = 10  # every so many sections


class Checks:
    """The extension's checks of GPUs, of the adapters nearest to them, and of NVLinks; none if it is not installed.

    What they find is told, and nothing more: NVML's own reading of the same GPU says how bad it is.

    Args:
        devices: ids of the GPUs, by index.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._checks: list[tuple[str, str, FindingKind, Callable[[], Any]]] = []
        self._failing: set[str] = set()
        try:
            module = importlib.import_module(_HEALTH)
        except ImportError as error:
            log.debug("the checks of nvidia-resiliency-ext are not there: %s", error)
            return
        kinds = (("GPUHealthCheck", FindingKind.HEALTH), ("NicHealthCheck", FindingKind.NETWORK))
        for name, kind in (*kinds, ("NVLHealthCheck", FindingKind.NVLINK)):
            check = getattr(module, name, None)
            if check is not None and devices:
                self._add(name, kind, check, devices)

    @property
    def are_there(self) -> bool:
        return bool(self._checks)

    def run(self) -> list[Finding]:
        """What fails now and did not the last time."""
        found = []
        for name, device, kind, check in self._checks:
            try:
                says = check()
            except Exception as error:  # a stranger's code, in any version: it may fail, we may not
                log.debug("%s of nvidia-resiliency-ext failed: %s", name, error)
                continue
            is_new = says is False and name not in self._failing
            (self._failing.add if says is False else self._failing.discard)(name)
            if is_new:
                detail = f"{name} of nvidia-resiliency-ext fails"
                finding_kind = FindingKind.RECOVERY_ACTION if kind is FindingKind.HEALTH else kind
                found.append(
                    Finding(
                        device=device,
                        kind=finding_kind,
                        severity=Severity.INFORMATIONAL,
                        detail=detail,
                        code=f"nvrx {name}",
                    )
                )
        return found

    def _add(self, name: str, kind: FindingKind, check: Callable[..., Any], devices: Sequence[str]) -> None:
        try:
            for index, made in enumerate(_made(check, len(devices))):
                named = (name, "") if made.is_of_all else (f"{name} of GPU {index}", devices[index])
                self._checks.append((*named, kind, made.check))
        except Exception as error:  # a stranger's code, in any version
            log.debug("%s of nvidia-resiliency-ext can not be made: %s", name, error)


class _Made(NamedTuple):
    """A check that can be called, of one GPU or of all of them."""

    check: Callable[[], Any]
    is_of_all: bool = False


def _made(check: Callable[..., Any], gpus: int) -> list[_Made]:
    """One for each GPU where that can be said: by an argument, or, in version 0.4, afterwards; else one for all."""
    if "device_index" in inspect.signature(check).parameters:
        return [_Made(check(device_index=index)) for index in range(gpus)]
    first = check()
    if not hasattr(first, "set_nic_device"):
        return [_Made(first, is_of_all=True)]
    each = [first, *(check() for _ in range(1, gpus))]
    for index, one in enumerate(each):
        one.set_nic_device(index)
    return [_Made(one) for one in each]


class Sections:
    """The extension's straggler sections around a worker's computing: how its GPU does against its own best.

    Args:
        tell: called with the share of its best speed at which the GPU computes, at each report in which that is low.
        every: sections between two reports.
    """

    def __init__(self, tell: Callable[[float], None], every: int = _REPORT_STEPS) -> None:
        self._tell, self._every, self._count = tell, every, 0
        self._detector = _detector()

    @property
    def are_there(self) -> bool:
        return self._detector is not None

    @contextlib.contextmanager
    def section(self) -> Iterator[None]:
        """Around the computing of one step, which goes on whatever becomes of the section."""
        inside = self._entered()
        try:
            yield
        except BaseException as error:
            self._leave(inside, error)
            raise
        self._leave(inside)
        if self._detector is not None:
            self._count += 1
            if self._count % self._every == 0:
                self._report()

    def _entered(self) -> contextlib.AbstractContextManager[None] | None:
        """The extension's own section; None where there is none, or it can not begin: one profiler has CUPTI alone."""
        if self._detector is None:
            return None
        try:
            inside: contextlib.AbstractContextManager[None]
            inside = self._detector.detection_section("elastic-step", profile_cuda=True)
            inside.__enter__()
        except Exception as error:
            self._give_up("no section begins", error)
            return None
        return inside

    def _leave(self, inside: contextlib.AbstractContextManager[None] | None, why: BaseException | None = None) -> None:
        if inside is None:
            return
        try:
            inside.__exit__(type(why) if why is not None else None, why, why.__traceback__ if why is not None else None)
        except Exception as error:
            self._give_up("a section does not end", error)

    def _report(self) -> None:
        try:
            report = self._detector.generate_report()
            scores = dict(getattr(report, "gpu_individual_perf_scores", None) or {})
        except Exception as error:
            self._give_up("there is no report", error)
            return
        slow = [float(score) for score in scores.values() if float(score) < _SLOW_SCORE]
        if slow:
            self._tell(min(slow))

    def _give_up(self, what: str, error: Exception) -> None:
        log.debug("the straggler sections of nvidia-resiliency-ext are left out from now on: %s: %s", what, error)
        self._detector = None


def _detector() -> Any:
    """The extension's detector, initialized; None if it is not installed or can not work here (it needs CUPTI)."""
    for name in _STRAGGLER:
        try:
            detector = importlib.import_module(name).Detector
            # Scores against its own past need no word from other ranks: no collective may come in between.
            detector.initialize(
                scores_to_compute=["individual_perf_scores"], gather_on_rank0=False, profiling_interval=_PROFILED
            )
            return detector
        except Exception as error:
            log.debug("the straggler sections of nvidia-resiliency-ext are not there: %s", error)
    return None
