"""Pure. The ladder: how each step comes down from memory to other nodes and to the persistent tier, and what may go.

One step at a time is brought to REPLICATED, the newest that is LOCAL when the one before is done: steps that are staged
faster than they can be pulled are left out. A slot counts as a copy only once its node has pinned it, since an unpinned
one is overwritten in time, and two nodes' slots of a step may go one after the other.

What is dropped depends on nothing but the ladder: two newer steps must have reached REPLICATED with at least as many
copies (one, where a node has no room), one of them must be there now, and nobody may be reading it. Steps that history
has left behind do not count. So a node without room for a second generation keeps the first one, and says so.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from elastic.checkpoint import rungs
from elastic.checkpoint.manifest import ShardKey
from elastic.checkpoint.placement import targets
from elastic.checkpoint.standing import COMMIT, TRIES, Site, Standing, Step
from elastic.control.values import CommitId

KEEP = 2  # generations of copies
PATIENCE = 2  # beats that a node with workers of a shard may take to stage it


class Ladder:
    """See the module.

    Args:
        peers: copies on other nodes than the own, until another number is chosen; 0 pulls nothing.
        is_persistent: there is a persistent tier.
    """

    def __init__(self, peers: int, is_persistent: bool) -> None:
        self._now, self._is_persistent = Standing(1 + peers), is_persistent
        self._homes: dict[int, frozenset[str]] = {}
        self._candidate: Step | None = None
        self._is_due, self._urgent, self._degraded = False, "", ""
        self._coming: set[str] = set()
        self._is_settled = False  # it has looked at all there is, and nothing is to be done
        self._not_durable = self._told_durable = ""  # why a step is not, and what was told of it

    # --- what is known ---

    def heed(self, event: rungs.Event) -> tuple[rungs.Order, ...]:
        """Take an event in; returns what is to be done now."""
        # Each of a thousand nodes says every second what it holds: what that means is looked at where it is news.
        is_news = not (isinstance(event, rungs.Held) and self._is_known(event))
        self._note(event)
        if is_news:
            self._now.moved()
        elif self._is_settled:
            return ()
        orders = tuple(self._orders())
        # Not after news: what it has noted, such as an upload that came to nothing, is acted on at the next look.
        self._is_settled = not orders and not is_news
        return orders

    def pins(self, node: str) -> frozenset[ShardKey]:
        """What a node should keep pinned now."""
        site = self._now.sites.get(node)
        return _pins(site, self._wanted(self._active())) if site is not None else frozenset()

    def rung(self, commit: CommitId, shards: int) -> rungs.Rung | None:
        """Where a step stands; None: nobody has anything of it."""
        step = self._now.steps.get((commit.step, commit.lineage, shards))
        return None if step is None else self._now.rung(step)

    @property
    def newest(self) -> int | None:
        """The newest step that history has not left behind, as far as any node holds something of it."""
        return next((step.commit.step for step in self._now.newest_first() if self._now.has_any(step)), None)

    @property
    def is_uploading(self) -> bool:
        """Whether a step is on its way to the persistent tier."""
        return any(step.is_uploading for step in self._now.steps.values())

    def going(self, commit: CommitId, shards: int) -> frozenset[tuple[str, int]]:
        """(node, shard) of the copies of a step that are being dropped: who still sees them must not count on them."""
        step = (commit.step, commit.lineage, shards)
        at = ((node, copy) for node, site in self._now.sites.items() for copy in site.dropping)
        return frozenset((node, shard) for node, (of, shard) in at if of == step)

    def _note(self, event: rungs.Event) -> None:
        match event:
            case rungs.Homes():
                self._homes = {shard: frozenset(nodes) for shard, nodes in event.by_shard.items()}
            case rungs.Held():
                self._hold(event.node, event.holding)
            case rungs.Refused():
                self._refuse(event)
            case rungs.Uploaded() | rungs.Committed():
                self._note_persistent(event)
            case rungs.Beat():
                for step in self._now.steps.values():
                    step.beat()
            case rungs.Forked():
                self._now.fork(event.forks)
                self._candidate = None
            case rungs.Leased():
                step = self._now.see(event.commit, event.shards)
                step.readers += -1 if event.is_over else 1
            case _:
                self._note_node(event)

    def _note_node(self, event: rungs.Event) -> None:
        match event:
            case rungs.NodeComing():
                self._coming.add(event.node)
            case rungs.NodeUp():
                self._coming.discard(event.node)
                self._now.sites.setdefault(event.node, Site(event.domain)).domain = event.domain
            case rungs.NodeLost():
                self._lose(event.node)
            case rungs.Notice(node=node):
                if node in self._now.sites:
                    self._now.sites[node].leaving = event.reason
                self._urgent, self._candidate = event.reason, None
            case rungs.RedundancyLost():
                self._urgent, self._candidate = event.reason, None
            case rungs.PeersChosen():
                self._now.copies = 1 + event.peers
                for step in self._now.steps.values():
                    step.tell_anew()  # what it lacks of another number of copies was not lost
            case _:
                assert isinstance(event, rungs.UploadDue)
                self._is_due = True

    def _is_known(self, event: rungs.Held) -> bool:
        """Whether it changes nothing; what was told to drop copies, and still shows them, is told again."""
        site, now = self._now.sites.get(event.node), event.holding
        was = site.holding if site is not None and not site.dropping else None
        return was is not None and now.number >= was.number and replace(was, number=now.number) == now

    def _hold(self, node: str, holding: rungs.Holding) -> None:
        site = self._now.sites.get(node)
        was = site.holding if site is not None else None
        if site is None or (was is not None and was.life == holding.life and holding.number < was.number):
            return
        if was is None or was.life != holding.life:
            site.ordered, site.dropping = frozenset(), set()
            self._forget_work(node)
        for key in sorted(holding.slots | holding.copies, key=rungs.copy_of):  # a set has no order that repeats itself
            self._now.see(key.commit, key.shards)
        site.holding = holding
        site.slots = {rungs.copy_of(key) for key in holding.slots}
        site.pinned = {rungs.copy_of(key) for key in holding.pinned}
        site.copies = {rungs.copy_of(key) for key in holding.copies}
        site.dropping &= site.copies - site.slots - {rungs.copy_of(key) for key in holding.disk}
        for of, shard in site.copies:
            self._now.steps[of].pulling.discard((shard, node))
            self._now.steps[of].full.discard(node)

    def _refuse(self, event: rungs.Refused) -> None:
        step = self._now.see(event.key.commit, event.key.shards)
        if event.is_full:
            step.full.add(event.node)
        step.excuse(event.key.shard, event.node, event.reason)

    def _note_persistent(self, event: rungs.Uploaded | rungs.Committed) -> None:
        if isinstance(event, rungs.Uploaded):
            step = self._now.see(event.key.commit, event.key.shards)
            step.uploads.pop(event.key.shard, None)
            what, is_fault = event.key.shard, not event.is_gone  # who has written a newer step there has lost nothing
            if event.is_gone and event.node in self._now.sites:
                self._now.sites[event.node].slots.discard(rungs.copy_of(event.key))
                self._now.moved()
            if not event.reason:
                step.uploaded[event.key.shard] = (event.node, event.digest)
        else:
            step = self._now.see(event.commit, event.shards)
            step.committer = ""
            what, is_fault = COMMIT, True
            if not event.reason:
                step.is_durable, step.is_uploading = True, False
                self._not_durable = ""
        if event.reason:
            self._not_durable = event.reason if is_fault else self._not_durable
            tries = step.failed_uploads[what] = step.failed_uploads.get(what, 0) + 1
            step.is_uploading = step.is_uploading and tries < TRIES

    def _lose(self, node: str) -> None:
        self._coming.discard(node)
        self._now.sites.pop(node, None)
        self._forget_work(node)

    def _forget_work(self, node: str) -> None:
        for step in self._now.steps.values():
            step.forget(node)

    def _active(self) -> list[Step]:
        """The steps whose slots are pinned and whose copies are made good: what is safe, and what is to be."""
        return [step for step in (self._candidate, self._now.safe()) if step is not None]

    def _wanted(self, active: list[Step]) -> list[Step]:
        """The steps whose slots are pinned: those, and what somebody is about to read."""
        return active + [step for step in self._now.steps.values() if step.readers > 0 and step not in active]

    # --- what follows ---

    def _orders(self) -> Iterator[rungs.Order]:
        self._choose_candidate()
        for step in self._active():
            step.was_replicated = step.was_replicated or self._now.is_replicated(step)
        self._choose_candidate()
        active = self._active()  # until something is dropped
        yield from self._pin(active)
        for step in active:
            yield from self._pull(step)
        yield from self._persist()
        yield from self._say_rungs(active)
        yield from self._say_degraded()
        yield from self._drop(active)
        self._forget()

    def _choose_candidate(self) -> None:
        step = self._candidate
        if step is not None and not step.was_replicated and self._now.is_whole(step):
            return
        safe = self._now.safe()
        newer = (step for step in self._now.newest_first() if safe is None or step.order > safe.order)
        self._candidate = next((step for step in newer if self._now.is_whole(step)), None)

    def _pin(self, active: list[Step]) -> Iterator[rungs.Order]:
        wanted = self._wanted(active)
        for node, site in self._now.sites.items():
            keys = _pins(site, wanted)
            if keys != site.ordered:
                site.ordered = keys
                yield rungs.Pin(node=node, keys=keys)

    def _pull(self, step: Step) -> Iterator[rungs.Order]:
        for shard in step.all:
            sources = self._now.sources(step, shard)
            staying = set(self._now.staying())
            pending = self._homes.get(shard, frozenset()) if step.age < PATIENCE else frozenset()
            holders = staying & {*sources, *pending, *(at for of, at in step.pulling if of == shard)}
            able = {node: self._now.sites[node].domain for node in staying if (shard, node) not in step.refusals}
            for node in targets(shard, holders, able, self._now.copies) if self._now.copies > 1 else ():
                step.pulling.add((shard, node))
                reason = f"{len(holders)} of {self._now.copies} nodes hold it"
                yield rungs.Pull(key=step.key(shard), node=node, sources=tuple(sources), reason=reason)

    def _persist(self) -> Iterator[rungs.Order]:
        if not self._is_persistent:
            self._urgent, self._is_due = "", False
            return
        self._choose_upload()
        for step in self._now.steps.values():
            if step.is_uploading:
                yield from self._upload(step)

    def _choose_upload(self) -> None:
        """At the interval the safe step, whose slots stay; in an emergency the newest there is, at once."""
        if not self._urgent and (not self._is_due or self.is_uploading):
            return
        whole = (step for step in self._now.newest_first() if self._now.is_whole(step))
        step = next(whole, None) if self._urgent else self._now.safe()
        done = max((step.order for step in self._now.newest_first() if step.is_durable), default=None)
        is_newer = step is not None and (done is None or step.order > done)
        if step is None or not (is_newer or self._urgent):
            return  # as soon as there is one
        self._urgent, self._is_due = "", False
        if is_newer and not step.is_uploading:
            # What an earlier try has uploaded may have been swept since; who sends it again sends only what is missing.
            step.is_uploading, step.failed_uploads, step.uploaded = True, {}, {}

    def _upload(self, step: Step) -> Iterator[rungs.Order]:
        for shard in step.all:
            sources = self._now.sources(step, shard)
            if shard in step.uploaded or shard in step.uploads or not sources:
                continue
            copy = step.copies[shard]
            load = {node: sum(at == node for at in step.uploads.values()) for node in sources}
            node = min(sources, key=lambda node: (load[node], not self._now.sites[node].keeps(copy)))
            step.uploads[shard] = node
            yield rungs.Upload(key=step.key(shard), node=node, reason=f"try {step.failed_uploads.get(shard, 0) + 1}")
        if len(step.uploaded) == step.shards and not step.committer and self._now.sites:
            node = step.uploaded[0][0]
            step.committer = node if node in self._now.sites else min(self._now.sites)
            digests = tuple(step.uploaded[shard][1] for shard in step.all)
            yield rungs.Commit(commit=step.commit, digests=digests, node=step.committer)
        begun = {*step.uploaded, *step.uploads}  # who uploads has a copy of its own, and needs no slot any more
        if any(shard not in begun and not self._now.is_somewhere(step.copies[shard]) for shard in step.all):
            step.is_uploading, self._is_due = False, True  # it is lost: the next one

    def _say_rungs(self, active: list[Step]) -> Iterator[rungs.Order]:
        """First what fell: who hears of it knows no other step that is on that rung still, and is told of that next."""
        newest = self._now.newest_first()
        fallen = [step for step in _tops((one, _said(one)) for one in newest) if self._has_fallen(step)]
        tops = [*_tops((one, self._now.rung(one)) for one in newest)]
        for step in tops if fallen else ():
            if step not in fallen:
                step.tell_anew()
        durable = [step for step in newest if step.is_durable]
        for step in {id(step): step for step in (*fallen, *tops, *active, *durable)}.values():
            yield from self._say_rung(step)

    def _say_rung(self, step: Step) -> Iterator[rungs.Order]:
        rung, copies, degraded, said = self._now.rung(step), self._now.fewest(step), self._shortage(step), _said(step)
        if rung is None and said is not None:
            step.said = None
            yield rungs.StepLost(commit=step.commit, shards=step.shards, reason="what held it was lost")
        elif rung is not None and (rung, degraded) != step.said and said is not rungs.Rung.DURABLE:
            fell = said is not None and rung < said
            reason = "what held it was lost" if fell else f"{copies} of {self._now.copies} nodes keep each shard"
            step.said = (rung, degraded)
            yield rungs.CheckpointRung(
                commit=step.commit, shards=step.shards, rung=rung, copies=copies, degraded=degraded, reason=reason
            )

    def _has_fallen(self, step: Step) -> bool:
        """It is on a lower rung than was told, or on none."""
        said, rung = _said(step), self._now.rung(step)
        return said is not None and (rung is None or rung < said)

    def _say_degraded(self) -> Iterator[rungs.Order]:
        latest = next((step for step in self._now.newest_first() if step.was_replicated), None)
        if latest is not None and self._now.is_replicated(latest) and not self._coming:  # else it may be made good yet
            degraded = self._shortage(latest)
            if bool(degraded) != bool(self._degraded):
                yield rungs.Degraded(reason=degraded)
            self._degraded = degraded
        if bool(self._not_durable) != bool(self._told_durable):
            self._told_durable = self._not_durable
            yield rungs.Degraded(rung=rungs.Rung.DURABLE.name.lower(), reason=self._not_durable)

    def _shortage(self, step: Step) -> str:
        """Why fewer nodes keep a step than asked for, and more are not to come; empty: they are not, or they are."""
        if self._now.fewest(step) >= self._now.copies or not self._now.is_replicated(step):
            return ""
        refusals = sorted({f"node {node} refused: {reason}" for (_, node), reason in step.refusals.items()})
        return "; ".join(refusals[:3]) or f"{len(self._now.staying())} nodes for {self._now.copies} copies"

    def _drop(self, active: list[Step]) -> Iterator[rungs.Order]:
        for step in [one for one in self._now.steps.values() if self._now.is_copied(one)]:
            if step.readers > 0 or step.is_uploading or step in active:
                continue
            reason = self._why_not_needed(step, is_pressed=any(one.full for one in active))
            for node, site in self._now.sites.items() if reason else ():
                for copy in sorted(copy for copy in site.copies if copy[0] == step.copies[0][0]):
                    site.copies.discard(copy)
                    self._now.moved()
                    site.dropping.add(copy)
                    for one in active:
                        one.room_at(node)
                    yield rungs.Drop(key=step.key(copy[1]), node=node, reason=reason)

    def _why_not_needed(self, step: Step, is_pressed: bool) -> str:
        """Why the copies of a step may go; empty: they may not. is_pressed: a node has no room for a newer one."""
        now = self._now
        newer = [one for one in now.newest_first() if one.order > step.order and now.is_whole(one)]
        in_full = [one for one in newer if one.was_replicated and now.fewest(one) >= min(now.fewest(step), now.copies)]
        # Now: a node that has just come up is about to take a newer one, and what it brought may be on others, too,
        # that are still to come up.
        if len(in_full) >= (1 if is_pressed else KEEP) and any(map(now.is_replicated, in_full)):
            return f"step {in_full[0].commit.step} is replicated"
        if is_pressed and newer and not step.was_replicated and not now.is_whole(step):
            return "it was never whole on other nodes, and a part of it is nowhere now"
        return ""

    def _forget(self) -> None:
        """Steps of which nothing is left, but for the newest durable one."""
        durable = max(
            (step for step in self._now.steps.values() if step.is_durable), key=lambda s: s.order, default=None
        )
        for of, step in list(self._now.steps.items()):
            is_used = step.is_uploading or step.pulling or step.readers > 0 or step is durable
            if not is_used and self._now.rung(step) in (None, rungs.Rung.DURABLE) and not self._now.has_any(step):
                self._now.forget(of)


def _said(step: Step) -> rungs.Rung | None:
    """The rung that the journal was told."""
    return None if step.said is None else step.said[0]


def _tops(standing: Iterable[tuple[Step, rungs.Rung | None]]) -> Iterator[Step]:
    """The newest on each rung, of the newest first; none behind a replicated one, as a durable one stays what it is."""
    best = -1
    for step, rung in standing:
        if rung is not None and rung > best:
            best = rung
            yield step
        if best >= rungs.Rung.REPLICATED:
            return


def _pins(site: Site, active: Iterable[Step]) -> frozenset[ShardKey]:
    """The slots of these steps that are there."""
    return frozenset(step.key(shard) for step in active for shard in step.all if step.copies[shard] in site.slots)
