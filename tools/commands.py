"""Effect. Writes the reference of the command line into a document, between its markers; without --write, prints it.

python tools/commands.py --write docs/commands.md
"""

import argparse
import sys
from pathlib import Path

from elastic.cli import cli
from elastic.commands.reference import render

BEGIN, END = "<!-- commands:begin -->\n", "<!-- commands:end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to write into")
    path = parser.parse_args().write
    if path is None:
        sys.stdout.write(render(cli))
        return
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{path}: needs one line {BEGIN.strip()} and, after it, one line {END}")
    path.write_text(text.split(BEGIN)[0] + BEGIN + "\n" + render(cli) + "\n" + END + text.split(END)[1])


if __name__ == "__main__":
    main()
