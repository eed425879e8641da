"""Effect. The step transaction as a user meets it: what is committed, and what is tried again."""

import pytest
import torch
import torch.distributed as dist

from elastic.callbacks import WorkerCallback
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.values import CommitId
from elastic.train import rng
from elastic.train.flight import read_page
from elastic.train.gloo import FormingCancelledError
from elastic.train.heal import DonorsDifferError
from elastic.train.link import Link
from elastic.train.runner import with_callbacks
from tests.effects.idiom import STEPS, Training, assert_like_a_plain_loop, once, one_step, raised, trained
from tests.effects.solo import SEED, Solo


def test_the_flight_page_says_when_it_is_the_users_turn(solo):
    """Code between two steps, saving for one, may take long, and so may what follows apply; code in a step may not."""
    seen = {}

    def hook(step, training, place):
        seen.setdefault(place, set()).add(read_page(solo.page.path).phase)
        failure(step, training, place)

    failure = once(1, "start", lambda step, training: solo.break_generation())
    assert_like_a_plain_loop(solo.run(trained(hook)))
    in_step = dict.fromkeys(("start", "reduced"), {Flying.IN_BODY})
    computing = dict.fromkeys(("batch", "backward"), {Flying.COMPUTING})
    assert seen == in_step | computing | dict.fromkeys(("before", "applied", "after"), {Flying.OUTSIDE})


@pytest.mark.parametrize("place", ["batch", "backward", "reduced"])
def test_a_backward_of_the_users_own_after_an_attempt_that_broke_is_no_part_of_a_step(solo, place):
    """Right after the `with`, and before the next one: a norm of gradients that is looked at, say."""

    def hook(step, training, where):
        breaks(step, training, where)
        if where in ("before", "after"):
            training.model(torch.ones(2, 3).double()).sum().backward()

    breaks = once(1, place, lambda step, training: solo.break_generation())
    assert_like_a_plain_loop(solo.run(trained(hook)))
    assert breaks.calls


def test_a_joiner_whose_first_generation_ends_before_it_begins_starts_at_the_step_of_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("elastic.train.session.heal", lambda *about: lambda: None)  # nobody is there to heal it

    class Late(Solo):
        def _answer(self, event):
            if isinstance(event, ev.Formed) and event.generation == 1:
                self.link.freeze(1)
                self._form(CommitId(incarnation=1, generation=1, attempt=1, step=1, lineage="theirs"), (0,))
            else:
                super()._answer(event)

    def train_fn(session):
        training = Training(session)
        return [(session.start_step, training.compute(step), training.apply(step))[0] for step in _entered(training)]

    assert Late(tmp_path).run(train_fn).value == [2, 2]


def donors_differ():
    error = DonorsDifferError("differ")
    error.culprits = ()
    return error


@pytest.mark.parametrize("error", [RuntimeError("reset"), FormingCancelledError(), donors_differ()], ids=repr)
def test_the_groups_of_a_failed_forming_are_closed_and_one_that_is_stuck_is_left_behind(tmp_path, monkeypatch, error):
    """Their destructor would wait in the training thread."""

    class Anew(Solo):
        def _answer(self, event):
            if isinstance(event, ev.FormingFailed | ev.CorruptionFound):
                self.break_generation()
            else:
                super()._answer(event)

    left_behind, healed = [], []

    def heal(groups, *about):
        healed.append(groups)
        if len(healed) == 1:
            groups[0].leave_behind()
            raise error
        return lambda: None

    monkeypatch.setattr("elastic.train.gloo._LEFT_BEHIND", left_behind)
    monkeypatch.setattr("elastic.train.session.heal", heal)
    assert_like_a_plain_loop(Anew(tmp_path).run(trained()))
    assert [type(one).__name__ for one in left_behind if one is not None] == ["ProcessGroupGloo"]


def _entered(training):
    for step in training.steps():
        with step:
            yield step


# --- what is committed ---


