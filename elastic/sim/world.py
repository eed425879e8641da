"""Pure. A small seeded world: the real controller, real worker states, and between them messages that take their time.

Workers crash, hang and fall silent; messages get lost, doubled, late or out of order; the controller stands still or
dies, and its clock jumps. What must hold is checked on the way, and `judge` says whether the end is right.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.state import OVER, Phase
from elastic.control.values import Fork
from elastic.control.worker_protocol import Stage
from elastic.sim.clockwork import LIMITS, SENSING, SLOWEST_S, TICK_S
from elastic.sim.crew import REST
from elastic.sim.laws import Law, must
from elastic.sim.orders import Orders, addressees
from elastic.sim.parts import Plan, SimWorker, reading_of
from elastic.sim.whereabouts import Whereabouts

WAYS = (("in", "out"), ("in", "out"), ("in",), ("out",))
_ROUNDING_S = 1e-9  # of sums of times: what waits for a moment is not put off at it, past what came after
_SOUND_S = 3.0  # a host monitor that was replaced lives at least that long
_MISSED_S = 1.2  # in a row beats are lost for less than this and a tick, which nobody may take for silence
_KNOCK_S = 0.3
# After contact is back: the longest way of a message, and for as long as all may be gone before that is believed.
_GIVEN_UP_S = SLOWEST_S + SENSING["exile_after_s"]
GONE_LATE_S = 40.0  # somebody kills a process that hangs, in the end
# While these strike, and no others, training goes on.
UNFELT = frozenset({"break_", "supervisor", "monitor", "lose_beat", "duplicate", "driver"})
HARMLESS = UNFELT | {"stall", "outage", "load"}  # nobody may be killed for these
_ONCE = (ev.Tick, ev.HostBeat, ev.RunStarted, ev.RunTakenOver, ev.RestoreFound, ev.Restored, ev.RestoreRefused)


class World(Whereabouts):
    """One run from its start to its end.

    Attributes:
        width: workers of a replica.
        doomed: workers that were to be killed for the controller; fenced: that were. named: those that were outvoted.
        replaced: those who have trained, held the state, and were told to leave before the run had ended.
        unheard_until_s: by node, until when its host monitor is down; beaten_s: when it was last heard.
    """

    width = 1

    def __init__(self, seed: int, plan: Plan) -> None:
        super().__init__(seed, plan)
        self.fenced: list[str] = []
        self.replaced: list[str] = []
        self.named: set[str] = set()
        self.doomed: set[str] = set()
        self.unheard_until_s: dict[str, float] = {}
        self.beaten_s: dict[str, float] = {}
        self.orders = Orders()

    @property
    def forks(self) -> tuple[Fork, ...]:
        """Where history began anew, as whoever looks at checkpoints knows."""
        return self.ws.state.forks

    # --- the driver's side ---

    def tick(self) -> None:
        """Monitors in reach tell what they see, then time passes."""
        self.later(TICK_S, self.tick)
        seen: dict[str, list[SimWorker]] = {}
        for worker in self.workers.values():
            if worker.is_alive and not self.is_cut(worker, "out"):
                seen.setdefault(self.node_of(worker.name), []).append(worker)
        heard = {node: there for node, there in seen.items() if not self.is_unheard(node)}
        readings = {node: tuple(reading_of(one, self.now_s) for one in there) for node, there in heard.items()}
        if self.plan.quick:  # through a relay
            self.control(ev.HostsHeard(nodes=tuple(readings), readings=tuple(chain(*readings.values()))))
        else:
            for node in readings:
                self.control(ev.HostBeat(node=node, readings=readings[node]))
        if self.plan.partition and self.chance("partition"):
            self.part()
        if self.plan.jump and self.chance("jump"):
            self.clock_error_s += self.rng.choice((-3600.0, -10.0, 10.0, 3600.0))
        self.control(ev.Tick())

    def is_unheard(self, node: str) -> bool:
        """Whether its host monitor is down, or its beat is lost."""
        if self.plan.monitor and self.is_monitor_down(node):
            return True
        if not self.plan.lose_beat:
            return False
        last_s = self.beaten_s.setdefault(node, self.now_s)
        is_lost = self.now_s - last_s < _MISSED_S and self.chance("lose_beat")
        if not is_lost:
            self.beaten_s[node] = self.now_s
        return is_lost

    def is_monitor_down(self, node: str) -> bool:
        """Another one is started soon."""
        if self.now_s >= self.unheard_until_s.get(node, -_SOUND_S) + _SOUND_S and self.chance("monitor"):
            self.unheard_until_s[node] = self.now_s + self.rng.uniform(0.5, 1.2)
            self.control(ev.MonitorLost(node=node))
        return self.now_s < self.unheard_until_s.get(node, 0.0)

    def control(self, event: ev.Event) -> None:
        """The controller may stand still with a decision made and not told; then it hears all that came meanwhile."""
        if self.stalled_until_s - self.now_s > _ROUNDING_S:
            self.later(self.stalled_until_s - self.now_s, self.control, event)
            return
        self.ws.now_s = self.now_s + self.clock_error_s
        if isinstance(event, ev.CorruptionFound) and event.generation == self.ws.generation:
            self.named |= set(event.culprits)
        before = self.ws.state
        commands = self.ws.take(event)
        newest, stable = max((self.ws.state.published, *self.ws.state.published_ahead)), len(self.stable)
        view = self.ws.state.view  # a fork is carried out a moment later
        is_fork = view is not None and view.restored and view.resume.step == newest
        is_told = newest < stable or is_fork or bool(commands)
        must(is_told, Law.NOTHING_LOST, lambda: f"step {newest} was told, and {stable} steps are stable")
        if isinstance(event, ev.Tick):
            self.orders.give(commands)
            self.orders.check(self.ws.state)
            self.carry_out_soon(commands)
            return
        if self.plan.supervisor and self.chance("supervisor"):
            self.ws.undo(before)  # the next one is told the same
            self.stalled_until_s = self.now_s + self.rng.uniform(0.3, 2.0)
            self.control(event)
            return
        self.orders.give(commands)
        if self.chance("stall"):
            self.stalled_until_s = self.now_s + self.rng.uniform(1.0, 4 * LIMITS["freeze_timeout_s"])
        self.carry_out_soon(commands)
        if self.plan.duplicate and not isinstance(event, _ONCE) and self.chance("duplicate"):
            self.later(self.delay_s(), self.control, event)

    def carry_out_soon(self, commands: tuple[cmd.Command, ...]) -> None:
        for command in commands:
            self.later(max(0.0, self.stalled_until_s - self.now_s), self.carry_out, command)

    def carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.StartWorker):
            self.places[command.worker] = (command.gang, command.shard)
            self.place(command)
            self.later(self.rng.uniform(0.1, 4.0), self.come_up, command.worker)
        elif isinstance(command, cmd.ProveDead):
            self.hunt(self.workers[command.worker], False)
        elif isinstance(command, cmd.Knock):
            self.later(_KNOCK_S, self.knock, command, self.cut_of(command.workers))
        elif isinstance(command, cmd.Fence):
            self.doomed.add(command.worker)
            self.check_survives(self.workers[command.worker], command.reason)
            self.hunt(self.workers[command.worker], True)
        elif isinstance(command, cmd.Form):
            self.order_to_form(command)
        elif isinstance(command, cmd.Dismiss):
            self.dismiss(command)
        elif isinstance(command, cmd.Inspect):
            self.later(self.delay_s(), self.control, ev.StackDumped(worker=command.worker, stack="main.py:1"))
        elif not isinstance(command, cmd.EndRun | cmd.Save):  # nothing waits for what is saved, nor for its being lost
            self.order(addressees(command), command)

    def order_to_form(self, command: cmd.Form) -> None:
        if command.view.bootstrap and command.view.generation > 1:
            self.start_over()
        is_clean = self.named.isdisjoint(member.worker for member in command.view.members)
        must(is_clean, Law.NEVER_WRONG, lambda: "a corrupt worker belongs to a generation again")
        for name in self.named - self.doomed:
            record = self.ws.state.workers.get(name)
            is_over = record is None or record.standing in OVER
            must(is_over, Law.NEVER_WRONG, lambda: f"{name} is corrupt, and nobody has told it to die")  # noqa: B023
        self.order(command.addressees, command)

    def dismiss(self, command: cmd.Dismiss) -> None:
        if self.ws.phase not in (Phase.FINISHING, Phase.ENDED):
            there = [self.workers[name] for name in command.workers if name in self.workers]
            for one in there:
                self.check_survives(one, command.reason)
            self.replaced += [one.name for one in there if one.state.healed and one.name in self.trained]
        self.order(command.workers, command)

    def order(self, names: Any, command: cmd.Command) -> None:
        for worker in (self.workers[name] for name in names if name in self.workers):
            if self.chance("lose_order"):
                self.struck.add(worker.name)
            else:
                self.send(("to", worker.name), self.plan.in_order, self.obey, worker, command)
            if self.plan.duplicate and self.chance("duplicate"):
                self.send(("again", worker.name), False, self.obey, worker, command)

    def come_up(self, name: str) -> None:
        worker = self.workers[name] = SimWorker(name=name)
        self.control(ev.WorkerPlaced(worker=name, node=self.node_of(name)))
        if self.plan.drift:
            worker.clock_rate = self.rng.uniform(1.0 - self.plan.drift, 1.0 + self.plan.drift)
        self.later(self.rng.uniform(0.1, 3.0), self.move, worker, worker.turn)

    def shard(self, worker: SimWorker) -> int:
        """Its place in its replica."""
        return 0

    def think_s(self) -> float:
        return self.rng.uniform(0.02, 0.06) if self.plan.quick else self.delay_s()

    def delay_s(self) -> float:
        if not self.plan.quick:
            return super().delay_s()
        return self.rng.uniform(0.001, 0.03) if self.rng.random() < 0.95 else self.rng.uniform(0.03, SLOWEST_S)

    def hunt(self, worker: SimWorker, fence: bool) -> None:
        """Look for proof of death; a fence makes it true, unless the worker is out of reach."""
        if self.is_cut(worker, "in"):
            if fence:  # the order arrives when contact is back
                self.later(worker.muted_until_s - self.now_s, self.hunt, worker, fence)
            return
        if fence:
            worker.is_alive = False
            self.fenced.append(worker.name)
        if not worker.is_alive:
            heard_s = worker.muted_until_s - self.now_s if self.is_cut(worker, "out") else 0.0
            self.later(heard_s + self.delay_s(), self.control, ev.WorkerDead(worker=worker.name, proof="proven"))

    def knock(self, command: cmd.Knock, before: set[str]) -> None:
        """Who was cut off all the time does not answer; where nobody does, that says nothing."""
        is_heard, now = set(command.others) > self.cut_of(command.others), self.cut_of(command.workers)
        unreached = tuple(name for name in command.workers if is_heard and name in before & now)
        answered = tuple(name for name in command.workers if name not in before | now)
        self.control(ev.Knocked(workers=command.workers, unreached=unreached, answered=answered))

    def cut_of(self, names: Iterable[str]) -> set[str]:
        """Those of them from which nothing comes back."""
        there = (self.workers[name] for name in names if name in self.workers)
        return {one.name for one in there if self.is_cut(one, "in") or self.is_cut(one, "out")}

    def start_over(self) -> None:
        """Nothing was ever reported, and nobody in reach holds anything: the history begins anew."""
        for worker in self.workers.values():
            if worker.state.healed and worker.state.commit.step >= 0:
                record = self.ws.state.workers.get(worker.name)
                if record is not None and record.left_with is not None:
                    continue  # the run went on without it, and it is dismissed
                must(not self.could_give(worker), Law.NOTHING_LOST, lambda: "the state was thrown away")
                worker.is_alive = False
        self.stable.clear()
        self.truth = 0

    def could_give(self, worker: SimWorker) -> bool:
        """Whether it could be asked for what it holds, and could for a while: else it may have been given up."""
        return worker.is_alive and not worker.is_hung and self.now_s - worker.muted_until_s > _GIVEN_UP_S

    # --- faults ---

    def suffers(self, worker: SimWorker) -> bool:
        """Whether a fault takes this worker now; its last words may come late, or never."""
        trains, moves = worker.state.generation > 0, REST if self.is_at_rest(worker) else 1
        if self.now_s >= self.plan.faults_end_s:
            return not worker.is_alive or worker.is_hung
        if self.chance("crash", moves):
            self.crash(worker)
        elif trains and self.chance("hang", moves):
            self.struck.add(worker.name)
            worker.is_hung, worker.is_stopped = True, self.rng.random() < 0.5
            self.later(GONE_LATE_S, self.crash, worker)
        elif trains and self.now_s > worker.muted_until_s and self.chance("mute", moves):
            self.cut(worker)
        elif self.chance("notice", moves):
            self.struck.add(worker.name)
            self.tell(worker, ev.WorkerNotice, reason="SIGTERM")
            self.later(self.rng.uniform(0.5, 5.0), self.crash, worker)
        return not worker.is_alive or worker.is_hung

    def cut(self, worker: SimWorker) -> None:
        """Its node is out of reach, with all who are on it."""
        node = self.node_of(worker.name)
        there = [one for one in self.workers.values() if self.node_of(one.name) == node]
        self.cut_off(there)
        for one in there:
            if self.plan.lose_call and self.chance("lose_call"):
                self.lose_call(one)

    def part(self) -> None:
        """The driver is cut off from all hosts; some of its calls fail at once, the others wait."""
        self.cut_off(list(self.workers.values()))
        for one in self.workers.values():
            if one.is_alive and self.rng.random() < 0.5:
                self.lose_call(one)

    def lose_call(self, worker: SimWorker) -> None:
        self.later(self.delay_s(), self.control, ev.WorkerLost(worker=worker.name, evidence="its call failed"))

    def cut_off(self, workers: list[SimWorker]) -> None:
        """The driver does not reach them, or they do not reach it, or neither; they reach each other.

        Who is cut off already stays so: what waits for contact comes before whatever is said after it.
        """
        until_s, ways = self.now_s + self.rng.uniform(1.0, 40.0), self.rng.choice(WAYS)
        for one in workers:
            self.struck.add(one.name)
            if not self.is_cut(one, "in"):
                one.muted_at_s = self.now_s
            before = one.cut_ways if self.now_s < one.muted_until_s else ()
            one.muted_until_s, one.cut_ways = max(until_s, one.muted_until_s), (*ways, *before)

    def crash(self, worker: SimWorker) -> None:
        if worker.is_alive:
            self.struck.add(worker.name)
            worker.is_alive, worker.has_last_words = False, self.rng.random() < 0.5
            gone = (ev.WorkerDead(worker=worker.name, proof="gone"), ev.WorkerLost(worker=worker.name, evidence="gone"))
            for news in self.rng.choice((gone, gone[:1], gone[1:])):
                self.later(self.delay_s(), self.control, news)

    # --- the end ---

    def judge(self) -> None:
        """A run that did not succeed had a reason.

        Raises:
            Violation: it had none.
        """
        state = self.ws.state
        must(state.phase is Phase.ENDED and state.outcome is not None, Law.ENDS, lambda: "the run has not ended")
        assert state.outcome is not None
        is_calm = not self.faults - HARMLESS
        must(not is_calm or self.fenced == [], Law.CONTROLLER, lambda: f"healthy workers were killed: {self.fenced}")
        must(not is_calm or self.replaced == [], Law.SURVIVES, lambda: f"nothing struck {self.replaced}, and they left")
        is_on = bool(self.faults - UNFELT) or self.pause_s <= self.plan.lease_s
        must(is_on, Law.GOES_ON, lambda: f"no step became stable for {self.pause_s:.1f} s, while {self.faults} struck")
        if state.outcome.ending is Ending.SUCCEEDED:
            self.judge_success()
        else:
            self.judge_failure(state.outcome.ending, state.outcome.message)

    def judge_success(self) -> None:
        done = len(self.stable)
        must(done == self.plan.steps, Law.EXACTLY_ONCE, lambda: f"{done} of {self.plan.steps} steps are stable")
        self.samples.follow(self.stable[:0])
        self.samples.follow(self.stable)
        is_calm = not self.faults - HARMLESS  # else a report may have died with all who could make it
        told = self.ws.state.published
        must(not is_calm or told == self.plan.steps - 1, Law.NOTHING_LOST, lambda: f"only steps up to {told} were told")
        self.judge_bits()

    def judge_bits(self) -> None:
        """All replicas that end the run hold the history's bits, but for what has flipped since the last vote."""
        members = [self.workers[member.name] for member in self.ws.state.members if member.name not in self.named]
        last = self.plan.steps - 1
        for one in members:
            is_true = one.bits == self.truth or one.is_tainted or not one.state.healed or one.state.commit.step != last
            must(is_true, Law.SAME_ANSWER, lambda: f"{one.name} ended with {one.bits}, not {self.truth}")  # noqa: B023

    def judge_failure(self, ending: Ending, why: str) -> None:
        is_known = ending is Ending.REPLICAS_LOST or (ending is Ending.DIVERGED and self.plan.corrupt > 0.0)
        must(is_known, Law.ENDS, lambda: f"the run ended with {ending}: {why}")
        if ending is Ending.REPLICAS_LOST:
            for member in self.ws.state.members:
                worker = self.workers[member.name]
                is_over = worker.state.stage is Stage.GONE  # told to leave while others held it
                holds = worker.state.healed and worker.state.commit.step >= 0 and not is_over
                is_lost = not holds or not self.could_give(worker) or member.name in self.named
                must(is_lost, Law.NOTHING_LOST, lambda: f"{member.name} still held the state")  # noqa: B023
