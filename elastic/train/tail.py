"""Effect. What travels beside the gradients: one row of float64 numbers, summed over replicas."""

from dataclasses import dataclass

import torch

from elastic.control.data import Conservation

_HEAD = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """One replica's part before the reduction, the step's whole after it.

    Where sums are made in one fixed order, loss, weight and buffers travel beside the row, and are zero in it.

    Attributes:
        record: proof of which micro-batches are in.
        pauses, skips, stages, compares: votes; above 0, a step is staged, and states compared before the next update.
        loss: weighted sum of losses.
        weight: sum of weights, in units of a step's samples.
        weighted: number of micro-batches whose weight the user gave.
        used: (parameters,) on how many replicas a parameter received a gradient.
        buffers: (elements,) weighted changes of the buffers.
        table: (replicas * words,) what each replica says of itself; see control/integrity.py.
    """

    record: Conservation
    pauses: float
    skips: float
    stages: float
    compares: float
    loss: float
    weight: float
    weighted: float
    used: torch.Tensor
    buffers: torch.Tensor
    table: torch.Tensor

    def row(self) -> torch.Tensor:
        """(11 + parameters + elements + table,) float64."""
        votes = (self.pauses, self.skips, self.stages, self.compares)
        numbers = (*self.record.words(), *votes, self.loss, self.weight, self.weighted)
        return torch.cat([torch.tensor(numbers, dtype=torch.float64), self.used, self.buffers, self.table])

    @classmethod
    def of(cls, row: torch.Tensor, parameters: int, elements: int) -> "Tail":
        """The row read again; tensors are views into it."""
        pauses, skips, stages, compares, loss, weight, weighted = row[4:_HEAD].tolist()
        return cls(
            record=Conservation.from_words(row[:4].tolist()),
            pauses=pauses,
            skips=skips,
            stages=stages,
            compares=compares,
            loss=loss,
            weight=weight,
            weighted=weighted,
            used=row[_HEAD : _HEAD + parameters],
            buffers=row[_HEAD + parameters : _HEAD + parameters + elements],
            table=row[_HEAD + parameters + elements :],
        )

    @staticmethod
    def identity_bytes(row: torch.Tensor, parameters: int) -> bytes:
        """Bytes for the lineage: all but the buffers."""
        return row[: _HEAD + parameters].numpy().tobytes()
