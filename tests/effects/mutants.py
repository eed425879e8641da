"""Deliberate bugs of the protocol: each is a text in a file of the package that is replaced by another."""

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "elastic"
HISTORIES = Path(__file__).resolve().parents[1] / "histories" / "mutants"
_TIMEOUT_S = 600.0
_PLAY = """
import json, sys
from elastic.sim.campaign import from_plain, play
played = play(from_plain(json.load(open(sys.argv[1]))["case"]))
print(played.law, "|", played.what)
"""
_HUNT = """
import json, sys
from elastic.sim.campaign import case_of, play, shrink, to_plain
for seed in range(int(sys.argv[1])):
    played = play(case_of(seed, 60))
    if played.law and played.law != "no exception":
        played = play(shrink(played.case, played.law))
        print(json.dumps({"law": played.law, "what": played.what[:200], "case": to_plain(played.case)}, indent=1))
        break
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One bug.

    Attributes:
        file: below `elastic/`. old, new: text that is there once, and what takes its place.
    """

    name: str
    file: str
    old: str
    new: str


# Those that docs/simulator.md names come first: they are played in each run of the tests.
MUTANTS = (
    Mutant(
        name="no fencing",
        file="control/worker_protocol.py",
        old="    if signal in _NUMBERED and _is_stale(state, signal, generation):\n",
        new="    if False:\n",
    ),
    Mutant(
        name="a freeze is answered inside apply",
        file="control/worker_protocol.py",
        old="    if (state.stage, signal) in DEFERRED:\n        return Reaction(state, Verdict.LATER)\n",
        new=(
            "    if (state.stage, signal) in DEFERRED:\n"
            "        return Reaction(changed(state, stage=Stage.FROZEN), Verdict.DONE)\n"
        ),
    ),
    Mutant(
        name="a donor that is not healed",
        file="control/state.py",
        old="if self.standing not in (Standing.MEMBER, Standing.PARKED) or not self.healed or self.answer is None:",
        new="if self.standing not in (Standing.MEMBER, Standing.PARKED) or self.answer is None:",
    ),
    Mutant(
        name="resume at the lowest step",
        file="control/state.py",
        old="top = max(step for step, _ in votes)",
        new="top = min(step for step, _ in votes)",
    ),
    Mutant(
        name="shards of two commits are mixed",
        file="control/holders.py",
        old="            if sum(map(bool, left.values())) == self._width:\n",
        new="            if any(left.values()):\n",
    ),
    Mutant(
        name="a generation is numbered by two",
        file="control/forming.py",
        old="        generation=turn.state.generation + 1,\n        members=",
        new="        generation=turn.state.generation + 2,\n        members=",
    ),
    Mutant(
        name="an unstable step is published",
        file="control/turn.py",
        old="self.publish_from(max(self.state.published, self.state.view.resume.step - 1))",
        new="self.publish_from(max(self.state.published, self.state.view.resume.step + 1))",
    ),
    Mutant(
        name="a lease is ignored",
        file="control/worker_protocol.py",
        old="    return silent_s < lease_s * LEASE_MARGIN\n",
        new="    return True\n",
    ),
    Mutant(
        name="acting on one heartbeat",
        file="control/forming.py",
        old=(
            "        if turn.waited_s() <= (0.0 if is_certain else turn.settings.limits.exile_after_s):\n"
            "            return\n"
            "        if not all(turn.is_silent(turn.worker(name).node) for name in tally.late):\n"
            "            return\n"
        ),
        new="",
    ),
    Mutant(
        name="collecting before replicated",
        file="checkpoint/ladder.py",
        old=(
            "            if step.readers > 0 or step.is_uploading or step in active:\n"
            "                continue\n"
            "            reason = self._why_not_needed(step, is_pressed=any(one.full for one in active))\n"
        ),
        new=(
            "            if step.is_uploading or self._candidate is None or step is self._candidate:\n"
            "                continue\n"
            "            reason = 'a newer one is whole'\n"
        ),
    ),
    Mutant(
        name="nobody is started while the run waits for replicas",
        file="control/forming.py",
        old='    turn.replenish(f"below the minimum of replicas: {reason}")\n',
        new="",
    ),
    Mutant(
        name="a reduction begins from another state",
        file="control/worker_protocol.py",
        old='        return {"commit": commit, "healed": True, "prepared": None}',
        new=(
            "        kept = state.commit.lineage or commit.lineage\n"
            "        told = commit.incarnation, commit.generation, commit.attempt, commit.step\n"
            '        return {"commit": CommitId(*told, kept), "healed": True, "prepared": None}'
        ),
    ),
    Mutant(
        name="an older driver is heeded",
        file="control/worker_protocol.py",
        old="return incarnation > state.incarnation if signal is Signal.ADOPT else incarnation >= state.incarnation",
        new="return True",
    ),
    Mutant(
        name="a generation is formed before all have answered",
        file="control/forming.py",
        old="        if not is_tick or turn.state.planned:\n",
        new="        if turn.waited_s() > 0.1:\n            try_form(turn)\n        if not is_tick or True:\n",
    ),
    Mutant(
        name="members are left behind although nobody has answered",
        file="control/forming.py",
        old="        if tally.holders.resumable() is None:\n            return\n        for name",
        new="        for name",
    ),
    Mutant(
        name="an update that was given up is rolled forward",
        file="control/worker_protocol.py",
        old="is_wanted = state.prepared is not None and commit is not None and state.prepared.same_state(commit)",
        new="is_wanted = True",
    ),
    Mutant(
        name="all hosts out of reach are left behind at once",
        file="control/forming.py",
        old="        if not all(turn.is_silent(turn.worker(name).node) for name in tally.late):\n            return\n",
        new="",
    ),
    Mutant(
        name="a lease is not waited for",
        file="control/deadlines.py",
        old="    if waited_s > limits.freeze_timeout_s + limits.lease_s:\n",
        new="    if waited_s > limits.freeze_timeout_s:\n",
    ),
    Mutant(
        name="what history has left behind counts when steps are collected",
        file="checkpoint/retention.py",
        old="if record.name not in bad and is_visible(record.commit, forks)]\n",
        new="if record.name not in bad]\n",
    ),
    Mutant(
        name="what history has left behind makes copies superfluous",
        file="checkpoint/standing.py",
        old="return [step for step in steps if is_visible(step.commit, self._forks)] if self._forks else list(steps)",
        new="return list(steps)",
    ),
    Mutant(
        name="what is about to be restored is dropped",
        file="checkpoint/ladder.py",
        old="            if step.readers > 0 or step.is_uploading or step in active:\n",
        new="            if step.is_uploading or step in active:\n",
    ),
    Mutant(
        name="copies go although newer ones are not there in full now",
        file="checkpoint/ladder.py",
        old=" and any(map(now.is_replicated, in_full)):\n",
        new=":\n",
    ),
    Mutant(
        name="what history has left behind is restored",
        file="checkpoint/catalog.py",
        old="        if is_visible(commit, tuple(lines)) and ",
        new="        if ",
    ),
    Mutant(
        name="what it takes to see a failure is booked nowhere",
        file="ledger/spans.py",
        old="        yield Piece(overdue_s, end_s, Category.DETECTING, following.incident)\n",
        new="",
    ),
    Mutant(
        name="two replicas compute the same micro-batch",
        file="control/data.py",
        old="    return range(before * micro_batches // whole, (",
        new="    return range(max(0, before * micro_batches // whole - 1), (",
    ),
    Mutant(
        name="whose bits differ is healed by the others",
        file="control/integrity.py",
        old="    return tuple(rank for rank, digest in enumerate(digests) if digest != value)\n",
        new="    return ()\n",
    ),
    Mutant(
        name="the majority is outvoted",
        file="control/integrity.py",
        old="    return tuple(rank for rank, digest in enumerate(digests) if digest != value)\n",
        new=(
            "    is_unanimous = votes == len(digests)\n"
            "    return tuple(rank for rank, digest in enumerate(digests) if digest == value and not is_unanimous)\n"
        ),
    ),
    Mutant(
        name="who was told to leave may stay",
        file="control/leaving.py",
        old="        if worker.standing is Standing.GONE and ",
        new="        if False and ",
    ),
    Mutant(
        name="survivors who missed each other are kept together",
        file="control/parting.py",
        old="    staying = together(survivors, missed) if missed else survivors\n",
        new="    staying = survivors\n",
    ),
)


