"""From a step log and what was done to the run to the figures of a repetition. No Ray, no torch, no clock.

The step log is what training functions wrote, in the same words whatever the system: every figure comes from it and
from the observer's own notes, none from what a system says of itself.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import mean, median
from typing import Any

from elastic.demo.steplog import Attempt, Commit, StepLog

FIGURES = (
    "t_detect_s",
    "t_resume_s",
    "t_full_s",
    "longest_gap_s",
    "steps_lost",
    "attempts_lost",
    "samples_repeated",
    "samples_skipped",
    "survivors_kept",
    "step_efficiency",
    "goodput",
    "step_s",
)
_TOGETHER_S = 10.0  # a step of all, on a machine that stalls; the cuts of the scenarios last longer
_LAST_STEPS = 20
_ROUNDING = 1e-9  # of parameters in double precision, by another order of summation
LOSS_STEPS = 50
_ANNOUNCED = ("notice",)  # what follows is done at the end of some later step


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What the observer did.

    Attributes:
        kind: name of the scenario.
        at_s: wall clock when it was done.
        members: pids that trained then. victims: those that it hit.
        returns: victims live on and may train again (a host that was cut off for a while).
        full_size: members that make the run whole again.
        room_at_s: wall clock when there was room for so many again; 0 where it never went.
        watched_s: time after it in which it may still show; gaps between commits are looked for so long at least.
        lasted_s: how long it took, where it takes a while.
        proof: how it was seen that it took place, where who trains has nothing to write of it; empty: it was not.
        note: what else was seen.
    """

    kind: str
    at_s: float
    members: frozenset[int]
    victims: frozenset[int] = frozenset()
    returns: bool = False
    full_size: int = 0
    room_at_s: float = 0.0
    watched_s: float = 0.0
    lasted_s: float = 0.0
    proof: str = ""
    note: str = ""

    @property
    def survivors(self) -> frozenset[int]:
        return self.members - self.victims


def recovery(log: StepLog, fault: Fault) -> dict[str, Any]:
    """What one fault cost, None where it had not come to that when the log ended.

    What counts are attempts whose first sample was consumed after the fault, without the victims, and that were
    committed. An attempt is new if no survivor had committed its step before.

    Returns:
        t_detect_s: until the first such attempt began. It bounds the time of detection from above.
        t_resume_s: until the last of those who did the first new one had committed it; of those whom the fault did not
            hit, if there are any among them.
        t_full_s: until `full_size` members had committed a new one together, from when there was room for them.
        steps_lost: steps that survivors had committed, or anybody if none is left, and that were done again.
        longest_gap_s: between two steps' first commits, from the fault until `t_full_s`, or until the log's end; where
            it may show late, also until it has been watched for long enough. None if nothing new was committed then:
            that gap never ended.
        longest_gap_at_s: wall clock when it began.
        lasted_s: see `Fault`.
        hit, survivors, survivors_kept: how many it hit, and not; processes of the latter that committed a new one, and
            after it was watched.
    """
    by_attempt: dict[Attempt, list[Commit]] = {}
    for commit in log.commits:
        by_attempt.setdefault(commit.attempt, []).append(commit)
    witnesses = fault.survivors or fault.members
    done = {
        commit.step
        for commit in log.commits
        if commit.pid in witnesses and log.begun_s.get(commit.attempt, commit.at_s) <= fault.at_s
    }
    after = [attempt for attempt in by_attempt if log.begun_s.get(attempt, 0.0) > fault.at_s]
    after = sorted(after, key=lambda attempt: log.begun_s[attempt])
    without = [attempt for attempt in after if fault.returns or not fault.victims & log.takers[attempt]]
    new = [attempt for attempt in without if attempt[0] not in done]
    room_s = max(fault.at_s, fault.room_at_s)
    full_s = next((at_s for a in new if (at_s := _together_s(by_attempt[a], fault.full_size)) is not None), None)
    watched_s = fault.at_s + fault.watched_s
    gaps_until_s = max(full_s, watched_s) if full_s is not None else None
    went_on = [commit for attempt in new for commit in by_attempt[attempt] if commit.at_s > watched_s]
    gap_s, gap_at_s = _longest_gap(log, fault.at_s, gaps_until_s) if went_on else (None, None)
    return {
        "t_detect_s": log.begun_s[without[0]] - fault.at_s if without else None,
        "t_resume_s": _last_s(by_attempt[new[0]], fault.victims) - fault.at_s if new else None,
        "t_full_s": full_s - room_s if full_s is not None else None,
        "steps_lost": len(done & {attempt[0] for attempt in after}),
        "longest_gap_s": gap_s,
        "longest_gap_at_s": gap_at_s,
        "lasted_s": fault.lasted_s,
        "hit": len(fault.victims),
        "survivors": len(fault.survivors),
        "survivors_kept": len(fault.survivors & {commit.pid for commit in went_on}),
    }


