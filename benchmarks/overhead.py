"""What a step costs with elastic, compared with the same step in plain torch DistributedDataParallel.

    python -m benchmarks.overhead --out overhead.json

Both sides live through the whole run, in equally many processes of one thread each, and take turns: a block
of steps of one, then a block of the other, the order swapped from pair to pair. So a machine that becomes
slower or busier meanwhile meets both alike, and only the ratio within a pair is compared. The side whose turn
it is not sleeps in a read from a socket.

A block's time runs from the word "go" until the last worker stands at the door of the next block's first
step: what elastic does between two steps is inside. Elastic's supervisor and host monitor work during DDP's
blocks too; `--only ddp` says what DDP makes of a machine without them. `--null` compares DDP with DDP: how
far from 1 the ratio strays when there is nothing to see.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO

import ray
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.provenance import provenance
from examples.bytes_gpt import ByteWindows, Recipe, load_datasets, loss_fn, new_model, new_optimizer

ELASTIC, DDP, DDP_AGAIN = "elastic", "ddp", "ddp_again"
DEADLINE_S = 300.0  # for a worker to appear, or to finish a block
RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured. `blocks` pairs are kept; one more comes first, to warm up."""

    sides: tuple[str, ...] = (ELASTIC, DDP)
    blocks: int = 24
    steps_per_block: int = 20
    workers: int = 4
    seed: int = 0
    batch_size: int = 32

    @property
    def steps(self) -> int:
        """Steps of a side. The last one is not measured: at its door the last block ends."""
        return (1 + self.blocks) * self.steps_per_block + 1

    @property
    def recipe(self) -> Recipe:
        """The model and data of both sides."""
        return Recipe(steps=self.steps, seed=self.seed, batch_size=self.batch_size)


# ---- taking turns


class Gate:
    """A worker's end of the turnstile."""

    def __init__(self, address: tuple[str, int], side: str) -> None:
        connection = socket.create_connection(address, timeout=DEADLINE_S)
        connection.settimeout(2 * DEADLINE_S)  # the driver is the one to notice first
        self._file = connection.makefile("rw")
        print(side, file=self._file, flush=True)

    def arrive(self, loss: float) -> None:
        """Say that this worker is done with its block, and sleep until it is its side's turn again."""
        arrival = {"at_s": time.monotonic(), "loss": loss, "cpu_s": time.process_time()}
        print(json.dumps(arrival), file=self._file, flush=True)
        if not self._file.readline():
            raise ConnectionError("the driver of the benchmark closed the turnstile: its own error says why")


class Turnstile:
    """The driver's end: lets one side through at a time, and takes the time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(DEADLINE_S)
        self._connections: list[socket.socket] = []
        self._gates: dict[str, list[TextIO]] = {side: [] for side in settings.sides}
        self._cpu_s: dict[str, float] = {}

    @property
    def address(self) -> tuple[str, int]:
        """Where workers find the turnstile."""
        return self._server.getsockname()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up on everybody: whoever waits on a connection, here or in a worker, wakes with an error."""
        for connection in (self._server, *self._connections):
            with contextlib.suppress(OSError):  # it was closed already
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def measure(self) -> list[dict[str, Any]]:
        """Let the sides take their turns; the pairs in order, the warm-up among them."""
        try:
            self._admit()
            pairs = [self._take_turns(block) for block in range(1 + self._settings.blocks)]
            for side in self._settings.sides:
                self._open(side)
        except Exception:
            self.close()
            raise
        return pairs

    def _admit(self) -> None:
        while any(len(gates) < self._settings.workers for gates in self._gates.values()):
            connection, _ = self._server.accept()
            connection.settimeout(DEADLINE_S)
            self._connections.append(connection)
            gate = connection.makefile("rw")
            self._gates[gate.readline().strip()].append(gate)
        for side in self._settings.sides:
            self._cpu_s[side] = sum(arrival["cpu_s"] for arrival in self._arrivals(side))

    def _take_turns(self, block: int) -> dict[str, Any]:
        order = self._settings.sides[:: -1 if block % 2 else 1]
        return {"first": order[0], **{side: self._take_turn(side) for side in order}}

    def _take_turn(self, side: str) -> dict[str, float]:
        started_s = time.monotonic()
        self._open(side)
        arrivals = self._arrivals(side)
        seconds = max(arrival["at_s"] for arrival in arrivals) - started_s
        loss = statistics.fmean(arrival["loss"] for arrival in arrivals)
        steps, cpu_s = self._settings.steps_per_block, sum(arrival["cpu_s"] for arrival in arrivals)
        spent_s, self._cpu_s[side] = cpu_s - self._cpu_s[side], cpu_s
        return {"steps_per_s": steps / seconds, "loss": loss, "cpu_s_per_step": spent_s / steps}

    def _open(self, side: str) -> None:
        for gate in self._gates[side]:
            print("go", file=gate, flush=True)

    def _arrivals(self, side: str) -> list[dict[str, float]]:
        lines = [gate.readline() for gate in self._gates[side]]
        if not all(lines):
            raise ConnectionError(f"a worker of the {side} side left in the middle")
        return [json.loads(line) for line in lines]


