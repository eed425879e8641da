"""The diagrams: what the tables say, nothing else; and ARCHITECTURE.md shows what is drawn now."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from elastic.control import events as ev
from elastic.control.adoption import Adopted
from elastic.control.controller import TABLE, step
from elastic.control.diagram import EDGES, render_phases, render_stages
from elastic.control.faults import Fault, FaultKind
from elastic.control.flight import Flying
from elastic.control.hardware import FindingKind
from elastic.control.remediation import Kind, Remediation
from elastic.control.state import Phase, RunState, Standing
from elastic.control.tuning import Tuning
from elastic.control.values import Member, View
from elastic.control.worker_protocol import DEFERRED, TRANSITIONS, Stage, WorkerState
from elastic.control.xid import Severity
from elastic.policies import ExitOnNotice, Ladder
from elastic.settings import Checkpoint, Limits
from elastic.sim.parts import Plan
from elastic.sim.world import World
from tests.pure.bare_controller import BareController, commit, report, trained

ARCHITECTURE = Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"
LATER_S = 1e6
WORLDS = (
    Plan(replicas=2, spares=1, steps=2, crash=0.02, break_=0.05),
    Plan(replicas=(1, 3), spares=1, steps=3, crash=0.02, break_=0.05, mute=0.01),
    Plan(replicas=1, spares=1, steps=2, crash=0.03, break_=0.05),
)
SEEDS = range(1, 3)


def give_up(incident: object, view: object) -> Remediation:
    return Remediation(kind=Kind.GIVE_UP, reason="too dear")


def wait(incident: object, view: object) -> Remediation:
    return Remediation(kind=Kind.WAIT, reason="by choice")


def shrink(incident: object, view: object) -> Remediation:
    return Remediation(kind=Kind.SHRINK, reason="spares are dear")


def shape(state: RunState) -> object:
    """States of one shape lead to the same phases, so one of them is enough."""
    members = {member.name for member in state.members}
    workers = sorted(
        (one.standing.value, name in members, one.answer is not None, one.healed, one.formed, one.tries)
        for name, one in state.workers.items()
        if one.standing.value not in ("gone", "requested") or name in members
    )
    return state.phase, state.settings.scaling, tuple(workers), state.published >= 0, state.planned


def states() -> list[RunState]:
    """States of every phase, one of each shape, as random worlds with faults come through them."""
    found: dict[object, RunState] = {}
    for plan in WORLDS:
        for seed in SEEDS:
            world = World(seed, plan)
            world.ws.on_state = lambda state: found.setdefault(shape(state), state)
            world.play()
    return [*found.values(), waits_by_choice(), hangs(), on_hold(), *exits(), *restores(), *condemned()]


def on_hold() -> RunState:
    """The policy has paused the run; it would go on."""
    ws = BareController((1, 2), policy=lambda incident, view: Remediation(kind=Kind.PAUSE, reason="by choice")).run()
    ws.break_("w0")
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    assert ws.phase is Phase.WAITING
    return ws.state


def exits() -> Iterator[RunState]:
    """The run saves before it exits: all have stopped, come to the door, and train once more; then too few are left.

    Or there is no tier. Or it has taken its last step, and one has returned. Whatever the policy says then.
    """
    ws = BareController(2, policy=ExitOnNotice(), checkpoint=Checkpoint())
    ws.start()
    ws.feed(ev.RestoreFound(commit=None))
    ws.join("w0", "w1")
    ws.form()
    ws.stable(3)
    ws.feed(ev.WorkerNotice(worker="w1", reason="SIGTERM"))
    ws.tick(0.5)
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    yield ws.state
    ws.form()
    yield ws.state
    ws.die("w1")
    ws.answer("w0", 5)
    assert ws.phase is Phase.WAITING
    yield ws.state
    ws = BareController(1, policy=ExitOnNotice()).run()
    ws.stable(3)
    ws.feed(ev.WorkerNotice(worker="w0", reason="SIGTERM"))
    ws.tick(0.5)
    yield ws.state
    ws = BareController(2).run()
    ws.end_loop("w0")
    ws.leave("w0")
    yield ws.state


def waits_by_choice() -> RunState:
    """Below the minimum with a spare at the door, since a policy of the user's did not want it then."""
    ws = BareController(2, spares=1, policy=wait).run()
    ws.die("w1")
    ws.answer("w0", 4)
    assert ws.phase is Phase.WAITING
    return ws.state


