"""Pure. What holds at every moment of every run: laws of one state, and laws of one step of the controller.

Both functions return sentences, one for each law that is broken; an empty list is good news. Tests call them after each
event, so a law stands here once and not in every test.
"""

from collections.abc import Iterator

from elastic.control import events as ev
from elastic.control.commands import Command, EndRun, Form, Freeze, Go
from elastic.control.state import OVER, Phase, RunState, Standing, WorkerRecord
from elastic.control.taking_over import as_found
from elastic.control.tally import Tally
from elastic.control.values import NOTHING_COMMITTED, CommitId, View

_HELD = (Standing.REQUESTED, Standing.LOADING, Standing.PARKED, Standing.MEMBER)
# What the laws of one state are about, but for the tally's.
_JUDGED = (
    "settings", "phase", "workers", "view", "generation", "incidents", "failures", "world_sizes", "outcome",
)  # fmt: skip


def check(state: RunState, recount: bool = True, before: RunState | None = None) -> list[str]:
    """The laws that a state breaks.

    Args:
        recount: hold its tally against a fresh count too, which takes the longest.
        before: a state that broke none; where nothing has changed since of what the others are about, they hold.
    """
    told = list(_tally(state)) if recount else []
    if before is None or any(getattr(state, name) is not getattr(before, name) for name in _JUDGED):
        told += [*_workers(state), *_view(state), *_gangs(state), *_phase(state), *_history(state)]
    return told


def check_step(before: RunState, event: ev.Event, after: RunState, commands: tuple[Command, ...]) -> list[str]:
    """The laws that one step of the controller breaks."""
    if isinstance(event, ev.RunTakenOver):  # what it has found is where it begins
        before = as_found(before, event, after.seen_s or 0.0)
    broken = [*_monotone(before, after), *_ending(before, after, commands), *_addressed(after, commands)]
    broken += _exiled(before, event, after)
    forms = [command.view for command in commands if isinstance(command, Form)]
    if len(forms) > 1:
        broken.append(f"{len(forms)} generations are formed at once")
    if after.generation > before.generation:
        if after.view is None or forms != [after.view]:
            broken.append(f"generation {after.generation} was numbered without being formed")
        else:
            broken += _new_generation(before, event, after, after.view)
    elif forms and forms != [before.view]:
        broken.append("a generation was formed that has no new number")
    return broken


# --- one state --------------------------------------------------------------------------------------------------------


def _workers(state: RunState) -> Iterator[str]:
    for name, worker in state.workers.items():
        if worker.name != name:
            yield f"the record of {name} calls itself {worker.name}"
    scaling = state.settings.scaling
    leaving = {worker.gang for worker in state.workers.values() if worker.notice}
    held = sum(worker.gang not in leaving for worker in state.standing(*_HELD))
    if held > (scaling.bounds[1] + scaling.spares) * state.width:
        yield f"{held} workers are held, more than the maximum of replicas and all spares"


def _view(state: RunState) -> Iterator[str]:
    view = state.view
    if view is None:
        if state.generation:
            yield f"generation {state.generation} has no view"
        return
    names = [member.worker for member in view.members]
    if view.generation != state.generation:
        yield f"the view is of generation {view.generation}, the state of {state.generation}"
    if len(set(names)) < len(names) or not set(names) <= set(state.workers):
        yield f"members are unknown or named twice: {names}"
    if sorted(view.donors + view.behind) != list(range(len(names))):
        yield f"donors {view.donors} and those behind {view.behind} do not make up the ranks"
    if {rank % view.width for rank in view.donors} != set(range(view.width)):
        yield f"not every shard is given by somebody: {view.donors}"
    if view.bootstrap and (view.donors != tuple(range(view.width)) or view.resume != NOTHING_COMMITTED):
        yield "a bootstrap resumes from a commit"
    low, high = state.settings.scaling.bounds
    if not low <= view.replicas <= high or len(names) % view.width:
        yield f"{len(names)} members of replicas of {view.width} are not within ({low}, {high})"


def _gangs(state: RunState) -> Iterator[str]:
    width, members = state.width, state.members
    for rank, worker in enumerate(members):
        if worker.shard != rank % width or worker.gang != members[rank - rank % width].gang:
            yield f"{worker.name}, shard {worker.shard} of gang {worker.gang}, has rank {rank}"


def _phase(state: RunState) -> Iterator[str]:
    if (state.outcome is not None) != (state.phase is Phase.ENDED):
        yield f"outcome {state.outcome} in phase {state.phase.value}"
    if state.phase in (Phase.FORMING, Phase.RUNNING):
        for member in state.members:
            if member.standing is not Standing.MEMBER:
                yield f"{member.name} is {member.standing.value} in phase {state.phase.value}"
    if state.phase is Phase.RUNNING and not all(member.formed and member.healed for member in state.members):
        yield "the generation runs before all members have formed"
    free = [member.name for member in state.members if _may_still_apply(member, state.generation)]
    if state.phase is Phase.FREEZING and not free:
        yield "the freeze is complete and nothing was decided"
    if state.phase is Phase.WAITING and free:
        yield f"{free} may still apply while the run waits"


def _history(state: RunState) -> Iterator[str]:
    first = state.failures - len(state.incidents)
    if [incident.number for incident in state.incidents] != list(range(first, state.failures)):
        yield "incidents are not counted one by one"
    if any(incident.generation == 0 for incident in state.incidents[:-1]):
        yield "an incident was opened beside one under treatment"
    low, high = state.settings.scaling.bounds
    if not all(low <= size <= high for size in state.world_sizes):
        yield f"world sizes {state.world_sizes} are not within ({low}, {high})"


