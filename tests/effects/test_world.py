"""Effect. WORLD is the current generation: what it offers, where it is refused, and what torch is relied on for."""

import contextlib
import inspect
import queue
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from elastic.control import events as ev
from elastic.errors import AttemptBroken, StepMisuseError
from elastic.train import gloo
from elastic.train.replica import Replica
from elastic.train.world import OPERATIONS, World, close_world, open_world
from tests.effects.helpers import ENDLESS_S, MOMENT_S, Circle, Running, eventually, formed, in_threads
from tests.effects.idiom import Training, assert_like_a_plain_loop, once, raised, trained


class Part:
    """One member's end, as far as its WORLD needs it; members of a test share a process, so none is torch's WORLD."""

    mute, inner, nccl, width, has_talked_on_gpu = "", None, None, 1, False

    def __init__(self, group):
        self.group, self.rank, self.replicas = group, group.rank, group.size
        self.errors = queue.SimpleQueue()
        self.link = self.page = self.reducer = self

    def during(self, phase):
        """Nobody reads what it does."""
        return contextlib.nullcontext()

    def catch_up(self):
        """There is no device."""

    def check(self):
        """The generation is not known to be broken."""

    def broke(self, error):
        self.errors.put(error)

    def cut(self):
        self.group.cut()

    talking_group = Replica.talking_group
    inner_group = Replica.inner_group
    unless_broken = Replica.unless_broken
    confirm = Replica.confirm
    has_to_confirm = Replica.has_to_confirm

    def _live_group(self):
        return self.group


@pytest.fixture
def worlds():
    """Three members of a generation; afterwards it is taken down."""
    circle = Circle(3)
    groups = circle.form()
    yield [World(Part(group)) for group in groups]
    for group in groups:
        group.cut()
        group.close()


def test_operations_are_those_of_all_members(worlds):
    def act(rank):
        world, mine = worlds[rank], torch.tensor([float(rank)])
        dist.all_reduce(mine, group=world)
        rows = [torch.empty(1) for _ in worlds]
        world.allgather([rows], [torch.tensor([float(rank)])]).wait()
        late = dist.all_reduce(torch.ones(1), group=world, async_op=True)
        late.wait()
        world.barrier().wait()
        return float(mine), torch.cat(rows).tolist(), float(late.result()[0])

    assert in_threads(3, act) == [(3.0, [0.0, 1.0, 2.0], 3.0)] * 3


def test_a_transfer_between_gpus_is_refused(worlds, monkeypatch):
    """Two that send to each other would wait for ever."""
    monkeypatch.setattr("elastic.train.world._is_on_gpu", lambda value: True)
    worlds[0]._replica.nccl = object()
    for act in (worlds[0].send, worlds[0].recv):
        with pytest.raises(StepMisuseError, match=r"of a tensor on a GPU: .*cpu"):
            act([torch.ones(1)], 1, 0)


def test_what_was_said_after_the_sums_counts_once_all_have_it(worlds):
    """One that had to abort says nothing any more, and what the others have may be its rest."""
    replicas = [one._replica for one in worlds]
    for one in replicas:
        one.has_talked_on_gpu = True
    assert in_threads(3, lambda rank: replicas[rank].confirm()) == [None] * 3
    assert not any(one.has_talked_on_gpu for one in replicas)
    waiting = [Running(replicas[rank].confirm) for rank in (0, 1)]
    replicas[2].group.cut()
    assert all(isinstance(one.error(), AttemptBroken) for one in waiting)


def test_so_it_is_among_the_workers_of_a_replica_whoever_of_them_has_said_something(worlds):
    """They say it before they give their word that they can apply, of which it is a part."""
    replicas = [one._replica for one in worlds]
    for one in replicas:
        one.inner, one.nccl = one.group, object()
        one._live_group = None
    replicas[0].has_talked_on_gpu = True
    assert all(one.has_to_confirm for one in replicas)
    assert in_threads(3, lambda rank: replicas[rank].confirm()) == [None] * 3
    waiting = [Running(replicas[rank].confirm) for rank in (0, 1)]
    replicas[2].group.cut()
    assert all(isinstance(one.error(), AttemptBroken) for one in waiting)


