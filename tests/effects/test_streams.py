"""Effect. Iterable datasets: read ahead, left by one reader and taken up by another, refused where that cannot be."""

import random

import pytest
import torch

from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.errors import NotStatefulError, SettingError, StateError
from elastic.train import tree
from elastic.train.heal import install
from elastic.train.streams import Table, make_streams
from elastic.train.tracked import Tracked
from tests.effects.helpers import formed, in_threads
from tests.effects.idiom import Training, raised

LENGTHS = (5, 4, 7)


class Counting:
    """A part of the data: (stream, epoch, position, drawn), with its place as state."""

    def __init__(self, index, epoch, length):
        self.index, self.epoch, self.length = index, epoch, length
        self.position = 0

    def __iter__(self):
        while self.position < self.length:
            self.position += 1
            yield self.index, self.epoch, self.position - 1, random.random()

    def state_dict(self):
        return {"position": self.position, "seen": torch.arange(self.position)}

    def load_state_dict(self, state):
        assert len(state["seen"]) == state["position"]
        self.position = state["position"]


class Parts:
    """Streams of LENGTHS; remembers which were opened."""

    def __init__(self, lengths=LENGTHS, kind=Counting):
        self.lengths, self.kind = lengths, kind
        self.opened = []

    def stream(self, index, count, epoch):
        assert count == len(self.lengths)
        self.opened.append((index, epoch))
        return self.kind(index, epoch, self.lengths[index])


def streams_of(dataset, seed=2, **more):
    sizes = {"batch_size": 6, "micro_batch_size": 2, "streams": 3, "collate": list, **more}
    return make_streams(dataset, seed=seed, **sizes)


class Fellow:
    """A replica's data, without the rest of it."""

    def __init__(self, dataset=None, **more):
        self.dataset = dataset or Parts()
        self.streams = streams_of(self.dataset, **more)
        self.streams.open()

    def read(self, numbers):
        step = self.streams.plan.cut(0, 1)
        mine = [step[number] for number in numbers if number < len(step)]
        return mine, [self.streams.take(one, None, lambda: iter(())) for one in mine]


def committed_step(*fellows):
    """Every fellow reads its part of a step, all tell, all commit; returns what was read."""
    whole = fellows[0].streams.plan.cut(0, 1)
    read, offers = [], []
    for rank, fellow in enumerate(fellows):
        mine, samples = fellow.read(range(rank, len(whole), len(fellows)))
        read += samples
        offers.append(fellow.streams.offer(mine))
    for fellow in fellows:
        fellow.streams.receive(whole, offers)
        fellow.streams.commit()
        assert not fellow.streams._read, "it grows with every step"
    assert len({tree.digest(tree.flatten(one.streams.tracked["elastic.streams"].state_dict())) for one in fellows}) == 1
    return sorted(samples for one in read for samples in one)


def alone(steps):
    fellow = Fellow()
    return [committed_step(fellow) for _ in range(steps)]


EPOCH = {(stream, position) for stream, length in enumerate(LENGTHS) for position in range(length)}


def test_one_reader_reads_epochs_exactly():
    steps = alone(8)
    assert [len(step) for step in steps] == [6, 6, 3, 1] * 2
    for epoch, part in enumerate((steps[:4], steps[4:])):
        places = [(stream, position) for step in part for stream, told, position, _ in step if told == epoch]
        assert len(places) == len(EPOCH) and set(places) == EPOCH
    drawn = [value for step in steps for *_, value in step]
    assert len(set(drawn)) == len(drawn)


def test_who_reads_does_not_matter():
    """Not for the samples, and not for what is drawn beside them; the group changes with every step."""
    wanted, table = alone(8), None
    for step, size in enumerate([1, 3, 2, 2, 1, 3, 3, 2]):
        group = [Fellow() for _ in range(size)]
        for fellow in group:
            random.seed(id(fellow))
            if table is not None:
                fellow.streams.tracked["elastic.streams"].load_state_dict(table)
        assert committed_step(*group) == wanted[step]
        table = group[-1].streams.tracked["elastic.streams"].state_dict()


def test_a_stream_that_stays_with_its_reader_is_opened_once_an_epoch():
    fellow = Fellow()
    for _ in range(4):
        committed_step(fellow)
    assert sorted(fellow.dataset.opened) == [(stream, epoch) for stream in range(3) for epoch in (0, 1)]


