"""Train a Llama-style model whose replicas are several workers each: FSDP2 inside a replica, elastic across them.

    python examples/llama.py --size tiny --replicas 1-2 --workers-per-replica 2

The sizes are named by their parameters; `tiny` runs anywhere. The text is Python's own standard library, read as bytes,
so that nothing needs to be downloaded: it teaches the machinery, not the model. While it runs, `kill -9` a worker: its
replica is left out, made whole, and joins again.
"""

import argparse
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The shape of a Llama; 8B, 70B and 405B are those of Llama 3 (arXiv 2407.21783, table 3)."""

    width: int
    layers: int
    heads: int
    key_value_heads: int
    hidden: int
    vocabulary: int = 128_256


SIZES = {
    "tiny": Size(width=64, layers=2, heads=4, key_value_heads=2, hidden=192, vocabulary=256),
    "36M": Size(width=512, layers=12, heads=8, key_value_heads=4, hidden=1408, vocabulary=256),
    "2B": Size(width=2048, layers=24, heads=16, key_value_heads=8, hidden=8192),
    "8B": Size(width=4096, layers=32, heads=32, key_value_heads=8, hidden=14_336),
    "70B": Size(width=8192, layers=80, heads=64, key_value_heads=8, hidden=28_672),
    "405B": Size(width=16_384, layers=126, heads=128, key_value_heads=8, hidden=53_248),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that decides the outcome."""

    size: str = "tiny"
    steps: int = 100
    seed: int = 0
    batch_size: int = 32
    micro_batch_size: int = 8  # of a replica: each of its workers computes its part
    learning_rate: float = 3e-4
    context: int = 64
    max_bytes: int = 2_000_000


# ---- the model


def rotate(x: Tensor) -> Tensor:
    """Rotary positions: (B, heads, T, d) in and out."""
    time, half = x.shape[-2], x.shape[-1] // 2
    rates = 500_000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(time, device=x.device, dtype=torch.float32), rates)
    sine, cosine = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=-1)


class Block(nn.Module):
    """Grouped-query attention and a gated perceptron, each behind its norm and beside a residual path."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.groups = size.heads, size.key_value_heads
        narrow = size.width // size.heads * size.key_value_heads
        self.attention_norm = nn.RMSNorm(size.width)
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, narrow, bias=False)
        self.value = nn.Linear(size.width, narrow, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.perceptron_norm = nn.RMSNorm(size.width)
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, width) in and out
        normed = self.attention_norm(x)
        queries = rotate(self.query(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2))
        keys = rotate(self.key(normed).unflatten(-1, (self.groups, -1)).transpose(1, 2))
        values = self.value(normed).unflatten(-1, (self.groups, -1)).transpose(1, 2)
        repeats = self.heads // self.groups
        keys, values = (part.repeat_interleave(repeats, dim=1) for part in (keys, values))
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.perceptron_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Tokens (B, T) to logits (B, T, vocabulary)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def sharded(recipe: Recipe, session: Any) -> Llama:
    """The model over the workers of this replica: no worker ever holds all of it."""
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = Llama(SIZES[recipe.size])
    for block in model.blocks:
        fully_shard(block, mesh=session.replica_mesh)
    fully_shard(model, mesh=session.replica_mesh)
    model.to_empty(device=session.device)
    for name, param in model.named_parameters():
        draw = torch.Generator(session.device).manual_seed(zlib.crc32(f"{recipe.seed} {session.shard} {name}".encode()))
        with torch.no_grad():
            part = param.to_local()  # type: ignore[operator]
            part.fill_(1.0) if param.dim() == 1 else part.normal_(std=0.02, generator=draw)
    return model


# ---- the text


class Bytes:
    """Windows of the standard library's files, `context` + 1 bytes each."""

    def __init__(self, recipe: Recipe) -> None:
        text = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py")))
        self._text = torch.frombuffer(bytearray(text[: recipe.max_bytes]), dtype=torch.uint8)
        self._context = recipe.context

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self._context
        return self._text[start : start + self._context + 1].long()

    def __getitems__(self, indices: Sequence[int]) -> list[Tensor]:
        return [self[index] for index in indices]


# ---- the training


def loss_of_part(model: nn.Module, whole: Tensor, shard: int, shards: int) -> Tensor:
    """Of this worker's rows of a micro-batch, such that the mean over the workers is the mean over all rows.

    The last micro-batch of an epoch may have fewer rows than there are workers: some get none, and take part all the
    same, since their mates wait for them inside the model.
    """
    part = whole.tensor_split(shards)[shard]
    logits = model(part[:, :-1])
    total = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
    return total * shards / whole[:, 1:].numel()


def make_train_fn(recipe: Recipe) -> Callable[[Any], float]:
    """What every worker runs; returns the last loss."""

    def train_fn(session: Any) -> float:
        mesh = session.replica_mesh
        model = session.prepare(sharded(recipe, session))
        optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
        session.track(model=model, optimizer=optimizer)
        batches = session.batches(Bytes(recipe), batch_size=recipe.batch_size, micro_batch_size=recipe.micro_batch_size)
        loss = torch.zeros(())
        for step in session.steps(batches, max_steps=recipe.steps):
            with step:
                for whole in step:
                    step.backward(loss_of_part(model, whole.to(session.device), session.shard, mesh.size()))
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                loss = torch.tensor(step.loss) / mesh.size()
                torch.distributed.all_reduce(loss)  # over this replica: the mean of what its workers found
                step.apply(optimizer)
                step.report(loss=float(loss))
        return float(loss)

    return train_fn


def main() -> None:
    """Train, and print the loss."""
    import elastic

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--steps", type=int, default=Recipe().steps)
    parser.add_argument("--replicas", default="1-2", metavar="N[-M]", help="fewest and most (default: 1-2)")
    parser.add_argument("--workers-per-replica", type=int, default=2)
    parser.add_argument("--address", help="of a Ray cluster (default: RAY_ADDRESS, a running one, or a local one)")
    args = parser.parse_args()
    fewest, most = (int(count) for count in (args.replicas.split("-") * 2)[:2])
    result = elastic.fit(
        make_train_fn(Recipe(size=args.size, steps=args.steps)),
        scaling=elastic.Scaling(num_dp_replicas=(fewest, most), workers_per_replica=args.workers_per_replica),
        address=args.address,
    )
    print(f"{result.steps} steps, {len(result.incidents)} incidents, world sizes {result.world_sizes}")
    print(f"loss: {result.last_report['loss']:.3f}")


if __name__ == "__main__":
    main()
