"""Consistency check of a kernel's methods, for tests of new kernels."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.result import FabricResult
from wse_sim.fabric.run import run_program
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Case, Dims, Family, How, ProgramOptions, Tiling


def declared_bytes(program: Program) -> int:
    """Return the SRAM of the fullest core: the end of the last buffer of any user core."""
    ends = np.zeros((program.rows, program.user_cols), np.int64)
    for info in program.buffers.values():
        if 0 <= info.col < program.user_cols:
            region = ends[info.row : info.row + info.rows, info.col : info.col + info.cols]
            np.maximum(region, info.address + info.length * info.element_bytes, out=region)
    return int(ends.max())


def max_abs_error(case: Case, result: FabricResult) -> float:
    """Return the largest deviation of the buffers from the reference; NaN in the reference is not
    compared."""
    worst = 0.0
    for name, wanted in case.expected.items():
        deviation = np.abs(result.read(name).astype(np.float64) - wanted)
        worst = max(worst, float(np.nanmax(deviation, initial=0.0)))
    return worst


def check_faces(
    family: Family,
    dims: Dims,
    tiling: Tiling,
    wafer: Wafer,
    *,
    band: float,
    resident_bytes: float = 0,
    **options: Unpack[ProgramOptions],
) -> float:
    """Run the program and check values, cycles within `band` of the cost, and SRAM within the footprint.

    `resident_bytes`: stationary tensors that the compiler counts, and buffers of feeders or collectors at the
    edge.

    Returns
    -------
    float
        (cost - cycles) / cycles.

    Raises
    ------
    KernelError
        Naming the face that disagrees, both numbers and the limit.
    """
    priced: How = {"phase": options.get("phase", Phase.FORWARD), "attrs": options.get("attrs")}
    if "dtype" in options:
        priced["dtype"] = options["dtype"]
    case = family.program(dims, tiling, wafer, **options)
    result = run_program(case.program, case.config, inputs=case.inputs)
    if result.deadlock is not None:
        raise KernelError(
            f"kernel '{family.name}': the program stops with cores that wait: {result.deadlock.told()}"
        )
    deviation = max_abs_error(case, result)
    if deviation > case.tolerance:
        raise KernelError(
            f"kernel '{family.name}': values deviate by {deviation:.3g}, tolerance {case.tolerance:.3g}; "
            "correct `program` or `compute`"
        )
    cycles = float(np.asarray(family.cost(dims, tiling, wafer, **priced).total))
    error = cycles / result.cycles - 1.0
    if abs(error) > band:
        raise KernelError(
            f"kernel '{family.name}': cost {cycles:.0f} against {result.cycles} cycles of the program is "
            f"{100 * error:.1f} %, band {100 * band:.1f} %; find the missing term"
        )
    need = float(np.asarray(family.footprint(dims, tiling, wafer, **priced).total_bytes))
    used = declared_bytes(case.program)
    if used > need + resident_bytes:
        raise KernelError(
            f"kernel '{family.name}': the program declares {used} bytes per core, the footprint says {need:.0f}; "
            "count the missing buffer"
        )
    return error