def _tally(state: RunState) -> Iterator[str]:
    """What is counted change by change is what is counted anew."""
    if state.tally is not None and state.tally.describes(state) and (wrong := state.tally.differs(Tally(state))):
        yield f"the tally has lost count of {', '.join(wrong)}"


def _may_still_apply(member: WorkerRecord, generation: int) -> bool:
    return not member.has_answered(generation) and member.standing not in OVER


# --- one step ---------------------------------------------------------------------------------------------------------


def _monotone(before: RunState, after: RunState) -> Iterator[str]:
    if not before.generation <= after.generation <= before.generation + 1:
        yield f"generation {after.generation} after {before.generation}"
    if after.published < before.published and not _is_fork(before, after):
        yield f"step {before.published} was published, now {after.published}"
    new = after.world_sizes[-1:] if after.trained > before.trained else ()
    if (*before.world_sizes, *new)[-len(after.world_sizes) or None :] != after.world_sizes:
        yield "the list of world sizes was rewritten"
    kept = {incident.number for incident in after.incidents}
    if any(one.number not in kept for one in before.incidents if one.resumed_at_s is None):
        yield "an incident was forgotten"
    for name, worker in before.workers.items() if after.workers is not before.workers else ():
        if name not in after.workers:
            if worker.standing not in OVER or name in {member.name for member in after.members}:
                yield f"{name} was forgotten"
        elif worker.standing in OVER and after.workers[name].standing not in OVER:
            yield f"{name} came back from {worker.standing.value}"


def _ending(before: RunState, after: RunState, commands: tuple[Command, ...]) -> Iterator[str]:
    if before.phase is Phase.ENDED:
        if after != before or commands:
            yield "something followed from an event after the end"
        return
    ends = [command for command in commands if isinstance(command, EndRun)]
    if len(ends) != (after.phase is Phase.ENDED):
        yield f"{len(ends)} commands to end the run in phase {after.phase.value}"
    if ends and commands[-1] is not ends[0]:
        yield "a command follows the end"


def _addressed(after: RunState, commands: tuple[Command, ...]) -> Iterator[str]:
    """Commands name their reason, and the generation and members of the state they come with."""
    names = {member.name for member in after.members} if commands else set()
    for command in commands:
        if not command.reason:
            yield f"{type(command).__name__} has no reason"
        if isinstance(command, Freeze | Go):
            if command.generation != after.generation or not set(command.workers) <= names:
                yield f"{command} is not for members of generation {after.generation}"
            if isinstance(command, Go) and after.phase is not Phase.RUNNING:
                yield f"a go in phase {after.phase.value}"


def _new_generation(before: RunState, event: ev.Event, after: RunState, view: View) -> Iterator[str]:
    """The old generation can never apply again, and who gives holds what is given."""
    held = _commits(before, event)
    for member in before.members:
        if member.name not in held and after.workers[member.name].standing not in OVER:
            yield f"generation {view.generation} is formed while {member.name} has neither answered nor died"
    stable = max(before.published, *before.published_ahead, -1)
    if view.restored != _is_fork(before, after):
        yield f"generation {view.generation}: restored={view.restored}, forks {after.forks}"
    if view.resume.step < stable and not view.restored:
        yield f"step {stable} is stable, and generation {view.generation} resumes at {view.resume.step}"
    if view.bootstrap:
        if before.published >= 0 or any(commits[0].step >= 0 for commits, _ in held.values()):
            yield "a bootstrap after something was committed"
        return
    for rank in view.donors:
        name = view.members[rank].worker
        commits, healed = held.get(name, ((NOTHING_COMMITTED,), False))
        if not healed or not any(commit.same_state(view.resume) for commit in commits):
            yield f"donor {name} holds {commits}, healed={healed}; needed: {view.resume}"


def _is_fork(before: RunState, after: RunState) -> bool:
    """A restore ended, and with the new generation a new line of history begins.

    Not one that begins with nothing; nor is it one of a new driver that has gone back to nothing yet.
    """
    is_new = after.forks[:-1] == before.forks != after.forks and after.forks[-1].step >= 0
    is_in_vain = after.looks_in_vain > before.looks_in_vain
    return before.restore is not None and after.restore is None and is_new and not is_in_vain


def _exiled(before: RunState, event: ev.Event, after: RunState) -> Iterator[str]:
    """Nobody is left behind alive unless a healed member of its generation takes part in no reduction any more."""
    if after.workers is before.workers:
        return
    exiled = [name for name, worker in after.workers.items() if worker.standing is Standing.EXILED]
    new = [name for name in exiled if before.workers[name].standing is not Standing.EXILED]
    if new and not any(healed for _, healed in _commits(before, event).values()):
        yield f"{new} were left behind, and no healed member had answered"


def _commits(before: RunState, event: ev.Event) -> dict[str, tuple[tuple[CommitId, ...], bool]]:
    """What the members of the ending generation have answered, this event included, and whether they are healed.

    So too of those who have restored a commit at the door.
    """
    members = (member for member in before.members if member.has_answered(before.generation))
    there = (*members, *before.standing(Standing.PARKED))
    held = {m.name: (_named(m.answer, m.prepared), m.healed) for m in there if m.answer is not None}
    if isinstance(event, ev.RestoreFound) and event.commit is None:  # a rewind that came to nothing
        held |= {one.name: (_named(one.kept, None), True) for one in there if one.kept is not None}
    if isinstance(event, ev.Restored) and event.worker in before.workers:
        held[event.worker] = ((event.commit,), True)
    if isinstance(event, ev.FreezeAnswered) and event.generation == before.generation:
        held[event.worker] = (_named(event.commit, event.prepared), event.healed)
    return held


def _named(answer: CommitId, prepared: CommitId | None) -> tuple[CommitId, ...]:
    return (answer,) if prepared is None else (answer, prepared)
