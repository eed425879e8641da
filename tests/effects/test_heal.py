"""Effect. Healing: those behind end with the donors' bits, or as they were."""

import re
import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from elastic.control.striping import parts, pieces
from elastic.control.values import CommitId
from elastic.errors import DivergenceError
from elastic.train import tree
from elastic.train.gloo import FormingCancelledError
from elastic.train.heal import DonorsDifferError, exchange, heal
from elastic.train.landing import Landing
from elastic.train.tracked import Tracked
from tests.effects.helpers import LONG_S, MOMENT_S, Circle, Running, formed, in_threads

COMMIT = CommitId(incarnation=1, generation=1, attempt=1, step=5, lineage="abc")


class Odds:
    """State of the awkward kinds."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.state = {
            "empty": torch.zeros(0, 3),
            "scalar": torch.randn(()),
            "half": torch.randn(5).bfloat16(),
            "flags": torch.rand(4) > 0.5,
            "nan": torch.tensor([float("nan"), float("inf")]),
            "strided": torch.randn(4, 6).t(),
            3: ("tuple", [seed, float("inf"), None]),
        }

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


class Member:
    """A member's objects; those with another seed or another number of steps hold other bits."""

    def __init__(self, seed, steps):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1 / (seed + 1))
        self.odds = Odds(seed)
        self.tracked = Tracked()
        self.tracked.add({"model": self.model, "optimizer": self.optimizer, "odds": self.odds})
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(6, 3)).square().mean().backward()
            self.optimizer.step()

    @property
    def digests(self):
        return self.tracked.digests()


def current() -> Member:
    return Member(seed=0, steps=3)


def late() -> Member:
    """Has the same objects in another state."""
    return Member(seed=1, steps=2)


def fresh() -> Member:
    """Has never run a step: its optimizer holds no state."""
    return Member(seed=2, steps=0)


def handed_on(group, member):
    exchange(group, group.view, member.tracked, Landing())()


def shares(members, donors, behind):
    """Has the members exchange and install; returns their digests."""
    with formed(len(members), resume=COMMIT, donors=donors, behind=behind) as groups:
        in_threads(len(members), lambda rank: handed_on(groups[rank], members[rank]))
    return [member.digests for member in members]


def test_at_the_start_all_take_over_the_leaders_state():
    wanted = fresh().digests
    members = [fresh(), late(), current()]
    assert shares(members, donors=(0,), behind=(1, 2)) == [wanted] * 3


@pytest.mark.parametrize("behind", [late, fresh], ids=["a survivor", "a joiner"])
def test_one_that_is_behind_ends_with_the_donors_bits(behind):
    """And the donors keep theirs."""
    wanted, members = current().digests, [current(), current(), behind()]
    assert members[2].digests != wanted
    assert shares(members, donors=(0, 1), behind=(2,)) == [wanted] * 3


def test_several_receive_from_several_donors():
    wanted = current().digests
    members = [current(), current(), late(), fresh()]
    assert shares(members, donors=(0, 1), behind=(2, 3)) == [wanted] * 4


