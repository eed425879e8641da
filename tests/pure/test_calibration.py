"""Times of a run, as its journal shows them."""

from elastic.sim.calibration import fitted


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
