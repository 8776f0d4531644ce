"""Measures the fidelity of the fabric: programs against published values, closed forms, and the executors against each
other.

    python -m benchmarks.fidelity [--json] [--only published|forms|agreement] [--programs 200]

published   kernels of the suite that ``wse-sim validate`` uses, run as fabric programs.  A stencil runs on its smallest
            rectangle and few steps in time: a core's time depends on its neighbours alone.
forms       the closed forms of near-optimal reduce (Luczynski et al., arXiv 2404.15888), P cores, B words, r = 2 T_R + 1:

                chain      B + (r + hop)(P - 1)                       + s
                star       B (P - 1) + r        + o (P - 2)           + s + hop
                broadcast  B + P - 1 + r                              + s       2-D: B + M + N - 2 + r
                tree       max(B log P, B P log P / (2(P - 1)) + P - 1) + r + max(r, o)(log P - 1)  + s + hop

            s is the start of a task and o that of a vector instruction, which the paper's model does not have: the root
            of a star issues one per vector, a tree one per level where the ramps hide r of it.  Tree within 2 %, the
            others exact.
agreement   random programs on both wafers: oracle = wavelet in every counter, queue and value, oracle = max-plus in
            those that the max-plus executor counts.

Keys of the JSON: rows (section, name, expected, found, error, limit, note), agreement (wafer, programs, deadlocks,
wavelet_differs, max_plus_differs), failed (names of the rows beyond their limit).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from math import log2
from typing import Any

from benchmarks import measurements
from tests.fabric.agreement import disagreements, run_all
from wse_sim.bench.command import measure, run_kernel
from wse_sim.errors import WseError
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.kernels.families.vector_op import collides_unplaced
from wse_sim.validation.suite import Point, load_suite

GATED = ("reduce", "vector_op", "point_to_point")
PUBLISHED_LIMIT, TREE_LIMIT = 0.01, 0.02
COLLIDING_LIMIT = (
    0.035  # the study that states 0.5 for a plain fp32 product has 1.94 for the conflict of its reads
)
MAX_CORE_CYCLES = 5.0e8
SIZES = ((4, 16), (8, 64), (16, 256), (64, 256), (64, 1024), (128, 64))


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison; `limit` is the allowed fraction, None if the row is shown and not judged."""

    section: str
    name: str
    expected: float
    found: float | None
    limit: float | None
    note: str = ""

    @property
    def error(self) -> float | None:
        """The relative difference between found and expected."""
        return None if self.found is None else self.found / self.expected - 1.0

    @property
    def fails(self) -> bool:
        """True if the error exceeds the limit."""
        return self.limit is not None and (self.error is None or abs(self.error) > self.limit)

    def line(self) -> str:
        """Return a line of the table."""
        error = "" if self.error is None else f"{100 * self.error:+.2f} %"
        found = "-" if self.found is None else f"{self.found:,.2f}"
        limit = "" if self.limit is None else f"{100 * self.limit:g} %"
        mark = "beyond" if self.fails else ""
        return f"{self.name:<44}{self.expected:>14,.2f}{found:>14}{error:>10}{limit:>7}  {mark}{self.note}"


def published(
    max_core_cycles: float = MAX_CORE_CYCLES, kernels: Sequence[str] | None = None
) -> Iterator[Row]:
    """Kernels of the shipped suite (or some of them) by program; rows of kernels in GATED are judged."""
    for point in load_suite().points:
        kind, _, kernel = point.subject.partition(".")
        if kind == "kernel" and point.measured is not None and (kernels is None or kernel in kernels):
            yield _published(point, kernel, max_core_cycles)


def _published(point: Point, kernel: str, max_core_cycles: float) -> Row:
    wafer = load_wafer(point.system)
    params = point.params
    name, measurements = f"{kernel} {point.id}", float(point.measured or 0)
    limit = PUBLISHED_LIMIT if kernel in GATED else None
    op, dtype = str(params.get("op", "")), str(params.get("dtype", "fp32"))
    if kernel == "vector_op" and not params.get("bank_conflict") and collides_unplaced(op, dtype, wafer):
        limit = COLLIDING_LIMIT
    try:
        cores = int(params.get("rows", 1)) * int(params.get("cols", params.get("cores", 1)))
        cycles = measure(kernel, params, wafer).value
        if "steps" not in params and cores * cycles > max_core_cycles:
            return Row(
                "published", name, measurements, None, limit, f"not run: {cores * cycles:.2g} core cycles"
            )
        found = measure(kernel, params, wafer, quantity=point.quantity, timing="fabric").value
    except WseError as fault:
        return Row("published", name, measurements, None, limit, f"not run: {fault}")
    return Row("published", name, measurements, float(found), limit)


@dataclasses.dataclass(frozen=True)
class Form:
    """A closed form T(P, B) of a kernel's program."""

    name: str
    kernel: str
    params: Callable[[int, int], dict[str, Any]]
    cycles: Callable[[int, int], float]
    limit: float


