"""Effect. A gloo group per generation: it forms under cancellation, and a cut frees what waits, and nothing else."""

import contextlib
import os
import re
import socket
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.amp.grad_scaler import OptState

from elastic.errors import DivergenceError
from elastic.train.direct import MESSAGE_BYTES, can_go_together
from elastic.train.gloo import FormingCancelledError, GlooGroup, InOneGo
from elastic.train.meeting import Store, StoreHost
from tests.effects.helpers import (
    ENDLESS_S,
    HOST,
    LONG_S,
    MOMENT_S,
    Circle,
    Running,
    child,
    eventually,
    formed,
    formed_with_children,
    hear,
    in_threads,
    serve_member,
    stop,
    view_of,
)


def connected(port: int) -> Store:
    """A connection to a store, whose waits never end."""
    return Store(HOST, port, lambda waiting_for: None, "the store")


IN_A_RING = 1 + MESSAGE_BYTES // 8  # elements: more than one message holds
both_ways = pytest.mark.parametrize("elements", [1, IN_A_RING], ids=["in one message", "in a ring"])


def summed(group: GlooGroup, value: float, elements: int = 1) -> float:
    tensor = torch.full((elements,), value, dtype=torch.float64)
    assert can_go_together([tensor], group.size) == (elements < IN_A_RING and group.size > 1)
    group.allreduce(tensor).wait()
    assert torch.equal(tensor, tensor[:1].expand(elements))
    return float(tensor[0])


# --- forming ---


@both_ways
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_group_sums_over_all_its_members(size, elements):
    wanted = [sum(10.0**rank for rank in range(size))] * size
    with formed(size) as groups:
        assert in_threads(size, lambda rank: summed(groups[rank], 10.0**rank, elements)) == wanted


def test_the_next_generation_forms_over_the_same_stores():
    """What the last generation left in the leader's store does not count for the next one."""
    circle = Circle(2)
    for _ in range(3):
        groups = circle.form()
        assert in_threads(2, lambda rank, groups=groups: summed(groups[rank], rank + 1)) == [3, 3]
        for group in groups:
            group.cut()
            group.close()


def open_files() -> set[tuple[str, str]]:
    """Descriptors and what each is of, so that what others close meanwhile makes no difference."""
    numbers, found = os.listdir("/proc/self/fd"), set()
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):  # the one that listed them
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def test_a_closed_group_keeps_nothing_open():
    """A worker lives through many generations; who still holds the object of an old one must not cost a socket."""
    circle, held, opened = Circle(2), [], []
    others = set(threading.enumerate())
    for _ in range(4):
        before = open_files()
        groups = circle.form()
        for group in groups:
            group.watch(lambda why: None)
        assert in_threads(2, lambda rank, groups=groups: summed(groups[rank], 1)) == [2, 2]
        for group in groups:
            group.cut()
            group.close()
        eventually(lambda: all(one.name != "elastic-hangups" for one in {*threading.enumerate()} - others), "no watch")
        held.append(groups)
        opened.append(open_files() - before)
    assert not any(opened[1:]), opened  # the first one connects the members' stores, which stay


def test_members_of_another_layout_are_named():
    """Their buckets would be summed into each other's."""
    circle = Circle(3)
    view = circle.next_view()

    def form(rank):
        with pytest.raises(DivergenceError, match=re.escape("ours on ranks [0, 2]; theirs on ranks [1]")):
            layout = "theirs" if rank == 1 else "ours"
            GlooGroup(view, rank, LONG_S).form(circle.stores[rank], layout, lambda: False, LONG_S)

    in_threads(3, form)


ENOUGH_S = 3.0  # to reach the leader's store on a busy machine; the deadline that is tested comes after it


def test_the_deadline_names_the_members_that_are_missing():
    circle = Circle(3)
    view = circle.next_view()

    def form(rank):
        group = GlooGroup(view, rank, LONG_S)
        with pytest.raises(TimeoutError, match=r"members that did not appear: w2 \(Limits.door_timeout_s\)"):
            group.form(circle.stores[rank], "same", lambda: False, ENOUGH_S)
        assert group.missing == ("w2",)

    in_threads(2, form)


