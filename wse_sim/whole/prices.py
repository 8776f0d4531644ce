"""Choose the prices of a pipelined plan: those of the fabric programs, or plain ones.

    composed   every kernel that has a fabric program has its layout (:mod:`wse_sim.whole.lower`) and its price
    plain      every kernel family takes the mapping with the fewest cycles in closed form; most of these
               mappings have no composed program
    auto       composed if all kernels have programs and the plan fits, and in training if the fabric can step the wafer; plain
               otherwise

Table look-ups, dropout, a loss inside the model, updates by optimizers other than sgd, the sum of gradients of a table that is also
the weight of a layer, and all kernels that no program supports, or whose program has no room on any region, keep their plain price in
a composed plan. A note of the plan states which prices it has, for how much of the time of its cores, and why they are plain.

In training on larger wafers prices are plain: programs train in rounds of as many samples as all cores can store, and published
rates of large models are those of passes that alternate. The wafer decides, not the model: on one wafer, a larger model must not
become faster because its prices change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass

from wse_sim.compiler.compute_columns import MOVING
from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.compiler.pricing import shared_prices
from wse_sim.errors import ModelError, WseError
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Wafer
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.estimate import step_cycles
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.repricing import sizer_for
from wse_sim.whole.bundles import settled
from wse_sim.whole.coverage import can_step, check_wafer, unsupported
from wse_sim.whole.lower import is_laid, priced_graph, with_programs, without_program
from wse_sim.whole.parallel_links import plain_priced
from wse_sim.whole.regions import KINDS
from wse_sim.whole.room import with_room
from wse_sim.whole.trained.coverage import check_any
from wse_sim.whole.trained.kinds import TRAINED
from wse_sim.whole.trained.link_choice import with_chosen_streams
from wse_sim.whole.trained.round_sizes import round_sizes
from wse_sim.whole.trained.rounds import in_program_rounds, with_links_of_regions

Compiler = Callable[..., Plan | Infeasible]
"""Makes the plan of a graph, with the user's schedule and recomputation or, as further arguments, others."""
ALTERNATING = "1f1b"
FEW_STAGES = 100
"""Stages up to which a plan for alternating passes competes with one for rounds; for more stages each takes seconds."""
TRIED_SIZES = 2
"""Sizes of rounds for which a plan with few stages is made: area bounds tell little of placements where memory binds."""
MOVING_COLUMNS = 3
"""Most columns of a region that a program of training uses besides those that compute: inlets, cores that send gradients on, stores of
a residual. Only a plan for a large wafer is limited to them: on wafers that the fabric steps, some plans with the limit run 3 to 11 %
slower, and the cause is unknown."""
AUTO, COMPOSED, PLAIN = "auto", "composed", "plain"


@dataclass(frozen=True)
class ComposedGraph:
    """A graph with the layouts of the fabric programs; `plain` names the forward kernels without a program, `shared` the
    weights that layers with a program share with them."""

    graph: KernelGraph
    plain: tuple[str, ...]
    shared: tuple[str, ...] = ()

    def note(self, plan: PipelinedPlan) -> str:
        """The prices of its plan, in one sentence."""
        text = "prices: from the programs that the fabric runs"
        updates = {
            str(one.attrs.get("algorithm", "sgd")) for one in self.graph.kernels if one.phase is Phase.UPDATE
        }
        without = [f"'{name}'" for name in self.plain[:3]] + [
            f"updates by {name}" for name in sorted(updates - {"sgd"})
        ]
        without += [f"the sum of the gradients of table '{name}'" for name in self.shared]
        if len(self.plain) > 3:
            without.insert(3, f"{len(self.plain) - 3} more")
        if not without:
            return text
        fraction = composed_fraction(plan)
        return f"{text} ({fraction:.0%} of the cores' time), except for {', '.join(without)}, which have none"


def composed_fraction(plan: PipelinedPlan) -> float:
    """Return the part of a plan's stage times, weighted by cores, that has the prices of programs."""
    aside = without_program(plan.graph)
    weights = [(stage, stage.cycles_per_sample * stage.region.cores) for stage in plan.stages]
    composed = sum(weight for stage, weight in weights if stage.kernels and aside.isdisjoint(stage.kernels))
    return composed / (sum(weight for _, weight in weights) or 1.0)


