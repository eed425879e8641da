"""Pure. C2 as a matrix: at which labelled points of a checkpoint's way who is killed, where, and why not elsewhere.

    python -m tests.crash_matrix        # the table of docs/checkpointing.md

Tests take their cells from here, and `tests/pure/test_crash_matrix.py` sees to it that the page has this table.
"""

VICTIMS = ("trainer", "replica", "raylet", "node", "supervisor", "driver")  # "replica": the replica actor
STAGING = {
    "staging": "its copy is about to begin",
    "copying": "its copy is under way",
    "summing": "copied, and its sums are not all taken",
    "unstamped": "all is written but the header",
    "stamped": "sealed, and nobody has been told",
}
SPREADING = {
    "pulling": "a part of a copy has come to another node",
    "uploading": "a shard has been uploaded",
    "committing": "all shards are there, and COMMIT is not",
    "committed": "COMMIT is there, and nobody has been told",
    "deleting": "COMMIT of an older step is gone, its chunks are not",
}
RESTORING = {
    "reading": "a chunk has been read",
    "installing": "all is read, and a part of the objects is set",
    "installed": "all objects are set",
    "forming": "the next generation forms",
    "forking": "it trains, and where its history begins is not recorded",
}
POINTS = STAGING | SPREADING | RESTORING
_TAKEN_OUT_ON_RAY = ("forming", "forking")
_LOST = ("unstamped", "pulling", "uploading", "committing", "committed", "reading")

PROCESS = {
    (point, victim) for point in (*STAGING, *RESTORING) for victim in ("trainer", "driver") if point != "forking"
}
RAY = {("forking", "driver"), *((point, "trainer") for point in SPREADING), *((point, "node") for point in _LOST)}
RAY |= {
    (point, victim)
    for point in POINTS
    for victim in ("replica", "raylet", "supervisor", "driver")
    if point not in _TAKEN_OUT_ON_RAY
}
WHY_NOT = {
    "a": "A node is its raylet and its slots. Here their loss is that of `unstamped` (nothing is sealed), `pulling` "
    "(sealed, and not copied yet) or `reading` (copies are elsewhere).",
    "b": "No tier has a part in it: who dies is as in any other forming (`tests/chaos/test_kill_points.py`).",
    "c": "The driver alone does it, in a thread of its own; who else dies, dies in training.",
}


def why_not(point: str, victim: str) -> str:
    """The letter of the reason for which this is not played; empty if it is."""
    if (point, victim) in PROCESS | RAY:
        return ""
    return {"forming": "b", "forking": "c"}.get(point, "a" if victim == "node" else "")


def render() -> str:
    """The table, and the reasons below it."""
    lines = [f"| point | {' | '.join(VICTIMS)} |", f"|---{'|---' * len(VICTIMS)}|"]
    for point, what in POINTS.items():
        lines.append(f"| `{point}`: {what} | {' | '.join(_cell(point, victim) for victim in VICTIMS)} |")
    reasons = [f"- ({letter}) {reason}" for letter, reason in WHY_NOT.items()]
    return "\n".join([*lines, "", *reasons]) + "\n"


def _cell(point: str, victim: str) -> str:
    played = [name for name, cells in (("P", PROCESS), ("R", RAY)) if (point, victim) in cells]
    return " ".join(played) or f"({why_not(point, victim)})"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201 - a command
