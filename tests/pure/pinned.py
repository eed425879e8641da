"""Digests of a few histories, which are the same on every machine and Python version.

They change with the control plane, and then are written anew: python -m tests.pure.pinned
"""

import functools
import json
from pathlib import Path

from elastic.sim.campaign import KINDS, Played, case_of, play

FILE = Path(__file__).parents[1] / "histories" / "pinned" / "digests.json"
SEEDS = (*range(len(KINDS)), 6, 27)
STEPS = 60


@functools.cache
def played(seed: int) -> Played:
    return play(case_of(seed, STEPS))


def digests() -> dict[str, str]:
    return {f"seed {seed}, {STEPS} steps": played(seed).digest for seed in SEEDS}


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(digests(), indent=1) + "\n")
