"""Two ways to one number, and published runs: programs in CSL against fabric programs and against what others measured.

    python -m benchmarks.csl_agreement --two-ways --write               our kernels: fabric program against its CSL, both generations
    python -m benchmarks.csl_agreement --costs --write                  single loops against published numbers (``benchmarks.csl_costs``)
    python -m benchmarks.csl_agreement --sources DIR --write            the published runs of ``wse_sim/suites/suite_csl.yaml``

With ``--write`` the rows go into ``docs/csl.json``, from which ``benchmarks.pages`` writes the tables of ``docs/csl.md``.
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
from wse_sim.bench.emit import write_csl
from wse_sim.csl.host.commands import cs_python, cslc
from wse_sim.hardware import load_wafer
from wse_sim.validation.run import validate
from wse_sim.validation.suite import load_suite, shipped_suite

KEPT = Path(__file__).parent.parent / "docs" / "csl.json"
SUITE = "suite_csl.yaml"
ARCHES = ("wse2", "wse3")
KERNELS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(("broadcast", f"broadcast, 16 cores, {words:,} words", {"words": words}) for words in (64, 512, 1024, 2048)),
    *(("reduce", f"reduce, chain, 16 cores, {words:,} words", {"algorithm": "chain", "words": words}) for words in (512, 1024, 2048)),
    ("reduce", "reduce, two phases, 16 cores, 1,024 words", {"algorithm": "two_phase", "words": 1024}),
    *(("allreduce", f"allreduce, chain, 16 cores, {words:,} words", {"algorithm": "chain", "words": words}) for words in (256, 512, 1024)),
    ("gemm", "GEMM (SUMMA) 16 x 16 x 16 on 2 x 2", {"rows": 2, "cols": 2, "m": 16, "k": 16, "n": 16}),
    ("gemm", "GEMM (SUMMA) 64 x 16 x 16 on 2 x 2", {"rows": 2, "cols": 2, "m": 64, "k": 16, "n": 16}),
    ("gemm", "GEMM (SUMMA) 32 x 32 x 32 on 4 x 4", {"rows": 4, "cols": 4, "m": 32, "k": 32, "n": 32}),
    ("gemv", "GEMV fp16 256 x 256 on 16 x 16", {"rows": 16, "cols": 16, "m": 256, "n": 256}),
    ("gemv", "GEMV fp16 512 x 256 on 4 x 4", {"rows": 4, "cols": 4, "m": 512, "n": 256}),
    ("gemv", "GEMV fp16 384 x 512 on 4 x 4", {"rows": 4, "cols": 4, "m": 384, "n": 512}),
    ("gemv", "GEMV fp16 512 x 512 on 4 x 4", {"rows": 4, "cols": 4, "m": 512, "n": 512}),
    *(("halo", f"five-point stencil, {nz:,} values a core, 4 x 4", {"rows": 4, "cols": 4, "nz": nz}) for nz in (64, 512, 768, 1024)),
)  # fmt: skip


def emitted_cycles(name: str, given: dict[str, Any], arch: str) -> int:
    """Cycles of a kernel written as CSL, compiled and run by our own tools; its script compares the values."""
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
    """Rows with the cycles of the fabric program and of its CSL."""
    rows = []
    for name, label, given in KERNELS:
        for arch in ARCHES:
            ours = run_kernel(name, given, load_wafer(arch), timing="fabric").fabric_cycles
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


def published(sources: Path, most_cores: int) -> list[dict[str, Any]]:
    """Rows of the suite of published runs, with error."""
    suite = load_suite(shipped_suite(SUITE))
    points = tuple(p for p in suite.points if int(p.params.get("cores", 1)) <= most_cores)
    answer = validate(
        suite.model_copy(update={"points": points}),
        sources=sources,
        progress=lambda t: print(t, file=sys.stderr),
    )
    return [row.as_dict() for row in answer.rows]


def main() -> None:
    """Print the rows, or keep them for the pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--two-ways", action="store_true", help="our kernels")
    parser.add_argument("--costs", action="store_true", help="single loops with published cycles")
    parser.add_argument("--sources", type=Path, help="folder of the published sources")
    parser.add_argument("--most-cores", type=int, default=30_000, help="leave out larger published runs")
    parser.add_argument("--write", action="store_true", help="into docs/csl.json")
    options = parser.parse_args()
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    found: dict[str, Any] = {}
    if options.two_ways:
        found["two_ways"] = two_ways()
    if options.costs:
        found["costs"] = csl_costs.rows()
    if options.sources is not None:
        found["published"] = published(options.sources, options.most_cores)
    if options.write:
        KEPT.write_text(json.dumps({**kept, **found}, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