def test_forming_is_cancelled_while_a_member_is_missing():
    circle, newer_order = Circle(2), threading.Event()
    group = GlooGroup(circle.next_view(), 0, ENDLESS_S)
    forming = Running(lambda: group.form(circle.stores[0], "same", newer_order.is_set, ENDLESS_S))
    assert not forming.is_over
    newer_order.set()
    assert isinstance(forming.error(), FormingCancelledError)


def refusing_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server((HOST, 0)) as server:
        return server.getsockname()[1]


def test_forming_is_cancelled_while_the_leader_is_dead():
    own, newer_order = StoreHost(HOST), threading.Event()
    group = GlooGroup(view_of([(HOST, refusing_port()), (HOST, own.port)]), 1, ENDLESS_S)
    forming = Running(lambda: group.form(own, "same", newer_order.is_set, ENDLESS_S))
    newer_order.set()
    assert isinstance(forming.error(), FormingCancelledError)


def test_the_deadline_names_a_leader_that_is_dead():
    own, port = StoreHost(HOST), refusing_port()
    group = GlooGroup(view_of([(HOST, port), (HOST, own.port)]), 1, LONG_S)
    with pytest.raises(TimeoutError, match=f"the store of the leader w0 at {HOST}:{port}"):
        group.form(own, "same", lambda: False, MOMENT_S)
    assert group.missing == ("w0",)


def test_forming_is_cancelled_while_the_leader_is_frozen():
    """Its kernel accepts the connection, and then nobody answers; the deadline would name it."""
    own, newer_order = StoreHost(HOST), threading.Event()
    with child(serve_member) as (process, pipe):
        port = hear(pipe)
        stop(process.pid)
        view = view_of([(HOST, port), (HOST, own.port)])
        with pytest.raises(TimeoutError, match=f"the store of the leader w0 at {HOST}:{port}"):
            GlooGroup(view, 1, LONG_S).form(own, "same", lambda: False, MOMENT_S)
        forming = Running(lambda: GlooGroup(view, 1, LONG_S).form(own, "same", newer_order.is_set, ENDLESS_S))
        assert not forming.is_over
        newer_order.set()
        assert isinstance(forming.error(), FormingCancelledError)


def appear(circle: Circle, group: GlooGroup, rank: int) -> None:
    """A member that says it is there, and dies before it connects."""
    leader = circle.stores[0]
    store = connected(leader.port)
    store.set(group._key(f"rank{rank}"), f"{HOST} 1 same")


@pytest.mark.parametrize("rank", [0, 1], ids=["leader", "follower"])
def test_a_cut_frees_a_member_whose_peer_died_between_appearing_and_connecting(rank):
    """The leader as well, whose store is its own: it would be held until the timeout of a collective."""
    circle = Circle(2)
    group = GlooGroup(circle.next_view(), rank, ENDLESS_S)
    appear(circle, group, 1 - rank)
    forming = Running(lambda: group.form(circle.stores[rank], "same", lambda: False, ENDLESS_S))
    forming_for_a_while = threading.Event()
    forming_for_a_while.wait(MOMENT_S)
    assert not forming.is_over
    group.cut()
    assert isinstance(forming.error(), FormingCancelledError | RuntimeError)


@pytest.mark.parametrize("rank", [0, 1], ids=["leader", "follower"])
def test_the_deadline_holds_for_a_peer_that_died_between_appearing_and_connecting(rank):
    circle = Circle(2)
    group = GlooGroup(circle.next_view(), rank, ENDLESS_S)
    appear(circle, group, 1 - rank)
    with pytest.raises((TimeoutError, RuntimeError), match=f"w{1 - rank}|timeout"):
        group.form(circle.stores[rank], "same", lambda: False, MOMENT_S)


def test_forming_is_cancelled_while_a_peer_connects(monkeypatch):
    """Wherever torch waits for a peer that has stopped, an order to form anew is obeyed."""
    is_connecting, ever = threading.Event(), threading.Event()

    def connect_for_ever(*arguments):
        is_connecting.set()
        ever.wait(ENDLESS_S)
        raise RuntimeError("too late")

    real, circle, newer_order = dist.ProcessGroupGloo, Circle(1), threading.Event()
    stuck = SimpleNamespace(_Options=real._Options, create_device=real.create_device)
    monkeypatch.setattr(dist, "ProcessGroupGloo", type("Stuck", (), {**vars(stuck), "__new__": connect_for_ever}))
    group = GlooGroup(circle.next_view(), 0, ENDLESS_S)
    forming = Running(lambda: group.form(circle.stores[0], "same", newer_order.is_set, ENDLESS_S))
    assert is_connecting.wait(LONG_S)
    newer_order.set()
    try:
        assert isinstance(forming.error(), FormingCancelledError)
    finally:
        ever.set()