def test_an_undisturbed_run_is_a_plain_loop(solo):
    """And it ends at exactly max_steps, with the last step stable."""
    ended = solo.run(trained())
    assert_like_a_plain_loop(ended)
    assert ended.has(ev.LoopEnded)


def test_no_step_beyond_the_last_is_yielded(solo):
    seen = []
    solo.run(trained(lambda step, training, place: seen.append(step.index) if place == "before" else None))
    assert seen == list(range(STEPS))


def test_what_is_done_on_commit_is_done_once_and_in_order(solo):
    """Only for the attempt that was committed, and only once its step is stable."""
    done, attempts = [], []

    def hook(step, training, place):
        if place == "start":
            attempts.append(step.index)
            step.on_commit(lambda: done.append((step.index, step.generation)))
        if place == "applied":
            assert (step.index, step.generation) not in done
        if place == "reduced" and len(attempts) == 2:
            solo.break_generation()

    assert_like_a_plain_loop(solo.run(trained(hook)))
    assert attempts == [0, 1, 1, 2, 3]
    assert done == [(0, 1), (1, 2), (2, 2), (3, 2)]


def test_what_is_done_on_commit_may_take_long(solo):
    """Saving, for one: it is no part of the step in which it happens to run."""
    seen = []

    def hook(step, training, place):
        if place == "start":
            step.on_commit(lambda: seen.append(read_page(solo.page.path)))

    assert_like_a_plain_loop(solo.run(trained(hook)))
    assert [(one.phase, one.remark) for one in seen] == [(Flying.SLOW, "step.on_commit")] * STEPS


def test_a_collective_on_commit_is_refused_the_first_time(solo):
    """Who has joined since does not do what was to be done then, and would be waited for."""

    def talk_later(step, training):
        step.on_commit(lambda: dist.all_reduce(torch.ones(1)))

    assert "can be tried again after a failure only inside" in raised(
        solo.run(trained(once(0, "reduced", talk_later))), "StepMisuseError"
    )


def test_what_fails_on_commit_ends_the_run_though_the_next_step_is_broken(solo):
    """A step's report is told before; an error of the user's is none of the failure that comes with it."""

    def act():
        solo.break_generation()
        raise ValueError("the user's own")

    def hook(step, training, place):
        if place == "start" and step.index == 1:
            step.on_commit(act)

    ended = solo.run(trained(hook))
    assert isinstance(ended.last, ev.TrainFnRaised) and "the user's own" in ended.last.summary
    assert ended.steps == [0, 1]


def test_what_is_drawn_before_a_step_is_the_same_whatever_came_before(solo, tmp_path):
    """A retry, an evaluation, the process of a joiner: none of them decides what code in the loop's body draws."""

    def drawn(one, spoil):
        draws = {}

        def hook(step, training, place):
            if place == "before":
                draws.setdefault(step.index, set()).add(float(torch.rand(())))
                torch.manual_seed(spoil)
            if place == "reduced" and step.index == 2 and len(draws[2]) == 1 and spoil:
                one.break_generation()
                draws[2].add("again")

        one.run(trained(hook))
        return draws

    first, second = drawn(solo, 0), drawn(Solo(tmp_path), 7)
    assert second[2] - {"again"} == first[2] and second.keys() == first.keys()
    assert all(second[index] == first[index] for index in first if index != 2)
    assert len({draw for draws in first.values() for draw in draws}) == STEPS


def test_a_loop_left_early_ends_cleanly(solo):
    """`break` outside of the `with`: what was committed until then is stable."""

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                training.compute(step)
                training.apply(step)
            if step.index == 1:
                break
        return "left"

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned) and ended.value == "left"
    assert ended.steps == [0, 1] and ended.has(ev.LoopEnded)


def test_break_and_continue_after_the_apply_are_fine(solo):
    """The step is committed by then."""

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                training.compute(step)
                training.apply(step)
                if step.index == 2:
                    break
                continue

    ended = solo.run(train_fn)
    assert isinstance(ended.last, ev.TrainFnReturned), ended.last
    assert ended.steps == [0, 1, 2]


