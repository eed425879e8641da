"""What `elastic/hosts/nvrx.py` takes for granted of nvidia-resiliency-ext, asked of whichever can be imported.

    python tests/effects/nvrx_contract.py CUPTI_FOLDER

Prints a JSON object: what does not hold, and the parameters of all that is used. No GPU is needed: of the package, only
its own library for CUPTI and torch's word to CUDA are replaced, and no collective is let through.
"""

import contextlib
import importlib
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from elastic.hosts import nvrx

CHECKS = ("GPUHealthCheck", "NicHealthCheck", "NVLHealthCheck")
DEVICES = ("GPU-a", "GPU-b")


def main(cupti_folder: str) -> None:
    sys.path.insert(0, cupti_folder)
    breaches: list[str] = []
    health, straggler = importlib.import_module(nvrx._HEALTH), _straggler()
    used = {name: getattr(health, name) for name in CHECKS if hasattr(health, name)}
    parts: dict[str, Any] = dict(used)
    for name, check in used.items():
        breaches += breaches_of_check(name, check)
        if hasattr(check, "set_nic_device"):
            parts[f"{name}.set_nic_device"] = check.set_nic_device
    breaches += [f"there is no {name}" for name in CHECKS[:2] if name not in used]
    detector = straggler.Detector
    for name in ("initialize", "detection_section", "generate_report"):
        parts[f"Detector.{name}"] = getattr(detector, name)
    with without_gpus():
        profiler = importlib.import_module("nvrx_cupti_module").CuptiProfiler
        breaches += [*breaches_of_detector(detector), *breaches_of_ours(), *breaches_of_a_refusal(detector, profiler)]
    found = {name: list(inspect.signature(part).parameters) for name, part in parts.items()}
    print(json.dumps({"breaches": breaches, "parameters": found}))


def _straggler() -> types.ModuleType:
    """The first of its names, as ours looks for it."""
    for name in nvrx._STRAGGLER:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise ImportError(f"none of {nvrx._STRAGGLER}")


def breaches_of_check(name: str, check: Any) -> Iterator[str]:
    """A class; made of a GPU's index, or of nothing and told the index afterwards; called, it answers with a bool."""
    if not inspect.isclass(check):
        yield f"{name} is no class"
        return
    is_of_one = "device_index" in inspect.signature(check).parameters
    yield from _refusals(name, check, **({"device_index": 0} if is_of_one else {}))
    made = check(device_index=0) if is_of_one else check()
    yield from _refusals(f"{name}()", made)
    if hasattr(made, "set_nic_device"):
        yield from _refusals(f"{name}.set_nic_device", made.set_nic_device, 0)
        made.set_nic_device(0)
    if name in CHECKS[:2]:  # that of NVLinks asks for a library of the driver
        answer = made()
        if not isinstance(answer, bool):
            yield f"{name}() answers {answer!r}, no bool"


def breaches_of_detector(detector: Any) -> Iterator[str]:
    """Ours gives names to all that it passes, but for the name of a section; a report's scores are numbers by rank."""
    told = {"scores_to_compute": ["individual_perf_scores"], "gather_on_rank0": False, "profiling_interval": 10}
    yield from _refusals("Detector.initialize", detector.initialize, **told)
    yield from _refusals("Detector.detection_section", detector.detection_section, "elastic-step", profile_cuda=True)
    yield from _refusals("Detector.generate_report", detector.generate_report)
    detector.initialize(**told)
    with detector.detection_section("elastic-step", profile_cuda=True):
        pass
    scores = getattr(detector.generate_report(), "gpu_individual_perf_scores", None)
    if not isinstance(scores, Mapping) or [type(score) for score in scores.values()] != [float]:
        yield f"a report's gpu_individual_perf_scores are {scores!r}, not one float by rank"
    detector.initialized = False


def breaches_of_ours() -> Iterator[str]:
    """The code itself, on what is there."""
    checks = nvrx.Checks(DEVICES)
    of = {device for _, device, _, _ in checks._checks}
    if not set(DEVICES) <= of:
        yield f"its checks are of {sorted(of)}, not of each of {DEVICES}"
    checks.run()
    told: list[float] = []
    sections = nvrx.Sections(told.append, every=2)
    if not sections.are_there:
        yield "its sections are not there"
    for _ in range(4):  # two reports, of which the second finds the kernel twice as slow
        with sections.section():
            pass
    if told != [0.5]:
        yield f"it tells {told} of a GPU at half of its best speed, not [0.5]"


def breaches_of_a_refusal(detector: Any, profiler: Any) -> Iterator[str]:
    """Another profiler has taken CUPTI: the step goes on, and what it raises is its own."""
    for where in ("before", "in"):
        for own in (None, ValueError("the step's own")):
            detector.initialized, profiler.refused = False, ""
            sections = nvrx.Sections(lambda share: None)
            seen: list[BaseException] = []
            try:
                profiler.refused = "it is taken" if where == "before" else ""
                with sections.section():
                    profiler.refused = "it is taken"
                    if own is not None:
                        raise own
            except Exception as error:
                seen.append(error)
            if seen != [own][: own is not None]:
                yield f"a step that raises {own!r} is seen to raise {seen} where CUPTI is taken {where} it"
            if sections.are_there:
                yield f"its sections go on although CUPTI was taken {where} a step"


@contextlib.contextmanager
def without_gpus() -> Iterator[None]:
    """All that is done to GPUs is taken for done, and no word is exchanged between ranks."""
    import torch

    class Talks(AssertionError):
        """A collective in a worker that talks to nobody."""

    def refuse(*arguments: Any, **named: Any) -> None:
        raise Talks("a collective was begun")

    torch.cuda.synchronize = lambda device=None: None
    for name in ("all_reduce", "all_gather_object", "gather", "gather_object", "broadcast", "barrier"):
        setattr(torch.distributed, name, refuse)
    for module in [one for name, one in sys.modules.items() if name.endswith("straggler.dist_utils")]:
        for name in ("all_reduce", "all_gather_object", "gather_on_rank0"):
            setattr(module, name, refuse)
    yield


def _refusals(name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Iterator[str]:
    try:
        inspect.signature(call).bind(*arguments, **named)
    except TypeError as error:
        yield f"{name} does not take what it is given: {error}"


if __name__ == "__main__":
    main(sys.argv[1])
