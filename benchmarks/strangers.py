"""Sends malformed input to all entry points and counts the answers by class.

    python -m benchmarks.strangers --keep      (2 minutes of processor time; writes the entry of docs/measured.json)

The cases are those of tests/doors/test_strangers.py: the same ones in every run, unless --seed says otherwise.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks import measurements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the cases of each door")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="doors whose names hold one of these")
    parser.add_argument("--keep", action="store_true", help="write docs/measured.json")
    options = parser.parse_args()
    from tests.doors.all_doors import all_doors
    from tests.doors.strangers import campaign

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.chdir(folder)
        found = {}
        for door in all_doors(folder):
            if options.only and not any(part in door.name for part in options.only):
                continue
            tally = campaign(door, folder, max(2, round(door.count * options.share)), options.seed)
            found[door.name] = {**tally.answers, "wrong": len(tally.faults)}
            print(
                door.name,
                found[door.name],
                *(ascii(fault)[:400] for fault in tally.faults[:5]),
                sep="\n  ",
                flush=True,
            )
            if options.keep:
                measurements.keep(
                    "strangers", found, "malformed inputs, seed 0; make test-all has two fifths of them"
                )


if __name__ == "__main__":
    main()
