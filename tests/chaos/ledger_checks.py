"""What must hold of the ledger of any real run."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic.ledger.ledger import Ledger
from elastic.ledger.model import Account, Category


def account_of(journal: Iterable[Mapping[str, Any]]) -> Account:
    """From the lines of a journal, all of which it knows."""
    ledger = Ledger()
    assert all(ledger.feed(line) for line in journal)
    return ledger.account()


def booked(journal: Path) -> Account:
    """The account of a journal's file, checked."""
    account = account_of(map(json.loads, journal.read_text().splitlines()))
    assert_balanced(account)
    return account


def assert_balanced(account: Account) -> None:
    """Both views add up, all of it has a name, no second belongs to two incidents, and each of these says why."""
    assert sum(account.wall_seconds.values()) == pytest.approx(account.wall_s, rel=1e-3)
    assert sum(account.worker_seconds.values()) == pytest.approx(account.workers_s, rel=1e-3)
    assert account.wall_seconds.get(Category.UNKNOWN, 0.0) < 0.01 * account.wall_s
    for category, seconds in account.wall_seconds.items():
        blamed = sum(incident.wall_seconds.get(category, 0.0) for incident in account.incidents)
        assert blamed <= seconds * 1.001 + 1e-6, category
    for one in account.incidents:
        assert all(one.evidence) and one.evidence, f"{one.kind}: without evidence"
        assert one.decision or one.its_number is not None, f"{one.kind}: without a decision"
