"""What the stories of a report tell, and that they say what they leave out."""

from math import inf

import pytest

from elastic.report.content.chronicle import MOST, Chronicle
from elastic.report.content.model import Story
from elastic.report.content.words import duration
from tests.pure.report_lines import Scribe, a_long_day
from tests.pure.test_report import made, training


def texts(story: Story) -> list[str]:
    return [one.text for one in story.told]


def failures(scribe: Scribe) -> list[Story]:
    return [one for one in made(scribe.lines).incidents if one.is_failure]


def test_the_stories_of_a_large_group_are_whole_however_often_it_has_failed():
    """Each of a thousand tells that a reduction broke: far more lines, in all, than a report keeps."""
    names = [f"w{number}" for number in range(1000)]
    scribe = training(*names)
    for _ in range(25):
        scribe.steps(20, replicas=len(names))
        lost = names.pop()
        for survivor in names[1:]:  # of the first one `kill` tells it
            scribe.event("CollectiveBroken", worker=survivor, generation=scribe.generation, error="reset")
        scribe.kill(lost, names)
        scribe.form(names)
        scribe.steps(1, replicas=len(names))
    assert sum(line.get("event") == "CollectiveBroken" for line in scribe.lines) > MOST
    stories = failures(scribe)
    assert len(stories) == 25
    for number, story in enumerate(stories):
        told = texts(story)
        assert f"w{999 - number} is dead: its process is gone" in told, "what one alone says is not drowned"
        assert f"generation {number + 2} trains" in told
        broken = [text for text in told if text.startswith("a reduction broke on ")]
        assert len(broken) == 5 and broken[-1].endswith(f"(and {999 - number - 5} more lines like it)")


def test_of_a_long_story_the_beginning_and_the_end_are_told_and_how_much_is_between():
    scribe = training("w0", "w1")
    scribe.steps(30, replicas=2)
    scribe.kill("w1", ["w0"])
    for number in range(60):
        scribe.now_s += 2.0
        scribe.command("StartWorker", "the last one did not come", worker=f"w{number + 2}", gang=1, shard=0)
    scribe.form(["w0"])
    scribe.steps(1, replicas=1)
    (story,) = failures(scribe)
    told = texts(story)
    assert told[0].startswith("contact with w1 is lost") and told[-1] == "generation 2 trains"
    assert told.count("26 lines of the journal are left out here") == 1 and len(told) == 41, "of 66"
    moments = [one.at_s for one in story.told]
    assert moments == sorted(moments)


def test_what_is_not_kept_any_more_is_said_in_the_stories_that_lack_it():
    chronicle = Chronicle(most=3)
    for number in range(6):
        chronicle.add(10.0 * number, f"kind {number}", f"line {number}")
    lost = "earlier lines of the journal are not kept: a report has its newest 3"
    found = chronicle.excerpts([(0.0, 5.0), (15.0, 45.0), (35.0, inf)], began_s=0.0)
    assert [[(one.at_s, one.text) for one in told] for told in found] == [
        [(5.0, lost)],
        [(20.0, lost), (30.0, "line 3"), (40.0, "line 4")],
        [(40.0, "line 4"), (50.0, "line 5")],
    ]


@pytest.mark.parametrize("later_s", [1.5, -5.0], ids=["later", "by a clock that was set back"])
def test_what_is_said_again_at_another_time_is_told_again(later_s):
    chronicle = Chronicle()
    for number in range(8):
        chronicle.add(100.0, "a", f"line {number}")
    chronicle.add(100.0 + later_s, "a", "another")
    (told,) = chronicle.excerpts([(0.0, inf)], began_s=0.0)
    assert [one.text for one in told[-2:]] == ["line 4 (and 3 more lines like it)", "another"] and len(told) == 6


def test_the_story_of_a_fault_that_came_to_nothing_ends_with_it():
    """No step ends it, since nothing had stopped."""
    scribe = training("w0", "w1")
    scribe.steps(100, replicas=2)
    fault = {"kind": "bit_flip", "target": "leader", "at_s": None, "name": "f0"}
    scribe.event("FaultInjected", fault=fault, target="w0", at_s=scribe.now_s, proof="byte 7 is another")
    scribe.steps(100, replicas=2)
    scribe.kill("w1", ["w0"])
    scribe.form(["w0"])
    scribe.steps(2, replicas=1)
    (story,) = [one for one in made(scribe.lines).incidents if one.kind == "injected fault"]
    assert texts(story) == ["fault bit_flip was injected on purpose into w0: byte 7 is another"]


def test_the_sentence_about_failures_counts_those_that_are_not_listed():
    scribe = training("w0", "w1")
    for _ in range(410):
        scribe.steps(1, replicas=2)
        scribe.kill("w1", ["w0"])
        scribe.form(["w0", "w1"])
    scribe.steps(20, replicas=2)
    now = made(scribe.lines)
    listed_s = sum(one.cost_s for one in now.incidents)
    assert len(now.incidents) == 400 and all(one.is_failure for one in now.incidents), "failures come first"
    sentence = now.summaries["incidents"]
    assert sentence.startswith("410 failures, ") and f" {duration(listed_s)} in all" not in sentence


def test_of_many_workers_and_decisions_it_is_said_how_many_there_were():
    now = made(a_long_day(workers=100, step_s=600.0, failures=20))
    assert (now.paced, len(now.stragglers)) == (120, 24)
    assert now.summaries["stragglers"].endswith(" Of 120 workers the 24 slowest are listed.")
    scribe = training("w0", "w1")
    for number in range(250):
        scribe.interval("memory", f"every {number} s")
    now = made(scribe.lines)
    assert (now.decided, len(now.decisions), now.decisions[-1].reason) == (250, 200, "every 249 s")
