"""Train a small byte-level GPT on the source of Python's own standard library, elastically.

The whole program in one file: text every machine has, a model of a million parameters, and a training
function that survives the loss of workers. From a checkout, on any machine:

    python examples/bytes_gpt.py --workers 2-4

The score is bits per byte on held-out files: how many bits the model needs, on average, to write down the
next byte. Eight is knowing nothing; a table of byte frequencies needs between four and five; the model
should end clearly below the table. While it runs, `kill -9` a worker: the score must not move.
"""

import argparse
import hashlib
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

BYTE_VALUES = 256
SKIPPED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "encodings", "site-packages", "dist-packages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that decides the outcome: on one Python, two runs of one recipe agree up to float rounding."""

    steps: int = 200
    seed: int = 0
    float64: bool = False  # double precision: rounding cannot hide a lost sample; half as fast
    batch_size: int = 32  # samples a step, over all workers together, however many there are
    micro_batch_size: int = 4  # samples in one forward and backward; what is dealt out to workers
    learning_rate: float = 2e-3  # at its peak, after the warm-up
    warmup_steps: int = 20
    clip_norm: float = 1.0
    context: int = 64  # bytes the model sees at once
    max_train_bytes: int = 7_000_000  # make it small to see several epochs in a short run


# ---- the text


class ByteWindows(Dataset[tuple[int, Tensor, Tensor]]):
    """Non-overlapping windows of a text. Item i is (i, x, y): `context` bytes, and the byte after each.

    The index comes along so that whoever trains can say which samples were consumed.
    """

    def __init__(self, text: bytearray, context: int) -> None:
        self.bytes = torch.frombuffer(text, dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, Tensor, Tensor]]:
        """Fetch many items with one gather; torch's DataLoader asks this way too."""
        starts = torch.as_tensor(indices, dtype=torch.int64)[:, None] * self.context  # (N, 1)
        windows = self.bytes[starts + torch.arange(self.context + 1)].long()  # (N, context + 1)
        return [(int(index), window[:-1], window[1:]) for index, window in zip(indices, windows, strict=True)]


def load_datasets(recipe: Recipe) -> tuple[ByteWindows, ByteWindows]:
    """Windows for training and for validation, from the standard library's own files, sorted by name.

    A tenth of the files, chosen by a hash of the name, is for validation: whole files, so that no model can
    score by remembering the other half of a function.
    """
    root = Path(os.__file__).parent
    names = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = set(subfolders) - SKIPPED_FOLDERS  # the walk goes on into what is left here
        names += [(Path(folder) / file).relative_to(root).as_posix() for file in files if file.endswith(".py")]
    train, validation = bytearray(), bytearray()
    for name in sorted(names):
        split = validation if zlib.crc32(name.encode()) % 10 == 0 else train
        split += (root / name).read_bytes()
    return ByteWindows(train[: recipe.max_train_bytes], recipe.context), ByteWindows(validation, recipe.context)


# ---- the model


class Block(nn.Module):
    """Attention, then a perceptron, each behind its norm and beside a residual path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.perceptron_norm = nn.LayerNorm(width, bias=False)
        self.perceptron_in = nn.Linear(width, 4 * width, bias=False)
        self.perceptron_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, width) in and out
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, T, width / heads)
            for part in self.queries_keys_values(self.attention_norm(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron_out(F.gelu(self.perceptron_in(self.perceptron_norm(x))))


class BytesGPT(nn.Module):
    """A GPT over bytes: pre-norm, no biases, learned positions, one table for embedding and output."""

    def __init__(self, *, context: int = 64, width: int = 128, layers: int = 5, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTE_VALUES, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Every block adds twice to the residual path: smaller, so that depth does not blow it up.
                scale = 1 / math.sqrt(2 * layers) if name.endswith("out.weight") else 1.0
                nn.init.normal_(weight, std=0.02 * scale)

    def forward(self, x: Tensor) -> Tensor:  # (B, T) bytes -> (B, T, 256) logits
        hidden = self.blocks(self.bytes(x) + self.positions.weight[: x.shape[1]])
        return F.linear(self.norm(hidden), self.bytes.weight)


def new_model(recipe: Recipe) -> BytesGPT:
    """The recipe's model, the same weights for the same seed."""
    torch.manual_seed(recipe.seed)
    return BytesGPT(context=recipe.context).to(torch.float64 if recipe.float64 else torch.float32)


def new_optimizer(model: nn.Module, recipe: Recipe) -> tuple[torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """AdamW; its rate warms up linearly and follows a cosine down to a tenth of the peak."""

    def rate_at(step: int) -> float:
        warmth = min(1.0, (step + 1) / recipe.warmup_steps)
        return warmth * (0.55 + 0.45 * math.cos(math.pi * min(1.0, step / recipe.steps)))

    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95))
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)


