"""Effect. The machines of a run on Kubernetes: a thread makes them what the run's state says, and tells what it sees.

Each look compares what is wanted with what is there (`elastic.kube.reconcile`); what could not be done is found undone
by the next one. So an API server that is away costs training nothing, and remediation goes on when it is back.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isinf
from pathlib import Path
from typing import Any

from elastic.actors.fleet import Emit
from elastic.actors.taken import Taken, taken
from elastic.control import events as ev
from elastic.control.state import OVER, Phase, RunState, Standing
from elastic.errors import SettingError
from elastic.kube.client import KubeClient, connect
from elastic.kube.errors import KubeError, Why
from elastic.kube.marks import key_of, whose
from elastic.kube.objects import Machine
from elastic.kube.pods import GROUP, SPARES
from elastic.kube.reconcile import (
    Cordon,
    Memory,
    Missing,
    Order,
    Release,
    Replace,
    Scale,
    Seen,
    Warn,
    Wish,
    given_back,
    reconcile,
)
from elastic.kube.shape import most_nodes
from elastic.settings import KubeRay, RunSettings

log = logging.getLogger("elastic")

_LOOK_S = 2.0
_END_S = 15.0
_NODES_REST = 50  # a look at all nodes of a cluster, times so much, is how long the next one waits
_RIGHTS_S = 60.0  # rights may be given, or an authorizer be away, while a run goes on
_LEFT = "marks of this run may be left: kubectl get nodes -o yaml"
_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"  # of a pod, with its token
_IN_CLUSTER, _CLUSTER = "KUBERNETES_SERVICE_HOST", "RAY_CLUSTER_NAME"  # set by Kubernetes, and by KubeRay's operator


class NoMachines:
    """Where there is no Kubernetes, or nothing was said of it."""

    def follow(self, state: RunState) -> None:
        pass

    def close(self) -> None:
        pass


class Machines:
    """See the module.

    Args:
        cluster: RayCluster whose groups of workers and spares are looked after.
        emit: takes NodeNotice and NodesMissing.
        addresses: of Ray's live nodes, by id.
        held: Ray nodes on which somebody has processors, or slots; asked for where other runs may be.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: str,
        settings: RunSettings,
        kuberay: KubeRay,
        emit: Emit,
        addresses: Callable[[], Mapping[str, str]] | None = None,
        look_s: float = _LOOK_S,
        held: Callable[[], Taken] | None = None,
    ) -> None:
        self._client, self._cluster, self._limits = client, cluster, settings.limits
        self._run = whose(kuberay.namespace, settings.run)
        self._emit, self._addresses, self._look_s = emit, addresses or ray_addresses, look_s
        self._held = held or (lambda: taken(settings.run))
        self._is_shared = True if kuberay.interactive else None  # it is asked whose the cluster is
        self._replicas: int | None = None
        self._spares = 0
        if not kuberay.autoscale:
            self._replicas, self._spares = most_nodes(settings.scaling, kuberay)
        self._state: RunState | None = None
        self._memory = Memory()
        self._may_touch_nodes = kuberay.node_rights
        self._machines: Mapping[str, Machine] = {}
        self._nodes_due_s, self._is_refused = 0.0, False  # due by time.monotonic
        self._is_blind = False  # nodes may be looked at, and cannot be now
        if not kuberay.node_rights:
            log.info("machines: kuberay.node_rights is off: nodes are not cordoned, bad ones are kept out by Ray alone")
        self._troubles: set[str] = set()  # that were told of since the last look that did all it had to
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="elastic-machines", daemon=True)
        self._thread.start()

    def follow(self, state: RunState) -> None:
        """What the run wants now; called often, waits for nothing."""
        self._state = state

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join(_END_S)
        if self._thread.is_alive() and self._may_have_marks:
            log.warning("machines: Kubernetes has not answered for %g s: %s", _END_S, _LEFT)
        self._client.close()

    @property
    def _may_have_marks(self) -> bool:
        """That nobody else would take away: of a run that goes on elsewhere they stay."""
        return self._may_touch_nodes and self._state is not None and self._state.phase is Phase.ENDED

    def _keep(self) -> None:
        while not self._is_closed.wait(self._look_s):
            state = self._state
            if state is not None:
                try:
                    self._look(state)
                except Exception as error:  # a mistake here costs remediation, and must not cost the run
                    self._note(error)
        if self._may_have_marks:
            self._give_back()

    def _look(self, state: RunState) -> None:
        try:
            alive = [one for one in state.workers.values() if one.standing not in OVER]
            if self._is_shared is None:  # a job's own file may be used for a cluster that is there for all
                self._is_shared = not self._client.is_of_a_job(self._cluster)
            held = self._held() if self._is_shared else Taken(frozenset(), frozenset())
            ours = {one.node for one in alive}
            wish = Wish(
                quarantine=state.care.quarantine,
                absent_s=state.absent_s,
                unhealthy=frozenset(state.care.unhealthy),
                busy=held.nodes | ours,
                others=held.others - ours,
                addresses=self._addresses(),
                replicas=self._replicas,
                spares=self._spares,
                is_settled=bool(alive) and all(one.standing is not Standing.REQUESTED for one in alive),
                is_shared=self._is_shared,
            )
            seen = self._seen()
            orders, self._memory = reconcile(
                self._run, wish, seen, self._memory, time.time(), self._limits.start_timeout_s
            )
        except KubeError as error:
            self._note(error)
            return
        is_done, open_ = not self._is_blind, set[str]()
        machines = {pod.name: pod.node for pod in seen.pods}
        for order in orders:
            if isinstance(order, Replace):  # a machine is cordoned first: its next pod could come there again
                pods = frozenset(pod for pod in order.pods if not self._is_blind and machines.get(pod) not in open_)
                if not pods:
                    continue
                order = replace(order, pods=pods)
            try:
                self._carry_out(order)
            except Exception as error:  # the next look finds it undone; what is only told is told now, whatever it was
                self._note(error)
                is_done = False
                if isinstance(order, Cordon) and isinstance(error, KubeError) and error.why is not Why.FORBIDDEN:
                    open_.add(order.machine)
        if self._troubles and is_done:
            log.info("machines: Kubernetes answers again")
            self._troubles.clear()

    def _give_back(self) -> None:
        """No later look would end the quarantines of a run that is over; those for good stay."""
        deadline_s = time.monotonic() + _END_S
        try:
            orders = given_back(self._run, self._client.machines())
        except KubeError as error:
            log.warning("machines: %s: %s", error, _LEFT)
            return
        for order in orders:
            try:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"there was no time left for {order.machine}")
                self._carry_out(order)
            except (KubeError, TimeoutError) as error:
                by_hand = f"kubectl taint nodes {order.machine} {key_of(self._run)}-; kubectl uncordon {order.machine}"
                log.warning("machines: %s; by hand: %s", error, by_hand)

    def _seen(self) -> Seen:
        groups, pods = self._client.groups(self._cluster), self._client.pods(self._cluster)
        if GROUP not in groups:
            raise KubeError(f"RayCluster {self._cluster} has no worker group {GROUP}", why=Why.MISSING, status=404)
        return Seen(group=groups[GROUP], spares=groups.get(SPARES), pods=pods, machines=self._nodes())

    def _nodes(self) -> Mapping[str, Machine]:
        """Those of the cluster as they were seen last; none while nobody may, which is asked again now and then.

        None either while their list fails, which is longer than all else, and holds back nothing else.
        """
        if not self._may_touch_nodes or time.monotonic() < self._nodes_due_s:
            return self._machines
        began_s, self._is_blind = time.monotonic(), False
        try:
            self._machines = {one.name: one for one in self._client.machines()}
        except KubeError as error:
            if error.why is not Why.FORBIDDEN:
                self._note(error)
                ended_s = time.monotonic()  # half of the time is left for the rest
                self._machines, self._is_blind, self._nodes_due_s = {}, True, 2 * ended_s - began_s
                return self._machines
            if not self._is_refused:
                log.warning("machines: %s: nodes are not cordoned, bad ones are kept out by Ray alone", error)
            self._machines, self._is_refused, self._nodes_due_s = {}, True, began_s + _RIGHTS_S
            return self._machines
        if self._is_refused:
            log.info("machines: nodes may be looked at now, and are cordoned where they must be")
        ended_s = time.monotonic()
        self._is_refused, self._nodes_due_s = False, ended_s + _NODES_REST * (ended_s - began_s)
        return self._machines

    def _carry_out(self, order: Order) -> None:
        """What was refused is ordered by each look: so what is done is told of once it is."""
        match order:
            case Cordon():
                end = "for good" if isinf(order.until_s) else f"for {order.until_s - time.time():.0f} s"
                self._client.quarantine(order.machine, self._run, order.until_s)
                log.warning("machines: %s gets no pods, %s", order.machine, end)
                self._nodes_due_s = 0.0
            case Release():
                self._client.release(order.machine, self._run)
                log.info("machines: %s is given back", order.machine)
                self._nodes_due_s = 0.0
            case Replace():
                self._client.replace_pods(self._cluster, order.group, order.pods)
                log.warning("machines: replaced: %s", ", ".join(sorted(order.pods)))
            case Scale():
                self._client.scale(self._cluster, order.group, order.replicas, order.leave, order.of)
            case Warn():
                self._emit(ev.NodeNotice(node=order.node, reason=order.reason))
            case Missing():
                self._emit(ev.NodesMissing(missing=order.count, reason=order.reason))

    def _note(self, error: Exception) -> None:
        """Say each trouble once while it lasts; where it is not one of Kubernetes, with how it came about."""
        trouble = str(error).partition(" (")[0] if isinstance(error, KubeError) else str(error)  # without its details
        if trouble not in self._troubles:
            self._troubles.add(trouble)
            how = None if isinstance(error, KubeError) else error
            log.warning("machines: %s; training goes on, and this is tried again", error, exc_info=how)


