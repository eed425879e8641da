"""Effect. Writes requirements/test.lock: what `pip` would install for the project and its `dev` extra.

`pip` resolves in a dry run that ignores what is installed, so that the lock follows pyproject.toml and
not the state of an environment; requirements/constraints.txt holds back what must not move. Local version
labels (`+cpu`) are dropped, and so are the CUDA libraries, which only some builds of torch need: torch
itself pins them.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "test.lock"
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
HEADER = """\
# The environment in which the tests run: every direct and indirect dependency, pinned.
# Written by `make lock` with Python {python}; do not edit by hand.
# torch is pinned without its build (CPU or CUDA): pip picks what your index offers, and with a CUDA
# build the nvidia-* libraries that torch itself pins.
"""
RESOLVE_TIMEOUT_S = 1800
CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")
ALWAYS_KEPT = {"nvidia-ml-py"}


def resolve() -> list[tuple[str, str]]:
    """Returns (name, version) of everything pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--report", "-", "--constraint", str(CONSTRAINTS), f"{ROOT}[dev]"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=RESOLVE_TIMEOUT_S)
    found = [item["metadata"] for item in json.loads(answer.stdout)["install"]]
    return sorted((item["name"].lower().replace("_", "-"), item["version"]) for item in found)


def is_locked(name: str) -> bool:
    """Whether a package belongs into the lock: the project itself and the CUDA libraries do not."""
    return name in ALWAYS_KEPT or not (name == "ray-elastic" or name.startswith(CUDA_PREFIXES))


def main() -> None:
    """Resolves and writes the lock."""
    pins = [f"{name}=={version.split('+')[0]}" for name, version in resolve() if is_locked(name)]
    python = ".".join(map(str, sys.version_info[:2]))
    LOCK.write_text(HEADER.format(python=python) + "\n".join(pins) + "\n")
    print(f"{LOCK.relative_to(ROOT)}: {len(pins)} packages")


if __name__ == "__main__":
    main()
