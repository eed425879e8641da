"""Pure. The tree of errors; each message is one sentence with the cause and the knob to turn.

    ElasticError
    ├── SettingError              a setting that cannot work
    ├── NoClusterError            no Ray cluster could be reached
    ├── NotEnoughSlotsError       fewer slots than the minimum of replicas
    ├── NoRoomError               a tier has no room for what it should hold
    ├── TrainFnError              the user's train_fn raised
    ├── ReplicasLostError         no live, healed copy of the state is left
    ├── NoProgressError           incident after incident, without a committed step between them
    ├── ExitedError               the policy had the run save and exit before its last step
    ├── DatasetTooSmallError      fewer samples than one global batch
    ├── NotStatefulError          a tracked object has no state_dict / load_state_dict
    ├── OutsideWorkerError        a session was used outside its train_fn
    ├── StepMisuseError           the `for`/`with` idiom of a step was broken
    ├── StateError                state that cannot be carried from one process to another
    ├── ConservationError         a reduction did not contain exactly what the step is made of
    ├── CorruptError              stored bytes are not those that were written
    ├── RefusedError              a checkpoint that cannot be had, whole and checked, from any source
    ├── SupersededError           a newer driver of the run has taken its workers over
    ├── NonFiniteLossError        a loss that is nan or infinite, and not because of one replica
    └── DivergenceError           replicas that should hold the same bits do not

The two signals derive from BaseException, so that a user's `except Exception` cannot swallow them.
Errors cross process borders: each keeps its message as its only argument and its details as attributes.
"""

from typing import Any


class ElasticError(Exception):
    """Base of all errors that users may catch."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.__dict__.update(details)


class SettingError(ElasticError, ValueError):
    """A setting cannot work; the message names the field."""


class NoClusterError(ElasticError):
    """No Ray cluster could be reached at the given address. Attribute `is_there`: one answers, and does not fit."""

    is_there: bool = False


class NotEnoughSlotsError(ElasticError):
    """The cluster could not place the minimum of replicas before the deadline."""


class NoRoomError(ElasticError):
    """A node has no room for the snapshots of its workers, or for others' copies; the message names the knobs."""


class TrainFnError(ElasticError):
    """The user's train_fn raised. Attributes: `worker`, `rank` (None before the first generation), `traceback`."""


class ReplicasLostError(ElasticError):
    """Every live, healed copy of the training state is gone and no tier holds one."""


class NoProgressError(ElasticError):
    """The policy gave the run up; the message tells its reason."""


class ExitedError(ElasticError):
    """The policy had the run save and exit; start it again under its name to go on.

    Attribute: `step`, the newest one that is known to be saved, -1 if none is.
    """

    step: int


class DatasetTooSmallError(ElasticError, ValueError):
    """The dataset holds fewer samples than one global batch."""


class NotStatefulError(ElasticError, TypeError):
    """A tracked object lacks state_dict() or load_state_dict()."""


class OutsideWorkerError(ElasticError, RuntimeError):
    """A session was asked for, or carried, outside the worker that owns it."""


class StepMisuseError(ElasticError, RuntimeError):
    """A step was left, entered or applied in a way that cannot be committed."""


class StateError(ElasticError):
    """A piece of state cannot be carried to another process; the message names its path."""


class ConservationError(ElasticError):
    """A reduction summed something else than what seed, cursor and rate say the step is made of."""


class CorruptError(ElasticError):
    """Stored bytes are not those that were written; the message names the step, the shard and the chunk."""


class RefusedError(ElasticError):
    """A checkpoint cannot be restored from what can be read now: take an older one.

    Attributes: `shard`, or None; `chunk` of it, -1: none in particular. `is_bad`: the persistent tier, and whoever else
    holds it, gave wrong bytes, or none.
    """

    shard: int | None
    chunk: int = -1
    is_bad: bool = False


class SupersededError(ElasticError):
    """A newer driver of the run has taken its workers over, and they do not heed this one any more."""


class NonFiniteLossError(ElasticError, ArithmeticError):
    """The loss of a step is nan or infinite, whoever computes it: the model's or the data's doing."""


class DivergenceError(ElasticError):
    """Replicas of one commit hold different bits; the message names the object."""


class AttemptBroken(BaseException):  # noqa: N818 - a signal, not an error
    """Signal: this attempt cannot complete; the step is tried again in the next generation."""


class Dismissed(BaseException):  # noqa: N818 - a signal, not an error
    """Signal: this worker is not needed any more and leaves train_fn."""
