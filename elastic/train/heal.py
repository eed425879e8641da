"""Effect. Healing: members that are behind receive the state of the view's commit, striped over all donors.

Received tensors lie beside the receiver's own state until everything has arrived and every rank's digests agree, so a
donor that dies in the middle leaves the receiver as it was. Then the installation is one local, locked move.
"""

from collections.abc import Callable

import torch

from elastic.control.integrity import outvoted
from elastic.control.values import View
from elastic.errors import DivergenceError
from elastic.train import tree
from elastic.train.gloo import GlooGroup
from elastic.train.tracked import Tracked


class DonorsDifferError(DivergenceError):
    """Donors of one commit hold different bits. Attribute: `culprits`, those outvoted; empty if no majority is."""

    culprits: tuple[str, ...]


def exchange(group: GlooGroup, view: View, tracked: Tracked) -> Callable[[], None]:
    """Give or receive what those behind lack, and compare digests over all ranks.

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
        skeleton, tensors = _receive(group, view)
        received = tree.unflatten(skeleton, tensors)
        digests = {name: tree.digest(tree.flatten(state)) for name, state in received.items()}
        _compare(group, digests)
        return lambda: _install(tracked, skeleton, tensors, digests)
    flat = tracked.flatten()
    if group.rank in view.donors:
        _give(group, view, flat)
    _compare(group, tracked.digests())
    return lambda: None


def _install(tracked: Tracked, skeleton: bytes, tensors: list[torch.Tensor], digests: dict[str, int]) -> None:
    """Set the objects, and see that they now hold what was received: a load_state_dict may cast, or leave out."""
    tracked.install(skeleton, tensors)
    wrong = [name for name, value in tracked.digests().items() if value != digests.get(name)]
    if wrong:
        raise DivergenceError(f"{', '.join(wrong)} did not take over the received state: see its load_state_dict")


def _stripe(view: View, index: int) -> int:
    """The donor of a tensor."""
    return view.donors[index % len(view.donors)]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """(bytes,) uint8 on the CPU; a view where the tensor is contiguous there already."""
    return tensor.cpu().contiguous().view(-1).view(torch.uint8)


def _give(group: GlooGroup, view: View, flat: tree.Flat) -> None:
    for receiver in view.behind:
        works = []
        if group.rank == view.donors[0]:
            size = torch.tensor([len(flat.skeleton)])
            text = torch.frombuffer(bytearray(flat.skeleton), dtype=torch.uint8)
            works += [group.send(size, receiver), group.send(text, receiver)]
        mine = [t for i, t in enumerate(flat.tensors) if _stripe(view, i) == group.rank]
        works += [group.send(_bytes(t), receiver) for t in mine if t.numel()]
        group.wait_for_transfers(works)


def _receive(group: GlooGroup, view: View) -> tuple[bytes, list[torch.Tensor]]:
    size = torch.zeros(1, dtype=torch.int64)
    group.wait_for_transfers([group.recv(size, view.donors[0])])
    text = torch.empty(int(size.item()), dtype=torch.uint8)
    group.wait_for_transfers([group.recv(text, view.donors[0])])
    skeleton = text.numpy().tobytes()
    tensors = [slot.empty() for slot in tree.slots(skeleton)]
    works = [group.recv(_bytes(t), _stripe(view, i)) for i, t in enumerate(tensors) if t.numel()]
    group.wait_for_transfers(works)
    return skeleton, tensors


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
