"""Effect. Workers that share a GPU, and whose gradients NCCL sums: P1 to P4 hold as on the CPU."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.train.session import Session
from tests.chaos.group import FOREVER_S, Story, Training, assert_promises, run
from tests.chaos.saboteur import Sabotage, train
from tests.effects.test_nccl import share_a_gpu

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
    pytest.mark.timeout(240),
]
LIMITS = {"start_timeout_s": 120, "hang_floor_s": 1.0}


def train_on_gpu(session: Session, *, talks: bool = False, **options: Any) -> str:
    """Args: talks: in each step, after its sums."""
    share_a_gpu(session.worker)
    assert session.device.type == "cuda"
    if talks:
        clip = torch.nn.utils.clip_grad_norm_
        torch.nn.utils.clip_grad_norm_ = lambda *given: (talk(session), clip(*given))  # what follows the sums
    digest = train(session, **options)
    assert session._replica.nccl is not None
    return digest


def talk(session: Session) -> None:
    """As a metrics library does: a sum over WORLD, which is looked at."""
    told = torch.ones(1 << 16, device=session.device)
    torch.distributed.all_reduce(told)
    assert bool((told == session.replicas).all())


def play(folder: Path, *plan: Sabotage, **options: Any) -> Story:
    training = Training(function=train_on_gpu, use_gpu=True, options=options)
    return run(folder, *plan, slots=4, training=training, **LIMITS)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return play(tmp_path_factory.mktemp("clean"))


STORIES = {
    "in the forward": Sabotage(point="forward", rank=1, step=5),
    "between two buckets": Sabotage(point="between-buckets", rank=2, step=5),
    "after the sums": Sabotage(point="reduced", rank=1, step=6),
    "in the optimizer": Sabotage(point="in-apply", rank=2, step=4),
    "the leader": Sabotage(point="forward", rank=0, step=5),
    "who receives": Sabotage(point="forming", rank=1, generation=2),
}


@pytest.mark.parametrize("sabotage", STORIES.values(), ids=STORIES.keys())
def test_a_worker_is_killed(tmp_path: Path, clean: Story, sabotage: Sabotage) -> None:
    plan = (sabotage,) if sabotage.generation == 0 else (Sabotage(point="forward", rank=2, step=4), sabotage)
    assert_promises(play(tmp_path, *plan), clean, *plan)


def test_a_worker_is_stopped(tmp_path: Path, clean: Story) -> None:
    """Its kernels go on, and wait for it."""
    sabotage = Sabotage(point="forward", rank=1, step=5, signal=signal.SIGSTOP)
    assert_promises(play(tmp_path, sabotage), clean, sabotage)


def test_workers_talk_beside_the_sums(tmp_path: Path, clean: Story) -> None:
    """Who is left waits in a sum of the user's for somebody who is gone."""
    sabotage = Sabotage(point="reduced", rank=1, step=6)
    assert_promises(play(tmp_path, sabotage, talks=True), clean, sabotage)


def test_a_worker_hangs(tmp_path: Path, clean: Story) -> None:
    sabotage = Sabotage(point="stall", rank=1, step=5, delay_s=FOREVER_S)
    assert_promises(play(tmp_path, sabotage), clean, sabotage)
