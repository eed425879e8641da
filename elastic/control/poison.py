"""Pure. A micro-batch that ends whoever computes it: counted from what the dead were last seen doing."""

from collections.abc import Iterable
from dataclasses import dataclass

from elastic.control.flight import Reading

KEPT = 256  # a wave of deaths is not the work of one micro-batch


@dataclass(frozen=True, slots=True)
class Flown:
    """Somebody died with this micro-batch in hand. The workers of one gang have the same one, and count once."""

    step: int
    micro_batch: int
    generation: int
    gang: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """The micro-batch with which most have died, one after the other, since a step was last committed."""

    step: int
    micro_batch: int
    workers: tuple[str, ...]

    def __str__(self) -> str:
        return f"micro-batch {self.micro_batch} of step {self.step} was in flight when {', '.join(self.workers)} died"


def noted(flown: tuple[Flown, ...], worker: str, gang: int, last: Reading) -> tuple[Flown, ...]:
    """With one more death; as before, if it had nothing in hand or somebody of its gang was counted for the attempt."""
    of = (last.step, last.micro_batch, last.generation, gang)
    if last.micro_batch < 0 or any((one.step, one.micro_batch, one.generation, one.gang) == of for one in flown):
        return flown
    return (*flown, Flown(*of, worker))[-KEPT:]


def after(flown: tuple[Flown, ...], step: int) -> tuple[Flown, ...]:
    """What still counts once this step is committed."""
    return tuple(one for one in flown if one.step > step) if flown else flown


def worst(flown: Iterable[Flown]) -> Poison | None:
    """The micro-batch in hand at most deaths, the earliest among equals; None: nobody had any."""
    workers: dict[tuple[int, int], list[str]] = {}
    for one in flown:
        workers.setdefault((one.step, one.micro_batch), []).append(one.worker)
    if not workers:
        return None
    (step, micro_batch), names = max(workers.items(), key=lambda item: len(item[1]))
    return Poison(step=step, micro_batch=micro_batch, workers=tuple(names))