def loss_fn(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean nats per byte of a micro-batch."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


# ---- the score


def byte_frequency_baseline(train: ByteWindows, validation: ByteWindows) -> float:
    """Bits per byte of a table of byte frequencies: what is to be had without looking at the context."""
    counts = torch.bincount(train.bytes.int(), minlength=BYTE_VALUES).double()
    counts += 1  # a byte never seen is dear, not impossible
    bits = -(counts / counts.sum()).log2()
    return bits[validation.bytes.long()].mean().item()


@torch.no_grad()
def bits_per_byte(model: nn.Module, validation: ByteWindows, windows: int = 256) -> float:
    """The model's score on `windows` evenly spaced windows, the same ones each time."""
    windows = min(windows, len(validation))
    chosen = [i * len(validation) // windows for i in range(windows)]
    nats = 0.0
    for start in range(0, windows, 32):
        _, xs, ys = zip(*validation.__getitems__(chosen[start : start + 32]), strict=True)
        nats += loss_fn(model, torch.stack(xs), torch.stack(ys)).item() * len(xs)
    return nats / windows / math.log(2)


# ---- the training


class StepLog:
    """JSON lines of what this worker did. Each is one write to a file: SIGKILL loses nothing once said."""

    def __init__(self, folder: str | Path | None, worker: str) -> None:
        self._file = None  # no folder, no log
        if folder:
            os.makedirs(folder, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(f"{folder}/{worker}.jsonl", flags, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        if self._file is not None:
            line = {"event": event, "t": time.time(), "pid": os.getpid(), **facts}
            os.write(self._file, json.dumps(line).encode() + b"\n")


def digest(model: nn.Module) -> str:
    """A fingerprint of all parameters, to the last bit."""
    result = hashlib.blake2b(digest_size=16)
    for parameter in model.parameters():
        result.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return result.hexdigest()


def make_train_fn(recipe: Recipe, step_log_dir: str | Path | None = None) -> Callable[[Any], Any]:
    """What every worker runs; into `step_log_dir` go a log per worker and the final parameters."""

    def train_fn(session: Any) -> dict[str, float] | None:
        log = StepLog(step_log_dir, session.worker)
        train_set, validation_set = load_datasets(recipe)
        model = session.prepare(new_model(recipe))
        optimizer, scheduler = new_optimizer(model, recipe)
        session.track(model=model, optimizer=optimizer, scheduler=scheduler)
        log.write("started", model_id=id(model), optimizer_id=id(optimizer))

        batches = session.batches(train_set, batch_size=recipe.batch_size, micro_batch_size=recipe.micro_batch_size)
        for step in session.steps(batches, max_steps=recipe.steps):
            with step:
                place = {"step": step.index, "generation": step.generation, "attempt": step.attempt}
                for index, x, y in step:
                    # Said before backward: once its reductions are out, the step can do without us.
                    log.write("consumed", **place, ids=index.tolist())
                    step.backward(loss_fn(model, x, y))
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
                step.apply(optimizer, scheduler=scheduler)
                step.report(loss=step.loss)
                log.write("committed", **place, loss=float(step.loss))

        log.write("finished", digest=digest(model))
        if not session.is_leader:
            return None
        if step_log_dir:
            torch.save(model.state_dict(), partial := Path(step_log_dir) / "final.partial")
            os.replace(partial, Path(step_log_dir) / "final.pt")
        return {
            "bits_per_byte": bits_per_byte(model, validation_set),
            "baseline_bits_per_byte": byte_frequency_baseline(train_set, validation_set),
        }

    return train_fn


def main() -> None:
    """Train, and print the score beside the table's."""
    import elastic  # the model and the data above do not need it

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--workers", metavar="N[-M]", help="fewest and most (default: as configured, or 2-4)")
    parser.add_argument("--seed", type=int, help="of the model and the data's order (default: as configured, or 0)")
    parser.add_argument("--float64", action="store_true")
    parser.add_argument("--address", help="of a Ray cluster (default: RAY_ADDRESS, a running one, or a local one)")
    args = parser.parse_args()
    scaling, (chosen, given) = None, elastic.config.load()
    seed = chosen.seed if args.seed is None else args.seed
    if args.workers or "scaling" not in given:
        fewest, most = (int(count) for count in ((args.workers or "2-4").split("-") * 2)[:2])
        scaling = elastic.Scaling(num_dp_replicas=(fewest, most), spares=0)

    result = elastic.fit(
        make_train_fn(Recipe(steps=args.steps, seed=seed, float64=args.float64)),
        scaling=scaling,
        seed=seed,
        address=args.address,
    )
    print(f"{result.steps} steps, {len(result.incidents)} incidents, world sizes {result.world_sizes}")
    print(f"bits per byte: {result.value['bits_per_byte']:.3f}")
    print(f"byte frequencies alone: {result.value['baseline_bits_per_byte']:.3f}")


if __name__ == "__main__":
    main()
