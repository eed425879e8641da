"""Pure. Measures that others have published, of the same run, with their formulae."""

from elastic.ledger.model import Category, Definition, Seconds, Steps

C = Category

# What its authors call productive runtime: without the start of the job, and without what is done again.
_IN_STEPS = (
    C.PRODUCTIVE,
    C.STRAGGLER_DRAG,
    C.REDUCED_CAPACITY,
    C.DATA_WAIT,
    C.CHECKPOINT_STALL,
    C.EVALUATION,
    C.CALLBACKS,
)


def definitions(wall: Seconds, workers: Seconds, steps: Steps) -> tuple[Definition, ...]:
    """Those that follow from sums; `wall`, `workers`: seconds by category. `ml_goodput.py` has one that does not."""
    return (
        _ours(workers),
        _seeds(wall, steps),
        _ettr(wall),
        _step_efficiency(steps),
    )


def _ours(workers: Seconds) -> Definition:
    part, whole = workers.get(C.PRODUCTIVE, 0.0), sum(workers.values())
    return Definition(
        name="goodput",
        value=_share(part, whole),
        formula=f"productive / asked for, in worker-seconds = {part:.1f} / {whole:.1f}",
        source="elastic, docs/goodput.md",
    )


def _seeds(wall: Seconds, steps: Steps) -> Definition:
    """Without a checkpoint that was loaded in this time it is 0, however well it went: so its authors wrote it."""
    first = min(steps.loaded, default=None)
    saved = max(0, steps.saved - first) if steps.saved is not None and first is not None else 0
    whole = sum(wall.values())
    return Definition(
        name="resiliency_metrics goodput",
        value=_share(saved * steps.usual_s, whole),
        formula=f"(last step saved - first step loaded) x reference step time / wall = {saved} x {steps.usual_s:.4g} / "
        f"{whole:.1f}",
        source="AI-Hypercomputer/resiliency, resiliency_metrics/calculator.py; the reference step time is ours",
    )


def _ettr(wall: Seconds) -> Definition:
    part, whole = _of(wall, *_IN_STEPS), sum(wall.values())
    return Definition(
        name="ETTR",
        value=_share(part, whole),
        formula="time in steps that were kept, at whatever speed and size, with all that they waited for / wall = "
        f"{part:.1f} / {whole:.1f}",
        source="Kokolis et al., Revisiting Reliability in Large-Scale Machine Learning Research Clusters, 2024",
    )


def _step_efficiency(steps: Steps) -> Definition:
    attempted = steps.kept + steps.redone + steps.broken
    return Definition(
        name="step efficiency",
        value=_share(steps.kept, attempted),
        formula=f"steps kept / attempted = {steps.kept} / {attempted}; time plays no part",
        source="PyTorch blog, Fault Tolerant Llama, 2025 (torchft)",
    )


def _of(seconds: Seconds, *categories: Category) -> float:
    return sum(seconds.get(one, 0.0) for one in categories)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
