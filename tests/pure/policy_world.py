"""Seeded worlds under random policies, which want anything of anybody; and with messages that should not be there.

Nodes are shared by workers and have GPUs. Events come twice, nonsense comes between them, and the clock jumps.
"""

from dataclasses import replace
from math import inf
from random import Random
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.completions import COMPLETIONS
from elastic.control.refusing import admitted
from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.state import Phase, Standing
from elastic.control.values import CommitId, Incident
from elastic.sim.gangs import GangWorld
from elastic.sim.parts import FAULTS_END_S, SimWorker
from elastic.sim.tiers import TierWorld
from elastic.sim.world import World

DEADLINES = {
    "quarantine_s": 6.0,
    "place_timeout_s": 3.0,
    "pod_termination_threshold_s": 10.0,
    "gpu_reset_timeout_s": 5.0,
    "hold_timeout_s": 6.0,
    "exit_timeout_s": 8.0,
    "jobset_downtime_threshold_s": 60.0,
    "budget_incidents": 3,
    "budget_refill_s": 5.0,
}
RARE = (Kind.GIVE_UP, Kind.EXIT)  # they end the run
NODES, GPUS = ("a", "b", "c"), 2
_NOT_TWICE = (ev.Tick, ev.HostBeat, ev.RunStarted, ev.RestoreFound, ev.Restored, ev.RestoreRefused)


class AnyPolicy:
    """Wants anything, of anybody."""

    def __init__(self, rng: Random, ends: float) -> None:
        self.rng, self.ends = rng, ends
        self.wanted: list[Kind] = []

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        assert all(left >= 0.0 for left in view.budget_left.values())
        kinds = RARE if self.rng.random() < self.ends else [kind for kind in Kind if kind not in RARE]
        names = [*view.nodes, *view.nodes.values(), "nobody"]
        targets = tuple(self.rng.sample(names, k=min(len(names), self.rng.choice((0, 0, 0, 1, 2)))))
        for_s = self.rng.choice((None, 0.5, 4.0, inf))
        kind = self.rng.choice(list(kinds))
        self.wanted.append(kind)
        return Remediation(kind=kind, reason="by chance", targets=targets, for_s=None if kind is Kind.PAUSE else for_s)