def closed_forms(wafer: Wafer) -> tuple[Form, ...]:
    """Return the forms of the module's docstring with the constants of `wafer`."""
    config = FabricConfig.from_wafer(wafer)
    hop, r = config.hop_cycles, config.ring_delay_cycles + 2
    start, o = config.task_start_cycles, config.start_code_cycles

    def tree(p: int, b: int) -> float:
        contention = max(b * log2(p), b * p * log2(p) / (2 * (p - 1)) + p - 1)
        return contention + r + max(r, o) * (log2(p) - 1) + start + hop

    def line(algorithm: str) -> Callable[[int, int], dict[str, Any]]:
        return lambda p, b: {"algorithm": algorithm, "cores": p, "words": b}

    def square(p: int, b: int) -> dict[str, Any]:
        return {"rows": p // 4, "cores": 4, "words": b, "axis": "both"}

    return (
        Form("chain", "reduce", line("chain"), lambda p, b: b + (r + hop) * (p - 1) + start, 0.0),
        Form("star", "reduce", line("star"), lambda p, b: b * (p - 1) + r + o * (p - 2) + start + hop, 0.0),
        Form("tree", "reduce", line("tree"), tree, TREE_LIMIT),
        Form(
            "broadcast",
            "broadcast",
            lambda p, b: {"cores": p, "words": b},
            lambda p, b: b + hop * (p - 1) + r + start,
            0.0,
        ),
        Form("broadcast 2-D", "broadcast", square, lambda p, b: b + hop * (p // 4 + 4 - 2) + r + start, 0.0),
    )


def forms(sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[Row]:
    """Programs of WSE-2 against their closed forms."""
    wafer = load_wafer("wse2")
    for form in closed_forms(wafer):
        for p, b in sizes:
            report = run_kernel(form.kernel, form.params(p, b), wafer, timing="fabric", executor="wavelet")
            yield Row(
                "forms", f"{form.name} P={p} B={b}", form.cycles(p, b), report.fabric_cycles, form.limit
            )


def agreement(programs: int) -> Iterator[dict[str, Any]]:
    """Random programs on the three executors."""
    for name in ("wse2", "wse3"):
        config = FabricConfig.from_wafer(load_wafer(name))
        seen = {
            "wafer": name,
            "programs": programs,
            "deadlocks": 0,
            "wavelet_differs": 0,
            "max_plus_differs": 0,
        }
        for seed in range(programs):
            runs = run_all(seed, config, ("oracle", "wavelet", "max-plus"))
            seen["deadlocks"] += runs["oracle"].deadlock is not None
            for executor in ("wavelet", "max-plus"):
                seen[f"{executor.replace('-', '_')}_differs"] += bool(
                    disagreements(runs["oracle"], runs[executor])
                )
        yield seen


def main(arguments: list[str] | None = None) -> int:
    """Run the comparisons; status 1 if a row is beyond its limit or executors disagree."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--only", choices=("published", "forms", "agreement"))
    parser.add_argument("--kernels", nargs="+", help="of the published rows those of some kernels")
    parser.add_argument("--programs", type=int, default=200, help="random programs per wafer")
    parser.add_argument("--max-core-cycles", type=float, default=MAX_CORE_CYCLES, help="largest program run")
    parser.add_argument(
        "--keep", metavar="WHERE", help="write the rows into docs/measured.json, with the machine"
    )
    options = parser.parse_args(arguments)
    wanted = [options.only] if options.only else ["published", "forms", "agreement"]
    rows: list[Row] = []
    for section, found in (
        ("published", published(options.max_core_cycles, options.kernels)),
        ("forms", forms()),
    ):
        if section in wanted:
            for row in found:
                rows.append(row)
                print(row.line(), file=sys.stderr if options.json else sys.stdout, flush=True)
    agreed = list(agreement(options.programs)) if "agreement" in wanted else []
    failed = [row.name for row in rows if row.fails]
    failed += [f"agreement {a['wafer']}" for a in agreed if a["wavelet_differs"] or a["max_plus_differs"]]
    told = [{**dataclasses.asdict(row), "error": row.error} for row in rows]
    if options.keep:
        found = {
            f"{row['section']} {row['name']} {row['expected']:g}": row
            for row in told
            if row["found"] is not None
        }
        measurements.keep("fidelity", found, options.keep)
    if options.json:
        print(json.dumps({"rows": told, "agreement": agreed, "failed": failed}))
    else:
        for a in agreed:
            print(
                f"{a['wafer']}: {a['programs']} random programs, {a['deadlocks']} deadlocks; wavelet differs from the "
                f"oracle in {a['wavelet_differs']}, max-plus in {a['max_plus_differs']}"
            )
        print("all within their limits" if not failed else f"beyond their limits: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
