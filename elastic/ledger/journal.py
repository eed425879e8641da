"""Pure. Reads the lines of a run's journal (`lines.py` makes them) into a book."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic.control.faults import Fault, FaultKind
from elastic.control.outcome import Ending
from elastic.control.values import IncidentClass
from elastic.errors import SettingError
from elastic.ledger.book import PLANNED_STOP, RAISED, Book, Entry, Mark, Sensed
from elastic.ledger.model import Category, Injected
from elastic.ledger.stretch import ANY_PART, Step

Line = Mapping[str, Any]

_FAILED = Ending.DRIVER_FAILED.name.lower()
_ROLES = ("event", "command", "moment", "phase", "checkpoint", "life")
_SAVED = frozenset({"local", "replicated", "durable"})


@dataclass(slots=True)
class _Worker:
    """When a worker came how far."""

    entered_s: float = 0.0
    parked_s: float = 0.0
    restored_s: float = 0.0
    healing_s: float = 0.0
    formed_s: float = 0.0
    has_stepped: bool = False


class JournalReader:
    """Keeps what the lines of one life have told, as far as later lines need it."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._workers: dict[str, _Worker] = {}
        self._members: tuple[str, ...] = ()
        self._generation = self._looped = 0  # the newest, and the one that has ended its loop
        self._group = (0, 0)  # incarnation and generation of the newest
        self._forks: list[tuple[int, int, int]] = []
        self._is_first = False  # somebody in the group has never computed a step
        self._cause: int | None = None  # what all of a new life follows from, until it trains
        self._incidents: dict[int, Entry] = {}  # of this life, by its numbers
        self._open, self._before = dict[int, Entry](), set[int]()  # may go on; those that this generation followed
        self._update, self._part = -1, 0  # the last that was told of
        self._noticed_s: dict[str, float] = {}  # by worker and node that will be lost
        self._planned: Entry | None = None
        self._raised: Entry | None = None
        self._faults: set[str] = set()  # of this life, by name
        self._reason, self._has_begun = "", False
        self._opened_s: float | None = None  # by a driver that has yet to begin
        self._opened_by = 0
        self._acts: dict[tuple[str, str], Callable[[Line, float], None]] = {
            ("life", "Begun"): self._begun,
            ("event", "RunStarted"): self._started,
            ("event", "RunTakenOver"): self._taken_over,
            ("event", "WorkerPlaced"): self._placed,
            ("event", "WorkerParked"): self._parked,
            ("event", "WorkerNotice"): self._noticed,
            ("event", "NodeNotice"): self._noticed,
            ("event", "Restored"): self._restored,
            ("event", "RestoreFound"): self._found,
            ("event", "Formed"): self._formed,
            ("event", "FreezeAnswered"): self._frozen,
            ("event", "StepStable"): self._stable,
            ("event", "LoopEnded"): self._loop_ended,
            ("event", "FaultInjected"): self._injected,
            ("event", "HardwareFinding"): self._sensed,
            ("event", "Noted"): self._noted,
            ("event", "TrainFnRaised"): self._train_fn_raised,
            ("command", "Pause"): self._pause,
            ("command", "Form"): self._form,
            ("command", "EndRun"): self._ended,
            ("moment", "IncidentOpened"): self._incident,
            ("moment", "IncidentDecided"): self._incident,
            ("moment", "IncidentResolved"): self._incident,
            ("checkpoint", "CheckpointRung"): self._rung,
        }

    def read(self, line: Line) -> bool:
        """Take a line in; False if it is none of a journal."""
        role = next((one for one in _ROLES if one in line), None)
        at_s = float(line["t"])
        if role is None:
            return False
        if line.get("life") == "Settings":
            self._opened_s = at_s  # a driver opens the journal; what is before is another life's
            self._opened_by = int(line.get("incarnation", len(self._book.lives) + 1))
            return True
        if role == "phase":
            self._phase(line, at_s)
        elif (act := self._acts.get((role, str(line[role])))) is not None:
            act(line, at_s)
        self._book.see(at_s)
        return True

    # --- lives ---

    def _begun(self, line: Line, at_s: float) -> None:
        settings = line["settings"]
        scaling = settings["scaling"]
        given, width = scaling["num_dp_replicas"], scaling["workers_per_replica"]
        replicas = given[-1] if isinstance(given, list | tuple) else given
        begun_s = at_s if self._opened_s is None else min(at_s, self._opened_s)
        self._begin(begun_s, settings["incarnation"], replicas * width, width)
        self._book.run = settings["run"]
        self._has_begun = True

    def _begin(self, at_s: float, incarnation: int, workers: int, width: int) -> None:
        self._opened_s = None
        self._book.begin_life(at_s, incarnation, workers, width)
        self._cause = self._book.cause
        self._incidents, self._open, self._before = {}, {}, set()
        self._raised, self._faults, self._planned, self._book.short_by = None, set(), None, None
        self._noticed_s.clear()

    def _started(self, line: Line, at_s: float) -> None:
        if not self._has_begun:
            self._begin(at_s, len(self._book.lives) + 1, 0, 1)
        self._has_begun, self._generation, self._looped = False, 0, 0
        self._workers.clear()

    def _taken_over(self, line: Line, at_s: float) -> None:
        self._has_begun, self._looped = False, 0
        if self._cause is not None:
            self._book.entries[self._cause].decision = f"take over {len(line.get('found') or ())} live workers"
        self._book.mark(at_s, Category.DECIDING, self._cause)

    def _ended(self, line: Line, at_s: float) -> None:
        if self._opened_s is not None:  # it has ended before it had decided anything
            last = self._book.lives[-1] if self._book.lives else None
            size = (0, 1) if last is None else (last.workers, last.width)
            self._begin(self._opened_s, self._opened_by, *size)
        self._book.mark(at_s, Category.FINISHING)
        if self._book.lives:
            life = self._book.lives[-1]
            life.is_over, life.has_failed = True, line.get("outcome", {}).get("ending") == _FAILED

    def _now_s(self, at_s: float) -> float:
        """What has happened has happened by now, whatever a worker's clock says, or the driver's after a jump."""
        return max(at_s, self._book.seen_s)

    # --- workers ---

    def _worker(self, name: str) -> _Worker:
        return self._workers.setdefault(name, _Worker())

    def _placed(self, line: Line, at_s: float) -> None:
        self._book.nodes[line["worker"]] = line["node"]

    def _parked(self, line: Line, at_s: float) -> None:
        worker = self._worker(line["worker"])
        worker.entered_s, worker.parked_s = min(line.get("entered_s") or at_s, self._now_s(at_s)), at_s

    def _noticed(self, line: Line, at_s: float) -> None:
        self._noticed_s.setdefault(line.get("worker") or line["node"], at_s)

    def _restored(self, line: Line, at_s: float) -> None:
        self._worker(line["worker"]).restored_s = at_s

    def _found(self, line: Line, at_s: float) -> None:
        commit = line.get("commit")
        if commit is not None:
            self._book.loaded.append((at_s, commit["step"]))

    def _formed(self, line: Line, at_s: float) -> None:
        worker = self._worker(line["worker"])
        worker.formed_s, worker.healing_s = at_s, line.get("healing_s") or 0.0

    # --- generations ---

    def _pause(self, line: Line, at_s: float) -> None:
        self._reason = str(line.get("reason", ""))

    def _frozen(self, line: Line, at_s: float) -> None:
        """All stop as was planned, behind a step of this generation: what it followed is over, told or not."""
        commit = line["commit"]
        if self._reason and (commit["incarnation"], commit["generation"]) == self._group:
            self._open = {number: one for number, one in self._open.items() if number not in self._before}

    def _form(self, line: Line, at_s: float) -> None:
        view = line["view"]
        group = (view["incarnation"], view["generation"])
        if group == self._group:
            return  # somebody had not heard of it
        self._decided(str(line.get("reason", "")))
        self._generation, self._group = view["generation"], group
        self._members = tuple(member["worker"] for member in view["members"])
        if view["bootstrap"] or view["restored"]:
            self._book.go_back(view["resume"]["step"], self._current(at_s))
            self._update, self._part = view["resume"]["step"], 0  # whole steps alone are saved
        self._forks = [(one["incarnation"], one["generation"], one["step"]) for one in view["forks"]]
        self._size(len(self._members) // view.get("width", 1), at_s)
        self._book.groups[group] = (self._current(at_s), self._book.short_by)

    def _decided(self, reason: str) -> None:
        """How what is no failure goes on."""
        if self._planned is not None:
            self._planned.decision = reason
        elif self._cause is not None and self._unresolved() is None:
            entry = self._book.entries[self._cause]
            entry.decision = f"{entry.decision.partition(': ')[0]}: {reason}"

    def _size(self, replicas: int, at_s: float) -> None:
        """Whatever brought the group below what was asked for is to blame for it until it is back."""
        book, failure = self._book, self._unresolved()
        book.size(replicas)
        life = book.lives[-1] if book.lives else None
        is_worse = failure is not None and failure.replicas_before > replicas
        if life is None or replicas * life.width >= life.workers:
            book.short_by = None
        elif book.short_by is None or is_worse:
            book.short_by = self._current(at_s)

    def _phase(self, line: Line, at_s: float) -> None:
        phase, book = str(line["phase"]), self._book
        self._lay_out(at_s)
        if phase == "running":
            self._heal(at_s)
            cause = self._current(at_s)
            if self._planned is not None:
                book.await_step(self._planned, at_s)
            book.cause, self._cause, self._planned, self._reason = cause, None, None, ""
            self._before = set(self._open)
            book.mark(at_s, None, cause, is_new=self._is_first)
        elif phase in ("finishing", "ended"):
            if self._raised is not None:
                book.mark(at_s, Category.FINISHING, self._raised.number)  # what was in flight, and not what follows
            book.mark(at_s, Category.FINISHING)
        elif phase == "starting":
            book.mark(at_s, Category.WORKER_START, self._cause)
        elif phase == "waiting":
            waits = Category.RESTORE if line.get("waits_for") == "restore" else Category.PAUSED
            book.mark(at_s, waits, self._current(at_s))
        else:
            book.mark(at_s, Category.FORMING if phase == "forming" else Category.DECIDING, self._current(at_s))

    def _heal(self, at_s: float) -> None:
        """A generation is formed: while state was handed on, until the last one had it, that was what took the time."""
        workers = [self._worker(name) for name in self._members]
        self._is_first = not all(worker.has_stepped for worker in workers)
        formed_s = max((worker.formed_s for worker in workers), default=at_s)
        healing_s = max((worker.healing_s for worker in workers), default=0.0)
        marks = self._book.marks
        if healing_s > 0 and marks and marks[-1].category is Category.FORMING:
            cause = marks[-1].incident
            self._book.refine(
                [
                    Mark(at_s=formed_s - healing_s, category=Category.HEALING, incident=cause),
                    Mark(at_s=min(at_s, formed_s), category=Category.FORMING, incident=cause),
                ]
            )

    def _lay_out(self, at_s: float) -> None:
        """While workers were waited for, or state: who came last had to start, to build its model, to load."""
        marks = self._book.marks
        last = marks[-1] if marks else None
        if last is None or last.category not in (Category.WORKER_START, Category.RESTORE):
            return
        late = [worker for worker in self._workers.values() if last.at_s < worker.parked_s <= at_s]
        restored_s = max((worker.restored_s for worker in self._workers.values()), default=0.0)
        found: list[tuple[float, Category]] = []
        if late:
            slowest = max(late, key=lambda worker: worker.parked_s)
            then = Category.RESTORE if restored_s > slowest.parked_s else Category.DECIDING
            found = [(last.at_s, Category.WORKER_START), (slowest.entered_s, Category.INITIALIZATION)]
            found.append((slowest.parked_s, then))
        if restored_s > last.at_s:
            found.append((restored_s, Category.DECIDING))
        self._book.refine([Mark(at_s=when_s, category=one, incident=last.incident) for when_s, one in found])

    # --- incidents ---

    def _unresolved(self) -> Entry | None:
        """The newest failure after which no step was committed yet."""
        return next((one for one in reversed(self._open.values()) if one.resumed_s is None), None)

    def _current(self, at_s: float) -> int:
        """What is to blame for what happens now: a failure, the beginning of a life, or something planned."""
        failure = self._unresolved()
        if failure is not None:
            return failure.number
        if self._cause is not None:
            return self._cause
        if self._planned is None:
            seen = (self._reason or "nothing had failed",)
            self._planned = self._book.open(PLANNED_STOP, at_s, is_planned=True, evidence=seen, decision="stop")
        if self._reason and self._reason not in self._planned.evidence:
            self._planned.evidence = (*self._planned.evidence, self._reason)
        return self._planned.number

    def _incident(self, line: Line, at_s: float) -> None:
        told = line["incident"]
        kind = IncidentClass[str(told["kind"]).upper()]
        entry = self._incidents.get(told["number"])
        if entry is None:
            entry = self._book.open(kind.value, told["opened_at_s"])
            entry.its_number = told["number"]
            self._incidents[told["number"]] = entry
        self._open[told["number"]] = entry
        self._before.discard(told["number"])
        entry.kind, entry.is_planned = kind.value, kind is IncidentClass.DEPARTURE
        entry.culprits, entry.evidence = tuple(told["culprits"]), tuple(told["evidence"])
        if entry.is_planned:  # the controller opens it when all have stopped; its first signal was the notice
            whom = [name for one in entry.culprits for name in (one, self._book.nodes.get(one, ""))]
            entry.opened_s = min([entry.opened_s, *(self._noticed_s.get(name, entry.opened_s) for name in whom)])
            if told["resumed_at_s"] is not None:  # what comes for them later is another notice
                for name in whom:
                    self._noticed_s.pop(name, None)
        if told["decision"] and told["decision"] != entry.decision:
            entry.decision, entry.decided_s = told["decision"], at_s
        entry.replicas_before, entry.replicas_after = told["replicas_before"], told["replicas_after"]
        entry.resumed_s, entry.step = told["resumed_at_s"], told["step"]

    def _train_fn_raised(self, line: Line, at_s: float) -> None:
        """An exception of the user's ends the run."""
        if self._raised is None:
            whom = (line["worker"],)
            seen = (line["summary"] or "an exception without a message",)
            self._raised = self._book.open(RAISED, at_s, evidence=seen, culprits=whom, decision="end the run")

    def _injected(self, line: Line, at_s: float) -> None:
        told = line["fault"]
        if told.get("name") in self._faults:
            return  # a monitor that was out of reach tells what was told of it meanwhile
        self._faults |= {told["name"]} if told.get("name") else set()
        kind = FaultKind[str(told["kind"]).upper()]
        try:
            fault = Fault(**{**told, "kind": kind})
            lasts_s, text = fault.lasts_s, str(fault)
        except (SettingError, TypeError):  # of another version
            lasts_s, text = 0.0, kind.value
        what = Injected(fault=text, kind=kind.value, target=line["target"], at_s=line["at_s"], proof=line["proof"])
        self._book.strike(what, lasts_s)

    def _sensed(self, line: Line, at_s: float) -> None:
        """A host monitor has seen something on its node."""
        where = {str(line["node"]), *map(str, line.get("workers") or ())}
        self._book.sense(Sensed(at_s, str(line["kind"]), frozenset(where), str(line["detail"])))

    # --- steps ---

    def _stable(self, line: Line, at_s: float) -> None:
        report = line["report"]
        commit, times = report["commit"], report.get("times") or {}
        place = commit["incarnation"], commit["generation"]
        if any(commit["step"] > step and place < (life, number) for life, number, step in self._forks):
            return
        is_first = self._is_first and commit["generation"] == self._generation
        part = self._part_of(commit["step"], report)
        if is_first and not part:  # each optimizer of a step may compile in its own update
            self._is_first = False
            for name in self._members:
                self._worker(name).has_stepped = True
        self._book.step(
            Step(
                number=commit["step"],
                part=part,
                incarnation=commit["incarnation"],
                generation=commit["generation"],
                attempt=commit["attempt"],
                replicas=report["replicas"],
                samples=report["samples"],
                since_s=min(times.get("since_s") or 0.0, self._now_s(at_s)),
                started_s=min(report["started_at_s"], self._now_s(at_s)),
                committed_s=min(report["committed_at_s"], at_s),
                data_s=times.get("data_s", 0.0),
                stall_s=times.get("stall_s", 0.0),
                evaluation_s=times.get("evaluation_s", 0.0),
                callback_s=times.get("callback_s", 0.0),
                callbacks=report.get("costs") or {},
                worker=line.get("worker", ""),
                is_first=is_first,
                is_skipped=bool(report.get("skipped")),
            )
        )

    def _part_of(self, number: int, report: Line) -> int:
        """Which update of its step it is, 0 for the last one: only with that its samples are told."""
        before = self._part if number == self._update + 1 else ANY_PART
        part = min(before + 1, ANY_PART) if not report["samples"] else 0
        self._update, self._part = number, part
        return part

    def _noted(self, line: Line, at_s: float) -> None:
        if line["seconds"] > 0:
            noted, key = self._book.noted.setdefault(line["step"], {}), (line["worker"], line["what"])
            noted[key] = noted.get(key, 0.0) + line["seconds"]
            self._book.notes += 1

    def _loop_ended(self, line: Line, at_s: float) -> None:
        """What came after the last step, before anybody left."""
        times = line.get("times") or {}
        since_s = times.get("since_s") or 0.0
        if not since_s or self._looped == line["generation"]:
            return
        self._looped = line["generation"]
        called_s = since_s + times.get("callback_s", 0.0)
        evaluated_s = called_s + times.get("evaluation_s", 0.0)
        flushed_s = evaluated_s + times.get("stall_s", 0.0)
        self._book.refine(
            [
                Mark(at_s=since_s, category=Category.CALLBACKS),
                Mark(at_s=called_s, category=Category.EVALUATION),
                Mark(at_s=evaluated_s, category=Category.CHECKPOINT_STALL, rung="local"),
                Mark(at_s=flushed_s, category=Category.FINISHING),
            ]
        )

    def _rung(self, line: Line, at_s: float) -> None:
        """After its end a run waits only for its last step to come down to where it is safe."""
        step, rung, book = line["commit"]["step"], line["rung"], self._book
        if rung in _SAVED:
            book.save(at_s, step)
        if book.lives and book.lives[-1].is_over:
            book.marks[-1].category, book.marks[-1].rung = Category.CHECKPOINT_STALL, rung
            book.mark(at_s, Category.FINISHING)