def test_what_others_read_on_is_held_by_nobody_else():
    """Each of two looks at all streams when the run begins, and reads its own from then on."""
    fellows = [Fellow(), Fellow()]
    for _ in range(2):
        committed_step(*fellows)
    held = [[bool(reader._ahead) for reader in fellow.streams._readers] for fellow in fellows]
    assert held == [[True, False, True], [False, True, False]]
    assert [reader._stream is not None for reader in fellows[1].streams._readers] == held[1]


def test_what_was_not_committed_is_read_again():
    """An attempt that failed, in the middle and at its end; and a second phase."""
    wanted, fellow = alone(2), Fellow()
    whole = fellow.streams.plan.cut(0, 1)
    _, first = fellow.read([0, 1])
    mine, again = fellow.read([0, 1, 2])
    assert again[:2] == first
    fellow.streams.receive(whole, [fellow.streams.offer(mine)])
    assert committed_step(fellow) == wanted[0]
    assert committed_step(fellow) == wanted[1]


class Failing(Counting):
    """Raises while it is told to; as a generator, it has ended then."""

    is_out_of_reach = False

    def __iter__(self):
        if Failing.is_out_of_reach:
            raise OSError("the store is out of reach")
        yield from super().__iter__()


def test_a_stream_that_could_not_be_opened_anew_is_where_nobody_knows():
    """It stood one micro-batch ahead, by an attempt that failed; others read that, and then it is dealt here again."""
    wanted = alone(4)
    here, there = Fellow(Parts(kind=Failing)), Fellow()
    assert committed_step(here, there) == wanted[0]
    here.read([0, 1, 2])
    Failing.is_out_of_reach = True
    try:
        for number in range(3):
            with pytest.raises(OSError, match="out of reach"):
                here.read([number])
    finally:
        Failing.is_out_of_reach = False
    whole = there.streams.plan.cut(0, 1)
    mine, read = there.read(range(len(whole)))
    offers = [here.streams.offer([]), there.streams.offer(mine)]
    for fellow in (here, there):
        fellow.streams.receive(whole, offers)
        fellow.streams.commit()
    assert sorted(samples for one in read for samples in one) == wanted[1]
    assert [committed_step(here) for _ in range(2)] == wanted[2:]


def test_a_step_that_is_skipped_consumes_what_nobody_has_read():
    wanted, fellow = alone(2), Fellow()
    whole = fellow.streams.plan.cut(0, 1)
    fellow.streams.receive(whole, [fellow.streams.offer(whole)])
    fellow.streams.commit()
    assert committed_step(fellow) == wanted[1]


def test_the_table_survives_a_transfer():
    fellow = Fellow()
    committed_step(fellow)
    table = fellow.streams.tracked["elastic.streams"]
    flat = tree.flatten(table.state_dict())
    other = Table(3, 2)
    other.load_state_dict(tree.unflatten(flat.skeleton, [tensor.clone() for tensor in flat.tensors]))
    assert tree.digest(tree.flatten(other.state_dict())) == tree.digest(flat)


def test_opening_is_no_part_of_the_state():
    """Who has opened its streams and who has not hold the same state: nothing is committed yet."""
    state = Fellow().streams.tracked["elastic.streams"].state_dict()
    assert state == {"streams": 3, "micro_batch_size": 2, "places": [], "states": []}


def test_a_tree_in_one_piece_is_the_same_tree():
    state = {"a": [1, 2.5, None, "x"], 3: (torch.arange(6).view(2, 3), torch.tensor(1.5, dtype=torch.float64)), "e": {}}
    state["none"] = torch.empty(0, 4, dtype=torch.bool)
    found = tree.unpack(tree.pack(state))
    assert tree.flatten(found).skeleton == tree.flatten(state).skeleton
    assert tree.digest(tree.flatten(found)) == tree.digest(tree.flatten(state))


def test_bytes_of_unequal_lengths_are_gathered_in_rank_order():
    parts = [b"", b"a\0b\0", b"c" * 1000]
    with formed(3) as groups:
        assert in_threads(3, lambda rank: groups[rank].gather_bytes(parts[rank])) == [parts] * 3
        assert in_threads(3, lambda rank: groups[rank].gather_bytes(b"")) == [[b""] * 3] * 3


