"""Compares cycles of CSL programs with those of fabric programs, and with published runs.

    python -m benchmarks.csl_agreement --two-ways --keep                our kernels: fabric program against its CSL, both generations
    python -m benchmarks.csl_agreement --costs --keep                   single loops against published numbers (``benchmarks.csl_costs``)
    python -m benchmarks.csl_agreement --sources DIR --keep             the published runs of ``wse_sim/suites/suite_csl.yaml``

With ``--keep`` the rows go into ``docs/csl.json``, from which ``benchmarks.pages`` writes the tables of ``docs/csl.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import csl_costs
from wse_sim.bench.command import find, run_kernel
from wse_sim.bench.emit import stamp_difference, write_csl
from wse_sim.csl.host.commands import cs_python, cslc
from wse_sim.hardware import load_wafer
from wse_sim.validation.run import validate
from wse_sim.validation.suite import load_suite, shipped_suite

KEPT = Path(__file__).parent.parent / "docs" / "csl.json"
SUITE = "suite_csl.yaml"
ARCHES = ("wse2", "wse3")
KERNELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(("broadcast", f"broadcast, 16 cores, {words:,} words", {"words": words}) for words in (16, 64, 512)),
    *(("reduce", f"reduce, chain, 16 cores, {words:,} words", {"algorithm": "chain", "words": words}) for words in (16, 64, 512)),
    *(("allreduce", f"allreduce, chain, 16 cores, {words:,} words", {"algorithm": "chain", "words": words}) for words in (16, 64, 512)),
    *(("gemm", f"GEMM (SUMMA) fp32 {m} x {k} x {n} on {p} x {p}", {"rows": p, "cols": p, "m": m, "k": k, "n": n})
      for p, m, k, n in ((2, 16, 16, 16), (4, 32, 32, 32), (2, 64, 16, 16), (4, 64, 64, 64))),
    *(("gemv", f"GEMV fp16 {m} x {m} on {p} x {p}", {"rows": p, "cols": p, "m": m, "n": m})
      for p, m in ((16, 16), (4, 64), (16, 256), (8, 512))),
    *(("halo", f"five-point stencil, {nz:,} values a core, 4 x 4", {"rows": 4, "cols": 4, "nz": nz}) for nz in (16, 64, 256, 512)),
)  # fmt: skip
"""Short, middle and long: a constant shows in the short ones, a price per element in the long ones."""


def emitted_cycles(name: str, given: dict[str, Any], arch: str) -> int:
    """Return the cycles of a kernel that is written as CSL, compiled and run by our own tools; its script compares the
    values.
    """
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        write_csl(name, given, find(name).build(given, load_wafer(arch)), Path())
        text = Path(f"commands_{arch}.sh").read_text(encoding="utf-8")
        (line,) = (text for text in text.splitlines() if text.startswith("cslc"))
        said, kept, paths = io.StringIO(), sys.argv, list(sys.path)
        try:
            with contextlib.redirect_stdout(said):
                cslc(line.split()[1:])
                status = cs_python(["run.py", "--name", "out"])
        finally:
            sys.argv, sys.path[:] = kept, paths
    if status or "SUCCESS!" not in said.getvalue():
        raise SystemExit(f"{name} on {arch}: the emitted program's values are wrong")
    return int(said.getvalue().split("cycles:")[1].split()[0])


def two_ways() -> list[dict[str, Any]]:
    """Return the rows with the cycles of the fabric program, with the time stamps of its CSL, and of that CSL."""
    rows = []
    for name, label, given in KERNELS:
        for arch in ARCHES:
            wafer = load_wafer(arch)
            measured = run_kernel(name, given, wafer, timing="fabric").fabric_cycles
            if measured is None:
                raise SystemExit(f"{name} on {arch}: no fabric program ran")
            ours = measured - stamp_difference(wafer, arch)
            cycles = emitted_cycles(name, given, arch)
            rows.append(
                {"kernel": label, "arch": arch, "program": ours, "csl": cycles, "error": cycles / ours - 1}
            )
            print(
                f"{label:48} {arch}  {ours:>8,} {cycles:>8,} {rows[-1]['error']:+7.1%}",
                file=sys.stderr,
                flush=True,
            )
    return rows


def published(sources: Path, most_cores: int, only: str) -> list[dict[str, Any]]:
    """Return the rows of the suite of published runs that count, with error."""
    suite = load_suite(shipped_suite(SUITE))
    points = tuple(
        p for p in suite.points if p.gate and only in p.id and int(p.params.get("cores", 1)) <= most_cores
    )
    answer = validate(
        suite.model_copy(update={"points": points}),
        sources=sources,
        progress=lambda t: print(t, file=sys.stderr),
    )
    return [row.as_dict() for row in answer.rows]


def merged(kept: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace stored rows by those that ran now, in the order of the suite."""
    found = {row["id"]: row for row in [*kept, *rows]}
    return [
        found[point.id]
        for point in load_suite(shipped_suite(SUITE)).points
        if point.id in found and point.gate
    ]


def main() -> None:
    """Print the rows, or keep them for the pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--two-ways", action="store_true", help="our kernels")
    parser.add_argument("--costs", action="store_true", help="single loops with published cycles")
    parser.add_argument("--sources", type=Path, help="folder of the published sources")
    parser.add_argument("--most-cores", type=int, default=600, help="leave out larger published runs")
    parser.add_argument(
        "--only", default="", help="published runs whose id holds this; the others keep their rows"
    )
    parser.add_argument("--keep", action="store_true", help="into docs/csl.json")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if options.two_ways:
        found["two_ways"] = two_ways()
    if options.costs:
        found["costs"] = csl_costs.rows()
    if options.sources is not None:
        rows = published(options.sources, options.most_cores, options.only)
        failed = [f"{row['id']}: {row['reason']}" for row in rows if row["error"] is None]
        if failed:
            raise SystemExit("\n".join(failed))
        found["published"] = rows
    if options.keep:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        if "published" in found:
            found["published"] = merged(kept["published"], found["published"])
        KEPT.write_text(json.dumps({**kept, **found}, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
