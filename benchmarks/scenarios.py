"""The scenarios of the recovery benchmark. Each waits for nothing but what it needs, strikes, and says what it did."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass

from benchmarks.hosts import HEAD
from benchmarks.remains import kill_now, pids_on
from benchmarks.rows import Fault, lost_before
from benchmarks.stage import ScenarioError, Stage
from benchmarks.training import MICRO_BATCH

NOTICE_S = 5.0  # from a notice to the end of the process
CUT_S = 30.0  # for which a host is cut off
BACK_S = 5.0  # for which a run is watched at least once it is back: those who return could yet do damage
SPEED_S = 15.0  # over which a speed is measured
SETTLE_S = 15.0  # until micro-batches are dealt by speed
WATCHED_S = 15.0  # after the loss of a coordinator: consequences come late
CLEAN_S = 20.0  # over which an undisturbed step is measured
DRIVER_S = 5.0  # from the loss of a driver to the next one
SMALL_S = 15.0  # for which half of the hosts are gone
_BUSY_END_S = 120.0
_BUSY_LOOK_S = 10.0  # the observer's arithmetic takes cores, too
_BUSY_STEPS = 20  # attempts at the newest ones may yet be committed
_SILENT_STEPS = 2.0  # the group is healing a joiner when no line came for so many step times


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a scenario starts from.

    Attributes:
        slots: of the hosts. workers: that train at first. wanted: more, for which there is no slot yet.
        spares: workers that stand ready.
        state_mb: size of the state, unless the command line says another.
        micro_batch: samples of one forward.
        saves: checkpoints are kept, by each system in its own way; if not, by none.
        needs: commands besides `ip`.
        calm_s: that all have trained, at least, when it is broken: who prepares for a loss has the time, as it has in
            runs whose faults are hours apart, and no process that still starts is measured.
        is_prepared: it is not broken before that is done, either.
    """

    slots: tuple[int, ...] = (2, 2, 2)
    workers: int = 4
    wanted: int = 0
    spares: int = 0
    state_mb: int = 0
    micro_batch: int = MICRO_BATCH
    saves: bool = True
    needs: tuple[str, ...] = ()
    calm_s: float = 12.0
    is_prepared: bool = True


def kill(stage: Stage) -> Fault:
    """SIGKILL to a member that does not lead."""
    return _signal(stage, "kill", stage.member(), signal.SIGKILL)


def early(stage: Stage) -> Fault:
    """SIGKILL to a member that does not lead, before anybody can have prepared for it."""
    return _signal(stage, "early", stage.member(), signal.SIGKILL)


def leader(stage: Stage) -> Fault:
    """SIGKILL to rank 0."""
    return _signal(stage, "leader", stage.leader, signal.SIGKILL)


def swap(stage: Stage) -> Fault:
    """SIGKILL to a member while a spare stands ready."""
    return _signal(stage, "swap", stage.member(), signal.SIGKILL)


def stop(stage: Stage) -> Fault:
    """SIGSTOP to a member: it is there, and does nothing."""
    return _signal(stage, "stop", stage.member(), signal.SIGSTOP)


def notice(stage: Stage) -> Fault:
    """SIGTERM to a member, as before a preemption; SIGKILL some seconds later."""
    victim = stage.member()
    fault = _signal(stage, "notice", victim, signal.SIGTERM)
    stage.wait_s(NOTICE_S)
    if victim in stage.watch.living:
        stage.signal(victim, signal.SIGKILL)
        return dataclasses.replace(fault, note="the process was still there when the notice had run out")
    return fault


def node(stage: Stage) -> Fault:
    """Every process of a host with members, its raylet too, at once; the host itself stays, and refuses connections."""
    host = stage.host_of_some()
    stage.spoiled.add(host)
    return _crash(stage, "node", host)


def power(stage: Stage) -> Fault:
    """The same, and the host's address is gone with it: nobody is there to refuse."""
    host = stage.host_of_some()
    fault = _crash(stage, "power", host)
    stage.hosts.lose(host)
    return fault


def shrink(stage: Stage) -> Fault:
    """Half of the hosts are lost at once, every process of theirs with them; as many new ones come later."""
    _, lost = _halves(stage)
    stage.spoiled.update(lost)
    fault = _crash(stage, "shrink", *lost)
    stage.wait_s(SMALL_S)
    for host in lost:
        stage.hosts.add(stage.hosts.slots[host])
    return dataclasses.replace(fault, room_at_s=time.time())


def partition(stage: Stage) -> Fault:
    """A host with members is cut off, and comes back later."""
    host = stage.host_of_some()
    stage.spoiled.add(host)  # Ray may have given it up
    victims = set(stage.members_by_host()[host])
    stage.hosts.cut(host)
    fault = stage.fault("partition", victims, returns=True)
    stage.wait_s(CUT_S)
    stage.hosts.restore(host)
    stage.wait_s(BACK_S)
    return fault


