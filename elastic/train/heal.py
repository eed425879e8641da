"""Effect. Healing: members that are behind receive the state of the view's commit, striped over all donors.

Received tensors lie beside the receiver's own state until everything has arrived and every rank's digests agree, so a
donor that dies in the middle leaves the receiver as it was. Then the installation is one local, locked move. A joiner
has nothing to lose: what it receives lies in its own tensors at once, where they are alike, and is not copied.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from elastic.control.integrity import outvoted
from elastic.control.values import View
from elastic.errors import DivergenceError
from elastic.train import tree
from elastic.train.gloo import GlooGroup, InOneGo
from elastic.train.landing import Landing
from elastic.train.tracked import Tracked

_PIECE_BYTES = 256 << 20  # one that arrives shows that the state gets on: seconds on a slow link


class DonorsDifferError(DivergenceError):
    """Donors of one commit hold different bits. Attribute: `culprits`, those outvoted; empty if no majority is."""

    culprits: tuple[str, ...]


def exchange(
    group: GlooGroup, view: View, tracked: Tracked, landing: Landing, gets_on: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Give or receive what those behind lack, and compare digests over all ranks.

    Args:
        landing: where received tensors go.
        gets_on: called for each piece that has arrived, or gone, in some thread.

    Returns:
        What installs the received state; does nothing on ranks that were not behind.

    Raises:
        DivergenceError: ranks hold different bits after the exchange; names objects and ranks.
        DonorsDifferError: donors do, who should have held the same before it.
        FormingCancelledError: the group was cut. RuntimeError: it broke.
    """
    if not view.behind:
        return lambda: None
    if group.rank in view.behind:
        skeleton, tensors, sums = _receive(group, view, landing, gets_on)
        received, rest = tree.unflatten(skeleton, tensors), iter(sums)
        flats = {name: tree.flatten(state) for name, state in received.items()}
        digests = {name: tree.digest_of(flat.skeleton, islice(rest, len(flat.tensors))) for name, flat in flats.items()}
        _compare(group, digests)
        return lambda: install(tracked, skeleton, tensors, digests)
    sent = _give(group, view, tracked.flatten()) if group.rank in view.donors else []
    digests = tracked.digests()  # while it is on its way
    group.wait(InOneGo(sent, lambda place: gets_on()))
    _compare(group, digests)
    return lambda: None


def install(tracked: Tracked, skeleton: bytes, tensors: list[torch.Tensor], digests: dict[str, int]) -> None:
    """Set the objects, and see that they now hold what was received: a load_state_dict may cast, or leave out.

    Raises:
        DivergenceError: one of them does not; names it.
    """
    loaded = tracked.install(skeleton, tensors)
    wrong = [name for name, value in tracked.digests(loaded).items() if value != digests.get(name)]
    if wrong:
        raise DivergenceError(f"{', '.join(wrong)} did not take over the received state: see its load_state_dict")


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes of one tensor, and which of the donors gives it."""

    tensor: int
    begin: int
    end: int
    donor: int


def pieces(sizes: Sequence[int], donors: int, most_bytes: int = _PIECE_BYTES) -> list[Piece]:
    """Cut tensors of these sizes (bytes) into runs such that every donor gives the same number of bytes, to one.

    Donor d gives bytes d/donors to (d + 1)/donors of all tensors laid end to end, so many at once at most.
    """
    total, start, cut = sum(sizes), 0, []
    edges = [total * donor // donors for donor in range(donors + 1)]
    for tensor, size in enumerate(sizes):
        for donor in range(donors):
            begin, end = max(start, edges[donor]), min(start + size, edges[donor + 1])
            runs = ((at, min(at + most_bytes, end)) for at in range(begin, end, most_bytes))
            cut += [Piece(tensor, first - start, last - start, donor) for first, last in runs]
        start += size
    return cut


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """(bytes,) uint8 on the CPU; a view where the tensor is contiguous there already."""
    return tensor.cpu().contiguous().view(-1).view(torch.uint8)


def _give(group: GlooGroup, view: View, flat: tree.Flat) -> list[Any]:
    """Send this donor's part to all who are behind; returns the works to wait for."""
    data = [_bytes(tensor) for tensor in flat.tensors]
    cut = pieces([part.numel() for part in data], len(view.donors))
    mine = [piece for piece in cut if view.donors[piece.donor] == group.rank]
    works = []
    for receiver in view.behind:
        if group.rank == view.donors[0]:
            size = torch.tensor([len(flat.skeleton)])
            text = torch.frombuffer(bytearray(flat.skeleton), dtype=torch.uint8)
            works += [group.send(size, receiver), group.send(text, receiver)]
        works += [group.send(data[piece.tensor][piece.begin : piece.end], receiver) for piece in mine]
    return works


def _receive(
    group: GlooGroup, view: View, landing: Landing, gets_on: Callable[[], None]
) -> tuple[bytes, list[torch.Tensor], list[int]]:
    """Skeleton, tensors, and the sum of each tensor, taken while others are on their way."""
    size = torch.zeros(1, dtype=torch.int64)
    group.wait(InOneGo([group.recv(size, view.donors[0])]))
    text = torch.empty(int(size.item()), dtype=torch.uint8)
    group.wait(InOneGo([group.recv(text, view.donors[0])]))
    skeleton = text.numpy().tobytes()
    tensors = [landing.empty(slot) for slot in tree.slots(skeleton)]
    data = [_bytes(tensor) for tensor in tensors]
    cut = pieces([part.numel() for part in data], len(view.donors))
    works = [group.recv(data[piece.tensor][piece.begin : piece.end], view.donors[piece.donor]) for piece in cut]
    order, missing, sums = arriving(cut), Counter(piece.tensor for piece in cut), [0] * len(tensors)

    def landed(place: int) -> None:
        tensor = cut[order[place]].tensor
        missing[tensor] -= 1
        if not missing[tensor]:
            sums[tensor] = tree.summed(tensors[tensor])
        gets_on()

    group.wait(InOneGo([works[at] for at in order], landed))
    return skeleton, tensors, sums


def arriving(cut: Sequence[Piece]) -> list[int]:
    """Places of pieces in the order in which they come: all donors send at the same time, each its own in turn."""
    sent_bytes: Counter[int] = Counter()
    begins = []
    for piece in cut:
        begins.append(sent_bytes[piece.donor])
        sent_bytes[piece.donor] += piece.end - piece.begin
    return sorted(range(len(cut)), key=begins.__getitem__)


def _compare(group: GlooGroup, digests: dict[str, int]) -> None:
    """All ranks hold the same bits, or the generation is not formed."""
    rows = group.gather_words(list(digests.values()))
    for column, name in enumerate(digests):
        values = [row[column] for row in rows]
        if len(set(values)) > 1:
            odd = [rank for rank, value in enumerate(values) if value != values[0]]
            what = f"after healing, {name} on ranks {odd} differs from rank 0 in generation {group.view.generation}"
            _vote(group.view, rows, what)
            raise DivergenceError(what)


def _vote(view: View, rows: list[list[int]], what: str) -> None:
    """Whoever received state may hold it from the wrong donor: only donors have a say about donors."""
    odd = outvoted([tuple(rows[rank]) for rank in view.donors])
    if odd == ():
        return
    culprits = tuple(view.members[view.donors[place]].worker for place in odd or ())
    told = "outvoted: " + ", ".join(culprits) if culprits else "no more than half of the donors agree"
    raise DonorsDifferError(f"{what}; {told}", culprits=culprits)
