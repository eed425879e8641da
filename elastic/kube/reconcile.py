"""Pure. What is to be done about the machines of a run on Kubernetes, from what is wanted and what is there.

Which machines this run has cordoned, and until when, stands on the machines themselves, as a taint. Remembered is only
how long machines have been missing, and which Ray node was on which: a bad machine is one after its raylet has died.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from math import inf, isinf

from elastic.kube.marks import marked_until_s
from elastic.kube.objects import GroupState, Machine, Pod

_GONE_NODES = 1024
_SAME_S = 1.0  # ends that differ by no more are the same, computed twice
# Taints that say that a machine is about to go; the cloud's own, and Kubernetes' for machines that are shut down.
LEAVING = {
    "cloud.google.com/impending-node-termination": "the cloud takes the machine away",
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler removes the machine",
    "DeletionCandidateOfClusterAutoscaler": "",  # only a thought
    "node.kubernetes.io/out-of-service": "the machine is out of service",
}
# The same as labels, which have values.
UNDER_WAY = {("cloud.google.com/active-node-maintenance", "ONGOING"): "the machine is under maintenance"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the run wants of its machines.

    Attributes:
        quarantine: by Ray node, until when it gets no worker; infinite: it is to be replaced.
        absent_s: by how much the ends of all quarantines have moved since the run began: while nobody controlled it,
            no time passed for them.
        unhealthy: Ray nodes that fail their check: to be replaced too.
        busy: Ray nodes on which workers still are, of whatever run. others: those on which other runs have slots.
        addresses: of Ray nodes that are alive.
        replicas: machines that the group should have, beside those that others have; None: somebody else, such as the
            autoscaler, sees to that.
        spares: machines that the spares' own group should have at least; 0: whoever else sees to that.
        is_settled: no worker waits for a place, so that machines without one are too many.
        is_shared: other runs may wait for machines of the group, so that none is too many.
    """

    quarantine: Mapping[str, float] = field(default_factory=dict)
    absent_s: float = 0.0
    unhealthy: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    addresses: Mapping[str, str] = field(default_factory=dict)
    replicas: int | None = None
    spares: int = 0
    is_settled: bool = True
    is_shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What Kubernetes has.

    Attributes:
        group: the workers'. spares: the spares' own, if they have one. pods: of all groups.
        machines: by name; empty where they may not be looked at.
    """

    group: GroupState
    pods: tuple[Pod, ...]
    machines: Mapping[str, Machine] = field(default_factory=dict)
    spares: GroupState | None = None

    @property
    def groups(self) -> tuple[GroupState, ...]:
        """All whose nodes take workers."""
        return (self.group,) if self.spares is None else (self.group, self.spares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """Keep pods away from a machine, and say until when; infinite: for good."""

    machine: str
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A machine is free again, as far as this run is concerned."""

    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Delete pods of a group; the operator starts others of it, elsewhere."""

    group: str
    pods: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Give a group, which had `of` machines, so many; `leave`: pods that go first, where there are too many."""

    group: str
    replicas: int
    of: int
    leave: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """A Ray node will be taken away."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """So many machines have not come in time; 0: they have, after all."""

    count: int
    reason: str


Order = Cordon | Release | Replace | Scale | Warn | Missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is known from before.

    Attributes:
        short_since_s: since when machines are missing, None if none are. told: how many were told of.
        warned: Ray nodes. pods: by Ray node, its pod as it was last seen; of nodes that are gone, the last ones.
        marked_until_s: by Ray node, what the mark on its machine said when it was last seen there: who has taken that
            away, or made the machine anew, has done so on purpose. marked_for_s: for which end that was, less what ends
            had moved by then.
    """

    short_since_s: float | None = None
    told: int = 0
    warned: frozenset[str] = frozenset()
    pods: Mapping[str, Pod] = field(default_factory=dict)
    marked_until_s: Mapping[str, float] = field(default_factory=dict)
    marked_for_s: Mapping[str, float] = field(default_factory=dict)


