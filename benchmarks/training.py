"""What is trained in a recovery benchmark: a toy GPT, steps of a set length, a state of a set size."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from examples.bytes_gpt import BYTE_VALUES, BytesGPT

BATCH = 24  # samples of a step
MICRO_BATCH = 2
MICRO_BATCHES = BATCH // MICRO_BATCH
_TENSOR_BYTES = 16 << 20
SAMPLES = 40_000 * BATCH  # one epoch is longer than any run here
_CONTEXT = 16  # bytes that the model sees at once
# Slow: at 1e-3, what two orders of summation round differently in the last bit is another model after 500 steps.
_LEARNING_RATE = 3e-5
MODEL = "a GPT of 33,440 parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one system.

    Attributes:
        name: of the run. folder: for step logs and whatever the system writes. address: of the Ray cluster.
        workers: fewest and most. spares: workers that stand ready.
        step_s: length of a step with the most workers; by sleeping, so that the machine's load does not decide it.
        state_bytes: size of what a joiner receives, beside the small model.
        micro_batch: samples of one forward.
        saves: checkpoints are kept; if not, those who have nothing better begin anew after the loss of all.
        knobs: settings of the system that runs it, by name; `benchmarks.systems` has them.
    """

    name: str
    folder: str
    address: str
    workers: tuple[int, int]
    spares: int = 0
    step_s: float = 0.05
    state_bytes: int = 0
    micro_batch: int = MICRO_BATCH
    seed: int = 0
    saves: bool = True
    knobs: dict[str, Any] = field(default_factory=dict)

    def write(self) -> Path:
        """Keep it for `read`, in its own folder."""
        path = Path(self.folder) / "job.json"
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: str) -> "Job":
        job = json.loads(Path(path).read_text())
        return cls(**job | {"workers": tuple(job["workers"])})

    @property
    def log_folder(self) -> Path:
        return Path(self.folder) / "steps"

    @property
    def hosts_file(self) -> Path:
        """Name -> address and slots of the hosts on which something may be started, now."""
        return Path(self.folder) / "hosts.json"

    @property
    def final_file(self) -> Path:
        """Parameters at the end of the run; it is over when this is there."""
        return Path(self.folder) / "final.pt"

    def stop_at(self, step: int) -> None:
        """Have the run end before this step; all must be told before one of them comes to it."""
        (partial := Path(self.folder) / "stop.partial").write_text(str(step))
        partial.rename(Path(self.folder) / "stop")

    @property
    def end_step(self) -> int | None:
        """Step before which the run ends, None as long as that is open."""
        path = Path(self.folder) / "stop"
        return int(path.read_text()) if path.exists() else None

    def is_over(self, step: int) -> bool:
        """Whether the run ends before this step."""
        return self.end_step is not None and step >= self.end_step

    def compute(self, workers: int) -> None:
        """Take the time of one micro-batch.

        Args:
            workers: the most, whatever their number is now: the work of a step does not shrink with the group.
        """
        factor = 2.0 if self._half_speed(os.getpid()).exists() else 1.0
        most = -(-BATCH // (self.micro_batch * workers))  # micro-batches of one worker
        time.sleep(factor * self.step_s / most)

    def slow_down(self, pid: int) -> None:
        """From now on this worker takes twice as long for a micro-batch."""
        self._half_speed(pid).touch()

    def _half_speed(self, pid: int) -> Path:
        return Path(self.folder) / f"half-speed-{pid}"


class Rises:
    """Sequences of bytes that rise by a stride of their own: (index, x, y); y is the byte after each of x."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        scattered = index * 2_654_435_761 % (1 << 32) >> 16  # Knuth, The Art of Computer Programming 3, 6.4
        start, stride = divmod(scattered, BYTE_VALUES)
        window = (start + stride * torch.arange(_CONTEXT + 1)) % BYTE_VALUES
        return index, window[:-1], window[1:]


def collate(items: list[tuple[int, torch.Tensor, torch.Tensor]]) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Indices, and twice (samples, bytes); every system makes its micro-batches so."""
    return (
        [index for index, _, _ in items],
        torch.stack([x for _, x, _ in items]),
        torch.stack([y for _, _, y in items]),
    )


def new_model(seed: int) -> BytesGPT:
    """`MODEL`, in 15 tensors; in double precision, where rounding can not hide a lost sample."""
    torch.manual_seed(seed)
    return BytesGPT(context=_CONTEXT, width=32, layers=2, heads=2).double()


def new_optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    """What every system updates it with."""
    return torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)


class Ballast(torch.nn.Module):
    """State that only has to be carried along, in buffers as large as the parameters of a middling layer."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        for first in range(0, size_bytes, _TENSOR_BYTES):
            size = min(_TENSOR_BYTES, size_bytes - first)
            self.register_buffer(f"layer{first // _TENSOR_BYTES}", torch.ones(size, dtype=torch.uint8))