def test_the_state_is_striped_over_all_donors():
    """Each donor sends its part of the bytes, so that a copy takes less time the more donors there are."""
    members, sent = [current(), current(), current(), fresh()], {0: 0, 1: 0, 2: 0}
    flat = members[0].tracked.flatten()
    total = sum(tensor.nbytes for tensor in flat.tensors)
    with formed(4, resume=COMMIT, donors=(0, 1, 2), behind=(3,)) as groups:
        for rank in sent:
            count_sends(groups[rank], sent, rank)
        in_threads(4, lambda rank: handed_on(groups[rank], members[rank]))
    skeleton = 8 + len(flat.skeleton)
    assert sent == {0: total // 3 + skeleton, 1: 2 * total // 3 - total // 3, 2: total - 2 * total // 3}


def test_who_gives_and_who_takes_show_that_it_gets_on():
    members, seen = [current(), current(), fresh()], [0, 0, 0]

    def gets_on(rank):
        seen[rank] += 1

    with formed(3, resume=COMMIT, donors=(0, 1), behind=(2,)) as groups:
        turns = [partial(gets_on, rank) for rank in range(3)]
        in_threads(
            3, lambda rank: exchange(groups[rank], groups[rank].view, members[rank].tracked, Landing(), turns[rank])
        )
    tensors = len(members[0].tracked.flatten().tensors)
    assert min(seen) > 0 and seen[2] >= tensors


def test_a_donor_that_is_slow_to_give_heals_all_the_same(monkeypatch):
    wanted, members = current().digests, [current(), fresh()]
    with formed(2, resume=COMMIT, donors=(0,), behind=(1,)) as groups:
        send = groups[0].send

        def send_late(tensor, rank):
            time.sleep(0.2)
            return send(tensor, rank)

        monkeypatch.setattr(groups[0], "send", send_late)
        in_threads(2, lambda rank: handed_on(groups[rank], members[rank]))
    assert members[1].digests == wanted


def count_sends(group, sent, rank):
    send = group.send

    def counting(tensor, receiver):
        sent[rank] += tensor.nbytes
        return send(tensor, receiver)

    group.send = counting


def test_nothing_is_exchanged_when_nobody_is_behind():
    """Growth of nobody, e.g. after a survivor left: no byte is sent, and nothing needs a group."""
    view = Circle(1).next_view(resume=COMMIT, donors=(0,), behind=())
    exchange(None, view, current().tracked, Landing())()


def test_live_tensors_of_a_survivor_keep_their_identity():
    """The optimizer, the reducer and the user's own references go on with the same memory."""
    survivor = late()
    before = [(id(p), p.data_ptr()) for p in survivor.model.parameters()]
    shares([current(), survivor], donors=(0,), behind=(1,))
    assert [(id(p), p.data_ptr()) for p in survivor.model.parameters()] == before


@pytest.mark.parametrize("is_tied", [False, True])
def test_what_a_joiner_receives_lies_in_its_own_tensors_at_once(is_tied):
    """But for what another one shares its memory with, which is installed like all else."""
    members, seen = [current(), current(), fresh()], {}
    for member in members if is_tied else ():
        member.tracked.add({"tied": nn.ModuleDict({"layer": member.model[0]})})
    wanted, joiner = members[0].digests, members[2]
    before = [(id(p), p.data_ptr()) for p in joiner.model.parameters()]

    def act(rank):
        tracked = members[rank].tracked
        landing = Landing().over(tracked.lent()) if rank == 2 else Landing()
        install = exchange(groups[rank], groups[rank].view, tracked, landing)
        seen[rank] = tracked.digests()["model"]
        install()

    with formed(3, resume=COMMIT, donors=(0, 1), behind=(2,)) as groups:
        in_threads(3, act)
    assert (seen[2] == wanted["model"]) is not is_tied
    assert joiner.digests == wanted
    assert [(id(p), p.data_ptr()) for p in joiner.model.parameters()] == before


@pytest.mark.parametrize("sends", [0, 1, 4], ids=["at once", "after one tensor", "after some"])
def test_a_donor_that_dies_in_the_middle_leaves_the_receiver_as_it_was(sends):
    """Bit for bit: it may be the only one left that holds this step."""
    members = [current(), current(), late()]
    before = members[2].digests
    ids = [(id(p), p.data_ptr()) for p in members[2].model.parameters()]

    def act(rank):
        if rank == 1:
            die_after(groups[1], sends)
        with pytest.raises((RuntimeError, FormingCancelledError)):
            handed_on(groups[rank], members[rank])
        for group in groups:  # who fails says so, and all are frozen
            group.cut()

    with formed(3, resume=COMMIT, donors=(0, 1), behind=(2,)) as groups:
        in_threads(3, act)
    assert members[2].digests == before
    assert [(id(p), p.data_ptr()) for p in members[2].model.parameters()] == ids


def die_after(group, sends):
    send, done = group.send, []

    def dying(tensor, receiver):
        done.append(tensor)
        if len(done) > sends:
            group.cut()
            raise RuntimeError("this donor is dead")
        return send(tensor, receiver)

    group.send = dying


def test_a_member_that_dies_before_the_digests_are_compared_leaves_the_receiver_as_it_was():
    """What was received but not compared is not installed."""
    members = [current(), late()]
    before = members[1].digests

    def die(words):
        groups[0].cut()
        raise RuntimeError("this donor is dead")

    def act(rank):
        with pytest.raises(RuntimeError):
            handed_on(groups[rank], members[rank])

    with formed(2, resume=COMMIT, donors=(0,), behind=(1,)) as groups:
        groups[0].gather_words = die
        in_threads(2, act)
    assert members[1].digests == before


def test_nothing_is_installed_before_it_is_asked_for():
    """The exchange alone changes nothing; the installation is one local move under the link's lock."""
    members = [current(), late()]
    before = members[1].digests
    with formed(2, resume=COMMIT, donors=(0,), behind=(1,)) as groups:
        installs = in_threads(2, lambda r: exchange(groups[r], groups[r].view, members[r].tracked, Landing()))
        assert members[1].digests == before
    installs[1]()
    assert members[1].digests == members[0].digests


def flip(tensor):
    """One bit of the last byte."""
    flat = tensor.detach().view(-1).view(torch.uint8)
    flat[-1] ^= 1


def divergences(members, groups):
    """The sentence of the error on each rank, and that nobody's state was touched."""

    def act(rank):
        before = members[rank].digests
        with pytest.raises(DivergenceError) as caught:
            handed_on(groups[rank], members[rank])
        assert members[rank].digests == before
        return str(caught.value)

    return in_threads(len(members), act)


@pytest.mark.parametrize("name", ["model", "optimizer", "odds"])
def test_a_donor_with_a_flipped_bit_is_named(name):
    """Two donors should hold the same bits. One does not: nobody goes on, and the error says what and who."""
    members = [current(), current(), fresh()]
    tensors = {
        "model": members[1].model[0].weight,
        "optimizer": members[1].optimizer.state[members[1].model[0].weight]["exp_avg"],
        "odds": members[1].odds.state["scalar"],
    }
    flip(tensors[name])
    with formed(3, resume=COMMIT, donors=(0, 1), behind=(2,)) as groups:
        sentences = divergences(members, groups)
    assert len(set(sentences)) == 1
    assert re.search(rf"after healing, {name} on ranks \[1(, 2)?\] differs from rank 0", sentences[0]), sentences[0]


@pytest.mark.parametrize("donors", [(0, 1), (0, 1, 2)], ids=["no majority", "a majority"])
def test_donors_vote_on_donors_and_nobody_else_has_a_say(donors):
    """The receiver may hold what it has from the wrong one, and so make a false majority."""
    members = [*(current() for _ in donors), fresh()]
    flip(members[1].model[0].weight)

    def act(rank):
        with pytest.raises(DonorsDifferError) as caught:
            handed_on(groups[rank], members[rank])
        return caught.value.culprits

    with formed(len(members), resume=COMMIT, donors=donors, behind=(len(donors),)) as groups:
        assert set(in_threads(len(members), act)) == {("w1",) if len(donors) > 2 else ()}


def test_a_scalar_that_differs_between_donors_is_found():
    """A learning rate is part of the state as well."""
    members = [current(), current(), fresh()]
    members[1].optimizer.param_groups[0]["lr"] *= 2
    with formed(3, resume=COMMIT, donors=(0, 1), behind=(2,)) as groups:
        assert "optimizer on ranks [1]" in divergences(members, groups)[0]


def test_a_bit_flipped_on_the_way_is_found():
    """Also when there is a single donor, whose own state is right."""
    members = [current(), fresh()]
    with formed(2, resume=COMMIT, donors=(0,), behind=(1,)) as groups:
        corrupt_messages(groups[1])
        assert "on ranks [1] differs from rank 0" in divergences(members, groups)[0]


def corrupt_messages(group):
    recv = group.recv

    def corrupting(tensor, donor):
        work = recv(tensor, donor)
        if tensor.dtype != torch.uint8 or tensor.numel() != 48:  # of the first layer's weight, or its moments
            return work
        work.wait()
        flip(tensor)
        return SimpleNamespace(wait=lambda timeout: True, is_completed=lambda: True)

    group.recv = corrupting


@pytest.mark.parametrize("culprit", range(4))
def test_wherever_a_bit_is_flipped_that_is_handed_on_it_is_found_and_all_say_who(culprit):
    """Of four donors each sums half, and the tensor whose bit is flipped is given by the one that is to blame."""
    members = [*(current() for _ in range(4)), fresh()]
    flat = members[culprit].tracked.flatten().tensors
    tensors = parts(pieces([tensor.nbytes for tensor in flat], 4), 4)[culprit]
    flip(next(flat[at] for at in reversed(tensors) if flat[at].is_contiguous()))

    def act(rank):
        with pytest.raises(DonorsDifferError) as caught:
            handed_on(groups[rank], members[rank])
        return caught.value.culprits

    with formed(5, resume=COMMIT, donors=(0, 1, 2, 3), behind=(4,)) as groups:
        assert set(in_threads(5, act)) == {(f"w{culprit}",)}


def test_where_donors_are_several_none_of_them_reads_all_of_the_state(monkeypatch):
    members, read, summed = [*(current() for _ in range(4)), fresh()], set(), tree.summed

    def noting(tensor):
        read.add(tensor.data_ptr())
        return summed(tensor)

    with formed(5, resume=COMMIT, donors=(0, 1, 2, 3), behind=(4,)) as groups, monkeypatch.context() as patch:
        patch.setattr(tree, "summed", noting)
        installs = in_threads(5, lambda r: exchange(groups[r], groups[r].view, members[r].tracked, Landing()))
    for member in members[:4]:
        held = {tensor.data_ptr() for tensor in member.tracked.flatten().tensors if tensor.is_contiguous()}
        assert read & held
        assert held - read
    installs[4]()
    assert members[4].digests == members[0].digests


def test_a_replica_that_was_not_to_be_healed_is_compared_too():
    """One that holds the commit but gives nothing is no exception."""
    members = [current(), current(), fresh()]
    flip(members[1].model[2].bias)
    with formed(3, resume=COMMIT, donors=(0,), behind=(2,)) as groups:
        assert "model on ranks [1] differs" in divergences(members, groups)[0]


def test_what_travels_is_the_tree_and_nothing_else():
    """The received tree has the donor's digest, whatever awkward kinds it holds."""
    flat = current().tracked.flatten()
    again = tree.flatten(tree.unflatten(flat.skeleton, [t.clone() for t in flat.tensors]))
    assert tree.digest(again) == tree.digest(flat)


def test_nobody_installs_before_all_workers_of_its_replica_can():
    """A donor of one shard dies when another shard has arrived: the replica stays as it was, in both halves."""
    view = SimpleNamespace(behind=(2, 3))
    with formed(1) as across, formed(2) as inside:
        groups = [[across[0], inside[rank]] for rank in range(2)]
        across[0].view = SimpleNamespace(behind=())  # whatever was to arrive here has

        def receive(rank):
            return heal(groups[rank], view, None, None, LONG_S)

        early = Running(lambda: receive(0))
        time.sleep(MOMENT_S)
        assert not early.is_over
        assert callable(receive(1)) and callable(early.result())
        early = Running(lambda: receive(0))
        inside[1].cut()
        assert isinstance(early.error(), RuntimeError)


def test_whoever_waits_while_others_are_healed_is_as_patient_as_healing_is(monkeypatch):
    """A collective may not take that long at other times."""
    seen = []
    with formed(2, collective_timeout_s=0.2) as groups:

        def receive(rank):
            if rank:
                time.sleep(1.0)
            return heal(groups[:1] if not rank else groups[1:], view, None, None, LONG_S)

        def exchanged(group, *rest):
            seen.append(group.gather_words([group.rank]))
            return lambda: None

        view = SimpleNamespace(behind=(1,))
        monkeypatch.setattr("elastic.train.heal.exchange", exchanged)
        in_threads(2, receive)
        assert seen == [[[0], [1]]] * 2
        late = Running(lambda: groups[0].gather_words([0]))
        assert "Limits.collective_timeout_s=0.2" in str(late.error())