def reconcile(
    run: str, wish: Wish, seen: Seen, memory: Memory, now_s: float, patience_s: float
) -> tuple[tuple[Order, ...], Memory]:
    """
    Args:
        run: as marks call it, see `marks.whose`.
        now_s: of the wall clock, as the ends of quarantines are. patience_s: after which machines are missing.
    """
    orders: list[Order] = []
    # A pod that has ended keeps its address, which another one may have got: of both the one that lives counts.
    by_life = sorted(seen.pods, key=lambda pod: (pod.is_running, not pod.is_leaving))
    pods = {pod.address: pod for pod in by_life if pod.address}
    at = {node: pods[address] for node, address in wish.addresses.items() if address in pods}
    memory = replace(memory, pods=_remembered(memory.pods, at))
    memory = _with_marks(run, wish, seen, memory)
    orders += _quarantined(run, wish, seen, memory, now_s)
    orders += _released(run, wish, seen, at, memory.pods, now_s)
    warnings = _warnings(seen, at)
    spared = memory.warned - {one.node for one in warnings}
    orders += _replaced(wish, seen, at, memory.pods, spared)
    if wish.replicas is not None:
        theirs = {pod.name for node, pod in at.items() if node in wish.others and pod.group == seen.group.name}
        orders += _sized(wish, wish.replicas + len(theirs), seen, at)
    if seen.spares is not None:  # one that no worker is on is what they are for, and none too many
        orders += _grown(seen.spares, wish.spares)
    warnings = [one for one in warnings if one.node not in memory.warned]
    memory = replace(memory, warned=memory.warned | {one.node for one in warnings})
    short, memory = _shortage(wish, seen, memory, now_s, patience_s)
    return (*orders, *warnings, *short), memory


def given_back(run: str, machines: Iterable[Machine]) -> tuple[Release, ...]:
    """Of a run that has ended: the marks that have an end, which nobody would take away when it comes."""
    ends = {one.name: marked_until_s(run, one) for one in machines}
    return tuple(Release(machine=name) for name, end_s in ends.items() if end_s is not None and not isinf(end_s))


def _remembered(before: Mapping[str, Pod], at: Mapping[str, Pod]) -> dict[str, Pod]:
    """A node keeps its pod when it is gone: its address may be another's soon."""
    gone = [(node, pod) for node, pod in before.items() if node not in at]
    return dict(gone[-_GONE_NODES:]) | dict(at)


def _replaced(wish: Wish, seen: Seen, at: Mapping[str, Pod], known: Mapping[str, Pod], spared: Set[str]) -> list[Order]:
    """Pods on bad machines that no worker is on any more, and that nobody has named yet, each in the group it is in.

    Args:
        spared: nodes that were to be taken away, and are not: the run has left them for good, and a new pod is welcome.
    """
    used = {pod.name for node, pod in at.items() if node in wish.busy}
    bad = {node for node, until_s in wish.quarantine.items() if isinf(until_s)} | wish.unhealthy
    bad |= {node for node in spared if node in at and at[node].node in seen.machines}
    names = {
        known[node].name
        for node in bad
        if node in known and node not in wish.busy and (not seen.machines or known[node].node in seen.machines)
    }  # a machine that is not seen yet is not cordoned yet: the next pod could come there again
    orders: list[Order] = []
    for group in seen.groups:
        there = {pod.name for pod in seen.pods if pod.group == group.name and not pod.is_leaving}
        if gone := names & there - used - set(group.leaving):
            orders.append(Replace(group=group.name, pods=frozenset(gone)))
    return orders


def _grown(group: GroupState, replicas: int) -> list[Order]:
    wanted = min(max(replicas, group.low), group.high)
    return [Scale(group=group.name, replicas=wanted, of=group.replicas)] if wanted > group.replicas else []


def _sized(wish: Wish, replicas: int, seen: Seen, at: Mapping[str, Pod]) -> list[Order]:
    """Growing asks for machines; shrinking gives up those that no worker is on, and names them: else any may go."""
    group = seen.group
    wanted = min(max(replicas, group.low), group.high)
    if wanted >= group.replicas or not wish.is_settled or wish.is_shared:
        return _grown(group, replicas)
    used = {pod.name for node, pod in at.items() if node in wish.busy}
    theirs = [pod for pod in seen.pods if pod.group == group.name]
    # Those that do not run yet first; those that others have named are gone already.
    idle = [pod for pod in theirs if pod.name not in used and not pod.is_leaving and pod.name not in group.leaving]
    unmade = max(0, group.replicas - len(theirs))  # replicas without a pod cost nobody anything
    leave = sorted(idle, key=lambda pod: (pod.is_running, pod.name))[: max(0, group.replicas - wanted - unmade)]
    left = max(wanted, group.replicas - unmade - len(leave))
    if left >= group.replicas:
        return []
    names = frozenset(pod.name for pod in leave)
    return [Scale(group=group.name, replicas=left, of=group.replicas, leave=names)]


