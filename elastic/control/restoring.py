"""Pure. State from a tier: at the start, when no live worker holds it any more, or when an older step is wanted.

Look for a step, have all stop and come to the door, have each load its part, form the next generation from those who
did. A worker that could not is healed by those who could; a step of which some part is bad everywhere is left out, and
an older one looked for. Each time a new line of history begins (`Fork`), in which later steps of the old one are void.
"""

from dataclasses import replace

from elastic.control import events as ev
from elastic.control.commands import FindRestore, Restore
from elastic.control.outcome import Ending
from elastic.control.state import Phase, Restoring, RunState, Standing, WorkerRecord, whole_gangs
from elastic.control.turn import Turn
from elastic.control.values import AS_BEFORE, CommitId, Fork

_KEPT_BAD = 64
_GRACE_S = 1.0
NEWEST = Restoring()
SILENCE = 1.5  # times the limit by which a worker gives up by itself


def look_for_state(turn: Turn, reason: str, wish: Restoring = NEWEST) -> None:
    """Ask for the newest step that can be restored; until it is, nothing is formed."""
    number = turn.state.restores + 1
    turn.change(restores=number)
    wish = replace(
        wish, number=number, commit=None, enough_s=None, without=wish.without[-_KEPT_BAD:], since_s=turn.attended_s
    )
    turn.change(restore=wish)
    turn.do(FindRestore(number=number, at_most=wish.at_most, without=wish.without, reason=reason))


def why_no_rewind(state: RunState, wish: ev.RewindAsked) -> str:
    """Why this cannot be done, empty if it can be tried."""
    run = state.settings.run
    if state.settings.checkpoint is None:
        return f"the run {run} keeps no checkpoints: nothing can be restored without fit(checkpoint=...)"
    if state.phase in (Phase.FINISHING, Phase.ENDED):
        return f"the run {run} has taken its last step"
    if state.restore is not None:
        return f"the run {run} is being restored already: ask again when it trains"
    if not 0 <= wish.to_step <= state.published:
        return f"step {wish.to_step} is none that the run {run} has made: its last stable step is {state.published}"
    begin, end = wish.skip
    if begin > end or (begin < end and begin <= wish.to_step):
        return f"steps {begin} to {end} cannot be left out: give A:B with {wish.to_step} < A < B"
    return ""


def rewind_asked(turn: Turn, event: ev.RewindAsked) -> None:
    """Look first, while all go on; they stop once there is something to go back to."""
    if not why_no_rewind(turn.state, event):
        wish = Restoring(at_most=event.to_step, skip=event.skip, is_rewind=True)
        look_for_state(turn, f"rewind to step {event.to_step}", wish)


def is_restored(turn: Turn) -> bool:
    """Whether the restore under way has led to holders of all shards; does what comes next on the way there."""
    restore = turn.state.restore
    if restore is None or restore.commit is None:
        return False
    _send_to_the_door(turn)
    turn.replenish("the state is restored")
    waiting = turn.tally.by_start(turn.tally.unasked)
    # Who kept what it held when an earlier restore came to nothing gives it up now: its answer counts again.
    turn.set_workers(waiting, restoring=restore.commit, restoring_s=turn.attended_s, refused=False, healed=False)
    if waiting:
        reason = f"the run goes on after step {restore.commit.step}"
        turn.do(Restore(workers=tuple(waiting), commit=restore.commit, number=restore.number, reason=reason))
    if turn.tally.restoring and not _is_late(turn, restore):
        return False
    parked = turn.standing(Standing.PARKED)
    if turn.tally.holders.resumable() is not None:  # all of them stand at the door
        # The others are on their way there, as after a start, until they have answered.
        turn.set_workers(turn.tally.by_start(turn.tally.restoring), standing=Standing.LOADING)
        return True
    _give_up_bad_step(turn, restore, parked)
    return False


def _is_late(turn: Turn, restore: Restoring) -> bool:
    """Enough replicas have loaded the step, and the rest takes more than twice as long: it joins later."""
    if turn.tally.restored.whole < turn.settings.scaling.bounds[0]:
        return False
    if restore.enough_s is None:
        restore = replace(restore, enough_s=turn.attended_s)
        turn.change(restore=restore)
    enough_s = restore.enough_s if restore.enough_s is not None else turn.attended_s
    parked = turn.standing(Standing.PARKED)
    took_s = enough_s - min(worker.restoring_s for worker in parked if worker.restoring is not None)
    return turn.attended_s - enough_s > max(_GRACE_S, took_s)


def _send_to_the_door(turn: Turn) -> None:
    """Whatever members hold, it is not what comes now."""
    there = turn.tally.by_rank(turn.tally.standings[Standing.MEMBER])
    turn.set_workers(there, standing=Standing.PARKED, healed=False, restoring=None, refused=False)


