"""Pure. The seeded world in which checkpoints take their way: memory, other nodes, a persistent tier.

Nodes are lost, the store fails and tears what is just being written. The real catalog says what can be restored, and
the real retention what may be deleted.
"""

from typing import Any

from elastic.checkpoint import rungs
from elastic.checkpoint.catalog import Candidate, Holder, candidates, next_candidate
from elastic.checkpoint.manifest import ShardKey, is_visible
from elastic.checkpoint.records import name_of
from elastic.checkpoint.retention import judged
from elastic.checkpoint.rungs import Rung, copy_of
from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.outcome import Ending
from elastic.control.restoring import last_copy
from elastic.control.values import CommitId
from elastic.settings import Keep
from elastic.sim.keeping import KeptWorld
from elastic.sim.laws import Law, must
from elastic.sim.parts import Plan, SimWorker
from elastic.sim.storage import RUN, Host, keys_of, manifest_of

KEEP = Keep(last=2)
_OUTAGE_S = (1.0, 8.0)
_SEEN_S = (0.1, 6.0)  # until it is known that a node is gone
_GHOST_S = 12.0  # so long the keeper may count on a node that is gone


class DepotWorld(KeptWorld):
    """One life of a run.

    Args:
        outage: chance per beat that the store fails. node_loss: that a node is lost, where what it was promised
            survives that. rack_loss: that all nodes of a rack are, where another rack has what was promised.

    Attributes:
        safe: the newest step that was told to be on several nodes. ghosts: nodes that were lost, and when.
        waited: lineages of steps that survivors have saved while the run waited. leased: what is about to be restored.
        going: (node, shard) of those copies of it that were being dropped when it was found, and did not count.
    """

    def __init__(
        self, seed: int, plan: Plan, *, outage: float, node_loss: float, rack_loss: float = 0.0, **options: Any
    ) -> None:
        self.outage, self.node_loss, self.rack_loss, self.worry = outage, node_loss, rack_loss, ""
        self.safe: CommitId | None = None
        self.ghosts: list[tuple[float, Host]] = []
        self.waited: set[str] = set()
        self.leased: CommitId | None = None
        self.going: frozenset[tuple[str, int]] = frozenset()
        self.collected = 0
        super().__init__(seed, plan, **options)

    def begin_to_keep(self) -> None:
        """The next driver's keeper knows of no lease: its driver looks for itself for what it restores, if anything."""
        super().begin_to_keep()
        self.leased = None

    # --- what is lost ---

    def suffer(self) -> None:
        if self.now_s >= self.plan.faults_end_s:
            return
        if self.upload_s and self.rng.random() < self.outage:
            self.store.fail(self.now_s, self.rng.uniform(*_OUTAGE_S))
            self.faults.add("outage")
        if self.hosts and self.rng.random() < self.node_loss and self.survives_a_loss():
            self.lose(self.rng.choice(sorted(self.hosts)), fault="node_loss")
        if self.hosts and self.rack_loss and self.rng.random() < self.rack_loss:
            rack = self.rack_of(self.rng.choice(sorted(self.hosts)))
            if self.survives_without(rack):
                there = sorted(name for name in self.hosts if self.rack_of(name) == rack)
                self.lose(*there, fault="rack_loss")

    def survives_a_loss(self) -> bool:
        """What was told to be on several nodes still is, so that one of them may go."""
        return self.safe is not None and self.keepers(self.safe, list(self.hosts.values())) > 1

    def survives_without(self, rack: str) -> bool:
        """What was told to be on several nodes is on one that stands elsewhere."""
        elsewhere = [host for host in self.hosts.values() if self.rack_of(host.name) != rack]
        return self.safe is not None and self.keepers(self.safe, elsewhere) > 0

    def lose(self, *names: str, fault: str) -> None:
        """Nodes go at once, with all that is in their memory; of each it is known in its time."""
        self.faults.add(fault)
        for name in names:
            host = self.hosts.pop(name)
            self.ghosts.append((self.now_s, host))
            self.crash(self.workers[host.worker])
            self.later(self.rng.uniform(*_SEEN_S), self.lose_sight, self.ladder, name)
        self.check_restorable(f"{', '.join(names)} were lost")

    # --- what must hold ---

    def check_stable(self, commit: CommitId) -> None:
        stable = self.stable
        is_stable = commit.step < len(stable) and stable[commit.step] == commit.lineage
        is_it = is_stable or self.is_void(commit) or commit.lineage in self.waited
        must(is_it, Law.NEVER_WRONG, lambda: f"{commit} goes down the tiers, and is not stable")

    def told(self, order: rungs.CheckpointRung) -> None:
        if order.rung >= Rung.REPLICATED and order.copies > 1 and not self.is_void(order.commit):
            self.safe = max(order.commit, self.safe or order.commit, key=_order)

    def keepers(self, commit: CommitId, hosts: list[Host]) -> int:
        """How many of these nodes keep the shard that the fewest do."""
        return min(sum(copy_of(key) in host.kept for host in hosts) for key in keys_of(commit, self.width))

    def dropped_from(self, host: Host, order: rungs.Drop) -> None:
        """What was kept in full makes room for something newer that is kept as well, as far as one can know."""
        why, commit = f"{host.name} dropped {order.key}, since {order.reason}", order.key.commit
        is_wanted = self.leased is not None and self.leased.same_state(commit)
        is_wanted = is_wanted and (host.name, order.key.shard) not in self.going
        must(not is_wanted, Law.COLLECTED, lambda: f"{why}, and it is about to be restored")
        self.check_restorable(why)
        host.copies[copy_of(order.key)] = order.key
        known = [one for one in self.hosts.values() if one.name in self.heard_s]
        kept = min(1 + self.peers, self.keepers(commit, known))
        del host.copies[copy_of(order.key)]
        if not kept or self.is_void(commit):
            return
        there = [*self.hosts.values(), *(one for at_s, one in self.ghosts if self.now_s - at_s < _GHOST_S)]
        commits = {key.commit for one in there for key in one.readable.values()}
        newer = [one for one in commits if _order(one) > _order(commit) and not self.is_void(one)]
        durable = [one.commit for one in self.store.committed.values() if not self.is_void(one.commit)]
        is_replaced = max((self.keepers(one, there) for one in newer), default=0) >= kept
        is_replaced = is_replaced or any(_order(one) >= _order(commit) for one in durable)
        must(is_replaced, Law.COLLECTED, lambda: f"{why}: nothing newer is kept by {kept} nodes")

    def check_restorable(self, why: str) -> None:
        """Whatever was dropped or lost: a step as new as the one that was told to be safe can be restored."""
        safe = self.safe
        if safe is not None:
            newest = max((one.commit for one in self.whole()), key=_order, default=None)
            is_left = newest is not None and _order(newest) >= _order(safe)
            must(is_left, Law.COLLECTED, lambda: f"{why}: {safe} was safe, and now {newest} is all there is")

    def collect(self) -> None:
        before, forks = list(self.store.committed.values()), self.forks
        leased = [name_of(self.leased)] if self.leased is not None else []
        for verdict in judged(before, KEEP, forks=forks, leased=leased):
            if not verdict.is_kept:
                self.store.delete(verdict.record)
                self.collected += 1
        good = [record for record in before if is_visible(record.commit, forks)]
        newest = max(good, key=lambda record: record.order, default=None)
        is_left = newest is None or newest.name in self.store.committed
        must(is_left, Law.COLLECTED, lambda: f"{newest} was the newest good step of the persistent tier")

    # --- what can be restored ---

    def whole(self, also_silent: bool = True, also_going: bool = True) -> tuple[Candidate, ...]:
        """Best first. also_silent: nodes out of reach count, too. also_going: so do copies that are being dropped."""
        sources = self.sources(also_silent)
        if not also_going:
            sources = [(source, [key for key in keys if not self.is_going(source, key)]) for source, keys in sources]
        found = [Holder(source=source, manifest=manifest_of(key)) for source, keys in sources for key in keys]
        return candidates(found, RUN, self.forks)

    def is_going(self, source: Any, key: ShardKey) -> bool:
        return source is not self.store and (source.name, key.shard) in self.ladder.going(key.commit, key.shards)

    def sources(self, also_silent: bool = True) -> list[tuple[Any, list[ShardKey]]]:
        hosts = [host for host in self.hosts.values() if also_silent or not self.is_silent(host)]
        records = self.store.committed.values()
        durable = [key for record in records for key in keys_of(record.commit, record.shards)]
        return [*((host, list(host.readable.values())) for host in hosts), (self.store, durable)]

    def answer_find(self, command: cmd.FindRestore) -> None:
        """Who looks waits an outage out."""
        if self.store.is_down(self.now_s):
            self.later(self.store.down_until_s - self.now_s, self.answer_find, command)
        else:
            super().answer_find(command)

    def lease(self, wanted: CommitId | None) -> None:
        """It is not collected until something else is wanted, or nothing."""
        before, self.leased = self.leased, wanted
        for commit, is_over in ((wanted, False), (before, True)):
            if commit is not None:
                self.heed(self.ladder, rungs.Leased(commit=commit, shards=self.width, is_over=is_over))

    def find(self, command: cmd.FindRestore) -> ev.RestoreFound:
        found = self.found(command)
        commit = found.commit
        if command.at_most is None and not command.without:
            self.check_found(commit)
        self.going = self.ladder.going(commit, self.width) if commit is not None else frozenset()
        self.lease(commit)
        return found

    def check_found(self, found: CommitId | None) -> None:
        """It is as new as what is durable, and as what was told to be on several nodes, and is on one in reach."""
        owed = [one.commit for one in self.store.committed.values() if is_visible(one.commit, self.forks)]
        in_reach = [host for host in self.hosts.values() if not self.is_silent(host)]
        if self.safe is not None and not self.is_void(self.safe) and self.keepers(self.safe, in_reach):
            owed.append(self.safe)
        for one in owed:
            is_it = found is not None and _order(found) >= _order(one)
            must(is_it, Law.NOTHING_LOST, lambda: f"{one} could be restored, and {found} was found")  # noqa: B023

    def found(self, command: cmd.FindRestore) -> ev.RestoreFound:
        bound = command.at_most if command.at_most is not None else 1 << 30
        those = [one for one in self.whole(also_silent=False, also_going=False) if one.commit.step <= bound]
        those = [one for one in those if not any(one.commit.same_state(bad) for bad in command.without)]
        chosen = next_candidate(those, ()).candidate
        if chosen is None:
            silent = ", ".join(host.where for host in self.hosts.values() if self.is_silent(host))
            return ev.RestoreFound(commit=None, reason=silent or "no step is whole", error=silent)
        held = [(shard, holder.manifest) for shard, one in enumerate(chosen.shards) for holder in one]
        is_one = all(one.commit.same_state(chosen.commit) and one.shard == shard for shard, one in held)
        must(is_one and len(chosen.shards) == self.width, Law.NEVER_WRONG, lambda: f"{chosen} mixes shards")
        return ev.RestoreFound(commit=chosen.commit)

    def can_read(self, worker: SimWorker, commit: CommitId) -> bool:
        copy = copy_of(ShardKey(commit=commit, shard=self.shard(worker), shards=self.width))
        return any(copy_of(key) == copy for _, keys in self.sources() for key in keys)

    def check_readable(self, commit: CommitId) -> None:
        self.check_stable(commit)
        must(not self.is_void(commit), Law.NEVER_WRONG, lambda: f"{commit} is void")

    def go_back(self, resume: CommitId) -> None:
        """It may be one that was saved while the run waited, and that nobody had seen to be stable."""
        super().go_back(resume)
        self.stable[resume.step :] = [resume.lineage] * (0 <= resume.step <= len(self.stable))
        self.samples.follow(self.stable)

    # --- the driver's side ---

    def carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.Save):
            self.waited.add(command.commit.lineage)
            for worker in (self.workers[name] for name in command.workers):
                if worker.is_alive and not worker.is_hung and worker.state.commit.same_state(command.commit):
                    self.stage(worker, command.commit)
        super().carry_out(command)
        if isinstance(command, cmd.Form):
            if self.safe is not None and self.is_void(self.safe):  # what is dropped now is not what has lost it
                self.safe = None
            self.heed(self.ladder, rungs.Forked(forks=self.forks))
            if command.view.restored:
                self.lease(None)
            homes: dict[int, set[str]] = {}
            for rank, member in enumerate(command.view.members):
                homes.setdefault(rank % self.width, set()).add(self.node_of(member.worker))
            self.heed(self.ladder, rungs.Homes(by_shard=homes))
        before, self.worry = self.worry, last_copy(self.ws.state)
        if self.worry and not before:
            self.heed(self.ladder, rungs.RedundancyLost(reason=self.worry))

    def judge_failure(self, ending: Ending, why: str) -> None:
        """A run with something to go on from does not end before its last step."""
        must(ending is Ending.REPLICAS_LOST, Law.ENDS, lambda: f"the run ended with {ending}: {why}")
        is_over = "after the last step" in why or "no checkpoint of the run can be restored" in why
        left = () if is_over else self.whole(also_silent=False)
        must(not left, Law.NOTHING_LOST, lambda: f"{[one.commit for one in left]} could have been restored: {why}")


def _order(commit: CommitId) -> tuple[int, int, int]:
    return commit.incarnation, commit.generation, commit.step
