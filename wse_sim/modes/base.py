"""Interface of a mode: a way of running a model on the wafer, from kernel graph to result.

    compile     graph, system, options -> plan, or why the model does not fit
    simulate    plan -> result
    describe    plan -> facts for a reader
    scaled      plan, factors -> the plan with the cycles of another timing source
    quick_figures  plan -> rates without a complete simulation, for ratios
    repriced    plan, constants -> the same plan with its costs for these constants
    drawn_figures  plan, many machines -> their quick figures in one pass, if the mode supports it (PricesDraws)
    work        plan -> what fabric programs can measure of it

A mode is one folder: its list of steps, its plan, its run, its result. Compiler passes that several modes use
are in :mod:`wse_sim.compiler`, common parts of simulations in :mod:`wse_sim.engine`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from wse_sim.compiler.flow import PlanStep
from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.engine.options import Options
from wse_sim.engine.result import Result
from wse_sim.errors import ModelError
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Cluster, Wafer
from wse_sim.kernels import Tiling
from wse_sim.kernels.contract.family import Cost, Probe
from wse_sim.options import Declared


@dataclass(frozen=True)
class System:
    """The machine for a plan: `systems` identical wafers and the cluster around them."""

    wafer: Wafer
    cluster: Cluster
    systems: int = 1


@dataclass(frozen=True)
class Placed:
    """A kernel of a plan: the stage or phase it belongs to, and its cycles as the plan counts them."""

    name: str
    kernel: Kernel
    tiling: Tiling
    cycles: float
    fill_cycles: float  # of these, the fill of the rectangle
    scale: float = 1.0  # the plan's cycles over the formula's, fill aside
    again: Kernel | None = None  # the forward kernel whose special elements it recomputes


class Part(NamedTuple):
    """A part of a layer that a program measures; with `runs`, the probe is the part itself, executed that
    many times.

    `extra_cycles` are cycles of one run that a layer does not spend.
    """

    probe: Probe
    runs: float = 0
    extra_cycles: float = 0.0


@dataclass(frozen=True)
class Layer:
    """A layer's cost by formula, the parts of it that programs measure, and why the rest is not measured."""

    name: str
    cost: Cost
    parts: Sequence[Part]
    rest: str = "no part represents it"


class Mode(Protocol):
    """A mode; an object of a class like this in :data:`wse_sim.modes.MODES` is all that a new mode takes."""

    name: str
    about: str  # one sentence for lists
    competes: bool  # whether "compare" shows it
    is_offered: (
        bool  # whether the machine's own software has it: "auto" chooses among the competing ones of these
    )
    least_systems: int  # with fewer a comparison leaves it out
    weights_rest: bool  # whether all weights stay on the wafer, so that a model may be too large for it
    counts: str  # what a sample of its results is: "sample" or "token"
    options: type[Any]  # a frozen dataclass or a declaration: what a user may fix, `batch` among it
    plan: type  # of its plans
    simulated_steps: int  # steps of a run unless asked; the last is measured

    @property
    def steps(self) -> Sequence[PlanStep]:
        """Return the steps of its compiler, in order."""
        ...

    def compile(self, graph: KernelGraph, system: System, options: object) -> Plan | Infeasible:
        """Plan the graph."""
        ...

    def simulate(self, plan: Plan, options: Options, *, trace: bool) -> Result:
        """Run the plan as a discrete-event simulation and measure its last step."""
        ...

    def describe(self, plan: Plan) -> tuple[tuple[str, str], ...]:
        """Facts of a plan for a reader: name and value."""
        ...

    def scaled(self, plan: Plan, factors: Mapping[str, float]) -> Plan:
        """The plan with the cycles of the named stages or phases times their factors."""
        ...

    def repriced(self, plan: Plan, wafer: Wafer, cluster: Cluster) -> Plan | Infeasible:
        """The plan with other constants of equal geometry: costs again, no choice made again."""
        ...

    def quick_figures(self, plan: Plan) -> Mapping[str, float]:
        """Return figures of a plan by a fast method, including "samples_per_s", for ratios between plans of
        one shape."""
        ...

    def work(self, plan: Plan) -> Iterator[Placed | Layer]:
        """Everything whose cycles the plan states."""
        ...


@runtime_checkable
class PricesDraws(Protocol):
    """A mode that prices a plan at many draws of the constants in one pass; of others every draw is priced alone."""

    def drawn_figures(
        self, plan: Plan, machines: Sequence[tuple[Wafer, Cluster]]
    ) -> Sequence[Mapping[str, float]] | None:
        """`quick_figures` of the plan repriced on every machine, in one pass; None if the mode has no such pass.

        A machine that the plan does not fit has no figures.
        """
        ...


@runtime_checkable
class Rebatches(Protocol):
    """A mode whose quick figures depend on the batch."""

    def with_batch(self, plan: Plan, batch: int) -> Plan | Infeasible:
        """The plan with another batch; what does not depend on it stays."""
        ...


T = TypeVar("T")


def option_names(mode: Mode) -> tuple[str, ...]:
    """Names of the options that a mode has, as they are declared."""
    if issubclass(mode.options, Declared):
        return tuple(mode.options.model_fields)
    return tuple(item.name for item in dataclasses.fields(mode.options))


def options_of(mode: Mode, asked: Mapping[str, object]) -> object:
    """The options of a mode from those a user fixed; values of None are left to the mode.

    Raises
    ------
    ModelError
        If the mode has no such option.
    """
    known = option_names(mode)
    given = {name: value for name, value in asked.items() if value is not None}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ModelError(f"mode {mode.name} has no option '{unknown[0]}'; it has {', '.join(sorted(known))}")
    return mode.options(**given)


def expect(value: object, kind: type[T]) -> T:
    """`value`, which must be a `kind`: plans and options of one mode are of no use to another.

    Raises
    ------
    ModelError
        If it is something else.
    """
    if not isinstance(value, kind):
        raise ModelError(f"a {type(value).__name__} is given where a {kind.__name__} is needed")
    return value
