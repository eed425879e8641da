"""Effect. Commands are carried out in order, and one that hangs holds up nobody but its own worker."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from elastic.actors import carrier as module
from elastic.actors.carrier import Carrier, Errand
from elastic.actors.errands import Errands
from elastic.actors.tiers import NoTiers
from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.values import NOTHING_COMMITTED, Member, View
from elastic.settings import Limits

LONG_S = 20.0


class Log:
    """What was done, in order; waits until something is."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self._changed = threading.Condition()

    def add(self, what: Any) -> None:
        with self._changed:
            self.done.append(what)
            self._changed.notify_all()

    def wait_for(self, *what: Any) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(what) <= set(self.done), LONG_S), f"{what} of {self.done}"


@dataclass
class Bench:
    """A carrier, what it did, and a lock that hangs whoever wants it."""

    log: Log = field(default_factory=Log)
    gate: threading.Event = field(default_factory=threading.Event)
    errors: list[Exception] = field(default_factory=list)
    carrier: Carrier = field(init=False)

    def __post_init__(self) -> None:
        self.carrier = Carrier(self.errors.append)

    def does(self, what: str, *keys: str, **how: Any) -> Errand:
        return Errand(act=lambda: self.log.add(what), keys=keys, **{"within_s": LONG_S, **how})

    def hangs(self, what: str, *keys: str, **how: Any) -> Errand:
        def act() -> None:
            self.log.add(f"{what} hangs")
            self.gate.wait(LONG_S)
            self.log.add(what)

        return Errand(act=act, keys=keys, **{"within_s": LONG_S, **how})


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.gate.set()
    bench.carrier.close()


def test_as_long_as_nothing_hangs_all_is_done_in_order(bench: Bench) -> None:
    wanted = [f"{number}" for number in range(300)]
    bench.carrier.hand_over(bench.does(one, f"w{int(one) % 7}") for one in wanted[:200])
    bench.carrier.hand_over(bench.does(one) for one in wanted[200:])
    bench.carrier.close()
    assert bench.log.done == wanted


def test_one_that_hangs_holds_up_its_own_worker_alone(bench: Bench) -> None:
    bench.carrier.hand_over(
        [bench.hangs("start w1", "w1"), bench.does("freeze w1", "w1"), bench.does("freeze w2", "w2")]
    )
    bench.log.wait_for("freeze w2")
    bench.carrier.hand_over([bench.does("dismiss w1", "w1"), bench.does("form w2", "w2")])
    bench.log.wait_for("form w2")
    assert not {"freeze w1", "dismiss w1"} & set(bench.log.done)
    bench.gate.set()
    bench.log.wait_for("dismiss w1")
    mine = [one for one in bench.log.done if one.endswith("w1")]
    assert mine == ["start w1", "freeze w1", "dismiss w1"]


def test_several_may_hang_at_once(bench: Bench) -> None:
    bench.carrier.hand_over(bench.hangs(f"start w{number}", f"w{number}") for number in range(5))
    bench.log.wait_for(*(f"start w{number} hangs" for number in range(5)))
    bench.carrier.hand_over([bench.does("freeze", "w9")])
    bench.log.wait_for("freeze")
    bench.gate.set()
    bench.log.wait_for(*(f"start w{number}" for number in range(5)))


def test_where_too_many_hang_the_others_wait_until_one_returns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    bench.carrier.hand_over([*(bench.hangs(f"{number}") for number in range(2)), bench.does("freeze")])
    bench.log.wait_for("0 hangs", "1 hangs")
    time.sleep(4 * module._PATIENCE_S)
    assert "freeze" not in bench.log.done
    bench.gate.set()
    bench.log.wait_for("freeze")


def test_what_is_slow_gives_way(bench: Bench) -> None:
    first = bench.hangs("first")
    bench.carrier.hand_over([first])
    bench.log.wait_for("first hangs")
    starts = [bench.does(f"start {number}", is_slow=True) for number in range(3)]
    bench.carrier.hand_over([*starts, bench.does("fence")])
    bench.log.wait_for("start 2")
    assert bench.log.done.index("fence") < bench.log.done.index("start 0")


def test_what_comes_after_a_key_waits_for_it_and_holds_nobody_up(bench: Bench) -> None:
    bench.carrier.hand_over([bench.hangs("confirm", "reign"), bench.does("form", "w1", after=("reign",))])
    bench.carrier.hand_over([bench.does("fence", "w2")])
    bench.log.wait_for("fence")
    assert "form" not in bench.log.done
    bench.gate.set()
    bench.log.wait_for("form")
    assert bench.log.done.index("confirm") < bench.log.done.index("form")


