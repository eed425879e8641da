"""Hosts and workers that are not there: what they would tell a driver, and how they answer what it asks."""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.flight import Flying, Reading
from elastic.control.values import CommitId, StepReport, View
from elastic.settings import Limits, RunSettings, Scaling

PERIOD_S = 1.0  # of a relay's message
STEP_S = 1.0
TICK_S, BUSY_TICK_S = 0.25, 0.02  # as the driver's
BATCH = 256  # answers of workers that are taken at once
START_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the crowd is.

    Attributes:
        workers_per_host: they are one replica. hosts_per_relay: 1 for no relays.
        fails: share of the hosts that are lost at once. told: share of the workers of whom a relay's message tells,
            since they stand still, or move again.
    """

    hosts: int
    workers_per_host: int = 8
    hosts_per_relay: int = 64
    fails: float = 0.01
    told: float = 0.02

    @property
    def settings(self) -> RunSettings:
        """Of a run that goes on without the hosts that fail."""
        fewest = max(1, self.hosts - 2 * self.failing)
        limits = Limits(heartbeat_polling_period_s=PERIOD_S, heartbeat_timeout_s=5.0, start_timeout_s=3600.0)
        scaling = Scaling(num_dp_replicas=(fewest, self.hosts), workers_per_replica=self.workers_per_host)
        return RunSettings(run=f"crowd-{self.hosts}", scaling=scaling, limits=limits)

    @property
    def failing(self) -> int:
        return max(1, round(self.fails * self.hosts))


class Crowd:
    """Attribute `view`: the generation that trains or forms; `runs`: it trains."""

    def __init__(self, size: Size, seed: int = 0) -> None:
        self.size = size
        self.view: View | None = None
        self.runs = False
        self._chance = random.Random(seed)
        self._on: dict[int, list[str]] = {host: [] for host in range(size.hosts)}
        self._host: dict[str, int] = {}
        self._lost: set[int] = set()
        self._step = -1
        self._asked: deque[Iterator[ev.WorkerEvent]] = deque()  # made as they are given: all at once takes long
        self._loading: deque[ev.WorkerEvent] = deque()

    # --- what is told unasked ---

    def relays(self) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Hosts of each relay, and when in a period its message is due."""
        hosts, width = range(self.size.hosts), self.size.hosts_per_relay
        groups = [tuple(hosts[start : start + width]) for start in range(0, len(hosts), width)]
        return ((PERIOD_S * number / len(groups), group) for number, group in enumerate(groups))

    def message(self, hosts: Iterable[int]) -> ev.HostsHeard:
        """What a relay tells of its hosts."""
        there = [host for host in hosts if host not in self._lost]
        workers = [name for host in there for name in self._on[host]]
        told = self._chance.sample(workers, round(self.size.told * len(workers)))
        return ev.HostsHeard(nodes=tuple(map(node, there)), readings=tuple(map(self._reading, told)))

    def stable(self, at_s: float) -> ev.StepStable:
        """The leader tells of the next step."""
        assert self.view is not None
        self._step += 1
        seconds = tuple(0.1 + 0.01 * self._chance.random() for _ in range(self.view.replicas))
        report = StepReport(
            commit=self._commit(),
            metrics={"loss": 1.0},
            replicas=self.view.replicas,
            samples=self.view.replicas,
            started_at_s=at_s - STEP_S,
            committed_at_s=at_s,
            seconds=seconds,
        )
        return ev.StepStable(worker=self.view.leader.worker, report=report)

    def fail(self) -> list[ev.Event]:
        """Some hosts are lost at once: their monitors and all their workers do not answer."""
        lost = self._chance.sample(range(1, self.size.hosts), self.size.failing) if self.size.hosts > 1 else []
        self._lost |= set(lost)
        told: list[ev.Event] = []
        for host in lost:
            told.append(ev.MonitorLost(node=node(host)))
            told += [ev.WorkerLost(worker=name, evidence="the actor is unavailable") for name in self._on[host]]
        return told

    # --- what is answered ---

    def heed(self, command: cmd.Command) -> None:
        """Do as a command says; what is answered comes by and by."""
        match command:
            case cmd.StartWorker():
                self._start(command.worker, command.gang)
            case cmd.Freeze():
                self.runs = False
                told = {"generation": command.generation, "commit": self._commit(), "healed": True}
                living = filter(self._lives, command.workers)
                self._asked.append(ev.FreezeAnswered(worker=name, **told) for name in living)
            case cmd.ProveDead() if not self._lives(command.worker):
                dead = ev.WorkerDead(worker=command.worker, proof="its port refuses connections")
                self._asked.appendleft(iter([dead]))  # a probe is answered at once
            case cmd.Form():
                self.view, at = command.view, {"generation": command.view.generation}
                for said in (ev.AtDoor, ev.Formed):
                    self._asked.append(self._say(said, **at))
            case cmd.Go():
                self.runs = True
            case _:
                pass

    def answers(self, most: int | None = None) -> list[ev.Event]:
        """The next ones, so many at most. All workers find their places before the first one has loaded."""
        found: list[ev.Event] = []
        while self._asked and (most is None or len(found) < most):
            one = next(self._asked[0], None)
            if one is None:
                self._asked.popleft()
            else:
                found.append(one)
        while not self._asked and self._loading and (most is None or len(found) < most):
            found.append(self._loading.popleft())
        return found

    def _say(self, said: type[ev.AtDoor] | type[ev.Formed], generation: int) -> Iterator[ev.WorkerEvent]:
        """All members of the generation, those that are not lost meanwhile."""
        assert self.view is not None
        names = filter(self._lives, [member.worker for member in self.view.members])
        return (said(worker=name, generation=generation) for name in names)

    def _start(self, name: str, gang: int) -> None:
        if gang >= self.size.hosts or gang in self._lost:
            return  # there is no room
        self._host[name] = gang
        self._on[gang].append(name)
        self._asked.append(iter([ev.WorkerPlaced(worker=name, node=node(gang))]))
        at = {"host": f"10.0.{gang // 256}.{gang % 256}", "port": 40_000, "pid": 1000, "layout": "layout"}
        self._loading.append(ev.WorkerParked(worker=name, **at))

    def _lives(self, name: str) -> bool:
        return name in self._host and self._host[name] not in self._lost

    def _commit(self) -> CommitId:
        generation = self.view.generation if self.view is not None else 0
        return CommitId(incarnation=1, generation=generation, attempt=1, step=self._step, lineage=f"{self._step:016x}")

    def _reading(self, name: str) -> Reading:
        generation = self.view.generation if self.view is not None else 0
        return Reading(
            worker=name,
            generation=generation,
            step=self._step + 1,
            phase=self._chance.choice((Flying.COMPUTING, Flying.REDUCING)),
            micro_batch=self._chance.randrange(8),
            commits=100,
            still_s=self._chance.random(),
            state="S",
        )


