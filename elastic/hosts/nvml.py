"""Effect. GPUs through NVIDIA's management library, as `nvidia-ml-py` (module `pynvml`) calls it.

One thread at a time: whoever opened it. Any call may hang with the driver, so that thread is watched by another.
Sources: NVML API Reference Guide (event sets, ECC, row remapper, NVLink, clocks event reasons, field values).
"""

import contextlib
import ctypes
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import pynvml as nvml

from elastic.control.hardware import GpuReading, nameless
from elastic.control.kernel_lines import pci_address

log = logging.getLogger("elastic")

_LOST = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND)
_CLOSED = (nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
_NEVER = (
    nvml.NVML_ERROR_NOT_SUPPORTED,
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    nvml.NVML_ERROR_NO_PERMISSION,
    nvml.NVML_ERROR_INVALID_ARGUMENT,
)
# (name, type of error, since when): what is uncorrected since the last reset is data that was lost.
_ECC = (
    ("uncorrected ECC errors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
    ("corrected ECC errors", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
    ("uncorrected ECC errors since ever", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC),
    ("corrected ECC errors since ever", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_AGGREGATE_ECC),
)
_REMAPPED = ("remapped rows after corrected errors", "remapped rows after uncorrected errors")
_RECOVERY_ACTION = nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_LINK_COUNTERS = {
    nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: "NVLink CRC errors (flow)",
    nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL: "NVLink CRC errors (data)",
    nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: "NVLink replays",
    nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: "NVLink recoveries",
    nvml.NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL: "NVLink ECC errors",
}
# Not the software's power cap: a GPU that is busy runs at its own.
_THROTTLED = {
    nvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    nvml.nvmlClocksEventReasonSwThermalSlowdown: "heat (software)",
    nvml.nvmlClocksEventReasonHwThermalSlowdown: "heat (hardware)",
    nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
}
_EVENTS = (
    nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeGpuUnavailableError | nvml.nvmlEventTypeGpuRecoveryAction
)
_WIDTHS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


class NoGpusError(Exception):
    """There is nothing to look at; the message says why."""


class GpuGoneError(Exception):
    """A GPU does not answer any more."""


class ResetNeededError(Exception):
    """A GPU answers every question with: reset me."""


class Gpu:
    """One device, and what it can not tell."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self.device = str(nvml.nvmlDeviceGetUUID(self.handle))
        address = nvml.nvmlDeviceGetPciInfo(self.handle).busId
        self.pci = pci_address(address.decode() if isinstance(address, bytes) else str(address))
        self.unseen: set[str] = set()
        self._links: int | None = None
        self._were_up: frozenset[int] = frozenset()

    def ask(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None if this GPU does not tell it.

        Raises:
            GpuGoneError, ResetNeededError: it tells nothing any more.
            NoGpusError: the library was closed by somebody.
        """
        if what in self.unseen:
            return None
        try:
            return function(self.handle, *arguments)
        except nvml.NVMLError as error:
            if error.value in _NEVER:
                self.unseen.add(what)
            else:
                self._heed(what, error)
        return None

    def _heed(self, what: str, error: nvml.NVMLError) -> None:
        """Raises what `ask` does, unless the next look may be answered."""
        code = error.value
        if code in _LOST:
            raise GpuGoneError(str(error)) from error
        if code == nvml.NVML_ERROR_RESET_REQUIRED:
            raise ResetNeededError(str(error)) from error
        if code in _CLOSED:
            raise NoGpusError(str(error)) from error
        log.debug("GPU %d does not tell its %s now: %s", self.index, what, error)

    def read(self, with_links: bool) -> GpuReading:
        """One look; `with_links`: at NVLinks and processes too, which change seldom."""
        known: dict[str, Any] = {"device": self.device, "index": self.index, "pci": self.pci}
        try:
            known |= self._read_often()
            if with_links:
                known |= self._read_seldom(known["counters"])
        except GpuGoneError as error:
            known["lost"] = str(error)
        except ResetNeededError:
            known["needs_reset"] = True
        return GpuReading(**known)

    def _read_often(self) -> dict[str, Any]:
        counters = {}
        for name, kind, since in _ECC:
            count = self.ask("ECC errors", nvml.nvmlDeviceGetTotalEccErrors, kind, since)
            if count is not None:
                counters[name] = int(count)
        remapped = self.ask("row remapping", nvml.nvmlDeviceGetRemappedRows)
        if remapped is not None:
            counters |= dict(zip(_REMAPPED, map(int, remapped[:2]), strict=True))
        power = self.ask("power", nvml.nvmlDeviceGetPowerUsage)
        rates = self.ask("utilization", nvml.nvmlDeviceGetUtilizationRates)
        memory = self.ask("memory", nvml.nvmlDeviceGetMemoryInfo)
        return {
            "counters": counters,
            "remap_pending": remapped is not None and bool(remapped[2]),
            "remap_failed": remapped is not None and bool(remapped[3]),
            "recovery_action": self._fields((_RECOVERY_ACTION,), "recovery action").get(_RECOVERY_ACTION),
            "temperature_c": self._temperature(),
            "hot_at_c": self.ask(
                "temperature limit", nvml.nvmlDeviceGetTemperatureThreshold, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            ),
            "power_w": power / 1000 if power is not None else None,
            "throttled": self._throttled(),
            "utilization": rates.gpu if rates is not None else None,
            "memory_used_bytes": memory.used if memory is not None else None,
            "memory_bytes": memory.total if memory is not None else None,
        }

    def _read_seldom(self, counters: dict[str, int]) -> dict[str, Any]:
        fields = self._fields(tuple(_LINK_COUNTERS), "NVLink errors")
        counters |= {_LINK_COUNTERS[field]: value for field, value in fields.items()}
        processes = self.ask("processes", nvml.nvmlDeviceGetComputeRunningProcesses) or []
        return {"links_up": self._links_up(), "pids": tuple(int(process.pid) for process in processes)}

    def _temperature(self) -> int | None:
        """By the newer call where the driver has it."""
        now = self.ask("temperature", nvml.nvmlDeviceGetTemperatureV, nvml.NVML_TEMPERATURE_GPU)
        if now is None:
            now = self.ask("temperature (older call)", nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        return int(now) if now is not None else None

    def _throttled(self) -> frozenset[str]:
        reasons = self.ask("throttling", nvml.nvmlDeviceGetCurrentClocksEventReasons) or 0
        return frozenset(name for bit, name in _THROTTLED.items() if reasons & bit)

    def _fields(self, numbers: tuple[int, ...], what: str) -> dict[int, int]:
        values = self.ask(what, nvml.nvmlDeviceGetFieldValues, list(numbers)) or ()
        found = {
            int(one.fieldId): int(getattr(one.value, _WIDTHS[one.valueType]))
            for one in values
            if one.nvmlReturn == nvml.NVML_SUCCESS and one.valueType < len(_WIDTHS)
        }
        if values and all(one.nvmlReturn in _NEVER for one in values):
            self.unseen.add(what)
        return found

    def _links_up(self) -> frozenset[int]:
        """Active NVLinks; one that does not tell is as it was. How many there are is found out with the first look."""
        up = set[int]()
        for link in range(self._links if self._links is not None else nvml.NVML_NVLINK_MAX_LINKS):
            try:
                if nvml.nvmlDeviceGetNvLinkState(self.handle, link) == nvml.NVML_FEATURE_ENABLED:
                    up.add(link)
            except nvml.NVMLError as error:
                if error.value in _NEVER:
                    self._links = link
                    break
                self._heed(f"NVLink {link}", error)
                up |= self._were_up & {link}
        self._were_up = frozenset(up)
        return self._were_up


class Gpus:
    """All GPUs of this node.

    Raises:
        NoGpusError: there is no library, no driver, or no GPU.
    """

    def __init__(self) -> None:
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NoGpusError(f"no driver library of NVIDIA answers ({error})") from error
        try:
            self._gpus: list[Gpu] = []
            self._without_handle: list[GpuReading] = []
            self._hidden: set[str] = set()
            for index in range(nvml.nvmlDeviceGetCount()):
                self._find(index)
            self._by_handle = {_address(gpu.handle): gpu for gpu in self._gpus}
            self._events = self._registered() if self._gpus else None
        except nvml.NVMLError as error:
            self._shutdown()
            raise NoGpusError(f"the driver of NVIDIA does not show its GPUs ({error})") from error
        if not self._gpus and not self._without_handle:
            self._shutdown()
            raise NoGpusError("the driver of NVIDIA knows of no GPU here")

    @property
    def devices(self) -> Mapping[str, Gpu]:
        """By UUID."""
        return {gpu.device: gpu for gpu in self._gpus}

    @property
    def unseen(self) -> list[str]:
        """What some GPU does not tell, known after the first look."""
        missing = {what for gpu in self._gpus for what in gpu.unseen if "older call" not in what}
        return sorted(missing | self._hidden | (set() if self._events is not None else {"XIDs as events"}))

    def read(self, with_links: bool) -> list[GpuReading]:
        """One look at each; of those that have no handle, that it is so."""
        return [*(gpu.read(with_links) for gpu in self._gpus), *self._without_handle]

    def wait(self, timeout_s: float) -> tuple[str, int] | None:
        """The next XID: (UUID, code); the code is 0 for other news. None if there is none in time.

        Raises:
            NoGpusError: the driver was taken down.
        """
        if self._events is None:
            time.sleep(timeout_s)
            return None
        try:
            news = nvml.nvmlEventSetWait_v2(self._events, int(timeout_s * 1000))
        except nvml.NVMLError as error:
            if error.value in _CLOSED:
                raise NoGpusError(str(error)) from error
            if error.value != nvml.NVML_ERROR_TIMEOUT:  # a GPU that is lost ends the wait at once, again and again
                time.sleep(timeout_s)
                return None if error.value not in _LOST else ("", 0)
            return None
        gpu = self._by_handle.get(_address(news.device))
        is_xid = news.eventType == nvml.nvmlEventTypeXidCriticalError
        return (gpu.device if gpu is not None else "", int(news.eventData) if is_xid else 0)

    def close(self) -> None:
        if self._events is not None:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(self._events)
        self._shutdown()

    def _find(self, index: int) -> None:
        """A GPU that is lost may not even have a handle; the others are looked at all the same."""
        try:
            self._gpus.append(Gpu(index))
        except nvml.NVMLError as error:
            if error.value in _CLOSED:
                raise
            if error.value in _NEVER:  # nobody here may use it
                self._hidden.add(f"GPU {index} ({error})")
            else:
                self._without_handle.append(nameless(index, str(error)))

    def _registered(self) -> Any:
        """An event set for what the GPUs can tell; None if they tell nothing."""
        events, is_any = nvml.nvmlEventSetCreate(), False
        for gpu in self._gpus:
            try:
                mask = nvml.nvmlDeviceGetSupportedEventTypes(gpu.handle) & _EVENTS
                if mask:
                    nvml.nvmlDeviceRegisterEvents(gpu.handle, mask, events)
                    is_any = is_any or bool(mask & nvml.nvmlEventTypeXidCriticalError)
            except nvml.NVMLError as error:
                log.debug("GPU %d tells no events: %s", gpu.index, error)
        if is_any:
            return events
        nvml.nvmlEventSetFree(events)
        return None

    @staticmethod
    def _shutdown() -> None:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _address(handle: Any) -> int:
    """Handles are pointers; two of one device are equal as numbers."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
