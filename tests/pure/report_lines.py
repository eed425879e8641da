"""Journals as a run would write them, made by hand, on a clock of their own."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BEGAN_S = 1_800_000_000.0
Lines = list[dict[str, Any]]


class Scribe:
    """Writes lines; `now_s` is the time, which only moves when it is told to."""

    def __init__(self, run: str = "night", began_s: float = BEGAN_S) -> None:
        self.lines: Lines = []
        self.run, self.now_s = run, began_s
        self.generation, self.incarnation, self.step = 0, 1, -1
        self.failures = 0
        self.open: dict[str, Any] | None = None
        self.forks: list[dict[str, Any]] = []

    def event(self, kind: str, **fields: Any) -> None:
        self.lines.append({"t": round(self.now_s, 6), "event": kind, **fields})

    def command(self, kind: str, reason: str = "because", **fields: Any) -> None:
        self.lines.append({"t": round(self.now_s, 6), "command": kind, "reason": reason, **fields})

    def phase(self, name: str, replicas: int = 0) -> None:
        told = {"generation": self.generation, "replicas": replicas, "planned": False, "waits_for": ""}
        self.lines.append({"t": self.now_s, "phase": name, **told})

    def begin(self) -> None:
        """A life of the driver."""
        self.event("RunStarted")
        self.phase("starting")

    def moment(self, kind: str, incident: dict[str, Any]) -> None:
        told = {"run": self.run, "at_s": self.now_s, "step": self.step, "incident": dict(incident)}
        self.lines.append({"t": self.now_s, "moment": kind, **told})

    def settings(self, **knobs: tuple[Any, str]) -> None:
        told = {path.replace("__", "."): {"value": value, "source": source} for path, (value, source) in knobs.items()}
        line = {"life": "Settings", "run": self.run, "incarnation": self.incarnation, "knobs": told}
        self.lines.append({"t": self.now_s, **line})

    def start(self, workers: Sequence[str], nodes: Sequence[str]) -> None:
        """All of them, on these nodes by turns; 3 s later they are at the door."""
        for number, worker in enumerate(workers):
            self.command("StartWorker", "the run starts", worker=worker, gang=number, shard=0, avoid=[], node="")
        self.now_s += 0.5
        for number, worker in enumerate(workers):
            self.event("WorkerPlaced", worker=worker, node=nodes[number % len(nodes)])
        self.now_s += 2.5
        for worker in workers:
            self.event(
                "WorkerParked", worker=worker, host="h", port=1, pid=1, layout="l", plan=None, gpus=[], no_room=""
            )

    def form(self, members: Sequence[str], restored_step: int | None = None) -> None:
        """A generation of these, which trains 0.05 s later."""
        self.generation += 1
        if restored_step is not None:
            self.step = restored_step
            fork = {"incarnation": self.incarnation, "generation": self.generation, "step": restored_step}
            self.forks.append({**fork, "skip": [0, 0]})
        view = {
            "run": self.run,
            "incarnation": self.incarnation,
            "generation": self.generation,
            "members": [{"worker": worker, "host": "h", "port": 1} for worker in members],
            "resume": self.commit(),
            "donors": [0],
            "behind": [],
            "bootstrap": self.generation == 1,
            "published": self.step,
            "restored": restored_step is not None,
            "forks": list(self.forks),
            "width": 1,
        }
        self.command("Form", "members are ready", view=view)
        self.phase("forming", len(members))
        self.now_s += 0.05
        for worker in members:
            self.event("Formed", worker=worker, generation=self.generation)
        self.command("Go", "all members have formed", workers=list(members), generation=self.generation)
        self.phase("running", len(members))

    def commit(self) -> dict[str, Any]:
        commit = {"incarnation": self.incarnation, "generation": self.generation, "attempt": 1}
        return {**commit, "step": self.step, "lineage": f"l{self.step}"}

    def steps(
        self,
        count: int,
        replicas: int,
        took_s: float = 0.1,
        seconds: Sequence[float] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        for _ in range(count):
            began_s, self.now_s, self.step = self.now_s, self.now_s + took_s, self.step + 1
            report = {
                "commit": self.commit(),
                "metrics": {"loss": 4.0 / (self.step + 1)} if metrics is None else metrics,
                "replicas": replicas,
                "samples": 32,
                "started_at_s": began_s,
                "committed_at_s": self.now_s,
                "skipped": "",
                "seconds": list(seconds) or [0.01] * replicas,
                "voted": False,
            }
            self.event("StepStable", worker="w0", report=report)
            if self.open is not None:
                self.open |= {"resumed_at_s": self.now_s, "step": self.step, "replicas_after": replicas}
                self.moment("IncidentResolved", self.open)
                self.open = None

    def kill(self, worker: str, survivors: Sequence[str]) -> None:
        """It dies; 0.1 s later the survivors are stopped."""
        self.event("WorkerLost", worker=worker, evidence="its call failed")
        self.event("CollectiveBroken", worker=survivors[0], generation=self.generation, error="connection closed")
        self.event("WorkerDead", worker=worker, proof="its process is gone")
        self.open = {
            "number": self.failures,
            "kind": "worker_lost",
            "opened_at_s": self.now_s,
            "culprits": [worker],
            "suspects": [],
            "evidence": [f"{worker}: its call failed"],
            "decision": "",
            "replicas_before": len(survivors) + 1,
            "replicas_after": 0,
            "generation": self.generation,
            "resumed_at_s": None,
            "step": None,
        }
        self.failures += 1
        self.moment("IncidentOpened", self.open)
        self.phase("freezing", len(survivors) + 1)
        self.now_s += 0.1
        frozen = {"workers": list(survivors), "generation": self.generation}
        self.command("Freeze", f"worker lost: {worker}: its call failed", **frozen)
        for survivor in survivors:
            told = {"generation": self.generation, "commit": self.commit(), "healed": True, "prepared": None}
            self.event("FreezeAnswered", worker=survivor, **told)
        self.open["decision"] = "continue in place: the others hold everything"
        self.moment("IncidentDecided", self.open)

    def rung(self, rung: str, step: int) -> None:
        told = {"shards": 1, "rung": rung, "copies": 1, "degraded": "", "reason": "2 of 2 nodes keep each shard"}
        line = {"t": self.now_s, "checkpoint": "CheckpointRung", "commit": {**self.commit(), "step": step}, **told}
        self.lines.append(line)

    def lost(self, step: int) -> None:
        told = {"shards": 1, "reason": "what held it was lost"}
        line = {"t": self.now_s, "checkpoint": "StepLost", "commit": {**self.commit(), "step": step}, **told}
        self.lines.append(line)

    def staged(self, shard: int, shards: int = 1) -> None:
        """Of the newest step."""
        self.event("ShardStaged", worker=f"w{shard}", commit=self.commit(), shard=shard, shards=shards, nbytes=64)

    def interval(self, tier: str, reason: str) -> None:
        self.event("IntervalChosen", worker="w0", tier=tier, reason=reason)

    def end(self, ending: str = "succeeded", message: str = "") -> None:
        self.now_s += 0.2
        outcome = {"ending": ending, "message": message, "details": {}}
        self.command("EndRun", "train_fn has returned", outcome=outcome)
        self.phase("ended")


def a_night() -> Scribe:
    """Four workers on two nodes; one is killed after 30 steps, a spare takes its place; there are checkpoints."""
    scribe = Scribe()
    knobs = {"scaling__num_dp_replicas": ([2, 4], "run.yaml:3"), "limits__lease_s": (120.0, "default")}
    scribe.settings(**knobs)
    scribe.begin()
    scribe.start(["w0", "w1", "w2", "w3", "w4"], ["node-a-0123456789", "node-b-0123456789"])
    scribe.form(["w0", "w1", "w2", "w3"])
    scribe.steps(30, replicas=4, seconds=[0.01, 0.01, 0.02, 0.01])
    scribe.interval("memory", "every 10 s: a stall of 0.005 s and a failure every 1000 s cost least")
    scribe.rung("local", 10)
    scribe.rung("replicated", 10)
    scribe.rung("durable", 8)
    scribe.kill("w2", ["w0", "w1", "w3"])
    scribe.form(["w0", "w1", "w3", "w4"])
    scribe.steps(50, replicas=4)
    scribe.end()
    return scribe


def a_long_day(workers: int = 1000, hours: float = 24.0, step_s: float = 30.0, failures: int = 200) -> Iterator[Any]:
    """Lines of a run of many workers, eight to a node, of which one dies every few minutes and is replaced."""
    scribe = Scribe(run="day")
    scribe.begin()
    names = [f"w{number}" for number in range(workers)]
    nodes = [f"node{number:04d}-0123456789" for number in range(max(1, workers // 8))]
    scribe.start(names, nodes)
    scribe.form(names)
    seconds = [0.01 + 0.00001 * (number % 97) for number in range(workers)]
    stretch = max(1, int(hours * 3600 / step_s / (failures + 1)))
    for failure in range(failures + 1):
        scribe.steps(stretch, replicas=len(names), took_s=step_s, seconds=seconds)
        scribe.rung("durable", scribe.step)
        if failure < failures:
            lost, new = names.pop(failure * 7 % len(names)), f"w{workers + failure}"
            scribe.kill(lost, names)
            scribe.start([new], [nodes[failure % len(nodes)]])
            names = [*names, new]
            scribe.form(names)
        yield from scribe.lines
        scribe.lines = []
    scribe.end()
    yield from scribe.lines


def written(lines: Lines, folder: Path) -> Path:
    """A run directory with this journal."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
