"""Cost of contest placements per case and seed.

``python -m benchmarks.placement [--cases A B] [--dir DIR] [--seeds 0..4] [--time-limit 60] --json``

Instances ``CASE.kgraph`` are read from ``--dir`` or the folder in ``WSE_ISPD2020_DIR``; without
either, generated instances take their place (named ``chain32``, ``residual52``, ``unet48``).
``--cases`` also takes paths of ``.kgraph`` files.  Every run is printed as it ends, on standard
error where ``--json`` keeps standard output for the one document at the end.

Two more sets of runs, each for its own table: ``--published`` evaluates the placements in ``DIR/published`` against
every graph of the folder that they fit; ``--weighted`` places instances in which wire is expensive, and a large one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import measurements
from benchmarks.measurements import Row
from wse_sim.compiler.contest import (
    ContestGraph,
    ContestResult,
    check_contest,
    parse_kgraph,
    place_graph,
    read_kgraph,
)
from wse_sim.errors import ConfigError, WseError

HEADER = "width=633\nheight=633\nwdeltat=1\nwlength=1\nwadapter=0\nmemlimit=24576\n"


def generated() -> dict[str, ContestGraph]:
    """Return the instances of the contest's size, made up here: a chain, a residual and a U-Net like graph."""
    result = {}
    for kind, n in (("chain", 32), ("residual", 52), ("unet", 48)):
        rng = np.random.default_rng(n)
        lines = [HEADER]
        for i in range(n):
            side, channels, filt = (
                int(rng.choice([7, 14, 28])),
                int(rng.choice([256, 512])),
                int(rng.choice([1, 3])),
            )
            lines.append(
                f"conv[{i}] H={side} W={side} R={filt} S={filt} C={channels} K={channels} T=1 U=1 name='k{i}'"
            )
        edges = [(i, i + 1) for i in range(n - 1)]
        if kind == "residual":
            edges += [(i, i + 2) for i in range(0, n - 2, 3)]
        if kind == "unet":
            edges += [(i, n - 1 - i) for i in range(n // 2 - 1)]
        lines += [f"conv[{a}]:y -> conv[{b}]:x" for a, b in edges]
        result[f"{kind}{n}"] = parse_kgraph("\n".join(lines), f"{kind}{n}")
    return result


Weighted = tuple[str, str, float, float, float]
WEIGHTED: tuple[Weighted, ...] = (
    ("E (A with wire x 10)", "E", 1, 10, 20),
    ("H (D with wire x 10)", "H", 1, 10, 30),
    ("40 kernels, wire x 200", "40", 1, 200, 3),
    ("40 kernels, wire x 1000", "40", 1, 1000, 7),
    ("40 kernels, wire alone", "40", 0, 1, 12),
    ("1000 kernels, wire x 1", "1000", 1, 1, 60),
)
"""Label, graph (of the folder, or so many generated kernels), weight of time, weight of wire, limit in seconds."""


def skipping(n: int) -> ContestGraph:
    """`n` convolutions of ResNet-like sizes in a chain, with a skip over four from every fourth."""
    rng = np.random.default_rng(n)
    lines = [HEADER]
    for i in range(n):
        side, channels = ((56, 64), (28, 128), (14, 256), (7, 512))[4 * i // n]
        filt = int(rng.choice([1, 3]))
        lines.append(
            f"conv[{i}] H={side} W={side} R={filt} S={filt} C={channels} K={channels} T=1 U=1 name='k{i}'"
        )
    edges = [(i, i + 1) for i in range(n - 1)] + [(i, i + 4) for i in range(0, n - 4, 4)]
    return parse_kgraph("\n".join([*lines, *(f"conv[{a}]:y -> conv[{b}]:x" for a, b in edges)]), f"skips{n}")


def weighted(folder: str | None, cases: tuple[Weighted, ...] = WEIGHTED) -> list[Row]:
    """Return a row per instance of WEIGHTED; those of the folder are left out without one."""
    rows = []
    for label, name, time_weight, wire_weight, limit_s in cases:
        if name.isdigit():
            graph = replace(skipping(int(name)), wdeltat=time_weight, wlength=wire_weight)
        elif folder:
            graph = read_kgraph(Path(folder) / f"{name}.kgraph")
        else:
            continue
        result = place_graph(graph, "portfolio", limit_s, 0)
        rows.append({"instance": label, "limit_s": limit_s, **_row(name, 0, result)})
    return rows


def published(folder: str) -> list[Row]:
    """Return the placements in `folder`/published, evaluated against every graph of the folder that they fit."""
    rows: list[Row] = []
    for placement in sorted((Path(folder) / "published").glob("*.paint")):
        for graph in sorted(Path(folder).glob("*.kgraph")):
            try:
                result = check_contest(graph, placement)
            except WseError:
                continue  # a placement of another graph
            rows.append(
                {
                    "placement": placement.name,
                    "graph": graph.stem,
                    "max_time": result.max_time,
                    "wire_l1": result.wire_l1,
                    "cost": result.cost,
                }
            )
    return rows


def seed_range(words: list[str]) -> list[int]:
    """Return the seeds of words such as ``0 3`` or ``0..4``."""
    seeds: list[int] = []
    for word in words:
        first, _, last = word.partition("..")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print a table or JSON."""
    parser = argparse.ArgumentParser(prog="benchmarks.placement", description=__doc__)
    parser.add_argument("--cases", nargs="+", help="names of instances or .kgraph files; default: all found")
    parser.add_argument(
        "--dir", default=os.environ.get("WSE_ISPD2020_DIR") or None, help="folder of .kgraph files"
    )
    parser.add_argument("--seeds", nargs="+", default=["0..4"], help="seeds, as 0 1 2 or 0..4")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds per run")
    parser.add_argument("--placer", default="portfolio")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--keep", metavar="WHERE", help="write the costs into docs/measured.json, with the machine"
    )
    parser.add_argument("--weighted", action="store_true", help="place the instances with other weights")
    parser.add_argument("--published", action="store_true", help="evaluate the placements in DIR/published")
    options = parser.parse_args(arguments)
    if options.weighted or options.published:
        return _other(options)
    try:
        cases = _cases(options.dir, options.cases)
        rows = []
        for name, graph in cases.items():
            for seed in seed_range(options.seeds):
                result = place_graph(graph, options.placer, options.time_limit, seed)
                rows.append(_row(name, seed, result))
                print(_line(rows[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    except WseError as error:
        print(error, file=sys.stderr)
        return 2
    summary = [_summary(name, rows) for name in cases]
    if options.keep:
        costs = {name: [row["cost"] for row in rows if row["case"] == name] for name in cases}
        measurements.keep("contest", costs, options.keep)
    if options.json:
        print(json.dumps({"time_limit_s": options.time_limit, "runs": rows, "cases": summary}, indent=1))
    else:
        for row in summary:
            print(f"{row['case']:>12}: cost median {row['median_cost']:g}, worst {row['worst_cost']:g}")
    return 0


def _other(options: argparse.Namespace) -> int:
    """The sets of runs that have their own table."""
    if options.published and not options.dir:
        print("--published needs a folder of .kgraph files; name it with --dir", file=sys.stderr)
        return 2
    found: dict[str, list[Row]] = {}
    if options.weighted:
        found["contest_weighted"] = weighted(options.dir)
    if options.published:
        found["contest_published"] = published(options.dir)
    for name, rows in found.items():
        if options.keep:
            measurements.keep(name, {"rows": rows}, options.keep)
    print(json.dumps(found, indent=1))
    return 0


def _cases(folder: str | None, names: list[str] | None) -> dict[str, ContestGraph]:
    """Return the graphs by name: of files, of the folder, or generated."""
    if not names:
        if not folder:
            return generated()
        names = [str(path) for path in sorted(Path(folder).glob("*.kgraph"))]
        if not names:
            raise ConfigError(f"the folder {folder!r} has no .kgraph file; name another with --dir")
    made = {} if folder else generated()
    found = {}
    for name in names:
        if name in made:
            found[name] = made[name]
            continue
        path = Path(name) if name.endswith(".kgraph") else Path(folder or "") / f"{name}.kgraph"
        found[path.stem] = read_kgraph(path)
    return found


def _row(name: str, seed: int, result: ContestResult) -> Row:
    return {
        "case": name,
        "seed": seed,
        "cost": result.cost,
        "max_time": result.max_time,
        "wire_l1": result.wire_l1,
        "lower_bound": result.lower_bound,
        "wall_s": round(result.wall_s, 2),
        "legal": result.legal,
        "notes": list(result.notes),
    }


def _line(row: dict[str, object]) -> str:
    return (
        f"{row['case']:>12} seed {row['seed']}: cost {row['cost']} = time {row['max_time']} and L1 {row['wire_l1']} "
        f"tiles, in {row['wall_s']} s {' '.join(map(str, row['notes'] if isinstance(row['notes'], list) else []))}"
    )


def _summary(name: str, rows: list[dict[str, object]]) -> dict[str, object]:
    costs = [float(str(row["cost"])) for row in rows if row["case"] == name]
    return {
        "case": name,
        "median_cost": statistics.median(costs),
        "worst_cost": max(costs),
        "best_cost": min(costs),
    }


if __name__ == "__main__":
    sys.exit(main())
