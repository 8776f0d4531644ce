"""Measures complete zoos in an order that was drawn once, so that any part of it is a fair sample of each zoo and
phase.

    python -m benchmarks.zoo_drawn [--for SECONDS] [--limit SECONDS] [--file FILE]

The names of timm, torchvision and transformers (by configuration, on "meta") are shuffled with a fixed seed, each zoo and
phase by itself, and taken in turns.  A row is written as soon as its model has run (:mod:`benchmarks.zoo_coverage` measures
it, in its own process), so a run that was stopped continues where it stopped.  A model over the limit of CPU time counts
among those that were drawn.  Rows carry the commit that they were measured with.  A zoo that is not installed keeps its rows.

Prints one line of JSON per model.  ``benchmarks.pages`` renders the table of docs/public-models.md from the file.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

from benchmarks import zoo_coverage

FILE = zoo_coverage.FILE.with_name("zoo_drawn.json")
ZOOS = ("timm", "torchvision", "transformers")
PHASES = ("inference", "training")
SEED = 30


def order(zoo: str, phase: str, names: Sequence[str]) -> list[str]:
    """Return all names of a zoo, in the order in which they are measured in one phase."""
    return random.Random(f"{SEED} {zoo} {phase}").sample(sorted(names), len(names))


def drawn() -> Iterator[tuple[str, str, str, int]]:
    """(zoo, phase, name, how many names the zoo has), zoos that are installed and phases in turns."""
    known = {zoo: zoo_coverage.names_of(zoo) for zoo in ZOOS if find_spec(zoo) is not None}
    lists = [
        [(zoo, phase, name, len(known[zoo])) for name in order(zoo, phase, known[zoo])]
        for phase in PHASES
        for zoo in known
    ]
    for turn in zip_longest(*lists):
        yield from (row for row in turn if row is not None)


def commit() -> str:
    """The commit of the tree that is measured; "unknown" outside a repository."""
    asked = ["git", "-C", str(FILE.parent), "rev-parse", "--short=9", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure models until the time is over or all are done."""
    parser = argparse.ArgumentParser(prog="benchmarks.zoo_drawn", description=__doc__.partition("\n")[0])
    parser.add_argument("--for", dest="time_s", type=float, default=float("inf"), help="seconds of wall time")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of CPU time per model")
    parser.add_argument("--commit", default=commit(), help="what rows are marked with")
    parser.add_argument("--file", type=Path, default=FILE, help="the file of results")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    zoo_coverage.torchvision_loads()
    end = time.monotonic() + options.time_s
    done = {
        (zoo, phase): {*zoo_coverage.known_rows(options.file, zoo, phase)} for zoo in ZOOS for phase in PHASES
    }
    for zoo, phase, name, total in drawn():
        if name in done[zoo, phase]:
            continue
        if time.monotonic() > end:
            break
        row = zoo_coverage.in_process(zoo, name, phase == "training", options.limit)
        print(json.dumps(row), flush=True)
        row["commit"] = options.commit
        zoo_coverage.write(options.file, row, total, f"drawn (seed {SEED}), limit {options.limit:g} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
