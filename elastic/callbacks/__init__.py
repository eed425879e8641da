"""Effect. Callbacks: called at named moments, with values; subclass and override what you need.

A `Callback` runs in the thread that called `fit`, in the order of what happened; control does not wait for it. A
`WorkerCallback` is sent to every worker and runs inside its steps; training waits for it. `elastic.sinks` has callbacks
that write moments to a file, to TensorBoard, or post them.
"""

from elastic.callbacks.base import Callback, by_place, configured
from elastic.callbacks.garbage import CollectGarbage
from elastic.callbacks.keeping import ModelCheckpoint
from elastic.callbacks.memory import MemoryLog
from elastic.callbacks.notices import AutoCheckpoint
from elastic.callbacks.overlap import OverlapCommunication
from elastic.callbacks.profiling import Profile
from elastic.callbacks.rates import LinearLR, ScaledLR, SquareRootLR
from elastic.callbacks.steps import StepLog, TensorBoardScalars
from elastic.callbacks.worker import WorkerCallback
from elastic.control.moments import (
    GaveUp,
    IncidentDecided,
    IncidentOpened,
    IncidentResolved,
    Moment,
    NodeQuarantined,
    NoticeHeard,
    Resized,
    RungDegraded,
    RungReached,
    StragglerFound,
)
from elastic.control.pace import Resize

__all__ = [
    "AutoCheckpoint",
    "Callback",
    "CollectGarbage",
    "GaveUp",
    "IncidentDecided",
    "IncidentOpened",
    "IncidentResolved",
    "LinearLR",
    "MemoryLog",
    "ModelCheckpoint",
    "Moment",
    "NodeQuarantined",
    "NoticeHeard",
    "OverlapCommunication",
    "Profile",
    "Resize",
    "Resized",
    "RungDegraded",
    "RungReached",
    "ScaledLR",
    "SquareRootLR",
    "StepLog",
    "StragglerFound",
    "TensorBoardScalars",
    "WorkerCallback",
    "by_place",
    "configured",
]
