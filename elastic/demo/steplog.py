"""Effect. What the workers wrote down themselves: which samples they consumed, which steps they committed, and when."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        begun_s: when the first worker consumed a sample in an attempt. takers: pids that consumed in it.
        digests: of the final parameters, by pid.
        objects: ids of model and optimizer by pid, one entry a start of train_fn.
    """

    commits: list[Commit]
    consumed: dict[Attempt, Counter[int]]
    begun_s: dict[Attempt, float]
    takers: dict[Attempt, set[int]]
    digests: dict[int, str]
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
    return collect(
        json.loads(text) for path in sorted(folder.glob("*.jsonl")) for text in path.read_text().splitlines()
    )


def collect(lines: Iterable[dict[str, Any]]) -> StepLog:
    """Put lines in order, whichever worker wrote them."""
    log = StepLog(commits=[], consumed={}, begun_s={}, takers={}, digests={}, objects={})
    for line in lines:
        if line["event"] == "started":
            log.objects.setdefault(line["pid"], []).append((line["model_id"], line["optimizer_id"]))
        elif line["event"] == "finished":
            log.digests[line["pid"]] = line["digest"]
        else:
            attempt = (line["step"], line["generation"], line["attempt"])
            if line["event"] == "consumed":
                log.consumed.setdefault(attempt, Counter()).update(line["ids"])
                log.begun_s[attempt] = min(line["t"], log.begun_s.get(attempt, line["t"]))
                log.takers.setdefault(attempt, set()).add(line["pid"])
            else:
                log.commits.append(Commit(at_s=line["t"], pid=line["pid"], attempt=attempt, loss=line["loss"]))
    log.commits.sort(key=lambda commit: commit.at_s)
    return log
