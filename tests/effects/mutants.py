"""Deliberate bugs of the protocol: each is a text in a file of the package that is replaced by another."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "elastic"
_TIMEOUT_S = 300.0
_HUNT = """
import sys
from elastic.sim.campaign import case_of, play
for seed in range(int(sys.argv[1])):
    played = play(case_of(seed, 60))
    if played.law:
        print(seed, played.law, "|", played.what[:300])
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


MUTANTS = (
    Mutant(
        name="no fencing",
        file="control/worker_protocol.py",
        old="    if signal in _NUMBERED and _is_stale(state, signal, generation):\n",
        new="    if False:\n",
    ),
    Mutant(
        name="an older driver is heeded",
        file="control/worker_protocol.py",
        old="return incarnation > state.incarnation if signal is Signal.ADOPT else incarnation >= state.incarnation",
        new="return True",
    ),
    Mutant(
        name="a freeze is answered inside apply",
        file="control/worker_protocol.py",
        old="    if (state.stage, signal) in DEFERRED:\n        return Reaction(state, Verdict.LATER)\n",
        new=(
            "    if (state.stage, signal) in DEFERRED:\n"
            "        return Reaction(replace(state, stage=Stage.FROZEN), Verdict.DONE)\n"
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
        file="control/state.py",
        old="    whole = {state: len(there) for state, there in shards.items() if len(set(there)) == width}\n",
        new="    whole = {state: len(there) for state, there in shards.items()}\n",
    ),
    Mutant(
        name="a generation is numbered by two",
        file="control/forming.py",
        old="        generation=turn.state.generation + 1,\n        members=",
        new="        generation=turn.state.generation + 2,\n        members=",
    ),
    Mutant(
        name="the lease is ignored",
        file="control/deadlines.py",
        old="    if waited_s > limits.freeze_timeout_s + limits.lease_s:\n",
        new="    if waited_s > limits.freeze_timeout_s:\n",
    ),
    Mutant(
        name="one heartbeat that does not come is enough",
        file="control/turn.py",
        old="self.now_s - heard_s > self.settings.limits.heartbeat_timeout_s",
        new="self.now_s - heard_s > 0.1",
    ),
    Mutant(
        name="an unstable step is published",
        file="control/turn.py",
        old="self.publish_from(max(self.state.published, self.state.view.resume.step - 1))",
        new="self.publish_from(max(self.state.published, self.state.view.resume.step + 1))",
    ),
    Mutant(
        name="a generation is formed before all have answered",
        file="control/forming.py",
        old="        if not is_tick or turn.waited_s() <= turn.settings.limits.exile_after_s or turn.state.planned:\n",
        new="        if turn.waited_s() > 0.1:\n            try_form(turn)\n        if not is_tick or True:\n",
    ),
    Mutant(
        name="members are left behind although nobody has answered",
        file="control/forming.py",
        old="        if resumable(_holders(turn), turn.state.width) is None:\n            return\n        for name",
        new="        for name",
    ),
    Mutant(
        name="nothing is void after a fork",
        file="control/values.py",
        old="return commit.step > self.step and (commit.incarnation",
        new="return False and (commit.incarnation",
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
)


def caught(mutant: Mutant, folder: Path, seeds: int) -> str:
    """The law that the mutant breaks first, with the seed; empty if no seed shows it.

    Raises:
        AssertionError: the text is not there, or there more than once: the mutant has to be written anew.
    """
    shutil.copytree(PACKAGE, folder / "elastic", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "elastic" / mutant.file
    text = file.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: {text.count(mutant.old)} places in {mutant.file}"
    file.write_text(text.replace(mutant.old, mutant.new))
    command = [sys.executable, "-c", _HUNT, str(seeds)]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()
