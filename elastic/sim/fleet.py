"""Pure. A fleet under the real controller and a real policy, and what strikes it."""

import heapq

from elastic.control import events as ev
from elastic.control.data import hash32
from elastic.control.faults import FaultKind
from elastic.control.hardware import FindingKind
from elastic.control.state import Phase
from elastic.control.xid import Severity, classify
from elastic.sim.account import Cause
from elastic.sim.driven import GPUS, Driven
from elastic.sim.failures import PASSING, Failure
from elastic.sim.ran import Ran, Told


class Fleet(Driven):
    """One run.

    Attributes:
        lacking: machines of which copies are missing on others, and since when.
    """

    lacking: tuple[tuple[float, int], ...] = ()

    def run(self) -> Ran:
        for failure in self.failures:
            self.later(failure.at_s, self.strike, failure)
        self.later(self.times.start_s, self.control, ev.RunStarted())
        while self.queue and self.queue[0][0] < self.scenario.end_s and self.state.phase is not Phase.ENDED:
            self.now_s, _, act, arguments = heapq.heappop(self.queue)
            act(*arguments)
        if self.state.outcome is not None:
            self.progress.advance(self.now_s)
            self.progress.halt(Cause.PAUSED)
        self.progress.advance(self.scenario.end_s)
        self.tell_to_the_end()
        account = self.progress.account
        return Ran(
            account=account,
            incidents=tuple(self.told),
            machines=self.machines.count,
            decided=dict(self.decided),
            faults=tuple(sorted(self.faults)),
            events=self.events,
            generations=self.state.generation,
            ending=self.state.outcome.message if self.state.outcome is not None else "",
            digest=hash32(*account.seconds.values(), self.events, self.state.generation, *self.told),
        )

    def strike(self, failure: Failure) -> None:
        self.progress.advance(self.now_s)
        lasts_s, kind = failure.lasts_s or self.scenario.failures.lasts_s, failure.kind
        if kind is FaultKind.STORAGE_ERRORS:
            self.progress.storage_down_until_s = max(self.progress.storage_down_until_s, self.now_s + lasts_s)
            return
        if kind is FaultKind.BIT_FLIP:
            (self.progress.uploaded if failure.is_durable else self.progress.saved).damage()
            return
        machines = failure.nodes or self.drawn(failure.place)
        if kind in PASSING and lasts_s < self.times.detect_hang_s:
            self.wait(machines, kind.value, lasts_s)
            return
        for machine in machines:
            if kind is FaultKind.NOTICE:
                self.warn(machine, failure)
            elif kind is FaultKind.NODE_DOWN:
                self.lose(machine, kind.value, failure.lasts_s or None)
            elif kind is FaultKind.PARTITION:
                self.lose(machine, kind.value, lasts_s, is_hang=True)
            elif machine in self.machines.on:
                self.harm(self.machines.on[machine], machine, failure, lasts_s)

    def harm(self, worker: str, machine: int, failure: Failure, lasts_s: float) -> None:
        """What strikes the one who is on a machine."""
        if failure.kind is FaultKind.SLOW:
            self.slow.add(machine, self.now_s + lasts_s, failure.factor or self.scenario.failures.slow_factor)
            self.drag(self.state.generation)
        elif failure.kind is FaultKind.XID:
            self.find_xid(worker, machine, failure)
        else:
            self.kill(worker, failure.kind.value, is_hang=failure.kind is FaultKind.STOP)

    def find_xid(self, worker: str, machine: int, failure: Failure) -> None:
        """The worker dies of what is more than a note; the policy hears why, and the machine goes where it must."""
        severity, sentence = classify(failure.xid)
        if severity is Severity.INFORMATIONAL:
            return
        place = {"node": self.machines.name(self.machines.of[worker][0]), "device": GPUS[0], "workers": (worker,)}
        told = {"kind": FindingKind.XID, "severity": severity, "detail": sentence}
        self.findings[worker] = ev.HardwareFinding(**place, **told)  # type: ignore[arg-type]
        if severity is Severity.RESET_NEEDED:
            self.lose(machine, failure.kind.value, self.scenario.cluster.reset_s)
        elif severity is Severity.NODE_MUST_GO:
            self.lose(machine, failure.kind.value)
        else:
            self.kill(worker, failure.kind.value)

    def wait(self, machines: tuple[int, ...], why: str, lasts_s: float) -> None:
        """It is over before anybody would act on it: all wait, and go on."""
        if self.progress.replicas and any(self.machines.on.get(machine) in self.members for machine in machines):
            self.progress.held_until_s = max(self.progress.held_until_s, self.now_s + lasts_s)
            lost_s = min(lasts_s, self.scenario.end_s - self.now_s)
            self.told.append(Told(at_s=self.now_s, kind=why, lost_s=lost_s, decision="wait"))

    def drawn(self, place: float) -> tuple[int, ...]:
        """One of the machines that train; before there are any, nobody's."""
        if self.state.view is None:
            return ()
        members = self.view.members
        spot = int(place * len(members) * self.machines.size)
        owned = self.machines.of.get(members[spot // self.machines.size].worker, ())
        return owned[spot % self.machines.size :][:1]

    def warn(self, machine: int, failure: Failure) -> None:
        if not failure.said_s and self.is_gone(machine):
            return
        worker = self.machines.on.get(machine)
        if worker is not None and worker not in self.dead:
            self.noticed.add(worker)
            self.control(ev.WorkerNotice(worker=worker, reason=f"{self.machines.name(machine)} will be taken away"))
        notice_s = min(failure.lasts_s or self.scenario.failures.notice_s, self.scenario.end_s)
        away_s = failure.away_s or self.scenario.cluster.repair_s
        self.machines.lose(machine, self.now_s + notice_s + away_s)  # it gets no worker any more
        self.later(notice_s, self.lose, machine, failure.kind.value, away_s)

    def lose(self, machine: int, why: str, lasts_s: float | None = None, is_hang: bool = False) -> None:
        """It is away for so long; None: until it is repaired, as it is already where it is away."""
        if lasts_s is None and self.is_gone(machine):
            return
        until_s = self.now_s + (self.scenario.cluster.repair_s if lasts_s is None else lasts_s)
        self.machines.lose(machine, until_s)
        self.later(until_s - self.now_s, self.come_back, machine)
        self.lose_copies(machine)
        if machine in self.machines.on:
            self.kill(self.machines.on[machine], why, is_hang)

    def is_gone(self, machine: int) -> bool:
        """Or is about to be, with nobody there who lives."""
        worker = self.machines.on.get(machine)
        return machine in self.machines.away and (worker is None or worker in self.dead)

    def lose_copies(self, machine: int) -> None:
        """Snapshots that lay there are gone, unless others hold them still: as many as may go before copies are new.

        A machine that is lost again while it is away is one.
        """
        late = {one: at_s for at_s, one in self.lacking if self.now_s - at_s < self.times.copy_s}
        self.lacking = tuple((at_s, one) for one, at_s in ({machine: self.now_s} | late).items())
        if len(self.lacking) > self.scenario.job.peers:
            gone = {one for _, one in self.lacking}
            self.holders = {name: places for name, places in self.holders.items() if gone.isdisjoint(places)}
        elif len(self.machines.away) == self.machines.count:
            self.holders = {}

    def come_back(self, machine: int) -> None:
        if self.machines.come_back(machine, self.now_s):
            self.place_again()

    def kill(self, worker: str, why: str, is_hang: bool = False) -> None:
        """Its process is gone, or stands still until it is killed."""
        if worker in self.dead:
            return
        self.dead.add(worker)
        if worker in self.current and any(worker == member.worker for member in self.view.members):
            self.report(1)
            self.stop(Cause.DETECTING, why)
        self.current.discard(worker)
        detect_s = self.times.detect_hang_s if is_hang else self.times.detect_s
        self.later(detect_s, self.found_dead, worker, why)
