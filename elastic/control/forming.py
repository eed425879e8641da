"""Pure. Freeze, decide, form: how one generation ends and the next one is made."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import chain

from elastic.control.ahead import has_connected
from elastic.control.commands import Form, Freeze
from elastic.control.deciding import ALONE, WAITS, decide
from elastic.control.departing import part
from elastic.control.doubt import deserted_by, is_doubtful
from elastic.control.exiting import exit_resumes, exits_at_once
from elastic.control.outcome import Ending
from elastic.control.parting import leave_the_unreached
from elastic.control.remediation import Kind, Remediation
from elastic.control.restoring import begin_anew, fork, has_committed, inherit, is_restored, may_be_saved, restart
from elastic.control.saving import save_what_is_held
from elastic.control.state import NOTHING_SAID, Gang, Phase, Standing, State, WorkerRecord, whole_gangs
from elastic.control.stragglers import without_stragglers
from elastic.control.turn import Turn
from elastic.control.values import NOTHING_COMMITTED, CommitId, IncidentClass, Member, View


def freeze(turn: Turn, reason: str, survivors_only: bool = False) -> None:
    """End the current generation: every member must answer, be proven dead, or outlive its lease."""
    if survivors_only:
        turn.blame_joiners()
    tally = turn.tally  # who was at the door, and has formed, the next forming forgets; older answers do not count
    turn.set_workers(list(tally.doubted), doubted=False)
    turn.enter(Phase.FREEZING, planned=False, survivors_only=survivors_only, pause_asked=False)
    # A suspect is asked too: it may be alive, and its answer is as good as another's.
    there, suspects = tally.standings[Standing.MEMBER], tally.standings[Standing.SUSPECT]
    reachable = tuple(name for name in tally.ranks if name in there or name in suspects)
    if reachable:
        turn.do(Freeze(workers=reachable, generation=turn.state.generation, reason=reason))
    settle(turn)


def harden(turn: Turn, reason: str) -> None:
    """Something failed while all were stopping at the end of a step: stop those still on their way at once."""
    if not turn.state.planned:
        return
    turn.enter(Phase.FREEZING, planned=False)
    late = turn.many(turn.tally.by_rank(turn.tally.late))
    unanswered = tuple(member.name for member in late if member.standing is Standing.MEMBER)
    if unanswered:
        turn.do(Freeze(workers=unanswered, generation=turn.state.generation, reason=reason))


def settle(turn: Turn, is_tick: bool = False) -> None:
    """Decide once no member of the ending generation can ever make a step of it stable.

    A reduction needs every member, and who has answered a freeze takes part in none: one answer of a shard ends the
    generation for all who hold it. Members out of reach may then be left behind; at most they complete the reduction
    that was in flight, and apply a step that can never become stable. The answers must be those of live, healed members
    of every shard: somebody has to hold the state. Who is out of reach only ticks judge: there are few of them.
    """
    tally = turn.tally
    if tally.late:
        if not is_tick or turn.state.planned:
            return
        unreached = turn.state.unreached
        is_certain = bool(unreached) and all(turn.worker(name).node in unreached for name in tally.late)
        if turn.waited_s() <= (0.0 if is_certain else turn.settings.limits.exile_after_s):
            return
        if not all(turn.is_silent(turn.worker(name).node) for name in tally.late):
            return
        if tally.holders.resumable() is None:
            return
        for name in tally.by_rank(tally.late):
            turn.signal(IncidentClass.HOST_SILENT, turn.silence(name), culprit=name)
            turn.exile(name, turn.silence(name))
    try_form(turn)


def try_form(turn: Turn) -> None:
    """Form the next generation from who is there, or wait, or give up."""
    _return_unhealed_to_the_door(turn)
    if turn.state.restore is not None and not is_restored(turn):
        _wait(turn, "state comes from a checkpoint")
        return
    if turn.state.care.hold is not None:
        _wait(turn, turn.state.care.hold.reason)
        save_what_is_held(turn)
        return
    _dismiss_the_trained(turn)
    if turn.state.formed_in_vain == turn.state.generation:
        leave_the_unreached(turn, _whole(turn))
    if (has_committed(turn) or may_be_saved(turn)) and turn.tally.holders.resumable() is None:
        if not _ask_suspects(turn):
            _resort_to_tiers(turn)
        return
    before, gangs = turn.state.workers, _whole(turn)
    survivors, joiners = _who_is_there(turn, gangs)
    remediation = _remediate(turn, len(survivors), len(joiners))
    if _ends(turn, remediation):
        return
    if turn.state.workers is not before:  # some have to leave now
        gangs = _whole(turn)
    survivors, joiners = _who_is_there(turn, gangs)
    is_alone = remediation.kind in ALONE and _is_enough(turn, survivors)
    survivors = without_stragglers(turn, survivors, remediation)
    room = turn.settings.scaling.bounds[1] - len(survivors)
    taken = () if is_alone else joiners[:room]
    if remediation.kind in WAITS or len(survivors) + len(taken) < turn.settings.scaling.bounds[0]:
        _wait(turn, remediation.reason)
        save_what_is_held(turn)
        return
    resume = _resumable(turn, survivors, taken)
    if resume is None and has_committed(turn):
        why = "the last holders of the state wait for the rest of their replicas"
        _wait(turn, why)
        turn.complete({worker.gang for worker in turn.many(turn.tally.holders.names)}, why)
        return
    _form(turn, (*survivors, *taken), resume, remediation)


def may_be_enough(turn: Turn) -> bool:
    """Whether one more at the door can change anything: not where it was decided to wait, and they are too few yet."""
    if turn.state.restore is not None or turn.state.care.decided not in WAITS:
        return True
    there = len(turn.tally.holders.names) + len(turn.tally.standings[Standing.PARKED])
    return there >= turn.settings.scaling.bounds[0] * turn.state.width


def _whole(turn: Turn) -> tuple[Gang, ...]:
    """Replicas of which every worker holds state: those of the ending generation by rank, then others."""
    tally, width = turn.tally, turn.state.width
    holding = tally.holders.names
    broken = {tally.ranks[name] // width for name in tally.ranks.keys() - holding.keys()}
    ranked = iter(turn.many(tally.ranks))
    gangs = [gang for replica, gang in enumerate(zip(*[ranked] * width, strict=True)) if replica not in broken]
    if len(gangs) * width < len(holding):
        there = {gang[0].gang for gang in gangs}
        others = whole_gangs(_holders(turn, _names(gangs)), width)
        gangs += [gang for gang in others if gang[0].gang not in there]
    return tuple(gangs)


def _who_is_there(turn: Turn, gangs: tuple[Gang, ...]) -> tuple[tuple[Gang, ...], tuple[Gang, ...]]:
    """Those of them who may go on, and those who may join them."""
    survivors = gangs[: turn.settings.scaling.bounds[1]]
    if turn.state.care.leaving is None:  # else who leaves helps to save the state until it is taken
        survivors = part(turn, survivors)
    is_alone = turn.state.survivors_only and _is_enough(turn, survivors)
    return survivors, () if is_alone else _trusted_joiners(turn, survivors)


def _is_enough(turn: Turn, survivors: tuple[Gang, ...]) -> bool:
    """Whether they can go on alone.

    One that was healed to a commit, when its neighbour was not yet, may have to wait for a third that holds it too.
    """
    if len(survivors) < turn.settings.scaling.bounds[0]:
        return False
    return not has_committed(turn) or _resumable(turn, survivors) is not None


def _ends(turn: Turn, remediation: Remediation) -> bool:
    """The policy has had enough, or there is nothing to save before the run exits."""
    if remediation.kind is not Kind.GIVE_UP:
        return exits_at_once(turn)
    last = turn.state.incidents[-1].evidence[-1:] if turn.state.incidents else ()
    cause = f"; the last: {last[0]}" if last else ""
    turn.fail(Ending.NO_PROGRESS, f"the policy gave up: {remediation.reason}{cause}")
    return True


def _trusted_joiners(turn: Turn, survivors: tuple[Gang, ...]) -> tuple[Gang, ...]:
    """Replicas at the door, less those on a node that may be dying: a culprit was there, and no survivor answers there.

    So with a node that loses one worker after another, or was not heard since it lost one. They join at the end of a
    later step, if they still live; only below the minimum are they taken now. A replica that was broken and is whole
    again is one of them, and comes first: its other workers may hold what nobody else does.
    """
    tally = turn.tally
    if not tally.standings[Standing.PARKED] and len(tally.holders.names) == len(survivors) * turn.state.width:
        return ()
    staying = _names(survivors)
    present = (*_holders(turn, staying), *turn.ready)
    joiners = whole_gangs((worker for worker in present if worker.name not in staying), turn.state.width)
    incident = turn.open_incident()
    culprits = incident.culprits if incident is not None else ()
    doubted = deserted_by(turn, culprits, staying)
    doubted |= {worker.node for gang in joiners for worker in gang if is_doubtful(turn, worker.node)}
    if turn.state.care.grow_now:
        return joiners
    trusted = tuple(
        gang
        for gang in joiners
        if any(worker.held for worker in gang) or not any(worker.node in doubted for worker in gang)
    )
    is_enough = len(survivors) + len(trusted) >= turn.settings.scaling.bounds[0]
    return trusted if is_enough else joiners


def _resort_to_tiers(turn: Turn) -> None:
    """No live worker holds the state."""
    if turn.settings.checkpoint is None:
        turn.fail_lost(
            "every replica died, and no checkpoint tier holds a copy of the state: use more replicas, or "
            "elastic.fit(checkpoint=...)"
        )
        return
    _wait(turn, "every replica died")
    restart(turn, "every replica died")


def _holders(turn: Turn, but: AbstractSet[str]) -> list[WorkerRecord]:
    """Live workers, beside these, that hold healed state and have said which: members by rank, then others."""
    tally = turn.tally
    holding = tally.holders.names.keys()
    if holding <= but:
        return []
    names = holding - but
    at_door = tally.by_start(name for name in names if name not in tally.ranks)
    return turn.many((*tally.by_rank(names), *at_door))


def _names(gangs: Iterable[Gang]) -> set[str]:
    return {worker.name for gang in gangs for worker in gang}


def _resumable(turn: Turn, survivors: tuple[Gang, ...], joiners: tuple[Gang, ...] = ()) -> State | None:
    """What these replicas can resume from together; all survivors hold something."""
    holders = turn.tally.holders
    if not joiners and len(survivors) * turn.state.width == len(holders.names):
        return holders.resumable()
    return holders.resumable(but=_holders(turn, _names((*survivors, *joiners))))


def _return_unhealed_to_the_door(turn: Turn) -> None:
    """A joiner that froze before it was healed is a joiner again; one that failed too often goes."""
    unhealed = turn.many(turn.tally.by_rank(turn.tally.unhealed))
    turn.set_workers([one.name for one in unhealed if one.standing is Standing.MEMBER], standing=Standing.PARKED)
    for worker in turn.standing(Standing.PARKED):
        if worker.tries >= turn.settings.limits.joiner_tries:
            turn.dismiss(worker.name, reason=f"it failed to join {worker.tries} generations")


def _dismiss_the_trained(turn: Turn) -> None:
    """Where the run begins anew, nobody may take part who has applied an update of a history that never was."""
    if has_committed(turn) or may_be_saved(turn):
        return
    for worker in turn.standing(Standing.PARKED):
        if worker.left_with is not None and worker.left_with.step >= 0:
            turn.dismiss(worker.name, reason="the run begins anew, and it has trained already")


def _ask_suspects(turn: Turn) -> bool:
    """Contact with the last holders of the state is lost, and nobody has proven them dead: ask them once more."""
    out_of_touch = turn.many(turn.tally.by_rank(turn.tally.standings[Standing.SUSPECT]))
    suspects = tuple(member.name for member in out_of_touch if member.healed)
    if suspects:
        _wait(turn, f"contact with {', '.join(suspects)} is lost")
        turn.do(Freeze(workers=suspects, generation=turn.state.generation, reason="the last holders of the state"))
    return bool(suspects)


def _remediate(turn: Turn, survivors: int, spares: int) -> Remediation:
    """Ask the policy about a failure; growth, tuning and the start need no decision of it."""
    incident, last = turn.open_incident(), turn.state.view
    if incident is None and last is not None and last.tuning != turn.state.tuning:
        return Remediation(kind=Kind.CONTINUE, reason=f"tuned: {turn.state.tuning}")
    if incident is None and _is_of_an_earlier_life(turn):
        return Remediation(kind=Kind.CONTINUE, reason="a new driver goes on with live workers")
    if incident is None:
        why = "joiners are ready" if spares else "nobody was lost"
        return Remediation(kind=Kind.SWAP if spares else Kind.CONTINUE, reason=why)
    return decide(turn, survivors, spares)


def _is_of_an_earlier_life(turn: Turn) -> bool:
    """The last generation was another driver's."""
    return turn.state.view is not None and turn.state.view.incarnation != turn.settings.incarnation


