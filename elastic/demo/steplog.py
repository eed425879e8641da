"""Effect. What the workers wrote down themselves: which samples they consumed, which steps they committed, and when."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

Attempt = tuple[int, int, int]  # step, generation, attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One step applied by one process."""

    at_s: float
    pid: int
    attempt: Attempt
    loss: float

    @property
    def step(self) -> int:
        return self.attempt[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLog:
    """The logs of all workers of a run.

    Attributes:
        commits: by time. consumed: sample ids by attempt, over all workers.
        digests: of the final parameters, by worker.
        objects: ids of model and optimizer by pid, one entry a start of train_fn.
    """

    commits: list[Commit]
    consumed: dict[Attempt, Counter[int]]
    digests: dict[str, str]
    objects: dict[int, list[tuple[int, int]]]

    def committed_attempts(self) -> dict[int, Attempt]:
        """For each step the attempt that stands: the last one that any process applied."""
        return {commit.step: commit.attempt for commit in self.commits}

    def samples(self) -> Counter[tuple[int, int]]:
        """(step, sample id) -> how often committed steps consumed it."""
        counted: Counter[tuple[int, int]] = Counter()
        for step, attempt in self.committed_attempts().items():
            for sample, times in self.consumed.get(attempt, Counter()).items():
                counted[step, sample] += times
        return counted


def read_step_log(folder: Path) -> StepLog:
    """Read every worker's log of a run."""
    commits: list[Commit] = []
    consumed: dict[Attempt, Counter[int]] = {}
    digests: dict[str, str] = {}
    objects: dict[int, list[tuple[int, int]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["event"] == "started":
                objects.setdefault(line["pid"], []).append((line["model_id"], line["optimizer_id"]))
            elif line["event"] == "finished":
                digests[path.stem] = line["digest"]
            else:
                attempt = (line["step"], line["generation"], line["attempt"])
                if line["event"] == "consumed":
                    consumed.setdefault(attempt, Counter()).update(line["ids"])
                else:
                    commits.append(Commit(at_s=line["t"], pid=line["pid"], attempt=attempt, loss=line["loss"]))
    commits.sort(key=lambda commit: commit.at_s)
    return StepLog(commits=commits, consumed=consumed, digests=digests, objects=objects)
