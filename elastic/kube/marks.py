"""Pure. Marks of runs on machines: which run keeps pods away, until when, and who had cordoned the machine before.

A mark is a taint. Its key names the run, so that runs on one machine leave each other's marks alone; its value says
when it ends, and whether the machine was cordoned already, which then is not ours to undo.
"""

import re
from collections.abc import Iterable
from math import inf, isinf
from zlib import crc32

from elastic.kube.objects import Machine, Taint

QUARANTINE = "elastic.quarantine"  # before the run in the key of our taint
_NEVER, _KEPT = "never", ".kept"
_LABEL = re.compile(r"[A-Za-z0-9]([-\w.]{,61}[A-Za-z0-9])?", re.ASCII)  # what may follow the slash in a key


def whose(namespace: str, run: str) -> str:
    """What marks call a run: machines are the whole cluster's, and runs of two namespaces may have one name."""
    return f"{namespace}.{run}"


def key_of(run: str) -> str:
    """The key of a run's taint; a name that no key may hold is shortened."""
    part = run if _LABEL.fullmatch(run) else f"{run[:50]}-{crc32(run.encode()):08x}"
    return f"{QUARANTINE}/{part}"


def mark(run: str, until_s: float, is_kept: bool = False) -> Taint:
    """The taint of a machine in quarantine.

    Args:
        until_s: of the wall clock; infinite: for good. is_kept: the machine stays cordoned when the mark goes.
    """
    end = _NEVER if isinf(until_s) else str(int(until_s) + 1)
    return Taint(key=key_of(run), value=end + (_KEPT if is_kept else ""), effect="NoSchedule")


def mark_on(machine: Machine, run: str, until_s: float) -> Taint:
    """The mark for a machine as it is: where others' marks are on it, what they say of who had cordoned it holds."""
    return mark(run, until_s, is_kept=machine.is_cordoned and all(_is_kept(one) for one in _marks(machine.taints)))


def marked_until_s(run: str, machine: Machine) -> float | None:
    """Until when (wall clock) this run keeps pods away from a machine; None if it does not, or nobody can say."""
    for taint in machine.taints:
        end = taint.value.removesuffix(_KEPT)
        if taint.key == key_of(run) and (end == _NEVER or end.isdecimal()):
            return inf if end == _NEVER else float(end)
    return None


def is_uncordoned_after(machine: Machine, run: str) -> bool:
    """Whether the cordon goes with the mark of this run: no other run's is there, and nobody had cordoned it before."""
    return all(one.key == key_of(run) and not _is_kept(one) for one in _marks(machine.taints))


def _marks(taints: Iterable[Taint]) -> list[Taint]:
    return [one for one in taints if one.key.startswith(f"{QUARANTINE}/")]


def _is_kept(taint: Taint) -> bool:
    return taint.value.endswith(_KEPT)