def _wait(turn: Turn, reason: str) -> None:
    if turn.state.phase not in (Phase.WAITING, Phase.STARTING):
        turn.enter(Phase.WAITING)
    turn.replenish(f"below the minimum of replicas: {reason}")


def _form(turn: Turn, gangs: tuple[Gang, ...], state: State | None, why: Remediation) -> None:
    """Number the next generation and say who gives what to whom; without a state to resume from, the run begins."""
    ranked, resume, donors = _ranked(turn, gangs, state)
    names = [worker.name for worker in ranked]
    tally = turn.tally
    behind = () if len(donors) == len(ranked) else tuple(sorted(set(range(len(ranked))).difference(donors)))
    is_fork = turn.state.restore is not None and resume is not None
    if is_fork and resume is not None:
        fork(turn, resume)
    elif resume is not None and _is_of_an_earlier_life(turn):
        inherit(turn, resume)
    elif resume is None and turn.state.trained:
        begin_anew(turn)
    _leave_out(turn, set(names))
    began_s = turn.attended_s if turn.state.began_s is None else turn.state.began_s
    named = _members(turn, ranked, names)
    view = View(
        run=turn.settings.run,
        incarnation=turn.settings.incarnation,
        generation=turn.state.generation + 1,
        members=named,
        resume=resume or NOTHING_COMMITTED,
        donors=donors,
        behind=behind,
        bootstrap=resume is None,
        published=turn.state.published,
        balanced=turn.state.balanced,
        restored=is_fork,
        forks=turn.state.forks,
        width=turn.state.width,
        tuning=turn.state.tuning,
        replaced=tuple([worker.name for worker in ranked if worker.replaced]),
        failures=turn.state.failures,
        watched_s=turn.attended_s - began_s,
        restores=turn.state.restores,
        left_out=turn.state.left_out,
        is_connected=has_connected(turn, turn.state.generation + 1, named),
    )
    if turn.state.view is not None and turn.state.view.tuning != view.tuning:
        turn.change(steps_s=())  # how long a step takes is learned anew
    # Who stays a member is known by what it has answered until it has formed, so that most records need not change now.
    begun, members = tally.begun, tally.standings[Standing.MEMBER]
    new = [name for name in names if name in begun or name not in members]
    turn.set_workers(new, standing=Standing.MEMBER, slow_steps=0, **NOTHING_SAID)
    turn.change(view=view, generation=view.generation, began_s=began_s, saving=(), ahead=None)
    tally.enter(view, turn.many(new))
    turn.tend(grow_now=False)
    if turn.state.planned:
        turn.tend(stopped_s=turn.attended_s)
    exit_resumes(turn, view.resume)
    turn.enter(Phase.FORMING)
    turn.note_new_generation(view.replicas)
    turn.do(Form(view=view, reason=f"{why.kind.value}: {why.reason}"))


