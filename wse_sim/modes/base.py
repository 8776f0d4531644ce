"""Interface of a mode: a way of running a model on the wafer, from kernel graph to result.

    compile     graph, system, options -> plan, or why the model does not fit
    simulate    plan -> result
    describe    plan -> facts for a reader
    scaled      plan, factors -> the plan with the cycles of another timing source
    quick_figures  plan -> rates without a complete simulation, for ratios
    repriced    plan, constants -> the same plan with its costs for these constants
    drawn_figures  plan, many machines -> their quick figures in one pass, if the mode supports it (PricesDraws)
    work        plan -> the parts that fabric programs can measure

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
    fill_cycles: float  # of these cycles, those of the fill of the rectangle
    scale: float = 1.0  # the plan's cycles divided by the formula's, both without fill
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
    """Protocol of a mode; a new mode is an object of a class with these members in
    :data:`wse_sim.modes.MODES`."""

    name: str
    about: str  # one sentence for lists
    competes: bool  # whether "compare" shows it
    is_offered: bool  # whether the machine's own software has it: "auto" chooses among the competing modes
    least_systems: int  # a comparison with fewer leaves the mode out
    weights_rest: bool  # whether all weights stay on the wafer, so that a model may be too large for it
    counts: str  # unit that its results count as samples: "sample" or "token"
    options: type[Any]  # a frozen dataclass or a declaration: the options of a user, including `batch`
    plan: type  # of its plans
    simulated_steps: int  # default number of steps of a run; the last one is measured

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
        """Return facts of a plan for display, by name."""
        ...

    def scaled(self, plan: Plan, factors: Mapping[str, float]) -> Plan:
        """Return the plan with the cycles of the named stages or phases multiplied by their factors."""
        ...

    def repriced(self, plan: Plan, wafer: Wafer, cluster: Cluster) -> Plan | Infeasible:
        """Return the plan with costs for other constants of equal geometry; all choices stay the same."""
        ...

    def quick_figures(self, plan: Plan) -> Mapping[str, float]:
        """Return figures of a plan by a fast method, including "samples_per_s", for ratios between plans of
        one shape."""
        ...

    def work(self, plan: Plan) -> Iterator[Placed | Layer]:
        """Yield everything whose cycles the plan states."""
        ...


@runtime_checkable
class PricesDraws(Protocol):
    """A mode that prices a plan for many draws of the constants in one pass; other modes price each draw
    separately."""

    def drawn_figures(
        self, plan: Plan, machines: Sequence[tuple[Wafer, Cluster]]
    ) -> Sequence[Mapping[str, float]] | None:
        """Return the `quick_figures` of the plan repriced on every machine, in one pass; None if the mode
        cannot do this.

        A machine on which the plan does not fit has no figures.
        """
        ...


@runtime_checkable
class Rebatches(Protocol):
    """A mode whose quick figures depend on the batch."""

    def with_batch(self, plan: Plan, batch: int) -> Plan | Infeasible:
        """Return the plan with another batch; choices that do not depend on the batch stay the same."""
        ...


T = TypeVar("T")


def option_names(mode: Mode) -> tuple[str, ...]:
    """Return the names of a mode's options, in the order of declaration."""
    if issubclass(mode.options, Declared):
        return tuple(mode.options.model_fields)
    return tuple(item.name for item in dataclasses.fields(mode.options))


def options_of(mode: Mode, asked: Mapping[str, object]) -> object:
    """Return the options of a mode, from those that a user set; the mode chooses values that are None.

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
    """Return `value` after checking that it is a `kind`, because modes cannot use each other's plans and
    options.

    Raises
    ------
    ModelError
        If it is not.
    """
    if not isinstance(value, kind):
        raise ModelError(f"a {type(value).__name__} is given where a {kind.__name__} is needed")
    return value
