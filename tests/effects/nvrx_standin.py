"""What we use of nvidia-resiliency-ext, as a package of a few lines; `nvrx_contract.py` holds it to the real one."""

import sys
from pathlib import Path

HEALTH_CHECK_04 = """
class GPUHealthCheck:
    def __init__(self, interval=60, on_failure=None):
        pass
    def __call__(self):
        return False
class NicHealthCheck:
    def __init__(self, interval=60, pci_topo_file=None, link_down_path_template=None, on_failure=None):
        self.rank = None
    def set_nic_device(self, local_rank):
        self.rank = local_rank
    def __call__(self):
        return self.rank != 1
"""
HEALTH_CHECK_06 = """
class GPUHealthCheck:
    answers = {0: True, 1: False}
    def __init__(self, device_index=None, interval=60, on_failure=None):
        self.index = device_index
    def __call__(self):
        return self.answers[self.index]
class NicHealthCheck:
    def __init__(self, device_index=None, interval=60, pci_topo_file=None):
        self.index = device_index
    def __call__(self):
        return self.index == 1
class NVLHealthCheck(GPUHealthCheck):
    def __call__(self):
        raise RuntimeError("no library")
"""
STRAGGLER = """
import contextlib
import nvrx_cupti_module
class Report:
    def __init__(self, rank_to_score):
        self.gpu_individual_perf_scores = rank_to_score
class Detector:
    initialized = False
    @classmethod
    def initialize(cls, scores_to_compute="all", gather_on_rank0=True, profiling_interval=1):
        assert not cls.initialized and scores_to_compute == ["individual_perf_scores"] and not gather_on_rank0
        cls.profiler, cls.initialized, cls.best = nvrx_cupti_module.CuptiProfiler(), True, float("inf")
    @classmethod
    @contextlib.contextmanager
    def detection_section(cls, name=None, profile_cuda=True):
        cls.profiler.start()
        try:
            yield
        finally:
            cls.profiler.stop()
    @classmethod
    def generate_report(cls):
        (kernel,) = cls.profiler.get_stats().values()
        cls.best = min(cls.best, kernel.median)
        return Report({0: cls.best / kernel.median})
"""
CUPTI = '''
"""In place of the extension's own library, which needs CUPTI: each report finds the one kernel twice as slow."""
class Kernel:
    def __init__(self, median):
        self.min = self.max = self.median = self.avg = median
        self.stddev, self.num_calls = 0.0, 1
class CuptiProfiler:
    refused = ""
    def __init__(self, **sizes):
        self.median = 1.0
    def initialize(self):
        pass
    def start(self):
        if self.refused:
            raise RuntimeError(self.refused)
    def stop(self):
        if self.refused:
            raise RuntimeError(self.refused)
    def reset(self):
        pass
    def get_stats(self):
        self.median *= 2
        return {"kernel": Kernel(self.median)}
'''
CUPTI_NAME = "nvrx_cupti_module"
_PACKAGE = "nvidia_resiliency_ext"


def write(folder: Path, health_check: str) -> None:
    """The package, in a folder to be imported from."""
    write_cupti(folder)
    for name, text in (("shared_utils/health_check", health_check), ("straggler", STRAGGLER)):
        path = folder / _PACKAGE / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()


def write_cupti(folder: Path) -> None:
    (folder / f"{CUPTI_NAME}.py").write_text(CUPTI)


def forget() -> None:
    """What was imported of it."""
    for name in [name for name in sys.modules if name.startswith(_PACKAGE) or name == CUPTI_NAME]:
        del sys.modules[name]
