"""Digests of a few histories and fleets, which are the same on every machine and Python version.

They change with the control plane, and then are written anew: python -m tests.pure.pinned
"""

import functools
import json
from dataclasses import replace
from pathlib import Path

from elastic.commands.scenarios import load
from elastic.sim.campaign import KINDS, Played, case_of, play
from elastic.sim.study import simulate

FOLDER = Path(__file__).parents[1] / "histories" / "pinned"
FILE, FLEETS_FILE = FOLDER / "digests.json", FOLDER / "fleets.json"
SEEDS = (*range(len(KINDS)), 6, 27)
STEPS = 60
FLEETS = (
    ("case_study", "plain"),
    ("case_study", "scale down and up"),
    ("case_study", "elastic"),
    ("spot_256", "restarts"),
    ("spot_256", "elastic"),
    ("fleet_1k", "fleet_1k"),
    ("fleet_16k", "fleet_16k"),
)
HOURS = 24.0  # at most, of a fleet


@functools.cache
def played(seed: int) -> Played:
    return play(case_of(seed, STEPS))


def digests() -> dict[str, str]:
    return {f"seed {seed}, {STEPS} steps": played(seed).digest for seed in SEEDS}


def fleet_digests() -> dict[str, str]:
    """Of one seed of a row, in both ways of living with failures."""
    rows = {(preset, row.name): row.scenario for preset in {preset for preset, _ in FLEETS} for row in load(preset)}
    wanted = {f"{preset}, {name}": rows[preset, name] for preset, name in FLEETS}
    shorter = {
        name: replace(one, job=replace(one.job, hours=min(HOURS, one.job.hours))) for name, one in wanted.items()
    }
    return {name: f"{simulate(one, 0).digest:08x}" for name, one in shorter.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, found in (FILE, digests()), (FLEETS_FILE, fleet_digests()):
        file.write_text(json.dumps(found, indent=1) + "\n")