def slowest_resumption_s(faults: Sequence[Mapping[str, Any]]) -> float | None:
    """Of all faults of a storm, by time, the longest time until survivors went on; None: after one they never did.

    What had not gone on when the next fault came went on when that one's did.
    """
    longest_s, resumed_s = 0.0, None
    for row in reversed(faults):
        resumed_s = row["at_s"] + row["t_resume_s"] if row["t_resume_s"] is not None else resumed_s
        if resumed_s is None:
            return None
        longest_s = max(longest_s, resumed_s - row["at_s"])
    return longest_s if faults else None


def _last_s(commits: Sequence[Commit], victims: frozenset[int]) -> float:
    """When the last of those committed it who were not hit; where all were, of them."""
    return max(commit.at_s for commit in [one for one in commits if one.pid not in victims] or commits)


def _together_s(commits: Sequence[Commit], size: int) -> float | None:
    """When so many had committed an attempt, if within `_TOGETHER_S`: else some were on a line of their own."""
    times: dict[int, float] = {}
    for commit in commits:
        times.setdefault(commit.pid, commit.at_s)
    ends = sorted(times.values())[: max(1, size)]
    return ends[-1] if len(ends) >= size and ends[-1] - ends[0] <= _TOGETHER_S else None


def first_commits(log: StepLog) -> dict[int, float]:
    """Step -> when the first process committed it, in the order of steps."""
    firsts: dict[int, float] = {}
    for commit in log.commits:
        firsts.setdefault(commit.step, commit.at_s)
    return dict(sorted(firsts.items()))


def _longest_gap(log: StepLog, from_s: float, until_s: float | None) -> tuple[float | None, float | None]:
    """How long it is, and when it begins."""
    times = sorted(first_commits(log).values())
    gaps = [(b - a, a) for a, b in pairwise(times) if b > from_s and (until_s is None or a < until_s)]
    return max(gaps, default=(None, None))


def pause(row: Mapping[str, Any], fault: Fault) -> tuple[float, float] | None:
    """From a fault to the next new commit; of what hits nobody, or not at once, the longest gap between two commits.

    Args:
        row: with what `recovery` has found.
    """
    is_sudden = fault.victims and not fault.watched_s and fault.kind not in _ANNOUNCED
    at_s, length_s = (fault.at_s, row["t_resume_s"]) if is_sudden else (row["longest_gap_at_s"], row["longest_gap_s"])
    return None if at_s is None or length_s is None else (at_s, at_s + length_s)


def lost_before(log: StepLog, step: int) -> int:
    """Attempts at steps below this one that nobody has committed."""
    return sum(attempt[0] < step for attempt in log.takers.keys() - {commit.attempt for commit in log.commits})