def _give_up_bad_step(turn: Turn, restore: Restoring, parked: tuple[WorkerRecord, ...]) -> None:
    """All have answered, and nobody who might yet is on the way: some part of the step cannot be had from anywhere."""
    is_last_word = whole_gangs(parked, turn.state.width) and not turn.tally.standings[Standing.LOADING]
    if restore.commit is None or not is_last_word:
        return
    for worker in parked:
        turn.set_worker(worker.name, restoring=None, refused=False, healed=False)
    wish = replace(restore, without=(*restore.without, restore.commit))
    look_for_state(turn, f"step {restore.commit.step} cannot be restored", wish)


def consider_restore(turn: Turn) -> None:
    """Have all stop at the end of a step, if there is something to go back to."""
    restore = turn.state.restore
    if restore is not None and restore.commit is not None:
        turn.pause(f"step {restore.commit.step} is restored")


def take_answer(turn: Turn, event: ev.RestoreFound) -> bool:
    """Take in what can be restored, or that nothing can; whether that was waited for."""
    restore = turn.state.restore
    if restore is None or restore.commit is not None or event.number not in (0, restore.number):
        return False
    if event.commit is not None:
        turn.change(restore=replace(restore, commit=event.commit))
        return True
    turn.change(restore=None, found_nothing=turn.state.generation, looks_in_vain=turn.state.looks_in_vain + 1)
    if restore.needed_for:
        why = event.error or event.reason
        turn.fail(Ending.DIVERGED, f"{restore.needed_for}; and no step up to {restore.at_most} can be restored: {why}")
    elif restore.at_most is not None:
        _go_on_with_what_was_kept(turn)
    elif event.error:
        turn.fail(Ending.REPLICAS_LOST, f"no checkpoint of the run can be restored: {event.error}")
    elif has_committed(turn):
        turn.fail_lost(f"every replica died, and no tier holds a step that can be restored: {event.reason}")
    elif restore.without:
        steps = ", ".join(str(commit.step) for commit in restore.without)
        turn.fail_lost(f"no saved step can be restored (bad: {steps}): start the run under another name to begin anew")
    return True


def come_late(turn: Turn, name: str, kept: CommitId | None = None) -> None:
    """The run went on while it loaded, or wants another step now: to the run it is one that has just been started.

    Args:
        kept: what it holds instead, of worth only to a restore under way.
    """
    is_of_use = turn.state.restore is not None and kept is not None and kept.step >= turn.state.published
    kept = kept if is_of_use else None
    turn.set_worker(name, standing=Standing.PARKED, restoring=None, prepared=None, kept=kept)


def _go_on_with_what_was_kept(turn: Turn) -> None:
    """There is nothing to go back to: who could not load another state still holds its own.

    Those who did not train may hold what the run began with, or had gone back to: that is behind what was told since.
    """
    told = max((0, turn.state.published, *turn.state.published_ahead))
    for worker in turn.standing(Standing.PARKED):
        if worker.kept is None or worker.kept.step < told or worker.healed:
            continue
        if not any(fork.voids(worker.kept) for fork in turn.state.forks):
            turn.set_worker(worker.name, answer=worker.kept, healed=True)


def may_be_saved(turn: Turn) -> bool:
    """Whether tiers may hold steps that were never told, by workers that have died since."""
    is_new = turn.state.found_nothing < turn.state.generation
    return turn.settings.checkpoint is not None and turn.state.view is not None and is_new


def note_progress(turn: Turn, step: int) -> None:
    """A step was told: past the furthest one, all restarts so far have been worth it."""
    if step > turn.state.furthest:
        turn.change(furthest=step, restarts=0)


def restart_by_choice(turn: Turn, reason: str) -> str:
    """Live workers hold state, and all go back to a tier's nevertheless; why they do not, empty if they do.

    Once: where that has led no further than before, it would lead back there again and again.
    """
    published = turn.state.published
    if turn.state.restarts:
        return f"the run has started again from a checkpoint, and got no further than step {turn.state.furthest}"
    if why_not := why_no_rewind(turn.state, ev.RewindAsked(to_step=published)):
        return why_not
    turn.change(restarts=1)
    look_for_state(turn, reason, Restoring(at_most=published))
    return ""


def restart(turn: Turn, reason: str) -> None:
    """All begin again from a checkpoint; where that was done too often for nothing, the run ends instead."""
    limit, done = turn.settings.limits.max_workload_restarts, turn.state.restarts
    if done >= limit:
        turn.fail(
            Ending.NO_PROGRESS,
            f"{reason}, and the run has started again from its checkpoints {done} times without getting past step "
            f"{turn.state.furthest}, as often as Limits.max_workload_restarts={limit} allows",
        )
        return
    turn.change(restarts=done + 1)
    look_for_state(turn, reason)


