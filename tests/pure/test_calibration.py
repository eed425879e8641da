"""Times of a run, as its journal shows them."""

import json

from elastic.sim.calibration import fitted, lines_of


def test_the_journal_says_how_long_things_take():
    def report(began_s: float, took_s: float) -> dict[str, float]:
        return {"started_at_s": began_s, "committed_at_s": began_s + took_s}

    lines = [
        {"t": 0.0, "event": "RunStarted"},
        {"t": 0.0, "command": "StartWorker", "worker": "w0"},
        {"t": 1.0, "event": "WorkerPlaced", "worker": "w0"},
        {"t": 5.0, "event": "WorkerParked", "worker": "w0"},
        {"t": 5.0, "event": "WorkerParked", "worker": "nobody"},
        {"t": 5.0, "command": "Go"},
        {"t": 6.0, "command": "Form", "view": {"behind": [], "bootstrap": True}},
        {"t": 6.1, "event": "Formed", "worker": "w0"},
        {"t": 6.2, "command": "Go"},
        {"t": 7.0, "event": "StepStable", "report": report(6.0, 0.5)},
        {"t": 8.0, "event": "StepStable", "report": report(7.0, 0.7)},
        {"t": 9.0, "event": "FaultInjected", "at_s": 8.9},
        {"t": 9.05, "event": "WorkerDead"},
        {"t": 9.1, "command": "Freeze"},
        {"t": 9.15, "event": "FreezeAnswered"},
        {"t": 9.2, "event": "WorkerDead"},
        {"t": 9.2, "command": "Form", "view": {"behind": [1]}},
        {"t": 9.7, "command": "Go"},
        {"t": 9.8, "command": "Freeze"},
        {"t": 9.9, "command": "Form", "view": {"behind": [], "bootstrap": False}},
        {"t": 10.0, "event": "WorkerPlaced", "worker": "w1"},
    ]
    found = fitted(lines)
    values = {name: round(told["value"], 6) for section in found.values() for name, told in section.items()}
    assert values == {
        "step_s": 0.6,
        "place_s": 1.0,
        "loading_s": 4.0,
        "form_s": 0.2,
        "heal_s": 0.3,
        "freeze_s": 0.1,
        "detect_s": 0.2,
    }
    assert found["job"]["step_s"]["source"] == "the run's journal: median of 2"


def test_what_it_does_not_show_is_left_out():
    assert fitted([]) == {"job": {}, "times": {}}
    only_healed = fitted([{"t": 0.0, "command": "Form", "view": {"behind": [1]}}, {"t": 2.0, "command": "Go"}])
    assert only_healed["times"] == {"heal_s": {"value": 2.0, "source": "the run's journal: median of 1"}}


def struck(at_s: float, kind: str, target: str = "w0", duration_s: float = 0.0) -> dict[str, object]:
    fault = {"kind": kind, "duration_s": duration_s}
    return {"t": at_s, "event": "FaultInjected", "fault": fault, "target": target, "at_s": at_s}


def test_what_stops_nobody_is_no_measure_of_how_soon_a_failure_is_seen():
    freeze = {"t": 100.0, "command": "Freeze"}
    for kind in ("slow", "storage_errors", "bit_flip", "notice", "xid", "kill_monitor", "packets"):
        assert "detect_s" not in fitted([struck(1.0, kind), freeze])["times"], kind


def test_a_crash_and_a_hang_are_seen_apart():
    lines = [
        struck(1.0, "slow"),
        struck(2.0, "kill"),
        {"t": 2.5, "command": "Freeze"},
        struck(10.0, "stop"),
        {"t": 13.0, "command": "Freeze"},
        struck(20.0, "partition", duration_s=2.0),
        {"t": 30.0, "command": "Freeze"},
    ]
    found = fitted(lines)["times"]
    assert {name: told["value"] for name, told in found.items()} == {"detect_s": 0.5, "detect_hang_s": 3.0}


def test_loads_and_stalls_are_seen():
    report = {"started_at_s": 1.0, "committed_at_s": 2.0, "times": {"stall_s": 0.25}}
    lines = [
        {"t": 5.0, "command": "Restore", "workers": ["w0"]},
        {"t": 9.0, "event": "Restored", "worker": "w0"},
        {"t": 9.0, "event": "Restored", "worker": "w1"},
        {"t": 9.0, "event": "StepStable", "report": report},
        {"t": 9.0, "event": "StepStable"},
    ]
    found = fitted(lines)["times"]
    assert {name: told["value"] for name, told in found.items()} == {
        "load_s": 4.0,
        "save_stall_s": 0.25,
    }


def test_a_line_that_was_cut_is_none():
    line = {"t": 0.0, "event": "RunStarted"}
    assert list(lines_of([json.dumps(line), "3", '{"t": 1.0, "ev'])) == [line]
