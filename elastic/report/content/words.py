"""Pure. Journal lines as sentences, for stories; and figures as people read them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
_MOST_NAMES = 6
_LONGEST = 240


def several(names: Sequence[str]) -> str:
    """The first few of them, and how many more."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names) or "nobody"
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} others"


def numbered(step: float) -> str:
    """The step; "none" before the first."""
    return f"{step:.0f}" if step >= 0 else "none"


def duration(seconds: float) -> str:
    """As "0.13 s", "2 min 5 s", "3 h 20 min"."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def sentence(kind: str, line: Line) -> str:
    """What a line of the journal says; empty for those that are no part of a story."""
    told = _SENTENCES.get(kind)
    if told is None:
        return ""
    text = " ".join(told(line).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _because(line: Line) -> str:
    return f": {line['reason']}" if line.get("reason") else ""


def _found(line: Line) -> str:
    device = f", {line['device']}" if line["device"] else ""
    return f"{line['severity']} on node {line['node'][:12]}{device}: {line['kind']}: {line['detail']}"


def _injected(line: Line) -> str:
    return f"fault {line['fault']['kind']} was injected on purpose into {line['target']}: {line['proof']}"


_SENTENCES: dict[str, Callable[[Line], str]] = {
    "WorkerLost": lambda line: f"contact with {line['worker']} is lost: {line['evidence']}",
    "WorkerDead": lambda line: f"{line['worker']} is dead: {line['proof']}",
    "WorkerDeparted": lambda line: f"{line['worker']} leaves{_because(line)}",
    "WorkerNotice": lambda line: f"{line['worker']} will be ended soon{_because(line)}",
    "NodeNotice": lambda line: f"node {line['node'][:12]} will be taken away{_because(line)}",
    "MonitorLost": lambda line: f"the host monitor of node {line['node'][:12]} does not answer",
    "Knocked": lambda line: (
        f"nothing came back from the hosts of {several(line['unreached'])}"
        if line["unreached"]
        else f"the hosts of {several(line['workers'])} answer"
    ),
    "CollectiveBroken": lambda line: f"a reduction broke on {line['worker']}: {line['error']}",
    "CorruptionFound": lambda line: f"corruption, by {several(line['culprits'])}: {line['evidence']}",
    "HardwareFinding": _found,
    "FaultInjected": _injected,
    "FaultRefused": lambda line: f"fault {line['fault']['kind']} was not injected{_because(line)}",
    "FormingFailed": lambda line: f"{line['worker']} could not join generation {line['generation']}: {line['error']}",
    "StackDumped": lambda line: f"stacks of {line['worker']} were dumped",
    "TrainFnRaised": lambda line: f"train_fn raised on {line['worker']}: {line['summary']}",
    "RestoreFound": lambda line: (
        f"step {line['commit']['step']} can be restored{_because(line)}"
        if line["commit"]
        else f"nothing can be restored: {line.get('reason') or line.get('error') or 'no step was found'}"
    ),
    "Restored": lambda line: f"{line['worker']} has restored step {line['commit']['step']}",
    "RestoreRefused": lambda line: f"{line['worker']} could not restore step {line['commit']['step']}{_because(line)}",
    "RewindAsked": lambda line: f"somebody asks to go back to step {line['to_step']}",
    "Connect": lambda line: (
        f"{len(line['view']['members'])} workers connect while all train: they will probably go on{_because(line)}"
    ),
    "Pause": lambda line: f"all are asked to stop at the end of a step{_because(line)}",
    "Freeze": lambda line: (
        f"generation {line['generation']} is stopped, {len(line['workers'])} workers{_because(line)}"
    ),
    "Fence": lambda line: f"{line['worker']} is to be killed{_because(line)}",
    "ProveDead": lambda line: f"proof is sought that {line['worker']} is gone{_because(line)}",
    "Knock": lambda line: f"the hosts of {several(line['workers'])} are knocked at{_because(line)}",
    "Inspect": lambda line: f"the stacks of {line['worker']} are asked for{_because(line)}",
    "StartWorker": lambda line: f"{line['worker']} is started{_because(line)}",
    "Dismiss": lambda line: f"{several(line['workers'])} may leave{_because(line)}",
    "ResetGpu": lambda line: f"GPUs {several(line['gpus'])} of node {line['node'][:12]} are reset{_because(line)}",
    "Restore": lambda line: f"{len(line['workers'])} workers load step {line['commit']['step']}{_because(line)}",
    "Form": lambda line: (
        f"generation {line['view']['generation']} is formed by {len(line['view']['members'])} workers, "
        f"to go on from step {line['view']['resume']['step'] + 1}{_because(line)}"
    ),
    "Go": lambda line: f"generation {line['generation']} trains",
    "RunTakenOver": lambda line: f"a new driver goes on with {len(line['found'])} workers of the last one",
    "RunStarted": lambda line: "a driver begins",
    "EndRun": lambda line: f"the run ends{_because(line)}",
}