def hangs() -> RunState:
    """A member has stood still for long, as its monitor has just told."""
    ws = trained()
    ws.beat("w1", Flying.COMPUTING, still_s=LATER_S)
    return ws.state


def condemned() -> Iterator[RunState]:
    """A worker was told to die, since its GPU has failed, and has not ended yet."""

    def fenced(ws: BareController, worker: str) -> RunState:
        found = {"node": f"node-{worker}", "device": "GPU-1", "detail": "XID 94", "kind": FindingKind.XID}
        ws.feed(ev.HardwareFinding(severity=Severity.RESTARTABLE, workers=(worker,), **found))
        return ws.state

    ws = BareController((1, 2))
    ws.start()
    ws.place("w0", "w1")
    ws.park("w0")
    yield fenced(ws, "w1")
    ws = BareController(2)
    ws.start()
    ws.place("w0", "w1")
    ws.die("w0")
    yield ws.state
    for replicas in ((1, 2), 2):
        ws = BareController(replicas).run()
        ws.break_("w0")
        ws.answer("w0", 4)
        yield fenced(ws, "w1")
    ws = BareController((1, 3), policy=wait).run()
    ws.die("w2")
    ws.answer("w0", 4)
    ws.answer("w1", 4)
    assert ws.phase is Phase.WAITING
    yield fenced(ws, "w1")


def restores() -> Iterator[RunState]:
    """What the worlds, which have no tiers, do not come through: at the start, after all have died, in a rewind."""
    for is_late in (False, True):
        ws = BareController((1, 2), checkpoint=Checkpoint())
        ws.start()
        if is_late:
            ws.feed(ev.RestoreFound(commit=None))
            ws.join("w0", "w1")
            ws.form()
            ws.stable(3)
            ws.die("w0", "w1")
        names = [one.name for one in ws.state.standing(Standing.REQUESTED)]
        ws.join(*names)
        yield ws.state
        ws.feed(ev.RestoreFound(commit=commit(0)))
        yield ws.state
        ws.feed(ev.Restored(worker=names[0], commit=commit(0)))
        yield ws.state
    ws = BareController((2, 3), checkpoint=Checkpoint())  # the third loads for long
    ws.start()
    ws.feed(ev.RestoreFound(commit=commit(0)))
    ws.join("w0", "w1", "w2")
    ws.feed(ev.Restored(worker="w0", commit=commit(0)), ev.Restored(worker="w1", commit=commit(0)))
    ws.tick(after_s=3.0)
    ws.form()
    ws.die("w1")
    ws.answer("w0", 1)
    yield ws.state
    ws = BareController(1, checkpoint=Checkpoint())
    ws.start()
    ws.feed(ev.RestoreFound(commit=None))
    ws.join("w0")
    ws.form()
    for number in range(4):
        ws.stable(number)
    ws.feed(ev.RewindAsked(to_step=2))
    yield ws.state
    looking = ws.state
    ws.break_("w0")
    ws.answer("w0", 4)
    yield ws.state
    ws.state = looking
    ws.feed(ev.RestoreFound(commit=commit(2)))
    yield ws.state
    ws.state = replace(looking, restore=None, verified=2)
    ws.feed(ev.CorruptionFound(worker="w0", generation=1, culprits=(), evidence="a tie"))
    yield ws.state