def _with_marks(run: str, wish: Wish, seen: Seen, memory: Memory) -> Memory:
    """Of the nodes in quarantine."""
    until, of = (
        {node: at_s for node, at_s in before.items() if node in wish.quarantine}
        for before in (memory.marked_until_s, memory.marked_for_s)
    )
    for node in wish.quarantine.keys() & memory.pods.keys():
        machine = seen.machines.get(memory.pods[node].node)
        if machine is not None and (until_s := marked_until_s(run, machine)) is not None:
            until[node] = until_s
            of[node] = wish.quarantine[node] - wish.absent_s
    return replace(memory, marked_until_s=until, marked_for_s=of)


def _quarantined(run: str, wish: Wish, seen: Seen, memory: Memory, now_s: float) -> list[Order]:
    """Machines whose mark is yet to be written, or to last longer."""
    orders: list[Order] = []
    for node, until_s in wish.quarantine.items():
        machine = seen.machines.get(memory.pods[node].node) if node in memory.pods else None
        if machine is None or until_s <= now_s:
            continue
        if marked_until_s(run, machine) is not None:
            is_news = memory.marked_until_s[node] < until_s
        else:  # it was given back, if it had a mark; only what was found since is a reason for another one
            is_news = memory.marked_for_s.get(node, -inf) + _SAME_S < until_s - wish.absent_s
        if is_news:
            orders.append(Cordon(machine=machine.name, until_s=until_s))
    return orders


def _released(
    run: str, wish: Wish, seen: Seen, at: Mapping[str, Pod], known: Mapping[str, Pod], now_s: float
) -> list[Order]:
    """Those whose time is over, and those that the run has given back before."""
    free = {pod.node for node, pod in at.items() if node not in wish.quarantine}
    held = {pod.node for node, pod in known.items() if node in wish.quarantine}
    orders: list[Order] = []
    for machine in seen.machines.values():
        marked_s = marked_until_s(run, machine)
        is_over = marked_s is not None and (marked_s <= now_s or (machine.name in free and not isinf(marked_s)))
        if is_over and machine.name not in held:
            orders.append(Release(machine=machine.name))
    return orders


def _warnings(seen: Seen, at: Mapping[str, Pod]) -> list[Warn]:
    found = []
    for node, pod in at.items():
        machine = seen.machines.get(pod.node)
        reasons = []
        if machine is not None:
            reasons += [LEAVING.get(taint.key, "") for taint in machine.taints]
            reasons += [UNDER_WAY.get(label, "") for label in machine.labels.items()]
        if pod.is_leaving:
            reasons.append("its pod is deleted")
        if any(reasons):
            found.append(Warn(node=node, reason=next(reason for reason in reasons if reason)))
    return found


def _shortage(wish: Wish, seen: Seen, memory: Memory, now_s: float, patience_s: float) -> tuple[list[Order], Memory]:
    """Machines that were asked for and are no nodes of Ray: told of after some time, and when it is over."""
    alive = set(wish.addresses.values())
    missing, wanted, there, running = 0, 0, 0, 0
    for group in seen.groups:
        theirs = [pod for pod in seen.pods if pod.group == group.name]
        joined = sum(pod.is_running and not pod.is_leaving and pod.address in alive for pod in theirs)
        missing += max(0, group.replicas - joined)
        wanted, there = wanted + group.replicas, there + joined
        running += sum(pod.is_running for pod in theirs)
    if not missing:
        back: list[Order] = [Missing(count=0, reason="all machines are there")] if memory.told else []
        return back, replace(memory, short_since_s=None, told=0)
    since_s = now_s if memory.short_since_s is None else memory.short_since_s
    if now_s - since_s <= patience_s or missing == memory.told:
        return [], replace(memory, short_since_s=since_s)
    names = " and ".join(group.name for group in seen.groups)
    reason = f"{there} of {wanted} machines of {names} have joined, for {now_s - since_s:.0f} s: {running} pods run"
    return [Missing(count=missing, reason=reason)], replace(memory, short_since_s=since_s, told=missing)