def test_who_misses_the_deadline_is_told_of_once_and_undone(bench: Bench) -> None:
    log = bench.log
    late = bench.hangs("start", "w1", within_s=0.2, overdue=lambda: log.add("overdue"), late=lambda: log.add("undo"))
    bench.carrier.hand_over([late, bench.does("next", "w1")])
    log.wait_for("overdue")
    assert "undo" not in log.done
    time.sleep(0.2)
    bench.gate.set()
    log.wait_for("next")
    assert log.done == ["start hangs", "overdue", "start", "undo", "next"]


def test_who_is_in_time_is_not_undone(bench: Bench) -> None:
    log = bench.log
    bench.carrier.hand_over([bench.does("start", "w1", within_s=0.01, late=lambda: log.add("undo"))])
    bench.carrier.hand_over([bench.does("next", "w1")])
    log.wait_for("next")
    assert log.done == ["start", "next"]


def test_an_error_is_passed_on_and_nothing_is_begun_after_it(bench: Bench) -> None:
    def fail() -> None:
        raise OSError("no")

    failing = Errand(act=fail, keys=("reign",), within_s=LONG_S)
    bench.carrier.hand_over([failing, bench.does("form", "w1", after=("reign",)), bench.does("go")])
    bench.carrier.close()
    assert [str(error) for error in bench.errors] == ["no"] and bench.log.done == []


def test_the_end_does_not_wait_for_what_hangs(bench: Bench) -> None:
    bench.carrier.hand_over([bench.hangs("start", "w1"), bench.does("dismiss w1", "w1"), bench.does("finish w2", "w2")])
    bench.carrier.close()
    assert "finish w2" in bench.log.done and "dismiss w1" not in bench.log.done


# --- which command is what errand -------------------------------------------------------------------------------------


class Fleet:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.told.append((name, *arguments))


def errands(command: cmd.Command, emit: Callable[[ev.Event], None] = lambda event: None) -> tuple[Fleet, list[Errand]]:
    fleet = Fleet()
    return fleet, list(Errands(fleet, NoTiers(), Limits(place_timeout_s=7), emit).of(command))  # type: ignore[arg-type]


def test_every_worker_has_an_errand_of_its_own() -> None:
    fleet, found = errands(cmd.Freeze(workers=("w1", "w2"), generation=3, reason="a loss"))
    for errand in found:
        errand.act()
    assert fleet.told == [("freeze", "w1", 3), ("freeze", "w2", 3)]
    assert [errand.keys for errand in found] == [("w1",), ("w2",)]


def test_a_fence_waits_for_the_start_and_not_for_a_word_to_the_worker() -> None:
    _, (start,) = errands(cmd.StartWorker(worker="w1", reason="missing"))
    _, (freeze,) = errands(cmd.Freeze(workers=("w1",), generation=3, reason="a loss"))
    _, (fence,) = errands(cmd.Fence(worker="w1", reason="it hangs"))
    assert set(start.keys) > set(fence.keys) and set(start.keys) > set(freeze.keys)
    assert not set(fence.keys) & set(freeze.keys)


def test_members_are_told_of_a_generation_once_it_is_sure_who_leads() -> None:
    members = (Member("w0", "h", 1), Member("w1", "h", 2))
    told = {"run": "r", "incarnation": 1, "generation": 3, "resume": NOTHING_COMMITTED, "donors": (0,), "behind": (1,)}
    fleet, found = errands(cmd.Form(view=View(members=members, **told), reason="a loss"))
    for errand in found:
        errand.act()
    assert [line[:2] for line in fleet.told] == [("form", "w0"), ("form", "w1")]
    assert all(errand.after and not set(errand.after) & set(errand.keys) for errand in found)
    fleet, (again,) = errands(cmd.Form(view=View(members=members, **told), only=("w1",), reason="it was lost"))
    again.act()
    assert [line[:2] for line in fleet.told] == [("form", "w1")] and again.after, "whoever has heard it is left alone"


def test_a_start_that_hangs_is_a_death_and_is_taken_back_when_it_succeeds() -> None:
    told: list[ev.Event] = []
    fleet, (start,) = errands(cmd.StartWorker(worker="w1", gang=1, reason="missing"), told.append)
    assert start.within_s == 7 and start.is_slow
    start.overdue()
    (event,) = told
    assert isinstance(event, ev.WorkerDead) and event.worker == "w1"
    assert event.proof == "it was not started: the order (missing) was not given within Limits.place_timeout_s=7"
    start.late()
    assert fleet.told == [("dismiss", "w1")]


def test_what_is_the_drivers_own_is_no_errand() -> None:
    assert errands(cmd.EndRun(outcome=None, reason="over"))[1] == []  # type: ignore[arg-type]