def events(state: RunState) -> Iterator[ev.Event]:
    """All that may happen next, sensible or not."""
    yield from (ev.Tick(), ev.StopAsked(reason="ctrl-c"), ev.MonitorLost(node="node-w0"), ev.HostBeat(node="node-w0"))
    yield ev.HostsHeard(nodes=("node-w0", "node-w1"))
    yield ev.TuneAsked(tuning=Tuning(lr_factor=0.5))
    yield from (
        ev.PauseAsked(),
        ev.ResumeAsked(),
        ev.ExitAsked(reason="the job is stopped"),
        ev.GpuReset(node="node-w0", gpus=("0",)),
        ev.Knocked(workers=("w0",), unreached=("w0",)),
        ev.NodesMissing(missing=1, reason="no capacity"),
        ev.RungReached(commit=commit(9), rung="local"),
    )
    yield ev.FaultAsked(fault=Fault(kind=FaultKind.KILL))
    yield ev.FaultInjected(fault=Fault(kind=FaultKind.KILL), target="w0", at_s=1.0, proof="gone")
    yield ev.FaultRefused(fault=Fault(kind=FaultKind.KILL), reason="nobody is there")
    yield ev.NodeNotice(node="node-w0", reason="preempted")
    for severity in Severity:
        found = {"node": "node-w0", "device": "GPU-1", "detail": "XID 94", "kind": FindingKind.XID}
        yield ev.HardwareFinding(severity=severity, workers=tuple(state.workers)[:1], **found)
    yield ev.RewindAsked(to_step=0)
    yield from (ev.RestoreFound(commit=commit(0)), ev.RestoreFound(commit=None, error="no contact"))
    yield ev.RestoreFound(commit=None, reason="nothing is there")
    if state.phase is Phase.STARTING:
        yield ev.RunStarted()
        yield from take_overs(state.settings.scaling.bounds[0])
    at = state.generation
    for worker in state.workers:
        yield ev.WorkerPlaced(worker=worker, node="node-w0")
        yield ev.WorkerParked(worker=worker, host="h", port=1, pid=1, layout="l")
        yield ev.WorkerParked(worker=worker, host="h", port=1, pid=1, layout="l", no_room="full")
        yield ev.WorkerLost(worker=worker, evidence="silence")
        yield ev.WorkerDead(worker=worker, proof="gone")
        yield ev.WorkerNotice(worker=worker, reason="SIGTERM")
        yield ev.StackDumped(worker=worker, stack="main.py:1")
        yield ev.GpuSlow(worker=worker, share=0.5)
        yield ev.WorkerDeparted(worker=worker, reason="SystemExit")
        for generation in (at - 1, at):
            yield ev.CollectiveBroken(worker=worker, generation=generation, error="reset")
            for culprits in ((), (worker,)):
                yield ev.CorruptionFound(worker=worker, generation=generation, culprits=culprits, evidence="odd")
            yield ev.LoopEnded(worker=worker, generation=generation, commit=commit(9))
        yield ev.FreezeAnswered(worker=worker, generation=at, commit=commit(9), healed=True)
        if state.phase is not Phase.RUNNING:  # nobody steps who is not healed
            yield ev.FreezeAnswered(worker=worker, generation=at, commit=commit(-1), healed=False)
        yield ev.AtDoor(worker=worker, generation=at)
        yield ev.Connected(worker=worker, generation=at)
        yield ev.Formed(worker=worker, generation=at)
        yield ev.FormingFailed(worker=worker, generation=at, error="refused")
        yield ev.Overdue(worker=worker, generation=at)
        yield ev.StepStable(worker=worker, report=report(9, at))
        yield ev.Restored(worker=worker, commit=commit(0))
        yield ev.RestoreRefused(worker=worker, commit=commit(0), reason="bad bytes")
        yield ev.ShardStaged(worker=worker, commit=commit(9), shard=0, shards=1, nbytes=64)
        yield ev.TierDegraded(worker=worker, tier="memory", reason="full")
        yield ev.IntervalChosen(worker=worker, tier="memory", reason="set to every 10 steps")
        yield ev.Logged(worker=worker, lines=())
        yield ev.Noted(worker=worker, what="profile", step=9, seconds=0.2)
        yield from (ev.TrainFnReturned(worker=worker), ev.TrainFnReturned(worker=worker, dismissed=True))
        yield ev.TrainFnRaised(worker=worker, summary="ValueError", traceback="line 1")


def take_overs(low: int) -> Iterator[ev.Event]:
    """Workers of an earlier driver: at the door, members, some of them missing, too few, or without state."""
    names = [f"w{number}" for number in range(low)]
    members = tuple(Member(name, "h", 1) for name in names)
    told = {"run": "r", "incarnation": 1, "generation": 3, "resume": commit(4), "donors": (0,), "behind": ()}
    view = View(members=members, **told)

    def found(name: str, healed: bool = True, view: View | None = view) -> Adopted:
        stage = Stage.PARKED if view is None else Stage.FROZEN
        held = WorkerState(stage=stage, generation=3 if view else 0, commit=commit(5), healed=healed, incarnation=2)
        return Adopted(worker=name, gang=int(name[1:]), shard=0, pid=1, was=stage, state=held, view=view)

    whole = tuple(found(name) for name in names)
    yield ev.RunTakenOver(found=tuple(found(name, view=None) for name in names))
    yield ev.RunTakenOver(found=whole)
    yield ev.RunTakenOver(found=tuple(found(name, healed=False) for name in names))
    wider = replace(view, members=(*members, Member("w9", "h", 1)))
    yield ev.RunTakenOver(found=(found("w0", view=wider),))
    if low > 1:
        yield ev.RunTakenOver(found=(found("w0", view=replace(view, members=members[:1])),))