def _ranked(
    turn: Turn, gangs: tuple[Gang, ...], state: State | None
) -> tuple[list[WorkerRecord], CommitId | None, tuple[int, ...]]:
    """Their workers by rank, the commit that they resume from, and who gives it; where the run begins, the first do."""
    ranked = list(chain.from_iterable(gangs))
    if state is None:
        return ranked, None, tuple(range(turn.state.width))
    resume, holding = turn.tally.holders.named(state, ranked), turn.tally.holders.commits[state].keys()
    if holding >= _names(gangs):
        return ranked, resume, tuple(range(len(ranked)))
    giving = _giving(gangs, state, holding)
    gangs = tuple(sorted(gangs, key=lambda gang: _order(gang, giving)))
    ranked = list(chain.from_iterable(gangs))
    return ranked, resume, tuple(rank for rank, worker in enumerate(ranked) if worker.name in giving)


def _giving(gangs: tuple[Gang, ...], state: State, holding: AbstractSet[str]) -> AbstractSet[str]:
    """Those of them who hold a state and hand it on.

    Who is only prepared for it, beside others of its replica who are not, applies it no sooner than these are healed,
    unless nobody else has this shard: should a donor die first, the replica can go on from what it holds.
    """
    apart = {
        worker.name: worker.shard
        for gang in gangs
        for worker in gang
        if worker.name in holding and not _has(worker, state) and not all(mate.name in holding for mate in gang)
    }
    if not apart:
        return holding
    there = {worker.shard for gang in gangs for worker in gang if worker.name in holding and worker.name not in apart}
    return holding - {name for name, shard in apart.items() if shard in there}