def mutated(mutant: Mutant, folder: Path) -> Path:
    """A copy of the package with the bug in it, in `folder`.

    Raises:
        AssertionError: the text is not there, or there more than once: the mutant has to be written anew.
    """
    shutil.copytree(PACKAGE, folder / "elastic", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "elastic" / mutant.file
    text = file.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: {text.count(mutant.old)} places in {mutant.file}"
    file.write_text(text.replace(mutant.old, mutant.new))
    return folder


def played_by(mutant: Mutant, folder: Path) -> str:
    """The law that its history breaks in the mutated package, and how; "|" if none."""
    return _run(mutated(mutant, folder), _PLAY, str(history(mutant)))


def hunted(mutant: Mutant, folder: Path, seeds: int) -> str:
    """The first of so many worlds that shows the bug, made small, as JSON; empty if none does."""
    return _run(mutated(mutant, folder), _HUNT, str(seeds))


def history(mutant: Mutant) -> Path:
    """Where the world is kept that shows the bug."""
    return HISTORIES / f"{mutant.name.replace(' ', '_').replace(',', '')}.json"


def _run(folder: Path, script: str, argument: str) -> str:
    command = [sys.executable, "-c", script, argument]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


if __name__ == "__main__":  # hunts anew: python -m tests.effects.mutants SEEDS [NAMES...]
    for one in MUTANTS:
        if len(sys.argv) < 3 or one.name in sys.argv[2:]:
            with tempfile.TemporaryDirectory() as place:
                found = hunted(one, Path(place), int(sys.argv[1]))
            print(one.name, ":", found[:120].replace("\n", " ") or "not found", flush=True)
            if found:
                history(one).parent.mkdir(parents=True, exist_ok=True)
                history(one).write_text(found + "\n")
