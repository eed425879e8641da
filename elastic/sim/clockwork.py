"""Pure. Virtual time: one queue of what happens, in the order of its time; and the network, which takes its own."""

import heapq
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

from elastic.control import events as ev
from elastic.control.state import Phase
from elastic.sim.brain import Brain
from elastic.sim.chance import Chance
from elastic.sim.laws import Law, Violation, must
from elastic.sim.parts import LEASE_S, POLICIES, Plan

TICK_S = 0.5
SLOWEST_S = 1.5  # message
_MOST = 20_000  # of what happens in a second; busy worlds come to a tenth of it
LIMITS: dict[str, Any] = {"doubt_after_s": 0.5, "freeze_timeout_s": 4.0, "forming_timeout_s": 8.0, "lease_s": LEASE_S}
SENSING: dict[str, Any] = {
    "hang_floor_s": 3.0,
    "stopped_timeout_s": 3.0,
    "first_steps_timeout_s": 3.0,
    "heartbeat_polling_period_s": TICK_S,
    "heartbeat_timeout_s": 2.0,
    "exile_after_s": 1.0,
}
HURRY: dict[str, Any] = {
    "load_timeout_s": 20.0,
    "door_timeout_s": 10.0,
    "pod_termination_threshold_s": 6.0,
    "finish_timeout_s": 10.0,
}
PATIENCE: dict[str, Any] = {"start_tries": 1000, "max_in_job_restarts": 1000, "max_workload_restarts": 1000}


def limits_of(plan: Plan) -> dict[str, Any]:
    """Fields of `Limits`."""
    return {**LIMITS, **SENSING, **HURRY, **PATIENCE, "lease_s": plan.lease_s}


class Clockwork(ABC):
    """One run from its start to its end.

    Attributes:
        rng: what everything is drawn from. now_s: virtual seconds since the start.
        faults: kinds that have struck so far. mind: what the controller lives in.
        struck: workers, and nodes, that something has befallen for which they may be given up.
        rates: the values of the plan by their names, since all ask for them all the time.
        stalled_until_s: the controller stands still until then. clock_error_s: of the controller's clock.
    """

    mind: type[Brain] = Brain

    def __init__(self, seed: int, plan: Plan) -> None:
        self.rng, self.plan, self.now_s = Chance("world", seed), plan, 0.0
        self.rates: dict[str, Any] = {one.name: getattr(plan, one.name) for one in fields(plan)}
        self.ws = self.brain()
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sent = 0
        self.last_s: dict[tuple[str, str], float] = defaultdict(float)
        self.faults: set[str] = set()
        self.struck: set[str] = set()
        self.stalled_until_s = 0.0
        self.clock_error_s = 0.0

    def brain(self, **settings: Any) -> Brain:
        """The controller, as this world sets it up."""
        policy = POLICIES[self.plan.policy]
        return self.mind(self.plan.replicas, self.plan.spares, policy, **limits_of(self.plan), **settings)

    @abstractmethod
    def control(self, event: ev.Event) -> None:
        """The controller hears of it."""

    @abstractmethod
    def tick(self) -> None:
        """Time passes, every TICK_S."""

    def play(self) -> Self:
        """
        Raises:
            Violation: a law does not hold.
        """
        self.later(0.0, self.control, ev.RunStarted())
        self.later(TICK_S, self.tick)
        limit_s, since_s, happened = self.plan.limit_s, 0.0, 0
        while self.ws.phase is not Phase.ENDED:
            self.now_s, _, act, arguments = heapq.heappop(self.queue)
            if self.now_s >= since_s + 1.0:
                must(self.now_s < limit_s, Law.ENDS, lambda: f"the run does not end: it is {self.ws.phase.value}")
                since_s, happened = self.now_s, 0
            happened += 1
            if happened >= _MOST:
                raise Violation(Law.ENDS, f"time stands still: {act.__name__}{arguments}")
            act(*arguments)
        return self

    def later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self.sent += 1
        heapq.heappush(self.queue, (self.now_s + delay_s, self.sent, act, arguments))

    def delay_s(self) -> float:
        """Of a message."""
        return self.rng.uniform(0.01, 1.0 if self.rng.random() < 0.2 else 0.1)

    @abstractmethod
    def think_s(self) -> float:
        """Between two moves of a worker."""

    def chance(self, fault: str, times: int = 1) -> bool:
        """Whether a fault strikes now, of so many times that it might have; none does after `Plan.faults_end_s`."""
        rate = times * self.rates[fault]
        happens = rate > 0.0 and self.now_s < self.plan.faults_end_s and self.rng.random() < rate
        if happens:
            self.faults.add(fault)
        return happens

    def send(self, channel: tuple[str, str], is_ordered: bool, act: Callable[..., None], *arguments: Any) -> None:
        """By mail; an ordered message does not overtake those before it."""
        at_s = self.now_s + self.delay_s()
        if is_ordered:
            at_s = self.last_s[channel] = max(at_s, self.last_s[channel])
        self.later(at_s - self.now_s, act, *arguments)
