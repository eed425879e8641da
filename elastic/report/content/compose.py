"""Pure. From what was read and the ledger's account to the report."""

from dataclasses import replace
from math import inf
from statistics import median

from elastic.ledger.book import INFERRED, INJECTED
from elastic.ledger.model import Account, Category, Definition, Incident
from elastic.ledger.telling import named
from elastic.report.content.fold import Fold
from elastic.report.content.model import Headline, Measure, Report, Retry, Series, Spent, Story, Told, Waterfall
from elastic.report.content.safety import COMMITTED, RUNGS
from elastic.report.content.summaries import notes, summaries

_AROUND_S = 1.0  # what led to an incident, and what came right after it, belong to its story
_MOST_STORIES = 400
_ENDLESS = (*INFERRED, INJECTED)
_DIGITS = 6
_NOTHING_S = 1e-5
_SEEN_S = 0.005  # below it reads 0.00 s
_MOMENT_DIGITS = 3

# What the categories mean, in a few words; the ledger's documentation has the definitions.
MEANINGS = {
    Category.PRODUCTIVE: "steps that count",
    Category.REDONE: "steps that were lost again and had to be done twice",
    Category.DETECTING: "from the failure to its first signal",
    Category.DECIDING: "stopping everybody, and deciding what is done",
    Category.FORMING: "forming the next generation",
    Category.HEALING: "copying state to who was behind",
    Category.WORKER_START: "starting processes and importing",
    Category.INITIALIZATION: "building the model, up to the first step",
    Category.COMPILATION: "compiling",
    Category.DATA_WAIT: "waiting for data",
    Category.CHECKPOINT_STALL: "steps that waited for a checkpoint",
    Category.RESTORE: "loading a checkpoint",
    Category.STRAGGLER_DRAG: "waiting for a slow worker",
    Category.REDUCED_CAPACITY: "training with fewer workers than were asked for",
    Category.EVALUATION: "evaluation",
    Category.CALLBACKS: "callbacks on workers",
    Category.PAUSED: "waiting below the smallest size, or on request",
    Category.BETWEEN_INCARNATIONS: "no driver was there",
    Category.FINISHING: "from the last step to the end",
    Category.UNKNOWN: "nobody knows",
}


def report(fold: Fold, account: Account) -> Report:
    """What a report shows.

    Args:
        fold, account: of the same lines.
    """
    began_s = account.begin_s or fold.began_s or 0.0  # the first lines of a journal tell the ledger of nothing yet
    seen_s = max(account.end_s, fold.seen_s or account.end_s)
    headline, waterfall = _headline(fold, account, began_s, seen_s), _waterfall(account)
    stories, left_out = _stories(fold, account, began_s)
    rungs = [fold.safety.committed, *(fold.safety.curves[rung] for rung in RUNGS)]
    drawn = tuple(curve.series(began_s) for curve in rungs)
    parts = Report(
        headline=headline,
        waterfall=waterfall,
        timeline=fold.lanes.timeline(began_s, seen_s),
        measures=tuple(map(_measure, account.definitions)),
        incidents=stories,
        sizes=_to_the_end(fold.steps.sizes.series(began_s), seen_s - began_s),
        throughput=fold.steps.samples.series(began_s),
        losses=fold.steps.losses.series(began_s),
        metric=fold.steps.metric,
        retries=tuple(
            Retry(at_s=round(one.at_s - began_s, _MOMENT_DIGITS), step=one.step, value=one.value, why=one.why)
            for one in fold.steps.retries
        ),
        retried=fold.steps.retried,
        redone=fold.steps.redone,
        rungs=tuple(
            _to_the_end(one, seen_s - began_s)
            for one in drawn
            if one.at_s and (one.name == COMMITTED or fold.safety.newest)
        ),
        stalls=tuple(
            Spent(category=rung, wall_s=round(seconds, _DIGITS), worker_s=0.0)
            for rung, seconds in sorted(account.stall_seconds.items())
            if seconds > _SEEN_S
        ),
        decisions=fold.safety.decisions(began_s),
        decided=fold.safety.decided,
        stragglers=fold.steps.stragglers(),
        paced=fold.steps.paced,
        settings=fold.settings,
    )
    failures_s = sum(one.cost_s for one in account.incidents if _is_failure(one))
    return replace(parts, summaries=summaries(parts, failures_s), notes=notes(parts, left_out))


def _headline(fold: Fold, account: Account, began_s: float, seen_s: float) -> Headline:
    failures = [one for one in account.incidents if _is_failure(one)]
    resumed = [one.resumed_s - one.opened_s for one in failures if one.resumed_s is not None]
    return Headline(
        run=account.run or fold.run,
        phase=fold.phase,
        ending=fold.ending,
        began_s=began_s,
        seen_s=seen_s,
        wall_s=round(account.wall_s, _DIGITS),
        goodput=round(account.goodput, _DIGITS),
        incarnation=fold.incarnation,
        generation=fold.generation,
        step=fold.steps.step,
        replicas=fold.steps.replicas,
        most_replicas=fold.steps.most_replicas,
        workers=fold.lanes.there,
        spares=fold.lanes.spares,
        steps_per_s=float(f"{fold.steps.steps.lately:.4g}"),
        samples_per_s=float(f"{fold.steps.samples.lately:.4g}"),
        loss=fold.steps.loss,
        incidents=len(failures),
        open_incidents=sum(one.resumed_s is None for one in failures) if not fold.ending else 0,
        typical_resume_s=round(median(resumed), _DIGITS) if resumed else None,
        worst_resume_s=round(max(resumed), _DIGITS) if resumed else None,
    )