# --- cutting ---


@both_ways
def test_a_cut_frees_a_sum_that_a_silent_member_never_joins(elements):
    with formed(2, collective_timeout_s=ENDLESS_S) as groups:
        waiting = Running(lambda: summed(groups[0], 1.0, elements))
        threading.Event().wait(MOMENT_S)
        assert not waiting.is_over
        groups[0].cut()
        assert isinstance(waiting.error(), RuntimeError)


def test_what_a_wait_does_on_a_gpu_is_done_on_the_stream_that_asked_for_it(monkeypatch):
    """Gloo copies the result of a reduce-scatter in its wait, which is in a thread with a stream of its own."""
    on = []

    @contextlib.contextmanager
    def stream(one):
        on.append(one)
        yield
        on.pop()

    seen = []
    monkeypatch.setattr(torch.cuda, "stream", stream)
    InOneGo([SimpleNamespace(wait=lambda timeout: seen.append(list(on)))], stream="theirs").wait(timedelta(seconds=1))
    assert seen == [["theirs"]] and on == []


def test_a_transfer_that_never_comes_names_whom_it_waited_for():
    whom = r"^w1 have not all come .* within Limits.collective_timeout_s="
    with formed(2, collective_timeout_s=MOMENT_S) as groups, pytest.raises(RuntimeError, match=whom):
        groups[0].wait(InOneGo([groups[0].recv(torch.zeros(1), 1)]))


@both_ways
def test_a_sum_that_a_silent_member_never_joins_ends_by_itself_at_the_timeout(elements):
    """The collective's timeout holds, although the group was formed under another one."""
    whom = r"^w1 have not all come .* within Limits.collective_timeout_s=.*(?i:timed out)"
    with formed(2, collective_timeout_s=MOMENT_S) as groups, pytest.raises(RuntimeError, match=whom):
        groups[0].wait(groups[0].allreduce(torch.zeros(elements, dtype=torch.float64)))


@both_ways
def test_a_cut_frees_a_sum_with_a_stopped_process(elements):
    """A frozen process keeps its sockets open, and only a cut helps."""
    with formed_with_children(1) as (group, processes, pipes):
        pipes[0].send((elements,))
        assert summed(group, 1, elements) == 11 and hear(pipes[0]) == 11
        stop(processes[0].pid)
        waiting = Running(lambda: summed(group, 1, elements))
        threading.Event().wait(MOMENT_S)
        assert not waiting.is_over
        group.cut()
        assert isinstance(waiting.error(), RuntimeError)


@both_ways
def test_a_cut_frees_the_neighbours_in_turn(elements):
    """They wait in other processes for a sum that this member will never join."""
    with formed_with_children(2) as (group, _, pipes):
        for pipe in pipes:
            pipe.send((elements,))
        threading.Event().wait(MOMENT_S)
        assert not any(pipe.poll() for pipe in pipes)
        group.cut()
        assert all(hear(pipe).startswith("broken") for pipe in pipes)


@both_ways
def test_a_killed_process_frees_the_sum_without_a_cut(elements):
    with formed_with_children(1) as (group, processes, _):
        waiting = Running(lambda: summed(group, 1, elements))
        processes[0].kill()
        assert isinstance(waiting.error(), RuntimeError)


@both_ways
def test_a_cut_before_a_sum_makes_it_fail(elements):
    with formed(2) as groups:
        groups[0].cut()
        waiting = Running(lambda: summed(groups[0], 1, elements))
        assert isinstance(waiting.error(), RuntimeError)


def test_a_cut_may_come_at_any_time_and_twice():
    """Freezes come when they come: before the forming, after the end, again."""
    circle = Circle(1)
    group = GlooGroup(circle.next_view(), 0, LONG_S)
    group.cut()
    with pytest.raises(FormingCancelledError):
        group.form(circle.stores[0], "same", lambda: False, LONG_S)
    (group,) = circle.form()
    group.cut()
    group.cut()
    group.close()
    group.cut()