class Policies(World):
    """What random policies add to a world; mixed in before it."""

    is_shared = True

    def obstruct(self, rng: Random, *, ends: float, twice: float, nonsense: float, jump: float) -> None:
        """Args: chances, for each decision or event, while there are faults."""
        self.odd, self.twice, self.nonsense, self.jump = rng, twice, nonsense, jump
        self.ws.policy = self.policy = AnyPolicy(rng, ends)
        settings = self.ws.state.settings
        self.ws.state = replace(self.ws.state, settings=replace(settings, limits=replace(settings.limits, **DEADLINES)))
        self.asked: dict[str, cmd.StartWorker] = {}
        self.nodes: dict[str, str] = {}
        self.given_up: set[str] = set()
        self.resets = self.disbelieved = self.jumps = self.repeated = 0
        self.silence = Random("silence")  # a stream of its own: all else is as it would be without it
        self.unanswered = 0
        self.heard: list[ev.Event] = []

    # --- what the controller is told ---

    def control(self, event: ev.Event) -> None:
        if isinstance(event, ev.Tick) and self.is_shared:
            self.hear_empty_nodes()
        busy = self.now_s < FAULTS_END_S and self.ws.phase is not Phase.ENDED
        if busy and self.odd.random() < self.jump:
            self.jumps += 1
            self.clock_error_s += self.odd.choice((-3600.0, -10.0, 10.0, 3600.0))
        if busy and self.odd.random() < self.nonsense:
            for junk in self.junk():
                assert admitted(self.ws.state, junk)[0] is None, f"{junk} was believed"
                self.disbelieved += 1
        if busy and not isinstance(event, _NOT_TWICE) and self.odd.random() < self.twice:
            self.repeated += 1
            self.later(self.delay_s(), super().control, event)
        believed, why_not = admitted(self.ws.state, event)
        assert believed == event, why_not
        self.heard.append(event)
        super().control(event)
        if isinstance(event, ev.Tick):
            self.assert_nothing_is_overdue()

    def hear_empty_nodes(self) -> None:
        """A host monitor outlives the workers of its node: the next ones may be placed there."""
        crowded = {self.nodes[name] for name, worker in self.workers.items() if worker.is_alive}
        for node in sorted(set(self.nodes.values()) - crowded):
            self.heard.append(ev.HostBeat(node=node))
            super().control(self.heard[-1])

    def junk(self) -> list[Any]:
        """What nobody can send."""
        worker = self.odd.choice([*self.ws.state.workers, "w0"])
        later = CommitId(incarnation=9, generation=1, attempt=1, step=3, lineage="x")
        return [
            "freeze", None, ev.Event(), ev.WorkerDead(worker=7, proof="x"), ev.WorkerDead(worker=worker, proof=None),
            ev.Formed(worker=worker, generation=self.ws.generation + 1), ev.Formed(worker=worker, generation="1"),
            ev.FreezeAnswered(worker=worker, generation=self.ws.generation, commit=later, healed=True),
            ev.FreezeAnswered(worker=worker, generation=self.ws.generation, commit=None, healed=True),
            ev.HostBeat(node="a", readings=("x",)), ev.GpuReset(node="a", gpus="0"),
            ev.RestoreFound(commit="newest"), ev.StepStable(worker=worker, report=None),
        ]  # fmt: skip

    def assert_nothing_is_overdue(self) -> None:
        """Each thing that takes time has come to its end, or to its deadline."""
        state, now_s = self.ws.state, self.ws.now_s
        attended_s, care, limits = now_s - state.absent_s, state.care, state.settings.limits
        if state.phase in (Phase.FINISHING, Phase.ENDED) or self.now_s < self.stalled_until_s:
            return
        leaving = [worker for worker in state.standing(Standing.GONE) if worker.is_dismissed]
        assert all(attended_s - worker.since_s <= limits.pod_termination_threshold_s for worker in leaving)
        assert all(now_s - reset.since_s <= limits.gpu_reset_timeout_s for reset in care.resets)
        for order in care.awaited:
            assert attended_s - order.since_s <= COMPLETIONS[type(order.command)].answer_s, order
        assert all(until_s > now_s for until_s in care.quarantine.values())
        assert care.hold is None or care.hold.until_s > now_s
        is_settled = state.phase in (Phase.RUNNING, Phase.WAITING)
        assert care.leaving is None or not is_settled or care.leaving.until_s >= now_s
        for worker in state.standing(Standing.REQUESTED):
            is_asked_anew = state.phase in (Phase.RUNNING, Phase.WAITING) and state.width == 1
            assert not is_asked_anew or not worker.pinned or attended_s - worker.since_s <= limits.place_timeout_s

    # --- what it wants done ---

    def carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.ResetGpu):
            self.reset(command)
            return
        if isinstance(command, cmd.Inspect) and self.silence.random() < 0.5:
            self.unanswered += 1  # its host monitor hangs with the order
            return
        if isinstance(command, cmd.StartWorker):
            assert command.node not in command.avoid
            self.asked[command.worker] = command
        elif isinstance(command, cmd.Dismiss):
            self.given_up |= {name for name in command.workers if name not in self.workers}
        super().carry_out(command)

    def come_up(self, name: str) -> None:
        """On a node that it may be on, as soon as there is one."""
        wish = self.asked[name]
        free = [node for node in NODES if node not in wish.avoid] if self.is_shared else [f"node-{name}"]
        free = [node for node in free if node == wish.node] if wish.node and self.is_shared else free
        if name in self.given_up or self.ws.phase is Phase.ENDED:
            return
        if not free:
            self.later(0.5, self.come_up, name)
            return
        self.nodes[name] = self.odd.choice(free)
        super().come_up(name)

    def node_of(self, name: str) -> str:
        return self.nodes.get(name, "")  # none yet

    def check_survives(self, worker: SimWorker, reason: str) -> None:
        """Policies that decide by chance spare nobody."""

    def tell(self, worker: SimWorker, kind: type[ev.WorkerEvent], **details: Any) -> None:
        if kind is ev.WorkerParked:
            details["gpus"] = (str(int(worker.name[1:]) % GPUS),)
        super().tell(worker, kind, **details)

    def reset(self, command: cmd.ResetGpu) -> None:
        """Nobody is on these GPUs any more, but for those who are out of reach or beyond hearing."""
        self.resets += 1
        for name, worker in self.workers.items():
            if self.nodes[name] == command.node and str(int(name[1:]) % GPUS) in command.gpus and worker.is_alive:
                is_over = self.ws.standing(name) in (Standing.EXILED, Standing.DEAD, Standing.GONE)
                is_new = self.ws.standing(name) in (Standing.REQUESTED, Standing.LOADING)
                assert is_over or is_new, f"{name} is on a GPU that is reset, and is {self.ws.standing(name)}"
        if not self.chance("lose_order"):
            error = self.odd.choice(("", "", "in use"))
            self.later(self.delay_s(), self.control, ev.GpuReset(node=command.node, gpus=command.gpus, error=error))


class PolicyWorld(Policies):
    """Without tiers."""


class PolicyGangWorld(Policies, GangWorld):
    """With replicas of several workers."""


class PolicyTierWorld(Policies, TierWorld):
    """With tiers, of which it is told what they hold."""

    def note_stable(self, commit: CommitId) -> None:
        before = len(self.saved)
        super().note_stable(commit)
        for saved in self.saved[before:] if hasattr(self, "odd") else ():
            rung = self.odd.choice(("local", "replicated"))
            self.later(self.delay_s(), self.control, ev.RungReached(commit=saved, rung=rung))
