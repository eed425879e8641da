"""Pure. What befalls a small world beside lost processes and messages: its machines, its GPUs, and its users.

Nodes are announced to go, GPUs tell of errors, some compute slowly; users pause a run, tune it, or have mistakes in
their train_fn; machines that were asked for do not come; a switch fails, or a link.
"""

from collections.abc import Callable
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.hardware import FindingKind
from elastic.control.outcome import Ending
from elastic.control.tuning import Tuning
from elastic.control.values import CommitId, Member, StepReport, View
from elastic.control.xid import Severity
from elastic.sim.laws import Law, must
from elastic.sim.parts import SimWorker
from elastic.sim.world import World

_LEAVES_S = (2.0, 15.0)  # after its notice
_PAUSE_S = (1.0, 8.0)
_SPLIT_S = (1.0, 30.0)
_LINKS = 3  # that break at once, at most
_SLOW_S = (5.0, 20.0)
_RESET_S = (0.5, 3.0)
_COMES_S = (2.0, 10.0)
_SLOWNESS = 3.0
_SHARE = 0.4  # of its own best, at which a slow GPU computes
GPU = "0"

Gang = tuple[Member, ...]


class Unrest(World):
    """Mixed into a world.

    Attributes:
        slow_until_s: by worker that computes slowly. views: by generation.
        sides: until when these hosts and the others are out of touch, for each split of the network between workers.
        links: by (host, other host), until when nothing comes through from the one to the other.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.slow_until_s: dict[str, float] = {}
        self.views: dict[int, View] = {}
        self.sides: list[tuple[float, frozenset[str]]] = []
        self.links: dict[tuple[str, str], float] = {}
        super().__init__(*arguments, **options)

    def tick(self) -> None:
        super().tick()
        for fault, act in ACTS.items():
            if self.chance(fault):
                act(self)

    def one_of_them(self) -> SimWorker | None:
        """A worker that is alive and whose host is in reach, None if there is none."""
        there = [
            one for one in self.workers.values() if one.is_alive and not one.is_hung and not self.is_cut(one, "out")
        ]
        return self.rng.choice(there) if there else None

    # --- machines ---

    def announce(self) -> None:
        """A node is told that it will be taken away, and is."""
        worker = self.one_of_them()
        if worker is not None:
            node = self.node_of(worker.name)
            self.struck.add(node)
            self.control(ev.NodeNotice(node=node, reason="maintenance"))
            self.later(self.rng.uniform(*_LEAVES_S), self.take_away, node)

    def take_away(self, node: str) -> None:
        """Its place gets another machine, which has another name."""
        self.renew(node)
        for worker in list(self.workers.values()):
            if self.node_of(worker.name) == node:
                self.crash(worker)

    def run_out(self) -> None:
        """Machines that were asked for do not come for a while."""
        self.control(ev.NodesMissing(missing=self.rng.randint(1, 3), reason="none are left in this zone"))
        self.later(self.rng.uniform(*_COMES_S), self.control, ev.NodesMissing(missing=0, reason=""))

    def err(self) -> None:
        """A host monitor reads an error of a GPU; whoever computes on it dies of some."""
        worker = self.one_of_them()
        if worker is None:
            return
        severity, node = self.rng.choice(tuple(Severity)), self.node_of(worker.name)
        told: dict[str, Any] = {"kind": FindingKind.XID, "severity": severity, "detail": f"Xid: {severity.value}"}
        self.struck.add(node)
        self.control(ev.HardwareFinding(node=node, device=GPU, workers=(worker.name,), **told))
        if severity is Severity.NODE_MUST_GO:
            self.renew(node)
        if severity is not Severity.INFORMATIONAL and self.rng.random() < 0.7:
            self.crash(worker)

    def drag(self) -> None:
        """A worker computes slowly for a while; its profiler may see that, too."""
        worker = self.one_of_them()
        if worker is not None:
            self.struck.add(worker.name)
            self.slow_until_s[worker.name] = self.now_s + self.rng.uniform(*_SLOW_S)
            if self.rng.random() < 0.5:
                self.tell(worker, ev.GpuSlow, share=_SHARE)

    def carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.ResetGpu):
            error = self.rng.choice(("", "", "a process is left on it"))
            done = ev.GpuReset(node=command.node, gpus=command.gpus, error=error)
            self.later(self.rng.uniform(*_RESET_S), self.control, done)
            return
        if isinstance(command, cmd.Form):
            if command.view.generation not in self.views:
                self.check_parted(command.view)
            self.views[command.view.generation] = command.view
        super().carry_out(command)

    def report_of(self, commit: CommitId, **details: Any) -> StepReport:
        view = self.views.get(commit.generation) if self.plan.slow else None
        if view is not None:
            details["seconds"] = tuple(self.seconds_of(member.worker) for member in view.members)
        return super().report_of(commit, **details)

    def seconds_of(self, worker: str) -> float:
        """For a micro-batch."""
        return _SLOWNESS if self.now_s < self.slow_until_s.get(worker, 0.0) else 1.0

    # --- the network ---

    def cut_some(self) -> None:
        """The driver is cut off from some nodes, as when a switch fails."""
        cut = {self.node_of(one.name): self.rng.random() < 0.5 for one in self.workers.values()}
        self.cut_off([one for one in self.workers.values() if cut[self.node_of(one.name)]])

    def split(self) -> None:
        """Some hosts reach the others no more, nor are they reached, for a while; the driver reaches all of them."""
        hosts = sorted({self.node_of(one.name) for one in self.workers.values() if one.is_alive})
        side = frozenset(host for host in hosts if self.rng.random() < 0.5)
        self.struck |= self.workers.keys()  # whichever side is the smaller one
        self.sides = [*self.sides, (self.now_s + self.rng.uniform(*_SPLIT_S), side)]

    def break_links(self) -> None:
        """Between some pairs of hosts nothing passes for a while, at least one way; others reach both all the same."""
        hosts = sorted({self.node_of(one.name) for one in self.workers.values() if one.is_alive})
        for _ in range(self.rng.randint(1, _LINKS) if hosts else 0):
            one, other = self.rng.choice(hosts), self.rng.choice(hosts)
            if one != other:
                self.struck |= {one, other}
                until_s = self.now_s + self.rng.uniform(*_SPLIT_S)
                self.links |= dict.fromkeys([(one, other), (other, one)][: self.rng.randint(1, 2)], until_s)

    def has_heard(self, worker: SimWorker, members: tuple[Member, ...]) -> bool:
        """What is sent on a connection that is there arrives, although what is sent back does not."""
        if not self.sides and not self.links:
            return True
        host, hosts = self.node_of(worker.name), [self.node_of(one.worker) for one in members]
        return not any(self.is_split(host, other) or self.is_broken(other, host) for other in hosts)

    def are_in_touch(self, one: SimWorker, other: SimWorker) -> bool:
        """Whether they can connect, for which each has to hear the other."""
        if not self.sides and not self.links:
            return True
        hosts = self.node_of(one.name), self.node_of(other.name)
        return not (self.is_split(*hosts) or self.is_broken(*hosts) or self.is_broken(*hosts[::-1]))

    def is_split(self, one: str, other: str) -> bool:
        self.sides = [(until_s, side) for until_s, side in self.sides if until_s > self.now_s]
        return any((one in side) is not (other in side) for _, side in self.sides)

    def is_broken(self, one: str, other: str) -> bool:
        """Whether nothing comes through from the one host to the other."""
        return self.links.get((one, other), 0.0) > self.now_s

    def check_parted(self, view: View) -> None:
        """After a forming in vain, who missed each other are not put together again if others can go on alone."""
        if view.restored or view.bootstrap or self.ws.state.formed_in_vain != view.generation - 1:
            return
        gangs = [view.gang(replica) for replica in range(view.replicas)]
        holding = [gang for gang in gangs if all(view.rank_of(one.worker) in view.donors for one in gang)]
        side = self.most(tuple(gang for gang in holding if not self.have_missed(gang, gang)))
        is_enough = self.plan.replicas[0] <= len(side) < len(holding)
        must(not is_enough, Law.APART, lambda: f"{view.members}: {side} could go on alone")

    def most(self, gangs: tuple[Gang, ...]) -> tuple[Gang, ...]:
        """As many of these replicas as there are of whom none has missed another."""
        if not gangs:
            return ()
        first, rest = gangs[0], gangs[1:]
        near = tuple(other for other in rest if not self.have_missed(first, other))
        with_it = (first, *self.most(near))
        return with_it if near == rest else max(with_it, self.most(rest), key=len)

    def have_missed(self, one: Gang, other: Gang) -> bool:
        """Whether somebody of one replica has waited for somebody of the other; of the same one, two for each other.

        Who alone waits for another one of its replica may wait for one that another replica has held up, or that had
        formed when the link broke; such a replica has one more try.
        """
        names, others = ([member.worker for member in gang] for gang in (one, other))
        waits = {(name, missed) for name in (*names, *others) for missed in self.workers[name].missing}
        if one == other:
            return any((missed, name) in waits for name, missed in waits)
        return any(missed in others if name in names else missed in names for name, missed in waits)

    # --- users ---

    def pause(self) -> None:
        """For a while, which somebody may cut short."""
        for_s = self.rng.uniform(*_PAUSE_S)
        self.control(ev.PauseAsked(for_s=for_s))
        self.later(self.rng.uniform(0.0, 2 * for_s), self.control, ev.ResumeAsked())

    def tune(self) -> None:
        self.control(ev.TuneAsked(tuning=Tuning(lr_factor=self.rng.choice((0.5, 1.0, 2.0)))))

    def raise_(self) -> None:
        """A mistake in train_fn ends the process that meets it, and the run if somebody hears of it."""
        worker = self.one_of_them()
        if worker is not None and worker.state.generation > 0:
            self.struck.add(worker.name)
            self.tell(worker, ev.TrainFnRaised, summary="ValueError: oh", traceback="")
            worker.is_alive = False
            self.later(self.rng.uniform(*_LEAVES_S), self.control, ev.WorkerDead(worker=worker.name, proof="gone"))

    def depart(self) -> None:
        """A worker leaves by itself."""
        worker = self.one_of_them()
        if worker is not None:
            self.struck.add(worker.name)
            self.tell(worker, ev.WorkerDeparted, reason="SystemExit")
            worker.is_alive = False
            self.later(self.rng.uniform(*_LEAVES_S), self.control, ev.WorkerDead(worker=worker.name, proof="gone"))

    def judge_failure(self, ending: Ending, why: str) -> None:
        is_theirs = ending is Ending.TRAIN_FN_RAISED and "raise_" in self.faults
        if not is_theirs:
            super().judge_failure(ending, why)


ACTS: dict[str, Callable[[Unrest], None]] = {
    "announce": Unrest.announce,
    "run_out": Unrest.run_out,
    "xid": Unrest.err,
    "slow": Unrest.drag,
    "pause": Unrest.pause,
    "tune": Unrest.tune,
    "raise_": Unrest.raise_,
    "depart": Unrest.depart,
    "rack": Unrest.cut_some,
    "split": Unrest.split,
    "link": Unrest.break_links,
}
