"""Pure. One turn of the controller: the state as it changes while one event is taken in, and the commands it gives."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from elastic.control.care import Awaited
from elastic.control.commands import (
    Command,
    Dismiss,
    EndRun,
    Fence,
    InjectFault,
    Inspect,
    Pause,
    ProveDead,
    StartWorker,
)
from elastic.control.copies import changed, set_field
from elastic.control.outcome import Ending, Outcome
from elastic.control.persistent import persistent
from elastic.control.remediation import Policy, Remediation
from elastic.control.state import OVER, Gang, Phase, RunState, Standing, WorkerRecord, whole_gangs
from elastic.control.tally import HELD, Tally
from elastic.control.values import Incident, IncidentClass, StepReport
from elastic.control.xid import worst
from elastic.settings import RunSettings

_SPECIFIC = list(IncidentClass)
_THERE = tuple(standing for standing in Standing if standing not in (*OVER, Standing.SUSPECT))
_ANSWERS_TIMES = 8.0  # as long as the others a host may be silent whose kernel answers: its monitor is being replaced
_MAX_EVIDENCE, _MAX_SYMPTOMS = 16, 8  # an incident keeps its first signals, and stacks; the journal keeps all


class Turn:
    """Mutable within one call of `controller.step`, never outside it.

    Attribute `state`: this turn's own copy. It changes in place until the turn ends, and is a value from then on.
    """

    def __init__(self, state: RunState, now_s: float, policy: Policy) -> None:
        self.state = changed(
            state,
            workers=persistent(state.workers),
            heard_s=persistent(state.heard_s),
            readings=persistent(state.readings),
        )
        self.now_s = now_s
        self.policy = policy
        self.commands: list[Command] = []

    @property
    def settings(self) -> RunSettings:
        return self.state.settings

    @property
    def tally(self) -> Tally:
        """What is counted over workers and hosts, as they are now."""
        tally = self.state.tally
        if tally is None or not tally.describes(self.state):
            tally = Tally(self.state)
            self.change(tally=tally)
        return tally

    def do(self, command: Command) -> None:
        self.commands.append(command)
        if isinstance(command, Inspect | InjectFault):
            self.tend(awaited=(*self.state.care.awaited, Awaited(command, self.attended_s)))

    def heed_answer(self, is_answered: Callable[[Inspect | InjectFault], bool]) -> None:
        """Orders that are answered are waited for no longer."""
        if any(is_answered(one.command) for one in self.state.care.awaited):
            self.tend(awaited=tuple(one for one in self.state.care.awaited if not is_answered(one.command)))

    def change(self, **changes: Any) -> None:
        for name, value in changes.items():
            set_field(self.state, name, value)

    def tend(self, **changes: Any) -> None:
        """Change what is remembered from one incident to the next."""
        self.change(care=replace(self.state.care, **changes))

    def enter(self, phase: Phase, **changes: Any) -> None:
        self.change(phase=phase, phase_since_s=self.now_s, **changes)

    @property
    def attended_s(self) -> float:
        """The time, less that in which the controller did not look: what `since_s` of workers counts in."""
        return self.now_s - self.state.absent_s

    def waited_s(self) -> float:
        return self.now_s - self.state.phase_since_s

    def pause(self, reason: str, patience_s: float = 0.0) -> None:
        """Ask the leader to have all stop at the end of a step, unless that was asked already; see `Pause`."""
        if self.state.view is not None and not self.state.pause_asked:
            self.change(pause_asked=True, pause_asked_s=self.attended_s)
            leader, generation = self.state.view.leader.worker, self.state.generation
            self.do(Pause(worker=leader, generation=generation, patience_s=patience_s, reason=reason))

    # --- workers ---

    def worker(self, name: str) -> WorkerRecord:
        return self.state.workers[name]

    def many(self, names: Iterable[str]) -> list[WorkerRecord]:
        """The records of these workers."""
        return persistent(self.state.workers).many(names)

    def standing(self, *standings: Standing) -> tuple[WorkerRecord, ...]:
        """See `RunState.standing`; looks at no other workers."""
        tally = self.tally
        return tuple(self.many(tally.by_start(name for one in standings for name in tally.standings[one])))

    @property
    def ready(self) -> tuple[WorkerRecord, ...]:
        """See `RunState.ready`."""
        tries = self.settings.limits.joiner_tries
        return tuple(worker for worker in self.standing(Standing.PARKED) if worker.tries < tries)

    @property
    def joiners(self) -> tuple[Gang, ...]:
        """Replicas that may be taken into a generation: all their workers are parked."""
        return whole_gangs(self.ready, self.state.width)

    def divided(self, gangs: tuple[Gang, ...], names: Collection[str]) -> tuple[tuple[Gang, ...], tuple[Gang, ...]]:
        """Replicas that none of these workers belongs to, and the others."""
        concerned = {worker.gang for worker in self.many(names)}
        parting = [gang for gang in gangs if gang[0].gang in concerned and any(worker.name in names for worker in gang)]
        gone = {gang[0].gang for gang in parting}
        return tuple(gang for gang in gangs if gang[0].gang not in gone), tuple(parting)

    def is_member(self, name: str) -> bool:
        return name in self.tally.ranks

    def set_worker(self, name: str, **changes: Any) -> None:
        self.set_workers((name,), **changes)

    def set_workers(self, names: Iterable[str], **changes: Any) -> None:
        """The same of many workers at once."""
        standing = changes.get("standing")
        records: dict[str, WorkerRecord] = {}
        for record in self.many(names):
            new = records[record.name] = changed(record, **changes)
            if standing is not None and standing is not record.standing:
                set_field(new, "since_s", self.attended_s)
                if standing in OVER:
                    set_field(new, "avoid", frozenset())  # many names, for each of many who are gone
                if record.standing is Standing.MEMBER:
                    set_field(new, "lived_s", record.lived_s + self.attended_s - record.since_s)
        self.put(records)

    def put(self, records: Mapping[str, WorkerRecord]) -> None:
        """New workers, or what has become of others."""
        self.change(workers=self.tally.put(records))

    def replenish(self, reason: str) -> None:
        """Ask for workers until the maximum of replicas and all spares are there or on their way.

        Who is missing in a replica that is there is started in its place; beyond that, whole replicas are.
        """
        scaling = self.settings.scaling
        if self.now_s < self.state.care.starts_from_s or self.state.care.leaving is not None:
            return
        held, wanted = self.tally.held, scaling.bounds[1] + scaling.spares
        may_come_back = self.out_of_contact()
        if len(held.shards) == held.whole >= wanted and not may_come_back:
            return
        broken = [gang for gang, shards in held.shards.items() if len(shards) < self.state.width]
        gangs = {gang: set(held.shards[gang]) for gang in sorted(broken, key=self._first_start)}
        for worker in may_come_back:
            gangs.setdefault(worker.gang, set(held.shards.get(worker.gang, ()))).add(worker.shard)
        for _ in range(wanted - len(held.shards) - len(gangs.keys() - held.shards.keys())):
            gangs[self.state.next_gang] = set()
            self.change(next_gang=self.state.next_gang + 1)
        leaving = {worker.gang for worker in may_come_back if worker.notice}
        doubted = self._doubted()
        for gang, shards in gangs.items():
            if gang not in leaving:
                self._fill(gang, shards, doubted, reason)
        if self.state.care.places and not self.is_recovering():
            self.tend(places=())  # whoever was to be started anew is there, or elsewhere

    def _first_start(self, gang: int) -> int:
        """The number of the first worker that this replica still has."""
        number = persistent(self.state.workers).number
        there = self.many(self.tally.mates[gang])
        return min(number(one.name) for one in there if one.standing in HELD and not one.notice)

    def complete(self, gangs: set[int], reason: str) -> None:
        """Ask for who is missing in these replicas, even if they are about to leave: what is left of them is needed."""
        doubted = self._doubted()
        for gang in sorted(gangs):
            there = {worker.shard for worker in self.many(self.tally.mates[gang]) if worker.standing in HELD}
            self._fill(gang, there, doubted, reason)

    def _doubted(self) -> frozenset[str]:
        """Nodes of workers that will be lost: the rest of such a node may be lost with them."""
        return frozenset(one.node for one in self.many(self.tally.noticed) if one.node)

    def _fill(self, gang: int, there: set[int], doubted: frozenset[str], reason: str) -> None:
        """The workers of a new replica go where one is to be started anew, if there is such a place."""
        node = ""
        if not there and self.state.care.places and self.settings.scaling.num_nodes_per_dp == 1:
            node, *others = self.state.care.places
            self.tend(places=tuple(others))
        for shard in range(self.state.width):
            if shard not in there and self.now_s >= self.state.care.starts_from_s:
                self._start(gang, shard, node, doubted, reason)

    def _start(self, gang: int, shard: int, node: str, doubted: frozenset[str], reason: str) -> None:
        name, avoid = f"w{self.state.next_worker}", self.barred
        node = "" if node in avoid else node
        record = WorkerRecord(name=name, gang=gang, shard=shard, since_s=self.attended_s, avoid=avoid, pinned=node)
        self.put({name: record})
        self.change(next_worker=self.state.next_worker + 1)
        start = StartWorker(worker=name, gang=gang, shard=shard, avoid=avoid, node=node, doubted=doubted, reason=reason)
        self.do(start)

    def suspect(self, name: str, evidence: str) -> None:
        self.doubt(name, evidence, standing=Standing.SUSPECT)

    def out_of_contact(self) -> list[WorkerRecord]:
        """Members that may live, by rank: contact with them is lost, and nobody has told them to die."""
        suspects = self.many(self.tally.by_rank(self.tally.standings[Standing.SUSPECT]))
        return [member for member in suspects if not member.fenced]

    def doubt(self, name: str, reason: str, **changes: Any) -> None:
        """Look for proof that it is dead, without taking it for dead; what else changes of it changes at once."""
        is_news = not self.worker(name).doubted
        if is_news or changes:
            self.set_worker(name, doubted=True, **changes)
        if is_news:
            self.do(ProveDead(worker=name, reason=reason))

    def fence(self, name: str, reason: str) -> None:
        self.set_worker(name, standing=Standing.SUSPECT, fenced=True)
        self.do(Fence(worker=name, reason=reason))

    def inspect(self, name: str, reason: str) -> None:
        """Ask for its stacks, once."""
        if not self.worker(name).inspected:
            self.set_worker(name, inspected=True)
            self.do(Inspect(worker=name, reason=reason))

    def exile(self, name: str, reason: str) -> None:
        """Leave a member behind that can not be reached: it is killed as soon as it can be."""
        self.set_worker(name, standing=Standing.EXILED, fenced=True)
        self.do(Fence(worker=name, reason=reason))

    def hear(self, worker: str) -> None:
        """A worker spoke for itself, so its host is within reach, even where its monitor has died alone."""
        node = self.worker(worker).node
        if self.state.heard_s.get(node, self.now_s) != self.now_s:
            self.hear_of((node,))

    def hear_of(self, nodes: Sequence[str]) -> None:
        """These hosts are within reach."""
        self.change(heard_s=self.tally.hosts.hear(nodes, self.now_s))
        if not self.state.knocked.isdisjoint(nodes):
            knocked, unreached = self.state.knocked.difference(nodes), self.state.unreached.difference(nodes)
            answered = {node: at_s for node, at_s in self.state.answered.items() if node in knocked}
            self.change(knocked=knocked, unreached=unreached, answered=answered)

    @property
    def barred(self) -> frozenset[str]:
        """Nodes that get no worker now: in quarantine, about to be lost, or out of reach; Ray may not know of it."""
        state = self.state
        silent = self.tally.hosts.lately_silent(self.now_s, state.unreached)
        return frozenset(state.care.quarantine).union(state.leaving, silent)

    def is_silent(self, node: str) -> bool:
        """It used to be heard, by its monitor or its workers, and is not any more; or nothing comes back from it.

        A host whose kernel answers is there, and its monitor may soon be replaced: that has more time.
        """
        heard_s = self.state.heard_s.get(node)
        if heard_s is None:
            return False
        times = _ANSWERS_TIMES if node in self.state.answered else 1.0
        limit_s = times * self.settings.limits.heartbeat_timeout_s
        return node in self.state.unreached or self.now_s - heard_s > limit_s

    def silence(self, *names: str) -> str:
        """Why these workers are believed to be out of reach."""
        nodes = sorted({self.worker(name).node for name in names})
        limits, who = self.settings.limits, f"{', '.join(names)} on {', '.join(nodes)}"
        if self.state.unreached.issuperset(nodes):
            return f"nothing was heard of {who}, nor came back in Limits.knock_timeout_s={limits.knock_timeout_s}"
        if self.state.answered.keys() >= set(nodes):
            who, times = f"{who}, whose host answers,", f"{_ANSWERS_TIMES:g} times "
        else:
            times = ""
        return f"nothing was heard of {who} for {times}Limits.heartbeat_timeout_s={limits.heartbeat_timeout_s}"

    def dismiss(self, name: str, reason: str) -> None:
        standing = self.worker(name).standing
        if standing not in OVER:
            has_begun = standing is not Standing.REQUESTED
            self.set_worker(name, standing=Standing.GONE, is_dismissed=has_begun)
        self.do(Dismiss(workers=(name,), reason=reason))

    def blame_joiners(self) -> None:
        """A forming failed: joiners among its members have one try less. Where all begin anew, nobody joins others."""
        if self.state.view is not None and self.state.view.bootstrap:
            return
        for member in self.state.members:
            if not member.healed:
                self.set_worker(member.name, tries=member.tries + 1)

    # --- reports ---

    def publish_from(self, published: int) -> None:
        """All steps up to `published` are told; so are those that follow without a gap."""
        ahead = self.state.published_ahead
        while published + 1 in ahead:
            published += 1
        self.change(published=published, published_ahead=frozenset(step for step in ahead if step > published))

    def give_up_gaps(self) -> None:
        """Every member has told what it knew when it formed; a report still missing died with all who could tell it."""
        assert self.state.view is not None
        self.publish_from(max(self.state.published, self.state.view.resume.step - 1))

    # --- incidents ---

    def open_incident(self) -> Incident | None:
        """The incident under treatment: the last one, unless its generation runs already."""
        last = self.state.incidents[-1] if self.state.incidents else None
        return last if last is not None and last.generation == 0 else None

    def is_recovering(self) -> bool:
        """No step has become stable since the last incident."""
        return any(incident.resumed_at_s is None for incident in self.state.incidents)

    def signal(self, kind: IncidentClass, evidence: str, culprit: str = "", suspects: tuple[str, ...] = ()) -> None:
        """Open an incident, or add to the one under treatment; the most specific class wins.

        Args:
            suspects: among whom the culprit is, where it can not be told.
        """
        incident = self.open_incident()
        if incident is None:
            self.change(without_progress=self.state.without_progress + 1)
            incident = Incident(
                number=self.state.failures,
                kind=kind,
                opened_at_s=self.now_s,
                absent_s=self.state.absent_s,
                replicas_before=self.state.replicas,
            )
            self.change(incidents=(*self.state.incidents, incident), failures=self.state.failures + 1)
        culprits, said = incident.culprits, [evidence]
        if culprit and culprit not in culprits:
            culprits = (*culprits, culprit)
            said += [finding] if (finding := self.worker(culprit).finding) and finding != evidence else []
        found = self.worker(culprit).severity if culprit else None
        is_symptom = kind is IncidentClass.COLLECTIVE_BROKEN  # what thousands feel leaves room for what was the cause
        kept = _MAX_SYMPTOMS if is_symptom else _MAX_EVIDENCE
        told = changed(
            incident,
            kind=max(incident.kind, kind, key=_SPECIFIC.index),
            severity=worst(incident.severity, found),
            culprits=culprits,
            suspects=tuple(dict.fromkeys((*incident.suspects, *suspects))),
            evidence=(*incident.evidence, *said)[: max(kept, len(incident.evidence))],
        )
        self._set_incident(told)

    def add_stack(self, worker: str, stack: str) -> None:
        """Where a culprit stood, for the incident that it has caused: kept however much has been said of it before.

        A stack may take longer than the next generation needs to form. Of who has caused none, or is well again, it
        tells what may yet come.
        """
        incidents = list(self.state.incidents)
        caused = [at for at, incident in enumerate(incidents) if worker in incident.culprits]
        if caused and (incidents[caused[-1]].generation == 0 or self.worker(worker).standing in OVER):
            last = incidents[caused[-1]]
            incidents[caused[-1]] = changed(last, evidence=(*last.evidence, f"stack of {worker}:\n{stack}"))
            self.change(incidents=tuple(incidents))

    def classify_incident(self) -> None:
        """What all signals together say, before it is decided."""
        incident = self.open_incident()
        if incident is not None and self._lost_a_node(incident):
            self._set_incident(replace(incident, kind=IncidentClass.NODE_LOST))

    def decide_incident(self, remediation: Remediation) -> None:
        """There is one under treatment, and this is done about it."""
        incident = self.open_incident()
        assert incident is not None
        whom = f" {', '.join(remediation.targets)}" if remediation.targets else ""
        self._set_incident(replace(incident, decision=f"{remediation.kind.value}{whom}: {remediation.reason}"))
        self.tend(decided=remediation.kind)

    def note_new_generation(self, replicas: int) -> None:
        incident, limits = self.open_incident(), self.settings.limits
        if incident is not None:
            nodes = {self.worker(name).node for name in incident.culprits}
            budget = (limits.budget_incidents, limits.budget_refill_s)
            self.change(care=self.state.care.settled(incident, nodes, self.now_s, *budget))
            self._set_incident(replace(incident, generation=self.state.generation, replicas_after=replicas))

    def resolve_incidents(self, report: StepReport) -> None:
        """The first stable step of the generation that followed an incident closes it.

        A worker's clock may be wrong, so that it says neither what has been before the incident nor what is to come.
        """
        if not self.is_recovering():
            return
        care, incidents = self.state.care, list(self.state.incidents)
        for number, incident in enumerate(incidents):
            if incident.resumed_at_s is None and 0 < incident.generation <= report.commit.generation:
                resumed_at_s = min(max(report.committed_at_s, incident.opened_at_s), self.now_s)
                incidents[number] = replace(incident, resumed_at_s=resumed_at_s, step=report.commit.step)
                care = care.recovered(incident, max(0.0, resumed_at_s - incident.opened_at_s))
        self.change(incidents=tuple(incidents), care=care)

    def _set_incident(self, incident: Incident) -> None:
        """What the last one has become."""
        self.change(incidents=(*self.state.incidents[:-1], incident))

    def _lost_a_node(self, incident: Incident) -> bool:
        """A culprit's node whose monitor is silent and on which no worker is left is gone."""
        nodes = {self.worker(name).node for name in incident.culprits} & self.state.monitors_lost
        return any(not any(w.standing in _THERE for w in self._on(node)) for node in nodes)

    def _on(self, node: str) -> list[WorkerRecord]:
        return self.many(self.tally.nodes.get(node, ()))

    # --- endings ---

    def end(self, outcome: Outcome, reason: str) -> None:
        self.enter(Phase.ENDED, outcome=outcome)
        self.do(EndRun(outcome=outcome, reason=reason))

    def fail(self, ending: Ending, message: str, **details: Any) -> None:
        self.end(Outcome(ending=ending, message=message, details=details), reason=message)

    def succeed(self, value_from: str) -> None:
        self.end(
            Outcome(ending=Ending.SUCCEEDED, details={"value_from": value_from}), reason="train_fn returned everywhere"
        )

    def stop(self, reason: str) -> None:
        self.fail(Ending.STOPPED, reason)

    def fail_lost(self, message: str) -> None:
        self.fail(Ending.REPLICAS_LOST, message)

    def fail_raised(self, worker: str, rank: int | None, summary: str, traceback: str) -> None:
        where = f"rank {rank} ({worker})" if rank is not None else f"{worker}, before its first step"
        finding = f"; its host monitor says: {found}" if (found := self.worker(worker).finding) else ""
        self.fail(
            Ending.TRAIN_FN_RAISED,
            f"train_fn raised {summary} on {where}{finding}\n\n{traceback}",
            worker=worker,
            rank=rank,
            traceback=traceback,
        )

    def fail_not_enough_slots(self) -> None:
        scaling, limits = self.settings.scaling, self.settings.limits
        placed, ready = len(self.state.standing(Standing.LOADING, Standing.PARKED)), len(self.state.ready)
        least = scaling.bounds[0] * self.state.width
        needs = f"the run needs at least {least} workers of {scaling.resources}, and within "
        within = f"Limits.start_timeout_s={limits.start_timeout_s} "
        cause = f"the cluster could place {placed}: add nodes, or lower Scaling.num_dp_replicas"
        if placed >= least:
            cause = f"{ready} of {placed} came to their first step: raise it if imports and model building take longer"
        if times := self.state.care.starts_again:
            before = f"{times} times before, enough had, or the run was paused"
            cause = f"{ready} came to their first step; {before}: the journal tells what became of them"
        self.fail(Ending.NOT_ENOUGH_SLOTS, needs + within + cause)

    def fail_below_minimum(self) -> None:
        limit_s = self.settings.limits.jobset_downtime_threshold_s
        trouble, advice = self.state.care.start_trouble, "add nodes, or lower Scaling.num_dp_replicas"
        cause = f"{trouble}; or {advice}" if trouble else advice
        self.fail(
            Ending.NOT_ENOUGH_SLOTS,
            f"the group stayed below the minimum of {self.settings.scaling.bounds[0]} replicas for "
            f"Limits.jobset_downtime_threshold_s={limit_s}: {cause}",
        )

    def end_if_all_left(self) -> None:
        """After the last step: the run is over when nobody is left who could still return."""
        tally = self.tally
        if any(name in tally.ranks for standing in _THERE for name in tally.standings[standing]):
            return
        hosts = {member.node for member in self.out_of_contact()} & self.state.heard_s.keys()
        if not all(map(self.is_silent, hosts)):
            return  # one may be in the midst of an export: were it dead, its host would have told
        returned = tally.by_rank(tally.standings[Standing.GONE])
        if returned:
            self.succeed(value_from=returned[0])
        elif not self.out_of_contact():
            self.fail_lost("every worker died after the last step, before train_fn returned")