def machines_of(kuberay: KubeRay | None, settings: RunSettings, emit: Emit) -> Machines | NoMachines:
    """Look after the machines of this run, if it lives in a pod of KubeRay's."""
    cluster = os.environ.get(_CLUSTER, "")
    if kuberay is None or not cluster or _IN_CLUSTER not in os.environ:
        return NoMachines()
    with contextlib.suppress(OSError):  # else the settings' word must do
        namespace = Path(_NAMESPACE).read_text().strip()
        if namespace != kuberay.namespace:
            told = "machines: this pod is in the namespace %s, not KubeRay.namespace=%s, and so is its cluster"
            log.warning(told, namespace, kuberay.namespace)
            kuberay = replace(kuberay, namespace=namespace)
    try:
        client = connect(kuberay.namespace)
    except SettingError as error:
        log.warning("machines: %s: bad ones are kept out by Ray alone", error)
        return NoMachines()
    return Machines(client, cluster, settings, kuberay, emit)


def ray_addresses() -> dict[str, str]:
    """Addresses of the live nodes of the connected cluster, by id."""
    import ray  # a driver of child processes needs none

    nodes: list[dict[str, Any]] = ray.nodes()
    return {one["NodeID"]: one["NodeManagerAddress"] for one in nodes if one["Alive"]}
