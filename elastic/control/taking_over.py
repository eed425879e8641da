"""Pure. A new driver goes on with live workers of an earlier one: no process is started anew, no stable step is lost.

The workers have stopped for good in whatever generation they were, since they were adopted, and each has named what it
holds. So what comes next is what follows every freeze: members that were not found must be proven dead, or left behind
like any that are out of reach, and the next generation resumes from the highest commit that a live, healed one holds.
It is of the new incarnation, and its number is above all that any of them has heard of.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from elastic.control import events as ev
from elastic.control.adoption import Adopted, newest_view
from elastic.control.bequest import Bequest, taken_on
from elastic.control.deciding import on_gpus
from elastic.control.departing import AT_HOME, notice
from elastic.control.forming import settle
from elastic.control.persistent import persistent
from elastic.control.restoring import look_for_state
from elastic.control.state import Phase, Restoring, RunState, Standing, WorkerRecord
from elastic.control.turn import Turn
from elastic.control.values import CommitId, Fork, View
from elastic.control.worker_protocol import Stage

_STANDING = {
    Stage.LOADING: Standing.LOADING,
    Stage.PARKED: Standing.PARKED,
    Stage.FROZEN: Standing.PARKED,
}


def taken_over(turn: Turn, event: ev.RunTakenOver) -> None:
    changes = _taken_over(turn.state, event, turn.now_s)
    turn.change(**changes | {name: persistent(changes[name]) for name in ("workers", "heard_s") if name in changes})
    dismiss_surplus(turn)
    _clear_nodes(turn)
    if turn.state.view is None:
        turn.enter(Phase.STARTING)
        turn.replenish("a new driver goes on with workers that have not trained yet")
        begin_from_tiers(turn, event.left)
        return
    if event.left.disputed:
        begin_from_tiers(turn, event.left)
    for member in turn.state.members:
        if member.standing is Standing.SUSPECT:
            turn.doubt(member.name, "a new driver has not found it")
    settle(turn)


def begin_from_tiers(turn: Turn, left: Bequest) -> None:
    """Look for the newest step; for an older one where the last driver had found that what was newer is worthless."""
    if turn.settings.checkpoint is None:
        return
    if left.disputed:
        wish = Restoring(at_most=left.disputed_at_most, needed_for=left.disputed)
        look_for_state(turn, left.disputed, wish)
    else:
        look_for_state(turn, "the run starts")


def _clear_nodes(turn: Turn) -> None:
    """Whoever is still there was about to leave when the last driver died, or will be lost with a node, as is known.

    Where GPUs are to be reset, and nothing else is wrong, only who is on them.
    """
    tally, care = turn.tally, turn.state.care
    for reset in care.resets:
        for worker in on_gpus(turn, reset):
            notice(turn, worker.name, "its GPU is reset")
    until_s = {reset.node: reset.until_s for reset in sorted(care.resets, key=lambda one: one.until_s)}
    shut = [node for node, end_s in care.quarantine.items() if end_s != until_s.get(node)]
    reasons = {**{node: f"{node} is in quarantine" for node in shut}, **turn.state.leaving}
    there = {name for node in reasons for name in tally.nodes.get(node, ())}
    for worker in turn.many(tally.by_start(there)):
        notice(turn, worker.name, reasons[worker.node])


def dismiss_surplus(turn: Turn) -> None:
    """Some that were to be ended, and were replaced, are there with those who replace them: who is at the door goes.

    So it is where a member that was not found at once has come back.
    """
    held, scaling = turn.tally.held, turn.settings.scaling
    others: dict[int, list[str]] = {}
    for worker in turn.standing(*AT_HOME):
        if worker.notice or worker.held:
            continue
        if held.shards[worker.gang][worker.shard] > 1:
            turn.dismiss(worker.name, reason="somebody else is in its place")
        elif not any(map(turn.is_member, turn.tally.mates[worker.gang])):
            others.setdefault(worker.gang, []).append(worker.name)
    surplus = max(0, len(held.shards) - scaling.bounds[1] - scaling.spares)
    for gang in sorted(others, reverse=True)[:surplus]:
        for name in others[gang]:
            turn.dismiss(name, reason="there are enough without it")


def as_found(state: RunState, event: ev.RunTakenOver, now_s: float) -> RunState:
    """Where the run stands before anything follows from it."""
    return replace(state, **_taken_over(state, event, now_s))


def _taken_over(state: RunState, event: ev.RunTakenOver, now_s: float) -> dict[str, Any]:
    view = newest_view(event.found)
    members = {member.worker for member in view.members} if view is not None else set()
    attended_s = now_s - state.absent_s
    workers = {one.worker: _record(one, attended_s) for one in event.found if one.worker not in members}
    changes: dict[str, Any] = {"seen_s": now_s, **taken_on(state, event.left, now_s)}
    if view is not None:
        forks = tuple(sorted({*state.forks, *view.forks}, key=lambda one: (one.incarnation, one.generation)))
        rewound = _rewound(view, forks)
        told = max(view.published if rewound is None else min(view.published, rewound.step), event.published)
        beyond = frozenset(event.ahead)  # of a run with a gap, all steps since
        while told + 1 in beyond:
            told += 1
        ahead = frozenset(step for step in beyond if step > told)
        oldest = _oldest(view, rewound, told, ahead)
        there = [one for one in event.found if one.worker in members]
        workers |= {one.worker: _member(one, event.generation, oldest, forks, attended_s) for one in there}
        free = max(event.next_gang, _first_free(one.gang for one in event.found))
        workers |= _missing(view, workers, free, attended_s)
        changes |= {
            "phase": Phase.FREEZING,
            "phase_since_s": now_s,
            "view": replace(view, generation=event.generation),
            "generation": event.generation,
            "published": told,
            "published_ahead": ahead,
            "verified": min(event.verified, told),
            "forks": forks,
            "tuning": view.tuning,
            "balanced": view.balanced,
            "left_out": view.left_out,
            "heard_s": {one.node: now_s for one in workers.values() if one.standing is Standing.SUSPECT},
        }
    names = [name for name in workers if name[1:].isdecimal()]
    return changes | {
        "workers": workers,
        "plan": next((one.plan for one in event.found if one.plan is not None), None),
        "next_worker": max(event.next_worker, _first_free(int(name[1:]) for name in names)),
        "next_gang": max(event.next_gang, _first_free(one.gang for one in workers.values())),
        "restores": max((one.restores for one in event.found), default=0),
    }


def _rewound(view: View, forks: Collection[Fork]) -> Fork | None:
    """Where the history began anew for a generation that none of the workers has heard of; None: for none.

    If it was a rewind, they have loaded for it what they hold, and what came later counts no more.
    """
    later = [one for one in forks if (one.incarnation, one.generation) > (view.incarnation, view.generation)]
    return next((one for one in reversed(later) if one.step >= 0), None)


def _oldest(view: View, rewound: Fork | None, told: int, ahead: Collection[int]) -> int:
    """Of a generation that never formed, members may be one update behind what it resumes from."""
    behind = view.resume.step - 1
    return max(told, behind if rewound is None else min(behind, rewound.step), *ahead)


def _counts(last: CommitId, oldest: int, forks: Collection[Fork]) -> bool:
    """Whether what a member holds is something to go on from.

    Who could not load what the run went back to may hold yet what was left behind there.
    """
    return last.step >= oldest and not any(one.voids(last) for one in forks if one.step >= 0)


def is_left_of_a_rewind(turn: Turn, event: ev.FreezeAnswered) -> bool:
    """A member that the new driver had not found answers late, and has loaded something at the door for the one before.

    It is judged as those who were found: what is older than what was told is nothing to go on from.
    """
    state, last = turn.state, event.prepared or event.commit
    if state.view is None or state.view.incarnation == state.settings.incarnation:
        return False
    rewound = _rewound(state.view, state.forks)
    return not _counts(last, _oldest(state.view, rewound, state.published, state.published_ahead), state.forks)


def _record(one: Adopted, attended_s: float) -> WorkerRecord:
    """Of one that is no member: it stands at the door, or comes there.

    What it may hold, of a replica that was left out, is behind the run, or off it: it is a joiner, and tells nothing.
    """
    is_left = one.was is Stage.FROZEN and one.state.commit.step >= 0
    return WorkerRecord(
        **_place(one, attended_s),
        standing=_STANDING[one.was],
        left_with=one.state.commit if is_left else None,
        outdated=is_left,
        replaced=is_left,
    )


def _member(one: Adopted, generation: int, oldest: int, forks: Sequence[Fork], attended_s: float) -> WorkerRecord:
    """Of a member: adopting it has frozen it. What is older than what was told was loaded at the door, for a rewind."""
    is_frozen = one.state.stage in (Stage.FROZEN, Stage.PARKED)
    last = one.state.prepared or one.state.commit
    return WorkerRecord(
        **_place(one, attended_s),
        standing=Standing.GONE if one.is_dismissed else Standing.MEMBER,
        is_dismissed=one.is_dismissed,
        answer=one.state.commit if is_frozen else None,
        answered_in=generation,
        prepared=one.state.prepared if is_frozen else None,
        healed=one.state.healed and _counts(last, oldest, forks),
    )


def _missing(view: View, found: dict[str, WorkerRecord], free: int, attended_s: float) -> dict[str, WorkerRecord]:
    """Members that did not answer; the address stands for a node of which nothing is heard."""
    missing: dict[str, WorkerRecord] = {}
    for rank, member in enumerate(view.members):
        if member.worker in found:
            continue
        mates = [found.get(mate.worker) or missing.get(mate.worker) for mate in view.gang(rank // view.width)]
        gang = next((mate.gang for mate in mates if mate is not None), free + rank // view.width)
        missing[member.worker] = WorkerRecord(
            name=member.worker,
            gang=gang,
            shard=rank % view.width,
            standing=Standing.SUSPECT,
            healed=True,  # as far as anybody knows
            node=member.host,
            host=member.host,
            port=member.port,
            since_s=attended_s,
        )
    return missing


def _place(one: Adopted, attended_s: float) -> dict[str, Any]:
    return {
        "name": one.worker,
        "gang": one.gang,
        "shard": one.shard,
        "node": one.node,
        "host": one.host,
        "port": one.port,
        "pid": one.pid,
        "layout": one.layout,
        "gpus": one.gpus,
        "since_s": attended_s,
        "notice": one.notice,
        "notice_s": attended_s if one.notice else 0.0,
    }


def _first_free(numbers: Any) -> int:
    return max(numbers, default=-1) + 1
