"""What must hold of the ledger of any real run."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from elastic.ledger.ledger import Ledger
from elastic.ledger.model import Account, Category
from tests.lines import whole_lines

# What goes on beside failures: nobody is to blame for it.
STEADY = frozenset(
    {
        Category.PRODUCTIVE,
        Category.DATA_WAIT,
        Category.CHECKPOINT_STALL,
        Category.EVALUATION,
        Category.CALLBACKS,
        Category.FINISHING,
        Category.UNKNOWN,
    }
)


def account_of(journal: Iterable[Mapping[str, Any]]) -> Account:
    """From the lines of a journal, all of which it knows."""
    ledger = Ledger()
    assert all(ledger.feed(line) for line in journal)
    return ledger.account()


def booked(journal: Path) -> Account:
    """The account of a journal's file, checked; a line that its driver did not live to end is none."""
    account = account_of(whole_lines(journal))
    assert_balanced(account)
    return account


def assert_balanced(account: Account) -> None:
    """Both views add up, all has a name, what is lost is somebody's, nothing is two incidents'; each says why."""
    assert sum(account.wall_seconds.values()) == pytest.approx(account.wall_s, rel=1e-3)
    assert sum(account.worker_seconds.values()) == pytest.approx(account.workers_s, rel=1e-3)
    assert account.wall_seconds.get(Category.UNKNOWN, 0.0) <= 0.01 * account.wall_s
    for name in ("wall_seconds", "worker_seconds"):
        blamed: Counter[Category] = Counter()
        for incident in account.incidents:
            blamed.update(getattr(incident, name))
        for category, seconds in getattr(account, name).items():
            is_open = category is Category.DETECTING and account.is_live  # nobody knows yet what it will have been
            if category in STEADY:
                assert not blamed[category], f"{category}: of no incident"
            elif is_open:
                assert blamed[category] <= seconds * 1.001 + 1e-6, (name, category)
            else:
                assert blamed[category] == pytest.approx(seconds, rel=1e-3, abs=1e-6), (name, category)
    for one in account.incidents:
        assert all(one.evidence) and one.evidence, f"{one.kind}: without evidence"
        assert one.decision or one.its_number is not None, f"{one.kind}: without a decision"