def composed_graph(graph: KernelGraph, too_large: Collection[str] = ()) -> ComposedGraph:
    """Return the graph with the layouts of the fabric programs, except for kernels that no program supports.

    `too_large` names forward kernels whose programs have no room.

    Example
    -------
    >>> from wse_sim import api
    >>> composed_graph(api.load_model("fc-mnist", training=True)).plain
    ('cross_entropy',)

    Raises
    ------
    ModelError
        If no kernel has a program, or if programs would update other weights or leave out a kernel that is pinned.
    """
    laid = priced_graph(graph, lambda laid: _unsupported(laid, too_large))
    aside = without_program(laid)
    forward = [one for one in laid.kernels if one.phase is Phase.FORWARD]
    if aside.issuperset(one.name for one in forward):
        check_any(graph)
    _check_equal(graph, laid)
    weights = [
        {name for one in forward if (one.name in aside) is is_aside for name in one.parameters}
        for is_aside in (True, False)
    ]
    shared = tuple(sorted(weights[0] & weights[1])) if laid.training else ()
    return ComposedGraph(laid, tuple(one.name for one in forward if one.name in aside), shared)


@shared_prices()
def plan_with(
    prices: str,
    graph: KernelGraph,
    wafer: Wafer,
    compiler: Compiler,
    schedule: str | None = None,
    samples: int = 1,
) -> Plan | Infeasible:
    """Compile a pipelined plan with the requested prices.

    `compiler` makes the plan of a graph on `wafer`, for at most `samples` samples per replica. A network that trains with composed prices has the schedule of
    its program, unless the user states a `schedule`.

    Raises
    ------
    ModelError
        If composed prices are requested and the graph is not supported.
    """
    if is_laid(graph):  # by a caller that simulates the plan
        try:
            check_any(with_programs(graph))
        except ModelError:  # the simulation states it
            return compiler(graph)
        return _scheduled(graph, wafer, compiler, schedule, samples)
    if prices == PLAIN:
        return _noted(compiler(graph), _plain_note("prices=plain is set"))
    try:
        if prices == AUTO:
            _check_programs(graph, wafer)
        composed = composed_graph(graph)
        found = _scheduled(composed.graph, wafer, compiler, schedule, samples)
        if prices == COMPOSED and isinstance(found, Infeasible):
            composed, found = _without_large(graph, composed, found, (wafer, compiler, schedule, samples))
    except WseError as told:
        if prices == COMPOSED:
            raise ModelError(
                f"{_reason(told)}, so the model has no composed prices; use prices=plain"
            ) from told
        return _noted(compiler(graph), _plain_note(_reason(told)))
    if not isinstance(found, Infeasible):
        return _noted(found, composed.note(expect(found, PipelinedPlan)))
    if prices == COMPOSED:
        return found
    return _noted(compiler(graph), _plain_note(f"the programs of the fabric do not fit ({found.message})"))


def _check_programs(graph: KernelGraph, wafer: Wafer) -> None:
    """Check that all kernels have programs, and in training that the fabric can step the wafer.

    Raises
    ------
    ModelError
        Naming the first kernel that has none.
    """
    if graph.training:
        check_wafer(wafer)
    laid = with_programs(_by_sgd(priced_graph(graph)))
    if graph.training:
        check_any(laid)
    elif found := unsupported(laid, KINDS):
        raise ModelError(next(iter(found.values())))


def _without_large(
    graph: KernelGraph,
    composed: ComposedGraph,
    found: Plan | Infeasible,
    how: tuple[Wafer, Compiler, str | None, int],
) -> tuple[ComposedGraph, Plan | Infeasible]:
    """Plan a graph that does not fit again, with plain prices for the kernels whose programs are too large for a core on all
    regions, and for those in their place that are."""
    too_large = set[str]()
    while isinstance(found, Infeasible) and found.unit == "bytes":
        groups = sizer_for(composed.graph, how[0]).too_large()
        more = {group.forward.name for group, _ in groups} - {*composed.plain, *too_large}
        if not more:
            break
        too_large |= more
        composed = composed_graph(graph, too_large)
        found = _scheduled(composed.graph, *how)
    return composed, found


def _reason(told: WseError) -> str:
    """Return a refusal without its remedy, which is one for programs."""
    return str(told).rpartition("; ")[0] or str(told)


