"""Pure. The timeline: what each worker did when, from the journal; nodes instead of workers where there are many."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from elastic.report.content.model import Lane, Segment, Timeline

STARTING, READY, TRAINING = "starting", "ready", "training"
MOST_WORKERS = 64  # lanes of workers; with more workers, a lane is a node
_MOST_LANES = 1024
_MOST_CELLS = 120_000  # of nodes and bins
_BINS = (100, 600)
_SHORT = 12  # characters of a node's id that tell it from others
_DIGITS = 3


@dataclass(slots=True)
class _Life:
    """What is known of one worker; moments of the wall clock."""

    name: str
    node: str = ""
    state: str = STARTING
    since_s: float = 0.0
    end: str = ""
    ended_s: float | None = None
    past: list[tuple[str, float, float]] = field(default_factory=list)

    def turn(self, state: str, at_s: float) -> None:
        if self.end:  # it was thought lost
            self.end, self.ended_s, self.since_s = "", None, at_s
        elif state == self.state:
            return
        elif at_s > self.since_s:
            self.past.append((self.state, self.since_s, at_s))
        self.state, self.since_s = state, at_s

    def finish(self, how: str, at_s: float) -> None:
        if not self.end:
            self.past.append((self.state, self.since_s, max(at_s, self.since_s)))
            self.ended_s = at_s
        self.end = how

    def segments(self, until_s: float) -> list[tuple[str, float, float]]:
        return self.past if self.end else [*self.past, (self.state, self.since_s, max(until_s, self.since_s))]


class Lanes:
    """Takes journal lines that concern workers."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self.members: list[str] = []  # by rank
        self.width = 1
        self.handlers = {
            "StartWorker": self._started,
            "WorkerPlaced": self._placed,
            "WorkerParked": self._parked,
            "Form": self._formed,
            "Go": self._going,
            "WorkerDead": lambda at_s, line: self._ended(at_s, line, f"dead: {line['proof']}"),
            "WorkerLost": lambda at_s, line: self._ended(at_s, line, f"lost: {line['evidence']}"),
            "WorkerDeparted": lambda at_s, line: self._ended(at_s, line, f"left: {line['reason']}"),
            "TrainFnRaised": lambda at_s, line: self._ended(at_s, line, f"raised: {line['summary']}"),
            "TrainFnReturned": lambda at_s, line: self._ended(
                at_s, line, "dismissed" if line.get("dismissed") else "finished"
            ),
        }

    def node_of(self, worker: str) -> str:
        """Short; empty where it is not known."""
        life = self._lives.get(worker)
        return life.node[:_SHORT] if life is not None else ""

    def is_there(self, worker: str) -> bool:
        life = self._lives.get(worker)
        return life is not None and not life.end

    @property
    def there(self) -> int:
        return sum(not life.end for life in self._lives.values())

    @property
    def spares(self) -> int:
        return sum(not life.end and life.state == READY for life in self._lives.values())

    def end_all(self, at_s: float, how: str, but: Collection[str] = ()) -> None:
        """The run, or a life of it, has ended, for all but these."""
        for name, life in self._lives.items():
            if not life.end and name not in but:
                life.finish(how, at_s)

    def timeline(self, began_s: float, until_s: float) -> Timeline:
        """With moments since `began_s`."""
        lives = sorted(self._lives.values(), key=lambda life: (life.node, _number(life.name)))
        if len(lives) <= MOST_WORKERS:
            lanes = tuple(_of_worker(life, began_s, until_s) for life in lives)
            return Timeline(is_by_node=False, bin_s=0.0, lanes=lanes)
        nodes: dict[str, list[_Life]] = {}
        for life in lives:
            nodes.setdefault(life.node, []).append(life)
        unplaced = len(nodes.pop("", ()))
        shown = list(nodes.items())[:_MOST_LANES]
        bins = min(_BINS[1], max(_BINS[0], _MOST_CELLS // max(1, len(shown))))
        bin_s = max((until_s - began_s) / bins, 1e-3)
        lanes = tuple(_of_node(node, group, began_s, until_s, bin_s, bins) for node, group in shown)
        more = len(nodes) - len(shown)
        return Timeline(is_by_node=True, bin_s=round(bin_s, 6), lanes=lanes, left_out=more, unplaced=unplaced)

    def _started(self, at_s: float, line: Mapping[str, Any]) -> None:
        self._lives[line["worker"]] = _Life(name=line["worker"], node=line.get("node", ""), since_s=at_s)

    def _placed(self, at_s: float, line: Mapping[str, Any]) -> None:
        self._life(at_s, line).node = line["node"]

    def _parked(self, at_s: float, line: Mapping[str, Any]) -> None:
        self._life(at_s, line).turn(READY, at_s)

    def _formed(self, at_s: float, line: Mapping[str, Any]) -> None:
        view = line["view"]
        members = [member["worker"] for member in view["members"]]
        for worker in set(self.members) - set(members):
            if self.is_there(worker) and self._lives[worker].state == TRAINING:
                self._lives[worker].turn(READY, at_s)
        self.members, self.width = members, int(view.get("width", 1))

    def _going(self, at_s: float, line: Mapping[str, Any]) -> None:
        for worker in line["workers"]:
            self._lives.setdefault(worker, _Life(name=worker, since_s=at_s)).turn(TRAINING, at_s)

    def _ended(self, at_s: float, line: Mapping[str, Any], how: str) -> None:
        if line["worker"] in self._lives:
            self._lives[line["worker"]].finish(how, at_s)

    def _life(self, at_s: float, line: Mapping[str, Any]) -> _Life:
        """Of a worker that an earlier journal may have started."""
        return self._lives.setdefault(line["worker"], _Life(name=line["worker"], since_s=at_s))


def _number(worker: str) -> tuple[int, str]:
    digits = worker[1:]
    return (int(digits) if digits.isdigit() else 0, worker)


def _of_worker(life: _Life, began_s: float, until_s: float) -> Lane:
    segments = tuple(
        Segment(state=state, begin_s=round(begin_s - began_s, _DIGITS), end_s=round(end_s - began_s, _DIGITS))
        for state, begin_s, end_s in life.segments(until_s)
    )
    ended_s = None if life.ended_s is None else round(life.ended_s - began_s, _DIGITS)
    return Lane(name=life.name, node=life.node[:_SHORT], end=life.end, ended_s=ended_s, segments=segments)


def _of_node(node: str, lives: Iterable[_Life], began_s: float, until_s: float, bin_s: float, bins: int) -> Lane:
    """Its share of time in training, by bin; 1: as many of its workers as ever trained on it at once."""
    stretches = [
        (begin_s - began_s, end_s - began_s)
        for life in lives
        for state, begin_s, end_s in life.segments(until_s)
        if state == TRAINING
    ]
    most = max(1, _at_once(stretches))
    shares = tuple(round(one / bin_s / most, 2) for one in _covered(stretches, bin_s, bins))
    return Lane(name=node[:_SHORT], node=node[:_SHORT], shares=shares)


def _covered(stretches: Iterable[tuple[float, float]], bin_s: float, bins: int) -> list[float]:
    """How many seconds of stretches are in each bin."""
    parts = [0.0] * bins  # where stretches begin or end
    steps = [0] * (bins + 1)  # how many more of them fill whole bins from here on
    for begin_s, end_s in stretches:
        first, last = (max(0, min(bins - 1, int(edge_s / bin_s))) for edge_s in (begin_s, end_s))
        if first == last:
            parts[first] += end_s - begin_s
            continue
        parts[first] += (first + 1) * bin_s - begin_s
        parts[last] += end_s - last * bin_s
        steps[first + 1] += 1
        steps[last] -= 1
    return [part + whole * bin_s for part, whole in zip(parts, accumulate(steps), strict=False)]


def _at_once(stretches: Iterable[tuple[float, float]]) -> int:
    edges = sorted(edge for begin, end in stretches for edge in ((begin, 1), (end, -1)))
    most = now = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most
