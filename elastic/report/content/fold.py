"""Pure. A run's journal, taken in a line at a time: what a report needs of it."""

from collections.abc import Callable, Mapping
from typing import Any

from elastic.report.content.chronicle import Chronicle
from elastic.report.content.lanes import Lanes
from elastic.report.content.model import Setting
from elastic.report.content.safety import Safety
from elastic.report.content.steps import Steps, Told, begins_anew
from elastic.report.content.words import sentence

ROLES = ("event", "command", "checkpoint", "life", "moment", "phase")

Handler = Callable[[float, Mapping[str, Any]], None]


class Fold:
    """What was taken in so far.

    Attributes:
        began_s, seen_s: first and last line, of the wall clock; None before any.
        phase: in the controller's words. ending: see `Headline`.
        chronicle: what stories are told from.
        settings: of the newest life, empty where its journal does not tell them.
    """

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.steps = Steps(self.lanes)
        self.safety = Safety()
        self.run, self.phase, self.ending = "", "starting", ""
        self.incarnation = self.generation = 0
        self.began_s: float | None = None
        self.seen_s: float | None = None
        self._before_s: float | None = None  # the line before this one
        self._left_s: float | None = None  # the last one before a driver opened the journal that has yet to begin
        self._steps_told = Told()
        self.chronicle = Chronicle()
        self.settings: tuple[Setting, ...] = ()
        self._handlers: dict[str, list[Handler]] = {}
        own: dict[str, Handler] = {
            "RunStarted": self._started,
            "RunTakenOver": self._taken_over,
            "Form": self._formed,
            "EndRun": self._ended,
            "Settings": self._set,
        }
        # Lanes first: the others ask them who is who.
        for handlers in (self.lanes.handlers, self.steps.handlers, self.safety.handlers, own):
            for kind, handler in handlers.items():
                self._handlers.setdefault(kind, []).append(handler)

    def take(self, line: Mapping[str, Any]) -> None:
        """A line of the journal, in its order."""
        kind = next((str(line[role]) for role in ROLES if role in line), "")
        at_s = float(line["t"])
        self.began_s = at_s if self.began_s is None else self.began_s
        self._before_s, self.seen_s = self.seen_s, max(at_s, self.seen_s or at_s)
        self.phase = line.get("phase", self.phase)
        if kind == "StepStable" and not self._steps_told.is_new(line["report"]["commit"]["step"]):
            return
        for handler in self._handlers.get(kind, ()):
            handler(at_s, line)
        text = sentence(kind, line)
        if text:
            self.chronicle.add(at_s, kind, text)

    def _started(self, at_s: float, line: Mapping[str, Any]) -> None:
        """A new life; whoever was there is gone with the last one."""
        self.lanes.end_all(self._left_at_s(at_s), "ended with the last driver")
        self.ending = ""

    def _taken_over(self, at_s: float, line: Mapping[str, Any]) -> None:
        """Of members that were not found the new driver will tell; of others it knows nothing."""
        found = {one["worker"] for one in line["found"]}
        self.lanes.end_all(self._left_at_s(at_s), "lost with the last driver", but={*found, *self.lanes.members})
        self.ending = ""

    def _left_at_s(self, at_s: float) -> float:
        """The last sign of the life before the one that begins now."""
        left_s, self._left_s = self._before_s if self._left_s is None else self._left_s, None
        return at_s if left_s is None else min(at_s, left_s)

    def _formed(self, at_s: float, line: Mapping[str, Any]) -> None:
        view = line["view"]
        if begins_anew(line):
            self._steps_told.go_back(view["resume"]["step"])
        self.run, self.incarnation, self.generation = view["run"], view["incarnation"], view["generation"]

    def _ended(self, at_s: float, line: Mapping[str, Any]) -> None:
        outcome = line["outcome"]
        message = str(outcome.get("message", "")).partition("\n")[0]
        self.ending = outcome["ending"].replace("_", " ") + (f": {message}" if message else "")
        self.lanes.end_all(at_s if self._left_s is None else self._left_at_s(at_s), "the run ended")

    def _set(self, at_s: float, line: Mapping[str, Any]) -> None:
        self.run, self.incarnation, self._left_s = line["run"], line["incarnation"], self._before_s
        self.settings = tuple(
            Setting(path=path, value=_shown(one["value"]), source=one["source"]) for path, one in line["knobs"].items()
        )


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, bool):  # to a mapping, 1 is True
        return "yes" if value else "no"
    return "none" if value in (None, "") else str(value)