def split(stage: Stage) -> Fault:
    """Half of the hosts hear neither the head nor the other half, and are not heard, for a while."""
    near, far = _halves(stage)
    return _parted(stage, "split", far, [([HEAD, *near], far), (far, [HEAD, *near])])


def halves(stage: Stage) -> Fault:
    """No packet passes between two halves of the hosts for a while; the head hears, and reaches, both."""
    near, far = _halves(stage)
    return _parted(stage, "halves", far, [(near, far), (far, near)])


def link(stage: Stage) -> Fault:
    """A host with a member reaches the head and the leader's host for a while, and no other, nor do they reach it."""
    near, far = _halves(stage)
    (lone, *others), leads = far, near[0]
    others += [host for host in near if host != leads]
    return _parted(stage, "link", [lone], [([lone], others), (others, [lone])])


def headless(stage: Stage) -> Fault:
    """The head, with driver and supervisor, is cut off from all hosts for a while; they reach each other."""
    hosts = list(stage.hosts.hosts)
    answered = stage.hosts.answering()
    return _parted(stage, "headless", [], [([HEAD], hosts), (hosts, [HEAD])], answered)


def mute(stage: Stage) -> Fault:
    """A host with members hears everybody for a while, and nobody hears it."""
    host = stage.host_of_some()
    return _parted(stage, "mute", [host], [([host], _others(stage, host))])


def deaf(stage: Stage) -> Fault:
    """A host with members is heard by everybody for a while, and hears nobody."""
    host = stage.host_of_some()
    return _parted(stage, "deaf", [host], [(_others(stage, host), [host])])


def _halves(stage: Stage) -> tuple[list[str], list[str]]:
    """The hosts in two halves; the leader's is the first."""
    leads = stage.hosts.of(stage.leader)
    hosts = sorted(stage.hosts.hosts, key=lambda host: host != leads)
    return hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :]


def _others(stage: Stage, host: str) -> list[str]:
    return [HEAD, *(other for other in stage.hosts.hosts if other != host)]


def _parted(
    stage: Stage, kind: str, far: list[str], ways: list[tuple[list[str], list[str]]], answered: Collection[str] = ()
) -> Fault:
    """For a while no packet goes from those to these, way by way.

    Args:
        far: hosts whose members count as hit. answered: hosts that have answered the head, and that must not any more.
    """
    members = stage.members_by_host()
    for senders, receivers in ways:
        stage.hosts.silence(senders, receivers)
    fault = stage.fault(kind, {pid for host in far for pid in members.get(host, ())}, returns=True)
    stage.spoiled.update(stage.hosts.hosts)  # Ray may have given any of them up
    if answered and not {*answered} & {*stage.hosts.answering()}:
        fault = stage.struck = dataclasses.replace(fault, proof=f"{len(answered)} hosts answer the head no more")
    stage.wait_s(CUT_S)
    stage.hosts.unite()
    stage.wait_s(BACK_S)
    return fault


def join(stage: Stage) -> Fault:
    """A slot is added to a run that wants one more worker. Its time counts from when the joiner has built its model."""
    before = set(stage.watch.started)
    members = len(stage.watch.members)
    stage.hosts.add(slots=1)
    stage.fault("join", set(), full_size=members + 1)  # who starts nobody there has failed
    stage.wait_for(lambda: bool(set(stage.watch.started) - before), "a worker on the new slot had started")
    return stage.fault("join", set(), full_size=members + 1)


def donor(stage: Stage) -> Fault:
    """A member is killed while it gives its state to a joiner: when all have been silent for some steps."""
    joined = join(stage)
    limit_s = _SILENT_STEPS * stage.job.step_s

    def silent_s() -> float:
        return time.time() - max(stage.watch.heard_s, joined.at_s)

    stage.wait_for(lambda: silent_s() > limit_s or _has_grown(stage, joined), "the joiner was being healed")
    if _has_grown(stage, joined):
        raise ScenarioError("the joiner was healed before a donor could be killed: raise --state-mb")
    note = f"no member had written a line for {silent_s():.3f} s"
    fault = _signal(stage, "donor", stage.member(), signal.SIGKILL)
    return dataclasses.replace(fault, full_size=joined.full_size, note=note)


def _has_grown(stage: Stage, joined: Fault) -> bool:
    return len(stage.watch.members) >= joined.full_size


def coordinator(stage: Stage) -> Fault:
    """SIGKILL to the process that coordinates, and to one of those that it has on hosts; training should not notice."""
    system = stage.system
    titles = [title for title in (system.supervisor, system.monitor) if title]
    found = {title: stage.titled(title) for title in titles}
    if missing := [title for title in titles if not found[title]]:
        raise ScenarioError(f"no process is called {' or '.join(missing)}")
    struck = {stage.chance.choice(pids): title for title, pids in found.items()}
    stage.fault("coordinator", set())
    for pid in struck:
        stage.signal(pid, signal.SIGKILL)
    proof = ", ".join(f"{title} ({pid}) is gone" for pid, title in struck.items())
    return _watched(stage, proof if stage.see_gone(*struck) else "")


