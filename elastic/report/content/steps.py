"""Pure. What steps tell: world sizes, throughput, loss, retries, and who is slow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from elastic.report.content.lanes import Lanes
from elastic.report.content.model import Retry, Slowness
from elastic.report.content.thinning import Curve, Rate

AGAIN, REDONE = "tried again", "redone"
METRICS = ("loss", "train_loss")
_NO_LOSSES = ("memory/", "evaluation/")
_MOST_RETRIES = 300
_LOOK_S = 1.0  # times of micro-batches are smoothed, so that one look a second is enough
_MOST_SLOW = 24
_MOST_AHEAD = 4096  # steps that were told while an earlier one was not
_GROUPS = 4  # generations of which steps may yet be told

Group = tuple[int, int]  # of a generation: (incarnation, its number)


class Told:
    """Which steps were told already: several workers may tell of one, and drivers that follow each other too."""

    def __init__(self) -> None:
        self._until, self._ahead = -1, set[int]()  # all up to that one, and later ones

    def is_new(self, step: int) -> bool:
        """Whether nobody has told of it yet; it counts as told from now on."""
        if step <= self._until or step in self._ahead:
            return False
        self._ahead.add(step)
        if len(self._ahead) > _MOST_AHEAD:  # nobody is left who could tell of those between
            self._until = min(self._ahead) - 1
        while self._until + 1 in self._ahead:
            self._until += 1
            self._ahead.remove(self._until)
        return True

    def go_back(self, to_step: int) -> None:
        """Later steps are computed again."""
        self._until, self._ahead = to_step, set()


def begins_anew(line: Mapping[str, Any]) -> bool:
    """Whether the generation that is formed goes on from a checkpoint, or from nothing: what came later is void."""
    return bool(line["view"].get("restored") or line["view"].get("bootstrap"))


@dataclass(slots=True)
class _Pace:
    """Of one worker: how many times the median it took."""

    looks: int = 0
    total: float = 0.0
    worst: float = 0.0
    latest: float = 0.0
    seconds: float = 0.0

    def take(self, slowness: float, seconds: float) -> None:
        self.looks += 1
        self.total += slowness
        self.worst = max(self.worst, slowness)
        self.latest, self.seconds = slowness, seconds


class Steps:
    """Takes stable steps, and what happens between them. lanes: who is who."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.step, self.most_replicas, self.replicas = -1, 0, 0
        self.loss: float | None = None
        self.metric = ""
        self.sizes, self.losses = Curve("replicas"), Curve("loss")
        self.samples, self.steps = Rate("samples a second"), Rate("steps a second")
        self.retries: list[Retry] = []
        self.retried = self.redone = 0
        self._groups: dict[Group, list[str]] = {}  # members of the newest generations, by rank
        self._broken: Group | None = None  # what the next generation does first was tried in this one
        self._furthest = self._redone_until = -1
        self._paces: dict[str, _Pace] = {}
        self._looked_s = float("-inf")
        self.handlers = {
            "Form": self._formed,
            "Go": self._going,
            "Freeze": self._broke_off,
            "RunTakenOver": self._broke_off,
            "StepStable": self._stable,
        }

    @property
    def paced(self) -> int:
        """Workers whose pace is known."""
        return len(self._paces)

    def stragglers(self) -> tuple[Slowness, ...]:
        """The slowest of those that are there, then of those that were."""
        found = [
            Slowness(
                worker=worker,
                node=self._lanes.node_of(worker),
                mean=round(pace.total / pace.looks, 3),
                worst=round(pace.worst, 3),
                latest=round(pace.latest, 3) if worker in self._lanes.members else None,
                seconds=round(pace.seconds, 6),
            )
            for worker, pace in self._paces.items()
        ]
        return tuple(sorted(found, key=lambda one: (one.latest is None, -(one.latest or one.mean)))[:_MOST_SLOW])

    def _formed(self, at_s: float, line: Mapping[str, Any]) -> None:
        view = line["view"]
        self._groups[view["incarnation"], view["generation"]] = [one["worker"] for one in view["members"]]
        while len(self._groups) > _GROUPS:
            del self._groups[next(iter(self._groups))]
        if begins_anew(line):
            self.step, self._redone_until = view["resume"]["step"], self._furthest

    def _going(self, at_s: float, line: Mapping[str, Any]) -> None:
        self.replicas = len(line["workers"]) // max(1, self._lanes.width)
        self.most_replicas = max(self.most_replicas, self.replicas)
        self.sizes.put(at_s, self.replicas)

    def _broke_off(self, at_s: float, line: Mapping[str, Any]) -> None:
        self._broken = next(reversed(self._groups), None)

    def _stable(self, at_s: float, line: Mapping[str, Any]) -> None:
        report = line["report"]
        commit, begin_s, end_s = report["commit"], report["started_at_s"], report["committed_at_s"]
        group = commit["incarnation"], commit["generation"]
        step, value = commit["step"], self._loss_in(report["metrics"])
        is_redone = step <= self._redone_until
        if value is not None:
            self.loss = value
            self.losses.put(end_s, value)
        is_again = self._broken is not None and group > self._broken  # steps of before are told late
        if is_redone or is_again or commit["attempt"] > 1:
            self._retry(end_s, step, value, REDONE if is_redone else AGAIN)
        if is_again:
            self._broken = None
        self.step, self._furthest = max(self.step, step), max(self._furthest, step)
        self.samples.add(begin_s, end_s, report["samples"])
        self.steps.add(begin_s, end_s, 1)
        if end_s - self._looked_s >= _LOOK_S:
            self._looked_s = end_s
            self._look(self._groups.get(group, []), report.get("seconds", ()))

    def _retry(self, at_s: float, step: int, value: float | None, why: str) -> None:
        self.retried += 1
        self.redone += why == REDONE
        if len(self.retries) < _MOST_RETRIES:
            self.retries.append(Retry(at_s=at_s, step=step, value=value, why=why))

    def _loss_in(self, metrics: Mapping[str, float]) -> float | None:
        if self.metric not in METRICS:  # until one of these comes, the first of the user's own is it
            own = (name for name in metrics if not name.startswith(_NO_LOSSES))
            found = next((name for name in METRICS if name in metrics), self.metric or next(own, ""))
            if found != self.metric:
                self.metric, self.losses = found, Curve("loss")
        value = metrics.get(self.metric)
        return value if value is not None and value - value == 0 else None  # finite

    def _look(self, members: Sequence[str], seconds: Sequence[float]) -> None:
        """
        Args:
            members: of the generation that made the step. seconds: that each took, by rank.
        """
        known = [one for one in seconds if one > 0]
        if len(known) < 2 or len(members) != len(seconds):
            return
        middle = median(known)
        for worker, took_s in zip(members, seconds, strict=True):
            if took_s > 0:
                self._paces.setdefault(worker, _Pace()).take(took_s / middle, took_s)