def test_a_pause_stops_at_the_end_of_a_step_and_nothing_is_done_twice(solo):
    """For a joiner: all members agree on the step after which they stop."""
    attempts = []

    def hook(step, training, place):
        if place == "start":
            attempts.append((step.index, step.generation))
        if place == "batch" and step.index == 1:
            solo.link.pause(1)

    ended = solo.run(trained(hook))
    assert_like_a_plain_loop(ended)
    assert attempts == [(0, 1), (1, 1), (2, 2), (3, 2)]
    assert ended.has(ev.FreezeAnswered)


def test_a_new_generation_is_announced_before_its_first_step(solo):
    told = []

    def train_fn(session):
        session.on_generation(lambda s: told.append((s.generation, s.replicas, s.rank, s.is_leader)))
        hook = once(1, "batch", lambda step, training: solo.break_generation())
        return trained(hook)(session)

    solo.run(train_fn)
    assert told == [(1, 1, 0, True), (2, 1, 0, True)]


def test_what_is_done_in_a_new_generation_is_a_phase_of_its_own(solo):
    """Without a limit of its own, a hang there would be nobody's."""
    seen = []

    def train_fn(session):
        session.on_generation(lambda s: seen.append(read_page(solo.page.path)))
        return trained()(session)

    solo.run(train_fn)
    assert [(page.phase, page.remark) for page in seen] == [(Flying.SLOW, "session.on_generation")]


def test_who_waits_for_its_lease_does_not_look_late(solo, monkeypatch):
    """The driver stands still, and finds all members waiting for it when it goes on: none of them hangs."""
    seen, has_lease = set(), Link._has_lease

    def looked(link):
        seen.add(read_page(solo.page.path).phase)
        return has_lease(link)

    monkeypatch.setattr(Link, "_has_lease", looked)
    assert_like_a_plain_loop(solo.run(trained()))
    assert seen == {Flying.AT_DOOR}


# --- what is tried again ---

PLACES = ["before", "start", "batch", "backward", "reduced"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("index", [0, 1, STEPS - 1])
def test_a_generation_that_breaks_anywhere_before_the_apply_costs_no_answer(solo, place, index):
    """The step is tried again in the next generation, and the run ends as if nothing had happened."""
    hook = once(index, place, lambda step, training: solo.break_generation())
    ended = solo.run(trained(hook))
    assert hook.calls
    assert_like_a_plain_loop(ended)
    assert ended.reports[index].commit.generation == 2


@pytest.mark.parametrize("is_tensor", [False, True])
@pytest.mark.parametrize("place", ["start", "backward", "reduced"])
def test_a_rate_that_an_attempt_has_set_goes_with_it(solo, place, is_tensor):
    """Members are broken at different lines: who has set it already would differ from who has not."""
    found = []

    def train_fn(session):
        training = Training(session)
        group = training.optimizer.param_groups[0]
        group["lr"] = torch.tensor(0.1) if is_tensor else 0.1

        def hook(step, training, at):
            if at == "before":
                found.append((step.index, step.generation, float(group["lr"])))
            if step.index == 1 and step.generation == 1 and at == place:
                if is_tensor:
                    group["lr"].fill_(7.0)
                else:
                    group["lr"] = 7.0
                solo.break_generation()

        for step in training.steps(3):
            hook(step, training, "before")
            with step:
                hook(step, training, "start")
                for batch in step:
                    step.backward(training.loss(batch))
                    hook(step, training, "backward")
                hook(step, training, "reduced")
                step.apply(training.optimizer)

    solo.run(train_fn)
    assert [(index, generation) for index, generation, _ in found] == [(0, 1), (1, 1), (1, 2), (2, 2)]
    assert {round(rate, 6) for _, _, rate in found} == {0.1}


@pytest.mark.parametrize("place", ["applied", "after"])
@pytest.mark.parametrize("index", [0, 1, STEPS - 1])
def test_a_generation_that_breaks_after_the_apply_does_not_repeat_the_step(solo, place, index):
    """It was committed; its report is told once it is stable, in the next generation."""
    hook = once(index, place, lambda step, training: solo.break_generation())
    ended = solo.run(trained(hook))
    assert hook.calls
    assert_like_a_plain_loop(ended)
    assert ended.reports[index].commit.generation == 1


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyError])
@pytest.mark.parametrize("place", ["start", "batch", "reduced"])
def test_an_exception_while_the_generation_is_broken_is_a_retry(solo, error, place):
    """Judged by state, not by type: whatever the failure made user code raise belongs to the failure."""

    def act(step, training):
        solo.break_generation()
        raise error("connection closed")

    hook = once(1, place, act)
    assert_like_a_plain_loop(solo.run(trained(hook)))
    assert hook.calls


