"""Measures the decoder layer of the examples at full size: cycles of its phases, closed forms, CPU seconds.

    python -m benchmarks.csl_decoder [--keep WHERE]

Runs the command files of ``examples/csl_decoder`` for both generations, five tokens each, and compares every phase with its closed form:
products at the documented rate and the published cost of a mapped instruction; sums over a line as the library's chain all-reduce
over half of it, with the words of the other half behind.  ``--keep`` writes ``docs/measured.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import tempfile
from pathlib import Path

from benchmarks import measurements
from wse_sim.csl.host.commands import run_commands
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.collectives.allreduce import FAMILY

EXAMPLE = measurements.ROOT / "examples" / "csl_decoder"
Row = measurements.Row
ROWS, COLUMNS, HIDDEN, INNER, HALF = 36, 38, 24, 136, 32  # elements of a piece of a vector, of half a head
CONTEXT_SLOTS, FILLED = 4, 2
PRODUCTS = {  # by phase: (columns, elements of a column)
    0: [(HIDDEN, HALF)],
    2: [(HALF, CONTEXT_SLOTS), (FILLED, HALF), (HALF, HIDDEN)],
    4: [(HIDDEN, 2 * INNER)],
    7: [(INNER, HIDDEN)],
}
SUMS = {  # by phase: (length of the line, words)
    1: [(COLUMNS, HALF + 1)],
    2: [(COLUMNS, 1), (COLUMNS, HALF + 1)],
    3: [(ROWS, HIDDEN)],
    5: [(COLUMNS, 2 * INNER + 1)],
    6: [(COLUMNS, INNER)],
    7: [(ROWS, HIDDEN)],
}


def closed_form(phase: int, wafer: Wafer) -> dict[str, int]:
    """Return the cycles of the products and of the sums of a phase."""
    products = sum(
        columns * (wafer.map_element_cycles + count / wafer.fma_mixed_per_cycle)
        for columns, count in PRODUCTS.get(phase, [])
    )
    sums = 0.0
    for length, words in SUMS.get(phase, []):
        tiling = Tiling(rows=1, cols=length // 2 + 1, mapping="grid", options={"algorithm": "chain"})
        sums += float(FAMILY.cost({"words": words}, tiling, wafer).total) + words
    return {"products": round(products), "sums": round(sums)}


def measure(arch: str) -> Row:
    """Run one command file with five tokens; return its phases with their closed forms, the compared values, and
    seconds.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "csl_decoder"
        shutil.copytree(EXAMPLE, copy)
        file = copy / f"commands_{arch}.sh"
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("--tokens 2", "--tokens 5"), encoding="utf-8")
        done = run_commands(file, quiet=True, strict=True, timeout_s=600)
    if done.returncode:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    wafer = load_wafer(arch)
    phases = [
        {"phase": name, "cycles": int(cycles.replace(",", "")), **closed_form(k, wafer)}
        for k, (cycles, name) in enumerate(re.findall(r"^ +([\d,]+)  (\S.*)$", done.stdout, re.MULTILINE))
    ]

    def number(pattern: str) -> float:
        found = re.search(pattern, done.stdout)
        if found is None:
            raise SystemExit(f"the script prints nothing like {pattern!r}:\n{done.stdout}")
        return float(found[1].replace(",", ""))

    return {
        "phases": phases,
        "cycles": int(number(r": ([\d,]+) cycles")),
        "cycles_per_s": int(number(r"([\d,]+) simulated cycles")),
        "difference": number(r"in f32 (\S+)"),
        "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print JSON; keep it where asked."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.csl_decoder", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--keep", metavar="WHERE", help="write docs/measured.json; where it was measured")
    options = parser.parse_args(arguments)
    values = {arch: measure(arch) for arch in ("wse2", "wse3")}
    print(json.dumps(values, indent=1))
    if options.keep:
        measurements.keep("csl_decoder", values, options.keep)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
