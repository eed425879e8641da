"""Pure. The real controller in a world: it keeps the state between events, and all laws are checked after each."""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b

from elastic.control import events as ev
from elastic.control.commands import Command
from elastic.control.controller import Decision, step
from elastic.control.data import Plan
from elastic.control.diagram import EDGES
from elastic.control.invariants import check, check_step
from elastic.control.remediation import Policy
from elastic.control.state import Phase, RunState, Standing
from elastic.control.values import View
from elastic.policies import Ladder
from elastic.settings import Checkpoint, Limits, RunSettings, Scaling
from elastic.sim.laws import Law, must
from elastic.sim.telling import text_of

_STORY = 400  # events that are remembered for the story of a run


class Brain:
    """Keeps the state between events and the commands of the last one.

    Attributes:
        plan: how data is cut, as workers tell at the door.
        recount: events after which the tally is held against a fresh count; one that has lost count stays wrong.
        kinds: of events that came. command_kinds: of commands that were given.
        history: digest of all events and commands, with their times.
        story: (time, event, commands) of the last events that were not beats or ticks without an effect.

    Args:
        replicas, spares: of the run.
        policy: decides incidents.
        width: workers of a replica.
        checkpoint: which tiers there are.
        limits: fields of `Limits`.
    """

    recount = 4

    def __init__(
        self,
        replicas: int | tuple[int, int] = 2,
        spares: int = 0,
        policy: Policy | None = None,
        width: int = 1,
        checkpoint: Checkpoint | None = None,
        **limits: float,
    ) -> None:
        scaling = Scaling(num_dp_replicas=replicas, spares=spares, workers_per_replica=width)
        given = Limits(**limits)  # type: ignore[arg-type]
        settings = RunSettings(run="r", scaling=scaling, limits=given, checkpoint=checkpoint)
        self.state = RunState(settings=settings)
        self.policy = policy or Ladder()
        self.now_s = 0.0
        self.taken = self.judged = 0
        self.kinds: set[type[ev.Event]] = set()
        self.command_kinds: set[type[Command]] = set()
        self.commands: tuple[Command, ...] = ()
        self.plan: Plan | None = None
        self.on_state: Callable[[RunState], object] = lambda state: None
        self.history = blake2b(digest_size=8)
        self.story: deque[tuple[float, ev.Event, tuple[Command, ...]]] = deque(maxlen=_STORY)

    def take(self, *events: ev.Event) -> tuple[Command, ...]:
        """Take events in at `now_s`; returns their commands."""
        self.commands = ()
        for event in events:
            before = self.state
            self.taken += 1
            self.kinds.add(type(event))
            decision = step(before, event, self.now_s, self.policy)
            self.state = decision.state
            self.on_state(self.state)
            self.history.update(text_of((self.now_s, event, decision.commands)).encode())
            if decision.commands or not isinstance(event, ev.Tick | ev.HostBeat | ev.HostsHeard):
                self.story.append((self.now_s, event, decision.commands))
            edges = EDGES[before.phase, type(event)]
            must(self.state.phase in edges, Law.CONTROLLER, lambda: f"{event} led to {self.state.phase}")  # noqa: B023
            broken = [] if _is_quiet(before, event, decision) else self.laws_broken(before, event, decision.commands)
            must(not broken, Law.CONTROLLER, lambda: f"{event}: {broken}")  # noqa: B023
            self.command_kinds.update(map(type, decision.commands))
            self.commands += decision.commands
        return self.commands

    def undo(self, before: RunState) -> None:
        """The last decision was told to nobody: it has never been made."""
        self.state = before

    def laws_broken(self, before: RunState, event: ev.Event, commands: tuple[Command, ...]) -> list[str]:
        self.judged += 1
        broken = check(self.state, recount=self.judged % self.recount == 0, before=before)
        return broken + check_step(before, event, self.state, commands)

    # --- what is so now ---

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def generation(self) -> int:
        return self.state.generation

    @property
    def view(self) -> View:
        assert self.state.view is not None
        return self.state.view

    def standing(self, worker: str) -> Standing:
        return self.state.workers[worker].standing


def _is_quiet(before: RunState, event: ev.Event, decision: Decision) -> bool:
    """Nothing has changed of what the laws are about."""
    after = decision.state
    return (
        isinstance(event, ev.Tick | ev.HostBeat | ev.HostsHeard)
        and not decision.commands
        and after.workers is before.workers
        and after.view is before.view
        and after.phase is before.phase
        and after.incidents is before.incidents
        and after.published == before.published
    )
