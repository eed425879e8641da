"""Effect. What is refused is said once of each sender and kind: who sends nonsense sends it often."""

import logging
from typing import Any

log = logging.getLogger("elastic")


class Refusals:
    """What was said."""

    def __init__(self) -> None:
        self._said: dict[Any, set[str]] = {}

    def say(self, who: Any, what: str, why: str) -> None:
        """Once for each `who`, and each kind of message, `what`."""
        said = self._said.setdefault(who, set())
        if what not in said:
            said.add(what)
            log.warning("refused: %s", why)

    def forget(self, who: Any) -> None:
        self._said.pop(who, None)