def whole_run(log: StepLog, batch: int, usual_s: float | None) -> dict[str, Any]:
    """What the run as a whole came to; it must not be longer than an epoch.

    Args:
        batch: samples of a step. usual_s: what one takes that nothing disturbs; None: not known.

    Returns:
        samples_repeated, samples_skipped: by committed attempts, against each step's `batch` samples, each once.
        attempts_lost: attempts that were begun and that nobody committed.
        step_efficiency: steps that stand, of all attempts that were begun.
        goodput: wall time of the steps that stand if each takes what it usually does, of the time from the first one's
            commit on.
        loss: mean of the last steps. losses: means of so many steps each, `LOSS_STEPS`, from step 0 on. A step counts
            once, however many members it had.
        digests_equal: all who finished ended with the same parameters, bit for bit; None if nobody did.
    """
    samples = log.samples()
    committed = log.committed_attempts()
    distinct = len({sample for _, sample in samples})
    firsts = list(first_commits(log).values())
    wall_s = max(firsts) - min(firsts) if firsts else 0.0
    losses = _losses(log)
    return {
        "steps": len(committed),
        "samples_repeated": sum(samples.values()) - distinct,
        "samples_skipped": (max(committed, default=-1) + 1) * batch - distinct,
        "attempts_lost": len(log.takers.keys() - {commit.attempt for commit in log.commits}),
        "step_efficiency": len(committed) / len(log.takers) if log.takers else None,
        "goodput": usual_s * (len(firsts) - 1) / wall_s if usual_s and wall_s else None,
        "loss": mean(list(losses.values())[-_LAST_STEPS:]) if losses else None,
        "losses": _curve(losses),
        "digests_equal": len(set(log.digests.values())) == 1 if log.digests else None,
    }


def _losses(log: StepLog) -> dict[int, float]:
    """Of each step that stands the mean over its members, in the order of steps."""
    stands = log.committed_attempts()
    of: dict[int, list[float]] = {}
    for commit in log.commits:
        if commit.attempt == stands[commit.step]:
            of.setdefault(commit.step, []).append(commit.loss)
    return {step: mean(of[step]) for step in sorted(of)}