def _scheduled(
    graph: KernelGraph, wafer: Wafer, compiler: Compiler, schedule: str | None, samples: int
) -> Plan | Infeasible:
    """Plan a laid graph; in training with the rounds of the network's program and a note, unless the user states a
    `schedule`.

    Regions for rounds have room for as many samples as the area bound suggests (:func:`round_sizes`). If such a plan has no
    program, or has few stages, one for the next number of samples and one for alternating passes in rounds of what its cores
    can store are made too, and the fastest is returned.
    """
    if not graph.training:
        return settled(graph, compiler)
    if not can_step(wafer):
        graph = dataclasses.replace(graph, facts=frozen({**graph.facts, MOVING: MOVING_COLUMNS}))
    if schedule is not None or plain_priced(graph):  # or no program of the complete model, so no rounds of it
        found = _with_streams(graph, wafer, compiler, schedule or ALTERNATING)
        return found if isinstance(found, Infeasible) else with_links_of_regions(expect(found, PipelinedPlan))
    plans: list[PipelinedPlan] = []
    for size in round_sizes(graph, wafer, samples):
        found = _with_streams(with_room(graph, wafer, size), wafer, compiler, None, "none")
        plan, _ = _in_rounds(found)  # no program runs a forward pass again
        plans += [plan] if plan is not None else []
        if plans and (len(plans) == TRIED_SIZES or len(plans[0].stages) > FEW_STAGES):
            break
    if not plans or len(plans[0].stages) <= FEW_STAGES:
        found = _with_streams(with_room(graph, wafer), wafer, compiler, ALTERNATING)
        turned, why = _in_rounds(found)
        plans += [turned] if turned is not None else []
        if isinstance(found, Infeasible) and not plans:
            return found
        if not plans:
            linked = with_links_of_regions(expect(found, PipelinedPlan))
            return _noted(linked, f"schedule: forward and backward passes alternate, because {why}")
    plan = min(plans, key=step_cycles)
    note = (
        f"schedule: rounds of {plan.round_samples} of {plan.batch} samples, all forward passes before the backward passes, as the programs "
        "of the fabric train; schedule=1f1b would alternate them"
    )
    return _noted(plan, note)


def _with_streams(
    graph: KernelGraph, wafer: Wafer, compiler: Compiler, *how: str | None
) -> Plan | Infeasible:
    """Plan a laid training graph with the numbers of streams that are chosen before its regions have shapes; if such regions
    cannot be placed, with numbers that each region chooses."""
    chosen = with_chosen_streams(graph, wafer)
    found = compiler(chosen, *how)
    return compiler(graph, *how) if isinstance(found, Infeasible) and chosen != graph else found


def _in_rounds(found: Plan | Infeasible) -> tuple[PipelinedPlan | None, str]:
    """Return a plan in the rounds of its program; without one None, and the reason if there is a plan."""
    if isinstance(found, Infeasible):
        return None, ""
    try:
        return in_program_rounds(expect(found, PipelinedPlan)), ""
    except ModelError as told:
        return (
            None,
            f"the programs of the fabric, which train in rounds, do not fit this plan ({_reason(told)})",
        )


def _plain_note(why: str) -> str:
    return f"prices: plain (closed forms, not composed fabric programs), because {why}"


def _noted(found: Plan | Infeasible, note: str) -> Plan | Infeasible:
    """Return the plan with a further note; an :class:`Infeasible` is returned unchanged."""
    if isinstance(found, Infeasible):
        return found
    plan = expect(found, PipelinedPlan)
    return dataclasses.replace(plan, notes=(*plan.notes, note))


def _unsupported(laid: KernelGraph, too_large: Collection[str]) -> Collection[str]:
    """Return the forward kernels of a laid graph that have no program in its phase, or one that is `too_large`, and are
    laid out for it."""
    kinds = TRAINED if laid.training else KINDS
    found = unsupported(with_programs(_by_sgd(laid)), kinds)
    return {*found, *too_large} - without_program(laid)


def _check_equal(graph: KernelGraph, laid: KernelGraph) -> None:
    """Check that the laid graph updates as many weights as `graph`, and that its kernels keep the user's pins.

    Raises
    ------
    ModelError
        If it does not.
    """
    if _updated(graph) != _updated(laid):
        raise ModelError("some parameters do not train, but the programs of the fabric update all")
    names = {one.name for one in laid.kernels}
    for one in graph.kernels:
        if one.name not in names and any(name.startswith("pin_") for name in one.attrs):
            raise ModelError(
                f"kernel '{one.name}' is pinned, but its program on the fabric covers several kernels"
            )


def _updated(graph: KernelGraph) -> int:
    """Number of elements of all updated parameters."""
    names = {name for one in graph.kernels if one.phase is Phase.UPDATE for name in one.parameters}
    return sum(graph.tensors[name].elements for name in names)


def _by_sgd(graph: KernelGraph) -> KernelGraph:
    """Return the graph with updates by sgd, which the programs have."""

    def changed(one: Kernel) -> Kernel:
        if "algorithm" not in one.attrs:
            return one
        return dataclasses.replace(one, attrs=frozen({**one.attrs, "algorithm": "sgd"}))

    return dataclasses.replace(graph, kernels=tuple(map(changed, graph.kernels)))
