"""Pure. What can be restored: whole, on the newest line, not quarantined; newest first, then nearest."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.checkpoint.catalog import Candidate, Ending, Holder, Start, candidates, find, in_parts, next_candidate
from elastic.checkpoint.manifest import Fork, Manifest
from elastic.checkpoint.source import Tier, Together, troubles_of
from elastic.checkpoint.store import MissingError, StoreError
from elastic.control.values import CommitId
from elastic.errors import RefusedError


class Place:
    def __init__(self, tier: Tier, where: str = "") -> None:
        self.tier, self.where = tier, where or tier.name

    def manifests(self, step=None):
        raise AssertionError("the catalog asks nobody")

    def read(self, key, begin, end):
        raise AssertionError("the catalog reads nothing")


MEMORY, DISK, PEER, FAR = (Place(tier) for tier in Tier)


def holder(place, step, shard=0, shards=1, lineage="a", made=(1, 1), **more) -> Holder:
    commit = CommitId(incarnation=made[0], generation=made[1], attempt=0, step=step, lineage=lineage)
    fields = {"run": "r", "layout": "", "skeleton": "{}", "entries": (), "nbytes": 64, "chunks": (7,)} | more
    return Holder(source=place, manifest=Manifest(commit=commit, shard=shard, shards=shards, **fields))


def steps(found, **more):
    return [one.commit.step for one in candidates(found, "r", **more)]


def test_c22_newest_comes_before_nearest():
    found = [holder(PEER, 5), holder(MEMORY, 5), holder(FAR, 10)]
    first, second = candidates(found, "r")
    assert (first.commit.step, second.commit.step) == (10, 5)
    assert [one.source for one in second.shards[0]] == [MEMORY, PEER]


@given(st.permutations([(MEMORY, 3, 0), (PEER, 3, 1), (FAR, 2, 0), (FAR, 2, 1), (DISK, 4, 1)]))
def test_only_whole_steps_count_and_the_order_of_answers_does_not(order):
    found = [holder(place, step, shard, 2) for place, step, shard in order]
    assert steps(found) == [3, 2]


def test_shards_of_different_lines_or_counts_never_mix():
    assert steps([holder(FAR, 3, 0, 2, lineage="a"), holder(FAR, 3, 1, 2, lineage="b")]) == []
    assert steps([holder(FAR, 3, 0, 2), holder(FAR, 3, 1, 3), holder(FAR, 3, 2, 3)]) == []
    assert steps([holder(FAR, 3, 0, 2), holder(FAR, 3, 1, 2, run="other")]) == []


def test_steps_of_which_shards_are_nowhere_are_told_newest_first():
    found = [holder(MEMORY, 4, 0, 3), holder(PEER, 4, 0, 3), holder(FAR, 3, 0, 2), holder(FAR, 3, 1, 2)]
    found += [holder(MEMORY, 7, 1, 2), holder(MEMORY, 6, 0, 2, run="other"), holder(MEMORY, 8, 0, 2, made=(1, 2))]
    void = Fork(incarnation=1, generation=3, step=7)
    told = in_parts(found, "r", forks=(void,))
    assert [sentence for _, sentence in told] == [
        "of step 7, shard 0 of 2 is nowhere",
        "of step 4, shard 1, 2 of 3 is nowhere",
    ]
    assert told[0][0].step == 7


def test_shards_staged_in_different_generations_are_one_state():
    (one,) = candidates([holder(FAR, 3, 0, 2, made=(1, 1)), holder(FAR, 3, 1, 2, made=(1, 2))], "r")
    assert one.commit.generation == 2


def test_what_a_fork_left_behind_is_not_restored():
    fork = Fork(incarnation=2, generation=1, step=4)
    found = [holder(FAR, 4), holder(FAR, 9), holder(FAR, 6, lineage="b", made=(2, 1))]
    assert steps(found, forks=(fork,)) == [6, 4]
    assert steps(found) == [9, 6, 4]
    assert steps([*found[:2], holder(FAR, 6, lineage="b", made=(2, 1), forks=(fork,))]) == [6, 4], "named by a manifest"


def test_the_newer_line_comes_first_at_one_step():
    first, _ = candidates([holder(MEMORY, 6, lineage="a"), holder(FAR, 6, lineage="b", made=(2, 1))], "r")
    assert first.commit.lineage == "b"


def test_c06_what_is_quarantined_is_not_restored_and_made_anew_it_is():
    bad = holder(FAR, 9)
    assert steps([holder(FAR, 4), bad], quarantined=[bad.manifest.commit]) == [4]
    assert steps([holder(FAR, 4), bad, holder(FAR, 9, made=(2, 1))], quarantined=[bad.manifest.commit]) == [9, 4]


@pytest.mark.parametrize(
    ("places", "right"),
    [((MEMORY, FAR), FAR), ((MEMORY, PEER, PEER), PEER), ((MEMORY, MEMORY, FAR), MEMORY)],
    ids=["the farther", "most", "most, though near"],
)
def test_holders_that_disagree_on_sums_never_mix(places, right):
    found = [holder(place, 3, chunks=(1,) if place is right else (2,)) for place in places]
    (one,) = candidates(found, "r")
    assert {held.source for held in one.shards[0]} == {right}
    assert {held.source for held in one.outvoted} == set(places) - {right}


def test_a_commit_that_nobody_holds_is_refused():
    those = candidates([holder(FAR, 4)], "r")
    assert find(those, those[0].commit) is those[0]
    with pytest.raises(RefusedError, match=r"step 5 cannot be read here.*; n1: no answer"):
        find(those, replace(those[0].commit, step=5), silent=["n1: no answer"])


def chosen(choice) -> int | None:
    return choice.candidate.commit.step if choice.candidate else None


def test_c06_a_step_that_fails_again_and_again_is_left_behind():
    """A run that restores and fails, for ever, comes to each step at most `tries` times, and then to an end."""
    those: tuple[Candidate, ...] = candidates([holder(FAR, step) for step in (3, 6, 9)], "r")
    history: list[Start] = []
    order = []
    for _ in range(20):
        choice = next_candidate(those, history, tries=2)
        if choice.candidate is None:
            break
        order.append(chosen(choice))
        history.append(Start(step=order[-1], lineage="a", ending=Ending.FAILED))
    assert order == [9, 9, 6, 6, 3, 3]
    assert choice.bad == ((9, "a"), (6, "a"), (3, "a"))
    assert choice.reason == "all 3 whole steps were tried 2 times in vain"


@given(st.lists(st.tuples(st.sampled_from((3, 6, 9)), st.sampled_from(list(Ending))), max_size=12), st.integers(1, 3))
def test_c06_the_newest_that_is_not_to_blame_is_taken(past, tries):
    those = candidates([holder(FAR, step) for step in (3, 6, 9)], "r")
    history = [Start(step=step, lineage="a", ending=ending) for step, ending in past]
    vain = {s: sum(1 for step, end in past if step == s and end in (Ending.FAILED, Ending.REFUSED)) for s in (3, 6, 9)}
    allowed = [step for step in (9, 6, 3) if vain[step] < tries]
    assert chosen(next_candidate(those, history, tries)) == (allowed[0] if allowed else None)


def test_lost_workers_condemn_no_checkpoint():
    those = candidates([holder(FAR, 9)], "r")
    history = [Start(step=9, lineage="a", ending=Ending.LOST)] * 9
    assert chosen(next_candidate(those, history)) == 9
    assert next_candidate((), ()).reason == "no step is whole"


def test_a_candidate_has_the_manifest_of_each_shard():
    (found,) = candidates([holder(FAR, 3, shard=1, shards=2), holder(PEER, 3, shard=0, shards=2)], "r")
    assert [one.shard for one in found.manifests] == [0, 1]


class Shelf(Place):
    def __init__(self, tier: Tier, held: dict[int, bytes]) -> None:
        super().__init__(tier)
        self.held = held

    def manifests(self, step=None):
        return [holder(self, one).manifest for one in sorted(self.held, reverse=True) if step in (None, one)]

    def read(self, key, begin, end):
        if key.commit.step not in self.held:
            raise MissingError("it is not here")
        return self.held[key.commit.step][begin:end]


def test_sources_together_give_what_any_of_them_has():
    near, far = Shelf(Tier.MEMORY, {3: b"near"}), Shelf(Tier.PERSISTENT, {3: b"far", 5: b"5"})
    both = Together([near, far])
    assert (both.tier, both.where) == (near.tier, near.where)
    assert [one.commit.step for one in both.manifests()] == [5, 3, 3]
    assert [one.commit.step for one in both.manifests(5)] == [5]
    assert [both.read(holder(FAR, step).manifest.key, 0, 4) for step in (3, 5)] == [b"near", b"5"]
    with pytest.raises(MissingError):
        both.read(holder(FAR, 4).manifest.key, 0, 4)


class Broken(Place):
    """A disk that fails."""

    def manifests(self, step=None):
        raise StoreError("input/output error")

    def read(self, key, begin, end):
        raise StoreError("input/output error")


def test_a_source_that_fails_hides_nothing_of_those_beside_it():
    broken, far = Broken(Tier.DISK), Shelf(Tier.PERSISTENT, {5: b"5"})
    assert Together([broken, far]).read(holder(FAR, 5).manifest.key, 0, 1) == b"5"
    with pytest.raises(StoreError, match="input/output"):  # not that it is missing
        Together([far, broken]).read(holder(FAR, 4).manifest.key, 0, 1)
    assert [one.commit.step for one in Together([far, broken]).manifests()] == [5]
    with pytest.raises(StoreError, match="input/output"):
        Together([broken, far]).manifests()


def test_what_sources_could_not_use_is_told_of_those_that_know():
    far = Place(Tier.PERSISTENT)
    far.troubles = ["the COMMIT of step 3 cannot be used"]
    assert troubles_of([MEMORY, far]) == ["the COMMIT of step 3 cannot be used"]
