"""A process that uploads and commits step 20, and kills itself at the n-th moment of one kind.

    python -m tests.effects.vault_crash FOLDER LABEL NUMBER [hang]

Labels: "<before|after> <create|put|advance> <what>" around the store's calls; "<written|linked> <what>" inside the
directory store, where the bytes are beside their place, or in it with their folder not synced. With "hang" it says so
instead and goes no further there; on SIGTERM it ends as Ray's workers do, by leaving its main thread.
"""

import os
import re
import signal
import sys
import threading

from elastic.checkpoint.stores import open_store
from elastic.checkpoint.vault import Vault
from tests.effects.vault_parts import commit_id, uploaded

KINDS = ("chunk", "manifest", "commits", "leases", "LATEST")
LABELS = [
    *(f"{when} create {kind}" for when in ("before", "after") for kind in ("chunk", "manifest", "commits")),
    *(f"{when} {verb}" for when in ("before", "after") for verb in ("put leases", "advance LATEST")),
    *(f"{when} {kind}" for when in ("written", "linked") for kind in ("chunk", "manifest", "commits")),
]


def kind_of(path: str) -> str:
    return next((kind for kind in KINDS if re.search(rf"\b{kind}\b", str(path))), "other")


def main(folder: str, label: str, number: int, *how: str) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    store = open_store(folder)
    seen: list[str] = []

    def passing(here: str) -> None:
        seen.append(here)
        if here == label and seen.count(here) == number:
            if not how:
                os.kill(os.getpid(), signal.SIGKILL)
            print(here, flush=True)
            threading.Event().wait()

    def around(verb: str, call):
        def wrapped(key: str, data: bytes, *how) -> None:
            passing(f"before {verb} {kind_of(key)}")
            call(key, data, *how)
            passing(f"after {verb} {kind_of(key)}")

        return wrapped

    link = os.link

    def linking(source: str, target: str) -> None:
        passing(f"written {kind_of(target)}")
        link(source, target)
        passing(f"linked {kind_of(target)}")

    vault = Vault(store, "night-1", incarnation=1, threads=1)
    _ = store.is_atomic
    os.link = linking
    for verb in ("create", "put", "advance"):
        setattr(store, verb, around(verb, getattr(store, verb)))
    vault.commit(commit_id(20), uploaded(vault, commit_id(20)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