def _has(worker: WorkerRecord, state: State) -> bool:
    return worker.answer is not None and (worker.answer.step, worker.answer.lineage) == state


def _members(turn: Turn, ranked: list[WorkerRecord], names: list[str]) -> tuple[Member, ...]:
    """Those of the last generation are the same values again, so that what is told of them can be told in brief."""
    last = turn.state.view
    if last is None or _is_of_an_earlier_life(turn):  # whose members may listen elsewhere by now
        return tuple(Member(worker.name, worker.host, worker.port) for worker in ranked)
    known = dict(zip(turn.tally.ranks, last.members, strict=True))
    if all(map(known.__contains__, names)):
        return tuple(map(known.__getitem__, names))
    return tuple([known.get(one.name) or Member(one.name, one.host, one.port) for one in ranked])


def _leave_out(turn: Turn, ranked: set[str]) -> None:
    """What is left of a broken replica stays at the door until it is whole again."""
    for holder in _holders(turn, ranked):
        parked = {"standing": Standing.PARKED, "healed": False, "left_with": holder.left_with or holder.answer}
        turn.set_worker(holder.name, **parked, **NOTHING_SAID)


def outdate_the_left(turn: Turn) -> None:
    """The generation trains, so the history goes on from what it has resumed from, without those at the door.

    What they hold may be behind it by any number of steps from now on. Where it goes back behind that, or on from
    another state, it will never be a part of the history.
    """
    resume = turn.state.view.resume if turn.state.view is not None else NOTHING_COMMITTED
    for worker in turn.state.workers.values():
        held = worker.left_with
        if held is not None and not turn.is_member(worker.name):
            is_off = held.step >= resume.step and not held.same_state(resume)
            turn.set_worker(worker.name, outdated=True, replaced=worker.replaced or is_off)


def is_of_old(turn: Turn, name: str, answer: CommitId) -> bool:
    """A worker still holds what it held when its replica was left out, and the run has gone on since.

    Who has formed the generation names what that resumes from, even if there was no time left to tell that it had.
    """
    worker, view = turn.worker(name), turn.state.view
    is_resumed = view is not None and answer.same_state(view.resume)
    return worker.outdated and not is_resumed and worker.left_with is not None and answer.same_state(worker.left_with)


def _order(gang: Gang, giving: AbstractSet[str]) -> int:
    """Those who hold what is resumed from come first, then others who trained, then joiners."""
    if all(worker.name in giving for worker in gang):
        return 0
    return 1 if all(worker.held for worker in gang) else 2


def start_if_ready(turn: Turn) -> None:
    """Begin once every worker that has a slot stands at the door, and they are enough."""
    if turn.state.restore is not None and not is_restored(turn):
        return
    low, high = turn.settings.scaling.bounds
    ready = turn.tally.ready.whole
    others_come = any(one.restoring is None for one in turn.many(turn.tally.standings[Standing.LOADING]))
    if ready >= low and (ready >= high or not others_come):
        try_form(turn)
