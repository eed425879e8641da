"""Effect. Writes the state diagrams into a document, between its markers; without --write, prints them.

python tools/diagram.py --write ARCHITECTURE.md
"""

import argparse
import sys
from pathlib import Path

from elastic.control.diagram import render_phases, render_stages

BEGIN, END = "<!-- diagram:begin -->\n", "<!-- diagram:end -->"


def block() -> str:
    """Both diagrams, as Markdown."""
    return (
        f"A run:\n\n```mermaid\n{render_phases()}```\n\n"
        f"A worker, as it sees itself:\n\n```mermaid\n{render_stages()}```\n"
    )


def replaced(text: str) -> str:
    """The document with the block between its markers.

    Raises:
        ValueError: a marker is missing, or there are several.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the document needs one line {BEGIN.strip()} and, after it, one line {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return before + BEGIN + block() + END + after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to write into")
    path = parser.parse_args().write
    if path is None:
        sys.stdout.write(block())
        return
    try:
        path.write_text(replaced(path.read_text()))
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")


if __name__ == "__main__":
    main()
