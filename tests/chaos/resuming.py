"""Effect. The saboteur's training function, which keeps all it has at the end: objects, and its generators."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elastic.train.session import Session
from tests.chaos import saboteur

KEPT = "kept.pt"


def train(session: Session, *, folder: Path, **usual: Any) -> str:
    """See `saboteur.train`; the leader writes `KEPT`."""
    digest = saboteur.train(session, folder=folder, **usual)
    if session.is_leader:
        objects = {name: one.state_dict() for name, one in session._replica.tracked._objects.items()}
        drawn = {"torch": torch.rand(8), "numpy": torch.from_numpy(np.random.rand(8))}
        drawn["python"] = torch.tensor([random.random() for _ in range(8)])
        torch.save(objects | {"drawn": drawn}, folder / KEPT)
    return digest
