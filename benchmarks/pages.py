"""Tables of the pages, written from ``docs/numbers.json`` and from the declarations in the code.

    python -m benchmarks.pages            write every table again                       (part of make numbers)
    python -m benchmarks.pages --check    say which pages are stale

A page marks a table by two comments; what is between them is replaced::

    <!-- table: validation.training -->
    ...
    <!-- end of table -->

Within a sentence a golden number is marked by its group, key and field::

    it trains <!-- number: models / gpt2-small, training, pipelined / samples_per_s -->1,168<!-- end --> samples/s

The functions that write tables are in ``benchmarks/tables``, by subject.  A test fails where a page and the file disagree.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from benchmarks import numbers
from benchmarks.tables import declarations, models, placement, programs, random_models, reliability
from benchmarks.tables.base import TABLES, group, quantity

__all__ = [
    "MARK",
    "PAGES",
    "TABLES",
    "declarations",
    "models",
    "placement",
    "programs",
    "random_models",
    "reliability",
    "rendered",
    "stale",
]

PAGES = (numbers.ROOT / "README.md", *sorted((numbers.ROOT / "docs").glob("*.md")))
MARK = re.compile(r"(<!-- table: (?P<name>[\w.-]+) -->\n)(?P<body>.*?)(<!-- end of table -->)", re.DOTALL)
NUMBER = re.compile(r"(<!-- number: ([^/\n]+) / ([^/\n]+) / (\w+) -->)([^<\n]*)(<!-- end -->)")


def _number(found: re.Match[str]) -> str:
    value = float(group(found[2])[found[3]][found[4]])
    return f"{found[1]}{quantity(value)}{found[6]}"


def rendered(text: str) -> str:
    """Return the text of a page with every marked table and number written again.

    Raises
    ------
    KeyError
        If a page names a table that nobody writes, or a number that the file does not have.
    """
    text = NUMBER.sub(_number, text)
    return MARK.sub(lambda found: f"{found[1]}\n{TABLES[found['name']]()}\n\n{found[4]}", text)


def stale() -> list[Path]:
    """Return the pages whose tables differ from the file."""
    return [page for page in PAGES if rendered(text := page.read_text(encoding="utf-8")) != text]


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or say which are stale."""
    parser = argparse.ArgumentParser(prog="benchmarks.pages", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    options = parser.parse_args(arguments)
    pages = stale()
    for page in pages:
        if not options.check:
            page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{'stale' if options.check else 'wrote'} {page.relative_to(numbers.ROOT)}")
    return int(options.check and bool(pages))


if __name__ == "__main__":
    sys.exit(main())