# ---- the two sides


def make_elastic_train_fn(
    settings: Settings, address: tuple[str, int], side: str = ELASTIC, **prepare: Any
) -> Callable[[Any], None]:
    """The example's training function, with a gate before each block; `prepare` goes to `session.prepare`."""
    recipe = settings.recipe

    def train_fn(session: Any) -> None:
        gate, loss = Gate(address, side), 0.0
        train_set, _ = load_datasets(recipe)
        model = session.prepare(new_model(recipe), **prepare)
        optimizer, scheduler = new_optimizer(model, recipe)
        session.track(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = session.batches(train_set, batch_size=recipe.batch_size, micro_batch_size=recipe.micro_batch_size)
        for step in session.steps(batches, max_steps=settings.steps):
            if step.index % settings.steps_per_block == 0:
                gate.arrive(loss)
            with step:
                for _, x, y in step:
                    step.backward(loss_fn(model, x, y))
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
                step.apply(optimizer, scheduler=scheduler)
                step.report(loss=step.loss)
                loss = float(step.loss)

    return train_fn


@ray.remote(num_cpus=1)
class DdpWorker:
    """One rank of plain DDP: what a user writes who has never heard of elastic."""

    def host_store(self, workers: int) -> int:
        """Become the rank that holds the rendezvous store; its port."""
        self._store = dist.TCPStore("127.0.0.1", 0, workers, is_master=True, wait_for_workers=False)
        return self._store.port

    def train(self, rank: int, port: int, side: str, settings: Settings, address: tuple[str, int]) -> None:
        """Train in blocks, as elastic's train_fn does."""
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = self._store if rank == 0 else dist.TCPStore("127.0.0.1", port, settings.workers)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=settings.workers)
        gate, loss, recipe = Gate(address, side), 0.0, settings.recipe
        train_set, _ = load_datasets(recipe)
        model = DistributedDataParallel(new_model(recipe))
        optimizer, scheduler = new_optimizer(model, recipe)
        batches = ddp_batches(train_set, rank, settings)
        micro_batches = recipe.batch_size // recipe.micro_batch_size // settings.workers
        for index in range(settings.steps):
            if index % settings.steps_per_block == 0:
                gate.arrive(loss)
            loss = 0.0
            for _, x, y in itertools.islice(batches, micro_batches - 1):
                with model.no_sync():
                    loss += _backward(model, x, y, micro_batches)
            _, x, y = next(batches)
            loss += _backward(model, x, y, micro_batches)
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        dist.destroy_process_group()


def _backward(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, micro_batches: int) -> float:
    loss = loss_fn(model, x, y) / micro_batches
    loss.backward()
    return loss.item()


def ddp_batches(dataset: ByteWindows, rank: int, settings: Settings) -> Iterator[Sequence[torch.Tensor]]:
    """This rank's micro-batches, epoch after epoch."""
    sampler = DistributedSampler(dataset, num_replicas=settings.workers, rank=rank, seed=settings.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=settings.recipe.micro_batch_size, sampler=sampler, drop_last=True)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def start_ddp(side: str, settings: Settings, address: tuple[str, int]) -> list[ray.ObjectRef]:
    """Start the ranks; what comes back is ready when they are done."""
    workers = [DdpWorker.remote() for _ in range(settings.workers)]
    port = ray.get(workers[0].host_store.remote(settings.workers))
    return [worker.train.remote(rank, port, side, settings, address) for rank, worker in enumerate(workers)]


