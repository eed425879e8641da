"""Effect. Writes the table of knobs into a document, between its markers; without --write, prints it.

python tools/knobs.py --write docs/configuration.md
"""

import argparse
import sys
from pathlib import Path

from elastic.knob_docs import table

BEGIN, END = "<!-- knobs:begin -->\n", "<!-- knobs:end -->"


def replaced(text: str) -> str:
    """The document with the table between its markers.

    Raises:
        ValueError: a marker is missing, or there are several.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the document needs one line {BEGIN.strip()} and, after it, one line {END}")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE")
    file = parser.parse_args().write
    if file is None:
        sys.stdout.write(table())
    else:
        file.write_text(replaced(file.read_text()))


if __name__ == "__main__":
    main()
