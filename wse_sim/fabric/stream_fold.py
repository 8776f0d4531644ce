"""Identical rows are solved once: no word passes between rows, so equal rows have equal times."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.program import PORT_BIT, Program

MIN_ROWS = 4


@dataclasses.dataclass(frozen=True)
class Fold:
    """``program`` has the distinct rows; ``first[i]`` is the row of the whole program that its row i stands for.

    ``place[row]`` is the row of the small program; ``weight[i]`` counts the rows that row i stands for.
    """

    program: Program
    first: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    weight: npt.NDArray[np.int64]


def fold_rows(program: Program) -> Fold | None:
    """The distinct rows of `program`; None if a route leads from row to row or no two rows are alike."""
    vertical = PORT_BIT["N"] | PORT_BIT["S"]
    if program.rows < MIN_ROWS or ((program.cfg_rx | program.cfg_tx) & vertical).any():
        return None
    rows, cols = program.rows, program.cols
    planes = [program.core_class.reshape(rows, cols)]
    planes += [plane.reshape(rows, cols) for plane in (*program.route, *program.params)]
    seen: dict[bytes, int] = {}
    first: list[int] = []
    place = np.zeros(rows, np.int64)
    for row in range(rows):
        key = b"".join(plane[row].tobytes() for plane in planes)
        if key not in seen:
            seen[key] = len(first)
            first.append(row)
        place[row] = seen[key]
    if len(first) == rows:
        return None
    keep = np.array(first)
    slots, n_params = len(program.route), len(program.params)
    small = dataclasses.replace(
        program,
        rows=len(first),
        core_class=np.ascontiguousarray(planes[0][keep]).reshape(-1),
        route=np.ascontiguousarray(program.route.reshape(slots, rows, cols)[:, keep]).reshape(slots, -1),
        params=np.ascontiguousarray(program.params.reshape(n_params, rows, cols)[:, keep]).reshape(
            n_params, -1
        ),
    )
    return Fold(small, keep, place, np.bincount(place))
