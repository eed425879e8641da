"""Effect. Plays the pure tests but the slow ones; fails if a line or branch of the pure half is taken by none of them.

python tools/branches.py            # what follows is passed to pytest
"""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_TIMEOUT_S = 900.0


def patterns(root: Path = ROOT) -> list[str]:
    """The files of the modules that the import linter holds to the pure contract."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = (one["source_modules"] for one in contracts if one["id"] == "pure")
    places = [root.joinpath(*name.split(".")) for name in pure]
    return [f"{place}/*" if place.is_dir() else f"{place}.py" for place in places]


def main(arguments: list[str]) -> int:
    coverage = [sys.executable, "-m", "coverage"]
    played = subprocess.run(
        [*coverage, "run", "--branch", "-m", "pytest", "tests/pure", "-m", "not slow", "-q", *arguments],
        cwd=ROOT, check=False, timeout=_TIMEOUT_S,
    )  # fmt: skip
    told = subprocess.run([*coverage, "report", f"--include={','.join(patterns())}"], cwd=ROOT, check=False)
    return played.returncode or told.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
