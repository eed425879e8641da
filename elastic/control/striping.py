"""Pure. Which donor gives which bytes of a state, and who sees that they are right.

Donor d gives bytes d/donors to (d + 1)/donors of all tensors laid end to end. The tensors of which it gives some are
its part. A part is summed by the donor that gives it, by the donor after it, and by whoever receives it: what is handed
on has been the same on two donors, and the more of them there are, the less each has to read.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from elastic.control.data import hash32

PIECE_BYTES = 256 << 20  # one that arrives shows that the state gets on: seconds on a slow link


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes of one tensor, and which of the donors gives it."""

    tensor: int
    begin: int
    end: int
    donor: int


def pieces(sizes: Sequence[int], donors: int, most_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Cut tensors of these sizes (bytes) into runs such that every donor gives the same number of bytes, to one."""
    total, start, donor, cut = sum(sizes), 0, 0, list[Piece]()
    for tensor, size in enumerate(sizes):
        at, end = start, start + size
        while at < end:
            while (edge := total * (donor + 1) // donors) <= at:
                donor += 1
            last = min(at + most_bytes, edge, end)
            cut.append(Piece(tensor, at - start, last - start, donor))
            at = last
        start = end
    return cut


def arriving(cut: Sequence[Piece]) -> list[int]:
    """Places of pieces in the order in which they come: all donors send at the same time, each its own in turn."""
    sent_bytes: Counter[int] = Counter()
    begins = []
    for piece in cut:
        begins.append(sent_bytes[piece.donor])
        sent_bytes[piece.donor] += piece.end - piece.begin
    return sorted(range(len(cut)), key=begins.__getitem__)


def parts(cut: Sequence[Piece], donors: int) -> list[list[int]]:
    """Of each donor, the tensors of which it gives some, in order."""
    given: list[dict[int, None]] = [{} for _ in range(donors)]
    for piece in cut:
        given[piece.donor][piece.tensor] = None
    return [list(tensors) for tensors in given]


def summed_by(donor: int | None, donors: int) -> tuple[int, ...]:
    """Parts that are summed by this donor, its own first; None: by a rank that gives nothing, which are all."""
    return tuple(range(donors)) if donor is None else (donor, (donor - 1) % donors)


def told(skeleton: int, sums: Sequence[int], is_donor: bool) -> list[int]:
    """What a rank tells the others: digests of the skeleton, and of the parts that it has summed (`summed_by`)."""
    return [skeleton, *(sums if is_donor else (hash32(*sums), 0))]


def is_agreed(rows: Sequence[Sequence[int]], donors: Sequence[int]) -> bool:
    """Whether all that ranks have told fits together; donors: their ranks."""
    given = [rows[rank][1] for rank in donors]
    checked = [rows[rank][2] for rank in (*donors[1:], donors[0])]
    received = {row[1] for rank, row in enumerate(rows) if rank not in donors}
    return len({row[0] for row in rows}) == 1 and given == checked and received <= {hash32(*given)}