def test_a_gradient_flows_through_a_collective(worlds):
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, world):
            ctx.world = world
            return Sum.of(x, world)

        @staticmethod
        def backward(ctx, grad):
            return Sum.of(grad, ctx.world), None

        @staticmethod
        def of(x, world):
            total = x.clone()
            dist.all_reduce(total, group=world)
            return total

    def act(rank):
        x = torch.tensor([float(rank)], requires_grad=True)
        (Sum.apply(x, worlds[rank]) * (rank + 1)).sum().backward()
        return float(x.grad)

    assert in_threads(3, act) == [6.0] * 3


def test_a_cut_frees_who_waits_in_a_collective(worlds):
    """The last member never comes; a freeze of one waiter is a break for all of them, each told once."""
    in_threads(3, lambda rank: worlds[rank].barrier().wait())  # connected
    waiting = [Running(lambda rank=rank: dist.all_reduce(torch.ones(4), group=worlds[rank])) for rank in (0, 1)]
    time.sleep(MOMENT_S)
    assert not any(running.is_over for running in waiting)
    worlds[0]._replica.cut()
    for running, world in zip(waiting, worlds, strict=False):
        assert isinstance(running.error(), AttemptBroken)
        assert "RuntimeError" in world._replica.errors.get(timeout=1)


def root(options, rank):
    options.rootRank = rank
    return options


def row(size=2):
    return torch.zeros(size)


ALONE = {  # rank 0 of two calls, and waits for rank 1
    "all_gather_single": lambda world: world.all_gather_single(row(4), row()),
    "all_to_all_single": lambda world: world.all_to_all_single(row(), row(), [], []),
    "allgather": lambda world: world.allgather([[row(), row()]], [row()]),
    "allgather_coalesced": lambda world: world.allgather_coalesced([[row()], [row()]], [row()]),
    "allreduce": lambda world: world.allreduce([row()]),
    "allreduce_coalesced": lambda world: world.allreduce_coalesced([row()]),
    "alltoall": lambda world: world.alltoall([row(), row()], [row(), row()]),
    "alltoall_base": lambda world: world.alltoall_base(row(), row(), [], []),
    "barrier": lambda world: world.barrier(),
    "broadcast": lambda world: world.broadcast([row()], root(dist.BroadcastOptions(), 1)),
    "recv": lambda world: world.recv([row()], 1, 0),
    "reduce": lambda world: world.reduce([row()], root(dist.ReduceOptions(), 0)),
    "reduce_scatter": lambda world: world.reduce_scatter([row()], [[row(), row()]]),
    "reduce_scatter_single": lambda world: world.reduce_scatter_single(row(), row(4)),
    "_allgather_base": lambda world: world._allgather_base(row(4), row()),
    "_reduce_scatter_base": lambda world: world._reduce_scatter_base(row(), row(4)),
}


@pytest.mark.parametrize("operation", ALONE)
def test_a_cut_frees_who_waits_even_where_it_does_not_end_the_operation(operation, monkeypatch):
    """As gloo does once in a while. Some of its works ignore how long they are waited for."""
    with formed(2, collective_timeout_s=ENDLESS_S) as groups:
        worlds = [World(Part(group)) for group in groups]
        in_threads(2, lambda rank: worlds[rank].barrier().wait())  # connected
        with monkeypatch.context() as patch:
            patch.setattr(groups[0], "_owns", lambda sock: False)
            waiting = Running(lambda: ALONE[operation](worlds[0]).wait())
            time.sleep(MOMENT_S)
            assert not waiting.is_over
            worlds[0]._replica.cut()
            assert isinstance(waiting.error(), AttemptBroken)
        groups[0].cut()
        eventually(lambda: not groups[0].has_pending_notes(), "the operation has ended")


