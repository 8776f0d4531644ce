"""Which prices a pipeline takes: those of the programs that the fabric steps, wherever it could step the plan.

    composed   every kernel is laid as its program on the fabric is (:mod:`wse_sim.whole.lower`), and priced as that
    plain      the mapping of a kernel family that takes the fewest cycles in closed form; of most, no program was composed
    auto       composed, if all kernels are covered, the plan fits and a copy of the model has no more cores than are stepped; else plain

Look-ups, dropout, a loss that the model returns, and updates by other algorithms than sgd have no program; they keep their plain price in a
composed plan as well.  A note of the plan says which prices it has, and of plain ones why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal

from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.errors import ModelError
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.graph.optimizers import OPTIMIZERS, optimizer_of, stored_bytes
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.covered import MAX_CORES
from wse_sim.whole.lower import WITHOUT_PROGRAM, is_laid, priced_graph, with_programs
from wse_sim.whole.trained.covered import check_any

Prices = Literal["auto", "composed", "plain"]
STEPPED = f"and plans of up to {MAX_CORES:,} cores are stepped"
Compiler = Callable[[KernelGraph], Plan | Infeasible]
BYTES = 2  # of a weight that does not train
AUTO, COMPOSED, PLAIN = "auto", "composed", "plain"


@dataclass(frozen=True)
class ComposedGraph:
    """A graph whose kernels are laid as their programs are; `plain` are the forward kernels that have none."""

    graph: KernelGraph
    plain: tuple[str, ...]

    @property
    def note(self) -> str:
        """Which prices a plan of it has."""
        text = "prices: as composed and stepped on the fabric"
        updates = {
            str(one.attrs.get("algorithm", "sgd")) for one in self.graph.kernels if one.phase is Phase.UPDATE
        }
        without = [f"'{name}'" for name in self.plain[:3]] + [
            f"updates by {name}" for name in sorted(updates - {"sgd"})
        ]
        if len(self.plain) > 3:
            without.insert(3, f"{len(self.plain) - 3} more")
        return f"{text}, but for {', '.join(without)}, of which no program is composed" if without else text


def composed_graph(graph: KernelGraph) -> ComposedGraph:
    """The graph with every kernel laid as its program on the fabric is.

    Example
    -------
    >>> from wse_sim import api
    >>> composed_graph(api.load_model("fc-mnist", training=True)).plain
    ('cross_entropy',)

    Raises
    ------
    ModelError
        If a kernel other than those of :data:`wse_sim.whole.lower.WITHOUT_PROGRAM` is not covered, naming it.
    """
    laid = priced_graph(graph)
    _check_equal(graph, laid)
    check_any(with_programs(_by_sgd(laid)))
    plain = tuple(
        one.name for one in laid.kernels if one.phase is Phase.FORWARD and one.family in WITHOUT_PROGRAM
    )
    return ComposedGraph(laid, plain)


def plan_with(prices: str, graph: KernelGraph, sram_bytes: float, compiler: Compiler) -> Plan | Infeasible:
    """The plan of a graph by a mode that rests a model on one wafer, with the prices that are asked for.

    `sram_bytes` are those of a core.

    Raises
    ------
    ModelError
        If composed prices are asked for and the graph is not covered.
    """
    if is_laid(graph):  # by a caller that steps the plan
        return compiler(graph)
    if prices == PLAIN:
        return _noted(compiler(graph), _plain_note("they are asked for"))
    try:
        if prices == AUTO:
            _check_size(graph, sram_bytes)
        composed = composed_graph(graph)
    except ModelError as told:
        if prices == COMPOSED:
            raise
        return _noted(compiler(graph), _plain_note(str(told)))
    found = compiler(composed.graph)
    if prices == COMPOSED:
        return _noted(found, composed.note)
    if isinstance(found, Infeasible):
        return _noted(
            compiler(graph), _plain_note(f"the programs of the fabric do not fit ({found.message})")
        )
    plan = expect(found, PipelinedPlan)
    cores = sum(stage.region.cores for stage in plan.stages) // plan.replicas
    if cores > MAX_CORES:
        why = f"a copy of the model would have {cores:,} cores as composed, {STEPPED}"
        return _noted(compiler(graph), _plain_note(why))
    return _noted(found, composed.note)


def _check_size(graph: KernelGraph, sram_bytes: float) -> None:
    """The weights alone fit the cores that are stepped: what is far too large is not planned twice.

    Raises
    ------
    ModelError
        If they do not.
    """
    trained = (optimizer_of(graph) or OPTIMIZERS["sgd"]).resident_bytes if graph.training else BYTES
    cores = ceil(stored_bytes(graph, trained, frozen=BYTES) / sram_bytes)
    if cores > MAX_CORES:
        raise ModelError(f"the weights of the model take {cores:,} cores, {STEPPED}")


def _plain_note(why: str) -> str:
    return f"prices: plain, of mappings of which no program was composed, because {why}"


def _noted(found: Plan | Infeasible, note: str) -> Plan | Infeasible:
    """The plan with a note; an answer that nothing fits has none."""
    if isinstance(found, Infeasible):
        return found
    plan = expect(found, PipelinedPlan)
    return dataclasses.replace(plan, notes=(*plan.notes, note))


def _check_equal(graph: KernelGraph, laid: KernelGraph) -> None:
    """The laid graph updates as many weights, and its kernels have the pins that a user gave.

    Raises
    ------
    ModelError
        If it does not.
    """
    if _updated(graph) != _updated(laid):
        raise ModelError("a part of the parameters does not train, and the programs of the fabric update all")
    names = {one.name for one in laid.kernels}
    for one in graph.kernels:
        if one.name not in names and any(name.startswith("pin_") for name in one.attrs):
            raise ModelError(
                f"kernel '{one.name}' is pinned, and its program on the fabric is that of several kernels"
            )


def _updated(graph: KernelGraph) -> int:
    """Elements of the parameters that are updated."""
    names = {name for one in graph.kernels if one.phase is Phase.UPDATE for name in one.parameters}
    return sum(graph.tensors[name].elements for name in names)


def _by_sgd(graph: KernelGraph) -> KernelGraph:
    """The graph with updates by sgd: those by other algorithms keep their plain price."""

    def changed(one: Kernel) -> Kernel:
        if "algorithm" not in one.attrs:
            return one
        return dataclasses.replace(one, attrs=frozen({**one.attrs, "algorithm": "sgd"}))

    return dataclasses.replace(graph, kernels=tuple(map(changed, graph.kernels)))