# --- a later life ---


def taken_over(stored, streams, **sizes):
    """Streams that a checkpoint of `stored` is restored into."""
    fellow = Fellow(Parts((5,) * streams), streams=streams, **{"batch_size": 2, **sizes})
    flat, tracked = tree.flatten({"elastic.streams": stored}), Tracked()
    tracked.add(fellow.streams.tracked)
    install(tracked, flat.skeleton, flat.tensors, {"elastic.streams": tree.digest(tree.flatten(stored))})
    return fellow


def stored_by(streams, is_old=False):
    fellow = Fellow(Parts((5,) * streams), streams=streams, batch_size=2)
    committed_step(fellow)
    state = fellow.streams.tracked["elastic.streams"].state_dict()
    return {name: state[name] for name in ("places", "states")} if is_old else state


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("streams", [8, 2])
def test_a_life_with_another_number_of_streams_is_refused(streams, is_old):
    """More of them would never be read; fewer leave some behind."""
    with pytest.raises(SettingError) as raised:
        taken_over(stored_by(4, is_old), streams)
    assert f"with streams=4, micro_batch_size=2, and this run has streams={streams}, micro" in str(raised.value)
    assert "give session.streams(streams=4, micro_batch_size=2)" in str(raised.value)


def test_a_life_with_another_micro_batch_is_refused():
    with pytest.raises(SettingError, match="micro_batch_size=2, and this run has streams=4, micro_batch_size=1:"):
        taken_over(stored_by(4), 4, micro_batch_size=1)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_life_with_the_same_streams_goes_on(is_old):
    """The state of an older version is held as it came, until a step is committed."""
    fellow = taken_over(stored_by(4, is_old), 4)
    assert [(stream, position) for stream, _, position, _ in committed_step(fellow)] == [(1, 0), (1, 1)]
    state = fellow.streams.tracked["elastic.streams"].state_dict()
    assert (state["streams"], state["micro_batch_size"], len(state["places"])) == (4, 2, 4)


# --- what cannot be ---


class Forgetful(Counting):
    def load_state_dict(self, state):
        self.position = max(0, state["position"] - 1)


def test_a_state_that_does_not_lead_back_is_found_out():
    fellow, other = Fellow(), Fellow(Parts(kind=Forgetful))
    for _ in range(2):
        committed_step(fellow)
    other.streams.tracked["elastic.streams"].load_state_dict(fellow.streams.tracked["elastic.streams"].state_dict())
    with pytest.raises(StateError, match="stream 0 of 3 of Parts gave 2 samples after load_state_dict, and 1 before"):
        other.read([0, 1, 2])


def test_a_stream_without_samples_is_refused():
    with pytest.raises(SettingError, match=r"stream 1 of 2 of Parts has no samples in epoch 0: lower"):
        Fellow(Parts((3, 0)), streams=2, batch_size=2)


def test_a_stream_without_state_is_refused():
    with pytest.raises(NotStatefulError, match="is a list_iterator: it needs __iter__, state_dict"):
        Fellow(Parts(kind=lambda index, epoch, length: iter([1])))


class Sharded:
    """Divides itself as iterable datasets of Hugging Face do."""

    def __init__(self, index=0):
        self.index = index

    def shard(self, num_shards, index):
        assert num_shards == len(LENGTHS)
        return Sharded(index)

    def set_epoch(self, epoch):
        self.part = Counting(self.index, epoch, LENGTHS[self.index])

    def __iter__(self):
        return iter(self.part)

    def state_dict(self):
        return self.part.state_dict()

    def load_state_dict(self, state):
        self.part.load_state_dict(state)


def test_a_dataset_that_divides_itself_by_shards_is_read_as_one_with_streams():
    fellows = [Fellow(Sharded()) for _ in range(2)]
    assert [committed_step(*fellows) for _ in range(8)] == alone(8)