def test_a_cut_frees_who_waits_for_others_to_come_to_their_first_collective(worlds):
    waiting = Running(lambda: worlds[0].barrier().wait())
    time.sleep(MOMENT_S)
    assert not waiting.is_over
    worlds[0]._replica.cut()
    assert isinstance(waiting.error(), AttemptBroken)


@pytest.mark.parametrize("kind", [RuntimeError, ConnectionError], ids=["of gloo", "of the leader's store"])
def test_whose_collective_failed_frees_the_others(worlds, kind):
    def fail():
        raise kind("a timeout, say")

    in_threads(3, lambda rank: worlds[rank].barrier().wait())
    waiting = [Running(lambda rank=rank: worlds[rank].barrier().wait()) for rank in (0, 1)]
    with pytest.raises(AttemptBroken):
        worlds[2]._replica.unless_broken(fail)
    assert worlds[2]._replica.errors.get(timeout=1) == f"{kind.__name__}: a timeout, say"
    assert all(isinstance(running.error(), AttemptBroken) for running in waiting)


def test_nothing_is_started_in_a_generation_that_is_broken(worlds):
    def check():
        raise AttemptBroken

    started = []
    worlds[0]._replica.check = check
    worlds[0]._replica.group.second = lambda: started.append(1)
    with pytest.raises(AttemptBroken):
        worlds[0].barrier()
    assert started == []


def test_a_connection_that_may_be_stuck_is_never_taken_down(worlds, monkeypatch):
    monkeypatch.setattr(gloo, "_LEFT_BEHIND", [])
    group = worlds[0]._replica.group
    seconds = in_threads(3, lambda rank: worlds[rank]._replica.group.other("world", range(3)))
    group.leave_behind()
    group.close()
    assert any(one is seconds[0] for one in gloo._LEFT_BEHIND)


def test_it_does_not_share_a_connection_with_the_gradients(worlds):
    """Ranks start a collective and a reduction in opposite orders, as an overlapped backward may."""
    groups = [world._replica.group for world in worlds]
    in_threads(3, lambda rank: worlds[rank].barrier().wait())

    def act(rank):
        small, large = torch.ones(3), torch.ones(5)
        order = [lambda: worlds[rank].allreduce([small]), lambda: groups[rank].allreduce(large)]
        for work in [start() for start in (order if rank else order[::-1])]:
            work.wait()
        return small.sum().item(), large.sum().item()

    assert in_threads(3, act) == [(9.0, 15.0)] * 3


# --- in a session ---


def test_world_is_the_sessions_group_and_is_taken_away_at_the_end(solo):
    seen = []

    def look(step, training, place):
        seen.append((dist.group.WORLD is training.session.group, dist.get_rank(), dist.get_world_size()))
        if place == "reduced":
            value = torch.ones(1)
            dist.all_reduce(value)
            everyone = [None]
            dist.all_gather_object(everyone, step.index)
            assert (float(value), everyone) == (1.0, [step.index])

    assert_like_a_plain_loop(solo.run(trained(look)))
    assert set(seen) == {(True, 0, 1)}
    assert not dist.is_initialized()


def test_a_collective_in_flight_when_the_generation_breaks_costs_no_answer(solo):
    """It succeeds with one member, and its attempt is tried again all the same."""

    def act(step, training):
        solo.break_generation()
        dist.barrier()
        raise AssertionError("a collective ran in a frozen generation")

    hook = once(2, "start", act)
    assert_like_a_plain_loop(solo.run(trained(hook)))
    assert hook.calls


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("before", "only inside `with step:` before step.apply"),
        ("after", "only inside `with step:` before step.apply"),
        ("applied", "only inside `with step:` before step.apply"),
        ("batch", "equal_rounds=True"),
        ("backward", "equal_rounds=True"),
    ],
)
def test_where_it_could_not_be_tried_again_a_collective_is_refused(solo, place, sentence):
    ended = solo.run(trained(once(1, place, lambda step, training: dist.all_reduce(torch.ones(1)))))
    assert sentence in raised(ended, "StepMisuseError: allreduce")


