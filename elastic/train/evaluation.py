"""Effect. Evaluation between two steps: on all replicas, tried again as a whole, with one result.

It is called at the door of a step, not written after one. Whoever joins, or is healed to a step that others have
applied, comes to the next door, and never to the lines behind a step that it has not computed itself: an evaluation
there would wait for it in vain.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from elastic.control.data import even
from elastic.control.flight import Flying
from elastic.errors import DivergenceError, SettingError, StepMisuseError
from elastic.train import rng
from elastic.train.data import make_batches
from elastic.train.step import OUTSIDE

if TYPE_CHECKING:
    from elastic.train.gloo import GlooGroup
    from elastic.train.replica import Replica

_UNEQUAL = (
    "replicas have unequal numbers of batches, so one among them would wait for ever: talk after the last batch; if "
    "the loop was left before it, close its iterator"
)


class Evaluation:
    """One try at an evaluation, as the user's function sees it.

    Attributes:
        step: the step whose result is evaluated.
        rank, replicas: this replica's place in the generation, and its size.
    """

    def __init__(self, replica: "Replica", step: int) -> None:
        self.step = step
        self.rank, self.replicas = replica.rank, replica.replicas
        self._replica = replica

    def batches(
        self, dataset: Any, *, batch_size: int, collate: Callable[[list[Any]], Any] | None = None
    ) -> Iterator[Any]:
        """This replica's share of a map-style dataset: over all replicas, each sample comes once.

        A broken generation ends it at the next batch, so that nobody waits for this worker.

        Args:
            dataset: `len(dataset)` and `dataset[i]`.
            batch_size: samples of one batch on one replica; which samples make a batch depends on nothing else.
            collate: list of samples -> batch; default: torch's default_collate.

        Raises:
            SettingError: batch_size is not positive, or the dataset is empty.
            AttemptBroken: (a signal) the generation is broken.
        """
        if batch_size < 1 or not len(dataset):
            what = f"batch_size={batch_size}: at least 1" if batch_size < 1 else "the dataset is empty"
            raise SettingError(f"evaluation.batches: {what}")
        replica = self._replica
        batches = make_batches(
            dataset,
            batch_size=len(dataset),
            micro_batch_size=batch_size,
            seed=replica.seed,
            shuffle=False,
            collate=collate,
        )
        try:
            for batch in batches.dealt(batches.plan.cut(0, self.replicas), even(self.replicas), self.rank):
                self.check()
                replica.page.note(Flying.EVALUATING, batch.number)
                loaded = batches.load(batch)
                rng.seed_all(replica.seed, self.step, batch.number)
                replica.mute = _UNEQUAL
                yield loaded
        finally:  # a loop over the first of them is left by a break
            if replica.mute is _UNEQUAL:
                replica.mute = ""

    def check(self) -> None:
        """Leave this try if the generation is broken; for loops that take no `batches`.

        Raises:
            AttemptBroken: (a signal) it is.
        """
        self._replica.link.check()

    def sum(self, *values: float | torch.Tensor) -> list[float]:
        """The sums of numbers over all replicas, in float64; every replica calls it, with equally many.

        Raises:
            StepMisuseError: called among the batches, of which replicas have unequal numbers.
            AttemptBroken: (a signal) the generation is broken.
        """
        total = torch.tensor([float(value) for value in values], dtype=torch.float64)
        replica = self._replica
        group = replica.talking_group("evaluation.sum")
        replica.unless_broken(lambda: group.wait(group.allreduce(total)))
        return [float(value) for value in total]


class Evaluator:
    """When to evaluate, how, and the newest results; these are a part of a replica's state.

    Args:
        act: the user's function, from an evaluation to numbers by name.
        every: steps between two evaluations.

    Raises:
        SettingError: `every` is not positive.
    """

    def __init__(self, act: Callable[[Evaluation], Mapping[str, float]], every: int) -> None:
        if every < 1:
            raise SettingError(f"session.evaluate_every({every}, ...): the number of steps must be at least 1")
        self.every = every
        self._act = act
        self._results: dict[str, float] = {}
        self._new: dict[str, float] | None = None  # found at this door; kept once the next update is committed

    @property
    def results(self) -> dict[str, float]:
        return dict(self._results if self._new is None else self._new)

    def state_dict(self) -> dict[str, Any]:
        return {"results": dict(self._results)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._results, self._new = dict(state["results"]), None

    def is_due(self, step: int, is_last: bool) -> bool:
        """Whether to evaluate at the door of `step`."""
        return step > 0 and (is_last or step % self.every == 0)

    def committed(self) -> None:
        """The update that followed is applied: from now on its state holds these results."""
        if self._new is not None:
            self._results, self._new = self._new, None

    def run(self, replica: "Replica", step: int) -> bool:
        """Evaluate the state at the door of `step`; False if the generation broke.

        Raises:
            DivergenceError: replicas came to different results.
            StepMisuseError: the result is not a mapping from names to numbers.
        """
        modes = [(part, part.training) for module in replica.tracked.modules for part in module.modules()]
        replica.buffers.begin()
        replica.page.note(Flying.EVALUATING)
        replica.mute = ""
        try:
            for module in replica.tracked.modules:
                module.eval()
            rng.seed_all(replica.seed, step, rng.BODY)
            with torch.no_grad():
                found = self._act(Evaluation(replica, step - 1))
            self._new = _agreed(replica, found)
        except BaseException as error:
            if not replica.is_failure(error):
                raise
            replica.settle()
            return False
        finally:
            replica.mute = OUTSIDE
            replica.buffers.restore()
            for part, was_training in modes:
                part.training = was_training
        replica.evaluated(self._new)
        return True


def _agreed(replica: "Replica", found: Any) -> dict[str, float]:
    """The numbers found, after all replicas have found the same."""
    if not isinstance(found, Mapping):
        raise StepMisuseError(f"an evaluation returned {type(found).__name__}: return numbers by name, like a dict")
    results = {str(name): float(value) for name, value in found.items()}
    text = json.dumps([[name, value.hex()] for name, value in results.items()])
    mine = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    # Its own workers first: what they had to abort is no result of the replica.
    for group, who in ((replica.inner, "shards of a replica"), (replica.group, "ranks")):
        if group is not None and (odd := _odd(replica, group, mine)):
            raise DivergenceError(
                f"the evaluation on {who} {odd} came to other results than on the first one: add up what each has "
                "found, over replicas with evaluation.sum(...), and over a replica's workers by a collective of yours"
            )
    return results


def _odd(replica: "Replica", group: "GlooGroup", mine: int) -> list[int]:
    """Who says something else than the first one of a group."""
    words = [row[0] for row in replica.unless_broken(lambda: group.gather_words([mine]))]
    return [rank for rank, word in enumerate(words) if word != words[0]]