def run(settings: Settings) -> list[dict[str, Any]]:
    """Measure all pairs on a local Ray cluster."""
    ray.init(address="local", num_cpus=len(settings.sides) * settings.workers, include_dashboard=False)
    with ThreadPoolExecutor(1) as thread, Turnstile(settings) as turnstile:
        pairs = thread.submit(turnstile.measure)
        try:
            address = turnstile.address
            ddp = [start_ddp(side, settings, address) for side in settings.sides if side != ELASTIC]
            if ELASTIC in settings.sides:
                run_elastic(settings, address)
            ray.get([done for ranks in ddp for done in ranks])
        except Exception:
            if pairs.done():
                pairs.result()  # the turnstile broke first: that is the error to show
            raise
        return pairs.result()


def run_elastic(settings: Settings, address: tuple[str, int], side: str = ELASTIC, **prepare: Any) -> None:
    """One undisturbed `elastic.fit`."""
    import elastic

    with tempfile.TemporaryDirectory() as run_dir:
        result = elastic.fit(
            make_elastic_train_fn(settings, address, side, **prepare),
            scaling=elastic.Scaling(num_dp_replicas=settings.workers, spares=0),
            name=f"overhead-{side}",
            run_dir=run_dir,
        )
    if result.incidents:
        raise RuntimeError(f"not a measurement of undisturbed steps: {result.incidents}")


# ---- the answer


def summarize(settings: Settings, pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the blocks, and the ratio within pairs with its uncertainty."""
    rates = {side: [pair[side]["steps_per_s"] for pair in pairs] for side in settings.sides}
    summary: dict[str, Any] = {f"{side}_steps_per_s": statistics.median(rates[side]) for side in rates}
    if len(settings.sides) == 2:
        measured, baseline = settings.sides
        ratios = [one / other for one, other in zip(rates[measured], rates[baseline], strict=True)]
        summary["ratio"] = statistics.median(ratios)
        summary["ratio_ci95"] = bootstrap_median_ci95(ratios, settings.seed)
    return summary


def bootstrap_median_ci95(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Where 95 % of the medians lie when the values are drawn again from themselves."""
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]


def _sides(args: argparse.Namespace) -> tuple[str, ...]:
    return (args.only,) if args.only else (DDP_AGAIN if args.null else ELASTIC, DDP)


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


def main() -> None:
    """Measure, write the result, print a short table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the result")
    parser.add_argument("--blocks", type=int, default=24, help="pairs of blocks, warm-up not counted")
    parser.add_argument("--steps-per-block", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=32, help="samples of a step")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long --observability measures")
    parser.add_argument("--block-seconds", type=float, default=4.0, help="between two switches of --observability")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--only", choices=[ELASTIC, DDP], help="run one side alone")
    alone.add_argument("--null", action="store_true", help="compare DDP with DDP")
    alone.add_argument(
        "--observability", action="store_true", help="switch what tells of a run on and off, in steps of 50 ms"
    )
    args = parser.parse_args()
    origin = provenance()
    if args.observability:
        from benchmarks import observability

        told = observability.measure(args.minutes, args.block_seconds, workers=args.workers, seed=args.seed)
        _write(args.out, {"benchmark": "observability"} | told | {"provenance": origin})
        print("\n".join(observability.lines(told)))
        return
    settings = Settings(
        sides=_sides(args),
        batch_size=args.batch_size,
        blocks=args.blocks,
        steps_per_block=args.steps_per_block,
        workers=args.workers,
        seed=args.seed,
    )
    recipe = settings.recipe
    if recipe.batch_size % (recipe.micro_batch_size * args.workers):
        parser.error("--workers must divide a step's micro-batches: DDP has no uneven deals")

    pairs = run(settings)[1:]
    summary = summarize(settings, pairs)
    details = {
        "blocks": pairs,
        "settings": dataclasses.asdict(settings) | {"recipe": dataclasses.asdict(recipe)},
        "provenance": origin,
    }
    _write(args.out, {"benchmark": "overhead"} | summary | details)
    for side in settings.sides:
        print(f"{side:10} {summary[f'{side}_steps_per_s']:7.2f} steps/s   loss {pairs[-1][side]['loss']:.3f}")
    if "ratio" in summary:
        low, high = summary["ratio_ci95"]
        print(f"{'ratio':10} {summary['ratio']:7.3f}   95 % of resampled medians in {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