def works(one: socket.socket, other: socket.socket) -> bool:
    one.sendall(b"?")
    other.sendall(other.recv(1) + b"!")
    return one.recv(2) == b"?!"


def test_a_cut_touches_no_strangers_sockets():
    """Neither another group's, nor a TCP connection's, a socket pair's, a listener's, or the store's."""
    with formed(2) as strangers, formed(2) as groups, socket.create_server((HOST, 0)) as server:
        with (
            socket.create_connection(server.getsockname()) as one,
            server.accept()[0] as other,
            socket.create_connection((HOST, groups[0].view.leader.port)) as to_store,
        ):
            left, right = socket.socketpair()
            with left, right:
                for group in groups:
                    group.cut()
                assert works(one, other) and works(left, right)
            with socket.create_connection(server.getsockname()):
                server.accept()[0].close()
            assert to_store.fileno() >= 0
        leader = groups[0].view.leader
        newcomer = connected(leader.port)
        newcomer.set("after", "the cut")
        assert newcomer.get("after") == b"the cut"
        assert in_threads(2, lambda rank: summed(strangers[rank], 1)) == [2, 2]


# --- messages ---


def test_words_of_64_bits_travel_unchanged():
    """Digests use all of them; torch has no unsigned sum of that size."""
    rows = [[0, 1, (1 << 64) - 1], [1 << 63, (1 << 63) - 1, 0x0123456789ABCDEF]]
    with formed(2) as groups:
        assert in_threads(2, lambda rank: groups[rank].gather_words(rows[rank])) == [rows, rows]


def test_a_tensor_is_sent_from_one_member_to_another():
    sent, received = torch.arange(7.0), torch.zeros(7)
    with formed(2) as groups:
        in_threads(2, lambda rank: (groups[0].send(sent, 1) if rank == 0 else groups[1].recv(received, 0)).wait())
    assert torch.equal(sent, received)


def test_a_transfer_may_take_its_time():
    """Both its beginning and its end: here, longer than any slice in which collectives are waited for."""
    sent, received = torch.arange(7.0), torch.zeros(7)
    with formed(2) as groups:
        waiting = Running(lambda: groups[1].wait(InOneGo([groups[1].recv(received, 0)])))
        threading.Event().wait(MOMENT_S)
        assert not waiting.is_over
        groups[0].wait(InOneGo([groups[0].send(sent, 1)]))
        waiting.wait()
    assert torch.equal(sent, received)


def test_a_cut_frees_a_transfer():
    with formed(2, collective_timeout_s=ENDLESS_S) as groups:
        waiting = Running(lambda: groups[1].wait(InOneGo([groups[1].recv(torch.zeros(7), 0)])))
        threading.Event().wait(MOMENT_S)
        assert not waiting.is_over
        groups[1].cut()
        assert isinstance(waiting.error(), FormingCancelledError | RuntimeError)


# --- what rests on others' promises ---


def is_refused(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=LONG_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_port_of_a_store_tells_a_stopped_process_from_a_dead_one():
    """The kernel answers for a frozen process; for a dead one it refuses."""
    with child(serve_member) as (process, pipe):
        port = hear(pipe)
        stop(process.pid)
        assert not is_refused(port)
        process.kill()
        process.join(LONG_S)
        assert is_refused(port)


def test_the_private_api_of_torch_that_groups_rest_on_exists():
    """A new torch that changes it fails here first."""
    device = dist.ProcessGroupGloo.create_device(hostname=HOST)
    options = dist.ProcessGroupGloo._Options()
    options._devices, options._timeout = [device], timedelta(seconds=7)
    own = StoreHost(HOST)
    ours = connected(own.port)
    store = dist.PrefixStore("private", ours)
    group = dist.ProcessGroupGloo(store, 0, 1, options)
    assert group.options._timeout == timedelta(seconds=7)
    group._set_default_timeout(timedelta(seconds=8))
    assert group.options._timeout == timedelta(seconds=8)


def test_the_private_api_of_torch_that_scalers_rest_on_exists():
    scaler = torch.amp.GradScaler("cpu")
    assert len(scaler._per_optimizer_states) == 0
    fresh = scaler._per_optimizer_states[0]
    assert fresh["stage"] is OptState.READY and fresh["found_inf_per_device"] == {}
    scaler._per_optimizer_states.clear()
