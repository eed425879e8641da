"""Effect. The demo from start to end: a run with faults, a run without, and the comparison."""

import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from elastic.actors.journal import JOURNAL
from elastic.actors.policy_file import load_policy
from elastic.actors.run_logs import FOLDER as LOGS
from elastic.control.outcome import Result
from elastic.demo.faults import Injector
from elastic.demo.hosts import Hosts
from elastic.demo.report import fault_row, relative_difference, sample_row, step_time_s
from elastic.demo.steplog import StepLog, read_step_log
from elastic.errors import SettingError
from elastic.settings import Scaling

_NODES = 3
_SCALING = Scaling(num_dp_replicas=(2, 4), spares=1)


def demo(
    out: Path,
    steps: int,
    seed: int,
    with_faults: bool,
    float64: bool,
    policy: str | None = None,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run it; returns what it writes to `out/run.json`, and tells it; default: the story for people."""
    began_s = time.time()
    if policy is not None:
        load_policy(policy)  # what is wrong with it is told before anything is started, or removed
    _remove_an_earlier_one(out)
    out.mkdir(parents=True, exist_ok=True)
    _say(f"starting a head and {_NODES} nodes with 2 slots each on this machine")
    with Hosts(_NODES) as hosts:
        example = _load_example()
        recipe = example.Recipe(steps=steps, seed=seed, float64=float64)
        injector = Injector(hosts, steps, seed) if with_faults else None
        _say("the run with faults" if injector else "the run")
        result = _train(example, recipe, out / "faulty", injector, policy)
        clean = None
        if injector is not None:
            _say("the same run without faults, for comparison")
            clean = _train(example, recipe, out / "clean", None)
    report = _report(out, result, clean, injector)
    report["wall_s"] = time.time() - began_s
    (out / "run.json").write_text(json.dumps(report, indent=2) + "\n")
    (tell or _tell)(report)
    if injector is not None and injector.left:
        raise SettingError(
            f"the run ended before {injector.left} of its faults could be injected: raise --steps={steps}"
        )
    return report


def _remove_an_earlier_one(out: Path) -> None:
    """
    Raises:
        SettingError: there are folders of the same names that no demo has written.
    """
    there = [folder for name in ("faulty", "clean") if (folder := out / name).exists()]
    for folder in there:
        if not (folder / JOURNAL).is_file() and {one.name for one in folder.iterdir()} - {LOGS}:
            raise SettingError(f"{folder} is not of an earlier demo, and would be replaced: name another --out")
    for folder in there:
        shutil.rmtree(folder)


def _train(
    example: ModuleType, recipe: Any, folder: Path, injector: Injector | None, policy: str | None = None
) -> Result:
    from elastic.api import fit
    from elastic.progress import Progress

    return fit(
        example.make_train_fn(recipe, step_log_dir=folder.absolute() / "steps"),
        policy=policy,
        scaling=_SCALING,
        callbacks=[Progress(), *([injector] if injector else [])],
        seed=recipe.seed,
        run_dir=folder,
    )


def _report(out: Path, result: Result, clean: Result | None, injector: Injector | None) -> dict[str, Any]:
    log = read_step_log(out / "faulty" / "steps")
    clean_log = read_step_log(out / "clean" / "steps") if clean is not None else None
    return {
        "faults": [fault_row(fault, log, result) for fault in (injector.faults if injector else [])],
        "samples": sample_row(log, clean_log),
        "steps": result.steps,
        "world_sizes": result.world_sizes,
        "digests_equal": len(set(log.digests.values())) == 1,
        "survivor_objects_kept": all(len(starts) == 1 for starts in log.objects.values()),
        "final_loss": _final_loss(log),
        "clean_final_loss": _final_loss(clean_log) if clean_log else None,
        "param_rel_diff_vs_clean": _difference(out) if clean is not None else None,
        "bits_per_byte": result.value["bits_per_byte"],
        "baseline_bits_per_byte": result.value["baseline_bits_per_byte"],
        "step_time_s": step_time_s(log),
        "goodput": result.goodput,
        "clean_goodput": clean.goodput if clean is not None else None,
    }


def _difference(out: Path) -> float:
    return relative_difference(out / "faulty" / "steps" / "final.pt", out / "clean" / "steps" / "final.pt")


def _final_loss(log: StepLog) -> float:
    return log.commits[-1].loss


def _load_example() -> ModuleType:
    """examples/bytes_gpt.py of a checkout, or the copy inside an installed package."""
    import ray.cloudpickle

    package = Path(__file__).resolve().parent.parent
    candidates = [package.parent / "examples" / "bytes_gpt.py", package / "_examples" / "bytes_gpt.py"]
    path = next((path for path in candidates if path.exists()), None)
    if path is None:
        raise FileNotFoundError(f"bytes_gpt.py is at none of {[str(c) for c in candidates]}: reinstall the package")
    spec = importlib.util.spec_from_file_location("bytes_gpt", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bytes_gpt"] = module
    spec.loader.exec_module(module)
    ray.cloudpickle.register_pickle_by_value(module)  # the workers need not have the file
    return module


def _say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


def _tell(report: dict[str, Any]) -> None:
    """The story of the run, for a person."""
    for row in report["faults"]:
        _tell_fault(row, report["step_time_s"])
    samples = report["samples"]
    lines = {
        "samples": f"{samples['committed']} committed, {samples['repeated']} repeated, {samples['skipped']} skipped",
        "world sizes": report["world_sizes"],
        "replicas identical": report["digests_equal"],
        "final loss": f"{report['final_loss']:.6f}",
        "bits per byte": f"{report['bits_per_byte']:.3f}",
        "byte frequencies alone": f"{report['baseline_bits_per_byte']:.3f} bits per byte",
        "goodput": f"{report['goodput']:.1%}",
        "wall time": f"{report['wall_s']:.1f} s",
    }
    if report["clean_final_loss"] is not None:
        lines["final loss"] += f", without faults {report['clean_final_loss']:.6f}"
        lines["parameters"] = f"differ by {report['param_rel_diff_vs_clean']:.2e} from the run without faults"
        lines["goodput"] += f", without faults {report['clean_goodput']:.1%}"
    print()
    for name, text in lines.items():
        print(f"{name:<24}{text}")


def _tell_fault(row: dict[str, Any], step_time_s: float) -> None:
    print(f"\n{row['kind']} {row['target'][:12]}")
    if row["detected_after_s"] is not None:
        print(f"  {'detected after':<26}{row['detected_after_s']:.3f} s")
    if row["resumed_after_s"] is not None:
        what = "next commit after" if row["detected_after_s"] is not None else "its worker is ready after"
        print(f"  {what:<26}{row['resumed_after_s']:.3f} s (a step takes {step_time_s:.3f} s)")
    print(f"  {'steps lost':<26}{row['steps_lost']}")
    print(f"  {'processes kept':<26}{row['survivor_pids_kept']} of {row['survivors']}")
