"""Effect. What train_fn is given: the door to steps, data, and the group."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch.distributed.device_mesh import DeviceMesh

from elastic.callbacks.rates import ScaledLR
from elastic.callbacks.worker import WorkerCallback
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.pace import Resize
from elastic.control.values import CommitId, StepReport, View
from elastic.errors import OutsideWorkerError, SettingError, StepMisuseError
from elastic.train import dtensor_random, rng
from elastic.train.ahead import Ahead
from elastic.train.closing import close_loop
from elastic.train.compiling import Compilations
from elastic.train.data import Source
from elastic.train.data_door import DataDoor
from elastic.train.evaluation import Evaluation, Evaluator
from elastic.train.gloo import FormingCancelledError, GlooGroup, close_all, cut_all, groups_of
from elastic.train.heal import DonorsDifferError, heal
from elastic.train.hooks import Hooks, has_own
from elastic.train.link import SaveOrder
from elastic.train.meeting import StoreHost
from elastic.train.nccl import warm_up
from elastic.train.reducer import BUCKET_BYTES
from elastic.train.refuse import refuse, refuse_loop, refuse_strangers
from elastic.train.replica import Replica
from elastic.train.reviving import revive
from elastic.train.sharded import is_gathering, use_sums
from elastic.train.step import SKIPPED_ELSEWHERE, Step
from elastic.train.surroundings import Surroundings
from elastic.train.warming import undone
from elastic.train.world import World, open_world

_current: "Session | None" = None


def get_session() -> "Session":
    """The session of this worker, for code that is not handed it.

    Raises:
        OutsideWorkerError: called outside of a train_fn that elastic.fit runs.
    """
    if _current is None:
        raise OutsideWorkerError("there is no session here: it exists only inside a train_fn that elastic.fit runs")
    return _current


def set_session(session: "Session | None") -> None:
    """Called by the runner alone."""
    global _current
    _current = session


class Session(DataDoor):
    """One worker's part in a run.

    Attributes:
        run, worker: names.
        device: where the model belongs.
        seed: base of all random state.
        group: torch.distributed's WORLD: the replicas of the current generation.
        start_step: the first step this worker takes part in; 0 unless it joined later.
        shard: place of this worker in its replica, for life; 0 where a replica is one worker.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self.run, self.worker, self.device, self.seed = around.run, around.worker, around.device, around.seed
        self.start_step = 0
        self._link, self._page, self._limits = around.link, around.page, around.limits
        self._compilations = Compilations(around.page)
        self._entered_s = time.time()
        self.shard = around.shard
        self._mesh: DeviceMesh | None = None
        self._replica = Replica(around)
        self._replica.on_report = self._publish
        self.group: World = open_world(self._replica, around.shard, around.width)
        self._store = StoreHost(around.host)
        self._ahead = Ahead(around.link, self._store, self._layouts, self._groups_of, around.limits)
        self._on_generation: list[Callable[[Session], None]] = []
        self._hooks = Hooks(around.page, self._replica.meter)
        self._has_arrived = self._has_begun = self._has_ended = False
        if around.width > 1 and self.device.type == "cuda":
            dtensor_random.begin(self.replica_mesh, self.seed)

    def __reduce__(self) -> NoReturn:
        raise OutsideWorkerError(
            "a session cannot leave its worker: do not put it into objects that are sent elsewhere"
        )

    # --- what the user calls ---

    def prepare(
        self,
        model: torch.nn.Module,
        bucket_bytes: int = BUCKET_BYTES,
        *,
        digest_steps: int | None = None,
        reproducible: bool = False,
    ) -> torch.nn.Module:
        """Move the model to the device and keep replicas in step; returns the same model.

        Args:
            model: its parameters may be tied, frozen, or unused in a step.
            bucket_bytes: gradients are summed in buckets of about this size.
            digest_steps: replicas compare a digest of their state every so many steps, and at the end; 0: never;
                None: every 100, and less often where that would take more than 0.5 % of the time.
            reproducible: sum micro-batches in one fixed order, so that no resize and no fault changes a bit; slower.

        Raises:
            StepMisuseError: called twice, or with a wrapper that spans replicas.
            SettingError: digest_steps is negative.
        """
        refuse(model, self._replica.width)
        if digest_steps is not None and digest_steps < 0:
            raise SettingError(f"session.prepare(digest_steps={digest_steps}) must not be negative; 0 turns votes off")
        if is_gathering(model):
            use_sums(model)
        else:
            model.to(self.device)
        self._replica.adopt(model, bucket_bytes, digest_steps, reproducible)
        return model

    def track(self, **objects: Any) -> None:
        """Name what makes up a replica's state: it is handed to joiners and set back where it must be.

        Raises:
            NotStatefulError: an object lacks state_dict() or load_state_dict().
            StepMisuseError: a wrapper that spans replicas, an optimizer that needs a closure, a name used twice, or
                after the loop began.
        """
        if self._has_arrived:
            raise StepMisuseError(
                f"session.track({', '.join(objects)}) after the loop began: call it before session.steps, since those "
                "who join later must track the same to be let in"
            )
        for thing in objects.values():
            refuse(thing, self._replica.width)
        self._replica.tracked.add(objects)
        self._replica.scalers += [thing for thing in objects.values() if isinstance(thing, torch.amp.GradScaler)]

    def evaluate_every(self, steps: int, act: Callable[[Evaluation], Mapping[str, float]]) -> None:
        """Call `act(evaluation)` on all replicas after every so many steps, and after the last one.

        The tracked modules are in eval mode, gradients are off, collectives are welcome. If the generation breaks, all
        of it is called again. Its numbers, the same on all replicas, are `session.evaluated`, and are reported with
        the step that they evaluate, as `evaluation/<name>`.

        Raises:
            SettingError: `steps` is not positive.
            StepMisuseError: called twice, or after the loop began.
        """
        if self._replica.evaluator is not None or self._has_arrived:
            raise StepMisuseError("session.evaluate_every: call it once, before session.steps")
        self._replica.evaluator = Evaluator(act, steps)
        evaluator = self._replica.evaluator
        self._replica.tracked.add({"elastic.evaluation": evaluator}, fresh=evaluator.state_dict())

    @property
    def evaluated(self) -> dict[str, float]:
        """The newest results of the evaluation, empty before the first; the same on all replicas in a step."""
        return self._replica.evaluator.results if self._replica.evaluator is not None else {}

    def steps(self, batches: Source, max_steps: int, phases: int = 1) -> Iterator[Step]:
        """Yield steps until `max_steps` are committed; a step that failed is yielded again.

        The first call waits until this worker belongs to a generation.

        Args:
            batches: what the steps are made of.
            max_steps: how many, since the start of the run.
            phases: updates of a step. Each is yielded as a step of its own, with the same `index`, the same samples,
                and its `phase`; each is committed by itself (two optimizers that take turns).
        """
        if self._has_ended:
            raise StepMisuseError(
                "session.steps was called again after its loop had ended: use one loop with the total of max_steps; "
                "step.epoch tells the epoch"
            )
        replica = self._replica
        if self._has_arrived and (batches is not replica.batches or phases != replica.phases):
            raise StepMisuseError(
                "session.steps was called again with other batches or phases: use one loop, which joiners can follow; "
                "step.index and step.epoch tell where it stands"
            )
        refuse_loop(batches, phases, is_ordered=replica.model is not None and replica.reducer.is_ordered)
        replica.use(batches)
        replica.phases, replica.last_number = phases, max_steps * phases - 1
        self._arrive()
        while not self._has_ended and self._door():
            number = self._link.state.commit.step + 1
            if not self._evaluate(number, max_steps):
                continue
            if number >= max_steps * phases:
                self._end_loop(number)
                continue
            replica.retune(number)
            self._open(batches)
            step = Step(replica, number, attempt=replica.watch.attempt_of(number), generation=self.generation)
            self._page.note(Flying.OUTSIDE)
            self._has_begun = True
            self._compilations.watch()
            if why := replica.why_left_out(step.index):
                with step:
                    step.leave_out(why)
            else:
                rng.seed_all(replica.seed, number, rng.DOOR)
                self._hooks.step_begins(step)
                rng.seed_all(replica.seed, number, rng.DOOR)  # whatever they have drawn, the leader's for one
                with self._around.section():
                    yield step
            self._refuse_torn()
            if not step.is_entered:
                raise StepMisuseError(f"step {step.index} was not entered: write `with step:` in the body of the loop")
            with replica.meter.stalling():
                replica.snapshots.at_door()
            if step.is_committed and step.wants_pause:
                self._link.stop_at_door()
            if not why:
                self._hooks.step_ends(step)

    def on_generation(self, act: Callable[["Session"], None]) -> None:
        """Call `act(session)` whenever this worker enters a new generation, before its next step."""
        self._on_generation.append(act)

    @contextmanager
    def slow(self, reason: str) -> Iterator[None]:
        """Announce that this worker will be silent for long (saving, compiling), so that it is not taken for hung.

        Until `Limits.door_timeout_s` it is left alone; then `reason` is part of the incident.
        """
        with self._page.during(Flying.SLOW, reason):
            yield

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Run the prepared model once before `steps`: a joiner compiles then, and nobody waits for it.

        Gradients are dropped afterwards; buffers and torch's random numbers are as before.

        Raises:
            StepMisuseError: before `prepare`, or after the loop began, when others wait.
        """
        if self._replica.model is None or self._has_arrived:
            raise StepMisuseError("session.warming_up: use it between session.prepare and session.steps")
        with self._page.during(Flying.SLOW, "warming up"), undone(self._replica.model):
            yield

    def note(self, what: str, step: int = -1, seconds: float = 0.0, detail: str = "") -> None:
        """Write a line into the run's journal (`Noted`): for what is rare, since each goes through the driver.

        Args:
            what: of what kind. step: number of the update that it belongs to (`Step.number`); -1: to none.
            seconds: that training has waited for it.
        """
        self._link.post(ev.Noted(worker=self.worker, what=what, step=step, seconds=seconds, detail=detail))

    @contextmanager
    def mutating(self) -> Iterator[None]:
        """Change parameters or optimizer state outside of step.apply: snapshots that read them are waited for."""
        self._replica.snapshots.fence()
        yield

    def on_resize(self, act: Callable[[Resize], None]) -> None:
        """Call `act(resize)` on every worker in the first step of another size, before its optimizers run.

        As a part of the step's apply it may change what is tracked. A failed attempt does not call it.
        """
        self._replica.on_resize.append(act)

    @property
    def is_leader(self) -> bool:
        """Whether this worker leads the generation; the role moves when leaders die."""
        return self._replica.rank == 0 and self.shard == 0

    @property
    def rank(self) -> int:
        """Place of this worker's replica in the current generation; changes with it."""
        return self._replica.rank

    @property
    def replica_mesh(self) -> DeviceMesh:
        """The workers of this replica, by shard, the same for life: for FSDP2, tensor or pipeline parallelism."""
        self._mesh = self._mesh or DeviceMesh.from_group(self.group, self.device.type)
        return self._mesh

    @property
    def replicas(self) -> int:
        """Size of the current generation, in replicas."""
        return self._replica.replicas

    @property
    def generation(self) -> int:
        return self._link.state.generation

    @property
    def incidents(self) -> int:
        """Those of this life of the driver, when the current generation was formed."""
        return self._replica.view.failures if self._replica.view is not None else 0

    # --- the runner calls ---

    def use(self, callbacks: Iterable[WorkerCallback]) -> None:
        """The callbacks that were given to `fit` and run on workers."""
        given = tuple(callbacks)
        for one in given:
            if isinstance(one, ScaledLR):
                self._replica.rate_rule = one
            if has_own(one, "on_resize"):
                self.on_resize(one.on_resize)
        self._hooks.use(given, self)

    def close(self) -> None:
        """After train_fn has returned: end a loop that was left early, together with all replicas.

        Raises:
            StepMisuseError: train_fn never came to session.steps.
            ConservationError: the replicas, or the workers of one, left the loop at different steps.
        """
        if not self._has_arrived:
            raise StepMisuseError("train_fn returned without iterating over session.steps(...)")
        self._refuse_torn()
        self._replica.snapshots.at_door()
        while not self._has_ended and self._door():
            self._end_loop(self._link.state.commit.step + 1)
        with self.slow("ending callbacks"):  # before anybody is told: who has left may be ended
            self._hooks.close()

    def leave(self) -> None:
        """The training thread is over: end what it started."""
        self._hooks.close()
        self._compilations.close()
        self._ahead.drop()
        self._replica.leave()

    # --- the door ---

    def _refuse_torn(self) -> None:
        """Who goes on from a step that an exception has left would go on from other state than the others."""
        if (step := self._replica.torn) is not None:
            raise StepMisuseError(
                f"step {step.index} was left by an exception before it was applied, and train_fn went on: let it leave "
                "train_fn, or catch it inside of `with step:` and drop the step there with step.skip(reason)"
            )

    def _open(self, batches: Source) -> None:
        """Look at what is needed to plan the first step; joiners receive that with the state."""
        if batches.is_closed:
            with self.slow("looking at what the data begins with"):
                batches.open()

    def _evaluate(self, number: int, max_steps: int) -> bool:
        """Evaluate before update `number`, if it is time; False if the generation broke."""
        replica = self._replica
        step, phase = divmod(number, replica.phases)
        if replica.evaluator is None or phase or not replica.evaluator.is_due(step, is_last=step >= max_steps):
            return True
        with replica.meter.stalling():
            replica.snapshots.fence()  # weights may be swapped for averaged ones, and back
        with replica.meter.evaluating():
            return replica.evaluator.run(replica, step)

    def _arrive(self) -> None:
        replica = self._replica
        self._refuse_torn()
        if self._has_arrived:  # the last loop was left before the place where its step is taken
            with replica.meter.stalling():
                replica.snapshots.at_door()
            return
        if replica.model is None:
            raise StepMisuseError("no model: call session.prepare(model) before session.steps")
        if not replica.tracked.holds(replica.model):
            raise StepMisuseError(
                "the prepared model is not tracked, or not with the buffers of its state: call "
                "session.track(model=model, ...) before steps"
            )
        refuse_strangers(replica.tracked.named(torch.optim.Optimizer), replica.reducer.params)
        if not replica.batches.equal_rounds and any(
            isinstance(part, torch.nn.SyncBatchNorm) for part in replica.model.modules()
        ):
            raise StepMisuseError("SyncBatchNorm talks in every forward: pass equal_rounds=True to session.batches")
        replica.batches.start()
        room = replica.reserve()
        if replica.nccl is not None:
            with self.slow("loading NCCL"):
                warm_up(replica.nccl, self._limits.collective_timeout_s)
        replica.tracked.seal()
        self._has_arrived = True
        self._link.connect = self._ahead.connect
        self._page.note(Flying.AT_DOOR)
        self._link.arrive(
            ev.WorkerParked(
                worker=self.worker,
                host=self._store.host,
                port=self._store.port,
                pid=os.getpid(),
                layout=self._replica.layout,
                plan=self._replica.batches.outline,
                gpus=self._around.gpus,
                no_room=room.lack,
                slot_bytes=room.slot_bytes,
                free_bytes=room.free_bytes,
                entered_s=self._entered_s,
            )
        )

    def _door(self) -> bool:
        """Wait until this worker belongs to a live generation; False when the loop is over."""
        while not self._link.is_stepping():
            self._page.note(Flying.AT_DOOR)
            view = self._link.wait_for_orders()
            if isinstance(view, CommitId):
                revive(self._replica, self._around, view)
                continue
            if isinstance(view, SaveOrder):
                self._replica.save(view.is_asked)
                continue
            if view is None:
                self._replica.make_stable()
                self._finish()
                return False
            if self._form(view):
                if not self._has_begun:
                    self.start_step = (view.resume.step + 1) // self._replica.phases
                with self.slow("session.on_generation"):
                    for act in self._on_generation:
                        act(self)
        return True

    def _form(self, view: View) -> bool:
        """Join the group of a view and receive what is missing; False if that generation is over already."""
        self._page.place(view.generation, view.resume.step, 0)
        self._page.note(Flying.FORMING)
        self._link.post(ev.AtDoor(worker=self.worker, generation=view.generation))
        replica, ahead = self._replica, self._ahead.take(view)
        groups = ahead or self._groups_of(view)

        def is_cancelled() -> bool:
            return not self._link.is_forming(view.generation)

        def gets_on() -> None:
            if not is_cancelled():  # else this thread may be elsewhere
                self._page.note(Flying.FORMING)

        cut = partial(cut_all, groups)
        self._link.cut = cut
        self._link.missed = lambda: tuple(name for group in groups for name in group.missing)
        try:
            self._connect(view, groups, bool(ahead), is_cancelled)
            began_s = time.perf_counter()
            landing = replica.landing.over(replica.tracked.lent()) if self._link.spoil() else replica.landing
            install = heal(groups, view, replica.tracked, landing, self._limits.heal_timeout_s, gets_on)
            healing_s = time.perf_counter() - began_s if view.behind else 0.0
        except FormingCancelledError:
            close_all(groups)
            self._link.forming_failed(view, RuntimeError("cut while forming"))  # unless a newer order has come
            return False
        except DonorsDifferError as error:
            cut()
            close_all(groups)
            self._link.corrupt(error.culprits, str(error))
            return False
        except Exception as error:  # whatever broke, the answer is the same: this generation is not formed
            cut()
            close_all(groups)
            self._link.forming_failed(view, error)
            return False
        replica.join(view, *groups)
        replica.resume(view)
        replica.drop_published(view.published)
        self._publish_all()  # each member tells what the last leader may have died with
        if view.behind:
            replica.snapshots.fence()
        is_live = self._link.formed(view, install, round(healing_s, 6))
        replica.meter.restart(time.time())
        if is_live:
            replica.snapshots.stable(view.resume)  # all members hold it
            for group in groups:
                group.watch(partial(self._link.hung_up, view.generation))
        return is_live

    def _connect(
        self, view: View, groups: list[GlooGroup], is_connected: bool, is_cancelled: Callable[[], bool]
    ) -> None:
        if is_cancelled():  # by a freeze that has cut the groups before these
            raise FormingCancelledError
        if lack := self._link.lacks(view):
            raise RuntimeError(f"{self.worker} does not hold {lack}")
        if is_connected:
            return
        if view.is_connected:
            raise RuntimeError(f"{self.worker} has lost the connections that it had made ahead")
        for group, layout in zip(groups, self._layouts(), strict=False):
            group.form(self._store, layout, is_cancelled, self._limits.door_timeout_s)

    def _groups_of(self, view: View, prefix: str = "") -> list[GlooGroup]:
        return groups_of(view, self.worker, self._limits.collective_timeout_s, prefix, self._replica.nccl)

    def _layouts(self) -> tuple[str, str]:
        """What the members of each of its groups must have in common."""
        return self._replica.layout, self._replica.inner_layout

    def _end_loop(self, index: int) -> None:
        self._replica.retune(index)  # one that has just joined has made no step in which to do so
        if close_loop(self._replica, index):
            self._replica.make_stable()
            self._finish()
            self._link.end_loop(self._replica.meter.lap(time.time()))

    def _finish(self) -> None:
        """The last step is stable; every replica tells, in case the leader dies now."""
        self._has_ended = True
        with self.slow("sealing the last snapshot"), self._replica.meter.stalling():
            self._replica.snapshots.finish(self._link.state.commit, self._replica.replicas)
        self._page.note(Flying.OUTSIDE)
        self._publish_all()

    def _publish(self, report: StepReport) -> None:
        if self.is_leader:
            self._publish_all()
        elif report.skipped not in ("", SKIPPED_ELSEWHERE):  # nobody else knows the reason
            self._link.post(ev.StepStable(worker=self.worker, report=report))

    def _publish_all(self) -> None:
        while self._replica.unpublished:
            self._link.post(ev.StepStable(worker=self.worker, report=self._replica.unpublished.popleft()))