def test_before_the_first_generation_a_collective_is_refused(solo):
    def train_fn(session):
        dist.barrier()

    assert "only inside `with step:`" in raised(solo.run(train_fn), "StepMisuseError: barrier")


def test_groups_of_fixed_members_are_refused(solo):
    ended = solo.run(trained(once(1, "start", lambda step, training: dist.new_group([0]))))
    assert "use session.group" in raised(ended, "StepMisuseError")


def test_an_apply_does_not_overtake_a_collective(solo):
    class Endless:
        def is_completed(self):
            return False

    def act(step, training):
        training.session._replica.group.note(Endless())

    ended = solo.run(trained(once(1, "reduced", act)))
    assert "wait for your asynchronous collectives" in raised(ended, "StepMisuseError")


def test_a_process_that_has_a_world_already_is_told(solo):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ended = solo.run(lambda session: None)
        assert "leave init_process_group to the session" in raised(ended, "StepMisuseError")
        assert dist.is_initialized(), "somebody else's WORLD was taken down"
    finally:
        dist.destroy_process_group()


def test_a_group_of_some_workers_of_a_replica_is_their_own_and_freed_with_the_generation(worlds):
    gang = [World(world._replica, shard, width=3) for shard, world in enumerate(worlds)]
    first, none, last = (one.new_group([2, 0], group_name="1") for one in gang)
    assert none is None
    assert [(one.rank(), one.size(), one.getGroupName()) for one in (first, last)] == [(1, 2, "1"), (0, 2, "1")]
    sums = [torch.ones(1) * (shard + 1) for shard in (0, 2)]
    in_threads(2, lambda at: (first, last)[at].allreduce([sums[at]]).wait())
    assert [one.item() for one in sums] == [4.0, 4.0]
    waiting = Running(lambda: first.allreduce([torch.ones(1)]).wait())
    time.sleep(MOMENT_S)
    gang[0]._replica.group.cut()
    with pytest.raises(AttemptBroken):
        waiting.result()


# --- what torch is relied on for ---


def test_every_operation_of_a_process_group_is_forwarded():
    """Those that torch adds later would run on the empty shell."""
    others = {
        "abort", "boxed", "get_group_store", "merge_remote_group", "monitored_barrier", "name", "rank", "set_timeout",
        "shutdown", "size", "split_group", "unbox", "use_pg_for_symm_mem_rendezvous", "BackendType",
    }  # fmt: skip
    public = {
        name
        for name, thing in inspect.getmembers(dist.ProcessGroup)
        if not name.startswith("_") and callable(thing) and name not in others
    }
    assert public <= set(OPERATIONS)
    assert all(hasattr(dist.ProcessGroup, name) for name in OPERATIONS if not name.startswith("_"))


def test_torch_takes_the_group_as_its_world():
    lone = SimpleNamespace(rank=0, replicas=1)
    world = open_world(lone)
    try:
        assert dist.group.WORLD is world
        assert world._get_backend_name() == "gloo", "SyncBatchNorm asks this, to choose its collectives"
        assert dist.get_backend() == "elastic"
        with pytest.raises(StepMisuseError):
            open_world(lone)
    finally:
        close_world()
    assert not dist.is_initialized()


def test_a_model_with_synchronized_norm_needs_equal_rounds(solo):
    def train_fn(session):
        model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.SyncBatchNorm(1)).double()
        for _ in Training(session, model).steps():
            pass

    assert "pass equal_rounds=True" in raised(solo.run(train_fn), "StepMisuseError: SyncBatchNorm")


def test_a_lone_replica_is_handed_no_empty_micro_batch(solo):
    """And with equal rounds a collective among the micro-batches is welcome."""

    def train_fn(session):
        training = Training(session)
        training.batches = session.batches(
            training.batches._loading.dataset, batch_size=6, micro_batch_size=2, equal_rounds=True
        )
        for step in training.steps():
            with step:
                for batch in step:
                    assert len(batch[0])
                    dist.all_reduce(torch.ones(1))
                    step.backward(training.loss(batch))
                training.apply(step)
        return training.parameters

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