def _curve(losses: Mapping[int, float]) -> list[float]:
    """Mean of each whole stretch of `LOSS_STEPS` steps, up to the first one that nobody has committed in."""
    stretches: dict[int, list[float]] = {}
    for step, loss in losses.items():
        stretches.setdefault(step // LOSS_STEPS, []).append(loss)
    whole = (max(losses, default=-1) + 1) // LOSS_STEPS
    return [mean(stretches[at]) for at in takewhile(stretches.__contains__, range(whole))]


def mean_step_s(log: StepLog, from_s: float, until_s: float) -> float | None:
    """Seconds by steps of a stretch of time, whatever happened in it; a median hides what is not done in each step."""
    times = sorted(at_s for at_s in first_commits(log).values() if from_s <= at_s <= until_s)
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def step_time_s(log: StepLog, from_s: float = 0.0, until_s: float = math.inf) -> float | None:
    """Median time between two steps' first commits."""
    times = sorted(at_s for at_s in first_commits(log).values() if from_s <= at_s <= until_s)
    return median(b - a for a, b in pairwise(times)) if len(times) > 1 else None


def share_of_ideal(log: StepLog, fault: Fault, window_s: float) -> dict[str, Any]:
    """Steps per second with a member at half speed, against what the group's capacity would allow.

    Args:
        window_s: over which speeds are measured: before the fault, and at the end of the log.
    """
    times = sorted(first_commits(log).values())
    last_s = times[-1] if times else 0.0
    before = sum(fault.at_s - window_s <= at_s < fault.at_s for at_s in times)
    after = sum(last_s - window_s < at_s <= last_s for at_s in times)
    size = len(fault.members)
    ideal = (size - len(fault.victims) / 2) / size
    return {"speed_after": after / before, "ideal": ideal, "share_of_ideal": after / before / ideal} if before else {}


def where_time_went(
    log: StepLog, outages: Sequence[tuple[float, float]], micro_batch: int, calm_s: float = math.inf
) -> dict[str, Any]:
    """A storm's time, from its first fault on, against the undisturbed steps before it.

    Args:
        outages: (fault, next step committed), by time.
        micro_batch: samples of one forward. Where fewer members take more of these each, a step takes longer; where
            they leave out what the others would have taken, it does not.
        calm_s: how long before the first fault steps were undisturbed; if there were none, all before it count.

    Returns:
        share: steps done, of those that an undisturbed run would have done in the same time.
        start_up_share: part of the time lost because steps took longer than their deal explains. Nothing else runs,
            so it is mostly processes that start and compete for the cores.
        outage_share, below_full_size_share: parts lost from a fault to the next step; in steps of fewer members.
    """
    firsts = first_commits(log)
    stands = log.committed_attempts()
    began_s = outages[0][0]
    undisturbed_s = step_time_s(log, began_s - calm_s, began_s) or step_time_s(log, until_s=began_s)
    if undisturbed_s is None:
        raise ValueError("no two steps before the first fault: there is nothing to compare with")
    usual = [_forwards(log, stands[step], micro_batch) for step, at_s in firsts.items() if at_s < began_s]
    lost = {"outage": 0.0, "below_full_size": 0.0, "start_up": 0.0}
    steps = total_s = 0.0
    for (_, a_s), (step, b_s) in pairwise(firsts.items()):
        if b_s <= began_s:
            continue
        due_s = undisturbed_s * _forwards(log, stands[step], micro_batch) / min(usual)
        is_outage = any(a_s < resumed_s and b_s > at_s for at_s, resumed_s in outages)
        steps, total_s = steps + 1, total_s + b_s - a_s
        lost["below_full_size"] += due_s - undisturbed_s
        lost["outage" if is_outage else "start_up"] += b_s - a_s - due_s
    if not total_s:  # no step came any more
        return {"share": 0.0, "undisturbed_step_s": undisturbed_s, "storm_s": 0.0}
    shares = {f"{name}_share": seconds / total_s for name, seconds in lost.items()}
    return {"share": steps * undisturbed_s / total_s, "undisturbed_step_s": undisturbed_s, "storm_s": total_s} | shares


def _forwards(log: StepLog, attempt: Attempt, micro_batch: int) -> int:
    """Of the member that had most to do in an attempt, if its samples were dealt as evenly as can be; 1 at least."""
    taken = math.ceil(sum(log.consumed.get(attempt, Counter()).values()) / micro_batch)
    return max(1, math.ceil(taken / max(1, len(log.takers.get(attempt, ())))))


def medians(rows: Iterable[dict[str, Any]], discarded: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """For each scenario, system and its settings the median of each figure over the repetitions that have it.

    Args:
        discarded: rows of runs that do not count; they are counted.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    thrown_away = Counter(map(_kind, discarded))
    for row in rows:
        group = groups.setdefault(_kind(row), [])
        group += [] if row.get("unavailable") else [row]
    return [
        {
            "scenario": scenario,
            "system": system,
            "settings": settings,
            "repetitions": len(group),
            "discarded": thrown_away[scenario, system, settings],
            "timed_out": sum(bool(row.get("timed_out")) for row in group),
            "digests_equal": _all_equal(group),
            **{name: _median(row.get(name) for row in group) for name in FIGURES},
        }
        for (scenario, system, settings), group in groups.items()
    ]


def broken_promises(row: Mapping[str, Any]) -> list[str]:
    """What a run of ours shows of the README's promises that does not hold; a figure that is not known breaks none."""
    difference = row.get("param_rel_diff_vs_clean") or 0.0
    told = {
        "samples were repeated": row.get("samples_repeated"),
        "samples were skipped": row.get("samples_skipped"),
        "steps that survivors had committed were done again": row.get("steps_lost") if row.get("survivors") else 0,
        "its parameters are not those of the run without faults": difference > _ROUNDING,
        "replicas ended with different parameters": row.get("digests_equal") is False,
    }
    return [what for what, is_so in told.items() if is_so]


def _all_equal(rows: Iterable[Mapping[str, Any]]) -> bool | None:
    """Whether replicas ended with the same bits in all runs of which that is known; None: in none it is."""
    known = [row["digests_equal"] for row in rows if row.get("digests_equal") is not None]
    return all(known) if known else None


def _kind(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["scenario"], row["system"], row.get("settings", "default")


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