def seen_edges() -> dict[tuple[Phase, type[ev.Event]], frozenset[Phase]]:
    """Where each event leads from each phase, over all states, policies, now and much later, patient or not."""
    seen: dict[tuple[Phase, type[ev.Event]], set[Phase]] = {}
    for state in states():
        strict = replace(state, settings=replace(state.settings, limits=Limits(start_tries=1, joiner_tries=1)))
        happening = list(events(state))
        for one, policy in ((state, Ladder()), (strict, give_up)):
            for now_s, what in ((0.0, happening), (LATER_S, [ev.Tick()])):
                seen_until_now = replace(one, seen_s=now_s, heard_s=dict.fromkeys(one.heard_s, now_s))
                for event in what:
                    after = step(seen_until_now, event, now_s, policy).state
                    seen.setdefault((state.phase, type(event)), set()).add(after.phase)
    return {pair: frozenset(phases) for pair, phases in seen.items()}


def test_the_declared_edges_are_those_that_the_controller_takes():
    seen = seen_edges()
    assert set(seen) == set(TABLE) == set(EDGES)
    declared_only = {pair: EDGES[pair] - seen[pair] for pair in EDGES if EDGES[pair] - seen[pair]}
    seen_only = {pair: seen[pair] - EDGES[pair] for pair in EDGES if seen[pair] - EDGES[pair]}
    assert (declared_only, seen_only) == ({}, {})


ARROW = re.compile(r"^    (\S+) --> (\S+)(?: : (.*))?$", flags=re.MULTILINE)


def drawn(text: str) -> set[tuple[str, str, str]]:
    """Arrows as (from, to, label), one for each label."""
    arrows = ARROW.findall(text)
    return {(source, target, label) for source, target, labels in arrows for label in labels.split(", ") if label}


def test_every_edge_of_a_run_is_drawn():
    arrows = drawn(render_phases())
    for (phase, event), targets in EDGES.items():
        for target in targets - {phase}:
            places = {phase.value, "anywhere"}
            assert any((place, target.value, event.__name__) in arrows for place in places), (phase, event, target)


def test_nothing_is_drawn_of_a_run_that_is_not_declared():
    names = {event.__name__: event for _, event in EDGES}
    for source, target, label in drawn(render_phases()):
        sources = [phase for phase in Phase if phase is not Phase.ENDED] if source == "anywhere" else [Phase(source)]
        assert all(Phase(target) in EDGES[phase, names[label]] for phase in sources), (source, target, label)


def test_every_transition_of_a_worker_is_drawn():
    arrows = drawn(render_stages())
    for (stage, signal), target in TRANSITIONS.items():
        places = {stage.value, "anywhere"} if stage is not target else {}
        assert not places or any((place, target.value, signal.value) in arrows for place in places), (stage, signal)


def test_what_waits_for_the_end_of_apply_is_noted():
    note = re.search(r"note right of applying : (.*) wait", render_stages())
    assert note is not None
    assert set(note[1].split(", ")) == {signal.value for stage, signal in DEFERRED if stage is Stage.APPLYING}


def test_the_diagrams_name_every_phase_and_stage():
    assert all(re.search(rf"\b{phase.value}\b", render_phases()) for phase in Phase)
    assert all(re.search(rf"\b{stage.value}\b", render_stages()) for stage in Stage)


def test_architecture_shows_what_is_drawn_now():
    if not ARCHITECTURE.exists():
        pytest.skip("there is no ARCHITECTURE.md")
    block = re.search(r"<!-- diagram:begin -->\n(.*)<!-- diagram:end -->", ARCHITECTURE.read_text(), flags=re.DOTALL)
    assert block is not None, "ARCHITECTURE.md has no markers <!-- diagram:begin --> and <!-- diagram:end -->"
    shown = re.findall(r"```mermaid\n(.*?)```", block[1], flags=re.DOTALL)
    assert shown == [render_phases(), render_stages()], "run `make diagram`"
