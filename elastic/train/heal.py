"""Effect. Healing: members that are behind receive the state of the view's commit, striped over all donors.

Received tensors lie beside the receiver's own state until everything has arrived and is what the donors hold, so a
donor that dies in the middle leaves the receiver as it was. Then the installation is one local, locked move. A joiner
has nothing to lose: what it receives lies in the tensors of its modules at once, where they fit, and is not copied.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import islice
from typing import Any

import torch

from elastic.control.integrity import outvoted
from elastic.control.striping import arriving, is_agreed, parts, pieces, summed_by, told
from elastic.control.values import View
from elastic.errors import DivergenceError
from elastic.train import tree
from elastic.train.gloo import GlooGroup, InOneGo
from elastic.train.landing import Landing
from elastic.train.tracked import Tracked


class DonorsDifferError(DivergenceError):
    """Donors of one commit hold different bits. Attribute: `culprits`, those outvoted; empty if no majority is."""

    culprits: tuple[str, ...]


def heal(
    groups: Sequence[GlooGroup],
    view: View,
    tracked: Tracked,
    landing: Landing,
    timeout_s: float,
    gets_on: Callable[[], None] = lambda: None,
) -> Callable[[], None]:
    """`exchange` among those who hold the same shard; and nobody installs before all workers of its replica can.

    Else a donor that dies meanwhile would leave a replica of two halves, which can go on from nothing.

    Args:
        groups: as of `gloo.groups_of`. view: of the whole generation.
        timeout_s: for whoever is through first; as long as healing may take.
    """
    across = groups[0]
    if not view.behind:
        return exchange(across, across.view, tracked, landing, gets_on)
    with ExitStack() as patience:
        for group in groups:
            patience.enter_context(group.patient(timeout_s))
        install = exchange(across, across.view, tracked, landing, gets_on)
        for inside in groups[1:]:
            inside.gather_words([0])
    return install


def exchange(
    group: GlooGroup, view: View, tracked: Tracked, landing: Landing, gets_on: Callable[[], None] = lambda: None
) -> Callable[[], None]:
    """Give or receive what those behind lack, and see that it is what the donors hold.

    Args:
        landing: where received tensors go.
        gets_on: called for each piece that has arrived, or gone, in some thread.

    Returns:
        What installs the received state; does nothing on ranks that were not behind.

    Raises:
        DivergenceError: what was handed on is not the same everywhere; names objects and ranks that differ.
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
        seen = _seen(group, view, skeleton, [tensor.nbytes for tensor in tensors], sums.__getitem__)
        _agree(group, view, seen, lambda: digests)
        return lambda: install(tracked, skeleton, tensors, digests)
    held = _Held(tracked.flatten())
    sent = _give(group, view, held) if group.rank in view.donors else []
    seen = _seen(group, view, held.skeleton, held.sizes, held.summed)  # while it is on its way
    group.wait(InOneGo(sent, lambda place: gets_on()))
    _agree(group, view, seen, tracked.digests)
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


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """(bytes,) uint8 on the CPU; a view where the tensor is contiguous there already."""
    return tensor.cpu().contiguous().view(-1).view(torch.uint8)


class _Held:
    """The state that a donor gives; what it neither gives nor sums is not even copied from its device."""

    def __init__(self, flat: tree.Flat) -> None:
        self.skeleton = flat.skeleton
        self.sizes = [tensor.nbytes for tensor in flat.tensors]
        self.bytes = read = cache(lambda at: _bytes(flat.tensors[at]))  # not `self`: copies go when this does
        self.summed = cache(lambda at: tree.summed(read(at)))


def _give(group: GlooGroup, view: View, held: _Held) -> list[Any]:
    """Send this donor's part to all who are behind; returns the works to wait for."""
    cut = pieces(held.sizes, len(view.donors))
    mine = [piece for piece in cut if view.donors[piece.donor] == group.rank]
    works = []
    for receiver in view.behind:
        if group.rank == view.donors[0]:
            size = torch.tensor([len(held.skeleton)])
            text = torch.frombuffer(bytearray(held.skeleton), dtype=torch.uint8)
            works += [group.send(size, receiver), group.send(text, receiver)]
        works += [group.send(held.bytes(piece.tensor)[piece.begin : piece.end], receiver) for piece in mine]
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


def _seen(
    group: GlooGroup, view: View, skeleton: bytes, sizes: Sequence[int], summed: Callable[[int], int]
) -> list[int]:
    """What this rank has to tell the others of what it gives, or has received; `summed`: of a tensor, by its place."""
    donors, is_donor = len(view.donors), group.rank in view.donors
    tensors_of = parts(pieces(sizes, donors), donors)
    wanted = summed_by(view.donors.index(group.rank) if is_donor else None, donors)
    sums = [tree.digest_of(b"", map(summed, tensors_of[part])) for part in wanted]
    return told(tree.digest_of(skeleton, ()), sums, is_donor)


def _agree(group: GlooGroup, view: View, seen: list[int], digests: Callable[[], dict[str, int]]) -> None:
    """What was given is what two donors hold, and has arrived, or the generation is not formed.

    Only where it is not do all sum all they hold (`digests`), to say what differs, and on whom.
    """
    if not is_agreed(group.gather_words(seen), view.donors):
        _compare(group, digests())
        raise DivergenceError("sums of state that was handed on differed and agree now: some memory or core is unsound")


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
    vote = "outvoted: " + ", ".join(culprits) if culprits else "no more than half of the donors agree"
    raise DonorsDifferError(f"{what}; {vote}", culprits=culprits)
