"""Compares public stencils in CSL, to which nothing was fitted: cycles per iteration on both generations, with a third
of the programs held back.

    python -m benchmarks.csl_unseen --sources DIR [--seen] [--keep]

DIR has a checkout of ``Jorineg/cerebras`` at commit 911a327, of that name.  Its authors measured with the vendor's simulator, from the
difference of two run lengths; so does this.  Which four programs are held back was drawn before a rule of the machine was changed
(:data:`HELD`).  ``--seen`` leaves them out: that is the view while mechanisms are changed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from wse_sim.csl.compiler import compile_program
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer

KEPT = Path(__file__).parent.parent / "docs" / "csl.json"
REPOSITORY = "cerebras"
SHORT, LONG = 2, 12
"""Iterations of the two runs."""
ARCHES = ("wse2", "wse3")


class Row(NamedTuple):
    """A stencil and its published cycles per iteration."""

    grid: tuple[int, int]
    tile: tuple[int, int] | None  # cells of a core; None: one cell, in a separate program
    radius: int
    wse2: int
    wse3: int

    def label(self) -> str:
        """Return the stencil in words."""
        grid = f"{self.grid[0]} x {self.grid[1]}"
        if self.tile is None:
            return f"{grid}, one cell a core"
        return f"{grid}, {self.tile[0]} x {self.tile[1]}, {self.radius}"


ROWS = (
    Row((3, 3), None, 1, 12, 17),
    Row((5, 5), None, 1, 16, 23),
    Row((3, 3), (1, 1), 1, 125, 155),
    Row((9, 9), (3, 3), 1, 188, 197),
    Row((9, 9), (3, 3), 3, 444, 526),
    Row((12, 12), (4, 5), 2, 477, 527),
    Row((14, 14), (6, 6), 1, 338, 244),
    Row((20, 20), (10, 10), 1, 783, 558),
    Row((100, 100), (20, 20), 2, 4548, 4570),
    Row((44, 29), (14, 9), 1, 841, 676),
)
Measured: TypeAlias = dict[str, Any]
"""A row with what was measured, as written to the file."""
HELD = frozenset(random.Random(32).sample(range(len(ROWS)), 4))


def cycles(folder: Path, row: Row, arch: str) -> float:
    """Return the cycles of an iteration, from the difference between the two run lengths."""
    return (_run(folder, row, arch, LONG) - _run(folder, row, arch, SHORT)) / (LONG - SHORT)


def _run(folder: Path, row: Row, arch: str, iterations: int) -> int:
    if row.tile is None:
        params = {"w": row.grid[0], "h": row.grid[1], "steps": iterations}
        layout, function, arguments = "non-tiled-tencil/layout.csl", "compute", []
    else:
        # The repository's script widens a grid to whole tiles.
        w, h = (side + -(side - 2 * row.radius) % tile for side, tile in zip(row.grid, row.tile, strict=True))
        params = {"w": w, "h": h, "radius": row.radius}
        params |= {"tile_width": row.tile[0], "tile_height": row.tile[1]}
        layout, function, arguments = "tiled-stencil/layout.csl", "start", [iterations]
    program = compile_program(folder / REPOSITORY / layout, arch=arch, params=params, memcpy=True)
    wafer = load_wafer(arch)
    session = Session(program.image, wafer)
    session.launch(
        0, 0, program.width, program.height, function, arguments, row_cycles=wafer.launch_row_cycles
    )
    if session.advance("commands").reason != "asked":
        raise SystemExit(f"{row.label()} on {arch} stopped: {[str(w) for w in session.status()]}")
    return session.cycle


def measured(folder: Path, *, only_seen: bool) -> list[Measured]:
    """Return the rows with what was published and what comes out here."""
    rows = []
    for number, row in enumerate(ROWS):
        if only_seen and number in HELD:
            continue
        found = {arch: cycles(folder, row, arch) for arch in ARCHES}
        rows.append(
            {"row": row.label(), "held": number in HELD, "published": {"wse2": row.wse2, "wse3": row.wse3}, "cycles": found}
        )  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    return rows


def summary(rows: list[Measured], *, held: bool) -> dict[str, float]:
    """Return number, median and largest error, and rows beyond 35 %, of the rows that were held back or seen."""
    errors = [
        abs(row["cycles"][arch] / row["published"][arch] - 1)
        for row in rows
        if row["held"] == held
        for arch in ARCHES
    ]
    beyond = sum(error > 0.35 for error in errors)
    return {
        "rows": len(errors),
        "median": statistics.median(errors),
        "largest": max(errors),
        "beyond": beyond,
    }


def ordered(rows: list[Measured]) -> int:
    """Return the rows whose faster generation is the published one."""
    return sum(
        (row["cycles"]["wse2"] < row["cycles"]["wse3"])
        == (row["published"]["wse2"] < row["published"]["wse3"])
        for row in rows
    )


def main() -> None:
    """Print the rows and both errors, or keep them for the pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sources", type=Path, required=True, help="folder with the checkout")
    parser.add_argument("--seen", action="store_true", help="leave out what is held back")
    parser.add_argument("--keep", action="store_true", help="into docs/csl.json")
    options = parser.parse_args()
    rows = measured(options.sources, only_seen=options.seen)
    for held in (False, True) if not options.seen else (False,):
        print("held back" if held else "seen", summary(rows, held=held))
    print(f"the faster generation is right in {ordered(rows)} of {len(rows)}")
    if options.keep and not options.seen:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        KEPT.write_text(json.dumps({**kept, "unseen": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
