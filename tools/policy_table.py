"""Effect. Writes the table of built-in policies into a document, between its markers; without --write, prints it.

python tools/policy_table.py --write docs/policies.md
"""

import argparse
import sys
from pathlib import Path

from elastic.policies.table import render

BEGIN, END = "<!-- table:begin -->\n", "<!-- table:end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to write into")
    path = parser.parse_args().write
    if path is None:
        sys.stdout.write(render())
        return
    text = path.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        sys.exit(f"{path}: needs one line {BEGIN.strip()} and, after it, one line {END}")
    path.write_text(text.split(BEGIN)[0] + BEGIN + "\n" + render() + "\n" + END + text.split(END)[1])


if __name__ == "__main__":
    main()