def driver(stage: Stage) -> Fault:
    """SIGKILL to the process that began the run; another one is started some seconds later."""
    stage.fault("driver", set())
    is_killed = stage.replace_driver(DRIVER_S) == -signal.SIGKILL
    proof = "the driver was killed" if is_killed else ""
    return _watched(stage, proof, f"another one was started {DRIVER_S:.0f} s later")


def _watched(stage: Stage, proof: str, note: str = "") -> Fault:
    """What was struck last may still show for a while."""
    assert stage.struck is not None
    stage.struck = dataclasses.replace(stage.struck, watched_s=WATCHED_S, proof=proof, note=note)
    stage.wait_s(WATCHED_S)
    return stage.struck


def everyone(stage: Stage) -> Fault:
    """SIGKILL to all members at once: a cold restart, from whatever the system has kept."""
    members = set(stage.watch.members.values())
    fault = stage.fault("everyone", members)
    for pid in members:
        stage.signal(pid, signal.SIGKILL)
    return fault


def clean(stage: Stage) -> Fault:
    """Nothing at all, for a while: what a step takes."""
    stage.fault("clean", set())  # who falls over while nothing is done has failed
    stage.wait_s(CLEAN_S)
    return stage.fault("clean", set())


def straggler(stage: Stage) -> Fault:
    """A member takes twice as long as the others from now on."""
    stage.wait_s(SPEED_S)
    victim = stage.member()
    stage.job.slow_down(victim)
    fault = stage.fault("straggler", {victim}, returns=True)
    stage.wait_s(SETTLE_S + SPEED_S)
    return fault


def busy(stage: Stage) -> Fault:
    """Nothing is wrong, but other processes want all processors: who is taken for dead then is a false alarm.

    The first one is enough, and ends it.
    """
    fault = stage.fault("busy", set())
    environment = dict(stage.hosts.environment)  # by which what a bench leaves that was killed is found
    with contextlib.ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            hog = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"], env=environment))
            stack.callback(hog.kill)
        stage.allow_s(stage.long_s + _BUSY_END_S)
        until_s, lost = time.monotonic() + stage.long_s, lost_before(stage.watch.log(), stage.watch.step)
        while (left_s := until_s - time.monotonic()) > 0:
            stage.wait_s(min(left_s, _BUSY_LOOK_S))
            if lost_before(stage.watch.log(), stage.watch.step - _BUSY_STEPS) > lost:
                break
    return dataclasses.replace(fault, lasted_s=time.time() - fault.at_s)


def _crash(stage: Stage, kind: str, *hosts: str) -> Fault:
    """Every process of these at once; to find them takes longer than to notice it, and is no part of the fault."""
    members = stage.members_by_host()
    found = [pid for host in hosts for pid in pids_on(host)]
    fault = stage.fault(kind, {pid for host in hosts for pid in members.get(host, ())})
    kill_now(found)
    for host in hosts:
        stage.hosts.crash(host)  # and who has started meanwhile
    return fault


def _signal(stage: Stage, kind: str, pid: int, number: signal.Signals) -> Fault:
    fault = stage.fault(kind, {pid})
    stage.signal(pid, number)
    return fault


STRIKES = {
    strike.__name__: strike
    for strike in (
        *(kill, early, leader, swap, stop, notice, node, power, join, donor, coordinator, straggler, busy),
        *(driver, everyone, shrink, clean),
        *(partition, split, halves, link, headless, mute, deaf),
    )
}
_STANDING_BY = Ground(calm_s=20.0)  # who keeps stand-ins has one on each host by then, as always in a run of hours
GROUNDS = {
    "kill": _STANDING_BY,
    "early": Ground(calm_s=0.0, is_prepared=False),
    "leader": _STANDING_BY,
    "notice": _STANDING_BY,
    "everyone": _STANDING_BY,
    "stop": _STANDING_BY,
    "swap": Ground(spares=1),
    # With so large a state a file of it in each step, as tuned, would be all that is measured.
    "join": Ground(slots=(2, 2), wanted=1, state_mb=400, saves=False),
    "donor": Ground(slots=(2, 2), wanted=1, state_mb=400, saves=False),
    "clean": Ground(saves=False, calm_s=18.0),
    "shrink": Ground(slots=(2, 2)),
    "split": Ground(slots=(1, 1, 1, 1)),
    "halves": Ground(slots=(1, 1, 1, 1)),
    "link": Ground(slots=(1, 1, 1, 1)),
    "storm": Ground(),  # nobody has a spare
    "straggler": Ground(micro_batch=1),
}