def has_committed(turn: Turn) -> bool:
    """Whether a step is known to be committed; before that, a new start loses nothing that anybody was told."""
    resumed = turn.state.view is not None and turn.state.view.resume.step >= 0
    is_told = turn.state.published >= 0 or bool(turn.state.published_ahead)
    if resumed or is_told:
        return True
    there = (member for member in turn.state.members if member.has_answered(turn.state.generation))
    return any(member.answer and member.answer.step >= 0 for member in there if not member.outdated)


def last_copy(state: RunState) -> str:
    """Why what live workers hold may soon be lost, empty if there is no cause for worry."""
    if state.phase is Phase.WAITING:
        return f"fewer than {state.settings.scaling.bounds[0]} replicas are left"
    if (notice := _notice_of_all(state)) and state.phase in (Phase.FREEZING, Phase.FORMING, Phase.RUNNING):
        return f"all who hold it will be lost: {notice}"
    is_alone = state.phase in (Phase.FORMING, Phase.RUNNING) and state.replicas == 1
    return "one replica is left" if is_alone and max(state.world_sizes, default=1) > 1 else ""


def why_at_once(state: RunState, commit: CommitId) -> str:
    """Why a step that was staged goes down to the tiers at once, empty if its turn will come.

    Where live workers go on, it is the one for which all have stopped: later ones come as often as they should.
    """
    is_stop = state.view is not None and commit.same_state(state.view.resume)
    return last_copy(state) if is_stop or state.phase is Phase.WAITING else ""


def _notice_of_all(state: RunState) -> str:
    """Why each member will be lost soon, by the example of the first; empty if one stays."""
    if state.view is None:
        return ""
    notices = (state.workers[member.worker].notice for member in state.view.members)
    first = next(notices)
    return first if first and all(notices) else ""


def fork(turn: Turn, resume: CommitId) -> None:
    """The next generation begins a new line of history after this commit."""
    skip = turn.state.restore.skip if turn.state.restore is not None else AS_BEFORE
    where = {"incarnation": turn.settings.incarnation, "generation": turn.state.generation + 1}
    made = Fork(**where, step=resume.step, skip=skip)
    wish = turn.state.restore
    if wish is not None and wish.is_rewind:
        turn.change(furthest=resume.step, restarts=0)  # who goes back on purpose expects no step past where it was
    parked = turn.tally.by_start(turn.tally.standings[Standing.PARKED])
    turn.set_workers(parked, restoring=None, refused=False, kept=None)  # who is not taken in knows of another state
    turn.change(forks=(*turn.state.forks, made), restore=None, published=resume.step, published_ahead=frozenset())
    turn.change(care=turn.state.care.forked(resume.step))
    turn.change(verified=min(turn.state.verified, resume.step), tuned=None, tuned_from=resume.step + 1)


def inherit(turn: Turn, resume: CommitId) -> None:
    """A new driver goes on with live workers: its line of history begins with what they hold, and leaves nothing out.

    Whatever an older driver, cut off with some of them, commits after that is void.
    """
    incarnation, generation = turn.settings.incarnation, turn.state.generation + 1
    begun = Fork(incarnation=incarnation, generation=generation, step=resume.step)
    turn.change(forks=(*turn.state.forks, begun), tuned=None, tuned_from=resume.step + 1)


def begin_anew(turn: Turn) -> None:
    """Nobody in reach holds anything, and nothing was told: whoever is cut off, and trains on, does so for nothing."""
    incarnation, generation = turn.settings.incarnation, turn.state.generation + 1
    turn.change(forks=(*turn.state.forks, Fork(incarnation=incarnation, generation=generation, step=-1)))


def expire_restores(turn: Turn) -> bool:
    """Who takes too long is ended; False if nobody could even say what there is."""
    limit_s, restore = SILENCE * turn.settings.limits.restore_timeout_s, turn.state.restore
    if restore is None:
        return True
    if restore.commit is None:
        return turn.attended_s - restore.since_s <= limit_s
    for worker in turn.many(turn.tally.by_start(turn.tally.restoring)):
        if worker.is_restoring and turn.attended_s - worker.restoring_s > limit_s:
            within = f"{SILENCE} times Limits.restore_timeout_s={turn.settings.limits.restore_timeout_s}"
            why = f"{worker.name} has not loaded step {restore.commit.step} within {within}"
            turn.set_worker(worker.name, refused=True)
            turn.fence(worker.name, why)
    return True
