"""All systems side by side in all that `make bench` compares: parts, one after the other, a file each.

    sudo python -m benchmarks.suite --out runs/bench              # under an hour; --plan quick, --plan full

One process plays all parts on hosts that they share. What goes wrong with a run is told in its row, and ends nothing
else; no run begins after `--minutes`, and those that had no turn are told as such.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from benchmarks.bench import Settings
from benchmarks.hosts import why_not
from benchmarks.recovery import clean_up_when_told_to_end, measure, opened
from benchmarks.systems import DEFAULT, TUNED
from benchmarks.turns import turns

FOUR = ("elastic", "torchft", "ray-train", "torchrun")
FIVE = (*FOUR, "nvrx-inprocess")
BASELINE = "ddp"
_DEADLINE_S = 90.0
_PATIENCE_S = 20.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Repetitions whose rows are compared: their systems take turns.

    Attributes:
        name: of its file. deadline_s: for a run to be whole again. calm_s: see `Settings`.
    """

    name: str
    scenarios: tuple[str, ...]
    repeats: int = 1
    systems: tuple[str, ...] = FIVE
    settings: str = TUNED
    deadline_s: float = _DEADLINE_S
    calm_s: float | None = None


_OFTEN = ("kill", "stop")


_RARER = ("power", "early", "driver", "donor")


def _parts(often: int, more: tuple[str, ...] = ()) -> tuple[Part, ...]:
    """What matters most comes first: the last ones have no turn where the time is over.

    Args:
        often: how often all are killed and stopped. more: scenarios beside those of all plans.
    """
    return (
        Part(name="recovery_peers", scenarios=("kill",), repeats=often),
        Part(name="recovery_stop", scenarios=("stop",), repeats=often),
        Part(name="recovery_clean", scenarios=("clean",), systems=(*FIVE, BASELINE)),
        Part(name="recovery_storm", scenarios=("storm",)),
        Part(name="recovery_node", scenarios=("node",)),
        Part(
            name="recovery_more",
            scenarios=("notice", "everyone", "partition", "coordinator", "shrink", *more),
        ),
    )


# Without any setting some notice a hang after half an hour: such a run is late, and its row says so.
_AS_IT_COMES = Part(name="recovery_default", scenarios=_OFTEN, settings=DEFAULT, deadline_s=120.0)
PLANS = {
    "quick": (Part(name="recovery_quick", scenarios=_OFTEN, systems=FOUR, calm_s=12.0),),  # under 8 minutes
    "usual": _parts(often=1),
    "full": (*_parts(often=2, more=_RARER), _AS_IT_COMES),
}


def main() -> None:
    """Play a plan; the exit code is 1 if something went wrong with the bench itself."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results: each plan's in one")
    parser.add_argument("--plan", choices=PLANS, default="usual")
    parser.add_argument("--storm-s", type=float, default=120.0, help="length of a storm")
    parser.add_argument("--minutes", type=float, default=57.0, help="after which no run begins")
    parser.add_argument("--seed", type=int, default=0, help="of data, and of whom the faults hit, and when")
    parser.add_argument("--keep", type=Path, help="folder in which step logs and journals stay")
    args = parser.parse_args()
    if reason := why_not():
        parser.exit(1, f"error: {reason}\n")
    until_s = time.monotonic() + 60 * args.minutes
    clean_up_when_told_to_end()
    with opened(Settings(), args.keep) as bench:
        for place, part in enumerate(PLANS[args.plan]):
            bench.settings = Settings(
                repeats=part.repeats,
                deadline_s=part.deadline_s,
                patience_s=_PATIENCE_S,
                calm_s=part.calm_s,
                storm_s=args.storm_s,
                seed=args.seed,
            )
            order = list(turns(part.scenarios, [part.settings], part.systems, part.repeats, begin=place))
            measure(bench, order, args.out / args.plan / f"{part.name}.json", until_s)
    sys.exit(1 if bench.troubles else 0)


if __name__ == "__main__":
    main()
