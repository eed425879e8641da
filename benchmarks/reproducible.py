"""What reproducible mode costs: the same run of elastic with and without it, in turns.

    python -m benchmarks.reproducible --out reproducible.json

Both runs live side by side and take turns in blocks of steps, as in `benchmarks.overhead`, whose turnstile this uses;
only the ratio within a pair of blocks is compared, of steps per second and of processor time. Workers that do not
divide the micro-batches hold more blocks of the fixed order each, and pay more: `blocks_per_worker` in the result.
"""

import argparse
import dataclasses
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray

from benchmarks.overhead import Settings, Turnstile, run_elastic, summarize
from benchmarks.provenance import provenance
from elastic.control.data import deal, even
from elastic.control.ordered import blocks

REPRODUCIBLE, PLAIN = "reproducible", "plain"


def run(settings: Settings) -> list[dict[str, Any]]:
    """Measure all pairs on a local Ray cluster."""
    ray.init(address="local", num_cpus=2 * settings.workers, include_dashboard=False)
    with ThreadPoolExecutor(3) as threads, Turnstile(settings) as turnstile:
        pairs = threads.submit(turnstile.measure)
        runs = [
            threads.submit(run_elastic, settings, turnstile.address, side, reproducible=side == REPRODUCIBLE)
            for side in settings.sides
        ]
        for one in runs:
            one.result()
        return pairs.result()


def main() -> None:
    """Measure, write the result, print a short table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--blocks", type=int, default=12, help="pairs of blocks, warm-up not counted")
    parser.add_argument("--steps-per-block", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    settings = Settings(
        sides=(REPRODUCIBLE, PLAIN),
        blocks=args.blocks,
        steps_per_block=args.steps_per_block,
        workers=args.workers,
        seed=args.seed,
    )
    recipe = settings.recipe
    hands = [deal(recipe.batch_size // recipe.micro_batch_size, even(args.workers), r) for r in range(args.workers)]
    origin = provenance()
    pairs = run(settings)[1:]
    summary = summarize(settings, pairs)
    details = {
        "blocks_per_worker": [len(blocks(hand)) for hand in hands],
        "cpu_ratio": statistics.median(p[REPRODUCIBLE]["cpu_s_per_step"] / p[PLAIN]["cpu_s_per_step"] for p in pairs),
        "losses_differ_by": max(abs(pair[REPRODUCIBLE]["loss"] - pair[PLAIN]["loss"]) for pair in pairs),
        "blocks": pairs,
        "settings": dataclasses.asdict(settings) | {"recipe": dataclasses.asdict(recipe)},
        "provenance": origin,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"benchmark": "reproducible"} | summary | details, indent=2) + "\n")
    low, high = summary["ratio_ci95"]
    for side in settings.sides:
        print(f"{side:13} {summary[f'{side}_steps_per_s']:7.2f} steps/s")
    print(f"{'cpu per step':13} {details['cpu_ratio']:7.3f}   times that of the plain run, median of the pairs")
    print(f"{'ratio':13} {summary['ratio']:7.3f}   95 % of resampled medians in {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