def test_an_exception_shortly_before_the_news_of_the_break_is_a_retry(patient):
    """The failure reaches user code first, and the freeze a moment later."""

    def act(step, training):
        patient.break_soon(0.1)
        raise RuntimeError("connection closed by peer")

    hook = once(1, "batch", act)
    assert_like_a_plain_loop(patient.run(trained(hook)))
    assert hook.calls


@pytest.mark.parametrize("place", ["start", "batch", "backward", "reduced", "applied"])
def test_an_exception_in_a_live_generation_is_the_users(solo, place):
    def act(step, training):
        raise ValueError("of my own making")

    assert raised(solo.run(trained(once(1, place, act))), "ValueError") == "ValueError: of my own making"


def test_an_exception_that_says_too_much_or_cannot_be_shown_is_told_all_the_same(solo):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def train_fn(error):
        def raising(session):
            raise error

        return raising

    said = raised(solo.run(train_fn(ValueError("first " + "x" * 1_000_000 + " last"))), "ValueError: first")
    assert said.endswith("last") and "characters are left out here" in said and len(said) < 3_000
    said = raised(solo.run(train_fn(Mute())), "Mute")
    assert said == "Mute (its message cannot be shown: RuntimeError)"


@pytest.mark.parametrize("is_broken", [False, True], ids=["live", "broken"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_a_departure_and_never_swallowed(solo, error, is_broken):
    def act(step, training):
        if is_broken:
            solo.break_generation()
        raise error("enough")

    ended = solo.run(trained(once(1, "batch", act)))
    assert isinstance(ended.last, ev.WorkerDeparted), ended.last
    assert error.__name__ in ended.last.reason


def test_the_signal_of_a_broken_attempt_passes_through_except_exception(solo):
    """A user's catch-all in the body does not keep a broken attempt alive."""
    caught, hits = [], []

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                try:
                    if step.index == 1 and not hits:
                        hits.append(1)
                        solo.break_generation()
                    training.compute(step)
                except Exception as error:
                    caught.append(error)
                step.report(loss=step.loss)
                training.apply(step)
        return training.parameters

    assert_like_a_plain_loop(solo.run(train_fn))
    assert hits and not caught


@pytest.mark.parametrize("then", ["goes on", "begins anew", "returns"])
@pytest.mark.parametrize("place", ["batch", "backward", "reduced"])
def test_who_catches_an_exception_outside_of_its_step_does_not_go_on_from_there(solo, place, then):
    """Buffers, rates and reductions in flight are of an attempt that nobody else has broken off."""

    def fail(step, training):
        raise ValueError("a bad batch")

    hook = once(1, place, fail)

    def train_fn(session):
        training = Training(session)
        for _ in range(2):
            try:
                for step in training.steps():
                    try:
                        one_step(step, training, hook)
                    except ValueError:
                        if then != "goes on":
                            raise
            except ValueError:
                if then == "returns":
                    return None
        return training.parameters

    said = raised(solo.run(train_fn), "StepMisuseError")
    assert hook.calls and "step 1 was left by an exception before it was applied" in said


def test_a_bad_batch_is_dropped_inside_of_its_step(solo):
    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                try:
                    if step.index == 1:
                        raise ValueError("a bad batch")
                    training.compute(step)
                except ValueError as error:
                    step.skip(str(error))
                training.apply(step)
        return training.parameters

    ended = solo.run(train_fn)
    assert [report.skipped for report in ended.reports] == ["", "a bad batch", *[""] * (STEPS - 2)]


def test_an_error_in_backward_that_the_user_catches_is_still_a_retry(solo):
    """`except RuntimeError` around a backward is common: the attempt is lost all the same."""
    hits = []

    def train_fn(session):
        training = Training(session)
        for step in training.steps():
            with step:
                for batch in step:
                    loss = training.loss(batch)
                    if step.index == 1 and not hits:
                        hits.append(1)
                        solo.break_generation()
                    try:
                        step.backward(loss)
                    except RuntimeError:
                        hits.append(2)
                step.report(loss=step.loss)
                training.apply(step)
        return training.parameters

    assert_like_a_plain_loop(solo.run(train_fn))
    assert hits == [1, 2]


def test_reports_of_a_failed_attempt_are_dropped(solo):
    def hook(step, training, place):
        if place == "start" and step.generation == 1 and step.index == 1:
            step.report(only_in_the_first_attempt=1)
        if place == "reduced" and step.generation == 1 and step.index == 1:
            solo.break_generation()

    ended = solo.run(trained(hook))
    assert_like_a_plain_loop(ended)
    assert [set(report.metrics) for report in ended.reports] == [{"loss", "index"}] * STEPS


def test_a_collective_that_fails_by_itself_breaks_the_generation(solo):
    """The worker tells of it, and the step is tried again."""
    fails = []

    def act(step, training):
        group = training.session._replica.group
        allreduce = group.allreduce

        def broken(tensor):
            group.allreduce = allreduce
            fails.append(tensor)
            raise RuntimeError("connection reset by peer")

        group.allreduce = broken

    hook = once(1, "start", act)
    ended = solo.run(trained(hook))
    assert fails
    assert_like_a_plain_loop(ended)
    (event,) = [event for event in ended.events if isinstance(event, ev.CollectiveBroken)]
    assert event.generation == 1 and "connection reset by peer" in event.error


def test_what_acts_and_callbacks_draw_is_not_missed_by_the_code_behind_them(solo):
    """Acts on a stable step run where it is known to be stable, which is not the same place on all replicas."""
    drawn, acts, calls = {}, [], []

    def act():
        acts.append(torch.rand(7))

    def hook(step, training, place):
        if place == "start":
            step.on_commit(act)
        if place in ("before", "reduced"):
            drawn[step.index, rng.BODY if place == "reduced" else rng.DOOR] = torch.rand(1).item()

    class Drawing(WorkerCallback):
        def on_step_begin(self, step):
            calls.append((step.index, torch.rand(7)))

    assert_like_a_plain_loop(solo.run(with_callbacks(trained(hook), [Drawing()])))
    assert len(acts) >= STEPS - 1 and len(calls) == STEPS
    for index, number in calls:
        rng.seed_all(SEED, index, rng.DOOR)
        assert torch.equal(torch.rand(7), number), "it draws the same whatever came before"
    for (index, where), number in drawn.items():
        rng.seed_all(SEED, index, where)
        assert torch.rand(1).item() == number, (index, where)


def test_draws_of_a_retry_are_those_of_the_first_attempt(solo):
    """A micro-batch's dropout depends neither on how often it was tried, nor on what was drawn before it."""
    draws = {}

    def hook(step, training, place):
        if place in ("start", "backward") and step.generation == 2:
            torch.rand(7)
        if place == "batch":
            draws.setdefault((step.index, step.generation), []).append(float(torch.rand(())))
        if place == "reduced" and (step.index, step.generation) == (1, 1):
            solo.break_generation()

    solo.run(trained(hook))
    assert draws[1, 1] == draws[1, 2]
    assert len({draw for values in draws.values() for draw in values}) == 10
