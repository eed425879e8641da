"""How many events a second the pure controller takes in, one after the other, on one core."""

import time

from benchmarks.crowd import Crowd, Size, node
from elastic.control import events as ev
from elastic.control.controller import step
from elastic.control.flight import Flying, Reading
from elastic.control.state import RunState
from elastic.policies import Ladder


def controller_rates(workers: int = 1024, per_host: int = 8, seconds: int = 60) -> dict[str, float]:
    """Events a second of `controller.step`, of each kind, and of a mixture as a run has it: an incident a minute."""
    size = Size(hosts=workers // per_host, workers_per_host=per_host)
    crowd, policy = Crowd(size), Ladder()
    state = RunState(settings=size.settings)
    spent_s: dict[str, float] = {}
    count: dict[str, int] = {}
    now_s = 0.0

    def take(event: ev.Event) -> None:
        nonlocal state
        before_s = time.perf_counter()
        decision = step(state, event, now_s, policy)
        took_s = time.perf_counter() - before_s
        kind = type(event).__name__
        spent_s[kind] = spent_s.get(kind, 0.0) + took_s
        count[kind] = count.get(kind, 0) + 1
        state = decision.state
        for command in decision.commands:
            crowd.heed(command)

    def settle() -> None:
        while crowd.answers:
            take(crowd.answers.popleft())

    take(ev.RunStarted())
    settle()
    spent_s.clear()
    count.clear()
    for second in range(seconds):
        for part in range(4):
            now_s = second + part / 4
            for host in range(part, size.hosts, 4):
                take(_beat(crowd, host))
            take(ev.Tick())
            settle()
        if crowd.runs:
            take(crowd.stable(now_s))
        if second == seconds // 2:
            for event in crowd.fail():
                take(event)
            settle()
    rates = {kind: count[kind] / spent_s[kind] for kind in count}
    return {"all": sum(count.values()) / sum(spent_s.values())} | rates


def _beat(crowd: Crowd, host: int) -> ev.HostBeat:
    """As a host monitor tells it that no relay stands before: all its workers."""
    width = crowd.size.workers_per_host
    generation = crowd.view.generation if crowd.view is not None else 0
    readings = tuple(
        Reading(
            worker=f"w{host * width + shard}",
            generation=generation,
            step=1,
            phase=Flying.COMPUTING,
            micro_batch=0,
            commits=100,
            still_s=0.05,
            state="R",
        )
        for shard in range(width)
    )
    return ev.HostBeat(node=node(host), readings=readings)
