"""Effect. What train_fn is given: the door to steps, data, and the group."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from elastic.control import events as ev
from elastic.control.values import StepReport, View
from elastic.errors import OutsideWorkerError, SettingError, StepMisuseError
from elastic.settings import Limits
from elastic.train.data import Batches, make_batches
from elastic.train.flight import FlightPage, Flying
from elastic.train.gloo import FormingCancelledError, GlooGroup, StoreHost
from elastic.train.heal import DonorsDifferError, exchange
from elastic.train.link import Link
from elastic.train.reducer import BUCKET_BYTES
from elastic.train.replica import Replica
from elastic.train.step import Step, close_loop
from elastic.train.watch import DIGEST_STEPS

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a session is built from.

    Attributes:
        run, worker: names.
        host: address of this node for other workers.
        device: where the model belongs.
        seed: base of all random state and of the data order.
    """

    run: str
    worker: str
    host: str
    device: torch.device
    seed: int
    limits: Limits
    link: Link
    page: FlightPage


class Session:
    """One worker's part in a run.

    Attributes:
        run, worker: names.
        device: where the model belongs.
        seed: base of all random state.
        start_step: the first step this worker takes part in; 0 unless it joined later.
    """

    def __init__(self, around: Surroundings) -> None:
        self.run, self.worker = around.run, around.worker
        self.device, self.seed = around.device, around.seed
        self.start_step = 0
        self._link, self._page, self._limits = around.link, around.page, around.limits
        self._replica = Replica(around.link, around.page, around.limits, around.seed)
        self._replica.on_report = self._publish
        self._store = StoreHost(around.host)
        self._on_generation: list[Callable[[Session], None]] = []
        self._has_arrived = self._has_ended = False

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
        digest_steps: int = DIGEST_STEPS,
        reproducible: bool = False,
    ) -> torch.nn.Module:
        """Move the model to the device and keep replicas in step; returns the same model.

        Args:
            model: its parameters may be tied, frozen, or unused in a step.
            bucket_bytes: gradients are summed in buckets of about this size.
            digest_steps: replicas compare a digest of their state every so many steps, and at the end; 0: never.
            reproducible: sum micro-batches in one fixed order, so that no resize and no fault changes a bit; slower.

        Raises:
            StepMisuseError: called twice.
            SettingError: digest_steps is negative.
        """
        if digest_steps < 0:
            raise SettingError(f"session.prepare(digest_steps={digest_steps}) must not be negative; 0 turns votes off")
        model.to(self.device)
        self._replica.adopt(model, bucket_bytes, digest_steps, reproducible)
        return model

    def track(self, **objects: Any) -> None:
        """Name what makes up a replica's state: it is handed to joiners and set back where it must be.

        Raises:
            NotStatefulError: an object lacks state_dict() or load_state_dict().
        """
        self._replica.tracked.add(objects)
        self._replica.scalers += [thing for thing in objects.values() if isinstance(thing, torch.amp.GradScaler)]

    def batches(
        self,
        dataset: Any,
        *,
        batch_size: int,
        micro_batch_size: int | None = None,
        seed: int | None = None,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Batches:
        """Cut a map-style dataset into steps, in an order fixed by the seed.

        Args:
            dataset: `len(dataset)` and `dataset[i]`.
            batch_size: samples of a step over all replicas, whatever their number.
            micro_batch_size: samples of one forward; default: batch_size.
            seed: of the order; default: the run's.
            shuffle: a new permutation each epoch; False keeps the dataset's order.
            collate: list of samples -> micro-batch; default: torch's default_collate.

        Raises:
            DatasetTooSmallError: fewer samples than one batch.
            SettingError: not map-style, or a size is not positive.
        """
        return make_batches(
            dataset,
            batch_size=batch_size,
            micro_batch_size=micro_batch_size,
            seed=self.seed if seed is None else seed,
            shuffle=shuffle,
            collate=collate,
        )

    def steps(self, batches: Batches, max_steps: int) -> Iterator[Step]:
        """Yield steps until `max_steps` are committed; a step that failed is yielded again.

        The first call waits until this worker belongs to a generation.
        """
        if self._has_ended:
            raise StepMisuseError(
                "session.steps was called again after its loop had ended: use one loop with the total of max_steps; "
                "step.epoch tells the epoch"
            )
        replica = self._replica
        replica.use(batches)
        self._arrive()
        while not self._has_ended and self._door():
            index = self._link.state.commit.step + 1
            if index >= max_steps:
                self._end_loop(index)
                continue
            step = Step(replica, index, attempt=replica.watch.attempt_of(index), generation=self.generation)
            yield step
            if not step.is_entered:
                raise StepMisuseError(f"step {index} was not entered: write `with step:` in the body of the loop")
            self._page.note(Flying.OUTSIDE)
            if step.is_committed and step.wants_pause:
                self._link.stop_at_door()

    def on_generation(self, act: Callable[["Session"], None]) -> None:
        """Call `act(session)` whenever this worker enters a new generation, before its next step."""
        self._on_generation.append(act)

    @property
    def is_leader(self) -> bool:
        """Whether this worker leads the current generation; the role moves when leaders die."""
        return self._replica.rank == 0

    @property
    def rank(self) -> int:
        """Place in the current generation; changes with it."""
        return self._replica.rank

    @property
    def replicas(self) -> int:
        """Size of the current generation."""
        return self._replica.replicas

    @property
    def generation(self) -> int:
        return self._link.state.generation

    # --- what the runner calls ---

    def close(self) -> None:
        """After train_fn has returned: end a loop that was left early, together with all replicas.

        Raises:
            StepMisuseError: train_fn never came to session.steps.
            ConservationError: the replicas left the loop at different steps.
        """
        if not self._has_arrived:
            raise StepMisuseError("train_fn returned without iterating over session.steps(...)")
        while not self._has_ended and self._door():
            self._end_loop(self._link.state.commit.step + 1)

    # --- the door ---

    def _arrive(self) -> None:
        if self._has_arrived:
            return
        replica = self._replica
        if replica.model is None:
            raise StepMisuseError("no model: call session.prepare(model) before session.steps")
        if not replica.tracked.holds(replica.model):
            raise StepMisuseError(
                "the prepared model is not tracked: call session.track(model=model, ...) before steps"
            )
        replica.tracked.flatten()  # what can not travel is refused now, not when somebody must be healed
        self._has_arrived = True
        self._page.note(Flying.AT_DOOR)
        self._link.arrive(
            ev.WorkerParked(
                worker=self.worker,
                host=self._store.host,
                port=self._store.port,
                pid=os.getpid(),
                layout=self._replica.layout,
            )
        )

    def _door(self) -> bool:
        """Wait until this worker belongs to a live generation; False when the loop is over."""
        while not self._link.is_stepping():
            self._page.note(Flying.AT_DOOR)
            view = self._link.wait_for_orders()
            if view is None:
                self._replica.make_stable()
                self._finish()
                return False
            if self._form(view):
                for act in self._on_generation:
                    act(self)
        return True

    def _form(self, view: View) -> bool:
        """Join the group of a view and receive what is missing; False if that generation is over already."""
        self._page.place(view.generation, view.resume.step, 0)
        self._page.note(Flying.FORMING)
        self._link.post(ev.AtDoor(worker=self.worker, generation=view.generation))
        replica, group = self._replica, GlooGroup(view, view.rank_of(self.worker), self._limits.collective_timeout_s)

        def is_cancelled() -> bool:
            return not self._link.is_forming(view.generation)

        self._link.cut = group.cut
        try:
            group.form(self._store, replica.layout, is_cancelled, self._limits.door_timeout_s)
            install = exchange(group, view, replica.tracked)
        except FormingCancelledError:
            self._link.forming_failed(view, RuntimeError("cut while forming"))  # unless a newer order has come
            return False
        except DonorsDifferError as error:
            group.cut()
            self._link.corrupt(error.culprits, str(error))
            return False
        except Exception as error:  # whatever broke, the answer is the same: this generation is not formed
            group.cut()
            self._link.forming_failed(view, error)
            return False
        if self._link.state.commit.step < 0 and not self._replica.view:
            self.start_step = view.resume.step + 1
        replica.join(group, view)
        replica.resume(view)
        replica.drop_published(view.published)
        self._publish_all()  # each member tells what the last leader may have died with
        return self._link.formed(view, install)

    def _end_loop(self, index: int) -> None:
        if close_loop(self._replica, index):
            self._replica.make_stable()
            self._finish()
            self._link.end_loop()

    def _finish(self) -> None:
        """The last step is stable; every replica tells, in case the leader dies now."""
        self._has_ended = True
        self._page.note(Flying.OUTSIDE)
        self._publish_all()

    def _publish(self, report: StepReport) -> None:
        if self.is_leader:
            self._publish_all()

    def _publish_all(self) -> None:
        while self._replica.unpublished:
            self._link.post(ev.StepStable(worker=self.worker, report=self._replica.unpublished.popleft()))