def test_a_dataset_of_hugging_face_goes_on_where_another_reader_has_left_it(tmp_path):
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    for part in range(3):
        lines = "".join(f"{part}-{line}\n" for line in range(LENGTHS[part]))
        (tmp_path / f"{part}.txt").write_text(lines)
    files = sorted(map(str, tmp_path.glob("*.txt")))

    def fellow():
        found = datasets.load_dataset("text", data_files=files, split="train", streaming=True, cache_dir=str(tmp_path))
        return Fellow(found, collate=lambda rows: [row["text"] for row in rows])

    first, second = fellow(), fellow()
    read = [*committed_step(first, second), *committed_step(second, first)]
    late = fellow()
    state = first.streams.tracked["elastic.streams"].state_dict()
    late.streams.tracked["elastic.streams"].load_state_dict(state)
    while len(read) < sum(LENGTHS):
        read += committed_step(late)
    assert sorted(read) == sorted(f"{part}-{line}" for part in range(3) for line in range(LENGTHS[part]))


def test_a_plain_iterable_is_refused_with_the_reason():
    with pytest.raises(SettingError, match="neither be divided nor taken up again where it was left"):
        streams_of([1, 2, 3])


# --- in a session ---


def training_on(lengths, hook=lambda step: None, steps=6):
    def train_fn(session):
        training = Training(session)
        training.batches = session.streams(Parts(lengths), batch_size=6, micro_batch_size=2)
        consumed = []
        for step in training.steps(steps):
            with step:
                seen = []
                for batch in step:
                    seen += list(zip(*(part.tolist() for part in batch[:3]), strict=True))
                    x = torch.stack(batch[:3], 1).double()
                    step.backward(training.model(x).square().mean() * torch.rand(()))
                hook(step)
                training.apply(step)
            if step.is_committed:
                consumed.append((step.epoch, step.samples, seen))
        return training.parameters, consumed

    return train_fn


def test_a_generation_that_breaks_in_the_middle_changes_nothing(tmp_path):
    from tests.effects.solo import Solo

    ends = []
    for place in ("clean", "broken"):
        (tmp_path / place).mkdir()
        solo, broken = Solo(tmp_path / place), []

        def break_once(step, solo=solo, broken=broken, place=place):
            if place == "broken" and step.index in (1, 3) and step.index not in broken:
                broken.append(step.index)
                solo.break_generation()

        ended = solo.run(training_on(LENGTHS, break_once))
        assert isinstance(ended.last, ev.TrainFnReturned), ended.last
        assert broken == ([1, 3] if place == "broken" else [])
        ends.append(ended.value)
    assert [(epoch, samples) for epoch, samples, _ in ends[0][1]] == [(0, 6), (0, 6), (0, 3), (0, 1), (1, 6), (1, 6)]
    assert ends[0][1] == ends[1][1]
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=0, atol=0)


def test_a_step_that_is_skipped_in_a_session_consumes_its_samples(solo):
    def train_fn(session):
        training = Training(session)
        training.batches = session.streams(Parts(), batch_size=6, micro_batch_size=2)
        seen = []
        for step in training.steps(2):
            with step:
                if step.index == 0:
                    step.skip("a test")
                    continue
                for batch in step:
                    seen += batch[2].tolist()
                    step.backward(training.model(torch.stack(batch[:3], 1).double()).square().mean())
                training.apply(step)
        return seen

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert sorted(ended.value) == [2, 2, 2, 3, 3, 3]


def test_while_a_step_that_is_left_out_is_read_nobody_takes_that_for_waiting(solo):
    """Others wait for it; it goes back to waiting with them."""
    read, talked = [], []

    class Noting(Counting):
        def __iter__(self):
            for sample in super().__iter__():
                read.append((solo.page._place[1], solo.page._phase))
                yield sample

    def train_fn(session):
        training = Training(session)
        training.batches = session.streams(Parts(kind=Noting), batch_size=6, micro_batch_size=2)
        receive = training.batches.receive

        def received(*told):
            talked.append(solo.page._phase)
            receive(*told)

        training.batches.receive = received
        for step in training.steps(3):
            with step:
                for batch in step:
                    step.backward(training.model(torch.stack(batch[:3], 1).double()).square().mean())
                training.apply(step)

    solo.left_out = (1,)
    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert [report.commit.step for report in ended.reports if report.skipped] == [1]
    assert {phase for step, phase in read if step == 1} == {Flying.FETCHING}
    assert talked == [Flying.REDUCING] * 3


def test_an_iterable_given_to_batches_is_sent_to_streams(solo):
    def train_fn(session):
        session.batches(iter([1]), batch_size=1)

    assert "only as session.streams" in raised(solo.run(train_fn), "SettingError")
