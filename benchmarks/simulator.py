"""What simulating costs: fleets of 1,024 to 100,000 GPUs, the protocol campaign, growth; and the case study's table.

python -m benchmarks.simulator --out simulator.json      # --skip fleet_100k, --worlds 100
"""

import argparse
import json
import math
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance
from elastic.commands.many import processors, spread
from elastic.commands.scenarios import load
from elastic.commands.simulating import study
from elastic.sim.campaign import STEPS, case_of, play
from elastic.sim.failures import failures_of
from elastic.sim.scenario import Cluster, Failures, Job, Scenario, Times
from elastic.sim.study import simulate

FLEETS = {"fleet_1k": (5.0, 500), "llama3": (120.0, 2048), "fleet_100k": (600.0, 6144)}  # goals: seconds, MiB
SIZES = (32, 64, 128, 256)
CAMPAIGN_S = 120.0  # no world is begun after that
MIB = 2**20
_SEED = 1  # of the runs by which growth is measured


def fleet(name: str) -> dict[str, Any]:
    """One seed of a preset, in a process of its own."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_fleet, name).result()


def _fleet(name: str) -> dict[str, Any]:
    scenario = load(name)[0].scenario
    begun_s = time.perf_counter()
    busy_s = time.process_time()
    ran = simulate(scenario, 0)
    goal_s, goal_mib = FLEETS[name]
    return {
        "name": name,
        "gpus": scenario.cluster.gpus,
        "replicas": scenario.cluster.replicas,
        "hours": scenario.job.hours,
        "seconds": time.perf_counter() - begun_s,
        "cpu_seconds": time.process_time() - busy_s,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB,
        "goal_seconds": goal_s,
        "goal_mib": goal_mib,
        "goodput": ran.goodput,
        "incidents": len(ran.failures),
        "resizes": len(ran.incidents) - len(ran.failures),
        "generations": ran.generations,
        "events": ran.events,
    }


def campaign(worlds: int, jobs: int, within_s: float = CAMPAIGN_S) -> dict[str, Any]:
    """Worlds of 200 steps a second, on all processors, as the command plays them; those for which there was time."""
    begun_s = time.perf_counter()
    sound = spread(partial(_is_sound, begun_s + within_s), range(worlds), jobs)
    seconds = time.perf_counter() - begun_s
    played = len(sound) - sound.count(None)
    found = {"worlds": played, "asked": worlds, "steps": STEPS, "processes": jobs, "seconds": seconds}
    found |= {"violations": sound.count(False), "worlds_per_s": played / seconds, "goal_worlds_per_s": 5.0}
    return found


def _is_sound(until_s: float, seed: int) -> bool | None:
    """Whether the world of this seed is; None: it was too late to begin it."""
    return play(case_of(seed, STEPS)).is_sound if time.perf_counter() < until_s else None


def exponents() -> dict[str, Any]:
    """By which power of the replicas, and of the failures that were drawn, the processor's time grows."""
    by_replicas = [(size, _busy_s(_scenario(size, 40.0))) for size in SIZES]
    rates = [_scenario(64, rate) for rate in (20.0, 40.0, 80.0, 160.0)]
    by_failures = [(len(failures_of(scenario, _SEED)), _busy_s(scenario)) for scenario in rates]
    told = {"replicas": by_replicas, "failures": by_failures}
    return {name: {"points": points, "exponent": slope(points)} for name, points in told.items()}


def _scenario(replicas: int, per_day: float) -> Scenario:
    return Scenario(
        name="growth",
        cluster=Cluster(gpus=8 * replicas, spare_nodes=4, repair_s=3600.0),
        job=Job(hours=48.0),
        failures=Failures(per_day=per_day),
        times=Times(loading_s=120.0),
    )


def _busy_s(scenario: Scenario) -> float:
    taken = []
    for _ in range(3):
        begun_s = time.process_time()
        simulate(scenario, _SEED)
        taken.append(time.process_time() - begun_s)
    return min(taken)


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line of least squares through the logarithms."""
    xs, ys = [math.log(x) for x, _ in points], [math.log(y) for _, y in points]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    across = sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True))
    return across / sum((x - middle_x) ** 2 for x in xs)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.simulator", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--skip", action="append", default=[], choices=[*FLEETS, "campaign", "growth", "case-study"])
    parser.add_argument("--worlds", type=int, default=400)
    given = parser.parse_args(arguments)
    found: dict[str, Any] = {"benchmark": "simulator", "provenance": provenance()}
    found["fleets"] = [fleet(name) for name in FLEETS if name not in given.skip]
    if "campaign" not in given.skip:
        found["campaign"] = campaign(given.worlds, processors())
    if "growth" not in given.skip:
        found["growth"] = exponents()
    if "case-study" not in given.skip:
        told = study(None, processors())
        found |= {"case_study": told["rows"], "log_896": told["log_rows"]}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    for row in found["fleets"]:
        print(f"{row['name']}: {row['seconds']:.1f} s, {row['rss_mib']:.0f} MiB, goodput {row['goodput']:.4f}")
    if "campaign" in found:
        told = found["campaign"]
        print(f"campaign: {told['worlds_per_s']:.1f} worlds/s, {told['worlds']} of {told['asked']} worlds")
    for name, grown in found.get("growth", {}).items():
        print(f"growth with {name}: exponent {grown['exponent']:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
