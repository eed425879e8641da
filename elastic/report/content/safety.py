"""Pure. How safe steps were: the newest step on each rung of the checkpoint ladder over time, and what was decided."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from elastic.control.values import Rung, on_rungs
from elastic.report.content.model import Decision
from elastic.report.content.steps import begins_anew
from elastic.report.content.thinning import Curve

RUNGS = tuple(rung.name.lower() for rung in Rung)
COMMITTED = "committed"
_MOST_DECISIONS = 200
_MOST_IN_PART = 16


class Safety:
    """Takes what the journal has of checkpoints."""

    def __init__(self) -> None:
        self.committed = Curve(COMMITTED)
        self.curves = {rung: Curve(rung) for rung in RUNGS}
        self.newest: dict[str, int] = {}
        self._shards: dict[tuple[int, str], set[int]] = {}  # by step and lineage, of those that are staged in part
        self._decisions: deque[Decision] = deque(maxlen=_MOST_DECISIONS)
        self.decided = 0  # in all
        self.handlers = {
            "Form": self._formed,
            "StepStable": self._stable,
            "ShardStaged": self._staged,
            "CheckpointRung": lambda at_s, line: self._stands(at_s, line["commit"]["step"], line["rung"]),
            "StepLost": lambda at_s, line: self._stands(at_s, line["commit"]["step"], ""),
            "IntervalChosen": lambda at_s, line: self._decided(at_s, line["tier"], line["reason"]),
            "UploadInterval": lambda at_s, line: self._decided(at_s, "persistent", line["reason"]),
            "PeersChosen": lambda at_s, line: self._decided(at_s, "copies", line["reason"]),
            "Degraded": self._degraded,
            "TierDegraded": lambda at_s, line: self._decided(at_s, line["tier"], f"given up: {line['reason']}"),
        }

    def decisions(self, began_s: float) -> tuple[Decision, ...]:
        """The last ones, with moments since then."""
        return tuple(
            Decision(at_s=round(one.at_s - began_s, 3), tier=one.tier, reason=one.reason) for one in self._decisions
        )

    def _formed(self, at_s: float, line: Mapping[str, Any]) -> None:
        """Where history begins anew, later steps are void, however safe they are."""
        resume = line["view"]["resume"]["step"]
        for rung, step in self.newest.items():
            if begins_anew(line) and step > resume:
                self.newest[rung] = resume
                self.curves[rung].put(at_s, resume)

    def _stable(self, at_s: float, line: Mapping[str, Any]) -> None:
        self.committed.put(line["report"]["committed_at_s"], line["report"]["commit"]["step"])

    def _staged(self, at_s: float, line: Mapping[str, Any]) -> None:
        """A step is staged when all its shards are: one without the others restores nothing."""
        step = line["commit"]["step"]
        shards = self._shards.setdefault((step, line["commit"]["lineage"]), set())
        shards.add(line["shard"])
        if len(shards) >= line["shards"]:
            if step > self.newest.get(RUNGS[0], -1):  # else the ladder may know more of it already
                self._stands(at_s, step, RUNGS[0])
            self._shards = {key: part for key, part in self._shards.items() if key[0] > step}
        elif len(self._shards) > _MOST_IN_PART:
            del self._shards[next(iter(self._shards))]

    def _stands(self, at_s: float, step: int, rung: str) -> None:
        """It has come to the rung, or fell back to it; empty: nobody holds it any more."""
        before, self.newest = self.newest, on_rungs(self.newest, step, rung)
        for one, newest in self.newest.items():
            if newest != before.get(one):
                self.curves[one].put(at_s, newest)

    def _degraded(self, at_s: float, line: Mapping[str, Any]) -> None:
        self._decided(at_s, line.get("rung", "replicated"), line["reason"] or "as asked for again")

    def _decided(self, at_s: float, tier: str, reason: str) -> None:
        self._decisions.append(Decision(at_s=at_s, tier=tier, reason=reason))
        self.decided += 1
