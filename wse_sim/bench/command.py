"""Kernels by name, for ``wse-sim kernel NAME`` and for the published measurements of kernels.

A :class:`KernelCommand` turns parameters into a call of a family: dims, tiling, attributes.  Its model
face is the family's `cost`, its fabric face the family's `program` run on the simulated fabric.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wse_sim.bench.contract import KernelCommand, KernelRequest
from wse_sim.bench.products import PHASE
from wse_sim.bench.table import COMMANDS
from wse_sim.compiler.defects import usable_cores
from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Cost, Family, Tiling
from wse_sim.kernels.contract.numerics import UNARY
from wse_sim.kernels.contract.parameters import Parameter
from wse_sim.kernels.contract.registry import REGISTRY, load_families
from wse_sim.kernels.contract.testing import max_abs_error
from wse_sim.units import cycles_to_s, summary

if TYPE_CHECKING:
    from wse_sim.fabric.result import FabricResult

LONGEST_LINE = 8192
"""Cores of a line up to which the tree of least hops is searched; the time of the search grows with the square."""

MOST_ELEMENTS = 2**28
"""Elements of all operands of a fabric program together: 1 GiB in fp32."""


# Core cycles of one run on the fabric: about half an hour of the wavelet executor.
MAX_CORE_CYCLES = 2e11


@dataclass(frozen=True)
class KernelReport:
    """Both timings of one kernel; `fabric` is a FabricResult, `terms` are fabric minus model in cycles."""

    name: str
    params: Mapping[str, Any]
    model: Cost | None
    fabric: FabricResult | None
    max_abs_error: float | None
    terms: Mapping[str, float]

    @property
    def model_cycles(self) -> float | None:
        """Cycles by formula."""
        return None if self.model is None else float(np.asarray(self.model.total))

    @property
    def fabric_cycles(self) -> int | None:
        """Cycles on the fabric."""
        return None if self.fabric is None else int(self.fabric.cycles)

    @property
    def difference(self) -> float | None:
        """(model - fabric) / fabric."""
        if self.model_cycles is None or self.fabric_cycles is None:
            return None
        return self.model_cycles / self.fabric_cycles - 1.0

    @property
    def largest_term(self) -> str:
        """Name of the term in which the two differ most, "" if only one timing was requested."""
        return max(self.terms, key=lambda name: abs(self.terms[name]), default="")


@cache
def kernel_commands() -> Mapping[str, KernelCommand]:
    """All kernels that can be run by name."""
    return {command.name: command for command in COMMANDS}


def find(name: str) -> KernelCommand:
    """The kernel of that name: one of the table, or any registered family.

    Raises
    ------
    KernelError
        If there is none, or the family has no fabric program.
    """
    commands = kernel_commands()
    if name in commands:
        return commands[name]
    load_families()
    found = REGISTRY.get(name)
    if found is not None:
        return _of_family(found)
    raise KernelError(f"kernel '{name}' is unknown; use one of {', '.join(sorted({*commands, *REGISTRY}))}")


MANY = 4096  # elements: whole heads of 64 features on each of 4 x 4 cores
# The dimensions of a matrix, where the names of the rectangle are taken.
MATRIX = {"rows": "m", "cols": "n"}


def _of_family(found: Family) -> KernelCommand:
    """A command for a family that the table does not know: its sizes and attributes, a rectangle, its first mapping."""
    names = {size.name: MATRIX.get(size.name, size.name) for size in found.sizes()[: len(found.dims)]}
    size = 64 if len(names) <= 3 else 8
    # Operands of a region arrive over its edge, which no program of a kernel alone does.
    in_place = "streamed" if "streamed" in found.mappings else found.mappings[0]
    rectangle = (
        Parameter("rows", 4, "rows of cores"),
        Parameter("cols", 4, "columns of cores"),
        Parameter("dtype", "fp32", "precision"),
        Parameter("mapping", in_place, "mapping", tuple(found.mappings)),
        Parameter("algorithm", "", "algorithm of the mapping"),
        PHASE,
    )
    taken = {*names.values(), *(parameter.name for parameter in rectangle)}
    attributes = tuple(
        item for item in found.parameters().values() if item.name not in taken and not item.is_layout
    )
    sizes = (
        Parameter(names[s.name], MANY if s.name == "elements" else size, s.help or f"dimension {s.name}")
        for s in found.sizes()
        if s.name in names
    )

    def call(p: Mapping[str, Any]) -> KernelRequest:
        tiling = Tiling(p["rows"], p["cols"], p["mapping"], p["algorithm"])
        attrs = {item.name: p[item.name] for item in attributes}
        return KernelRequest(
            found.name,
            {dim: p[name] for dim, name in names.items()},
            tiling,
            p["dtype"],
            attrs,
            Phase(p["phase"]),
        )

    return KernelCommand(found.name, summary(type(found)), (*sizes, *rectangle, *attributes), call)


def fitting(command: KernelCommand, given: Mapping[str, Any], wafer: Wafer) -> dict[str, Any]:
    """The given parameters, with smaller sides where a default rectangle is larger than the wafer.

    Raises
    ------
    KernelError
        If a parameter is unknown or does not read.
    """
    chosen = dict(given)
    stated = {"cores" if name == "cols" else name for name in given} | set(given)
    for side, most in (("rows", wafer.rows), ("cols", wafer.cols)):
        for parameter in command.params:
            params = command.read(chosen)
            length = params[parameter.name]
            if parameter.name in stated or type(length) is not int or not length > 1:
                continue
            if _sides(command, params)[side] > most and length == _sides(command, params)[side]:
                smaller = {**chosen, parameter.name: most}
                if _sides(command, command.read(smaller))[side] == most:
                    chosen = smaller
    return chosen


def _sides(command: KernelCommand, params: Mapping[str, Any]) -> dict[str, int]:
    tiling = command.call(params).tiling
    return {"rows": int(tiling.rows), "cols": int(tiling.cols)}


def run_kernel(
    name: str,
    given: Mapping[str, Any],
    wafer: Wafer,
    *,
    timing: str = "both",
    executor: str = "auto",
    functional: bool = True,
    seed: int = 0,
    waits: str | Path | None = None,
    **fabric_options: Any,
) -> KernelReport:
    """Time a kernel by formula, on the fabric, or both (`timing` "model", "fabric", "both").

    `waits`: file for the list of all waits of a program that stops; the error names it, a temporary one by default.

    Raises
    ------
    KernelError
        If the kernel, a parameter or the timing is unknown.
    DeadlockError
        If the program stops with cores that wait.
    """
    if timing not in {"model", "fabric", "both"}:
        raise KernelError(f"timing '{timing}' is unknown; use model, fabric or both")
    command = find(name)
    params = command.read(fitting(command, given, wafer))
    _check_names(command, params)
    _check_size(command, params, wafer, timing)
    model = command.model_cycles(params, wafer) if timing != "fabric" else None
    if timing == "model":
        return KernelReport(name, params, model, None, None, {})
    from wse_sim.errors import DeadlockError
    from wse_sim.fabric.run import run_program

    _check_effort(command, params, wafer)
    case = command.build(params, wafer, seed)
    result = run_program(
        case.program,
        case.config,
        executor=executor,
        functional=functional,
        inputs=case.inputs if functional else None,
        **fabric_options,
    )
    if result.deadlock is not None:
        raise DeadlockError(f"kernel '{name}' stopped: {result.deadlock.told(waits)}")
    error = max_abs_error(case, result) if functional else None
    return KernelReport(name, params, model, result, error, _terms(model, result))


def _check_size(command: KernelCommand, params: Mapping[str, Any], wafer: Wafer, timing: str) -> None:
    """Raise an error for a rectangle larger than the wafer, or operands too large for this machine's memory.

    Raises
    ------
    KernelError
        With what was requested and the limit.
    """
    call = command.call(params)
    rows, cols = int(call.tiling.rows), int(call.tiling.cols)
    # A formula knows no sides.
    if rows * cols > wafer.cores or (timing != "model" and (rows > wafer.rows or cols > wafer.cols)):
        raise KernelError(
            f"kernel '{command.name}' on {rows:,} x {cols:,} cores is larger than wafer {wafer.name} with "
            f"{wafer.rows} x {wafer.cols}; ask for fewer cores by --param ({_cores_by(command)})"
        )
    if rows * cols > usable_cores(wafer):
        raise KernelError(
            f"kernel '{command.name}' on {rows:,} x {cols:,} cores exceeds the {usable_cores(wafer):,} working cores of "
            f"wafer {wafer.name}; ask for fewer cores by --param ({_cores_by(command)})"
        )
    if max(rows, cols) > LONGEST_LINE:
        raise KernelError(
            f"kernel '{command.name}' on {rows:,} x {cols:,} cores has a line of more than {LONGEST_LINE:,} cores, up to which "
            f"trees of sums are searched; ask for fewer cores by --param ({_cores_by(command)})"
        )
    sizes = sorted((int(size) for size in call.dims.values()), reverse=True)
    matrix = sizes[0] * (sizes[1] if len(sizes) > 1 else rows * cols)
    if timing != "model" and matrix > MOST_ELEMENTS:
        raise KernelError(
            f"kernel '{command.name}' has operands of about {matrix:,} elements, the limit of a run on the fabric is "
            f"{MOST_ELEMENTS:,}; use --timing model or smaller sizes"
        )


def _check_names(command: KernelCommand, params: Mapping[str, Any]) -> None:
    """Refuse a function without numerics: its price would be that of any cheap operator.

    Raises
    ------
    KernelError
        If the function is unknown; the sentence lists the available ones.
    """
    function = params.get("function")
    if isinstance(function, str) and function not in UNARY:
        raise KernelError(
            f"kernel '{command.name}': function='{function}' is unknown; use one of {', '.join(UNARY)}"
        )
    for name in ("fused", "ops"):
        stated = params.get(name)
        for part in filter(None, str(stated).split(",")) if isinstance(stated, str) else ():
            if not part.strip().isidentifier():
                raise KernelError(
                    f"kernel '{command.name}': {name}='{stated}' names no operators; give comma-separated names, such as bias,gelu"
                )


def _cores_by(command: KernelCommand) -> str:
    """Names of the parameters that determine the number of cores, for a message."""
    known = [parameter.name for parameter in command.params]
    return ", ".join(name for name in ("rows", "cols", "cores") if name in known) or ", ".join(known)


def _check_effort(command: KernelCommand, params: Mapping[str, Any], wafer: Wafer) -> None:
    """Refuse a run that would take hours.

    Raises
    ------
    KernelError
        If cores times cycles exceed MAX_CORE_CYCLES.
    """
    tiling = command.call(params).tiling
    effort = (
        float(np.asarray(command.model_cycles(params, wafer).total)) * int(tiling.rows) * int(tiling.cols)
    )
    if effort > MAX_CORE_CYCLES:
        raise KernelError(
            f"kernel '{command.name}' on {tiling.rows} x {tiling.cols} cores is about {effort:.1e} core cycles, limit "
            f"{MAX_CORE_CYCLES:.0e}; use timing model, fewer cores or smaller tiles"
        )


def _terms(model: Cost | None, result: FabricResult) -> dict[str, float]:
    """Fabric minus model, by issue cycles and waiting of the busiest core (feeders and collectors wait more)."""
    if model is None:
        return {}
    busy = float(result.busy.max())
    waiting = float(result.cycles) - busy
    idle = float(np.asarray(model.idle))
    issue = float(np.asarray(model.total)) - idle
    return {"issue": busy - issue, "waiting": waiting - idle}


@dataclass(frozen=True)
class MeasuredKernel:
    """A quantity of a published measurement, and the largest part of its time."""

    value: float
    binding: str


# A published run of thousands of steps on the whole wafer repeats what a few steps on a small region do.
FABRIC_SIDE, FABRIC_STEPS = 12, 2


def measure(
    name: str, given: Mapping[str, Any], wafer: Wafer, *, quantity: str = "cycles", timing: str = "model"
) -> MeasuredKernel:
    """`quantity` (cycles, cycles_per_step, elements_per_cycle, tflops, microseconds) of a kernel.

    Rates per cycle exclude the start of the instruction, as the published ones do.  FLOP/s and times are
    at the clock of SDK programs.

    Raises
    ------
    KernelError
        If the kernel, a parameter or the quantity is unknown.
    """
    command = find(name)
    params = command.read(given)
    cost = command.model_cycles({**params, **({"steps": 1} if "steps" in params else {})}, wafer)
    cycles = float(np.asarray(cost.total))
    if timing == "fabric":
        small = dict(params)
        if "steps" in params:
            small |= {key: min(params[key], FABRIC_SIDE) for key in ("rows", "cols")}
            small["steps"] = min(params["steps"], FABRIC_STEPS)
        report = run_kernel(name, small, wafer, timing="fabric", functional=False)
        assert report.fabric is not None
        cycles = float(report.fabric.cycles) / small.get("steps", 1)
    parts = {key: float(np.max(value)) for key, value in cost.parts().items()}
    binding = max(parts, key=lambda key: parts[key])
    if quantity in {"cycles", "cycles_per_step"}:
        return MeasuredKernel(cycles, binding)
    seconds = cycles_to_s(cycles, wafer.program_clock_hz)
    if quantity == "microseconds":
        return MeasuredKernel(1e6 * seconds, binding)
    if quantity == "tflops":
        return MeasuredKernel(command.flops(params) / seconds / 1e12, binding)
    if quantity == "elements_per_cycle" and "elements" in params:
        return MeasuredKernel(params["elements"] / (cycles - wafer.vector_start_loaded_cycles), binding)
    raise KernelError(
        f"quantity '{quantity}' is unknown for kernel '{name}'; use cycles, cycles_per_step, elements_per_cycle, "
        "tflops, microseconds"
    )
