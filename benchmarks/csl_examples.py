"""Runs every command file of the public examples and stores for the page whether it passed, its seconds and its cycles.

    python -m benchmarks.csl_examples DIR --keep WHERE [--arch wse2]      DIR holds a checkout of Cerebras/csl-examples; some 3 min a generation
    python -m benchmarks.csl_examples DIR --sdk 2.10 --keep WHERE         DIR holds a checkout of Cerebras/sdk-examples, the second corpus
    python -m benchmarks.csl_examples --read FILE.json ... --keep WHERE   what ``wse-sim csl check DIR --json`` printed

With ``--keep`` the results are in ``docs/csl.json``; a generation that was not run keeps its own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.csl_agreement import KEPT
from wse_sim.csl.host.commands import check_case, find_cases

CORPORA = {"1.4": "examples", "2.10": "examples_2_10"}
"""Key in ``docs/csl.json`` by release."""


def checked(folder: Path, arch: str | None, timeout_s: float) -> list[dict[str, Any]]:
    """Return the results of the command files below a folder."""
    found = find_cases(folder, arch, None)
    return [check_case(name, generation, file, timeout_s).as_dict() for name, generation, file in found]


def summary(cases: list[dict[str, Any]], where: str) -> dict[str, dict[str, Any]]:
    """Return the content of the page, per generation."""
    found = {}
    for arch in sorted({case["arch"] for case in cases}):
        own = [case for case in cases if case["arch"] == arch]
        longest = max(own, key=lambda case: case["seconds"])
        found[arch] = {
            "cases": len(own),
            "passed": sum(case["passed"] for case in own),
            "failed": [case["name"] for case in own if not case["passed"]],
            "median_s": statistics.median(case["seconds"] for case in own),
            "total_s": sum(case["seconds"] for case in own),
            "longest": longest["name"],
            "longest_s": longest["seconds"],
            "when": datetime.date.today().isoformat(),
            "where": where,
            "cycles": {case["name"]: case["cycles"] for case in own},
        }
    return found


def main() -> None:
    """Run or read, print or keep."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="a checkout of the public examples")
    parser.add_argument("--read", type=Path, nargs="+", default=[], help="outputs of `csl check --json`")
    parser.add_argument("--arch", choices=("wse2", "wse3"), help="one generation only")
    parser.add_argument("--sdk", choices=tuple(CORPORA), default="1.4", help="the release of the examples")
    parser.add_argument("--timeout", type=float, default=1500.0, help="seconds for one case")
    parser.add_argument(
        "--keep", metavar="WHERE", help="write into docs/csl.json, with the machine and its load"
    )
    options = parser.parse_args()
    if (options.folder is None) == (not options.read):
        parser.error("give a folder of examples, or --read FILE")
    cases = [case for file in options.read for case in json.loads(file.read_text(encoding="utf-8"))["cases"]]
    if options.folder is not None:
        cases = checked(options.folder, options.arch, options.timeout)
    found = summary(cases, options.keep or "")
    if options.keep:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        key = CORPORA[options.sdk]
        kept[key] = {**kept.get(key, {}), **found}
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
