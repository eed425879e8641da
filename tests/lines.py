"""Reads files of JSON lines, which a run may still be writing to."""

import json
from pathlib import Path
from typing import Any


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """All lines but one that is being written: of that a reader may see a part, up to the end of a page."""
    return [json.loads(text) for text in path.read_text().rpartition("\n")[0].splitlines()]
