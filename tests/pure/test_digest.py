"""What a relay tells of workers: enough to judge them by, and no more."""

from dataclasses import replace

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.digest import Digest
from elastic.control.flight import STOPPED, Flying, Reading
from elastic.control.values import IncidentClass
from tests.pure.bare_controller import BareController, trained

FLOOR_S = 0.5
STOPPED_S = 0.2


def seen(still_s: float = 0.0, worker: str = "w0", **other: object) -> Reading:
    usual = {"generation": 1, "step": 5, "phase": Flying.COMPUTING, "micro_batch": 0, "commits": 5, "state": "S"}
    return Reading(worker=worker, still_s=still_s, **{**usual, **other})


def told(digest: Digest, *readings: Reading) -> list[Reading]:
    return digest.news(readings)


def test_who_moves_is_told_once_in_a_generation_and_waits_for_nobody():
    digest = Digest(FLOOR_S, STOPPED_S)
    (first,) = told(digest, seen(0.1, phase=Flying.REDUCING))
    assert (first.phase, first.still_s) == (Flying.IN_BODY, 0.0)
    for step in range(10):
        assert told(digest, seen(0.1, step=step, phase=Flying.REDUCING)) == []
    assert [one.generation for one in told(digest, seen(0.1, generation=2))] == [2]


def test_who_stands_still_is_told_as_seen_and_again_when_it_moves():
    digest = Digest(FLOOR_S, STOPPED_S)
    told(digest, seen())
    still = seen(0.45, phase=Flying.REDUCING)
    assert told(digest, still) == [still]
    (moves,) = told(digest, seen(0.0))
    assert moves.still_s == 0.0 and told(digest, seen(0.1)) == []


@pytest.mark.parametrize("other", [{"step": 6}, {"micro_batch": 1}, {"phase": Flying.REDUCING}, {"state": STOPPED}])
def test_who_stands_still_elsewhere_is_told_again(other):
    digest = Digest(FLOOR_S, STOPPED_S)
    told(digest, seen(0.6))
    assert told(digest, seen(0.6)) == []
    assert told(digest, seen(0.6, **other)) != []


def test_a_long_stand_is_told_ever_more_rarely():
    digest = Digest(FLOOR_S, STOPPED_S)
    times = [second for second in range(1, 1001) if told(digest, seen(float(second)))]
    assert times[:6] == [1, 2, 3, 4, 5, 7] and len(times) < 30
    gaps = [later / sooner for sooner, later in zip(times[5:], times[6:], strict=False)]
    assert max(gaps) < 1.5


def test_who_is_gone_is_forgotten():
    digest = Digest(FLOOR_S, STOPPED_S)
    told(digest, seen(worker="w0"), seen(worker="w1"))
    told(digest, seen(worker="w0"))
    assert [one.worker for one in told(digest, seen(worker="w0"), seen(worker="w1"))] == ["w1"]


def watch(ws: BareController, stalled: str, through_relay: bool) -> tuple[float, list[IncidentClass]]:
    """A worker hangs while the others wait for it: for how long, until it is fenced."""
    digests = {worker: Digest(FLOOR_S, STOPPED_S) for worker in ws.members}
    for tenth in range(1, 60):
        still_s = tenth / 10
        ws.now_s += 0.1
        for worker in ws.members:
            phase = Flying.COMPUTING if worker == stalled else Flying.REDUCING
            reading = ws.reading(worker, phase, still_s)
            news = tuple(digests[worker].news((reading,))) if through_relay else (reading,)
            ws.feed(ev.HostsHeard(nodes=(f"node-{worker}",), readings=news))
        if cmd.Fence in {type(command) for command in ws.tick(0.0)}:
            return still_s, [incident.kind for incident in ws.state.incidents]
    return float("inf"), []


def test_a_hang_is_seen_through_a_relay_a_quarter_later_at_most():
    direct_s, kinds = watch(trained(), "w1", through_relay=False)
    relayed_s, same_kinds = watch(trained(), "w1", through_relay=True)
    assert kinds == same_kinds == [IncidentClass.WORKER_HUNG]
    assert direct_s <= relayed_s <= 1.25 * direct_s + 0.1


def test_who_moves_is_no_victim_of_one_that_stands_still():
    """All load from the same slow disk: that some of them were seen to wait, a moment long, says nothing."""
    ws, digests = trained(), {}
    for worker in ws.members:
        digests[worker] = Digest(FLOOR_S, STOPPED_S)
        news = digests[worker].news((ws.reading(worker, Flying.REDUCING, 0.1),))
        ws.feed(ev.HostsHeard(nodes=(f"node-{worker}",), readings=tuple(news)))
    news = digests["w1"].news((ws.reading("w1", Flying.COMPUTING, 5.0),))
    ws.feed(ev.HostsHeard(nodes=("node-w1",), readings=tuple(news)))
    assert ws.tick(0.0) == ()


def test_a_told_reading_is_never_changed():
    digest = Digest(FLOOR_S, STOPPED_S)
    reading = seen(0.1, phase=Flying.REDUCING)
    before = replace(reading)
    told(digest, reading)
    assert reading == before
