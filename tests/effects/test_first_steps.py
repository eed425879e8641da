"""Effect. A run whose first life made nothing durable begins in its second one, and that one's steps become durable."""

from pathlib import Path

from elastic.actors.tiers import Tiers
from elastic.checkpoint.reach import Reach
from elastic.checkpoint.vault import open_vault
from elastic.control import events as ev
from elastic.control.state import RunState
from elastic.control.values import NOTHING_COMMITTED, View
from elastic.settings import Checkpoint, RunSettings
from tests.effects.helpers import eventually
from tests.effects.vault_parts import made_durable

RUN = "night-1"


def test_a_life_that_begins_from_nothing_may_commit(tmp_path: Path) -> None:
    store, told = str(tmp_path / "store"), list[ev.Event]()
    checkpoint = Checkpoint(memory=str(tmp_path / "memory"), persistent=store)
    assert open_vault(store, RUN).register("a life that ends at once") == 1
    tiers = Tiers(RUN, Reach(RUN, checkpoint), told.append, timeout_s=30.0)
    incarnation, _ = tiers.begin()
    tiers.find(0, None, ())
    eventually(lambda: told, "the tiers have answered")
    assert told == [ev.RestoreFound(commit=None, reason="no step is whole")]
    parts = {"members": (), "donors": (), "behind": (), "resume": NOTHING_COMMITTED, "bootstrap": True}
    view = View(run=RUN, incarnation=incarnation, generation=1, **parts)  # type: ignore[arg-type]
    tiers.formed(view, RunState(settings=RunSettings(run=RUN)))
    vault = open_vault(store, RUN, incarnation=incarnation)
    eventually(lambda: vault.forks(), "it is recorded where the history begins")
    made_durable(vault, 3)
    assert [one.commit.step for one in vault.commits()] == [3]
    tiers.close(keep=False)
