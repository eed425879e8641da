"""Effect. From step logs, faults and incidents to `run.json`: every figure measured from outside the product."""

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import torch

from elastic.control.outcome import Result
from elastic.demo.faults import Fault
from elastic.demo.steplog import StepLog


def fault_row(fault: Fault, log: StepLog, result: Result) -> dict[str, Any]:
    """What one fault cost."""
    after = [c for c in log.commits if c.at_s > fault.at_s and (c.attempt[1] > fault.generation or not fault.victims)]
    kept = [pid for pid in fault.survivors if any(c.pid == pid for c in after)]
    detected = [i.opened_at_s for i in result.incidents if i.opened_at_s >= fault.at_s]
    resumed_s = _all_committed(after, kept) if fault.victims else fault.manned_at_s
    return {
        "kind": fault.kind,
        "target": fault.target,
        "injected_at_s": fault.at_s,
        "detected_after_s": min(detected) - fault.at_s if detected and fault.victims else None,
        "resumed_after_s": resumed_s - fault.at_s if resumed_s is not None else None,
        "steps_lost": steps_lost(fault, log),
        "survivor_pids_kept": len(kept),
        "survivors": len(fault.survivors),
    }


def _all_committed(after: list[Any], kept: list[int]) -> float | None:
    """When the last survivor had committed its next step."""
    firsts = [next(c.at_s for c in after if c.pid == pid) for pid in kept]
    return max(firsts) if firsts else None


def steps_lost(fault: Fault, log: StepLog) -> int:
    """Steps done before the fault and done again after it: told as stable, or applied by a survivor."""
    before = {(c.pid, c.step) for c in log.commits if c.at_s <= fault.at_s}
    again = {c.step for c in log.commits if c.at_s > fault.at_s and c.attempt[1] > fault.generation}
    done = set(range(fault.stable + 1)) | {step for pid, step in before if pid in fault.survivors}
    return len(done & again)


def sample_row(log: StepLog, clean: StepLog | None) -> dict[str, int]:
    """Exactly once: what committed steps consumed, against the run without faults where there is one."""
    samples = log.samples()
    repeated = sum(times - 1 for times in samples.values())
    wanted: Counter[tuple[int, int]] = clean.samples() if clean is not None else Counter(samples.keys())
    return {
        "committed": sum(samples.values()),
        "distinct": len({sample for _, sample in samples}),
        "repeated": repeated + sum((Counter(samples.keys()) - wanted).values()),
        "skipped": sum((wanted - samples).values()),
    }


def relative_difference(ours: Path, clean: Path) -> float:
    """||a - b|| / ||b|| over all parameters, in float64."""
    a, b = (torch.load(path, weights_only=True) for path in (ours, clean))
    difference = sum(float(((a[name] - b[name]).double() ** 2).sum()) for name in b)
    norm = sum(float((b[name].double() ** 2).sum()) for name in b)
    return float((difference / norm) ** 0.5)


def step_time_s(log: StepLog) -> float:
    """Median time between commits of a process."""
    by_pid: dict[int, list[float]] = {}
    for commit in log.commits:
        by_pid.setdefault(commit.pid, []).append(commit.at_s)
    gaps = [b - a for times in by_pid.values() for a, b in zip(times, times[1:], strict=False)]
    return median(gaps) if gaps else 0.0