def _measure(one: Definition) -> Measure:
    parts = tuple((name, round(seconds, _DIGITS)) for name, seconds in one.parts.items() if seconds > _NOTHING_S)
    return Measure(name=one.name, value=one.value, formula=one.formula, source=one.source, parts=parts)


def _waterfall(account: Account) -> Waterfall:
    wall, worker = account.wall_seconds, account.worker_seconds
    spent = tuple(
        Spent(
            category=category.value.replace("_", " "),
            wall_s=round(wall.get(category, 0.0), _DIGITS),
            worker_s=round(worker.get(category, 0.0), _DIGITS),
            meaning=_meaning(category, account),
        )
        for category in Category
        if max(wall.get(category, 0.0), worker.get(category, 0.0)) > _NOTHING_S or category is Category.PRODUCTIVE
    )
    return Waterfall(wall_s=round(account.wall_s, _DIGITS), worker_s=round(account.workers_s, _DIGITS), spent=spent)


def _meaning(category: Category, account: Account) -> str:
    if category is Category.CALLBACKS and account.callback_seconds:
        return f"{MEANINGS[category]}: {named(account.callback_seconds)}"
    return MEANINGS[category]


def _stories(fold: Fold, account: Account, began_s: float) -> tuple[tuple[Story, ...], int]:
    """In their order; of too many, failures first, and those that cost most. And how many are left out."""
    chosen = list(enumerate(account.incidents))
    if len(chosen) > _MOST_STORIES:
        dearest = sorted(chosen, key=lambda pair: (not _is_failure(pair[1]), -pair[1].cost_s))
        chosen = sorted(dearest[:_MOST_STORIES], key=lambda pair: pair[0])
    lives = account.incarnations > 1
    told = fold.chronicle.excerpts([_around(one) for _, one in chosen], began_s)
    stories = tuple(
        _story(number, one, _label(one, lives), lines, began_s)
        for (number, one), lines in zip(chosen, told, strict=True)
    )
    return stories, len(account.incidents) - len(stories)


def _around(one: Incident) -> tuple[float, float]:
    """From when to when what the journal has belongs to a story; of what has no end of its own, while it was felt."""
    begin_s, end_s = min(one.began_s, one.opened_s), one.resumed_s
    if end_s is None:
        end_s = one.opened_s + one.cost_s if one.kind in _ENDLESS else inf
    return begin_s - _AROUND_S, end_s + _AROUND_S


def _label(one: Incident, has_lives: bool) -> str:
    if one.its_number is None:
        return ""
    return f"{one.incarnation}.{one.its_number}" if has_lives else str(one.its_number)


def _story(number: int, one: Incident, label: str, told: tuple[Told, ...], began_s: float) -> Story:
    costs = [(category, seconds) for category, seconds in one.wall_seconds.items() if seconds > _NOTHING_S]
    return Story(
        number=number,
        label=label,
        kind=one.kind,
        is_planned=one.is_planned,
        is_failure=_is_failure(one),
        began_s=round(one.began_s - began_s, _MOMENT_DIGITS),
        opened_s=round(one.opened_s - began_s, _MOMENT_DIGITS),
        resumed_s=None if one.resumed_s is None else round(one.resumed_s - began_s, _MOMENT_DIGITS),
        cost_s=round(one.cost_s, _DIGITS),
        cost_worker_s=round(sum(one.worker_seconds.values()), _DIGITS),
        costs=tuple(
            (category.value.replace("_", " "), round(seconds, _DIGITS))
            for category, seconds in sorted(costs, key=lambda pair: -pair[1])
        ),
        culprits=one.culprits,
        evidence=one.evidence,
        decision=one.decision,
        injected="; ".join(f"{cause.fault}: {cause.proof}" for cause in one.injected),
        replicas_before=one.replicas_before,
        replicas_after=one.replicas_after,
        step=one.step,
        told=told,
    )


def _is_failure(one: Incident) -> bool:
    """Something failed; slow steps, and repeated ones, are told of, and fail nobody."""
    return not one.is_planned and one.kind not in _ENDLESS


def _to_the_end(series: Series, end_s: float) -> Series:
    """What holds until something else does, drawn up to now."""
    if not series.at_s or series.at_s[-1] >= end_s:
        return series
    at_s, values = (*series.at_s, round(end_s, _MOMENT_DIGITS)), (*series.values, series.values[-1])
    return Series(name=series.name, at_s=at_s, values=values)
