"""Pure. Which step goes to the disks of the nodes, and which may go from there; beside the ladder, told the same.

One step at a time is written, by every node that has pinned slots of it, and then the newest that all shards are pinned
of: so the nodes write the same steps, however fast their disks are. A step leaves the disks when two newer ones are
whole there; one, on a node without room, where what history has left behind goes, too. A step that some disk refused,
and that is not whole, goes when the next one is written. What somebody reads stays.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from elastic.checkpoint import rungs
from elastic.checkpoint.manifest import ShardKey, is_visible
from elastic.checkpoint.rungs import Copy, StepId, copy_of, step_id
from elastic.control.values import Fork

KEEP = 2
DISK = "disk"  # no rung, but told of like one
DiskOrder = rungs.ToDisk | rungs.OffDisk | rungs.DiskStep | rungs.Degraded


@dataclass(slots=True)
class Site:
    """What one node has: pinned slots, and shards on its disk."""

    life: str = ""
    number: int = -1
    pinned: dict[Copy, ShardKey] = field(default_factory=dict)
    disk: dict[Copy, ShardKey] = field(default_factory=dict)
    is_full: bool = False


class Disks:
    """See the module."""

    def __init__(self) -> None:
        self._sites: dict[str, Site] = {}
        self._target: StepId | None = None
        self._writing: set[tuple[Copy, str]] = set()
        self._refused: set[tuple[Copy, str]] = set()
        self._torn: set[StepId] = set()  # that a disk has refused, so that they never came to be whole
        self._failing: dict[str, str] = {}  # by node, why the last shard was not written
        self._told: StepId | None = None
        self._readers: Counter[StepId] = Counter()
        self._is_degraded = False
        self._forks: tuple[Fork, ...] = ()
        self._is_settled = False

    def heed(self, event: rungs.Event | rungs.OnDisk) -> tuple[DiskOrder, ...]:
        """Take an event in; returns what is to be done, and told, now."""
        # Each of a thousand nodes says every second what it holds: what follows is looked at where it is news.
        is_news = not (isinstance(event, rungs.Held) and self._is_known(event))
        match event:
            case rungs.Held():
                self._hold(event.node, event.holding)
            case rungs.NodeLost():
                self._sites.pop(event.node, None)
                self._failing.pop(event.node, None)
                self._forget_work(event.node)
            case rungs.OnDisk():
                self._end(event)
            case rungs.Forked():
                self._forks = event.forks
            case rungs.Leased(commit=commit, shards=shards):
                self._readers[commit.step, commit.lineage, shards] += -1 if event.is_over else 1
            case _:
                return ()
        if self._is_settled and not is_news:
            return ()
        orders: tuple[DiskOrder, ...] = (*self._drop(), *self._write(), *self._tell(), *self._tell_trouble())
        self._is_settled = not orders and not is_news  # what news has changed may lead to more at the next look
        return orders

    def _is_known(self, event: rungs.Held) -> bool:
        site, now = self._sites.get(event.node), event.holding
        if site is None or site.life != now.life or site.number > now.number:
            return False
        return now.pinned == frozenset(site.pinned.values()) and now.disk == frozenset(site.disk.values())

    def _hold(self, node: str, holding: rungs.Holding) -> None:
        site = self._sites.setdefault(node, Site())
        if site.life != holding.life:
            self._forget_work(node)
        elif holding.number < site.number:
            return
        site.life, site.number = holding.life, holding.number
        site.pinned = {copy_of(key): key for key in holding.pinned}
        site.disk = {copy_of(key): key for key in holding.disk}

    def _forget_work(self, node: str) -> None:
        self._writing = {(copy, at) for copy, at in self._writing if at != node}
        self._refused = {(copy, at) for copy, at in self._refused if at != node}

    def _end(self, event: rungs.OnDisk) -> None:
        copy, site = copy_of(event.key), self._sites.get(event.node)
        self._writing.discard((copy, event.node))
        if site is None:
            return
        site.is_full = event.is_full
        if event.reason:
            self._refused.add((copy, event.node))
            self._failing[event.node] = event.reason
        else:
            site.disk[copy] = event.key
            self._failing.pop(event.node, None)

    def _write(self) -> Iterator[rungs.ToDisk]:
        if not self._writing and not any(self._lacking()):
            self._leave_target()
            self._refused = {(copy, at) for copy, at in self._refused if copy[0] == self._target}
        for node, key in self._lacking():
            self._writing.add((copy_of(key), node))
            yield rungs.ToDisk(key=key, node=node, reason="it is the newest step that all shards are pinned of")

    def _leave_target(self) -> None:
        """To the next step; the one before is whole, or never will be."""
        last, self._target = self._target, self._next()
        if last is not None and last != self._target and any(copy[0] == last for copy, _ in self._refused):
            self._torn.add(last)

    def _lacking(self) -> list[tuple[str, ShardKey]]:
        """(node, shard) of what is to be written now."""
        return [
            (node, key)
            for node, site in self._sites.items()
            for copy, key in site.pinned.items()
            if copy[0] == self._target
            and copy not in site.disk
            and not {(copy, node)} & (self._writing | self._refused)
        ]

    def _next(self) -> StepId | None:
        """The newest step of which all shards are pinned, if it is newer than what the disks have."""
        pinned = _whole(site.pinned for site in self._sites.values())
        newest = max(pinned, key=_order, default=None)
        on_disks = [_order(key) for key in self._on_disks()]
        if newest is None or any(order > _order(newest) for order in on_disks):
            return None
        return step_id(newest)

    def _on_disks(self) -> list[ShardKey]:
        """A key of each step that is whole on the disks, and that history has not left behind."""
        whole = _whole(site.disk for site in self._sites.values())
        return [key for key in whole if is_visible(key.commit, self._forks)]

    def _drop(self) -> Iterator[rungs.OffDisk]:
        whole = {step_id(key): _order(key) for key in self._on_disks()}
        self._torn &= {copy[0] for site in self._sites.values() for copy in site.disk} - whole.keys()
        for node, site in self._sites.items():
            for copy, key in list(site.disk.items()):
                newer = sum(order > _order(key) for order in whole.values())
                reason = self._why_gone(key, site, newer) if not self._readers[copy[0]] else ""
                if reason:
                    del site.disk[copy]
                    if site.is_full:  # not any more
                        self._failing.pop(node, None)
                    site.is_full = False
                    self._refused = {(one, at) for one, at in self._refused if at != node}
                    yield rungs.OffDisk(key=key, node=node, reason=reason)

    def _why_gone(self, key: ShardKey, site: Site, newer: int) -> str:
        """Why a shard need not stay on a disk, empty if it must; `newer` steps are whole on the disks."""
        if newer >= (1 if site.is_full else KEEP):
            return f"{newer} newer steps are whole on the disks"
        if site.is_full and not is_visible(key.commit, self._forks):
            return "history went on from an earlier step, and there is no room"
        return "a disk refused a part of its step" if step_id(key) in self._torn else ""

    def _tell(self) -> Iterator[rungs.DiskStep]:
        newest = max(self._on_disks(), key=_order, default=None)
        if newest is not None and step_id(newest) != self._told:
            self._told = step_id(newest)
            nodes = tuple(node for node, one in self._sites.items() if any(copy[0] == self._told for copy in one.disk))
            yield rungs.DiskStep(commit=newest.commit, shards=newest.shards, nodes=nodes)

    def _tell_trouble(self) -> Iterator[rungs.Degraded]:
        if bool(self._failing) != self._is_degraded:
            self._is_degraded = bool(self._failing)
            yield rungs.Degraded(rung=DISK, reason="; ".join(list(self._failing.values())[:3]))


def _whole(held: Iterable[dict[Copy, ShardKey]]) -> list[ShardKey]:
    """A key of each step of which every shard is in one of these."""
    shards: dict[StepId, dict[int, ShardKey]] = {}
    for one in held:
        for key in one.values():
            shards.setdefault(step_id(key), {})[key.shard] = key
    return [next(iter(there.values())) for of, there in shards.items() if len(there) == of[2]]


def _order(key: ShardKey) -> tuple[int, int, int]:
    """Older to newer: a later generation that began at an earlier step is newer."""
    return key.commit.incarnation, key.commit.generation, key.commit.step


def surplus(keys: Iterable[ShardKey], keep_last: int) -> list[ShardKey]:
    """Of what one disk holds, all but the newest steps of each shard."""
    by_shard: dict[tuple[int, int], list[ShardKey]] = {}
    for key in sorted(keys, key=_order, reverse=True):
        by_shard.setdefault((key.shard, key.shards), []).append(key)
    return [key for held in by_shard.values() for key in held[keep_last:]]