def node(host: int) -> str:
    """As long as Ray's ids of nodes."""
    return f"{host:056x}"


@dataclass(slots=True)
class Loop:
    """A driver's loop over a crowd; times are seconds of its own clock.

    Attributes:
        waits_s: of each host message, from when it was due until it was decided; failure_waits_s: of those that tell
            of the hosts that fail.
        moments: when what was first decided after the failure.
        calls_s: how long each call of the supervisor took.
    """

    brain: Any
    crowd: Crowd
    clock: Callable[[], float] = time.monotonic
    waits_s: list[tuple[float, float]] = field(default_factory=list)
    failure_waits_s: list[float] = field(default_factory=list)
    moments: dict[str, float] = field(default_factory=dict)
    calls_s: list[float] = field(default_factory=list)
    failed_at_s: float | None = None

    def start(self) -> None:
        """Until the first generation trains."""
        deadline_s = self.clock() + START_DEADLINE_S
        self.observe([ev.RunStarted()])
        while not self.crowd.runs:
            assert self.clock() < deadline_s, "the crowd does not come to its first step"
            self.observe([*self.crowd.answers(BATCH), ev.Tick()])

    def run(self, seconds: float, fail_after_s: float | None = None) -> None:
        """Train for so long; lose hosts meanwhile."""
        began_s = self.clock()
        due = [[began_s + at_s, hosts] for at_s, hosts in self.crowd.relays()]
        tick_s = step_s = began_s
        while (now_s := self.clock()) < began_s + seconds:
            events: list[ev.Event] = []
            sent = [relay for relay in due if relay[0] <= now_s]
            events += [self.crowd.message(hosts) for _, hosts in sent]
            is_failing = fail_after_s is not None and self.failed_at_s is None and now_s >= began_s + fail_after_s
            if is_failing:
                self.failed_at_s = now_s
                events += self.crowd.fail()
            events += self.crowd.answers(BATCH)
            if self.crowd.runs and now_s >= step_s:
                step_s = now_s + STEP_S
                events.append(self.crowd.stable(time.time()))
            if now_s >= tick_s:
                tick_s = now_s + (TICK_S if self.crowd.runs else BUSY_TICK_S)
                events.append(ev.Tick())
            if not events:
                time.sleep(max(0.0, min(tick_s, *(at_s for at_s, _ in due)) - now_s))
                continue
            decided_s = self.observe(events)
            self.waits_s += [(at_s, decided_s - at_s) for at_s, _ in sent]
            if is_failing:
                self.failure_waits_s.append(decided_s - now_s)
            for relay in sent:
                relay[0] += PERIOD_S

    def observe(self, events: list[ev.Event]) -> float:
        """Returns when it was decided."""
        at_s, before_s = time.time(), self.clock()
        commands, _ = self.brain.observe([(at_s, event) for event in events])
        decided_s = self.clock()
        self.calls_s.append(decided_s - before_s)
        for command in commands:
            if self.failed_at_s is not None and isinstance(command, cmd.Freeze | cmd.Form | cmd.Go):
                self.moments.setdefault(type(command).__name__.lower(), decided_s - self.failed_at_s)
            self.crowd.heed(command)
        return decided_s
