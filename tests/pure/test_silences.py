"""Who has been silent for too long."""

from elastic.control.silences import Silences


def looked(silences: Silences[str], from_s: int, to_s: int) -> list[str]:
    found: list[str] = []
    for now_s in range(from_s, to_s):
        found += silences.longer_than(60.0, float(now_s))
    return found


def test_who_is_not_heard_for_longer_than_the_limit_is_named_and_others_are_not() -> None:
    silences: Silences[str] = Silences(0.0)
    silences.begin("a", 0.0)
    silences.begin("b", 0.0)
    assert looked(silences, 1, 50) == []
    silences.begin("b", 50.0)
    assert silences.longest_s(60.0) == 60.0
    assert looked(silences, 50, 62) == ["a"]
    silences.forget("a")
    assert silences.longest_s(60.0) == 10.0
    assert "a" not in silences and "b" in silences
    assert looked(silences, 62, 110) == []
    silences.clear()
    assert silences.longest_s(110.0) == 0.0
    assert looked(silences, 110, 300) == []


def test_time_in_which_nobody_listened_is_no_silence() -> None:
    silences: Silences[str] = Silences(0.0)
    silences.begin("a", 0.0)
    assert silences.longer_than(60.0, 1000.0) == []
    assert looked(silences, 1001, 1050) == []
    assert looked(silences, 1050, 1100) != []
