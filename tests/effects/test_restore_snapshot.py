"""Effect. What workers have staged is restored from the node's memory with the same digest, and listed."""

import json
import sys
from pathlib import Path

import torch
from torch import nn

from elastic import cli
from elastic.checkpoint.catalog import candidates
from elastic.checkpoint.reader import take_inventory
from elastic.train import tree
from elastic.train.cursor import Cursor
from elastic.train.restore import restore
from elastic.train.tracked import Tracked
from tests.effects.book import RUN, Book
from tests.effects.helpers import LONG_S
from tests.effects.idiom import trained


def test_a_snapshot_in_memory_is_restored(tmp_path: Path, monkeypatch, capsys) -> None:
    book = Book(tmp_path)
    book.solo().run(trained(book.note))
    inventory = take_inventory([book.source], LONG_S)
    best, *older = candidates(inventory.holders, RUN)
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    tracked = Tracked()
    tracked.add({"elastic.cursor": Cursor(), "model": model, "optimizer": optimizer, "scheduler": scheduler})
    for one in (*older, best):
        report = restore(tracked, one)
        assert tree.digest(tracked.flatten()) == book.digests[one.commit.step]
        assert report.read[0].places[0].tier == "memory"
    monkeypatch.setattr(sys, "argv", ["elastic", "ls", RUN, "--memory", str(tmp_path), "--json"])
    cli.main()
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [one["step"] for one in steps] == [one.commit.step for one in (best, *older)]
